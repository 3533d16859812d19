"""Keys of `fitrouter keys`: a running gateway follows the file; scopes, expiry, rates, limits of cost, secrecy."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.kits.gateway import chat, client, config, make_router, serving
from typer.testing import CliRunner

from fitrouter.config import ServerConfig
from fitrouter.errors import ConfigError, masked
from fitrouter.stores.keys import FILE, change_keys, read_keys
from fitrouter_integrations.commands.running.keys import app
from fitrouter_integrations.gateway import _keys
from fitrouter_integrations.gateway._keys import ANYBODY, Caller, Keys, Rates

CONFIG = """
data: data
providers: {s: {kind: simulated}}
models: [{name: m, provider: s}]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "fitrouter.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_keys, "WATCH_S", 0.0)
    return tmp_path / "data"


def run(*words: str) -> str:
    """What a command prints on standard output."""
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout.strip()


@pytest.fixture
def url(folder: Path, tmp_path: Path) -> Iterator[str]:
    with serving(make_router(tmp_path), config().model_copy(update={"data": folder})) as address:
        yield address


def status(url: str, key: str | None, method: str = "POST", path: str = "/v1/chat/completions") -> tuple[int, str]:
    """Status and error code of a request."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    with client(url, headers=headers) as http:
        reply = http.request(method, path, json=chat() if method == "POST" else None)
    return reply.status_code, reply.json().get("error", {}).get("code", "") if reply.status_code >= 400 else ""


def test_a_running_gateway_follows_the_file(url: str) -> None:
    """The first key closes it; a rotated secret is refused, a revoked key too; no restart in between."""
    assert status(url, None) == (200, "")
    key = run("create", "app", "--tenant", "a")
    assert status(url, None) == (401, "invalid_api_key")
    assert status(url, key) == (200, "")
    assert status(url, key[:-1]) == status(url, key + "x") == (401, "invalid_api_key")
    renewed = run("rotate", "app")
    assert status(url, key)[0] == 401
    assert status(url, renewed) == (200, "")
    again = run("rotate", "app", "--keep", "1h")
    assert status(url, renewed) == status(url, again) == (200, "")
    run("revoke", "app")
    assert status(url, renewed)[0] == status(url, again)[0] == 401
    assert status(url, None)[0] == 401, "without valid keys it stays closed"


def test_a_damaged_or_missing_file_opens_nothing(url: str, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Keys that were read stay in force while the file is damaged; without it nobody is let in."""
    key = run("create", "app")
    assert status(url, key) == (200, "")
    sound = (folder / FILE).read_bytes()
    for damage in (b"{", sound[:-30]):
        (folder / FILE).write_bytes(damage)
        assert status(url, key) == (200, "")
        assert status(url, None)[0] == 401
    (folder / FILE).chmod(0o644)
    assert status(url, key) == (200, "")
    assert "chmod 600" in caplog.text
    with client(url) as http:
        told = http.get("/readyz", headers={"authorization": f"Bearer {key}"}).json()
    assert "the keys read before stay in force" in told["incidents"]["keys"]
    (folder / FILE).unlink()
    assert status(url, key)[0] == status(url, None)[0] == 401
    (folder / FILE).write_bytes(b"{")
    (folder / FILE).chmod(0o600)
    with pytest.raises(ConfigError, match="cannot be read"):
        Keys(ServerConfig(), {}, folder / FILE)


def test_a_damaged_file_is_reported_once(folder: Path) -> None:
    """It is read again when it has changed, not each second."""
    run("create", "app")
    told: list[str] = []
    keys = Keys(ServerConfig(), {}, folder / FILE, report=lambda part, error: told.append(part))
    (folder / FILE).write_bytes(b"{")
    for _ in range(3):
        assert keys.caller(b"Bearer unknown") is None
    assert told == ["keys"]


def test_scopes_bound_what_a_key_may_do(url: str) -> None:
    """Every scope opens its routes and no others."""
    keys = {
        scope: run("create", scope, "--scopes", scope) for scope in ("chat", "feedback", "read", "metrics", "admin")
    }
    routes = {
        ("POST", "/v1/chat/completions"): {"chat"},
        ("POST", "/v1/plans"): {"chat"},
        ("POST", "/v1/decisions"): {"chat"},
        ("POST", "/v1/observations"): {"chat"},
        ("POST", "/v1/feedback"): {"feedback"},
        ("PUT", "/v1/profile"): {"feedback"},
        ("DELETE", "/v1/profile"): {"feedback"},
        ("POST", "/v1/quiz"): {"feedback"},
        ("GET", "/v1/decisions/x"): {"read", "admin"},
        ("GET", "/v1/policy"): {"read", "admin"},
        ("POST", "/v1/policy"): {"admin"},
        ("GET", "/metrics"): {"metrics", "admin"},
        ("GET", "/v1/models"): set(keys),
    }
    for (method, path), opens in routes.items():
        for scope, key in keys.items():
            found = status(url, key, method, path)
            assert (found[1] in {"missing_scope", "not_admin"}) is (scope not in opens), (path, scope, found)


def test_tenant_trust_and_admin_of_a_key(folder: Path) -> None:
    """A key of a tenant is no admin once there are several; the installation's own key stays one."""
    made = {
        "ops": run("create", "ops", "--scopes", "admin"),
        "a": run("create", "a", "--tenant", "a", "--scopes", "chat,admin,trusted"),
    }
    keys = Keys(ServerConfig(), {}, folder / FILE)

    def caller(name: str) -> Caller:
        found = keys.caller(f"Bearer {made[name]}".encode())
        assert found is not None
        return found

    assert caller("a").admin
    assert caller("a").trusted
    run("create", "b", "--tenant", "b")
    assert not caller("a").admin
    assert "read" not in caller("a").scopes
    assert caller("ops").admin
    assert caller("ops").metrics
    assert caller("ops").tenant == "default"


def test_the_installations_key_belongs_to_no_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside it one tenant's key may be an admin; without keys everybody is."""
    monkeypatch.setenv("OPS", "o" * 20)
    monkeypatch.setenv("APP", "a" * 20)
    named = [{"name": "ops", "key_env": "OPS", "admin": True}, {"name": "app", "key_env": "APP", "tenant": "a"}]
    for number, admin in ((1, True), (2, False)):
        other = {"name": "b", "key_env": "OPS", "tenant": "b"}
        config = ServerConfig.model_validate({"keys": [named[0], named[1] | {"admin": True}, *[other] * (number - 1)]})
        found = Keys(config).caller(b"Bearer " + b"a" * 20)
        assert found is not None
        assert (found.tenant, found.admin) == ("a", admin)
    assert Keys(ServerConfig(), {}).caller(None) == Keys(ServerConfig(), {}).caller(b"Bearer x") == ANYBODY


def test_the_file_is_looked_at_once_a_second(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each request; a key counts from the next look on."""
    monkeypatch.setattr(_keys, "WATCH_S", 1e9)
    run("create", "app")
    keys = Keys(ServerConfig(), {}, folder / FILE)
    assert keys.caller(b"Bearer unknown") is None
    later = f"Bearer {run('create', 'later')}".encode()
    assert keys.caller(later) is None
    keys._look_at = 0.0
    assert keys.caller(later)


def test_keys_expire(folder: Path) -> None:
    """After its time a key is unknown, and `list` says so."""
    key, now = run("create", "app", "--expires", "30m"), [time.time()]
    keys = Keys(ServerConfig(), {}, folder / FILE, clock=lambda: now[0])
    assert keys.caller(f"Bearer {key}".encode())
    now[0] += 31 * 60
    assert keys.caller(f"Bearer {key}".encode()) is None
    assert "expires" in run("list")
    change_keys(folder / FILE, lambda all_: [msgspec.structs.replace(each, expires=1.0) for each in all_])
    assert "expired" in run("list")


def test_secrets_are_shown_once_and_stored_nowhere(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The file has mode 0600 and digests only; neither `list` nor a message shows a secret."""
    key = run("create", "app", "--requests-per-minute", "60", "--usd-per-day", "5")
    assert key.startswith("sk-fr-")
    assert (folder / FILE).stat().st_mode & 0o777 == 0o600
    secret = key.split("-", 3)[3]
    everything = "".join(path.read_text() for path in folder.iterdir())
    shown = run("list")
    assert secret not in everything + shown + repr(read_keys(folder / FILE)) + caplog.text
    assert "60 requests/min" in shown
    assert secret not in masked(f"the key {key} is wrong")


def test_a_users_key_has_no_rights_over_others(folder: Path) -> None:
    """It has two scopes, and no more can be given; the list names its user."""
    run("create", "ann", "--user", "ann")
    (key,) = read_keys(folder / FILE)
    assert (key.user, key.scopes) == ("ann", ("chat", "feedback"))
    assert "user ann" in run("list")
    for scope in ("read", "trusted", "metrics", "admin"):
        with pytest.raises(ConfigError, match="more than one user"):
            run("create", "bob", "--user", "bob", "--scopes", f"chat,{scope}")


def test_mistakes_are_named(folder: Path) -> None:
    """Names are unique among valid keys; unknown scopes, times and names are refused."""
    run("create", "app")
    for words, message in (
        (("create", "app"), "already"),
        (("create", "x", "--scopes", "all"), "unknown scope 'all'"),
        (("create", "x", "--expires", "soon"), "90d"),
        (("rotate", "x"), "no valid key 'x'"),
        (("revoke", "x"), "no valid key 'x'"),
    ):
        with pytest.raises(ConfigError, match=message):
            run(*words)
    run("revoke", "app")
    run("create", "app")
    assert len(json.loads((folder / FILE).read_text())["keys"]) == 1, "a revoked name can be taken again"


def test_rates_are_of_a_key(url: str) -> None:
    """Beyond its requests per minute a key gets 429 with the time to wait; another key goes on."""
    slow, other = run("create", "slow", "--requests-per-minute", "2"), run("create", "other")
    assert [status(url, slow)[0] for _ in range(3)] == [200, 200, 429]
    with client(url, headers={"authorization": f"Bearer {slow}"}) as http:
        reply = http.post("/v1/feedback", json={"decision_id": "x"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (429, "rate_limited")
    assert 1 <= int(reply.headers["retry-after"]) <= 30
    assert status(url, other) == (200, "")


def test_what_a_key_spends_is_bounded_for_every_kind_of_request(url: str) -> None:
    """Routed, named, streamed and planned requests of a key together cost at most its limit; another key goes on."""
    poor, rich = run("create", "poor", "--usd-per-day", "0.002"), run("create", "rich")
    paid, kinds = 0.0, {"auto": chat(), "named": chat(model="alpha"), "streamed": chat(stream=True)}
    with client(url, headers={"authorization": f"Bearer {poor}"}) as http:
        refused = dict.fromkeys(kinds, False)
        for _ in range(40):
            for kind, body in kinds.items():
                reply = http.post("/v1/chat/completions", json=body)
                if reply.status_code == 200:
                    paid += 29e-6  # 7 tokens at 1 and 11 at 2 USD per million
                    continue
                refused[kind] = True
                assert reply.json()["error"]["code"] == "budget_exhausted", reply.text
                assert "of the key's limit of the day (0.002 USD)" in reply.json()["error"]["message"]
                assert 0 < int(reply.headers["retry-after"]) <= 86_400
        assert all(refused.values())
        assert http.post("/v1/plans", json=chat()).status_code == 402
        assert 0.001 < paid <= 0.002
    assert status(url, rich) == (200, "")


def test_buckets_refill_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket holds a minute's worth, and fills evenly; as many buckets are kept as there can be keys."""
    now = [0.0]
    monkeypatch.setattr(_keys.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(_keys, "_BUCKETS", 3)
    rates, caller = Rates(), Caller("t", False, False, name="k", requests_per_minute=6.0)
    assert [rates.take(caller) for _ in range(6)] == [0.0] * 6
    assert rates.take(caller) == pytest.approx(10.0)
    now[0] += 10.0
    assert rates.take(caller) == 0.0
    assert rates.take(caller) > 0.0
    now[0] += 3600.0
    assert sum(rates.take(caller) == 0.0 for _ in range(20)) == 6
    for n in range(10):
        rates.take(caller._replace(name=f"k{n}"))
    assert len(rates._buckets) == 3
    assert rates.take(Caller("t", False, False, name="free")) == 0.0
    seldom = caller._replace(name="seldom", requests_per_minute=0.5)  # its bucket holds one request
    assert [rates.take(seldom), rates.take(seldom)] == [0.0, pytest.approx(120.0)]
    now[0] += 1e6
    assert [rates.take(seldom) > 0.0 for _ in range(2)] == [False, True]
