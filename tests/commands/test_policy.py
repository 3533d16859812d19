"""`fitrouter policy` with a gateway, without one, and with errors."""

from __future__ import annotations

import asyncio
import inspect
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.kits.gateway import config, make_router, serving
from typer.testing import CliRunner, Result

from fitrouter.config import load_config
from fitrouter.errors import ConfigError, FitrouterError, InvalidRequest, NotAuthorized
from fitrouter.router import Router
from fitrouter.routing.decider import Rules
from fitrouter.serving.policy_control import Personalisation
from fitrouter.state.settings import SETTINGS
from fitrouter.stores.journal import SqliteJournal
from fitrouter.types import PolicyChange
from fitrouter_integrations import cli
from fitrouter_integrations._http import KEY_ENV, NoGateway
from fitrouter_integrations.commands import _gateway
from fitrouter_integrations.commands.running import policy as _policy

CONFIG = """\
data: d
providers: {s: {kind: simulated}}
models: [{name: a, provider: s}, {name: b, provider: s}]
default_model: a
encoder: hashing
scorer: {encoder: none}
server: {port: 9}
policy:
  candidates: {bold: {algorithm: squarecb, gamma: 9}}
"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, ["policy", *(str(argument) for argument in arguments)])


def standing(*arguments: object) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output or result.exception
    found: dict[str, Any] = json.loads(result.output)
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A configuration whose gateway ran once and is down."""
    path = tmp_path / "fitrouter.yaml"
    path.write_text(CONFIG)
    (tmp_path / "d").mkdir()
    SqliteJournal(tmp_path / "d" / "journal.db").close()
    return path


def changes(file: Path) -> list[PolicyChange]:
    journal = SqliteJournal(file.parent / "d" / "journal.db")
    try:
        return [row.event for row in journal.tail(0) if isinstance(row.event, PolicyChange)]
    finally:
        journal.close()


def test_without_a_gateway_changes_go_to_the_journal(file: Path) -> None:
    """Set, promote and restore are events in the journal, which the next command and the next start see."""
    c = ("--config", file)
    first = standing("show", *c)
    assert first["versions"] == ["configuration"]
    assert first["outlook"]["evidence_against_propensities"] <= 1.0
    assert changes(file) == []
    set_ = standing("set", "--cost-weight", 0.3, "--latency-weight", "0.1", "--share", ".05", *c)
    assert set_["settings"] == {"cost_weight": 0.3, "latency_weight": 0.1, "share": 0.05}
    assert standing("promote", "bold", *c)["live"] == "bold"
    assert standing("show", *c)["settings"]["gamma"] == 9.0
    back = standing("restore", *c)
    assert back["settings"] == set_["settings"]
    assert back["live"] == set_["live"]
    assert [change.action for change in changes(file)] == ["set", "promote", "restore"]
    assert standing("restore", *c)["settings"] == {}
    assert standing("set", "--force", "b", *c)["settings"] == {"force": "b"}
    assert standing("set", "--force", "", *c)["settings"] == {"force": ""}
    shown = run("show", *c)
    assert "no gateway answers" in shown.output
    assert "candidate bold" in shown.output
    assert "checksum of all settings" in shown.output


def test_the_next_start_applies_the_changes(file: Path) -> None:
    """Changes made while nothing ran apply when the router starts; a changed configuration overrides them."""

    async def cost_weight() -> float:
        async with Router.from_config(load_config(file)) as router:
            return router._decider.live()[1].cost_weight

    standing("set", "--cost-weight", "0.3", "--config", file)
    assert asyncio.run(cost_weight()) == 0.3
    file.write_text(CONFIG + "share: 0.5\n")
    changed = standing("set", "--latency-weight", "0.2", "--config", file)
    assert changed["settings"] == {"latency_weight": 0.2}
    assert [change.action for change in changes(file)] == ["set", "config", "set"]
    assert asyncio.run(cost_weight()) == 0.0


def test_a_running_gateway_is_changed(tmp_path: Path) -> None:
    """The change is active when the command returns, and the output is the active policy."""
    router = make_router(tmp_path, rules=Rules(registry="r1", default_arm="alpha", config_hash="h"))
    router._decider.candidates["bold"] = {"gamma": 9.0}
    with serving(router) as url:
        assert standing("set", "--share", "0.25", "--no-personal", "--url", url)["settings"] == {
            "share": 0.25,
            "personal": False,
        }
        assert router._decider.live()[1].share == 0.25
        assert standing("promote", "bold", "--url", url)["versions"][-1] == "bold"
        assert standing("restore", "--url", f"{url}/v1")["settings"]["share"] == 0.25
        assert url in run("show", "--url", url).output


def test_a_budget_is_changed_and_taken_back(file: Path, tmp_path: Path) -> None:
    """In the journal where no gateway answers, and in a running one; `restore` leaves it as it is."""
    c = ("--config", file)
    assert standing("budget", "acme", "2.5", *c)["budgets"] == {"acme": 2.5}
    assert "budget of acme" in run("show", *c).output
    assert changes(file)[-1].settings == {"tenant": "acme", "usd_per_period": 2.5}
    assert isinstance(run("restore", *c).exception, InvalidRequest)
    assert standing("budget", "acme", *c)["budgets"] == {}
    assert "usd_per_period" in str(run("budget", "acme", "0", *c).exception)
    standing("budget", "acme", "3", *c)
    file.write_text(CONFIG + "share: 0.5\n")
    assert standing("budget", "b", "1", *c)["budgets"] == {"b": 1.0}, "a changed configuration drops it"
    router = make_router(tmp_path)
    with serving(router) as url:
        assert standing("budget", "acme", "2.5", "--url", url)["budgets"] == {"acme": 2.5}
        assert router.policy.budget("acme").usd_per_period == 2.5
        assert standing("budget", "acme", "--url", url)["budgets"] == {}


def test_monitors_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gain of personalisation by role, in words that its interval bears out; biased scores; draws and the log."""
    helps = Personalisation(labels=90, gain=0.02, low=0.01, high=0.03, verdict="helps", off=False)
    harms = Personalisation(labels=40, gain=-0.05, low=-0.1, high=-0.01, verdict="harms", off=True)
    reply: dict[str, Any] = {
        "live": "configuration",
        "algorithm": "squarecb",
        "settings": {},
        "versions": ["configuration"],
        "candidates": {},
        "config_hash": "h",
        "outlook": {
            "personalisation": msgspec.to_builtins({"": helps, "tax analyst": harms}),
            "flattered": {"alpha": "the reward model overrates model alpha by 0.12 ± 0.03"},
            "evidence_against_propensities": 0.5,
        },
    }
    monkeypatch.setattr(_gateway, "call", lambda *_, **__: reply)
    shown = " ".join(run("show", "--url", "http://127.0.0.1:1").output.split())
    for words in (
        "helps: +0.0200 per label (+0.0100 … +0.0300, 90 ratings)",
        "personal terms as tax analyst harms: -0.0500",
        "switched off",
        "overrates model alpha by 0.12 ± 0.03",
        "match their logged probabilities",
    ):
        assert words in shown
    unsure = Personalisation(labels=40, gain=0.02, low=-0.1, high=0.2, verdict="helps", off=False)
    reply["outlook"]["personalisation"] = msgspec.to_builtins({"": unsure})
    shown = " ".join(run("show", "--url", "http://127.0.0.1:1").output.split())
    assert "not known: +0.0200 per label (-0.1000 … +0.2000, 40 ratings); its terms predict ratings better" in shown
    reply["outlook"] = reply["outlook"] | {"evidence_against_propensities": 2000.0}
    assert "do not match their logged probabilities" in " ".join(
        run("show", "--url", "http://127.0.0.1:1").output.split()
    )
    del reply["outlook"]
    assert standing("show", "--url", "http://127.0.0.1:1")["live"] == "configuration"


def test_errors_change_nothing(file: Path, tmp_path: Path) -> None:
    """The message has the value and what is allowed; nothing is written."""
    c = ("--config", file)
    cases: tuple[tuple[tuple[object, ...], type[FitrouterError], str], ...] = (
        (("promote", "bald", *c), InvalidRequest, "'bold'"),
        (("set", *c), InvalidRequest, "--cost-weight"),
        (("set", "--share", "1.5", *c), InvalidRequest, "at most 1"),
        (("set", "--cost-weight=-1", *c), InvalidRequest, "at least 0"),
        (("set", "--algorithm", "linuxcb", *c), InvalidRequest, "linuxcb"),
        (("set", "--force", "c", *c), InvalidRequest, "models are a, b"),
        (("restore", *c), InvalidRequest, "no previous version"),
        (("show", "--url", "http://127.0.0.1:9"), NoGateway, "fitrouter serve"),
        (("show", "--config", tmp_path / "x.yaml"), ConfigError, "x.yaml"),
    )
    for arguments, kind, words in cases:
        error = run(*arguments).exception
        assert isinstance(error, kind), (arguments, error)
        assert words in str(error)
    assert changes(file) == []
    (tmp_path / "d" / "journal.db").unlink()
    assert isinstance(run("show", *c).exception, ConfigError)


def test_only_admin_keys_change_the_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other keys may read the policy; a change is refused with the reason."""
    monkeypatch.setenv("TEAM", "t" * 20)
    monkeypatch.setenv("ADMIN", "a" * 20)
    keys = [{"name": "team", "key_env": "TEAM"}, {"name": "admin", "key_env": "ADMIN", "admin": True}]
    with serving(make_router(tmp_path), config(keys=keys)) as url:
        monkeypatch.setenv(KEY_ENV, "t" * 20)
        assert standing("show", "--url", url)["settings"] == {}
        refused = run("set", "--cost-weight", "1", "--url", url).exception
        assert isinstance(refused, NotAuthorized)
        assert "admin" in str(refused)
        monkeypatch.setenv(KEY_ENV, "a" * 20)
        assert standing("set", "--cost-weight", "1", "--url", url)["settings"] == {"cost_weight": 1.0}


def test_every_setting_has_an_option() -> None:
    """Every run-time setting has a command line option."""
    assert set(inspect.signature(_policy.set_).parameters) - {"config", "url", "as_json"} == set(SETTINGS)
    assert set(SETTINGS) >= {"cost_weight", "latency_weight", "share"}
