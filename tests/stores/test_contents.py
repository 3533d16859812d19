"""Contents: kept only if the configuration says so, for so long, under the user's key; gone with the user."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.stores.test_erasure import SECRETS, ZOE, found, lived
from tests.stores.test_journal import decision, done
from typer.testing import CliRunner

from fitrouter.config import load_config
from fitrouter.router import Router
from fitrouter.stores.audit_log import AuditLog
from fitrouter.stores.content import pack_content
from fitrouter.stores.contents import FILE, ContentStore
from fitrouter.stores.identities import Identities, SqliteIdentities
from fitrouter.stores.journal import SqliteJournal
from fitrouter.types import Decision, FeedbackKind, Identity, Request
from fitrouter_integrations.cli import app

CONFIG = """
data: data
content: {content}
providers: {{s: {{kind: simulated, options: {{a: {{}}, speed: .inf}}}}}}
models: [{{name: a, provider: s}}]
encoder: hashing
scorer: {{encoder: hashing}}
"""
ASKED = f"{ZOE.user} asks of {SECRETS[1]}?"


def settings(folder: Path, content: str, scorer: str = "") -> Path:
    file = folder / "fitrouter.yaml"
    file.write_text(CONFIG.format(content=content) + scorer)
    return file


async def live(file: Path, people: list[Identity]) -> None:
    async with Router.from_config(load_config(file)) as router:
        await lived(router, people)


def opened(folder: Path, **options: Any) -> tuple[SqliteJournal, Identities, ContentStore]:
    journal, identities = SqliteJournal(folder / "journal.db"), SqliteIdentities(folder / "identities.db")
    return journal, identities, ContentStore(folder, journal, identities, **options)


@pytest.mark.parametrize("content", ["none", "encrypted", "plain"])
def test_kept_as_configured_and_gone_with_the_user(tmp_path: Path, content: str) -> None:
    """By default there is no file; encrypted, no byte of the text; plain, the text. After an erasure nothing at all."""
    file, data = settings(tmp_path, content), tmp_path / "data"
    bob = Identity(user="bob", role="analyst")
    asyncio.run(live(file, [bob, ZOE, bob]))
    text = ("the ferret's dowry?",)
    in_file = {name for name, _ in found(data, text)} & {FILE}
    assert in_file == ({FILE} if content == "plain" else set())
    assert (data / FILE).exists() is (content != "none")
    run = CliRunner().invoke
    shown = run(app, ["decisions", "--content", "--json", "--config", str(file)])
    assert shown.exit_code == 0, shown.output
    asked = [one["content"] and one["content"]["prompt"] for one in json.loads(shown.stdout)]
    assert asked == (
        [None] * 3 if content == "none" else [f"bob asks of {SECRETS[1]}?", ASKED, f"bob asks of {SECRETS[1]}?"]
    )
    assert [act.act for act in AuditLog(data).acts()] == ["content read"]
    words = run(app, ["decisions", "--content", "--config", str(file)]).stdout
    assert words.count("asked: bob asks of") == 2 * (content != "none")
    assert words.count("content: not kept") == 3 * (content == "none")
    out = tmp_path / "zoe.json"
    assert run(app, ["users", "export", "--user", SECRETS[0], str(out), "--config", str(file)]).exit_code == 0
    exported = [one["content"] for one in json.loads(out.read_text())["contents"]]
    assert [each["prompt"] for each in exported] == ([] if content == "none" else [ASKED, ""])
    assert [each["message"]["role"] for each in exported] == ([] if content == "none" else ["assistant", "user"]), (
        "said"
    )
    assert run(app, ["users", "erase", "--user", SECRETS[0], "--yes", "--config", str(file)]).exit_code == 0
    assert found(data, (SECRETS[0],)) == []
    assert found(data, text) == ([(FILE, text[0])] if content == "plain" else []), "bob's"
    journal, identities, store = opened(data)
    kept = [one.content.prompt for row in journal.tail(0, 1000) for one in store.of([row.event.id])]
    assert kept == ([] if content == "none" else [f"bob asks of {SECRETS[1]}?"] * 2)
    journal.close()
    identities.close()


def test_without_a_scorer(tmp_path: Path) -> None:
    """Contents are kept although no scorer runs, and then nothing waits in the spool."""
    file = settings(tmp_path, "encrypted")
    file.write_text(file.read_text().replace("scorer: {encoder: hashing}", "scorer: {encoder: none}"))
    asyncio.run(live_without_words(file))
    journal, identities, store = opened(tmp_path / "data")
    assert journal.spooled() == []
    decisions = [row.event.id for row in journal.tail(0, 1000)]
    assert [one.content.prompt for one in store.of(decisions)] == ["Hello"]
    journal.close()
    identities.close()


async def live_without_words(file: Path) -> None:
    async with Router.from_config(load_config(file)) as router:
        answer = await router.complete(Request(messages=({"role": "user", "content": "Hello"},), identity=ZOE))
        await router.settled()
        await router.feedback(answer.decision.id, FeedbackKind.THUMB, 1.0, identity=ZOE)


def test_an_answer_that_comes_after_the_erasure_is_not_kept(tmp_path: Path) -> None:
    """Its decision is gone, in whatever way the content would have been kept; its key is gone, too."""
    file, data = settings(tmp_path, "encrypted"), tmp_path / "data"
    asyncio.run(live(file, [ZOE]))
    journal, identities, plain = opened(data, encrypted=False)
    (subject,) = identities.subjects("default", SECRETS[0])
    (name,) = [row.event.id for row in journal.of(subject) if isinstance(row.event, Decision)]
    text = pack_content("late", {"role": "assistant", "content": "answer"})
    plain.keep(name, subject, "default", text)
    assert [one.content.prompt for one in plain.of([name])] == ["late"]
    assert (
        CliRunner().invoke(app, ["users", "erase", "--user", SECRETS[0], "--yes", "--config", str(file)]).exit_code == 0
    )
    plain.keep(name, subject, "default", text)
    assert plain.of([name]) == []
    assert found(data, (subject,)) == []
    journal.close()
    identities.close()


def test_contents_expire(tmp_path: Path) -> None:
    """After `content_days` nothing of them is in the file."""
    clock = [1e9]
    file, data = settings(tmp_path, "none"), tmp_path / "data"
    asyncio.run(live(file, [ZOE]))
    journal, identities, store = opened(data, encrypted=False, days=2.0, clock=lambda: clock[0])
    decisions = [row.event.id for row in journal.tail(0, 1000) if isinstance(row.event, Decision)]
    store.keep(decisions[0], None, "default", pack_content("old words", {"role": "assistant", "content": "x"}))
    store.expire()
    assert found(data, ("old words",)) == [(FILE, "old words")]
    clock[0] += 2 * 86_400 + 1
    store.expire()
    assert store.of(decisions) == []
    assert found(data, ("old words",)) == []
    journal.close()
    identities.close()


def test_a_broken_file_costs_no_answer(tmp_path: Path) -> None:
    """Answers come and are scored, while the file of contents cannot be opened."""
    file, data = settings(tmp_path, "encrypted"), tmp_path / "data"
    (data / FILE).mkdir(parents=True)
    asyncio.run(live(file, [ZOE]))
    journal = SqliteJournal(data / "journal.db")
    assert {type(row.event).__name__ for row in journal.tail(0, 1000)} >= {"Execution", "Score"}
    journal.close()


def test_contents_of_nobody_known_go(tmp_path: Path) -> None:
    """A user whose row was never written cannot ask for an erasure: what is kept of them goes after an hour."""
    journal, identities, store = opened(tmp_path, encrypted=False, clock=lambda: now)
    now = 1000.0
    ann = identities.mint("default", "ann")
    identities.flush()
    for n, subject in enumerate((ann, "never-written", None)):
        done(journal.append(decision(n, user=subject)))
        store.keep(f"decision-{n}", subject, "default", pack_content("question", {"content": "answer"}))
    names = [f"decision-{n}" for n in range(3)]
    assert store.expire() == 0
    assert [one.decision_id for one in store.of(names)] == names
    now += 3601.0
    assert store.expire() == 0
    assert [one.decision_id for one in store.of(names)] == ["decision-0", "decision-2"]
    journal.close()
    identities.close()
