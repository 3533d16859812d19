"""A store that cannot be read ends a command with the reason and an exit code, never with an empty answer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.kits.gateway import wait_for
from tests.kits.quiz import install
from tests.kits.unreadable import IDENTITIES, JOURNAL, REASON, STORES, WAREHOUSE, unreadable
from typer.testing import CliRunner, Result

from fitrouter.config import load_config
from fitrouter.router import Router
from fitrouter.types import FeedbackKind, Identity, Request
from fitrouter_integrations import cli
from fitrouter_integrations.demo import _live

FOLDED = {JOURNAL, IDENTITIES}
"""What a router reads that is built from the data folder, whatever it is asked then."""
READS = {
    "personal certificate --user ann --out c.json --rows r.jsonl": {WAREHOUSE, *FOLDED},
    "decisions": FOLDED,
    "doctor": {WAREHOUSE, *FOLDED},
    "explain ID": FOLDED,
    "audits exposure": FOLDED,
    "feedback": FOLDED,
    "personal leaderboard --user ann": {WAREHOUSE, *FOLDED},
    "models": FOLDED,
    "policy show": FOLDED,
    "personal profile show --user ann": {WAREHOUSE, *FOLDED},
    "report --user ann": {WAREHOUSE, *FOLDED},
    "audits satisfaction": {WAREHOUSE, *FOLDED},
    "personal suite generate s.jsonl --user ann": {WAREHOUSE, *FOLDED},
    "users": FOLDED,
    "users show --user ann": {WAREHOUSE, *FOLDED},
}
"""Command → the stores that it reads."""
OTHERS = {
    *("audits role", "personal quiz", "rate", "personal score"),  # ask a router, as those above do, and write
    *("audits log", "config", "personal diagnose", "init", "keys", "top", "personal verify"),  # read other files
    "demo",  # below
    *("bench", "deploy", "journal", "replay", "serve", "train"),  # have tests with damaged files
}  # fmt: skip


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A configuration with one answer and one vote in its log, and the decision's id."""
    file = install(tmp_path_factory.mktemp("unreadable"))

    async def live() -> str:
        async with Router.from_config(load_config(file)) as router:
            ann = Identity(user="ann")
            asked = Request(messages=({"role": "user", "content": "What about 1?"},), identity=ann)
            decision = (await router.complete(asked)).decision.id
            await router.feedback(decision, FeedbackKind.THUMB, 1.0, identity=ann)
            await asyncio.to_thread(
                wait_for, lambda: not (lag := router.status().lag).warehouse_events and not lag.scorer_answers
            )
            return decision

    return file, asyncio.run(live())


@pytest.mark.parametrize("command", READS)
def test_no_command_answers_as_if_there_were_nothing(
    command: str, log: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names what cannot be read and ends with an error, or answers as before."""
    file, decision = log
    monkeypatch.chdir(tmp_path)

    def run() -> Result:
        for written in tmp_path.iterdir():
            written.unlink()
        words = [*command.replace("ID", decision).split(), "--config", str(file)]
        return CliRunner().invoke(cli.app, words)

    before = run()
    assert before.exit_code == 0, before.output or before.exception
    for store in STORES:
        with unreadable(store):
            after = run()
        if store in READS[command]:
            assert after.exit_code == 1, (store, after.output)
            assert REASON in " ".join(after.output.split()) + str(after.exception), store
        else:
            assert (after.exit_code, after.output) == (0, before.output), store


def test_every_command_is_asked() -> None:
    """A new command says in this file which stores it reads."""
    asked = {each for each in cli.MODULES if any(f"{name} ".startswith(f"{each} ") for name in READS)}
    assert cli.MODULES.keys() == OTHERS | asked


@pytest.mark.parametrize("store", STORES)
def test_the_demo_says_what_it_cannot_read(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends with an error that names it, and prints no summary of nothing."""
    monkeypatch.setattr(_live, "_SETTLE_S", 3.0)
    with unreadable(store):
        ran = CliRunner().invoke(cli.app, ["demo", "--exit", "--rounds", "8", "--seeds", "0"])
    assert ran.exit_code == 1
    assert REASON in str(ran.exception)
    assert "share of satisfied people" not in ran.output
