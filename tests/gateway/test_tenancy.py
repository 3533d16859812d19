"""API keys and tenants: access, isolation, and secrecy of keys."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.kits.gateway import Echo, chat, client, config, make_router, serving

from fitrouter.config import ServerConfig
from fitrouter.errors import ConfigError, ProviderUnavailable
from fitrouter.providers import Fault, Faulty
from fitrouter.router import Router
from fitrouter.types import Decision, Execution
from fitrouter_integrations.gateway import bind, create_app
from fitrouter_integrations.gateway._keys import Keys

KEYS = {"KEY_A": "aaaa-secret-of-tenant-a", "KEY_B": "bbbb-secret-of-tenant-b", "KEY_A2": "cccc-second-of-tenant-a"}
NAMES = [
    {"name": "team-a", "tenant": "a", "key_env": "KEY_A"},
    {"name": "team-b", "tenant": "b", "key_env": "KEY_B"},
    {"name": "team-a-2", "tenant": "a", "key_env": "KEY_A2"},
]
ROUTES = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/responses/input_tokens"),
    ("GET", "/v1/models"),
    ("POST", "/v1/models"),
    ("GET", "/v1/models/alpha"),
    ("DELETE", "/v1/models/alpha"),
    ("POST", "/v1/feedback"),
    ("POST", "/v1/runs/x/outcome"),
    ("GET", "/v1/runs/x"),
    ("PUT", "/v1/profile"),
    ("GET", "/v1/profile"),
    ("DELETE", "/v1/profile"),
    ("POST", "/v1/plans"),
    ("GET", "/v1/decisions"),
    ("GET", "/v1/decisions/x"),
    ("GET", "/v1/users"),
    ("POST", "/v1/plans/x/outcome"),
    ("POST", "/v1/observations"),
    ("POST", "/v1/score"),
    ("POST", "/v1/links"),
    ("DELETE", "/v1/links"),
    ("GET", "/v1/leaderboard"),
    ("GET", "/v1/report"),
    ("GET", "/v1/certificate"),
    ("GET", "/v1/suite"),
    ("GET", "/v1/satisfaction"),
    ("GET", "/v1/exposure"),
    ("GET", "/v1/audit"),
    ("POST", "/v1/diagnose"),
    ("POST", "/v1/quiz"),
    ("GET", "/v1/quiz/x"),
    ("POST", "/v1/policy"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
]
PUBLIC = [("GET", "/healthz"), ("GET", "/readyz")]


@pytest.fixture
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def router(tmp_path: Path) -> Router:
    return make_router(tmp_path)


@pytest.fixture
def url(router: Router, _environment: None) -> Iterator[str]:
    with serving(router, config(keys=NAMES)) as address:
        yield address


def speaking(url: str, key: str) -> httpx.Client:
    return client(url, headers={"authorization": f"Bearer {KEYS[key]}"})


def test_every_route_but_health_needs_a_known_key(url: str) -> None:
    """The matrix of routes and bad keys: 401 everywhere, in the format of the API; the list of routes is complete."""
    with speaking(url, "KEY_A") as http:
        schema = http.get("/openapi.json").json()
    assert len(schema["paths"]) == len({path for _, path in ROUTES}) + len(PUBLIC)
    with client(url) as http:
        known = KEYS["KEY_A"]
        for bad in (
            "",
            "Bearer",
            "Bearer wrong",
            f"Basic {known}",
            known,
            f"Bearer {known}x",
            f"Bearer {known[:-1]}",
        ):
            for method, path in ROUTES:
                body = chat() if method == "POST" else None
                reply = http.request(method, path, json=body, headers={"authorization": bad})
                assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key"), (bad, path)
                assert reply.headers["www-authenticate"] == "Bearer"
        for method, path in PUBLIC:
            assert http.request(method, path).status_code == 200


def test_the_tenant_comes_from_the_key(url: str, router: Router) -> None:
    """Users of the same name in two tenants are different users."""
    for key in ("KEY_A", "KEY_B", "KEY_A2"):
        with speaking(url, key) as http:
            body = chat(user="ann", metadata={"tenant": "b", "role": "admin"})
            assert http.post("/v1/chat/completions", json=body, headers={"x-fitrouter-tenant": "b"}).status_code == 200
    made = [row.event.identity for row in router._journal.tail(0) if isinstance(row.event, Decision)]
    subjects = [(identity.tenant, identity.user) for identity in made]
    assert [tenant for tenant, _ in subjects] == ["a", "b", "a"]
    assert subjects[0] == subjects[2]
    assert subjects[0][1] != subjects[1][1]


def test_decisions_are_visible_to_their_tenant_only(url: str) -> None:
    """Another tenant can neither read nor rate a decision; a second key of the tenant can."""
    with speaking(url, "KEY_A") as a, speaking(url, "KEY_B") as b, speaking(url, "KEY_A2") as again:
        id_ = a.post("/v1/chat/completions", json=chat()).headers["x-fitrouter-decision"]
        vote = {"decision_id": id_, "kind": "thumb", "value": "up"}
        assert b.get(f"/v1/decisions/{id_}").status_code == 404
        assert b.post("/v1/feedback", json=vote).status_code == 404
        unknown = b.get("/v1/decisions/01a1f81f-95a7-7579-a0cd-cfed71c9669f").json()["error"]
        foreign = b.get(f"/v1/decisions/{id_}").json()["error"]
        assert unknown["message"].split("'")[0::2] == foreign["message"].split("'")[0::2]
        assert again.get(f"/v1/decisions/{id_}").status_code == 200
        assert again.post("/v1/feedback", json=vote).status_code == 200


def test_plans_are_reported_by_their_tenant_only(url: str, router: Router) -> None:
    """For another tenant the decision does not exist; a second key of the tenant may report it."""
    with speaking(url, "KEY_A") as a, speaking(url, "KEY_B") as b, speaking(url, "KEY_A2") as again:
        plan = a.post("/v1/plans", json=chat()).json()
        path = f"/v1/plans/{plan['about']['decision_id']}/outcome"
        told = {
            "messages": chat()["messages"],
            "tried": [{"model": plan["order"][0]["model"], "ms": 5}],
            "status": "ok",
            "message": {"role": "assistant", "content": "fine"},
        }
        refused = b.post(path, json=told)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "unknown_decision")
        assert not any(isinstance(row.event, Execution) for row in router._journal.tail(0))
        assert again.post(path, json=told).json()["status"] == "ok"
        observed = b.post("/v1/observations", json={**chat(model="beta"), "message": told["message"], "latency_ms": 5})
        assert observed.status_code == 200
    made = [row.event.identity.tenant for row in router._journal.tail(0) if isinstance(row.event, Decision)]
    assert made == ["a", "b"]


@pytest.mark.usefixtures("_environment")
def test_keys_and_user_ids_appear_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Errors, metrics, logs, explanations and reprs show neither a key nor a raw user id."""
    caplog.set_level(logging.DEBUG)
    failing = Faulty(Echo(), itertools.cycle([None, Fault(error=ProviderUnavailable("down", 503))]))
    settings = config(keys=NAMES)
    router = make_router(tmp_path, {"echo": failing})
    said: list[str] = [repr(settings), repr(Keys(settings.server)), str(vars(Keys(settings.server)))]
    with serving(router, settings) as url, speaking(url, "KEY_A") as http:
        for i in range(6):
            reply = http.post("/v1/chat/completions", json=chat(f"q{i}", user="user-canary-7", stream=i % 2 == 0))
            said += [reply.text, str(reply.headers)]
            if reply.is_success:
                said.append(http.get(f"/v1/decisions/{reply.headers['x-fitrouter-decision']}").text)
        for path in ("/metrics", "/readyz", "/openapi.json", "/v1/models"):
            said.append(http.get(path).text)
        for bad in (KEYS["KEY_B"] + "x", "Bearer " + KEYS["KEY_B"] + "x"):
            said.append(http.get("/v1/models", headers={"authorization": bad}).text)
        said.append(http.post("/v1/feedback", json={"decision_id": "x", "kind": "thumb", "value": 1}).text)
    said += [str(record.__dict__) for record in caplog.records if record.name.startswith(("fitrouter", "uvicorn"))]
    said += [repr(row) for row in router._journal.tail(0, 10_000)]
    everything = "\n".join(said)
    for canary in (*KEYS.values(), "user-canary-7"):
        assert canary not in everything


OPEN: list[dict[str, Any]] = [{"host": "0.0.0.0"}, {"host": "::"}, {"host": "192.0.2.1"}, {"host": "gateway.example"}]


@pytest.mark.parametrize("server", OPEN)
def test_an_open_address_without_keys_is_refused(tmp_path: Path, server: dict[str, Any]) -> None:
    """The gateway does not start, and the message has the remedy; with keys it does."""
    settings = config(**server)
    for start in (lambda: bind(settings), lambda: create_app(make_router(tmp_path), settings)):
        with pytest.raises(ConfigError, match=r"no keys are configured.*127\.0\.0\.1"):
            start()
    open_with_keys = ServerConfig.model_validate({**server, "keys": NAMES[:1]})
    assert Keys(open_with_keys, KEYS)


def test_a_key_that_is_missing_or_short_is_refused() -> None:
    """A configured key must be in the environment, and long enough to be one; the message does not show it."""
    server = ServerConfig.model_validate({"keys": NAMES[:1]})
    with pytest.raises(ConfigError, match=r"'team-a' reads the environment variable 'KEY_A', which is not set"):
        Keys(server, {})
    with pytest.raises(ConfigError, match="holds 5 characters") as short:
        Keys(server, {"KEY_A": "hunt2"})
    assert "hunt2" not in str(short.value)


def test_without_keys_all_local_clients_are_one_tenant(tmp_path: Path) -> None:
    """Any authorization header is ignored, since OpenAI's clients always send one."""
    router = make_router(tmp_path)
    with serving(router) as url, client(url, headers={"authorization": "Bearer anything"}) as http:
        id_ = http.post("/v1/chat/completions", json=chat()).headers["x-fitrouter-decision"]
        assert json.loads(http.get(f"/v1/decisions/{id_}").text)["decision_id"] == id_
