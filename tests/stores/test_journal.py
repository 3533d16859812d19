"""Laws of journals, for all implementations, and of the SQLite file."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fitrouter.errors import JournalFull, StoreError
from fitrouter.stores.journal import Entry, Journal, MemoryJournal, Snapshot, SqliteJournal
from fitrouter.stores.journal._ranges import fault_in
from fitrouter.types import (
    ArtifactChange,
    Decision,
    Erasure,
    Event,
    Execution,
    Feedback,
    FeedbackKind,
    Identity,
    Mode,
    ModelCard,
    ModelChange,
    PolicyVersion,
    ProfileChange,
    Score,
)

Make = Callable[..., Journal]
WAIT = 300.0


def decision(n: int, user: str | None = "ann", ts: float = 1.0) -> Entry:
    name = f"decision-{n}"
    event = Decision(
        id=name,
        ts=ts,
        draw_id=name,
        identity=Identity(user=user),
        mode=Mode.ONLINE,
        eligible=("a", "b"),
        probs=(0.1, 0.9),
        chosen="b",
        propensity=0.9,
        features=b"\x00\x00\x80?",
        policy=PolicyVersion(algorithm="squarecb"),
    )
    return Entry(event)


def execution(n: int, content: bytes | None = None, user: str | None = "ann") -> Entry:
    event = Execution(
        id=f"execution-{n}",
        ts=2.0 + n,
        decision_id=f"decision-{n}",
        identity=Identity(user=user),
        chosen="b",
        served_by="b",
        status="ok",
    )
    return Entry(event, content)


def score(n: int, user: str | None = "ann") -> Entry:
    return Entry(
        Score(id=f"score-{n}", ts=3.0, decision_id=f"decision-{n}", identity=Identity(user=user), served_by="b")
    )


def feedback(n: int, user: str | None = "ann") -> Entry:
    return Entry(
        Feedback(
            id=f"feedback-{n}",
            ts=4.0,
            decision_id=f"decision-{n}",
            identity=Identity(user=user),
            kind=FeedbackKind.THUMB,
            value=1.0,
        )
    )


def done(future: Future[int]) -> int:
    return future.result(WAIT)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    made: list[Journal] = []
    match request.param:
        case "memory":
            kind: Make = MemoryJournal
        case "sqlite":
            kind = partial(SqliteJournal, tmp_path / "j.db")
        case _:
            kind = partial(request.getfixturevalue("postgres_journal"), request.getfixturevalue("postgres_url"))

    def build(**options: Any) -> Journal:
        made.append(kind(**options))
        return made[-1]

    yield build
    for journal in made:
        journal.close()


@pytest.fixture
def journal(make: Make) -> Journal:
    return make()


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[SqliteJournal]:
    journal = SqliteJournal(tmp_path / "j.db")
    yield journal
    journal.close()


# --- laws of all ---------------------------------------------------------------------------------------------------


def test_empty(journal: Journal) -> None:
    """An empty journal has head 0, no rows, no answers that wait, and a snapshot at 0."""
    assert journal.head() == 0
    assert list(journal.tail(0)) == []
    assert list(journal.of("decision-1")) == []
    assert list(journal.spooled()) == []
    assert Snapshot(0, {}) == journal.snapshot()
    assert done(journal.append()) == 0


def test_every_event_reads_back(journal: Journal) -> None:
    """Events of every kind are read back equal, in the order in which they were appended."""
    entries = [
        decision(1),
        execution(1),
        score(1),
        feedback(1),
        Entry(ProfileChange(id="p", ts=5.0, identity=Identity(user="ann"), declared={"brevity": 1 / 3})),
        Entry(ModelChange(id="m", ts=6.0, cards=(ModelCard(name="a", provider="x"),), registry="r1")),
        Entry(ArtifactChange(id="a", ts=7.0, name="prior", sha256="0" * 64)),
        Entry(Erasure(id="e", ts=8.0, subject="ann")),
    ]
    last = done(journal.append(*entries))
    rows = journal.tail(0)
    assert [entry.event for entry in entries] == [row.event for row in rows]
    assert last == rows[-1].seq == journal.head()
    assert sorted({row.seq for row in rows}) == [row.seq for row in rows]


def test_tail_pages(journal: Journal) -> None:
    """Pages of any size, read one after the other, give every row once."""
    for n in range(10):
        journal.append(decision(n))
    done(journal.append())
    for limit in (1, 3, 10, 100):
        seen, after = [], 0
        while page := journal.tail(after, limit):
            assert len(page) <= limit
            seen += [row.event.id for row in page]
            after = page[-1].seq
        assert [f"decision-{n}" for n in range(10)] == seen


def test_of(journal: Journal) -> None:
    """A decision id and a subject each find all their rows and no others; what has neither is found by neither."""
    done(journal.append(decision(1), decision(2, "bob"), decision(3, None), execution(2, user="bob"), feedback(1)))
    done(journal.append(Entry(Erasure(id="e", ts=9.0, subject="bob"))))
    assert [row.event.id for row in journal.of("decision-1")] == ["decision-1", "feedback-1"]
    assert [row.event.id for row in journal.of("bob")] == ["decision-2", "execution-2", "e"]
    assert [row.event.id for row in journal.of("decision-3")] == ["decision-3"]
    assert list(journal.of("")) == []
    assert [row.event.id for row in journal.of("bob", "decision-2", "decision-1", "nobody")] == [
        *("decision-1", "decision-2", "execution-2"),
        *("feedback-1", "e"),
    ]
    assert list(journal.of()) == []


def test_ids_by_their_beginning(journal: Journal) -> None:
    """Each decision once, however many events it has; none that begins otherwise, and no more than asked for."""
    done(journal.append(decision(1), decision(12), execution(12), decision(2), feedback(1)))
    assert sorted(journal.ids("decision-1", 9)) == ["decision-1", "decision-12"]
    assert len(journal.ids("decision-1", 1)) == 1
    assert list(journal.ids("decision-3", 9)) == []


def test_latest_and_counts(journal: Journal) -> None:
    """Rows of some kinds from the end, page by page, of all or of one subject; and how many there are of it."""
    for n in range(6):
        journal.append(decision(n, ("ann", "bob")[n % 2]), feedback(n, ("ann", "bob")[n % 2]))
    done(journal.append())
    for subject, expected in ((None, range(6)), ("ann", (0, 2, 4)), ("carl", ())):
        seen, before = [], None
        while page := journal.latest(("decision",), 2, before=before, subject=subject):
            assert len(page) <= 2
            seen += [row.event.id for row in page]
            before = page[-1].seq
        assert seen == [f"decision-{n}" for n in reversed(expected)]
    assert [row.event.id for row in journal.latest(("decision", "feedback"), 2)] == ["feedback-5", "decision-5"]
    assert journal.counts("bob") == {"decision": (3, 1.0, 1.0), "feedback": (3, 4.0, 4.0)}
    assert journal.counts("carl") == {}


def test_same_id_is_no_op(journal: Journal) -> None:
    """Appending a known id changes nothing, uses up no number, and its future returns the existing position."""
    first = done(journal.append(decision(1)))
    done(journal.append(decision(2)))
    assert first == done(journal.append(decision(1, "somebody else", ts=99.0)))
    assert [row.event.ts for row in journal.tail(0)] == [1.0, 1.0]
    last = done(journal.append(decision(3), decision(3), decision(1)))
    assert last == journal.head()
    assert [row.event.id for row in journal.tail(0)] == ["decision-1", "decision-2", "decision-3"]
    assert [row.seq for row in journal.tail(0)] == [first, first + 1, first + 2]


def test_spool(journal: Journal) -> None:
    """An answer waits from its Execution to its Score, the oldest first; appending either again changes nothing."""
    done(journal.append(execution(2, b"two")))
    done(journal.append(execution(1, b"one"), execution(3)))
    assert [tuple(item) for item in journal.spooled()] == [("decision-2", 4.0, b"two"), ("decision-1", 3.0, b"one")]
    assert [item.decision_id for item in journal.spooled(1)] == ["decision-2"]
    done(journal.append(score(2)))
    done(journal.append(execution(2, b"two")))
    assert [item.decision_id for item in journal.spooled()] == ["decision-1"]
    done(journal.append(score(3), score(1)))
    assert list(journal.spooled()) == []


def test_content_needs_an_execution(journal: Journal) -> None:
    """Text without an Execution is refused before anything is queued, as is an event without an id."""
    with pytest.raises(ValueError, match="only an execution"):
        journal.append(Entry(decision(1).event, b"text"))
    with pytest.raises(ValueError, match="has no id"):
        journal.append(Entry(Erasure(id="", ts=1.0, subject="ann")))
    assert done(journal.append()) == 0


def test_sound_events_of_frequent_kinds_need_no_closer_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of their numbers is looked at by name only where one is out of range: requests wait for this."""

    def closer(event: Event) -> Iterator[Any]:
        raise AssertionError(event)

    monkeypatch.setattr("fitrouter.stores.journal._ranges._numbers", closer)
    assert [fault_in(entry.event) for entry in (decision(1), execution(1), score(1))] == ["", "", ""]
    with pytest.raises(AssertionError):
        fault_in(msgspec.structs.replace(execution(1).event, cost_usd=-1.0))


def test_features_that_are_no_numbers_are_refused(journal: Journal) -> None:
    """Half a number is told as what it is; a page of no rows is empty, whatever there is."""
    with pytest.raises(ValueError, match="bytes of features 5 is not finite or out of range"):
        journal.append(Entry(msgspec.structs.replace(decision(1).event, features=b"12345")))
    done(journal.append(decision(1)))
    assert list(journal.tail(0, 0)) == []


def test_snapshot_merges(journal: Journal) -> None:
    """A snapshot replaces the keys that it has, keeps the others and moves the position; an older one is a no-op."""
    journal.save(Snapshot(3, {"a": b"1", "b": b"2"}))
    journal.save(Snapshot(5, {"b": b"3", "c": b""}))
    assert Snapshot(5, {"a": b"1", "b": b"3"}) == journal.snapshot(), "a key without bytes is removed"
    journal.save(Snapshot(4, {"a": b"old", "d": b"old"}))
    journal.save(Snapshot(5, {"a": b"2"}))
    assert Snapshot(5, {"a": b"2", "b": b"3"}) == journal.snapshot()


def test_lease(journal: Journal) -> None:
    """A lease has one holder until it is released, and leases of different names are independent."""
    mine, yours, other = journal.lease("scorer"), journal.lease("scorer"), journal.lease("warehouse")
    assert (mine.held(), yours.held(), mine.held()) == (True, False, True)
    assert other.held()
    yours.release()
    assert (yours.held(), mine.held()) == (False, True)
    mine.release()
    assert (yours.held(), mine.held()) == (True, False)


def test_full(make: Make) -> None:
    """Entries beyond the queue's limit are refused immediately and completely."""
    journal = make(capacity=3)
    with pytest.raises(JournalFull, match="4"):
        journal.append(*(decision(n) for n in range(4)))
    assert done(journal.append()) == 0
    assert done(journal.append(*(decision(n) for n in range(3)))) == 3


def test_closed(make: Make) -> None:
    """After close nothing is taken, leases are free, and closing again is harmless."""
    journal = make()
    lease = journal.lease("scorer")
    assert lease.held()
    journal.close()
    journal.close()
    with pytest.raises(StoreError, match="closed"):
        journal.append(decision(1))


def test_futures_cannot_be_cancelled(journal: Journal) -> None:
    """A caller who stops waiting does not take back what it appended."""
    future = journal.append(decision(1))
    assert not future.cancel()
    assert done(future) == 1


class Breaks:
    """A disk that refuses the k-th write step, counted from 0; it works again afterwards."""

    def __init__(self, k: int | None) -> None:
        self.k, self.calls = k, 0

    def __call__(self, step: str) -> None:
        self.calls += 1
        if self.k == self.calls - 1:
            raise OSError(28, f"no space left at {step}")


BATCH = (decision(1), execution(1, b"text"), score(2), feedback(1))


@pytest.mark.parametrize("k", range(8))
def test_failed_write_leaves_nothing(make: Make, k: int) -> None:
    """Whichever write fails, the future gets StoreError, nothing is kept, and the next append succeeds."""
    breaks = Breaks(k)
    journal = make(fault=breaks)
    with pytest.raises(StoreError, match="no space left"):
        done(journal.append(*BATCH))
    assert breaks.calls == k + 1, "the batch has eight steps"
    assert (journal.head(), list(journal.tail(0)), list(journal.spooled())) == (0, [], [])
    assert done(journal.append(decision(7))) == 1
    assert done(journal.append(*BATCH)) == 5
    assert [item.decision_id for item in journal.spooled()] == ["decision-1"]


@pytest.mark.parametrize("k", range(3))
def test_failed_snapshot_leaves_the_old_one(make: Make, k: int) -> None:
    """A snapshot is stored whole or not at all."""
    breaks = Breaks(None)
    journal = make(fault=breaks)
    journal.save(Snapshot(1, {"a": b"1"}))
    breaks.k, breaks.calls = k, 0
    with pytest.raises(StoreError):
        journal.save(Snapshot(2, {"a": b"2", "b": b"2"}))
    assert Snapshot(1, {"a": b"1"}) == journal.snapshot()
    journal.save(Snapshot(3, {"b": b"3"}))
    assert Snapshot(3, {"a": b"1", "b": b"3"}) == journal.snapshot()


# --- laws of the file ----------------------------------------------------------------------------------------------


class Gate:
    """A disk that waits: the writer stops at the first commit until it is opened."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def __call__(self, step: str) -> None:
        if step == "commit":
            self.reached.set()
            assert self.open.wait(WAIT)


def test_waiting_entries_share_one_commit(tmp_path: Path) -> None:
    """Entries that arrive during a commit become durable in one transaction, and count against the queue until then."""
    gate, steps = Gate(), []

    def fault(step: str) -> None:
        steps.append(step)
        gate(step)

    journal = SqliteJournal(tmp_path / "j.db", capacity=5, fault=fault)
    first = journal.append(decision(0))
    assert gate.reached.wait(WAIT)
    others = [journal.append(decision(n)) for n in range(1, 5)]
    with pytest.raises(JournalFull, match="5 entries are queued"):
        journal.append(decision(5))
    assert not first.done()
    assert list(journal.tail(0)) == [], "what is not committed is not seen, and does not block a reader"
    gate.open.set()
    assert [done(first), *map(done, others)] == [1, 2, 3, 4, 5]
    assert steps.count("commit") == 2
    journal.close()


def test_close_waits(tmp_path: Path) -> None:
    """Entries queued before `close` are durable after it."""
    gate = Gate()
    journal = SqliteJournal(tmp_path / "j.db", fault=gate)
    futures = [journal.append(decision(n)) for n in range(50)]
    closing = threading.Thread(target=journal.close)
    closing.start()
    gate.open.set()
    closing.join(WAIT)
    assert all(future.done() for future in futures)
    again = SqliteJournal(tmp_path / "j.db")
    assert len(again.tail(0)) == 50
    again.close()


def test_acknowledged_means_committed(sqlite: SqliteJournal, tmp_path: Path) -> None:
    """When the future resolves, an independent reader of the file sees the row, and every commit is synced."""
    done(sqlite.append(decision(1)))
    reader = sqlite3.connect(tmp_path / "j.db")
    assert reader.execute("SELECT seq, id, kind, decision_id, subject FROM events").fetchall() == [
        (1, "decision-1", "decision", "decision-1", "ann")
    ]
    assert reader.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    reader.close()


def test_look_ups_use_the_indexes(sqlite: SqliteJournal, tmp_path: Path) -> None:
    """`of` reads two indexes and never scans the log."""
    reader = sqlite3.connect(tmp_path / "j.db")
    plan = reader.execute(
        "EXPLAIN QUERY PLAN SELECT seq FROM events WHERE decision_id = ? OR subject = ? ORDER BY seq", ("x", "x")
    ).fetchall()
    short = (
        "EXPLAIN QUERY PLAN SELECT DISTINCT decision_id FROM events WHERE decision_id >= ? AND decision_id < ? LIMIT ?"
    )
    (searched,) = reader.execute(short, ("0198", "0198g", 9)).fetchall()
    assert "SEARCH" in searched[3]
    assert "events_decision" in searched[3]
    reader.close()
    told = " ".join(row[3] for row in plan)
    assert "SCAN" not in told
    assert "events_decision" in told
    assert "events_subject" in told


def test_two_journals_of_one_process_share_the_file(sqlite: SqliteJournal, tmp_path: Path) -> None:
    """Two journals on one file see each other's rows and exclude each other's leases."""
    other = SqliteJournal(tmp_path / "j.db")
    done(sqlite.append(decision(1)))
    done(other.append(decision(2)))
    assert [1, 2] == [row.seq for row in sqlite.tail(0)] == [row.seq for row in other.tail(0)]
    mine, yours = sqlite.lease("scorer"), other.lease("scorer")
    assert (mine.held(), yours.held()) == (True, False)
    sqlite.close()
    assert yours.held()
    other.close()


def test_lease_whose_file_is_gone_is_lost(sqlite: SqliteJournal, tmp_path: Path) -> None:
    """Deleting a lease's file never gives two holders."""
    mine, yours = sqlite.lease("scorer"), sqlite.lease("scorer")
    assert mine.held()
    (tmp_path / "j.db.scorer.lease").unlink()
    assert yours.held()
    assert not mine.held()


def test_lease_names_are_words(sqlite: SqliteJournal) -> None:
    """A name cannot lead out of the folder."""
    for name in ("", "../x", "a.b", "A", "x" * 65):
        with pytest.raises(ValueError, match="lease"):
            sqlite.lease(name)


def test_fork_gets_no_journal(sqlite: SqliteJournal) -> None:
    """A forked child gets a StoreError, and does not keep its parent's lease alive."""
    lease = sqlite.lease("scorer")
    assert lease.held()
    read, write = os.pipe()
    go, stop = os.pipe()
    child = os.fork()
    if child == 0:
        told = b""
        for use in (lambda: sqlite.append(decision(1)), lambda: sqlite.tail(0)):
            try:
                use()
            except StoreError:
                told += b"refused "
        os.write(write, told)
        os.read(go, 1)
        os._exit(0)
    try:
        assert os.read(read, 100) == b"refused refused "
        lease.release()
        assert sqlite.lease("scorer").held(), "the child lives and does not hold it"
    finally:
        os.write(stop, b"x")
        os.waitpid(child, 0)
        for fd in (read, write, go, stop):
            os.close(fd)


@pytest.mark.parametrize("damage", ["garbage", "middle", "empty header"])
def test_damaged_file_is_set_aside(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged file is renamed, never deleted, and the journal starts with what is sound in it and works."""
    path = tmp_path / "j.db"
    journal = SqliteJournal(path)
    done(journal.append(*(decision(n) for n in range(200))))
    journal.close()
    data = bytearray(path.read_bytes())
    if damage == "garbage":
        data = bytearray(b"not a database " * 1000)
    elif damage == "middle":
        data[4096 : len(data) // 2] = b"\xff" * (len(data) // 2 - 4096)
    else:
        data[:100] = bytes(100)
    path.write_bytes(data)
    journal = SqliteJournal(path, clock=lambda: 1234.5)
    assert tmp_path / "j.db.corrupt-1234" == journal.quarantined
    assert bytes(data) == (tmp_path / "j.db.corrupt-1234").read_bytes()
    assert "damaged" in caplog.text
    found = len(journal.tail(0))
    assert (found == 0) is (damage == "garbage")
    last = done(journal.append(decision(1000)))
    journal.close()
    again = SqliteJournal(path)
    assert again.quarantined is None
    assert (again.head(), len(again.tail(0))) == (last, found + 1)
    again.close()


def test_damaged_file_in_use_is_left_alone(sqlite: SqliteJournal, tmp_path: Path) -> None:
    """While another holds the file open, a damaged one is not replaced: its holder would delete the new one's log."""
    done(sqlite.append(*(decision(n) for n in range(200))))
    writer = sqlite3.connect(tmp_path / "j.db")
    writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    writer.close()
    data = bytearray((tmp_path / "j.db").read_bytes())
    data[:100] = b"x" * 100
    with (tmp_path / "j.db").open("r+b") as file:
        file.write(data)
    with pytest.raises(StoreError, match="open in other processes"):
        SqliteJournal(tmp_path / "j.db")
    assert list(tmp_path.glob("*.corrupt*")) == []


def test_damaged_row_is_left_out(sqlite: SqliteJournal, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A row whose bytes changed on the disk is never folded; the rows behind it are still reached, page by page."""
    done(sqlite.append(*(decision(n) for n in range(6))))
    writer = sqlite3.connect(tmp_path / "j.db")
    (payload,) = writer.execute("SELECT payload FROM events WHERE seq = 2").fetchone()
    flipped = payload.replace(b"decision-1", b"decision-X")
    writer.execute("UPDATE events SET payload = ? WHERE seq = 2", (flipped,))
    writer.execute("UPDATE events SET payload = ? WHERE seq IN (3, 4)", (b"\xc1",))
    writer.commit()
    writer.close()
    assert [row.seq for row in sqlite.tail(0)] == [1, 5, 6]
    assert [row.seq for row in sqlite.tail(1, 1)] == [5]
    assert "row 2" in caplog.text


def test_later_format_is_refused(tmp_path: Path) -> None:
    """A file of a later version is neither changed nor set aside."""
    writer = sqlite3.connect(tmp_path / "j.db")
    writer.execute("PRAGMA user_version = 99")
    writer.commit()
    writer.close()
    with pytest.raises(StoreError, match="99"):
        SqliteJournal(tmp_path / "j.db")
    assert (tmp_path / "j.db").exists()


def test_unusable_path(tmp_path: Path) -> None:
    """A path that cannot be a file gives StoreError that names it."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file" / "j.db", tmp_path / "folder"):
        with pytest.raises(StoreError, match="cannot be opened"):
            SqliteJournal(path)


DISK_FULL = """
import resource, sys
from fitrouter.errors import StoreError
from fitrouter.stores.journal import Entry, SqliteJournal
from fitrouter.types import Execution, Identity

def entry(n, size):
    return Entry(Execution(id=str(n), ts=1.0, decision_id="d%d" % n, identity=Identity(), chosen="a", served_by="a",
                           status="ok"), b"x" * size)

journal = SqliteJournal(sys.argv[1])
assert journal.append(entry(1, 10)).result(300.0) == 1
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
for n in (2, 3):
    try:
        journal.append(entry(n, 1_000_000)).result(300.0)
    except StoreError:
        pass
    else:
        raise SystemExit("the write went through")
assert [row.event.id for row in journal.tail(0)] == ["1"], journal.tail(0)
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
journal.append(entry(2, 1_000_000)).result(300.0)
assert [row.event.id for row in journal.tail(0)] == ["1", "2"]
assert len(journal.spooled()) == 2
journal.close()
again = SqliteJournal(sys.argv[1])
assert [row.event.id for row in again.tail(0)] == ["1", "2"] and again.quarantined is None
again.close()
print("recovered")
"""


def test_full_disk(tmp_path: Path, python_path: dict[str, str]) -> None:
    """When the operating system itself refuses to write, the caller gets StoreError, and room brings it back."""
    run = subprocess.run(
        [sys.executable, "-c", DISK_FULL, str(tmp_path / "j.db")],
        capture_output=True,
        text=True,
        env=python_path,
        timeout=300,
        check=False,
    )
    assert "recovered" in run.stdout, run.stderr


@pytest.fixture
def python_path() -> dict[str, str]:
    root = Path(__file__).resolve().parents[2]
    return os.environ | {"PYTHONPATH": str(root / "router")}
