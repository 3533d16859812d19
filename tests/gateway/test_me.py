"""A person's own page: links that open it once, sessions that speak for one person, and what attacks on them get."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from tests.kits.gateway import chat, client, folded, serving, wait_for
from tests.kits.quiz import install, shorter

from fitrouter.config import Config, load_config
from fitrouter.errors import InvalidRequest
from fitrouter.router import Router
from fitrouter.stores.audit_log import FILE as AUDIT_FILE
from fitrouter.stores.keys import FILE as KEY_FILE
from fitrouter.stores.keys import StoredKey, change_keys, digest_of, new_key
from fitrouter_evaluators.personal import Quizzes
from fitrouter_evaluators.personal.answers import NoAnswers
from fitrouter_integrations.gateway.console._sessions import TOKEN
from fitrouter_integrations.gateway.me import _links
from fitrouter_integrations.gateway.me._links import Links

TRUSTED, OTHER, PLAIN, OWN = "a's backend", "b's backend", "a's application", "cleo's own"


class Place:
    """A running gateway of two tenants, and its keys."""

    def __init__(self, url: str, router: Router, config: Config, keys: dict[str, str]) -> None:
        self.url, self.router, self.config, self.keys = url, router, config, keys

    def as_key(self, name: str = TRUSTED) -> httpx.Client:
        return client(self.url, headers={"authorization": f"Bearer {self.keys[name]}"})

    def link(self, user: str = "ada", key: str = TRUSTED) -> str:
        """The token of a new link."""
        with self.as_key(key) as http:
            reply = http.post("/v1/links", json={"user": user})
            assert reply.status_code == 200, reply.text
            return str(reply.json()["url"]).partition("/me#")[2]

    @contextmanager
    def visit(self, user: str = "ada", key: str = TRUSTED) -> Iterator[httpx.Client]:
        """A browser with a session of a person."""
        with client(self.url) as http:
            assert http.post("/me/api/redeem", json={"token": self.link(user, key)}).status_code == 200
            http.headers[TOKEN] = http.get("/me/api/session").json()["csrf"]
            yield http


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    config = load_config(install(tmp_path_factory.mktemp("me")))
    keys, stored = {}, []
    for name, tenant, scopes in (
        (OWN, "a", ("chat", "feedback")),
        (TRUSTED, "a", ("chat", "feedback", "read", "trusted")),
        (OTHER, "b", ("chat", "feedback", "read", "trusted")),
        (PLAIN, "a", ("chat", "feedback", "read")),
    ):
        key_id, keys[name] = new_key()
        given = {"tenant": tenant, "scopes": scopes, "created": 0.0, "user": "cleo" if name == OWN else ""}
        stored.append(StoredKey(id=key_id, digest=digest_of(keys[name]), name=name.replace(" ", "-"), **given))
    change_keys(config.data / KEY_FILE, lambda _: stored)
    with serving(router := Router.from_config(config), config) as url:
        yield Place(url, router, config, keys)


def code(reply: httpx.Response) -> tuple[int, Any]:
    return reply.status_code, reply.json()["error"]["code"]


GONE = (401, "no_session")


def shared(place: Place, token: str) -> httpx.Response:
    with client(place.url) as http:
        return http.post("/me/api/shared", json={"token": token})


def share(http: httpx.Client, *sections: str, days: int = 7) -> str:
    """The token of a new share."""
    made = http.post("/me/api/shares", json={"sections": sections, "days": days})
    assert made.status_code == 200, made.text
    return str(made.json()["url"]).partition("/shared#")[2]


def test_a_person_takes_the_quiz_and_reads_the_report(place: Place) -> None:
    """By a link alone: quiz to its end, report, profile stated, and all of it under that person's name."""
    with place.visit("quizzed") as http:
        step = http.post("/me/api/quiz", json={}).json()
        while step.get("question"):
            asked = step["question"]
            answer = {"question": asked["number"], "choice": shorter(asked)}
            step = http.post(f"/me/api/quiz/{step['id']}", json=answer).json()
        assert step["result"]["best"] == "brief"
        said = http.put("/me/api/profile", json={"statements": ["short answers"]}).json()
        assert said["declared"]["length"] < 0
        votes = step["result"]["answered"]
        wait_for(lambda: http.get("/me/api/profile").json()["said"].get("pair", {}).get("number") == votes)
        wait_for(lambda: http.get("/me/api/report").json()["board"]["labels"] == votes)
        report = http.get("/me/api/report").json()
    with place.as_key() as http:
        same = http.get("/v1/report", headers={"x-fitrouter-user": "quizzed"}).json()
    assert report["board"] == same["board"]
    assert report["board"]["first"] == "brief"


def test_a_quiz_stays_within_its_words(tmp_path: Path) -> None:
    """What is read in all is no more than `quiz.words`, but for a first question that alone takes more."""
    file = install(tmp_path)
    file.write_text(file.read_text() + "quiz: {words: 150}\n")
    config = load_config(file)
    with serving(Router.from_config(config), config) as url, client(url) as http:
        step, words, n = http.post("/v1/quiz", json={"user": "ann"}).json(), 0, 0
        while step.get("question"):
            asked = step["question"]
            words, n = words + sum(len(asked[part].split()) for part in ("prompt", "first", "second")), n + 1
            answer = {"user": "ann", "question": asked["number"], "choice": shorter(asked)}
            step = http.post(f"/v1/quiz/{step['id']}", json=answer).json()
        assert step["result"]["ended"] == "limit"
        assert n == 1 or words <= 150


# --- attacks -------------------------------------------------------------------------------------------------------


def test_a_link_works_once(place: Place) -> None:
    """Who comes second, with the same link or a guessed one, gets nothing; a GET, as of a preview, does not use it."""
    token = place.link()
    with client(place.url) as http:
        for page in ("/me", "/me/", "/quiz"):
            assert http.get(page, follow_redirects=True).status_code == 200
        assert code(http.post("/me/api/redeem", json={"token": token[:-1]})) == GONE
        assert http.post("/me/api/redeem", json={"token": token}).status_code == 200
    with client(place.url) as http:
        assert code(http.post("/me/api/redeem", json={"token": token})) == GONE
        assert code(http.get("/me/api/report")) == GONE


def test_a_link_and_its_session_end_after_a_day(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old link cannot be redeemed, and an old session is over."""
    token = place.link()
    with place.visit() as http:
        now = place.router.clock()
        monkeypatch.setattr(place.router, "clock", lambda: now + _links.VALID_S + 1.0)
        assert code(http.get("/me/api/profile")) == GONE
        assert code(http.post("/me/api/redeem", json={"token": token})) == GONE


@pytest.mark.parametrize("named", ["header", "body", "metadata", "query"])
def test_a_session_names_nobody_else(place: Place, named: str) -> None:
    """However a request names another person, it is about the session's."""
    with place.visit("victim") as http:
        assert http.put("/me/api/profile", json={"values": {"warmth": 1.0}}).status_code == 200
    with place.visit("mallory") as http:
        headers = {"x-fitrouter-user": "victim"} if named == "header" else {}
        query = {"user": "victim"} if named == "query" else {}
        more = {"body": {"user": "victim"}, "metadata": {"metadata": {"user": "victim"}}}.get(named, {})
        http.put("/me/api/profile", json={"values": {"warmth": -1.0}, **more}, headers=headers, params=query)
        http.post("/me/api/quiz", json={"again": True, **more}, headers=headers, params=query)
        assert http.get("/me/api/profile", headers=headers, params=query).json()["declared"].get("warmth", 0.0) <= 0.0
        assert http.delete("/me/api/profile", headers=headers, params=query).status_code == 200
    with place.visit("victim") as http:
        assert http.get("/me/api/profile").json()["declared"]["warmth"] == 1.0


def test_a_persons_own_key_opens_their_page_and_no_other(place: Place) -> None:
    """With the key alone; whomever its requests name, they are its person's; their erasure removes it."""
    with client(place.url) as http:
        refused = http.post("/me/api/login", json={"key": place.keys[OWN], "user": "ada"})
        assert code(refused) == (403, "not_authorized")
        assert http.post("/me/api/login", json={"key": place.keys[OWN]}).status_code == 200
        assert http.get("/me/api/session").json()["user"] == "cleo"
        with place.as_key(OWN) as own:
            sent = chat("What about 3?", user="ada")
            made = own.post("/v1/chat/completions", json=sent, headers={"x-fitrouter-user": "ada"})
            assert made.status_code == 200, made.text
            for path in ("/v1/decisions", "/v1/users", "/v1/profile", "/v1/leaderboard", "/console/api/decisions"):
                assert own.get(path).status_code in {401, 403}, path
        with place.as_key() as trusted:
            names = {row["decision_id"]: row["user"] for row in trusted.get("/v1/decisions").json()["data"]}
            assert names[made.headers["x-fitrouter-decision"]] == "cleo"
            erased = trusted.request("DELETE", "/v1/profile", headers={"x-fitrouter-user": "cleo"})
            assert erased.status_code == 200, erased.text
        assert code(http.get("/me/api/report")) == GONE
        assert "cleo" not in (place.config.data / KEY_FILE).read_text().replace("cleo's-own", "")
        wait_for(lambda: http.post("/me/api/login", json={"key": place.keys[OWN]}).status_code == 401)


def test_another_tenants_person_of_the_same_name_is_another(place: Place) -> None:
    """A link of tenant b opens nothing of tenant a, and b's key withdraws none of a's links."""
    with place.visit("ann") as ours, place.visit("ann", OTHER) as theirs:
        assert ours.put("/me/api/profile", json={"values": {"warmth": 1.0}}).status_code == 200
        assert not any(theirs.get("/me/api/profile").json()["declared"].values())
        with place.as_key(OTHER) as http:
            assert http.delete("/v1/links", headers={"x-fitrouter-user": "ann"}).json()["links"] == 1
        assert code(theirs.get("/me/api/profile")) == GONE
        assert ours.get("/me/api/profile").status_code == 200


@pytest.mark.parametrize(("proto", "scheme"), [("https", "https"), ("http", "http"), ("", "http")])
def test_a_link_has_the_scheme_that_the_client_speaks(place: Place, proto: str, scheme: str) -> None:
    """Behind a proxy that ends TLS it is one of HTTPS."""
    with place.as_key() as http:
        headers = {"x-forwarded-proto": proto} if proto else {}
        url = http.post("/v1/links", json={"user": "ada"}, headers=headers).json()["url"]
    assert url.startswith(f"{scheme}://127.0.0.1")


def test_only_a_key_that_speaks_for_users_makes_links(place: Place) -> None:
    """An application's key opens nobody's page: neither by a link, nor by a login."""
    with place.as_key(PLAIN) as http:
        assert code(http.post("/v1/links", json={"user": "ada"})) == (403, "not_authorized")
    with client(place.url) as http:
        for key in (place.keys[PLAIN], "", "x" * 40):
            assert code(http.post("/me/api/login", json={"user": "ada", "key": key})) == (401, "invalid_api_key")
        entered = http.post("/me/api/login", json={"user": "ada", "key": place.keys[TRUSTED]})
        assert entered.status_code == 200
        assert http.get("/me/api/session").json()["user"] == "ada"


def test_erasure_ends_links_and_sessions(place: Place) -> None:
    """Of an erased person no link and no session is left, also for somebody of the same name who comes later."""
    token = place.link("leaving")
    with place.visit("leaving") as http:
        assert http.put("/me/api/profile", json={"values": {"warmth": 1.0}}).status_code == 200
        folded(place.router)
        assert http.delete("/me/api/profile").status_code == 200
        assert code(http.get("/me/api/profile")) == GONE
        assert place.link("leaving")
        assert code(http.get("/me/api/profile")) == GONE
    with client(place.url) as http:
        http.post("/me/api/redeem", json={"token": token})
        assert code(http.get("/me/api/profile")) == GONE


def test_a_withdrawn_session_and_a_left_one_are_over(place: Place) -> None:
    """`DELETE /v1/links` ends sessions at once; leaving ends a session also for a copy of its cookie."""
    with place.visit("kept") as http, place.as_key() as admin:
        assert admin.delete("/v1/links", headers={"x-fitrouter-user": "kept"}).json()["links"] >= 1
        assert code(http.get("/me/api/profile")) == GONE
    with place.visit("kept") as http, client(place.url) as thief:
        thief.cookies.update(http.cookies)
        assert thief.get("/me/api/profile").status_code == 200
        assert http.post("/me/api/logout", json={}).status_code == 200
        assert code(thief.get("/me/api/profile")) == GONE


@pytest.mark.parametrize(
    "headers", [{TOKEN: ""}, {TOKEN: "0" * 64}, {"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}]
)
def test_another_sites_page_changes_nothing(place: Place, headers: dict[str, str]) -> None:
    """Without the session's token, or from another origin, a change is refused; a key in the header does not help."""
    with place.visit("forged") as http:
        for more in ({}, {"authorization": f"Bearer {place.keys[TRUSTED]}"}):
            reply = http.put("/me/api/profile", json={"values": {"warmth": 1.0}}, headers={**headers, **more})
            assert code(reply) == (403, "forged_request")


def test_the_page_tells_nobody_of_its_link(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """No referrer, no index, no foreign script; the token is in no log, no file and no answer after the first."""
    token = place.link("quiet")
    with caplog.at_level(logging.DEBUG), client(place.url) as http:
        page = http.get("/me")
        assert page.headers["referrer-policy"] == "no-referrer"
        assert "noindex" in page.headers["x-robots-tag"]
        assert "default-src 'none'" in page.headers["content-security-policy"]
        opened = http.post("/me/api/redeem", json={"token": token})
        cookie = opened.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert "Path=/me" in cookie
        assert token not in cookie + opened.text + http.get("/me/api/session").text
    assert token not in caplog.text
    for file in place.config.data.rglob("*"):
        assert not file.is_file() or token.encode() not in file.read_bytes(), file


# --- what is shared ------------------------------------------------------------------------------------------------


def test_a_share_shows_the_chosen_sections_alone(place: Place) -> None:
    """To anybody with its token, and each only if it was chosen: never a prompt, never more of the report."""
    with place.visit("sharing") as http:
        step = http.post("/me/api/quiz", json={}).json()
        prompts = {step["question"]["prompt"]}
        answer = {"question": 1, "choice": shorter(step["question"])}
        prompts.add(http.post(f"/me/api/quiz/{step['id']}", json=answer).json()["question"]["prompt"])
        wait_for(lambda: http.get("/me/api/report").json()["board"]["labels"] == 1)
        own = http.get("/me/api/report").json()
        for sections in (["ranking"], ["tastes", "worth"], ["name"], ["name", "ranking", "tastes", "worth"]):
            found = shared(place, share(http, *sections)).json()
            assert set(found) == {*sections, "expires"}
            assert found.get("name", "sharing") == "sharing"
            assert found.get("worth", own["worth"]) == own["worth"]
            if "ranking" in sections:
                assert [row["model"] for row in found["ranking"]["models"]] == [
                    m["model"] for m in own["board"]["models"]
                ]
            told = msgspec.json.encode(found).decode()
            assert not any(prompt in told for prompt in prompts)
            assert ("sharing" in told) == ("name" in sections)
        for wrong in ({"sections": []}, {"sections": ["prompts"]}, {"sections": ["name"], "days": 91}):
            assert http.post("/me/api/shares", json=wrong).status_code == 400
        listed = http.get("/me/api/shares").json()["shares"]
        assert [each["sections"] for each in listed][:2] == [["ranking"], ["tastes", "worth"]]


def test_shares_end(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """When they are ended by their person alone, when links are withdrawn, at their time, and with an erasure."""
    with place.visit("owner") as http, place.visit("owner", OTHER) as stranger, place.visit("else") as neighbour:
        assert http.put("/me/api/profile", json={"values": {"warmth": 1.0}}).status_code == 200
        first, second = share(http, "name"), share(http, "name", days=1)
        (one, _) = http.get("/me/api/shares").json()["shares"]
        for other in (stranger, neighbour):
            assert other.get("/me/api/shares").json()["shares"] == []
            assert code(other.delete(f"/me/api/shares/{one['id']}")) == (404, "not_found")
        assert shared(place, first).json()["name"] == "owner"
        assert http.delete(f"/me/api/shares/{one['id']}").status_code == 200
        assert code(shared(place, first)) == GONE
        assert shared(place, second).status_code == 200
        with monkeypatch.context() as later:
            now = place.router.clock()
            later.setattr(place.router, "clock", lambda: now + 86_401.0)
            assert code(shared(place, second)) == GONE
        with place.as_key() as admin:
            assert admin.delete("/v1/links", headers={"x-fitrouter-user": "owner"}).status_code == 200
        assert code(shared(place, second)) == GONE
    with place.visit("owner") as http:
        third = share(http, "name")
        folded(place.router)
        assert http.delete("/me/api/profile").status_code == 200
        assert code(shared(place, third)) == GONE


def test_a_ranking_is_shared_with_its_filters(place: Place) -> None:
    """They are named, with what they leave out; one that leaves nothing to rank, or that ranks nothing, is refused."""
    with place.visit("filtering") as http:
        body = {"sections": ["ranking"], "min_context": 1}
        refused = http.post("/me/api/shares", json=body)
        assert "no context window is configured" in refused.json()["error"]["message"]
        for wrong in ({"domain": "law"}, {"max_price": -1}, {"sections": ["name"], "max_price": 5}):
            assert http.post("/me/api/shares", json=body | {"min_context": None} | wrong).status_code == 400, wrong
    with place.as_key() as http:
        body = {"user": "filtering", "sections": ["ranking", "tastes"], "max_price": 5}
        assert "no model is left" in http.post("/v1/links", json=body).json()["error"]["message"]


def test_a_key_that_speaks_for_users_shares_under_the_same_rules(place: Place) -> None:
    """A person's sections and a role's: nobody else's key, nothing for a role of four, and each ends when withdrawn."""
    nurses = {"role": "share-nurse", "sections": ["name", "ranking"]}
    with place.as_key() as http, place.as_key(OTHER) as stranger, place.as_key(PLAIN) as plain:
        mine = http.post("/v1/links", json={"user": "told", "sections": ["name"]}).json()["url"]
        assert shared(place, mine.partition("/shared#")[2]).json()["name"] == "told"
        assert code(plain.post("/v1/links", json=nurses)) == (403, "not_authorized")
        assert http.post("/v1/links", json={"sections": ["name"]}).status_code == 400
        for n in range(5):
            refused = http.post("/v1/links", json=nurses)
            assert f"{n} p" in refused.json()["error"]["message"]
            asked = chat("What about 3?", user=f"nurse-{n}", metadata={"role": "share-nurse"})
            decision = http.post("/v1/chat/completions", json=asked).headers["x-fitrouter-decision"]
            vote = {"decision_id": decision, "user": f"nurse-{n}", "kind": "thumb", "value": 1}
            assert http.post("/v1/feedback", json=vote).status_code == 200
            folded(place.router)
            wait_for(lambda: not place.router.status().lag.warehouse_events)
        token = http.post("/v1/links", json=nurses).json()["url"].partition("/shared#")[2]
        found = shared(place, token)
        assert set(found.json()) == {"name", "ranking", "expires", "role"}
        assert found.json()["name"] == "share-nurse"
        assert not any(text in found.text for text in ("What about", "nurse-1", "Topic"))
        for guess in (token[:-1], token.swapcase(), "role:share-nurse", mine):
            assert code(shared(place, guess)) == GONE
        role = {"x-fitrouter-role": "share-nurse"}
        assert stranger.delete("/v1/links", headers=role).json()["links"] == 0
        assert shared(place, token).status_code == 200
        erased = http.request("DELETE", "/v1/profile", headers={"x-fitrouter-user": "nurse-0"})
        assert erased.status_code == 200, erased.text
        wait_for(lambda: shared(place, token).status_code == 401)
        assert http.delete("/v1/links", headers=role).json()["links"] == 1
        assert code(shared(place, token)) == GONE


def test_tokens_of_links_and_shares_are_no_substitutes(place: Place) -> None:
    """A share opens no session, a link shows no report, guesses show nothing, and only the person's page shares."""
    with place.visit("swapped") as http:
        token = share(http, "ranking")
        with client(place.url) as other:
            assert code(other.post("/me/api/redeem", json={"token": token})) == GONE
            assert code(other.post("/me/api/shares", json={"sections": ["name"]})) == GONE
        for guess in (place.link("swapped"), token[:-1], token + "x", "", None, 7):
            assert code(shared(place, guess)) == GONE  # type: ignore[arg-type]
        forged = {"sections": ["name"]}
        assert code(http.post("/me/api/shares", json=forged, headers={TOKEN: "0" * 64})) == (403, "forged_request")
        page = http.get("/shared")
        assert page.headers["referrer-policy"] == "no-referrer"
        assert "noindex" in page.headers["x-robots-tag"]
        assert http.delete(f"/me/api/shares/{http.get('/me/api/shares').json()['shares'][0]['id']}").status_code == 200
    noted = (place.config.data / AUDIT_FILE).read_text()
    assert "share create" in noted
    assert "share withdraw" in noted
    for file in place.config.data.rglob("*"):
        assert not file.is_file() or token.encode() not in file.read_bytes(), file


def test_a_shared_report_keeps_nobody_from_theirs(place: Place) -> None:
    """However many ask for one at once, its person's own report is made meanwhile."""
    with place.visit("popular") as http, ThreadPoolExecutor(12) as pool:
        token = share(http, "ranking")
        asked = [pool.submit(shared, place, token) for _ in range(12)]
        assert {http.get("/me/api/report").status_code for _ in range(4)} == {200}
        assert {each.result().status_code for each in asked} == {200}


def test_shares_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person has a bounded number of valid shares, which take no room of a tenant's links."""
    monkeypatch.setattr(_links, "MOST_SHARES", 1)
    monkeypatch.setattr(_links, "MOST", 1)
    links = Links(tmp_path)
    links.share("a", "s", "", ["name"], 10.0, 0.0)
    with pytest.raises(InvalidRequest, match="are valid, the most of a person"):
        links.share("a", "s", "", ["name"], 10.0, 0.0)
    assert links.make("a", "s", "", 0.0)
    assert links.share("a", "other", "", ["name"], 10.0, 0.0)
    assert links.share("a", "s", "", ["name"], 20.0, 11.0)


def test_links_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant has a bounded number of valid links; those that have ended make room."""
    monkeypatch.setattr(_links, "MOST", 2)
    links = Links(tmp_path)
    for _ in range(2):
        links.make("a", "s", "", 0.0)
    with pytest.raises(InvalidRequest, match="are valid, the most of a tenant"):
        links.make("a", "s", "", 0.0)
    assert links.make("b", "s", "", 0.0)
    assert links.make("a", "s", "", _links.VALID_S + 1.0)
    with sqlite3.connect(links.file) as connection:
        assert connection.execute("SELECT count(*) FROM links").fetchone() == (1,)


def test_a_person_without_a_quiz_is_told_whom_to_ask(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What to configure is the operator's, and in the log; applications, which operators run, still get it."""

    async def none(*_: object, **__: object) -> None:
        raise NoAnswers("quiz: set 'quiz.answers', or run `fitrouter personal quiz --ask`")

    monkeypatch.setattr(Quizzes, "start", none)
    with place.visit("curious") as http, place.as_key() as backend:
        reply = http.post("/me/api/quiz", json={})
        assert code(reply) == (404, "no_quiz")
        said = reply.json()["error"]["message"]
        assert "Ask whoever runs this router" in said
        assert not any(word in said for word in ("quiz.answers", "fitrouter ", "--", "configure", "scorer"))
        assert "fitrouter personal quiz --ask" in caplog.text
        assert "--ask" in backend.post("/v1/quiz", json={"user": "curious"}).json()["error"]["message"]
