"""Models that an administrator adds and removes over HTTP: who may, which servers they may reach, and what is told."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.kits.gateway import chat, client, config, make_router, serving, wait_for

from fitrouter.assemble import extender
from fitrouter.router import Router
from fitrouter.stores.audit_log import AuditLog
from fitrouter_dashboards.metrics import Metrics

KEYS = {"KEY_A": "aaaa-secret-of-tenant-a", "KEY_ADMIN": "cccc-secret-of-the-admin"}
NAMES = [
    {"name": "team-a", "tenant": "a", "key_env": "KEY_A", "trusted": True},
    {"name": "operator", "admin": True, "key_env": "KEY_ADMIN"},
]
NEW = {"name": "org/new", "provider": "echo", "prices": {"input": 1, "output": 2}}
OWN = {"kind": "openai_compatible", "base_url": "https://models.example/v1"}


@pytest.fixture
def router(tmp_path: Path) -> Router:
    return make_router(tmp_path, extend=extender(config()))


@pytest.fixture
def url(router: Router, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    settings = config(keys=NAMES, additions={"key_envs": ["NEW_KEY"]}).model_copy(update={"data": tmp_path})
    with serving(router, settings, metrics=Metrics()) as address:
        yield address


@pytest.fixture
def admin(url: str) -> Iterator[httpx.Client]:
    with client(url, headers={"authorization": f"Bearer {KEYS['KEY_ADMIN']}"}) as http:
        yield http


def names(http: httpx.Client) -> set[str]:
    return {each["id"] for each in http.get("/v1/models").json()["data"]}


def test_an_administrator_adds_and_removes_a_model(url: str, admin: httpx.Client, tmp_path: Path) -> None:
    """It is listed, answers every tenant, and is unknown after its removal; the audit log names both acts."""
    added = admin.post("/v1/models", json=NEW)
    assert (added.status_code, added.json()["name"], added.json()["fault"]) == (200, "org/new", "")
    with client(url, headers={"authorization": f"Bearer {KEYS['KEY_A']}"}) as tenant:
        assert "org/new" in names(tenant)
        assert tenant.post("/v1/chat/completions", json=chat(model="org/new")).json()["model"] == "org/new"
        assert admin.delete("/v1/models/org/new").json()["removed"]
        assert "org/new" not in names(tenant)
        gone = tenant.post("/v1/chat/completions", json=chat(model="org/new"))
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "model_not_found")
    acts = [(act.act, act.about["model"], act.by) for act in AuditLog(tmp_path).acts()]
    assert acts == [("model add", "org/new", "key operator"), ("model remove", "org/new", "key operator")]


def test_only_an_administrator_may(url: str, router: Router, tmp_path: Path) -> None:
    """A tenant's key, trusted or not, changes nothing and leaves no line in the audit log."""
    with client(url, headers={"authorization": f"Bearer {KEYS['KEY_A']}"}) as http:
        for reply in (http.post("/v1/models", json=NEW), http.delete("/v1/models/alpha")):
            assert (reply.status_code, reply.json()["error"]["code"]) == (403, "not_admin")
    assert set(router.models) == {"alpha", "beta", "gamma"}
    assert list(AuditLog(tmp_path).acts()) == []


def test_mistakes_are_named(admin: httpx.Client) -> None:
    """A model of the file is removed there or paused; an unknown one is 404; a body says what is wrong."""
    for method, path, body, status, code, said in (
        ("DELETE", "/v1/models/alpha", None, 400, "invalid_request", "configuration file"),
        ("DELETE", "/v1/models/nobody", None, 404, "model_not_found", "GET /v1/models"),
        ("DELETE", "/v1/models/fitrouter/auto", None, 404, "model_not_found", "GET /v1/models"),
        ("POST", "/v1/models", {}, 400, "invalid_request", "name"),
        ("POST", "/v1/models", {**NEW, "name": "alpha"}, 400, "invalid_request", "taken"),
        ("POST", "/v1/models", {**NEW, "key": "sk-1"}, 400, "invalid_request", "unknown setting"),
        ("POST", "/v1/models", [NEW], 400, "invalid_request", "object"),
    ):
        reply = admin.request(method, path, json=body)
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (status, code), reply.text
        assert said in error["message"], reply.text
    assert "sk-1" not in admin.post("/v1/models", json={**NEW, "provider": {**OWN, "api_key": "sk-1"}}).text


@pytest.mark.parametrize(
    ("host", "addresses"),
    [
        ("127.0.0.1", None),
        ("[::1]", None),
        ("169.254.169.254", None),
        ("0x7f000001", ["127.0.0.1"]),
        ("[::ffff:10.0.0.1]", None),
        ("intranet.example", ["10.1.2.3"]),
        ("both.example", ["1.1.1.1", "192.168.0.1"]),
        ("metadata.example", ["fe80::1%eth0"]),
        ("nowhere.example", []),
    ],
)
def test_a_server_of_its_own_has_a_public_address(
    admin: httpx.Client, monkeypatch: pytest.MonkeyPatch, host: str, addresses: list[str] | None
) -> None:
    """Loopback, private, link-local and mapped addresses are refused, also one of several; so are unknown hosts."""
    _resolve(monkeypatch, host, addresses)
    reply = admin.post("/v1/models", json={"name": "new", "provider": {**OWN, "base_url": f"http://{host}:9/v1"}})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_request")
    assert ("has no address" if addresses == [] else "private_addresses") in reply.json()["error"]["message"]


def test_keys_are_those_that_the_configuration_lists(
    admin: httpx.Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No other variable of the gateway's environment can be sent anywhere; its value is in no answer and no line."""
    monkeypatch.setenv("NEW_KEY", "sk-of-the-new-one")
    _resolve(monkeypatch, "models.example", ["1.1.1.1"])
    for name in ("KEY_ADMIN", "PATH", "new_key"):
        reply = admin.post("/v1/models", json={"name": "new", "provider": {**OWN, "api_key_env": name}})
        assert "server.additions.key_envs" in reply.json()["error"]["message"], reply.text
        assert KEYS["KEY_ADMIN"] not in reply.text
    added = admin.post("/v1/models", json={"name": "new", "provider": {**OWN, "api_key_env": "NEW_KEY"}})
    assert added.status_code == 200, added.text
    [act] = AuditLog(tmp_path).acts()
    assert act.about == {"model": "new", "provider": "added/new", "host": "models.example"}
    assert "sk-of-the-new-one" not in added.text + (tmp_path / "audit.log").read_text()


def test_private_addresses_can_be_allowed(tmp_path: Path) -> None:
    """`server.additions.private_addresses` opens them, for a server on the same machine."""
    settings = config(additions={"private_addresses": True}).model_copy(update={"data": tmp_path})
    with serving(make_router(tmp_path, extend=extender(config())), settings) as url, client(url) as http:
        body = {"name": "mine", "provider": {**OWN, "base_url": "http://127.0.0.1:9/v1"}}
        assert http.post("/v1/models", json=body).status_code == 200
        assert "mine" in names(http)


@pytest.mark.parametrize("address", ["127.0.0.1", "::ffff:127.0.0.1", "0.0.0.0"])
def test_a_name_that_resolves_to_a_private_address_later_is_not_called(
    admin: httpx.Client, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """The address is checked whenever a connection is made, not only when the model is added."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.0)
        port = server.getsockname()[1]
        _resolve(monkeypatch, "models.example", ["1.1.1.1"], port)
        body = {"name": "new", "provider": {**OWN, "base_url": f"http://models.example:{port}/v1"}}
        assert admin.post("/v1/models", json=body).status_code == 200
        _resolve(monkeypatch, "models.example", [address], port)
        reply = admin.post("/v1/chat/completions", json=chat(model="new"), timeout=20.0)
        assert (reply.status_code, reply.json()["error"]["code"]) == (502, "all_models_failed"), reply.text
        with pytest.raises(BlockingIOError):
            server.accept()


def test_the_series_of_a_removed_model_go(admin: httpx.Client) -> None:
    """Counters and gauges of it are in no scrape any more; those of the others stay."""
    admin.post("/v1/models", json={**NEW, "name": "new"})
    for model in ("new", "alpha"):
        assert admin.post("/v1/chat/completions", json=chat(model=model)).status_code == 200
    wait_for(lambda: 'model="new"' in admin.get("/metrics").text)
    admin.delete("/v1/models/new")
    found = admin.get("/metrics").text
    assert 'model="new"' not in found
    assert 'fitrouter_requests_total{model="alpha"' in found


def _resolve(monkeypatch: pytest.MonkeyPatch, host: str, addresses: list[str] | None, port: int = 9) -> None:
    """Make a name resolve to addresses; None for an address, which resolves to itself."""
    real = socket.getaddrinfo

    def found(asked: Any, *more: Any, **named: Any) -> Any:
        if asked != host.strip("[]") or addresses is None:
            return real(asked, *more, **named)
        if not addresses:
            raise socket.gaierror("no such host")
        kinds = [socket.AF_INET6 if ":" in address else socket.AF_INET for address in addresses]
        return [(kind, socket.SOCK_STREAM, 6, "", (each, port)) for kind, each in zip(kinds, addresses, strict=True)]

    monkeypatch.setattr(socket, "getaddrinfo", found)
