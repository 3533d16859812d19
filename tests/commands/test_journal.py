"""`fitrouter journal`: what is checked, salvaged and excluded, as its exit code and output say."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from tests.stores.test_journal import decision, done, execution
from typer.testing import CliRunner, Result

from fitrouter.config import load_config
from fitrouter.errors import ConfigError, StoreError, UnknownDecision
from fitrouter.router import Router
from fitrouter.stores.journal import SqliteJournal
from fitrouter.types import FeedbackKind, Identity, Request
from fitrouter_integrations import cli


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, ["journal", *arguments])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A journal of forty events."""
    journal = SqliteJournal(tmp_path / "j.db")
    done(journal.append(*(make(n) for n in range(20) for make in (decision, execution))))
    journal.close()
    return tmp_path / "j.db"


def test_check_and_salvage(file: Path, tmp_path: Path) -> None:
    """A sound journal exits with 0; a damaged one with 1 and what is damaged, and what is sound can be copied."""
    assert "40 sound events" in run("check", "--file", str(file)).output
    data = bytearray(file.read_bytes())
    data[data.index(b"squarecb", data.index(b"decision-3"))] ^= 1
    file.write_bytes(data)
    run("check", "--file", str(file))
    found = run("check", "--file", str(file))
    assert found.exit_code == 1
    (seq,) = re.findall(r"damaged: event (\d+): its checksum differs", found.output)
    made = run("salvage", str(tmp_path / "new.db"), "--file", str(file))
    assert f"39 sound events were salvaged; lost or erased are the events {seq}\n" in made.output
    assert run("check", "--file", str(tmp_path / "new.db")).exit_code == 0
    assert isinstance(run("salvage", str(file), "--file", str(file)).exception, ConfigError)
    assert isinstance(run("check", "--file", str(tmp_path / "none.db")).exception, ConfigError)


def test_a_journal_in_use_is_checked_and_not_salvaged(file: Path, tmp_path: Path) -> None:
    """Reading beside a gateway is harmless; pages that change meanwhile could not be salvaged."""
    journal = SqliteJournal(file)
    done(journal.append(decision(100)))
    assert "41 sound events" in run("check", "--file", str(file)).output
    assert isinstance(run("salvage", str(tmp_path / "new.db"), "--file", str(file)).exception, StoreError)
    done(journal.append(decision(101)))
    assert journal.head() == 42
    journal.close()


async def test_quarantine_reaches_a_running_router(tmp_path: Path) -> None:
    """The vote stays in the journal, and its effect is gone from what a running router has learnt."""
    file = tmp_path / "fitrouter.yaml"
    file.write_text(
        "data: d\nscorer: {encoder: none}\nproviders: {s: {kind: simulated, options: {m: {}}}}\n"
        "models: [{name: m, provider: s}]\n"
    )
    request = Request(messages=({"role": "user", "content": "Hello"},), identity=Identity(user="ann"))
    async with Router.from_config(load_config(file)) as router:
        answer = await router.complete(request)
        vote = await router.feedback(answer.decision.id, FeedbackKind.THUMB, 1.0)
        await router.settled()
        assert router.status().labels == 1
        made = await asyncio.to_thread(run, "quarantine", vote, "--config", str(file))
        assert made.exit_code == 0, made.output
        async with asyncio.timeout(300.0):
            await router.settled()
        assert router.status().labels == 0
        assert vote in [event.id for event in await router.events(answer.decision.id)]
        unknown = await asyncio.to_thread(run, "quarantine", "nothing", "--config", str(file))
        assert isinstance(unknown.exception, UnknownDecision)
