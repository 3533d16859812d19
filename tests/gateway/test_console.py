"""The console's routes: sessions, tenants, protection of changes, hostile text, and pages of many decisions."""

from __future__ import annotations

import asyncio
import json
import math
import re
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock
from urllib.parse import quote

import httpx
import msgspec
import pytest
from starlette.responses import Response
from tests.kits.gateway import Echo, cards, chat, client, config, make_router, serving, wait_for

from fitrouter.assemble import extender
from fitrouter.errors import InvalidRequest, StoreError
from fitrouter.policies import SquareCB
from fitrouter.router import Router
from fitrouter.routing.explanation import TERMS
from fitrouter.stores.audit_log import FILE as AUDIT
from fitrouter.stores.audit_log import AuditLog
from fitrouter.stores.contents import ContentStore
from fitrouter.stores.figures import figures, raters
from fitrouter.stores.identities import SqliteIdentities
from fitrouter.stores.journal import MemoryJournal
from fitrouter.stores.keys import FILE, SCOPES, StoredKey, change_keys, digest_of, new_key
from fitrouter.stores.warehouse import Warehouse, WarehouseFeed
from fitrouter.types import CHOSEN, Feedback, FeedbackKind, Identity, Request
from fitrouter_dashboards import console as pages
from fitrouter_dashboards.console import Reads, assets
from fitrouter_dashboards.console.pairs import Answer, alike, telling
from fitrouter_integrations.gateway import _keys
from fitrouter_integrations.gateway._worker import GRACE_S
from fitrouter_integrations.gateway.asgi._wire import Problem, dump
from fitrouter_integrations.gateway.console._decisions import PER_KEY, Decisions
from fitrouter_integrations.gateway.console._sessions import COOKIE, TOKEN, Sessions

KEYS = {"KEY_A": "aaaa-secret-of-tenant-a", "KEY_B": "bbbb-secret-of-tenant-b", "KEY_ADMIN": "cccc-secret-of-the-admin"}
NAMES = [
    {"name": "team-a", "tenant": "a", "key_env": "KEY_A", "trusted": True},
    {"name": "team-b", "tenant": "b", "key_env": "KEY_B", "trusted": True},
    {"name": "operator", "admin": True, "key_env": "KEY_ADMIN"},
]
READS = ["now", "gains", "money", "decisions", "people", "policy", "models", "learning"]
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "\u202eevil\u202c",
    "x" * 100_000,
    "</title>&amp;",
]


class Installation(NamedTuple):
    """A router with a warehouse, and the way to bring that up to date."""

    router: Router
    feed: WarehouseFeed

    def copied(self) -> None:
        """Wait until all that happened is in the warehouse."""
        wait_for(lambda: self.feed.step() == 0 and self.feed.lag == 0)


def install(folder: Path, **more: Any) -> Installation:
    journal, identities = MemoryJournal(), SqliteIdentities(folder / "identities.db")
    feed = WarehouseFeed(journal, Warehouse(folder / "fitrouter.duckdb"))
    contents = ContentStore(folder, journal, identities)
    about = {"journal": journal, "feed": feed, "identities": identities, "contents": contents}
    return Installation(make_router(folder, {"echo": Echo()}, extend=extender(config()), **about, **more), feed)


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    return install(tmp_path)


@pytest.fixture
def open_url(installation: Installation, tmp_path: Path) -> Iterator[str]:
    """Without keys."""
    with serving(installation.router, config().model_copy(update={"data": tmp_path})) as url:
        yield url


@pytest.fixture
def url(installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """With the keys of two tenants and an administrator."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    with serving(installation.router, config(keys=NAMES).model_copy(update={"data": tmp_path})) as address:
        yield address


def ask(url: str, key: str | None = None, **body: Any) -> str:
    """Send a request; its decision."""
    headers = {} if key is None else {"authorization": f"Bearer {KEYS[key]}"}
    with client(url, headers=headers) as http:
        reply = http.post("/v1/chat/completions", json=chat(**body))
    assert reply.status_code == 200, reply.text
    return reply.headers["x-fitrouter-decision"]


@contextmanager
def login(url: str, key: str) -> Iterator[httpx.Client]:
    """A browser's session: the cookie, and the token that its page has read."""
    with client(url) as http:
        reply = http.post("/console/api/login", json={"key": KEYS[key]}, headers={"origin": url})
        assert reply.status_code == 200, reply.text
        http.headers[TOKEN] = http.get("/console/api/session").json()["csrf"]
        yield http


def test_the_page_and_its_files_are_confined(open_url: str) -> None:
    """Every response carries a policy without inline code, foreign hosts or frames; the files are small and cached."""
    with client(open_url) as http:
        page = http.get("/console")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "<script>" not in page.text
        assert "style=" not in page.text
        for path in [
            "/console",
            "/console/",
            *(f"/console/static/{name}" for name in assets(pages)),
            "/console/api/now",
        ]:
            reply = http.get(path)
            policy = reply.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert reply.headers["x-content-type-options"] == "nosniff"
        again = http.get(
            "/console/static/main.js", headers={"if-none-match": http.get("/console/static/main.js").headers["etag"]}
        )
        assert (again.status_code, again.content) == (304, b"")
        assert http.get("/console/static/..%2f..%2fmetrics.py").status_code == 404
    assert sum(len(asset.body) for asset in assets(pages).values()) < 300_000
    for name, asset in assets(pages).items():
        text = asset.body.decode()
        assert "innerHTML" not in text, name
        assert "https://" not in text, name


def test_the_page_has_words_for_each_term() -> None:
    """The terms of an explanation and those that the page has words for are the same."""
    table = assets(pages)["words.js"].body.decode().partition("terms: {")[2].partition("},")[0]
    assert re.findall(r"(\w+): \"", table) == list(TERMS)


def test_the_root_leads_browsers_to_the_console(url: str) -> None:
    """Without a key, confined like the page, to one fixed relative place whatever the request says; others get JSON."""
    with httpx.Client(base_url=url, headers={"accept": "text/html,*/*;q=0.8", "host": "evil.example"}) as http:
        for path in ("/", "/?next=https://evil.example", "/?location=//evil.example"):
            reply = http.get(path)
            assert (reply.status_code, reply.headers["location"]) == (307, "console")
            assert "frame-ancestors 'none'" in reply.headers["content-security-policy"]
    with httpx.Client(headers={"accept": "text/html"}, follow_redirects=True) as http:
        assert http.get(url).url == f"{url}/console"
        assert http.get(f"{url}//evil.example").status_code == 404
    found = httpx.get(url).json()
    assert found == {"object": "fitrouter", "base_url": "v1", "console": "console", "schema": "openapi.json"}
    assert httpx.post(url).status_code == 405


def test_without_keys_there_is_no_login(open_url: str, installation: Installation) -> None:
    """On this machine alone, all that the views read is there."""
    first = ask(open_url, metadata={"role": "cook"})
    installation.copied()
    with client(open_url) as http:
        assert http.get("/console/api/session").json()["login"] is False
        shown = http.get("/console/api/now", params={"window": "all"}).json()
        assert (shown["ever"], shown["totals"]["requests"], shown["totals"]["answered"]) == (1, 1, 1)
        assert shown["totals"]["cost"]["usd"] == pytest.approx((7 * 1.0 + 11 * 2.0) / 1e6)
        assert [(flow["role"], flow["requests"]) for flow in shown["flows"]] == [("cook", 1)]
        (row,) = http.get("/console/api/decisions").json()["decisions"]
        assert (row["decision_id"], row["role"], row["status"]) == (first, "cook", "ok")
        assert http.get(f"/console/api/decisions/{first}").json()["decision_id"] == first
        assert http.get("/console/api/now", headers={"host": "evil.example"}).status_code == 403


def test_a_turn_has_the_same_figures_in_its_session(open_url: str, installation: Installation) -> None:
    """Other turns beside a decision are rows of the log, with their person's name and the same gap to the default."""
    turns = [ask(open_url, user="ann", metadata={"session": "s"}) for _ in range(2)]
    with client(open_url) as http:
        http.post("/v1/feedback", json={"decision_id": turns[0], "kind": "thumb", "value": 0, "user": "ann"})
        installation.copied()
        rows = http.get("/console/api/decisions").json()["decisions"]
        beside = http.get(f"/console/api/decisions/{turns[1]}").json()["session"]
    assert {row["name"] for row in beside} == {"ann"}
    assert sorted(beside, key=str) == sorted(rows, key=str)


def test_each_read_needs_a_known_key(url: str) -> None:
    """Without a session: 401 on every read and change; the page and the question who is logged in are open."""
    with client(url) as http:
        for path in READS:
            assert http.get(f"/console/api/{path}").status_code == 401, path
        assert http.get("/console/api/decisions/x").status_code == 401
        for path in ("feedback", "policy"):
            assert http.post(f"/console/api/{path}", json={}).status_code == 401, path
        assert http.get("/console").status_code == 200
        session = http.get("/console/api/session").json()
        assert session["login"] is True
        assert "tenant" not in session
        for bad in ({"key": "wrong-key-of-nobody"}, {"key": ""}, {"key": 7}, {}):
            reply = http.post("/console/api/login", json=bad)
            assert reply.status_code in {400, 401}
            assert "set-cookie" not in reply.headers
        for sealed in ("x", "AAAA", "A" * 400, '"', "\u00e9"):
            headers = {"cookie": f"{COOKIE}={sealed}".encode("latin-1")}
            assert http.get("/console/api/now", headers=headers).status_code == 401  # type: ignore[arg-type]


def test_the_cookie_is_out_of_reach_and_ends(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HttpOnly, SameSite=Strict, without the key in the clear; worthless after its time, and after the logout."""
    with client(url) as http:
        said = http.post("/console/api/login", json={"key": KEYS["KEY_A"]}).headers["set-cookie"]
        assert "HttpOnly" in said
        assert "SameSite=Strict" in said
        assert "Path=/console" in said
        assert KEYS["KEY_A"] not in said
        assert http.get("/console/api/now").status_code in {200, 503}
        assert http.get("/v1/models").status_code == 401, "the cookie opens the console alone"
        assert (tmp_path / "console.key").stat().st_mode & 0o777 == 0o600
        sealed = http.cookies[COOKIE]
        http.post("/console/api/logout", json={})
        assert COOKIE not in http.cookies
        monkeypatch.setattr(time, "time", lambda real=time.time: real() + 13 * 3600.0)
        assert http.get("/console/api/now", headers={"cookie": f"{COOKIE}={sealed}"}).status_code == 401


def test_kept_texts_are_shown_to_their_tenant(url: str) -> None:
    """A decision brings its prompt and answer where they are kept, cut to a bound; no other tenant sees them."""
    made = ask(url, "KEY_A", user="ann", text=HOSTILE[3])
    with login(url, "KEY_A") as http:
        wait_for(lambda: http.get(f"/console/api/decisions/{made}").json()["content"])
        kept = http.get(f"/console/api/decisions/{made}").json()["content"]
    assert kept["prompt"].startswith("xxx")
    assert "heard xxx" in kept["answer"]
    assert len(kept["answer"]) == 20_000
    assert kept["left_out"] > 80_000
    with login(url, "KEY_B") as http:
        assert http.get(f"/console/api/decisions/{made}").status_code == 404


def test_a_tenant_sees_its_own_and_an_administrator_all(url: str, installation: Installation) -> None:
    """In every read: figures, pages, filters, single decisions, and votes."""
    first = ask(url, "KEY_A", user="ann", metadata={"role": "cook"})
    second = ask(url, "KEY_B", user="bob", metadata={"role": "judge"})
    installation.copied()
    with login(url, "KEY_A") as a, login(url, "KEY_B") as b, login(url, "KEY_ADMIN") as admin:
        for http, seen, hidden, role in ((a, first, second, "cook"), (b, second, first, "judge")):
            shown = http.get("/console/api/now").json()
            assert (shown["ever"], [flow["role"] for flow in shown["flows"]]) == (1, [role])
            page = http.get("/console/api/decisions").json()
            assert [row["decision_id"] for row in page["decisions"]] == [seen]
            assert page["roles"] == [role]
            assert http.get("/console/api/decisions", params={"id": hidden}).json()["decisions"] == []
            assert http.get(f"/console/api/decisions/{hidden}").status_code == 404
            vote = {"decision_id": hidden, "value": "up"}
            assert http.post("/console/api/feedback", json=vote).status_code == 404
            for path in ("policy", "estimate"):
                assert http.post(f"/console/api/{path}", json={"action": "restore"}).status_code == 403
            assert http.get("/console/api/learning").json()["labels"]["decisions"] == 1
            models = http.get("/console/api/models").json()["models"]
            assert sum(model["figures"].get("requests", 0) for model in models) == 1
            assert "replays" not in http.get("/console/api/policy").json()
            other, own, stranger = ("judge", "ann", "bob") if role == "cook" else ("cook", "bob", "ann")
            for tenant in ({}, {"tenant": "a"}, {"tenant": "b"}):
                choice = http.get("/console/api/people", params=tenant).json()["roles"]
                assert [found["role"] for found in choice] == [role]
                shown = http.get("/console/api/people", params={**tenant, "role": other}).json()
                assert (shown["traffic"], shown["again"], shown["said"], shown["report"]) == ([], [], [], None)
                assert http.get("/console/api/people", params={**tenant, "user": stranger}).status_code == 404
                shown = http.get("/console/api/people", params={**tenant, "user": own}).json()
                assert sum(row["requests"] for row in shown["traffic"]) == 1
        assert {row["decision_id"] for row in admin.get("/console/api/decisions").json()["decisions"]} == {
            first,
            second,
        }
        assert admin.get(f"/console/api/decisions/{second}").json()["tenant"] == "b"
        roles = admin.get("/console/api/people").json()["roles"]
        assert {(found["tenant"], found["role"]) for found in roles} == {("a", "cook"), ("b", "judge")}
        assert admin.get("/console/api/people", params={"tenant": "b", "user": "bob"}).status_code == 200
        assert admin.post("/console/api/feedback", json={"decision_id": second, "value": "up"}).status_code == 200


def test_the_end_of_a_key_ends_its_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of `fitrouter keys` log in, each to its tenant; revoked or expired, they log in no more and see nothing."""
    monkeypatch.setattr(_keys, "WATCH_S", 0.0)
    file, made = tmp_path / FILE, {}

    def add(name: str, **more: Any) -> None:
        key_id, made[name] = new_key()
        stored = StoredKey(id=key_id, name=name, digest=digest_of(made[name]), created=0.0, **more)
        change_keys(file, lambda keys: [*keys, stored])

    add("team", tenant="a")
    add("brief", tenant="b", expires=time.time() + 3600.0)
    add("admin", scopes=SCOPES)
    add("app", tenant="a", scopes=("chat",))
    installation = install(tmp_path)
    with serving(installation.router, config().model_copy(update={"data": tmp_path})) as url:
        sessions = {}
        for name, key in made.items():
            with client(url) as http:
                reply = http.post("/console/api/login", json={"key": key})
            assert reply.status_code == (403 if name == "app" else 200)
            sessions[name] = {"cookie": reply.headers.get("set-cookie", "").partition(";")[0]}

        def who(name: str) -> dict[str, Any]:
            with client(url, headers=sessions[name]) as http:
                found: dict[str, Any] = http.get("/console/api/session").json()
                assert (http.get("/console/api/policy").status_code == 401) is found["login"]
            return found

        assert [who(name)["tenant"] for name in ("team", "brief", "admin")] == ["a", "b", None]
        change_keys(file, lambda keys: [msgspec.structs.replace(key, digest="") for key in keys if key.name == "team"])
        assert who("team")["login"] is True
        assert "tenant" not in who("brief"), "its key was removed from the file"
        with client(url) as http:
            assert http.post("/console/api/login", json={"key": made["team"]}).status_code == 401
        add("again", tenant="b", expires=time.time() - 1.0)
        with client(url) as http:
            assert http.post("/console/api/login", json={"key": made["again"]}).status_code == 401


def test_people_are_seen_by_trusted_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another key of the tenant sees roles, and no person, whatever name is given."""
    monkeypatch.setenv("KEY_A", KEYS["KEY_A"])
    installation = install(tmp_path)
    names = [{"name": "team-a", "tenant": "a", "key_env": "KEY_A"}]
    with serving(installation.router, config(keys=names).model_copy(update={"data": tmp_path})) as url:
        decision = ask(url, "KEY_A", user="ann", metadata={"role": "cook"})
        with client(url) as http:
            for _ in range(3):
                vote = {"decision_id": ask(url, "KEY_A", user="ann"), "user": "ann", "kind": "thumb", "value": "down"}
                headers = {"authorization": f"Bearer {KEYS['KEY_A']}"}
                assert http.post("/v1/feedback", json=vote, headers=headers).status_code == 200
        installation.copied()
        assert installation.router.warehouse is not None
        (unhappy,) = figures(installation.router.warehouse.queries, raters(Identity(tenant="a"), since=0.0))
        assert unhappy.listed
        with login(url, "KEY_A") as http:
            assert "listed" not in http.get("/console/api/people").json()
            assert http.get(f"/console/api/decisions/{decision}").json()["user"] is None
            assert http.get("/console/api/people", params={"role": "cook"}).json()["people"] is False
            for user in ("ann", "nobody"):
                assert http.get("/console/api/people", params={"user": user}).status_code == 403


def test_what_the_log_says_of_a_change(tmp_path: Path) -> None:
    """Estimates with intervals of what is over, or words; asking changes nothing, and needs the page's token."""
    now = [time.time() - 7200.0]
    installation = install(tmp_path, clock=lambda: now[0])
    policy = config().policy.model_copy(update={"algorithm": "squarecb", "gamma": SquareCB(20.0).gamma})
    settings = config().model_copy(update={"data": tmp_path, "policy": policy})
    with serving(installation.router, settings) as url, client(url) as http:
        for i in range(12):
            ask(url, user=f"u{i}")
        now[0] += 7200.0
        ask(url, user="late")
        installation.copied()
        change = {"action": "set", "settings": {"floor": 0.5}}
        assert http.post("/console/api/estimate", json=change).status_code == 403
        http.headers[TOKEN] = http.get("/console/api/session").json()["csrf"]
        found = http.post("/console/api/estimate", json=change).json()
        cost = found["metrics"]["cost"]
        assert cost.get("units") == 12, found
        assert cost["low"] <= cost["value"] <= cost["high"]
        assert http.get("/v1/policy").json()["settings"] == {}
        paused = {"action": "set", "settings": {"paused": "beta"}}
        left = http.post("/console/api/estimate", json=paused).json()
        assert left["candidate"].endswith("without beta; otherwise as logged")
        assert left["metrics"]["cost"]["units"] == 12
        both = {"action": "set", "settings": {"paused": "beta", "floor": 0.5}}
        left = http.post("/console/api/estimate", json=both).json()
        assert left["candidate"].endswith("floor 0.5, without beta; otherwise as logged"), "with the other settings"
        http.post("/console/api/policy", json=paused)
        again = http.post("/console/api/estimate", json={"action": "set", "settings": {"paused": ""}}).json()
        assert "not in the log" in again["error"], "what a paused model would have done is not known"
        http.post("/console/api/policy", json={"action": "restore"})
        odd = http.post("/console/api/estimate", json={"action": "set", "settings": {"floor": "<b>"}}).json()
        assert "floor" in odd["error"]
        for bad in ({}, {"action": "promote", "name": "nobody"}, {"action": "set", "settings": 7}):
            assert http.post("/console/api/estimate", json=bad).status_code == 400


def test_a_budget_is_shown_before_it_is_changed(url: str, installation: Installation) -> None:
    """Spending of the log against the new limit; only an administrator changes it, and each tenant sees its own."""
    for _ in range(3):
        ask(url, "KEY_A")
    installation.copied()
    change = {"action": "budget", "tenant": "a", "usd_per_period": 2.5}
    with login(url, "KEY_A") as http:
        for path in ("estimate", "policy"):
            assert http.post(f"/console/api/{path}", json=change).status_code == 403
    with login(url, "KEY_ADMIN") as http:
        assert http.post("/console/api/policy", json=change, headers={TOKEN: "x"}).status_code == 403
        found = http.post("/console/api/estimate", json=change).json()["budget"]
        assert (found["before"]["usd_per_period"], found["after"]["usd_per_period"]) == (None, 2.5)
        assert 0.0 < found["after"]["request_usd"] <= 2.5
        assert found["after"]["price"] > found["before"]["price"] == 0.0
        assert [period["requests"] for period in found["periods"]] == [3]
        assert installation.router.policy.standing().budgets == {}, "asking changes nothing"
        assert http.post("/console/api/policy", json=change).json()["budgets"] == {"a": 2.5}
        assert http.get("/console/api/policy").json()["budgets"]["a"]["changed"] is True
        for bad in (
            {"tenant": "a"},
            {"usd_per_period": 1.0},
            {"tenant": "\u202e<b>", "usd_per_period": 1.0},
            {"tenant": "x" * 10_000, "usd_per_period": 1.0},
            {"tenant": ["a"], "usd_per_period": 1.0},
            {"tenant": "a", "usd_per_period": "<b>"},
            {"tenant": "a", "usd_per_period": -1},
            {"tenant": "a", "usd_per_period": 1.0, "settings": {}},
        ):
            for path in ("estimate", "policy"):
                reply = http.post(f"/console/api/{path}", json={"action": "budget", **bad})
                assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_request"), bad
                assert len(reply.text) < 1000
    with login(url, "KEY_B") as http:
        assert http.get("/console/api/policy").json()["budgets"] == {}
        assert http.get("/v1/policy", headers={"authorization": f"Bearer {KEYS['KEY_B']}"}).json()["budgets"] == {}
    with login(url, "KEY_A") as http:
        assert http.get("/console/api/policy").json()["budgets"]["a"]["usd_per_period"] == 2.5


def test_a_model_is_added_and_removed_by_an_administrator(url: str, installation: Installation) -> None:
    """With the session's token only; the view names it as added, and tenants see it without the means to change it."""
    ask(url, "KEY_A")
    installation.copied()
    model = {"name": "new: [x]/# <b>", "provider": "echo", "target": "org/new", "prices": {"input": 0.4, "output": 2}}
    path = f"/console/api/models/{quote(str(model['name']), safe='')}"
    with login(url, "KEY_A") as http:
        for refused in (http.post("/console/api/models", json=model), http.delete(path)):
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "not_admin")
        seen = http.get("/console/api/models").json()
        assert (seen["providers"], seen["additions"], seen["unused"]) == ([], {}, [])
    with login(url, "KEY_ADMIN") as http:
        for forged in (
            http.post("/console/api/models", json=model, headers={TOKEN: "x"}),
            http.delete("/console/api/models/alpha", headers={TOKEN: "x"}),
        ):
            assert (forged.status_code, forged.json()["error"]["code"]) == (403, "forged_request")
        assert http.get("/console/api/models").json()["providers"] == ["echo"]
        assert http.post("/console/api/models", json=model).json()["name"] == model["name"]
        shown = {each["name"]: each for each in http.get("/console/api/models").json()["models"]}
        assert shown[model["name"]]["added"] > 0.0
        assert shown["alpha"]["added"] is None
        assert shown[model["name"]]["target"] == "org/new"
        assert "added already" in http.post("/console/api/models", json=model).json()["error"]
        pause = {"action": "set", "settings": {"paused": model["name"]}}
        assert http.post("/console/api/policy", json=pause).is_success
        assert http.delete(path).json()["removed"]
        seen = http.get("/console/api/models").json()
        assert model["name"] not in {each["name"] for each in seen["models"]}
        assert seen["paused"] == []
        assert http.delete("/console/api/models/alpha").status_code == 400
        assert http.delete(path).status_code == 404


def test_changes_of_other_sites_are_refused(url: str) -> None:
    """Without the token, with another session's, or from another origin nothing changes; a key needs no token."""
    decision = ask(url, "KEY_A")
    vote = {"decision_id": decision, "value": "down"}
    with login(url, "KEY_A") as http, login(url, "KEY_B") as other:
        token = http.headers.pop(TOKEN)
        for headers in (
            {},
            {TOKEN: "x"},
            {TOKEN: other.headers[TOKEN]},
            {TOKEN: token, "origin": "http://evil.example"},
            {TOKEN: token, "origin": "null"},
            {TOKEN: token, "sec-fetch-site": "cross-site"},
        ):
            reply = http.post("/console/api/feedback", json=vote, headers=headers)
            assert (reply.status_code, reply.json()["error"]["code"]) == (403, "forged_request"), headers
        plain = http.post("/console/api/feedback", content=json.dumps(vote), headers={TOKEN: token})
        assert plain.status_code == 415, "a form of another site can send only other types"
        assert http.get(f"/console/api/decisions/{decision}").json()["feedback"] == []
        assert http.post("/console/api/feedback", json=vote, headers={TOKEN: token, "origin": url}).status_code == 200
        assert len(http.get(f"/console/api/decisions/{decision}").json()["feedback"]) == 1
    with client(url, headers={"authorization": f"Bearer {KEYS['KEY_A']}"}) as script:
        assert script.post("/console/api/feedback", json=vote).status_code == 200


def test_without_keys_another_sites_page_changes_nothing(open_url: str) -> None:
    """The header needs a preflight that is never granted, and its origin is seen."""
    decision = ask(open_url)
    vote = {"decision_id": decision, "value": "up"}
    with client(open_url) as http:
        assert http.post("/console/api/feedback", json=vote).status_code == 403
        token = http.get("/console/api/session").json()["csrf"]
        foreign = {TOKEN: token, "origin": "http://evil.example"}
        assert http.post("/console/api/feedback", json=vote, headers=foreign).status_code == 403
        assert http.post("/console/api/feedback", json=vote, headers={TOKEN: token}).status_code == 200
        preflight = http.options("/console/api/feedback", headers={"origin": "http://evil.example"})
        assert "access-control-allow-origin" not in preflight.headers


def test_hostile_names_are_bounded_data(tmp_path: Path) -> None:
    """Roles of any text come back as JSON strings of at most 200 characters, and filters find them."""
    names = ["<img src=x onerror=alert(1)>", "\u202eevil"]
    installation = install(tmp_path, models=cards(names))
    with serving(installation.router, config().model_copy(update={"data": tmp_path})) as url:
        made = {}
        for text in HOSTILE:
            with client(url) as http:
                reply = http.post(
                    "/v1/chat/completions", json=chat(metadata={"role": text, "task": text, "session": text})
                )
                if reply.status_code == 200:
                    made[text] = reply.headers["x-fitrouter-decision"]
        assert len(made) >= 4
        installation.copied()
        with client(url) as http:
            page = http.get("/console/api/decisions")
            assert page.headers["content-type"] == "application/json"
            shown = {row["decision_id"]: row["role"] for row in page.json()["decisions"]}
            for text, decision in made.items():
                assert shown[decision] == text[:200]
                found = http.get("/console/api/decisions", params={"role": text[:200]}).json()["decisions"]
                assert [row["decision_id"] for row in found] == [decision]
                assert http.get(f"/console/api/decisions/{decision}").status_code == 200
            assert len(http.get("/console/api/now").content) < 20_000
            for odd in ("'; DROP TABLE decisions; --", "%", "\x00", "9" * 40):
                for name in ("role", "model", "mode", "status", "rated", "id"):
                    assert http.get("/console/api/decisions", params={name: odd}).status_code == 200
                assert http.get("/console/api/decisions", params={"before": odd}).status_code == 400


def test_pages_walk_the_whole_log_once(open_url: str, installation: Installation) -> None:
    """Newest first, fifty a page, nothing twice and nothing left out, while more arrive."""
    made = [ask(open_url) for _ in range(120)]
    installation.copied()
    seen: list[str] = []
    with client(open_url) as http:
        before: str | None = None
        while True:
            page = http.get("/console/api/decisions", params={} if before is None else {"before": before}).json()
            seen += [row["decision_id"] for row in page["decisions"]]
            ask(open_url)
            installation.copied()
            before = page["next"]
            if before is None:
                break
    assert seen == made[::-1]


def test_reads_are_shared_bounded_and_forgotten(tmp_path: Path) -> None:
    """The same question is asked once however many pages are open; a missing store is an error that says so."""
    calls = []

    async def story() -> None:
        reads = Reads(Warehouse(tmp_path / "none.duckdb"))

        def read() -> int:
            calls.append(1)
            time.sleep(0.05)
            return len(calls)

        assert await asyncio.gather(*(reads.get("k", read) for _ in range(20))) == [1] * 20
        assert await reads.get("k", read) == 1
        reads.forget()
        assert await reads.get("k", read) == 2
        with pytest.raises(StoreError, match="no figures yet: they come some seconds after the first request"):
            await reads.get("rows", lambda: reads.rows(("SELECT 1", [])))
        reads.close()

    asyncio.run(story())


def test_what_is_not_known_is_null() -> None:
    """JSON has no NaN: a page could not read an answer with one, such as a gain of four people without an interval."""
    assert dump({"gain": (math.nan, 0.1, math.inf), "of": [{"n": 1, "text": "NaN"}]}) == (
        b'{"gain":[null,0.1,null],"of":[{"n":1,"text":"NaN"}]}'
    )


def test_an_old_answer_is_given_while_a_newer_one_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for figures that are there, unless they are too old, or the last read failed."""
    monkeypatch.setattr("fitrouter_dashboards.console.reads.REST", 0.0)
    monkeypatch.setattr("fitrouter_dashboards.console.reads.WAIT_S", 0.02)
    held, found = threading.Event(), [1]

    def read() -> int:
        held.wait(10.0)
        if found[0] < 0:
            raise StoreError("it cannot be read")
        return found[0]

    async def story() -> None:
        reads = Reads(None)

        async def get() -> int:
            return int(await reads.get("k", read, fresh_s=0.0))

        async def read_again() -> None:
            held.set()
            await asyncio.sleep(0.1)
            held.clear()

        held.set()
        assert await get() == 1
        held.clear()
        found[0] = 2
        assert await asyncio.gather(*(get() for _ in range(5))) == [1] * 5
        await read_again()
        found[0] = -1
        assert await get() == 2
        await read_again()
        held.set()
        with pytest.raises(StoreError, match="cannot be read"):
            await get()
        found[0] = 3
        assert await get() == 3
        found[0] = 4
        monkeypatch.setattr("fitrouter_dashboards.console.reads.STALE_S", 0.0)
        assert await get() == 4
        reads.close()

    asyncio.run(story())


def test_a_query_that_takes_too_long_is_interrupted(tmp_path: Path) -> None:
    """The store is free again afterwards."""
    warehouse = Warehouse(tmp_path / "w.duckdb")
    warehouse.note_runs([])
    with pytest.raises(StoreError, match=r"(?i)interrupt"):
        warehouse.queries([("SELECT count(*) FROM range(100000000000) a, range(1000) b", [])], limit_s=0.2)
    assert warehouse.query("SELECT 1") == [(1,)]


def test_a_secret_that_was_cut_short_seals_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each process then makes its own, and says that its sessions end with it."""
    (tmp_path / "console.key").write_bytes(b"x" * 16)
    one, other = Sessions(tmp_path), Sessions(tmp_path)
    sent = {"cookie": one.cookie("secret", secure=True).partition(";")[0].encode()}
    assert (one.key(sent), other.key(sent)) == ("secret", "")
    assert "does not hold 32 bytes; delete it" in caplog.text


def told(lines: Iterator[str]) -> list[dict[str, Any]]:
    """The rows of the next event of a feed that has some."""
    line = next(line for line in lines if line.startswith("data: "))
    found: list[dict[str, Any]] = json.loads(line.removeprefix("data: "))
    return found


def test_a_feed_tells_what_is_new_and_what_has_changed(url: str, installation: Installation) -> None:
    """Of the own tenant, by the filters, with the first words of prompts, whose reading is noted; a later vote, too."""
    ask(url, "KEY_A", user="ann", metadata={"role": "cook"})
    installation.copied()
    with login(url, "KEY_A") as http:
        page = http.get("/console/api/decisions", params={"role": "cook"}).json()
        (first,) = page["decisions"]
        floor = first["seq"]
        params = {"role": "cook", "prompts": "1", "after": page["position"], "floor": floor}
        with http.stream("GET", "/console/api/feed", params=params) as reply:
            assert reply.headers["content-type"].startswith("text/event-stream")
            assert "script-src 'self'" in reply.headers["content-security-policy"]
            lines = reply.iter_lines()
            ask(url, "KEY_B", user="ann", metadata={"role": "cook"})
            ask(url, "KEY_A", user="ann", metadata={"role": "judge"})
            new = ask(url, "KEY_A", text="What is <b>this</b>? " * 50, user="bob", metadata={"role": "cook"})
            installation.copied()
            (row,) = told(lines)
            assert row["decision_id"] == new
            assert row["prompt"].startswith("What is <b>this</b>? What")
            assert len(row["prompt"]) <= 120
            vote = {"decision_id": first["decision_id"], "kind": "thumb", "value": "down", "user": "ann"}
            headers = {"authorization": f"Bearer {KEYS['KEY_A']}"}
            assert http.post("/v1/feedback", json=vote, headers=headers).status_code == 200
            installation.copied()
            changed = [one for one in told(lines) if one["decision_id"] == first["decision_id"]]
            assert [(one["rating"], one["votes"]) for one in changed] == [(0.0, 1)]
    acts = [json.loads(line) for line in (installation.router.warehouse.path.parent / AUDIT).read_text().splitlines()]  # type: ignore[union-attr]
    assert {"decisions": "1", "first": new, "last": new, "part": "first words"} in [each["about"] for each in acts]


def test_what_cannot_be_read_names_no_address(
    url: str, installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant learns that prompts cannot be read, of a page and of a feed, without the database's address."""

    async def down(_: object) -> dict[str, str]:
        raise StoreError("10.1.2.3:5432 does not answer")

    ask(url, "KEY_A")
    installation.copied()
    monkeypatch.setattr(installation.router, "prompts", down)
    with login(url, "KEY_A") as http:
        page = http.get("/console/api/decisions", params={"prompts": "1"}).json()
        pairs = http.get("/console/api/pairs", params={"user": "ann"}).json()
        with http.stream("GET", "/console/api/feed", params={"prompts": "1", "after": "0", "floor": "0"}) as reply:
            said_so = reply.read().decode()
    assert page["decisions"]
    for said in (page["unread"]["content"], pairs["unread"]["content"], said_so):
        assert "does not answer" in said
        assert "10.1.2.3" not in said


def test_feeds_are_few_and_end_with_the_gateway(installation: Installation, tmp_path: Path) -> None:
    """A key has so many; one that is left makes room for the next; all end when the gateway does, not later."""
    ask_for = {"after": "0", "floor": "0"}
    with serving(installation.router, config().model_copy(update={"data": tmp_path})) as url, ExitStack() as stack:
        ask(url)
        installation.copied()
        http = stack.enter_context(client(url))
        open_ = [stack.enter_context(ExitStack()) for _ in range(PER_KEY)]
        feeds = [
            each.enter_context(http.stream("GET", "/console/api/feed", params=ask_for)).iter_lines() for each in open_
        ]
        assert all(told(lines) for lines in feeds)
        refused = http.get("/console/api/feed", params=ask_for)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_requests")
        open_[0].close()

        def again() -> bool:
            with http.stream("GET", "/console/api/feed", params=ask_for) as reply:
                return reply.status_code == 200

        wait_for(again)
        for bad in ({}, {"after": "-1", "floor": "0"}, {"after": "0", "floor": "x"}, {"after": "9" * 30, "floor": "0"}):
            assert http.get("/console/api/feed", params=bad).status_code == 400, bad
        leaving = time.monotonic()
        stack.pop_all()
    assert time.monotonic() - leaving < GRACE_S / 2


async def test_feeds_that_begin_at_once_are_few(installation: Installation, tmp_path: Path) -> None:
    """Of many requests in the same moment as many get a feed as one after another; those that never began are free."""
    log = Decisions(installation.router, Reads(None), AuditLog(tmp_path), asyncio.Event())
    http = mock.Mock(query_params={"after": "0", "floor": "0"}, scope={"headers": []})
    call = mock.Mock(http=http, tenant="a", admin=False, sees_people=True)

    async def begin() -> Response | None:
        await asyncio.sleep(0)
        try:
            return await log.feed(call)
        except Problem:
            return None

    async def gone(*_: Any) -> Any:
        raise OSError("the client is gone")

    for _ in range(2):
        begun = [each for each in await asyncio.gather(*(begin() for _ in range(3 * PER_KEY))) if each is not None]
        assert len(begun) == PER_KEY
        for each in begun:
            with pytest.raises(BaseException):  # noqa: B017 - whatever the server makes of it
                await each({"type": "http", "asgi": {"spec_version": "2.4"}}, gone, gone)


def test_own_answers_are_compared(url: str, installation: Installation) -> None:
    """Two answers to one question wait until one is chosen: a label of its own kind, with the order that was shown.

    Each reading of texts has a line in the audit log; other tenants' answers, and those of others, are no pairs.
    """
    asked = {"model": "alpha", "user": "ann", "messages": [{"role": "user", "content": HOSTILE[0]}]}
    with login(url, "KEY_A") as http, login(url, "KEY_B") as other:
        made = [http.post("/console/api/try", json={**asked, "model": model}) for model in ("alpha", "beta", "alpha")]
        first, second, third = (each.headers["x-fitrouter-decision"] for each in made)
        http.post("/console/api/try", json={**asked, "model": "beta", "user": "bob"})
        assert other.post("/console/api/try", json=asked, headers={TOKEN: "forged"}).status_code == 403
        installation.copied()
        found = http.get("/console/api/pairs", params={"user": "ann"}).json()
        (pair,) = found["pairs"]
        assert found["kept"]
        assert pair["prompt"] == HOSTILE[0]
        shown = {each["decision_id"]: each["answer"] for each in pair["answers"]}
        assert second in shown
        assert HOSTILE[0] in shown[second]
        for who, user in ((http, "bob"), (http, "nobody"), (other, "ann")):
            assert who.get("/console/api/pairs", params={"user": user}).json()["pairs"] == []
        acts = [
            json.loads(line) for line in (installation.router.warehouse.path.parent / AUDIT).read_text().splitlines()
        ]
        assert [each["about"]["part"] for each in acts if each["act"] == "content read"] == ["compared"]
        chosen = {"first": second, "second": first, "choice": 2}
        for bad in ({**chosen, "choice": 3}, {**chosen, "choice": True}, {**chosen, "second": second}):
            assert http.post("/console/api/choice", json=bad).status_code == 400
        assert other.post("/console/api/choice", json=chosen).status_code == 404
        assert http.post("/console/api/choice", json=chosen, headers={TOKEN: "forged"}).status_code == 403
        assert http.post("/console/api/choice", json=chosen).json()["models"] == ["beta", "alpha"]
        installation.copied()
        (pair,) = http.get("/console/api/pairs", params={"user": "ann"}).json()["pairs"]
        assert {each["decision_id"] for each in pair["answers"]} == {second, third}
    (vote,) = (row.event for row in installation.router._journal.tail(0, 1000) if isinstance(row.event, Feedback))
    assert (vote.kind, vote.source, vote.asked, vote.first) == (FeedbackKind.PAIR, CHOSEN, False, second)
    assert (vote.decision_id, vote.other, vote.value) == (second, first, 0.0)


async def test_a_thumb_is_not_chosen(installation: Installation) -> None:
    """What sets a level is never of the kind that was picked to be asked."""
    async with installation.router as router:
        made = await router.complete(
            Request(messages=({"role": "user", "content": "Hi"},), identity=Identity(user="ann"))
        )
        decision = made.decision.id
        for kind in (FeedbackKind.THUMB, FeedbackKind.RATING):
            with pytest.raises(InvalidRequest, match="first"):
                await router.feedback(decision, kind, 1.0, first=decision)


def test_choices_that_tell_most_come_first() -> None:
    """By what a sure answer is expected to gain: unsure and close ones; each answer in one pair, at most five."""
    apart = {("a", "b"): (0.0, 0.1), ("b", "c"): (0.0, 0.3), ("d", "e"): (0.6, 0.1), ("f", "g"): None}
    assert telling(apart) == [("b", "c"), ("f", "g"), ("d", "e")]
    assert len(telling({(f"a{i}", f"b{i}"): (0.0, 0.1) for i in range(9)})) == 5
    rows = [
        Answer("1", "cook", "", "m"),
        Answer("2", "cook", "", "n"),
        Answer("3", "", "", "n"),
        Answer("4", "cook", "", "m"),
    ]
    prompts = dict.fromkeys("1234", "Why?")
    assert alike(rows, prompts, set()) == [("1", "2"), ("2", "4")]
    assert alike(rows, {**prompts, "4": "How?"}, {frozenset("12")}) == []


def test_regressions_come_first(open_url: str, installation: Installation) -> None:
    """By the rating, or 0 for no answer, less what was expected of the default model, or of a middling answer."""
    votes = {ask(open_url, user=f"u{i}"): value for i, value in enumerate((1.0, 0.25, 0.0, None))}
    with client(open_url) as http:
        for decision, value in votes.items():
            if value is not None:
                vote = {"decision_id": decision, "kind": "rating", "value": value, "scale": [0, 1]}
                assert http.post("/v1/feedback", json=vote).status_code == 200
        installation.copied()
        rows = http.get("/console/api/decisions", params={"first": "regressions"}).json()["decisions"]
    assert [row["rating"] for row in rows] == [0.0, 0.25, 1.0, None]
    assert [row["gap"] for row in rows] == [-0.5, -0.25, 0.5, None]
