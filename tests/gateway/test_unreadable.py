"""A store that cannot be read is told by every route that reads it, never shown as an empty installation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from tests.kits.gateway import chat, client, folded, serving, wait_for
from tests.kits.quiz import install
from tests.kits.unreadable import REASON, STORES, unreadable

from fitrouter.config import Config, load_config
from fitrouter.providers import OpenAICompatible
from fitrouter.router import Router
from fitrouter.types import EmbeddingCall, Embeddings
from fitrouter_dashboards.console import reads
from fitrouter_integrations.gateway import create_app
from fitrouter_integrations.gateway.console._sessions import TOKEN

W, J, P = STORES
READS = {
    "/console/api/decisions": {W, P},
    "/console/api/decisions/{decision_id}": {W, J, P},
    "/console/api/gains": {W},
    "/console/api/learning": {W},
    "/console/api/models": {W},
    "/console/api/money": {W},
    "/console/api/now": {W},
    "/console/api/people": {W, J, P},
    "/console/api/policy": {W},
    "/console/api/runs": {W, P},
    "/me/api/profile": {W, J, P},
    "/me/api/report": {W, P},
    "/me/api/session": {P},
    "/me/api/shares": {P},
    "/v1/decisions": {J, P},
    "/v1/decisions/{decision_id}": {J},
    "/v1/feedback": {J, P},
    "/v1/leaderboard": {W, P},
    "/v1/profile": {W, J, P},
    "/v1/report": {W, P},
    "/v1/runs/{run_id}": {J, P},
    "/v1/users": {J, P},
}
"""Route → the stores that it reads."""
WITHOUT = {
    "/console/api/pairs",  # where no contents are kept
    *("/", "/console", "/console/", "/console/api/session", "/console/static/{name}", "/healthz", "/metrics"),
    *("/me", "/me/", "/me/static/{name}", "/quiz", "/shared"),
    *("/openapi.json", "/readyz", "/v1/audit", "/v1/models", "/v1/models/{model:path}", "/v1/policy"),
    *("/v1/quiz/{quiz_id}", "/me/api/quiz/{quiz_id}"),
}
"""Routes that read none of them."""
APART = {"/v1/certificate", "/v1/exposure", "/v1/satisfaction", "/v1/suite", "/console/api/feed"}
"""Routes that read files in a process of their own, as the commands of the same names do; and a stream without end."""


ASKED = "What about 1?"
CHAT = chat(ASKED, user="ann")
SAID = {"role": "assistant", "content": "yes"}
ADDED = {"name": "added", "provider": "r", "target": "brief"}
WRITES: dict[str, tuple[Any, set[str]]] = {
    "DELETE /console/api/models/{model:path}": (None, {J}),
    "DELETE /v1/models/{model:path}": (None, {J}),
    "DELETE /me/api/profile": (None, {J, P}),
    "DELETE /me/api/shares/{share_id}": (None, {P}),
    "DELETE /v1/links": (None, {P}),
    "DELETE /v1/profile": (None, {J, P}),
    "POST /console/api/choice": ({"first": "DECISION", "second": "OTHER", "choice": 1}, {J}),
    "POST /console/api/estimate": ({"action": "budget", "tenant": "default", "usd_per_period": 2.5}, {W}),
    "POST /console/api/feedback": ({"decision_id": "DECISION", "value": "up"}, {J}),
    "POST /console/api/login": ({"key": "none"}, set()),
    "POST /console/api/logout": ({}, set()),
    "POST /console/api/models": (ADDED, {J}),
    "POST /console/api/policy": ({"action": "set", "settings": {"share": 1}}, {J}),
    "POST /console/api/try": (CHAT, set()),
    "POST /v1/chat/completions": (CHAT, set()),
    "POST /v1/plans": (CHAT, set()),
    "POST /v1/plans/{decision_id}/outcome": (
        {"messages": CHAT["messages"], "tried": [{"model": "MODEL", "ms": 5}], "status": "ok", "message": SAID},
        {J},
    ),
    "POST /v1/diagnose": ({"history": [{"messages": [{"role": "user", "content": ASKED}, SAID]}]}, set()),
    "POST /v1/embeddings": ({"model": "embed", "input": "Hello"}, set()),
    "POST /v1/feedback": ({"decision_id": "DECISION", "user": "ann", "kind": "thumb", "value": "up"}, {J, P}),
    "POST /me/api/login": ({"user": "ann"}, {P}),
    "POST /me/api/logout": ({}, set()),
    "POST /me/api/quiz": ({}, {P}),
    "POST /me/api/quiz/{quiz_id}": ({"question": "NUMBER", "choice": "same"}, {J, P}),
    "POST /me/api/redeem": ({"token": "LINK"}, set()),
    "POST /me/api/shared": ({"token": "LINK"}, {W, P}),
    "POST /me/api/shares": ({"sections": ["name"]}, {P}),
    "POST /v1/links": ({"user": "ann"}, {P}),
    "POST /v1/messages": ({**CHAT, "max_tokens": 9}, set()),
    "POST /v1/messages/count_tokens": (CHAT, set()),
    "POST /v1/models": (ADDED, {J}),
    "POST /v1/observations": ({**CHAT, "model": "brief", "message": SAID, "latency_ms": 5}, set()),
    "POST /v1/policy": ({"action": "set", "settings": {"share": 1}}, {J}),
    "POST /v1/quiz": ({"user": "ann"}, {P}),
    "POST /v1/quiz/{quiz_id}": ({"user": "ann", "question": "NUMBER", "choice": "same"}, {J, P}),
    "POST /v1/responses": ({"model": "fitrouter/auto", "input": ASKED, "user": "ann"}, set()),
    "POST /v1/responses/input_tokens": ({"model": "fitrouter/auto", "input": ASKED}, set()),
    "POST /v1/runs/{run_id}/outcome": ({"value": True, "user": "ann"}, {J, P}),
    "POST /v1/score": ({"user": "ann", "items": [{"prompt": ASKED, "answers": ["yes"]}]}, {J, P}),
    "PUT /me/api/profile": ({"values": {"warmth": 1.0}}, {J, P}),
    "PUT /v1/profile": ({"user": "ann", "values": {"warmth": 1.0}}, {J, P}),
}
"""Route that takes something → a body, and the stores without which it says what cannot be read; without the others it
works."""


def paths(config: Config, *methods: str) -> set[str]:
    """Every path that the gateway answers to these methods, after its method unless that is GET alone."""
    with Router.offline(config) as router:
        app: Any = create_app(router, config)
        found = [(route.path, set(methods) & {*getattr(route, "methods", ())}) for route in app.routes]
    return {path if methods == ("GET",) else f"{method} {path}" for path, given in found for method in given}


def ask(http: httpx.Client, path: str, decision: str) -> httpx.Response:
    """Answer of a route that is asked for one user, decision or model."""
    filled = re.sub(r"\{[^}]*\}", "brief", path.replace("{decision_id}", decision).replace("{name}", "main.js"))
    return http.get(filled, params={"user": "ann"} if path in {"/console/api/people", "/console/api/pairs"} else None)


def shape(reply: httpx.Response) -> str:
    """A body without its numbers, which change from one moment to the next."""
    return re.sub(r"\d[\d.e+-]*", "0", reply.text)


def test_no_route_answers_as_if_there_were_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every route that is asked by GET: it says what cannot be read, or answers as before. A new one needs a row."""
    monkeypatch.setattr(reads, "FRESH_S", 0.0)
    monkeypatch.setattr(reads, "REST", 0.0)
    config = load_config(install(tmp_path))
    with serving(router := Router.from_config(config), config) as url, client(url) as http:
        http.headers["x-fitrouter-user"] = "ann"
        http.post("/me/api/login", json={"user": "ann"})
        body = chat("What about 1?", user="ann", metadata={"session": "one", "run_id": "brief"})
        decision = http.post("/v1/chat/completions", json=body).headers["x-fitrouter-decision"]
        vote = {"decision_id": decision, "user": "ann", "kind": "thumb", "value": "up"}
        assert http.post("/v1/feedback", json=vote).status_code == 200
        folded(router)
        wait_for(lambda: not (lag := router.status().lag).warehouse_events and not lag.scorer_answers)
        assert {*READS, *WITHOUT, *APART} == paths(config, "GET")
        before = {path: ask(http, path, decision) for path in READS}
        wrong = [
            f"{path} answers {reply.status_code}: {reply.text}" for path, reply in before.items() if reply.is_error
        ]
        for store in STORES:
            with unreadable(store):
                for path, stores in READS.items():
                    after = ask(http, path, decision)
                    told = REASON in after.text and (after.status_code == 503 or "not readable now" in after.text)
                    if told != (store in stores) or not (told or shape(after) == shape(before[path])):
                        wrong.append(f"{path} without {store} answers {after.status_code}: {after.text[:300]}")
    assert not wrong, "\n".join(wrong)


def prepared(http: httpx.Client, route: str) -> dict[str, str]:
    """What a route needs that is asked once: an answer, a plan, a quiz, a model or none, a person to erase."""
    if route.startswith(("POST /me/", "PUT /me/", "DELETE /me/")):
        if route.endswith("redeem"):
            return {"LINK": http.post("/v1/links", json={"user": "ann"}).json()["url"].partition("#")[2]}
        user = "doomed" if route == "DELETE /me/api/profile" else "ann"
        assert http.post("/me/api/login", json={"user": user}).status_code == 200
        if "share" in route and not route.endswith("shares"):
            csrf = {TOKEN: http.get("/me/api/session").json()["csrf"]}
            made = http.post("/me/api/shares", json={"sections": ["ranking"]}, headers=csrf).json()["url"]
            newest = http.get("/me/api/shares").json()["shares"][-1]["id"]
            return {"LINK": made.partition("#")[2], "SHARE": newest, "CSRF": csrf[TOKEN]}
        places = prepared(http, route.replace("/me/api/", "/v1/")) if "{quiz_id}" in route else {}
        return {"CSRF": http.get("/me/api/session").json()["csrf"], **places}
    if "{run_id}" in route:
        made = http.post("/v1/chat/completions", json={**CHAT, "user": "ann"}, headers={"x-fitrouter-run": "a-run"})
        wait_for(lambda: http.get("/v1/runs/a-run", headers={"x-fitrouter-user": "ann"}).status_code == 200)
        assert made.status_code == 200, made.text
        return {"RUN": "a-run"}
    if "outcome" in route:
        about = http.post("/v1/plans", json=CHAT).json()["about"]
        return {"DECISION": about["decision_id"], "MODEL": about["chosen"]}
    if "{quiz_id}" in route:
        quiz = http.post("/v1/quiz", json={"user": "ann"}).json()
        return {"QUIZ": quiz["id"], '"NUMBER"': str(quiz["question"]["number"])}
    if "/models" in route:
        http.delete("/v1/models/added")
        if route.startswith("DELETE"):
            assert http.post("/v1/models", json=ADDED).status_code == 200
        return {"MODEL": "added"}
    if route.endswith("choice"):
        return {"OTHER": prepared(http, "")["DECISION"]} | prepared(http, "")
    reply = http.post("/v1/chat/completions", json={**CHAT, "user": "doomed" if route.startswith("DELETE") else "ann"})
    decision = reply.headers["x-fitrouter-decision"]
    wait_for(lambda: http.get(f"/v1/decisions/{decision}").status_code == 200)
    return {"DECISION": decision}


def send(http: httpx.Client, route: str, places: dict[str, str]) -> httpx.Response:
    """Answer of a route that takes something; capitals in its body, and names in its path, are what was prepared."""
    method, _, path = route.partition(" ")
    body = msgspec.json.encode(WRITES[route][0]).decode()
    for name, value in places.items():
        body, path = body.replace(name, value), re.sub(rf"\{{{name.lower()}(_id|:path)?\}}", value, path)
    headers = (
        {"content-type": "application/json"}
        | ({TOKEN: places["CSRF"]} if "CSRF" in places else {})
        | ({"x-fitrouter-user": "doomed"} if method == "DELETE" else {})
    )
    return http.request(method, path, content=body, headers=headers)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, Router, set[str]]]:
    """A gateway with all that the routes need, its router, and its routes that are no GET."""
    file = install(tmp_path_factory.mktemp("whole"))
    server = "providers:\n  o: {kind: openai_compatible, base_url: http://127.0.0.1:9/v1}"
    more = "embeddings: [{name: embed, provider: o, price: 1}]\n"
    file.write_text(file.read_text().replace("providers:", server) + more)
    config = load_config(file)

    async def embed(_self: OpenAICompatible, _call: EmbeddingCall) -> Embeddings:
        return Embeddings(data=msgspec.Raw(b"[]"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reads, "FRESH_S", 0.0)
        patch.setattr(reads, "REST", 0.0)
        patch.setattr(OpenAICompatible, "embed", embed)
        yield from _served(config)


def _served(config: Config) -> Iterator[tuple[httpx.Client, Router, set[str]]]:
    with serving(router := Router.from_config(config), config) as url, client(url) as http:
        http.headers[TOKEN] = http.get("/console/api/session").json()["csrf"]
        yield http, router, paths(config, "POST", "PUT", "DELETE", "PATCH") - {"POST /v1/decisions"}  # always refused


def test_every_route_that_takes_something_is_asked(whole: tuple[httpx.Client, Router, set[str]]) -> None:
    """A new one needs a row."""
    assert set(WRITES) == whole[2]


@pytest.mark.parametrize("route", WRITES)
def test_no_route_that_takes_something_is_silent(route: str, whole: tuple[httpx.Client, Router, set[str]]) -> None:
    """Without a store it says what cannot be read, with an error or in its answer, or does its work as with it."""
    http, router, _ = whole
    before = send(http, route, prepared(http, route))
    assert before.status_code == 200, before.text
    for store in STORES:
        folded(router)  # what was recorded, but could not be read
        places = prepared(http, route)
        folded(router)
        with unreadable(store):
            after = send(http, route, places)
        told = REASON in after.text and (after.status_code == 503 or re.search('"(error|unfinished)":"', after.text))
        assert bool(told) == (store in WRITES[route][1]), f"without {store}: {after.status_code}: {after.text[:500]}"
        recorded = store == J and route.endswith(("policy", "models", "{model:path}"))
        assert recorded == ("it is recorded, and takes effect once" in after.text), after.text
        assert told or after.status_code == 200, f"without {store}: {after.text[:500]}"
        assert told or set(after.json()) == set(before.json()), f"without {store}: {after.text[:500]}"
