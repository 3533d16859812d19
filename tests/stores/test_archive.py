"""Old events in Parquet files: nothing that reads them notices, nothing is lost, and an erasure reaches them."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tests.kits.learner import Log, learner
from tests.stores.test_erasure import SECRETS, ZOE, found, opened, settings, tokens
from tests.stores.test_erasure import lived as live
from typer.testing import CliRunner

from fitrouter.errors import StoreError
from fitrouter.router import Router
from fitrouter.state.follower import catch_up, restore
from fitrouter.stores.journal import (
    Archive,
    Entry,
    Journal,
    MemoryJournal,
    Row,
    Snapshot,
    SqliteJournal,
    _archive,
    check,
)
from fitrouter.stores.retention import Retention
from fitrouter.stores.warehouse import Warehouse, WarehouseFeed
from fitrouter.types import Identity, Refit
from fitrouter_evaluators.replay.log import _journal as replayed
from fitrouter_integrations.cli import app

ROOT = Path(__file__).resolve().parents[2]
LATER = 1e9
SIZE = 25
BOB = "bob-of-the-parquet"


def filled(journal: SqliteJournal, n: int = 40, seed: int = 5) -> list[Row]:
    """Answers, scores and votes of three people, and a snapshot after them."""
    log = Log(journal, np.random.default_rng(seed))  # type: ignore[arg-type]
    for k in range(n):
        log.score(name := log.answer(("ann", BOB, "eve")[k % 3], "ab"[k % 2]))
        log.vote(name, float(k % 2))
    journal.save(Snapshot(journal.head(), {}))
    return list(journal.tail(0, 10_000))


def archived(journal: SqliteJournal) -> int:
    """Archive all that fills whole files; the number of files."""
    files = 0
    while moved := journal.archive(LATER, journal.head(), SIZE):
        assert moved == SIZE
        files += 1
    return files


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[SqliteJournal]:
    made = SqliteJournal(tmp_path / "journal.db")
    yield made
    made.close()


def payloads(path: Path) -> int:
    """Rows that have their payload in the table."""
    with closing(sqlite3.connect(path)) as connection:
        (found_,) = connection.execute("SELECT count(*) FROM events WHERE length(payload) > 0").fetchone()
    return int(found_)


def state(journal: Journal) -> dict[str, bytes]:
    made = learner()
    catch_up(made, journal, journal.head())
    return dict(made.state())


def test_nothing_that_reads_the_journal_notices(journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every method, the learner, `check`, and what replay reads are the same; a repeated event is still one."""
    rows, before = filled(journal), state(journal)
    names = [row.event.id for row in rows]
    some = [*names[::7], "ann", BOB]
    seen = [[journal.of(name) for name in some], journal.latest(["score"], 300), journal.counts("ann")]
    assert archived(journal) == len(rows) // SIZE > 4
    assert payloads(journal.path) == len(rows) % SIZE
    assert journal.archived() == rows[len(rows) // SIZE * SIZE - 1].seq
    with closing(SqliteJournal(journal.path)) as other:  # as another process, with nothing in memory
        assert list(other.tail(0, 10_000)) == rows
        assert [[other.of(name) for name in some], other.latest(["score"], 300), other.counts("ann")] == seen
        assert other.event(names[0]) == rows[0].event
        assert other.append(Entry(rows[0].event)).result() == rows[0].seq
        assert state(other) == before
    report = check(journal.path)
    assert (report.events, report.sound) == (len(rows), True)
    with replayed.open_journal(journal.path) as log:
        assert log.connection.execute("SELECT count(*) FROM decisions").fetchone() == (40,)
    monkeypatch.setattr(_archive, "CHUNK", 10)  # a person's events are in more chunks than are read at once
    with closing(SqliteJournal(journal.path)) as other:
        assert other.of(BOB) == seen[0][-1]
    assert {path.stat().st_mode & 0o777 for path in Archive(journal.path).folder.iterdir()} == {0o600}


def test_a_start_reads_no_file(journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot has all that the archived events taught; the state is the same bits, and events go on."""
    filled(journal)
    live = learner()
    catch_up(live, journal, journal.head())
    journal.save(live.snapshot())
    archived(journal)
    monkeypatch.setattr(Archive, "payload", None)
    with closing(SqliteJournal(journal.path)) as other:
        made = learner()
        assert restore(made, other)
        catch_up(made, other, other.head())
        assert made.digest() == live.digest()
        assert other.append(Entry(Refit(id="r", ts=1.0))).result() == other.head()


def test_what_stays(journal: SqliteJournal) -> None:
    """Events that are too young, after the snapshot or the given position, or no whole file."""
    rows = filled(journal)
    assert journal.archive(0.0, journal.head(), SIZE) == 0
    assert journal.archive(LATER, rows[SIZE - 2].seq, SIZE) == 0
    assert journal.archive(LATER, journal.head(), len(rows) + 1) == 0
    journal.erase(["nobody"], "default", 1.0)
    assert journal.archive(LATER, journal.head(), SIZE) == SIZE
    assert Archive(journal.path).segments()[0][:2] == (1, SIZE)


KILLED = """
import os, signal, sys
from pathlib import Path
from fitrouter.stores.journal import SqliteJournal, _archive, _sqlite

def die(*_args, **_named): os.kill(os.getpid(), signal.SIGKILL)

step = sys.argv[2]
if step == "write":
    os.fsync = die
elif step == "written":
    SqliteJournal._drop_archived_payloads = die
elif step == "emptied in part":
    _sqlite._EMPTIED, calls, before = 10, [], SqliteJournal._exclusive
    SqliteJournal._exclusive = lambda self: die() if len(calls) == 2 else calls.append(1) or before(self)
else:
    SqliteJournal._drop_deleted_rows = die
SqliteJournal(sys.argv[1]).archive(1e9, 10**9, 25)
"""


@pytest.mark.parametrize("step", ["write", "written", "emptied in part", "emptied"])
def test_kill_9_at_every_step(journal: SqliteJournal, step: str) -> None:
    """Every event is read before and after the next call completes it, in this and in another process."""
    rows = filled(journal)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", KILLED, str(journal.path), step], env=environment, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    assert list(journal.tail(0, 10_000)) == rows
    archived(journal)
    assert payloads(journal.path) == len(rows) % SIZE
    assert list(journal.tail(0, 10_000)) == rows
    assert not list(Archive(journal.path).folder.glob("*.new"))
    assert [segment[:2] for segment in Archive(journal.path).segments()][:2] == [(1, 25), (26, 50)]


def test_two_workers(journal: SqliteJournal) -> None:
    """Both archive and read at once: each file is written once, and no reader misses a row."""
    rows, failures = filled(journal, 80), list[Exception]()
    with closing(SqliteJournal(journal.path)) as other:

        def work(mine: SqliteJournal) -> None:
            try:
                for _ in range(40):
                    mine.archive(LATER, mine.head(), SIZE)
                    assert list(mine.tail(0, 10_000)) == rows
            except Exception as error:  # noqa: BLE001
                failures.append(error)

        threads = [threading.Thread(target=work, args=(one,)) for one in (journal, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    while journal.archive(LATER, journal.head(), SIZE):  # a try does nothing while the other worker archives
        pass
    assert failures == []
    assert payloads(journal.path) == len(rows) % SIZE


@pytest.mark.parametrize("when", ["after", "while it is written"])
def test_an_erasure_reaches_the_files(journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """No row of the user is left, others are as before, and a refit is that of a log without the user."""
    rows = filled(journal)
    gone = {row.event.id for row in journal.of(BOB)}
    never = MemoryJournal()
    for row in rows:
        if row.event.id not in gone:
            never.append(Entry(row.event)).result()
    if when == "after":
        archived(journal)
        assert journal.erase([BOB], "default", 2.0) == len(gone)
    else:
        before: Callable[..., None] = SqliteJournal._drop_archived_payloads

        def interrupted(self: SqliteJournal, *arguments: object) -> None:
            self.erase([BOB], "default", 2.0)
            before(self, *arguments)

        monkeypatch.setattr(SqliteJournal, "_drop_archived_payloads", interrupted)
        archived(journal)
    assert journal.unfinished()
    journal.compact()
    files = b"".join(path.read_bytes() for path in journal.path.parent.rglob("*") if path.is_file())
    assert BOB.encode() not in files
    kept = [row.event for row in rows if row.event.id not in gone]
    assert [row.event for row in journal.tail(0, 10_000)][: len(kept)] == kept
    assert state(journal) == state(never)
    assert check(journal.path).sound


def test_a_person_is_gone_from_the_whole_folder(tmp_path: Path) -> None:
    """With a router, the warehouse and the command: no byte in any file, and the folder goes on."""
    config = settings(tmp_path / "data").model_copy(update={"journal_days": 1.0})

    async def life() -> None:
        async with Router.from_config(config) as router:
            await live(router, [Identity(user="ann"), ZOE, Identity(user="ben")])

    asyncio.run(life())
    names = tokens(config.data)
    journal, identities, eraser = opened(config.data)
    head = journal.head()
    while journal.archive(LATER * 10, head, 4):
        pass
    assert journal.archived() > head - 8
    assert {name for name, _ in found(config.data, names)} >= {"journal.db"}
    assert eraser.erase("default", SECRETS[0]).unfinished == ""
    assert found(config.data, (*SECRETS[:1], *names)) == []
    assert journal.of(tokens(config.data, "ann")[0])
    journal.close()
    identities.close()
    asyncio.run(life())


def test_damage_loses_no_archived_event(journal: SqliteJournal, tmp_path: Path) -> None:
    """A journal is salvaged with the rows of its files, also those whose pages are lost; a lost file is told."""
    rows = filled(journal)
    archived(journal)
    path = journal.path
    journal.close()
    data = bytearray(path.read_bytes())
    page = int.from_bytes(data[16:18], "big")
    for number in range(3, len(data) // page, 2):
        data[number * page : number * page + 200] = bytes(200)
    path.write_bytes(data)
    with closing(SqliteJournal(path)) as salvaged:
        assert salvaged.quarantined
        whole = rows[: len(rows) // SIZE * SIZE]
        assert list(salvaged.tail(0, len(whole))) == whole
    copy = tmp_path / "copy.db"
    made = CliRunner().invoke(app, ["journal", "salvage", str(copy), "--file", str(path)])
    assert made.exit_code == 0, made.output
    assert check(copy).sound
    shutil.rmtree(Archive(copy).folder)
    assert len(check(copy).damaged) == len(whole)


def test_retention(journal: SqliteJournal, tmp_path: Path) -> None:
    """The feeder's process moves whole files that are old enough; the rows of their requests leave the warehouse."""
    rows = filled(journal)
    feed = WarehouseFeed(journal, Warehouse(tmp_path / "w.duckdb"))
    now = 3 * 86_400.0
    service = Retention(journal, feed, 2.0, lambda: now, 2 * SIZE)
    assert service.step() == 0, "the feed has not begun"
    while feed.step():
        pass
    now = 0.0
    assert service.step() == 0
    now = 3 * 86_400.0
    while service.step():
        pass
    assert payloads(journal.path) == len(rows) % (2 * SIZE)
    left = "SELECT min(seq), count(*) FROM (SELECT seq FROM decisions UNION ALL SELECT seq FROM executions)"
    (first, count), *_ = feed.warehouse.query(left)
    assert first > journal.archived()
    expected = [row for row in rows if row.seq >= first and type(row.event).__name__ in {"Decision", "Execution"}]
    assert count == len(expected)
    assert feed.warehouse.position() == journal.head()
    feed.warehouse.path.unlink()
    while feed.step():
        pass
    assert service.step() == 0
    assert feed.warehouse.query(left) == [(first, count)], "a file that is filled again, too"
    journal.append(Entry(Refit(id="r", ts=now))).result()
    assert feed.step() == 1


def test_a_full_disk_leaves_everything_as_it_was(journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that cannot be written is no file."""
    rows = filled(journal)

    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="No space left"):
        journal.archive(LATER, journal.head(), SIZE)
    monkeypatch.undo()
    assert payloads(journal.path) == len(rows)
    assert archived(journal) == len(rows) // SIZE
