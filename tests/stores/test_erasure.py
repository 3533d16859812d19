"""Erasure of a user from a whole data folder: no byte is left, and all else is as if they had never been there."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.kits import virtual_time
from tests.kits.gateway import Echo, make_router, wait_for
from tests.kits.learner import D_H, D_X, SCHEMA, Log, learner

from fitrouter.config import Config, parse_config
from fitrouter.context.features import context_names
from fitrouter.errors import StoreError
from fitrouter.router import Router
from fitrouter.state.budgets import BudgetParams
from fitrouter.state.follower import catch_up
from fitrouter.state.projections import ProjectionParams
from fitrouter.state.tenants import TenantLearner
from fitrouter.stores import erasure
from fitrouter.stores.erasure import Eraser
from fitrouter.stores.identities import Identities, SqliteIdentities
from fitrouter.stores.journal import Entry, Journal, MemoryJournal, Snapshot, SqliteJournal, digest_of, salvage
from fitrouter.stores.journal._record import record
from fitrouter.stores.warehouse import Warehouse, WarehouseFeed
from fitrouter.types import Decision, Erasure, Execution, FeedbackKind, Identity, Payer, Refit, Request
from fitrouter_evaluators.personal.quizzes import FILE as QUIZZES

ROOT = Path(__file__).resolve().parents[2]
SECRETS = (
    "zoe-quill@example.org",
    "the ferret's dowry",
    "less jargon about ferrets",
    "more about topiary",
    "nib-setter",
)
"""Name, prompt, comment, declared statement and role of the person who is erased."""
ZOE = Identity(user=SECRETS[0], role=SECRETS[4], session="zoe's own session")


def settings(folder: Path) -> Config:
    """Two simulated models, a small scorer, and the warehouse."""
    return parse_config(
        {
            "data": str(folder),
            "providers": {"s": {"kind": "simulated", "options": {"a": {}, "b": {}, "speed": float("inf")}}},
            "models": [{"name": name, "provider": "s"} for name in "ab"],
            "encoder": "hashing",
            "scorer": {"encoder": "hashing"},
        }
    )


async def lived(router: Router, people: list[Identity]) -> None:
    """Each person asks, rates, comments and declares."""
    for who in people:
        ask = Request(messages=({"role": "user", "content": f"{who.user} asks of {SECRETS[1]}?"},), identity=who)
        answer = await router.complete(ask)
        await router.settled()
        await router.feedback(answer.decision.id, FeedbackKind.THUMB, 1.0, identity=who)
        await router.comment(answer.decision.id, SECRETS[2], identity=who)
        await router.declare(who, {"length": -1.0}, [SECRETS[3]])
    await router.settled()


def found(folder: Path, needles: tuple[str, ...]) -> list[tuple[str, str]]:
    """(file, text) of every text that a file of the folder holds, in UTF-8 or UTF-16."""
    return [
        (path.name, needle)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        for needle in needles
        for encoded in (needle.encode(), needle.encode("utf-16-le"))
        if encoded in path.read_bytes()
    ]


def tokens(folder: Path, user: str = SECRETS[0], tenant: str = "default") -> tuple[str, ...]:
    identities = SqliteIdentities(folder / "identities.db")
    try:
        return identities.subjects(tenant, user)
    finally:
        identities.close()


def filled(folder: Path) -> tuple[str, ...]:
    """A data folder in which Zoe and others lived, with a damaged copy, a quiz and a filled warehouse; her tokens."""
    others = [Identity(user=f"user {n}", role="analyst") for n in range(4)]

    async def live() -> None:
        async with Router.from_config(settings(folder)) as router:
            await lived(router, [*others, ZOE, *others, ZOE])

    asyncio.run(live())
    (subject,) = tokens(folder)
    journal = SqliteJournal(folder / "journal.db")
    feed = WarehouseFeed(journal, Warehouse(folder / "fitrouter.duckdb"))
    while feed.step():
        pass
    journal.close()
    (folder / "identities.db.corrupt-7").write_bytes((folder / "identities.db.copy").read_bytes())
    with sqlite3.connect(folder / QUIZZES) as quizzes:
        quizzes.execute("CREATE TABLE quizzes (id TEXT, tenant TEXT, user TEXT, body BLOB)")
        quizzes.executemany(
            "INSERT INTO quizzes VALUES (?, 'default', ?, ?)", [("q", subject, b"x"), ("r", "eve", b"y")]
        )
    quizzes.close()
    return (subject,)


def opened(folder: Path) -> tuple[SqliteJournal, Identities, Eraser]:
    journal, identities = SqliteJournal(folder / "journal.db"), SqliteIdentities(folder / "identities.db")
    return (
        journal,
        identities,
        Eraser(journal, identities, WarehouseFeed(journal, Warehouse(folder / "fitrouter.duckdb")), folder),
    )


def test_no_byte_is_left_in_the_folder(tmp_path: Path) -> None:
    """Name, token, role, prompt, comment and statement are in no file; others' rows are all there."""
    named = (*filled(tmp_path), *SECRETS)
    before = found(tmp_path, named)
    assert {name for name, text in before if text == named[0]} >= {
        "journal.db",
        "identities.db",
        "fitrouter.duckdb",
        QUIZZES,
    }
    journal, identities, eraser = opened(tmp_path)
    warehouse = Warehouse(tmp_path / "fitrouter.duckdb")
    others = 'SELECT seq FROM {} WHERE "user" <> ? OR "user" IS NULL ORDER BY seq'
    tables = ("decisions", "executions", "scores", "feedback", "profiles", "models", "remarks", "ope_runs")
    kept = {
        table: warehouse.query(others.format(table), named[:1])
        for table in tables
        if table not in {"models", "ope_runs"}
    }
    models = warehouse.query("SELECT * FROM models ORDER BY seq, arm")
    rows = [
        row.seq
        for row in journal.tail(0, 10**4)
        if getattr(getattr(row.event, "identity", None), "user", "") != named[0]
    ]
    done = eraser.erase("default", SECRETS[0])
    assert (done.subjects, done.unfinished) == (1, "")
    assert done.events >= 8
    assert found(tmp_path, named) == []
    assert not list(tmp_path.glob("*.corrupt-*"))
    left = list(journal.tail(0, 10**4))
    assert [row.seq for row in left][:-1] == rows
    assert isinstance(left[-1].event, Erasure)
    assert {table: warehouse.query(others.format(table), ("",)) for table in kept} == kept
    assert warehouse.query("SELECT * FROM models ORDER BY seq, arm") == models
    assert journal.unfinished() == {}
    assert eraser.erase("default", SECRETS[0]) == erasure.Erased(subjects=0, events=0)
    identities.close()
    journal.close()


def test_what_others_are_doing_is_waited_for_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process that completes erasures or writes the warehouse delays one; the answer says what is left."""
    named = (*filled(tmp_path), *SECRETS)
    journal, identities, eraser = opened(tmp_path)
    other = SqliteJournal(tmp_path / "journal.db")
    lease = other.lease("erasure")
    assert lease.held()
    done = eraser.erase("default", SECRETS[0], patience_s=0.0)
    assert done.unfinished == "another process is still completing the erasure"
    lease.release()
    with monkeypatch.context() as patched:
        patched.setattr(eraser._feed, "step", lambda: 0)
        with pytest.raises(StoreError, match="still holds rows of the user"):
            eraser.finish(0.0)
    eraser.finish()
    assert found(tmp_path, named) == []
    for each in (identities, journal, other):
        each.close()


def test_without_duckdb_the_warehouse_of_an_erased_user_is_deleted(tmp_path: Path) -> None:
    """It cannot be rewritten, and is made anew from the journal."""
    named = (*filled(tmp_path), *SECRETS)
    journal, identities, _ = opened(tmp_path)
    done = Eraser(journal, identities, None, tmp_path).erase("default", SECRETS[0])
    assert done.unfinished == ""
    assert not (tmp_path / "fitrouter.duckdb").exists()
    assert found(tmp_path, named) == []
    identities.close()
    journal.close()


def test_in_a_running_router(tmp_path: Path) -> None:
    """While it serves, beside a second process's stores: requests go on, and after its end no file has a byte."""
    named = (*filled(tmp_path), *SECRETS)
    other = opened(tmp_path)

    async def scenario() -> None:
        async with Router.from_config(settings(tmp_path)) as router:
            asking = asyncio.create_task(lived(router, [Identity(user="user 1")] * 3))
            done = await router.erase("default", SECRETS[0])
            assert done.events
            await asking
            await asyncio.to_thread(router._eraser.finish)
            assert found(tmp_path, named) == []
            await router.settled()
            ask = Request(messages=({"role": "user", "content": "Again"},), identity=ZOE)
            again = (await router.decide(ask)).decision.identity.user
            assert again not in {None, named[0]}

    asyncio.run(scenario())
    for part in other[:2]:
        part.close()  # type: ignore[attr-defined]
    assert found(tmp_path, (named[0], *SECRETS[1:4])) == []


def test_what_was_in_progress_is_not_logged(tmp_path: Path) -> None:
    """Events of an erased token are dropped, also those that another process appends, and so are old snapshots."""
    log = Log(SqliteJournal(tmp_path / "journal.db"), np.random.default_rng(0))  # type: ignore[arg-type]
    other = SqliteJournal(tmp_path / "journal.db")
    name = log.answer("ann", "a")
    late = log.journal.of(name)[1].event
    other.save(Snapshot(2, {"v/user:ann": b"x"}))
    assert log.journal.erase(["ann"], "default", 1.0) == 2
    other.save(Snapshot(2, {"v/user:ann": b"x"}))
    assert other.snapshot() == Snapshot(0, {})
    for journal in (other, log.journal):
        assert journal.append(Entry(msgspec.structs.replace(late, id="late"), b"text")).result() == journal.head()
        assert journal.of("ann") == []
        assert journal.spooled() == []
    other.save(Snapshot(other.head(), {"v/a": b"x", "v/b": b""}))
    assert other.snapshot() == Snapshot(other.head(), {"v/a": b"x"})
    for journal in (other, log.journal):
        journal.close()


def test_salvage_restores_no_erased_user(tmp_path: Path) -> None:
    """Pages of a file that was not rewritten may still hold their events; the new journal refuses them, too."""
    log = Log(SqliteJournal(tmp_path / "journal.db"), np.random.default_rng(0))  # type: ignore[arg-type]
    names = [log.answer(user, "a") for user in ("ann", "bob")]
    theirs = [row.event for row in log.journal.of("ann")]
    log.journal.erase(["ann"], "default", 1.0)
    log.journal.close()
    with sqlite3.connect(tmp_path / "journal.db") as connection:  # as damage would have brought them back
        for seq, event in enumerate(theirs, 50):
            item = record(Entry(event))
            connection.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (seq, *item[:7]))
    connection.close()
    assert salvage(tmp_path / "journal.db", tmp_path / "new.db", 2.0).kept == 3
    journal = SqliteJournal(tmp_path / "new.db")
    assert (journal.of(names[0]), len(journal.of(names[1]))) == ([], 2)
    assert journal.append(Entry(theirs[0])).result() == journal.head()
    assert list(journal.unfinished()) == [digest_of("ann")]
    journal.close()


# --- crashes --------------------------------------------------------------------------------------------------------

_CHILD = """
import os, signal, sys
from pathlib import Path
from tests.stores.test_erasure import SECRETS, opened
from fitrouter.stores import erasure
from fitrouter.stores.identities import SqliteRows, _lines
from fitrouter.stores.journal import SqliteJournal
from fitrouter.stores.warehouse import Warehouse

step = sys.argv[2]
def die(*_args, **_named): os.kill(os.getpid(), signal.SIGKILL)
owner = {"erase": SqliteJournal, "compact": SqliteJournal, "finish": SqliteJournal, "_rewritten": SqliteRows,
         "_copy_without": Warehouse, "_named": erasure.Eraser, "_warehouse": erasure.Eraser,
         "rewrite": _lines}[step.removesuffix("+")]
name = step.removesuffix("+")
real = getattr(owner, name)
def after(*args, **named):
    real(*args, **named)
    die()
setattr(owner, name, after if step.endswith("+") else die)
opened(Path(sys.argv[1]))[2].erase("default", SECRETS[0])
"""


@pytest.mark.parametrize(
    "step",
    ["erase+", "rewrite", "_rewritten", "_named", "_warehouse", "_copy_without", "_copy_without+", "compact", "finish"],
)
def test_kill_9_in_the_middle_is_completed_at_the_next_start(tmp_path: Path, step: str) -> None:
    """Wherever the process dies after the first transaction, the next router finishes, and no byte is left."""
    named = (*filled(tmp_path), *SECRETS)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    child = subprocess.run(
        [sys.executable, "-c", _CHILD, str(tmp_path), step], env=environment, check=False, timeout=300
    )
    assert child.returncode == -signal.SIGKILL

    async def start() -> None:
        async with Router.from_config(settings(tmp_path)) as router:
            await asyncio.to_thread(wait_for, lambda: not router._journal.unfinished())

    asyncio.run(start())
    assert found(tmp_path, named) == []


def test_a_running_process_completes_what_another_left(tmp_path: Path) -> None:
    """The open identities still hold bytes of rows that a dead process deleted, until they are rewritten."""
    named = (*filled(tmp_path), *SECRETS)
    journal, identities, eraser = opened(tmp_path)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    child = [sys.executable, "-c", _CHILD, str(tmp_path), "_rewritten"]
    assert subprocess.run(child, env=environment, check=False, timeout=300).returncode == -signal.SIGKILL
    assert "identities.db" in {name for name, _ in found(tmp_path, named)}
    eraser.finish()
    assert found(tmp_path, named) == []
    identities.close()
    journal.close()


# --- what was learnt ------------------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Journal]:
    match request.param:
        case "memory":
            made: Journal = MemoryJournal()
        case "sqlite":
            made = SqliteJournal(tmp_path / "journal.db")
        case _:
            made = request.getfixturevalue("postgres_journal")(request.getfixturevalue("postgres_url"))
    yield made
    made.close()


def test_the_state_is_that_of_a_log_in_which_the_user_never_was(journal: Any) -> None:
    """Bit for bit: a running learner after its refit, one that starts from nothing, and the log without the user."""
    never = Log(MemoryJournal(), np.random.default_rng(5))
    with_bob = Log(journal, np.random.default_rng(5))
    live = learner()
    for n in range(30):
        user = ("ann", "bob", "eve")[n % 3]
        for log in (with_bob, never):
            state = log.rng.bit_generator.state
            name = log.answer(user, "ab"[n % 2])
            log.score(name)
            log.vote(name, float(n % 2))
            if user == "bob" and log is never:
                gone = [row.event.id for row in log.journal.of("bob")]
                log.rng.bit_generator.state = state
                log.journal = _without(log.journal, gone)
        never.rng.bit_generator.state = with_bob.rng.bit_generator.state
    catch_up(live, journal, journal.head())
    assert journal.erase(["bob"], "default", 1.0) == 40
    catch_up(live, journal, journal.head())
    expected = learner()
    catch_up(expected, never.journal, never.journal.head())
    again = learner()
    catch_up(again, journal, journal.head())
    states = [dict(one.state()) for one in (live, again, expected)]
    assert states[0] == states[1] == states[2]
    journal.save(live.snapshot())
    restored = learner()
    assert restored.restore(journal.snapshot())
    assert restored.digest() == live.digest()


def test_answers_that_wait_for_a_score_are_erased(journal: Any) -> None:
    """The text of an answer is in the spool until it is scored; that of others stays there."""
    log = Log(journal, np.random.default_rng(0))
    kept = {user: log.answer(user, "a") for user in ("ann", "bob")}
    for name in kept.values():
        answer = msgspec.structs.replace(journal.of(name)[1].event, id=f"{name}:kept")
        journal.append(Entry(answer, b"the answer's text")).result()
    assert {each.decision_id for each in journal.spooled()} == set(kept.values())
    journal.erase(["ann"], "default", 1.0)
    assert [each.decision_id for each in journal.spooled()] == [kept["bob"]]


def test_spending_survives_an_erasure(journal: Any) -> None:
    """Of the tenant's budget and of a key: as a sum for each day, whenever the state is built again."""
    params = ProjectionParams(budget=BudgetParams(usd_per_period=10.0))
    now = 100.5 * 86_400.0
    for n, (user, usd, payer, ts) in enumerate(
        [
            ("zoe", 3.0, "k", now),
            ("zoe", 2.0, "k", now),
            ("zoe", 1.0, "", now),
            ("zoe", 9.0, "k", 1.0),
            ("ann", 1.0, "k", now),
        ]
    ):
        who, name = Identity(tenant="a", user=user), f"d{n}"
        spent = Execution(
            id=f"e{n}",
            ts=ts,
            decision_id=name,
            identity=who,
            chosen="a",
            served_by="a",
            status="ok",
            cost_usd=usd,
            payer=payer,
        )
        journal.append(Entry(spent)).result()
    key = Payer(name="k", usd_per_day=100.0)

    def left(made: TenantLearner) -> tuple[float, float]:
        catch_up(made, journal, journal.head())
        projections = made.of("a").projections
        return projections.budgets.spent("a", now), projections.accounts.left(key, now)

    live = TenantLearner(D_X, D_H, schema=SCHEMA, projections=params)
    assert left(live) == (7.0, 94.0)
    assert journal.erase(["zoe"], "a", now + 60.0) == 4
    (note,) = [row.event for row in journal.tail(0) if isinstance(row.event, Erasure)]
    assert [(each.payer, each.usd, each.requests) for each in note.spent] == [("", 1.0, 1), ("k", 5.0, 2)]
    assert {each.ts for each in note.spent} == {now + 60.0}
    assert left(live) == (7.0, 94.0)
    journal.append(Entry(Refit(id="r", ts=now))).result()
    assert left(live) == left(TenantLearner(D_X, D_H, schema=SCHEMA, projections=params)) == (7.0, 94.0)


def _without(journal: MemoryJournal, ids: list[str]) -> MemoryJournal:
    made = MemoryJournal()
    for row in journal.tail(0, 10**5):
        if row.event.id not in ids:
            made.append(Entry(row.event)).result()
    return made


def test_snapshots_of_a_running_gateway_are_whole_again() -> None:
    """After an erasure the next snapshot holds every key of every tenant, although most had not changed."""
    log = Log(MemoryJournal(), np.random.default_rng(3))
    live = TenantLearner(D_X, D_H, schema=SCHEMA)
    for user in ("ann", "bob", "eve"):
        log.score(name := log.answer(user, "a"))
        log.vote(name, 1.0)
    for row in list(log.journal.tail(0)):
        who = getattr(row.event, "identity", None)
        if who is not None:
            more = {
                name: f"o{getattr(row.event, name)}" for name in ("decision_id", "draw_id") if hasattr(row.event, name)
            }
            other = msgspec.structs.replace(who, tenant="other", user=f"o{who.user}")
            log.put(msgspec.structs.replace(row.event, id=f"o{row.event.id}", identity=other, **more))
    catch_up(live, log.journal, log.journal.head())
    log.journal.save(live.snapshot())
    before = dict(live.of("other").state())
    log.journal.erase(["ann"], "default", 1.0)
    catch_up(live, log.journal, log.journal.head())
    log.journal.save(live.snapshot())
    restored = TenantLearner(D_X, D_H, schema=SCHEMA)
    assert restored.restore(log.journal.snapshot())
    assert restored.digest() == live.digest()
    assert dict(live.of("other").state()) == before
    assert not any(key.endswith("/user:ann") for key in log.journal.snapshot().state)


class World:
    """Two tenants, in one of which Zoe asks and votes against the others; ids, times and random numbers are counted."""

    def __init__(self, folder: Path, journal: MemoryJournal, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.journal = folder, journal
        self.counts, self.current, self.now = {"a": 0, "b": 0, "z": 0}, "", 1000.0
        patch.setattr("fitrouter.routing.pipeline.uuid7", self._id)

    def _id(self, _now: float) -> str:
        self.counts[self.current] += 1
        return f"00000000-0000-7000-{'abz'.index(self.current):04x}-{self.counts[self.current]:012x}"

    async def ask(self, router: Router, of: str, who: Identity, k: int) -> Decision:
        self.current = of
        ask = Request(messages=({"role": "user", "content": f"question {k}"},), identity=who)
        answer = await router.complete(ask)
        if k % 3 == 0 or of == "z":
            value = float((answer.served_by == "alpha") != (of == "z"))
            await router.feedback(answer.decision.id, FeedbackKind.THUMB, value, identity=who)
        policy = msgspec.structs.replace(answer.decision.policy, seq=0)
        return msgspec.structs.replace(answer.decision, identity=Identity(), policy=policy)

    def live(self, n: int, *, zoe: bool = False, erase: bool = False) -> dict[str, list[Decision]]:
        """The decisions of n rounds."""
        made: dict[str, list[Decision]] = {"a": [], "b": []}

        async def scenario() -> None:
            own = TenantLearner(len(context_names()), 1, expects_scores=False)
            router = make_router(
                self.folder, {"echo": Echo()}, learner=own, journal=self.journal, clock=lambda: self.now
            )
            async with router:
                if erase:
                    assert (await router.erase("a", "zoe")).events
                await router.settled()
                for k in range(n):
                    self.now += 60.0
                    for tenant, found in made.items():
                        who = Identity(tenant=tenant, user=f"u{k % 4}")
                        found.append(await self.ask(router, tenant, who, k))
                    if zoe:
                        await self.ask(router, "z", Identity(tenant="a", user="zoe"), k)
                    await router.settled()

        virtual_time.run(scenario())
        return made


def test_the_next_decisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other tenant's are those without an erasure, the tenant's own those of a log without the person."""
    n = int(os.environ.get("ERASURE_DECISIONS", "60"))
    (tmp_path / "past").mkdir()
    past = World(tmp_path / "past", MemoryJournal(), monkeypatch)
    past.live(40, zoe=True)
    hers = [row.event.id for row in past.journal.of(tokens(tmp_path / "past", "zoe", "a")[0])]
    assert len(hers) == 120
    worlds = {}
    for name, gone in (("erased", []), ("kept", []), ("never", hers)):
        shutil.copytree(tmp_path / "past", tmp_path / name)
        world = World(tmp_path / name, _without(past.journal, gone), monkeypatch)
        world.counts, world.now = dict(past.counts), past.now
        worlds[name] = world.live(n, erase=name == "erased")
    assert len(worlds["erased"]["a"]) == len(worlds["erased"]["b"]) == n
    assert worlds["erased"]["b"] == worlds["kept"]["b"]
    assert worlds["erased"]["a"] == worlds["never"]["a"]
    assert worlds["kept"]["a"] != worlds["never"]["a"], "she had moved her tenant's decisions"


def test_the_digest_is_no_token() -> None:
    """What stays is a hash of a random token."""
    assert digest_of("a" * 32) != digest_of("b" * 32)
    assert "a" * 32 not in digest_of("a" * 32)
