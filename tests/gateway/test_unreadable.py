"""A store that cannot be read is told by every route that reads it, never shown as an empty installation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.kits.gateway import chat, client, folded, serving, wait_for
from tests.kits.quiz import install
from tests.kits.unreadable import REASON, STORES, unreadable

from fitrouter.config import Config, load_config
from fitrouter.router import Router
from fitrouter_dashboards.console import reads
from fitrouter_integrations.gateway import create_app

W, J, P = STORES
READS = {
    "/console/api/decisions": {W},
    "/console/api/decisions/{decision_id}": {W, J},
    "/console/api/learning": {W},
    "/console/api/models": {W},
    "/console/api/now": {W},
    "/console/api/people": {W, J, P},
    "/console/api/policy": {W},
    "/v1/decisions": {J, P},
    "/v1/decisions/{decision_id}": {J},
    "/v1/feedback": {J, P},
    "/v1/leaderboard": {W, P},
    "/v1/profile": {W, J, P},
    "/v1/report": {W, P},
    "/v1/users": {J, P},
}
"""Route → the stores that it reads."""
WITHOUT = {
    *("/", "/console", "/console/", "/console/api/session", "/console/static/{name}", "/healthz", "/metrics"),
    *("/openapi.json", "/readyz", "/v1/audit", "/v1/models", "/v1/models/{model:path}", "/v1/policy"),
    "/v1/quiz/{quiz_id}",
}
"""Routes that read none of them."""
APART = {"/v1/certificate", "/v1/exposure", "/v1/satisfaction", "/v1/suite"}
"""Routes that read files in a process of their own, as the commands of the same names do."""


def paths(config: Config) -> set[str]:
    """Every path that the gateway answers to GET, as its application lists them."""
    with Router.offline(config) as router:
        app: Any = create_app(router, config)
        return {route.path for route in app.routes if "GET" in getattr(route, "methods", ())}


def ask(http: httpx.Client, path: str, decision: str) -> httpx.Response:
    """Answer of a route that is asked for one user, decision or model."""
    filled = re.sub(r"\{[^}]*\}", "brief", path.replace("{decision_id}", decision).replace("{name}", "main.js"))
    return http.get(filled, params={"user": "ann"} if path == "/console/api/people" else None)


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
        body = chat("What about 1?", user="ann", metadata={"session": "one"})
        decision = http.post("/v1/chat/completions", json=body).headers["x-fitrouter-decision"]
        vote = {"decision_id": decision, "user": "ann", "kind": "thumb", "value": "up"}
        assert http.post("/v1/feedback", json=vote).status_code == 200
        folded(router)
        wait_for(lambda: not (lag := router.status().lag).warehouse_events and not lag.scorer_answers)
        assert {*READS, *WITHOUT, *APART} == paths(config)
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
