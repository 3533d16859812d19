"""The gateway of commands: one in this process and one at a URL say the same, and refuse the same."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.kits.gateway import serving
from tests.kits.quiz import install
from typer.testing import CliRunner, Result

from fitrouter.config import load_config
from fitrouter.errors import ConfigError, InvalidRequest, UnknownDecision
from fitrouter.router import Router
from fitrouter.stores.journal import SqliteJournal
from fitrouter.types import Identity, Request
from fitrouter_integrations import cli
from fitrouter_integrations._http import NoGateway
from fitrouter_integrations.commands import _gateway
from fitrouter_integrations.commands._gateway import connect

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
