"""Scores, leaderboard and report over HTTP: scopes, tenants, hostile bodies."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from tests.kits.gateway import client, config, serving, wait_for
from tests.kits.quiz import install, text

from fitrouter.config import load_config
from fitrouter.router import Router
from fitrouter.stores.keys import FILE, StoredKey, change_keys, digest_of, new_key
from fitrouter_evaluators.personal import FitReport
from fitrouter_integrations.commands.personal import report
from fitrouter_integrations.gateway import _personal

KEYS = {"APP": "key-of-an-application", "OWN": "key-of-the-people-themselves", "TWO": "key-of-another-tenant"}
ITEMS = [{"prompt": "What about 1?", "answers": [text("brief", 1), text("rambling", 1)]}]


@pytest.fixture
def http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    settings = load_config(install(tmp_path))
    keys: list[Any] = [
        {"name": name, "tenant": "two" if name == "TWO" else "one", "key_env": name, "trusted": name != "APP"}
        for name in KEYS
    ]
    settings = settings.model_copy(update={"server": config(keys=keys).server})
    with serving(Router.from_config(settings), settings) as url, client(url) as opened:
        opened.headers["authorization"] = f"Bearer {KEYS['OWN']}"
        yield opened


def test_scores_over_http(http: httpx.Client) -> None:
    """A batch is scored in order; bad bodies are 400 and name the field."""
    reply = http.post("/v1/score", json={"user": "ann", "items": [*ITEMS, {"answers": ["Yes."]}]})
    assert reply.status_code == 200, reply.text
    found = reply.json()
    assert found["object"] == "fitrouter.scores"
    assert [len(item["answers"]) for item in found["items"]] == [2, 1]
    assert found["items"][1]["answers"][0]["best"] == 1.0
    for body, said in (
        ({}, "items"),
        ({"items": "x"}, "items"),
        ({"items": [7]}, "items[0]"),
        ({"items": [{"answers": "x"}]}, "items[0].answers"),
        ({"items": [{"answers": [1]}]}, "items[0].answers"),
        ({"items": [{"answers": []}]}, "items"),
        ({"items": [{"prompt": 3, "answers": ["x"]}]}, "items[0].prompt"),
        ({"items": [{"answers": ["x"] * 65}]}, "items"),
        ({"items": [{"answers": ["x" * 50_001]}]}, "50000"),
        ({"items": ITEMS, "user": ["ann"]}, "user"),
        ({"items": ITEMS, "x": 1}, "x"),
    ):
        refused = http.post("/v1/score", json=body)
        assert refused.status_code == 400, (body, refused.text)
        assert said in refused.json()["error"]["message"]


def test_an_applications_key_reads_no_tastes(http: httpx.Client) -> None:
    """Without `trusted` a key gets the population's scores, and neither a user's nor a role's; a key is needed."""
    app = {"authorization": f"Bearer {KEYS['APP']}"}
    assert http.post("/v1/score", json={"items": ITEMS}, headers=app).status_code == 200
    for who in ({"user": "ann"}, {"role": "nurse"}):
        refused = http.post("/v1/score", json={"items": ITEMS, **who}, headers=app)
        assert (refused.status_code, "trusted: true" in refused.json()["error"]["message"]) == (403, True)
        named = {f"x-fitrouter-{name}": value for name, value in who.items()}
        for path in ("/v1/leaderboard", "/v1/report", "/v1/profile"):
            assert http.get(path, headers=app | named).status_code == 403
    assert http.post("/v1/score", json={"items": ITEMS}, headers={"authorization": ""}).status_code == 401


def test_a_persons_own_key_reads_that_persons_scores(tmp_path: Path) -> None:
    """Whomever it names, and beside the published scores of the population; no role's, and none of the other lists."""
    settings = load_config(install(tmp_path))
    made = {name: new_key() for name in ("ann", "ops")}
    stored = [
        StoredKey(id=made["ann"][0], name="ann", digest=digest_of(made["ann"][1]), created=0.0, user="ann", scopes=()),
        StoredKey(
            id=made["ops"][0],
            name="ops",
            digest=digest_of(made["ops"][1]),
            created=0.0,
            scopes=("chat", "feedback", "read", "trusted"),
        ),
    ]
    change_keys(settings.data / FILE, lambda _: stored)
    with serving(Router.from_config(settings), settings) as url, client(url) as http:

        def score(name: str, **who: str) -> Any:
            headers = {"authorization": f"Bearer {made[name][1]}"}
            return http.post("/v1/score", json={"items": ITEMS, **who}, headers=headers)

        def overall(reply: httpx.Response) -> list[Any]:
            return [each["dimensions"]["overall"] for each in reply.json()["items"][0]["answers"]]

        ops = {"authorization": f"Bearer {made['ops'][1]}"}
        before = overall(score("ann"))
        for number in range(12):
            body = {"model": "brief", "messages": [{"role": "user", "content": f"What about {number}?"}], "user": "ann"}
            decision = http.post("/v1/chat/completions", json=body, headers=ops).headers["x-fitrouter-decision"]
            vote = {"decision_id": decision, "kind": "thumb", "value": "up", "user": "ann"}
            assert http.post("/v1/feedback", json=vote, headers=ops).status_code == 200
        wait_for(lambda: overall(score("ann")) != before)

        def both() -> tuple[list[Any], list[Any]] | None:
            """The scores by both keys, once all votes are learnt; None before."""
            own, trusted = score("ann", user="bob"), score("ops", user="ann")
            assert (own.json()["user"], trusted.json()["user"]) == ("ann", "ann")
            mine, exact = ([{**each, "population": None} for each in overall(reply)] for reply in (own, trusted))
            return (overall(own), overall(trusted)) if mine == exact else None

        for mine, exact, first in zip(*wait_for(both), before, strict=True):
            assert mine["population"] == first["population"] != exact["population"]
        assert score("ann", role="nurse").status_code == 403
        for path in ("/v1/report", "/v1/leaderboard", "/v1/decisions"):
            assert http.get(path, headers={"authorization": f"Bearer {made['ann'][1]}"}).status_code == 403


def test_an_applications_key_erases_nobody(http: httpx.Client) -> None:
    """Only a key that speaks for the users of its tenant may, and only in its tenant; what was logged stays."""
    ann = {"x-fitrouter-user": "ann"}
    body = {"model": "brief", "messages": [{"role": "user", "content": "What about 1?"}]}
    decision = http.post("/v1/chat/completions", json=body, headers=ann).headers["x-fitrouter-decision"]
    wait_for(lambda: http.get(f"/v1/decisions/{decision}").status_code == 200)
    for key, status in (("APP", 403), ("TWO", 200)):
        reply = http.delete("/v1/profile", headers=ann | {"authorization": f"Bearer {KEYS[key]}"})
        assert reply.status_code == status, reply.text
        assert reply.json().get("events", 0) == 0
        assert http.get(f"/v1/decisions/{decision}").status_code == 200
    nobody = http.delete("/v1/profile")
    assert (nobody.status_code, "name the user to erase" in nobody.text) == (400, True)
    done = http.delete("/v1/profile", headers=ann).json()
    assert done["events"] >= 1
    assert http.get(f"/v1/decisions/{decision}").status_code == 404


def test_votes_do_not_move_what_an_applications_key_reads(http: httpx.Client) -> None:
    """The population's scores change with one person's votes for a trusted key, and not for another one."""

    def score(key: str) -> Any:
        headers = {"authorization": f"Bearer {KEYS[key]}"}
        found = http.post("/v1/score", json={"items": ITEMS}, headers=headers).json()
        return [answer["dimensions"]["overall"] for answer in found["items"][0]["answers"]]

    assert score("APP") == score("OWN")
    before = score("APP")
    for number in range(12):
        body = {"model": "brief", "messages": [{"role": "user", "content": f"What about {number}?"}], "user": "ann"}
        decision = http.post("/v1/chat/completions", json=body).headers["x-fitrouter-decision"]
        vote = {"decision_id": decision, "kind": "thumb", "value": "up", "user": "ann"}
        assert http.post("/v1/feedback", json=vote).status_code == 200
    wait_for(lambda: score("OWN") != before)
    assert score("APP") == before


def test_leaderboard_over_http(http: httpx.Client) -> None:
    """A user's ranking; nobody's is refused, and so is a role of too few people."""
    found = http.get("/v1/leaderboard", headers={"x-fitrouter-user": "ann"}).json()
    assert found["object"] == "fitrouter.leaderboard"
    assert {each["model"] for each in found["models"]} == {"brief", "listing", "long"}
    assert http.get("/v1/leaderboard").status_code == 400
    ann = {"x-fitrouter-user": "ann"}
    free = http.get("/v1/leaderboard", params={"max_price": "0"}, headers=ann)
    assert "no price is configured for it" in free.text
    for wrong in ({"max_price": "low"}, {"domain": "law"}, {"min_context": "1.5"}, {"price": "1"}):
        assert http.get("/v1/leaderboard", params=wrong, headers=ann).status_code == 400, wrong
    refused = http.get("/v1/leaderboard", headers={"x-fitrouter-role": "nurse"})
    assert (refused.status_code, "needs 5" in refused.json()["error"]["message"]) == (400, True)


def test_report_over_http(http: httpx.Client) -> None:
    """JSON by default, a page without scripts where HTML is accepted."""
    ann = {"x-fitrouter-user": "ann<script>"}
    found = http.get("/v1/report", headers=ann).json()
    assert found["object"] == "fitrouter.report"
    assert len(found["models"]) == 3
    html = http.get("/v1/report", headers=ann | {"accept": "text/html"})
    assert html.headers["content-type"].startswith("text/html")
    assert "<script" not in html.text
    assert http.get("/v1/report").status_code == 400


def test_a_report_says_what_was_saved(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same words as the console's and those of `audits satisfaction`: in JSON, on the page, in the terminal."""
    words = ["−31% [24, 37] against large", "not known against the best single model without the extra `replay`"]
    monkeypatch.setattr(_personal, "saved_in", lambda *_: words)
    ann = {"x-fitrouter-user": "ann"}
    found = http.get("/v1/report", headers=ann).json()
    assert found["saved"] == words
    html = http.get("/v1/report", headers=ann | {"accept": "text/html"}).text
    shown = " ".join(" ".join(report.text(msgspec.convert(found, FitReport))).split())
    for said in words:
        assert f"Cost of everybody's answers: {said}." in shown
        assert said in html


def test_a_tenant_sees_its_own_people_only(http: httpx.Client) -> None:
    """A person of the same name in another tenant is a stranger there, in scores and in the profile."""
    declared = http.put("/v1/profile", json={"user": "ann", "values": {"length": -1.0}})
    assert declared.status_code == 200

    def score(key: str, user: str) -> Any:
        headers = {"authorization": f"Bearer {KEYS[key]}"}
        found = http.post("/v1/score", json={"user": user, "items": ITEMS}, headers=headers).json()
        return [answer["dimensions"] for answer in found["items"][0]["answers"]]

    for _ in range(100):
        if score("OWN", "ann") != score("OWN", "nobody"):
            break
        time.sleep(0.05)
    assert score("OWN", "ann") != score("OWN", "nobody")
    assert score("TWO", "ann") == score("TWO", "nobody")
    there = {"authorization": f"Bearer {KEYS['TWO']}", "x-fitrouter-user": "ann"}
    assert http.get("/v1/profile", headers=there).json()["declared"] == {}
