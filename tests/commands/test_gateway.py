"""The gateway of commands: one in this process and one at a URL say the same, and refuse the same."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.kits.gateway import serving, wait_for
from tests.kits.quiz import install
from typer.testing import CliRunner, Result

from fitrouter.config import load_config
from fitrouter.errors import ConfigError, InvalidRequest, UnknownDecision
from fitrouter.router import Router
from fitrouter.stores.erasure import WAREHOUSE
from fitrouter.stores.journal import SqliteJournal
from fitrouter.types import Identity, Request
from fitrouter_integrations import cli
from fitrouter_integrations._http import LISTENS, URL_ENV, NoGateway, url_of
from fitrouter_integrations.commands import _gateway
from fitrouter_integrations.commands._gateway import connect
from fitrouter_integrations.gateway._serve import _noted

READS = (
    "decisions",
    "feedback",
    "users",
    "users show --user ann",
    "models",
    "policy show",
    "personal leaderboard --user ann",
    "audits satisfaction",
    "audits exposure",
    "explain ID --json -",
    "explain --last --now --json -",
)
"""Commands that read, and print JSON with `--json`."""


def run(words: str, *more: object) -> Result:
    return CliRunner().invoke(cli.app, [*words.split(), *map(str, more)])


def json_of(words: str, *more: object) -> object:
    result = run(words, *more, *([] if "--json" in words else ["--json"]))
    assert result.exit_code == 0, (words, result.output, result.exception)
    return json.loads(result.stdout)


def events(file: Path) -> int:
    journal = SqliteJournal(load_config(file).journal_file())
    try:
        return journal.head()
    finally:
        journal.close()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A configuration with one answer in its log, and the decision's id."""
    file = install(tmp_path_factory.mktemp("commands"))

    async def live() -> str:
        async with Router.from_config(load_config(file)) as router:
            asked = Request(messages=({"role": "user", "content": "What about 1?"},), identity=Identity(user="ann"))
            return (await router.complete(asked)).decision.id

    return file, asyncio.run(live())


def test_reading_here_changes_nothing_and_says_what_a_gateway_says(log: tuple[Path, str]) -> None:
    """No event is written by a command that reads; each prints the same JSON over HTTP."""
    file, decision = log
    before = events(file)
    here = {words: json_of(words.replace("ID", decision), "--config", file) for words in READS}
    assert events(file) == before
    settings = load_config(file)
    with serving(Router.from_config(settings), settings) as url:
        there = {words: json_of(words.replace("ID", decision), "--url", url) for words in READS}
    assert there.keys() == here.keys()
    # The start of a router announces its models, and a leaderboard sums in another order.
    for words, found in here.items():
        assert there[words] == found or words.startswith(("policy", "personal")), words


@pytest.mark.parametrize("words", READS)
def test_what_is_wrong_is_told_alike(words: str, log: tuple[Path, str], tmp_path: Path) -> None:
    """No configuration, no data, no gateway, a tenant beside a URL: each its own error, and nothing is made."""
    words = words.replace("ID", log[1])
    bare = tmp_path / "bare.yaml"
    bare.write_text(log[0].read_text().replace("data: d", "data: none"))
    assert isinstance(run(words, "--config", tmp_path / "no.yaml").exception, ConfigError)
    assert isinstance(run(words, "--url", "http://127.0.0.1:9").exception, NoGateway)
    if not words.startswith("models"):
        assert isinstance(run(words, "--config", bare).exception, ConfigError)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["bare.yaml"]


def test_a_tenant_is_the_keys_over_http() -> None:
    """A tenant beside a URL is refused: another would be shown as if it were that one."""
    with pytest.raises(InvalidRequest, match="--tenant"), connect(Path("x"), "http://127.0.0.1:9", tenant="two"):
        pass


def test_an_answer_is_rated_and_its_policy_changed_without_a_gateway(log: tuple[Path, str]) -> None:
    """The vote and the comment are recorded, the change stands, and the audit log names who gave the command."""
    file, decision = log
    assert run("rate", decision[:-1], "up", "--config", file).exit_code == 0
    said = run("feedback comment", decision[:-1], "shorter", "--config", file)
    assert (said.exit_code, "understood: less length" in said.output) == (0, True), said.exception
    kinds = [one["kind"] for one in json_of("feedback", "--config", file)]  # type: ignore[attr-defined]
    assert sorted(kinds) == ["comment", "thumb"]
    assert isinstance(run("rate", "0198aaaa", "up", "--config", file).exception, UnknownDecision)
    assert run("policy set --cost-weight 0.5", "--config", file).exit_code == 0
    assert "policy set" in run("audits log show", "--config", file).output
    assert f"excluded {decision}" in run("journal quarantine", decision[:-1], "--config", file).output
    assert isinstance(run("journal quarantine", "0198aaaa", "--config", file).exception, UnknownDecision)


def options() -> Iterator[tuple[str, Any]]:
    """Each command with its parameters."""
    for words, module in cli.MODULES.items():
        found = importlib.import_module(module)
        single = typer.Typer()
        if hasattr(found, "command"):
            single.command()(found.command)
        if hasattr(found, "app") or hasattr(found, "command"):
            top: Any = typer.main.get_command(getattr(found, "app", single))
            for name, command in {"": top, **getattr(top, "commands", {})}.items():
                yield f"{words} {name}".strip(), command


def test_every_command_finds_the_gateway_in_one_way() -> None:
    """`--url`, else the environment variable, in each command that asks a gateway; no module makes up an address."""
    found = {words: option for words, command in options() for option in command.params if option.name == "url"}
    assert {"top", "users link", "audits role", "policy set", "explain", "models"} <= found.keys()
    assert {words for words, option in found.items() if option.envvar != URL_ENV} == set()
    assert {words for words, option in found.items() if option.callback is None} == set()
    for path in Path(cli.__file__).parent.joinpath("commands").rglob("*.py"):
        text = path.read_text("utf-8").replace("such as http://127.0.0.1:8484", "")
        assert "8484" not in text, path


@pytest.mark.parametrize("words", ["top --once", "users link --user ann", "policy show", "doctor"])
def test_a_gateway_elsewhere_is_found(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the address that it was started with, not at the configured one; a killed gateway's is forgotten."""
    file = install(tmp_path)
    here, settings = file.with_name("here.yaml"), load_config(file)
    here.write_text(file.read_text().replace("port: 0", "port: 1"))
    with serving(Router.from_config(settings), settings) as url:
        bound = socket.create_server(("127.0.0.1", 0))
        with bound, _noted(settings, bound):
            assert url_of(load_config(here)) == f"http://127.0.0.1:{bound.getsockname()[1]}"
        assert url_of(load_config(here)) == "http://127.0.0.1:1"
        note = settings.data / LISTENS
        note.write_text(f"{os.getpid()} {url}")
        wait_for((settings.data / WAREHOUSE).exists)  # `top` reads figures
        result = run(words, "--config", here)
        assert not result.exception or isinstance(result.exception, SystemExit), result.exception
        assert url in result.output
        if words != "doctor":  # which asks after the installation of its configuration
            note.unlink()
            monkeypatch.setenv(URL_ENV, url)
            monkeypatch.chdir(tmp_path)
            assert url in run(words).output
            monkeypatch.setenv(URL_ENV, "fitrouter.yaml")
            assert url not in run(words).output
            monkeypatch.setenv(URL_ENV, url)
            assert url not in run(words, "--config", here).output
        monkeypatch.setattr(os, "kill", lambda *_: (_ for _ in ()).throw(ProcessLookupError))
        note.write_text(f"1 {url}")
        assert url_of(load_config(here)) == "http://127.0.0.1:1"


def test_a_vote_goes_to_the_gateway_of_its_own_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another installation's gateway at the configured address gets nothing, which is said; the own one gets it."""
    files = {}
    for name in ("own", "other"):
        (tmp_path / name).mkdir()
        files[name] = install(tmp_path / name)

    async def live() -> str:
        async with Router.from_config(load_config(files["own"])) as router:
            asked = Request(messages=({"role": "user", "content": "What about 1?"},), identity=Identity(user="ann"))
            return (await router.complete(asked)).decision.id

    decision = asyncio.run(live())
    for served in files:
        settings = load_config(files[served])
        with serving(Router.from_config(settings), settings) as url:
            here = tmp_path / "own" / "here.yaml"
            here.write_text(files["own"].read_text().replace("port: 0", f"port: {url.rpartition(':')[2]}"))
            monkeypatch.setattr(_gateway, "is_open", lambda _: True)
            before = {name: events(file) for name, file in files.items()}
            with connect(here, running=True) as found:
                assert found.running is (served == "own")
            rated = run("rate", decision, "up", "--config", here)
            assert rated.exit_code == 0, rated.exception
            assert ("is of another installation than" in rated.stderr) is (served == "other")
            gained = {name: events(file) - before[name] for name, file in files.items()}
            assert gained["own"] >= 1
            assert gained["other"] == 0
