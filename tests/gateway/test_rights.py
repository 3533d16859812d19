"""One table of rights: what each kind of key may do, over all routes of `/v1` and of the console."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import pytest
from tests.kits.gateway import chat, client, config, make_router, serving, wait_for

from fitrouter.router import Router
from fitrouter.stores.audit_log import FILE
from fitrouter.stores.contents import ContentStore
from fitrouter.stores.identities import SqliteIdentities
from fitrouter.stores.journal import MemoryJournal
from fitrouter.stores.keys import FILE as KEY_FILE
from fitrouter.stores.keys import StoredKey, change_keys, digest_of, new_key
from fitrouter.stores.warehouse import Warehouse, WarehouseFeed
from fitrouter_integrations.gateway import _whole_log, create_app

KINDS: dict[str, tuple[str, ...] | None] = {
    "no key": None,
    "an unknown key": None,
    "chat": ("chat",),
    "feedback": ("feedback",),
    "read": ("read",),
    "metrics": ("metrics",),
    "as created": ("chat", "feedback", "read"),
    "trusted to read": ("read", "trusted"),
    "trusted": ("chat", "feedback", "read", "trusted"),
    "an administrator alone": ("admin",),
    "an administrator to read": ("read", "admin"),
    "the administrator": ("chat", "feedback", "read", "trusted", "admin"),
}
"""Kind of key → its scopes; all are one tenant's, but the administrators' and those of nobody."""

ANYBODY, ANY_KEY, SESSION = "anybody", "any key", "a session of that person"
PEOPLE, TRUSTED, ADMIN, METRICS = "people", "trusted", "admin", "metrics"
ASKED = {"user": "ann", **chat()}
SAID = {"role": "assistant", "content": "Four."}
CHANGE = {"action": "set", "settings": {"share": 1}}
ADDED = {"name": "m", "provider": "echo"}
RIGHTS: dict[str, tuple[str, ...]] = {
    "GET /": (ANYBODY,),
    "GET /console": (ANYBODY,),
    "GET /console/": (ANYBODY,),
    "GET /console/static/{name}": (ANYBODY,),
    "GET /console/api/session": (ANYBODY,),
    "POST /console/api/logout": (ANYBODY,),
    "GET /me": (ANYBODY,),
    "GET /me/": (ANYBODY,),
    "GET /quiz": (ANYBODY,),
    "GET /me/static/{name}": (ANYBODY,),
    "GET /me/api/session": (ANYBODY,),
    "POST /me/api/logout": (ANYBODY,),
    "POST /me/api/redeem": (SESSION,),
    "POST /me/api/quiz": (SESSION,),
    "GET /me/api/quiz/{quiz_id}": (SESSION,),
    "POST /me/api/quiz/{quiz_id}": (SESSION,),
    "GET /me/api/report": (SESSION,),
    "GET /me/api/shares": (SESSION,),
    "POST /me/api/shares": (SESSION,),
    "DELETE /me/api/shares/{share_id}": (SESSION,),
    "POST /me/api/shared": (SESSION,),
    "GET /shared": (ANYBODY,),
    "GET /me/api/profile": (SESSION,),
    "PUT /me/api/profile": (SESSION,),
    "DELETE /me/api/profile": (SESSION,),
    "GET /healthz": (ANYBODY,),
    "GET /readyz": (ANYBODY,),
    "GET /openapi.json": (ANY_KEY,),
    "GET /v1/models": (ANY_KEY,),
    "GET /v1/models/{model:path}": (ANY_KEY,),
    "POST /v1/chat/completions": ("chat",),
    "POST /v1/messages": ("chat",),
    "POST /v1/messages/count_tokens": ("chat",),
    "POST /v1/responses": ("chat",),
    "POST /v1/responses/input_tokens": ("chat",),
    "POST /v1/embeddings": ("chat",),
    "POST /v1/plans": ("chat",),
    "POST /v1/decisions": ("chat",),
    "POST /v1/plans/{decision_id}/outcome": ("chat",),
    "POST /v1/observations": ("chat",),
    "POST /v1/feedback": ("feedback",),
    "POST /v1/runs/{run_id}/outcome": ("feedback",),
    "GET /v1/runs/{run_id}": ("read",),
    "PUT /v1/profile": ("feedback",),
    "POST /v1/quiz": ("feedback",),
    "GET /v1/quiz/{quiz_id}": ("feedback",),
    "POST /v1/quiz/{quiz_id}": ("feedback",),
    "POST /console/api/feedback": ("feedback",),
    "POST /console/api/try": ("chat",),
    "POST /console/api/choice": ("feedback", PEOPLE),
    "DELETE /v1/profile": ("feedback", TRUSTED),
    "POST /v1/links": ("feedback", PEOPLE),
    "DELETE /v1/links": ("feedback", PEOPLE),
    "GET /v1/decisions/{decision_id}": ("read",),
    "GET /console/api/decisions/{decision_id}": ("read",),
    "GET /v1/policy": ("read",),
    "GET /console/api/policy": ("read",),
    "GET /console/api/now": ("read",),
    "GET /console/api/gains": ("read",),
    "GET /console/api/money": ("read",),
    "GET /console/api/models": ("read",),
    "GET /console/api/learning": ("read",),
    "GET /v1/decisions": ("read", PEOPLE),
    "GET /console/api/decisions": ("read", PEOPLE),
    "GET /console/api/feed": ("read", PEOPLE),
    "GET /v1/feedback": ("read", PEOPLE),
    "GET /v1/users": ("read", PEOPLE),
    "GET /console/api/people": ("read", PEOPLE),
    "GET /console/api/runs": ("read", PEOPLE),
    "GET /console/api/pairs": ("read", PEOPLE),
    "GET /v1/profile": ("read", PEOPLE),
    "POST /v1/score": ("read", PEOPLE),
    "GET /v1/leaderboard": ("read", PEOPLE),
    "GET /v1/report": ("read", PEOPLE),
    "GET /v1/certificate": ("read", PEOPLE),
    "GET /v1/suite": ("read", PEOPLE),
    "GET /v1/satisfaction": ("read", PEOPLE),
    "GET /v1/exposure": ("read", PEOPLE),
    "POST /v1/diagnose": ("read", PEOPLE),
    "GET /v1/audit": ("read", ADMIN),
    "POST /console/api/estimate": ("read", ADMIN),
    "POST /v1/policy": (ADMIN,),
    "POST /console/api/policy": (ADMIN,),
    "POST /v1/models": (ADMIN,),
    "POST /console/api/models": (ADMIN,),
    "DELETE /v1/models/{model:path}": (ADMIN,),
    "DELETE /console/api/models/{model:path}": (ADMIN,),
    "GET /metrics": (METRICS,),
}
"""Route → the scope that its key needs, and whom it must speak for; routes that may be about a person are."""
BODIES: dict[str, Any] = {
    "POST /v1/diagnose": {"history": [{"messages": [*ASKED["messages"], SAID]}]},
    "POST /v1/score": {"user": "ann", "items": [{"prompt": "2 + 2?", "answers": ["4"]}]},
    "POST /me/api/redeem": {"token": "x" * 43},
    "POST /me/api/shared": {"token": "x" * 43},
    "POST /console/api/estimate": CHANGE,
    "POST /v1/policy": CHANGE,
    "POST /console/api/policy": CHANGE,
    "POST /v1/models": ADDED,
    "POST /console/api/models": ADDED,
}
LOGINS = {"POST /console/api/login", "POST /me/api/login"}
DENIED = {"no_session", "invalid_api_key", "missing_scope", "not_authorized", "not_admin"}


def may(kind: str, route: str) -> bool:
    """What the table says of a kind of key and a route."""
    scopes, (first, *more) = KINDS[kind], RIGHTS[route]
    if first == ANYBODY:
        return True
    if scopes is None:
        return False
    rights = {ANY_KEY, *scopes} | ({PEOPLE} if {"trusted", "admin"} & {*scopes} else set())
    rights |= {METRICS, "read"} if "admin" in scopes else set()
    return {first, *more} <= rights


class Place:
    def __init__(self, url: str, router: Router, keys: dict[str, str], folder: Path) -> None:
        self.url, self.router, self.keys, self.folder = url, router, keys, folder
        self.decision = ""
        self.asked_by("ann")

    def asked_by(self, user: str) -> None:
        """Let a person ask something, whose text is kept; it is what the routes are asked about."""
        with client(self.url, headers=self.headers("trusted")) as http:
            reply = http.post("/v1/chat/completions", json={**ASKED, "user": user})
            self.decision = reply.headers["x-fitrouter-decision"]
            wait_for(lambda: http.get(f"/console/api/decisions/{self.decision}").json().get("content"))

    def headers(self, kind: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.keys[kind]}"} if kind in self.keys else {}

    def ask(self, kind: str, route: str) -> httpx.Response:
        """Ask a route about ann with a key of a kind."""
        method, _, path = route.partition(" ")
        path = re.sub(r"\{[^}]*\}", "alpha", path.replace("{decision_id}", self.decision).replace("{name}", "main.js"))
        path += "?user=ann" if path in {"/console/api/people", "/console/api/pairs"} else ""
        body = json.dumps(BODIES.get(route, {})) if method in {"POST", "PUT"} else None
        headers = {"content-type": "application/json", "x-fitrouter-user": "ann", **self.headers(kind)}
        with client(self.url, headers=headers, follow_redirects=False) as http:
            return http.request(method, path, content=body)

    def acts(self) -> list[dict[str, Any]]:
        """Lines of the audit log about texts that were read."""
        lines = (self.folder / FILE).read_text().splitlines()
        return [act for act in map(json.loads, lines) if act["act"] == "content read"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("rights")
    keys, stored = {"an unknown key": "x" * 40}, list[StoredKey]()
    for kind, scopes in KINDS.items():
        if scopes is not None:
            tenant = None if "admin" in scopes else "a"
            key_id, keys[kind] = new_key()
            given = {"name": kind.replace(" ", "-"), "tenant": tenant, "scopes": scopes, "created": 0.0}
            stored.append(StoredKey(id=key_id, digest=digest_of(keys[kind]), **given))
    change_keys(folder / KEY_FILE, lambda _: stored)
    journal, identities = MemoryJournal(), SqliteIdentities(folder / "identities.db")
    contents = ContentStore(folder, journal, identities)
    feed = WarehouseFeed(journal, Warehouse(folder / "fitrouter.duckdb"))
    router = make_router(folder, journal=journal, identities=identities, contents=contents, feed=feed)
    # What is made of the whole log is another law; here its processes would only take their time.
    made = mock.patch.object(_whole_log, "in_background", mock.AsyncMock(return_value={}))
    with made, serving(router, config().model_copy(update={"data": folder})) as url:
        place = Place(url, router, keys, folder)
        wait_for(lambda: feed.step() == 0 and feed.lag == 0)  # the view of people reads roles first
        yield place


def test_the_table_has_every_route(tmp_path: Path) -> None:
    """A new route needs a row."""
    app: Any = create_app(make_router(tmp_path), config().model_copy(update={"data": tmp_path}))
    routes = {f"{method} {each.path}" for each in app.routes for method in getattr(each, "methods", ())}
    assert {route for route in routes if not route.startswith("HEAD ")} == {*RIGHTS, *LOGINS}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_key_may_do_what_the_table_says(place: Place, kind: str) -> None:
    """And nothing else, in `/v1` and in the console alike."""
    wrong = {}
    for route in sorted(RIGHTS, key=lambda each: each.startswith("DELETE")):
        reply = place.ask(kind, route)
        code = reply.json().get("error", {}) if reply.status_code >= 400 else {}
        denied = isinstance(code, dict) and code.get("code") in DENIED
        if denied is may(kind, route):
            wrong[route] = (reply.status_code, code)
        assert not denied or reply.status_code in {401, 403}
    assert not wrong


@pytest.mark.parametrize("kind", [kind for kind in KINDS if may(kind, "GET /console/api/decisions/{decision_id}")])
def test_what_people_asked_is_for_who_may_see_people(place: Place, kind: str) -> None:
    """The console shows texts, names and sessions to them alone, and each reading has a line in the audit log."""
    place.asked_by("bob")
    if "admin" not in (KINDS[kind] or ()):
        assert place.ask(kind, "GET /v1/decisions/{decision_id}").status_code == 200
    before = place.acts() if (place.folder / FILE).exists() else []
    reply = place.ask(kind, "GET /console/api/decisions/{decision_id}")
    assert reply.status_code == 200
    sees = may(kind, "GET /console/api/decisions")
    assert (ASKED["messages"][0]["content"] in reply.text) is sees
    assert bool(reply.json()["content"]) is sees
    assert bool(reply.json()["user"]) is sees
    added = place.acts()[len(before) :]
    assert len(added) == sees
    if sees:
        assert added[0]["about"] == {"decision": place.decision, "tenant": "a"}
        assert kind.replace(" ", "-") in added[0]["by"]


def test_a_login_needs_a_key_that_may_read(place: Place) -> None:
    """The session is the key: it may do what the key may."""
    for kind in KINDS:
        with client(place.url) as http:
            key = {"key": place.keys.get(kind, "")}
            given = http.post("/console/api/login", json=key, headers={"origin": place.url})
            assert (given.status_code == 200) is may(kind, "GET /console/api/now"), kind
            if given.status_code == 200:
                listed = http.get("/console/api/decisions")
                assert (listed.status_code != 403) is may(kind, "GET /console/api/decisions"), (kind, listed.text)


BLIND = [kind for kind, scopes in KINDS.items() if scopes and not {"trusted", "admin"} & {*scopes}]
PLANTED = "canary-of-a-person"


@pytest.mark.parametrize("kind", BLIND)
def test_no_view_names_people_to_keys_that_may_not_see_them(place: Place, kind: str) -> None:
    """Whatever route is asked, for whatever person: neither users, nor sessions, words, comments, or statements."""
    who = {"user": PLANTED, "metadata": {"session": f"{PLANTED}-session"}}
    with client(place.url, headers=place.headers("trusted")) as http:
        said = http.post("/v1/chat/completions", json={**chat(f"{PLANTED} asks"), **who})
        place.decision = said.headers["x-fitrouter-decision"]
        vote = {"decision_id": place.decision, "user": PLANTED, "kind": "thumb", "value": "up"}
        assert http.post("/v1/feedback", json={**vote, "comment": f"too long, {PLANTED}"}).status_code == 200
        stated = {"user": PLANTED, "statements": [f"brief answers, {PLANTED}"]}
        assert http.put("/v1/profile", json=stated).status_code in {200, 400}
        wait_for(lambda: http.get(f"/console/api/decisions/{place.decision}").json().get("content"))
    asked = {"user": PLANTED, "session": f"{PLANTED}-session", "id": place.decision, "last": "50", "window": "all"}
    told = []
    for route in RIGHTS:
        method, _, path = route.partition(" ")
        if method != "GET" or path in {"/", "/openapi.json"} or "{name}" in path:
            continue
        path = re.sub(r"\{[^}]*\}", "alpha", path.replace("{decision_id}", place.decision))
        for query in ({}, {"now": "1"}, *({name: value} for name, value in asked.items())):
            for named in ({}, {"x-fitrouter-user": PLANTED}, {"x-fitrouter-session": f"{PLANTED}-session"}):
                with client(place.url, headers={**named, **place.headers(kind)}) as http:
                    reply = http.get(path, params=query)
                    if PLANTED in reply.text and PLANTED not in str(reply.json().get("error", "")):
                        told.append((path, query, named))
    assert not told
