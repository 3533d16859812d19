"""Laws of the cold store, in a folder and in a bucket: every event once, whoever dies, whatever is away or damaged."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.kits.learner import Log, learner
from tests.kits.s3 import KEYS, S3
from tests.stores.test_erasure import SECRETS, ZOE, filled, found, lived, opened, settings, tokens
from tests.stores.test_warehouse import decision, feedback, journal_of, story
from typer.testing import CliRunner

from fitrouter.config import ColdConfig, parse_config
from fitrouter.errors import ConfigError, MissingExtra, StoreError
from fitrouter.hooks import Hooks, Notice, Trouble
from fitrouter.router import Router
from fitrouter.state.follower import catch_up, restore
from fitrouter.stores import cold
from fitrouter.stores.cold_feed import ColdFeed, erase_cold
from fitrouter.stores.erasure import Eraser
from fitrouter.stores.identities import SqliteIdentities
from fitrouter.stores.journal import (
    Entry,
    FilePlace,
    Journal,
    MemoryJournal,
    Row,
    Snapshot,
    SqliteJournal,
    _copy,
    check,
    copy,
    digest_of,
)
from fitrouter.stores.warehouse import Warehouse, WarehouseFeed
from fitrouter.types import Event, Identity, Refit, decode_event
from fitrouter_evaluators.replay.log import _journal as replayed
from fitrouter_integrations.cli import app

ROOT = Path(__file__).resolve().parents[2]
DAY_S = 86_400.0
START = 1_700_000_000.0
BOB = "bob-of-the-parquet"


def feed_of(
    journal: Journal, place: str, folder: Path, warehouse: WarehouseFeed | None = None, **more: Any
) -> ColdFeed:
    return ColdFeed(journal, place, folder, warehouse, **{"every_s": 0.0, "events": 10} | more)


def drain(feed: ColdFeed) -> int:
    """Steps until nothing is due; the number of steps that did something."""
    steps = 0
    while feed.step():
        steps += 1
    return steps


def events_at(place: str) -> list[Row]:
    """All events of the files, in their order."""
    storage, sql = cold.storage_at(place), "SELECT seq, payload FROM read_parquet(?)"
    files = cold.files_at(storage)
    assert cold.gaps(files) == []
    return [Row(seq, decode_event(payload)) for file in files for seq, payload in cold.query(storage, file, sql)]


def ranges(place: str) -> list[tuple[int, int]]:
    return [file[:2] for file in cold.files_at(cold.storage_at(place))]


def everything(n: int) -> MemoryJournal:
    """Events of all kinds on one day."""
    return journal_of(*(msgspec.structs.replace(event, ts=START + i) for i, event in enumerate(story(n))))


def all_of(journal: Journal) -> list[Row]:
    return list(journal.tail(0, 100_000))


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[SqliteJournal]:
    with closing(SqliteJournal(tmp_path / "journal.db")) as made:
        yield made


@pytest.fixture
def s3_place(s3: S3, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new prefix of a bucket, whose server is given up soon."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("fitrouter.stores.cold._bucket._RETRY_S", 0.1)
    return s3.place()


# --- writing -------------------------------------------------------------------------------------------------------


def test_every_event_is_in_one_file(place: str, tmp_path: Path) -> None:
    """With its number and all its bytes, in the journal's order; nothing else is there."""
    journal = everything(6)
    assert drain(feed_of(journal, place, tmp_path)) == 3
    assert events_at(place) == all_of(journal)
    assert ranges(place) == [(1, 10), (11, 20), (21, 29)]
    storage = cold.storage_at(place)
    assert storage.sizes().keys() == {file.name for file in cold.files_at(storage)}


def test_events_wait_until_they_are_many_or_old(place: str, tmp_path: Path) -> None:
    """A file is written when it is full, or when an event has waited for `every_s`; one of the day grows until then."""
    now = [0.0]
    journal = journal_of(*[decision(n) for n in range(3)])
    feed = feed_of(journal, place, tmp_path, every_s=600.0, timer=lambda: now[0])
    assert [feed.step(), feed.step()] == [3, 0]
    journal.append(Entry(decision(3))).result()
    assert feed.step() == 0
    now[0] = 599.0
    assert feed.step() == 0
    now[0] = 600.0
    assert feed.step() == 1
    assert ranges(place) == [(1, 4)]
    journal.append(*[Entry(decision(n)) for n in range(4, 16)]).result()
    assert [feed.step(), feed.step()] == [6, 0]
    now[0] = 1300.0
    assert feed.step() == 6
    assert ranges(place) == [(1, 10), (11, 16)]
    assert len(cold.storage_at(place).sizes()) == 2


def test_a_file_has_one_day(place: str, tmp_path: Path) -> None:
    """Its name says which, so that its age is known without reading it."""
    times = (0.1, 0.9, 0.8, 1.0, 2.5, 1.5)
    journal = journal_of(*(msgspec.structs.replace(decision(n), ts=t * DAY_S) for n, t in enumerate(times)))
    drain(feed_of(journal, place, tmp_path))
    found = cold.files_at(cold.storage_at(place))
    assert [(file.day, *file[:2]) for file in found] == [
        ("1970-01-01", 1, 3),
        ("1970-01-02", 4, 4),
        ("1970-01-03", 5, 6),
    ]


def test_only_the_holder_of_the_lease_writes(place: str, tmp_path: Path, journal: SqliteJournal) -> None:
    """Gateways on a journal take turns, without a row lost or written twice."""
    journal.append(*map(Entry, story(6))).result()
    one, other = feed_of(journal, place, tmp_path), feed_of(journal, place, tmp_path)
    held = journal.lease("cold")
    assert held.held()
    assert one.step() == 0
    held.release()
    while one.step() + other.step():
        pass
    assert events_at(place) == all_of(journal)


KILLED = """
import itertools, os, signal, sys
from pathlib import Path
from fitrouter.stores.cold_feed import ColdFeed
from fitrouter.stores.journal import SqliteJournal, _sqlite

place, folder, at = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
journal, calls = SqliteJournal(folder / "journal.db"), itertools.count()

def dying(method):
    def call(*args):
        if next(calls) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        result = method(*args)
        if next(calls) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return call

feed = ColdFeed(journal, place, folder, every_s=0.0, events=8, days=1.0)
os.fsync = dying(os.fsync)
_sqlite._EMPTIED = 3
journal._exclusive = dying(journal._exclusive)
for name in ("put", "delete"):
    setattr(feed.storage, name, dying(getattr(feed.storage, name)))
while feed.step():
    pass
print("done")
"""


def run(code: str, *args: str, check: bool = False) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "router")}
    return subprocess.run(
        [sys.executable, "-c", code, *args], env=environment, capture_output=True, text=True, timeout=120, check=check
    )


def test_kill_at_any_moment(place: str, tmp_path: Path, journal: SqliteJournal) -> None:
    """Killed around a write, a deletion, or a part of a move: no row is lost or doubled, in files or journal."""
    journal.append(*map(Entry, story(6))).result()
    journal.save(Snapshot(journal.head(), {}))
    expected = all_of(journal)
    for at in (0, 1, 2, 5, 9, 15, 18, 22):
        ended = run(KILLED, place, str(tmp_path), str(at))
        assert ended.returncode == -signal.SIGKILL or "done" in ended.stdout, ended.stderr
        assert events_at(place) == expected[: len(events_at(place))]
        with closing(SqliteJournal(journal.path)) as other:
            assert all_of(other) == expected
    drain(feed_of(journal, place, tmp_path, events=8, days=1.0))
    assert events_at(place) == all_of(journal) == expected
    assert payloads(journal.path) == 0
    storage = cold.storage_at(place)
    assert storage.sizes().keys() == {file.name for file in cold.files_at(storage)}


# --- what is wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["truncated", "changed", "missing"])
def test_a_damaged_file_is_told_and_written_again(place: str, tmp_path: Path, how: str) -> None:
    """Who reads it gets its name; a missing one is written again from the journal, as one that was damaged is then."""
    journal = everything(6)
    drain(feed_of(journal, place, tmp_path))
    storage = cold.storage_at(place)
    file = cold.files_at(storage)[1]
    with storage.local(file.name) as path:
        data = path.read_bytes()
    harmed = {"truncated": data[:100], "missing": None, "changed": b"x" * len(data)}[how]
    if harmed is not None:
        storage.put(file.name, lambda path: path.write_bytes(harmed))
        with pytest.raises(StoreError, match=file.name):
            events_at(place)
    storage.delete([file.name])
    assert cold.gaps(cold.files_at(storage)) == [file[:2]]
    drain(feed_of(journal, place, tmp_path))
    assert events_at(place) == all_of(journal)


def test_another_journal_is_refused(place: str, tmp_path: Path) -> None:
    """Files of another journal, or of a later state of a restored one, are neither continued nor changed."""
    drain(feed_of(everything(6), place, tmp_path))
    before = cold.storage_at(place).sizes()
    for other in (journal_of(*(decision(n + 100) for n in range(60))), everything(2)):
        with pytest.raises(StoreError, match=r"another journal's, or this one was restored.*new place"):
            feed_of(other, place, tmp_path).step()
        assert cold.storage_at(place).sizes() == before


def test_storage_that_is_away(s3: S3, s3_place: str, tmp_path: Path) -> None:
    """While a server is down steps fail with its address; afterwards everything is written, once."""
    journal = everything(6)
    assert feed_of(journal, s3_place, tmp_path).step() == 10
    feed = feed_of(journal, s3_place, tmp_path)
    s3.stop()
    try:
        for _ in range(2):
            with pytest.raises(StoreError, match=rf"{s3_place}.*127.0.0.1:{s3.port}.*see that the server is up"):
                feed.step()
    finally:
        s3.start()
    drain(feed)
    assert events_at(s3_place) == all_of(journal)


def test_wrong_buckets_and_credentials(s3_place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the place and the variable to correct, and never a secret."""
    from moto import settings
    from moto.core.responses import ActionAuthenticatorMixin

    with pytest.raises(
        StoreError, match=r"'s3://no-such-bucket/x' cannot be listed: the bucket does not exist.*NoSuch"
    ):
        feed_of(everything(1), "s3://no-such-bucket/x", tmp_path).step()
    monkeypatch.setattr(settings, "INITIAL_NO_AUTH_ACTION_COUNT", 0)
    monkeypatch.setattr(ActionAuthenticatorMixin, "request_count", 0)
    with pytest.raises(StoreError, match="correct AWS_ACCESS_KEY_ID") as raised:
        feed_of(everything(1), s3_place, tmp_path).step()
    cause, storage = raised.value.__cause__, cold.storage_at(s3_place)
    assert not any(secret in str(raised.value) for secret in KEYS.values() if secret != KEYS["AWS_REGION"])
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in f"{cause!r}{storage!r}{vars(storage)}"
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(StoreError, match="no credentials: set AWS_ACCESS_KEY_ID"):
        feed_of(everything(1), s3_place, tmp_path).step()


FULL = """
import resource, signal, sys
from pathlib import Path
from fitrouter.errors import StoreError
from fitrouter.stores.cold_feed import ColdFeed
from fitrouter.stores.journal import SqliteJournal

place, folder = sys.argv[1], Path(sys.argv[2])
feed = ColdFeed(SqliteJournal(folder / "journal.db"), place, folder, every_s=0.0)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))
try:
    feed.step()
except StoreError as error:
    print("refused:", error)
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
while feed.step():
    pass
"""


def test_a_full_disk(place: str, tmp_path: Path, journal: SqliteJournal) -> None:
    """A file that cannot be written is told, leaves nothing, and is written when there is room."""
    journal.append(*map(Entry, story(6))).result()
    ended = run(FULL, place, str(tmp_path), check=True)
    assert "refused: " in ended.stdout, ended
    assert "cannot be written to the cold store" in ended.stdout
    assert events_at(place) == all_of(journal)
    assert not list(tmp_path.glob("**/*.new*"))
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 3000


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """The message says what to look at."""
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StoreError, match=r"file/x' cannot be .*see that the folder is mounted"):
        feed_of(everything(1), str(tmp_path / "file" / "x"), tmp_path).step()


def test_places(tmp_path: Path) -> None:
    """A place is a folder or the URL of a bucket; another URL is refused, without what may be a secret in it."""
    config = {"providers": {"s": {"kind": "simulated"}}, "models": [{"name": "a", "provider": "s"}]}
    for wrong in ("s3://key:hidden-secret@bucket/x", "https://hidden-secret/x", "s3://", "s3://b?secret=hidden", ""):
        with pytest.raises(ConfigError, match=r"cold.place: it must be a folder or s3://BUCKET/PREFIX") as raised:
            parse_config(config | {"cold": {"place": wrong}})
        assert "hidden" not in str(raised.value)
    with pytest.raises(ConfigError, match=r"\['days'\] need 'place'"):
        parse_config(config | {"cold": {"days": 3.0}})
    assert cold.place_of(Path("s3://bucket/some/where")) == "s3://bucket/some/where"
    assert cold.place_of("/some/where") == ""
    for place in (tmp_path / "data" / "cold", tmp_path / "other", tmp_path / "data" / "cold"):
        (tmp_path / "data").mkdir(exist_ok=True)
        cold.note_place(tmp_path / "data", cold.storage_at(str(place)))
    assert cold.noted_places(tmp_path / "data") == [str(tmp_path / "other"), "cold"], "the present one is the last"
    assert cold.storage_at("cold", tmp_path / "moved").place == str(tmp_path / "moved" / "cold")


def test_without_obstore(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket needs the extra `s3`, and says so; a folder does not."""
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingExtra, match=r"fitrouter\[s3\]"):
        cold.storage_at("s3://bucket/x")
    cold.storage_at("folder")


# --- moving old events ---------------------------------------------------------------------------------------------


def told(journal: SqliteJournal, n: int = 40, seed: int = 5) -> list[Row]:
    """Answers, scores and votes of three people, and a snapshot after them."""
    log = Log(journal, np.random.default_rng(seed))  # type: ignore[arg-type]
    for k in range(n):
        log.score(name := log.answer(("ann", BOB, "eve")[k % 3], "ab"[k % 2]))
        log.vote(name, float(k % 2))
    journal.save(Snapshot(journal.head(), {}))
    return all_of(journal)


def move(journal: SqliteJournal, place: Path | str = "cold", **more: Any) -> ColdFeed:
    """Write and move all events."""
    feed = feed_of(journal, str(place), journal.path.parent, **{"days": 0.5, "events": 25} | more)
    drain(feed)
    return feed


def payloads(path: Path) -> int:
    """Rows that have their payload in the table."""
    with closing(sqlite3.connect(path)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM events WHERE length(payload) > 0").fetchone()
    return int(count)


def state(journal: Journal) -> dict[str, bytes]:
    made = learner()
    catch_up(made, journal, journal.head())
    return dict(made.state())


def test_nothing_that_reads_the_journal_notices(place: str, journal: SqliteJournal, tmp_path: Path) -> None:
    """Every method, the learner, `check`, replay and a copy are the same; a repeated event is still one."""
    rows, before = told(journal), state(journal)
    names = [row.event.id for row in rows]
    some = [*names[::7], "ann", BOB]
    seen = [[journal.of(name) for name in some], journal.latest(["score"], 300), journal.counts("ann")]
    move(journal, place)
    assert len(ranges(place)) > 4
    assert payloads(journal.path) == 0
    with closing(SqliteJournal(journal.path)) as other:  # as another process, with nothing in memory
        assert all_of(other) == rows
        assert [[other.of(name) for name in some], other.latest(["score"], 300), other.counts("ann")] == seen
        assert other.event(names[0]) == rows[0].event
        assert other.append(Entry(rows[0].event)).result() == rows[0].seq
        assert state(other) == before
    report = check(journal.path)
    assert (report.events, report.sound) == (len(rows), True)
    with replayed.open_journal(journal.path) as log:
        assert log.connection.execute("SELECT count(*) FROM decisions").fetchone() == (40,)
    journal.close()
    (tmp_path / "elsewhere").mkdir()
    with (
        closing(FilePlace(journal.path, new=False)) as one,
        closing(FilePlace(tmp_path / "elsewhere/j.db", new=True)) as two,
    ):
        assert copy(one, two).events == len(rows)
    with closing(SqliteJournal(tmp_path / "elsewhere/j.db")) as copied:
        assert all_of(copied) == rows


def test_a_start_reads_no_file(journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot has all that the moved events taught; the state is the same bits, and events go on."""
    told(journal)
    live = learner()
    catch_up(live, journal, journal.head())
    journal.save(live.snapshot())
    move(journal)
    monkeypatch.setattr(cold.Payloads, "_read", None)
    with closing(SqliteJournal(journal.path)) as other:
        made = learner()
        assert restore(made, other)
        catch_up(made, other, other.head())
        assert made.digest() == live.digest()
        assert other.append(Entry(Refit(id="r", ts=1.0))).result() == other.head()


def test_what_stays(journal: SqliteJournal) -> None:
    """Events that are too young, after the snapshot, or not in the warehouse yet."""
    rows = told(journal)
    feed = WarehouseFeed(journal, Warehouse(journal.path.parent / "w.duckdb"))
    for more in ({"days": None}, {"clock": lambda: 0.0}, {"warehouse": feed}):
        move(journal, **more)
        assert payloads(journal.path) == len(rows)
    journal.erase(["nobody"], "default", 1.0)
    journal.erase([BOB], "default", 1.0)  # which deletes the snapshot
    move(journal)
    assert payloads(journal.path) == len(all_of(journal)) > 0
    assert events_at(str(journal.path.parent / "cold"))


def test_two_workers(journal: SqliteJournal) -> None:
    """Both move and read at once: no reader misses a row."""
    rows, failures = told(journal, 80), list[Exception]()
    with closing(SqliteJournal(journal.path)) as other:

        def work(mine: SqliteJournal) -> None:
            try:
                feed = feed_of(mine, "cold", mine.path.parent, days=0.5, events=25)
                for _ in range(12):
                    feed.step()
                    assert all_of(mine) == rows
            except Exception as error:  # noqa: BLE001
                failures.append(error)

        threads = [threading.Thread(target=work, args=(one,)) for one in (journal, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    move(journal)
    assert payloads(journal.path) == 0


def test_a_place_that_is_gone_is_told(journal: SqliteJournal, tmp_path: Path) -> None:
    """Readers go on without its events, and nothing is written over them; a new place is filled from the old one."""
    rows = told(journal)
    move(journal)
    move(journal, "second")
    assert events_at(str(tmp_path / "second")) == rows
    (tmp_path / "cold").rename(tmp_path / "away")
    (tmp_path / "second").rename(tmp_path / "too")
    with closing(SqliteJournal(journal.path)) as other:
        assert all_of(other) == []
        with pytest.raises(StoreError, match=r"160 of the events 1 to 160 were moved .* restore it from a backup"):
            move(other)
    assert len(check(journal.path).damaged) == len(rows)
    (tmp_path / "away").rename(tmp_path / "cold")
    with closing(SqliteJournal(journal.path)) as other:
        assert all_of(other) == rows


def test_old_requests_are_deleted(
    place: str, tmp_path: Path, journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `keep_days` they leave the files, whatever else is known stays, and readers do not take it for damage.

    A copy goes on behind a batch of which nothing is left.
    """
    events = [msgspec.structs.replace(event, ts=START + i * DAY_S) for i, event in enumerate(reversed(story(10)))]
    journal.append(*map(Entry, events)).result()
    journal.save(Snapshot(journal.head(), {}))
    clock = START + 30.0 * DAY_S
    move(journal, place, days=5.0, keep_days=10.0, clock=lambda: clock)
    young = [row for row in all_of(journal) if row.event.ts > clock - 12.0 * DAY_S]
    old = {type(row.event).__name__ for row in all_of(journal) if row not in young}
    assert old >= {"ProfileChange", "ModelChange", "ArtifactChange"}
    assert not old & {"Decision", "Execution", "Score", "Feedback", "Remark"}
    assert {type(row.event).__name__ for row in young} >= {"Decision", "Score"}
    assert events_at(place) == all_of(journal)
    assert check(journal.path).sound
    kept = [row.seq for row in all_of(journal)]
    journal.close()
    monkeypatch.setattr(_copy, "BATCH", 1)
    with closing(FilePlace(journal.path, new=False)) as one:
        found = [0]
        while rows := one.rows(found[-1]):
            found += [row[0] for row in rows]
    assert found[1:] == kept
    assert max(kept) > len(kept)


def test_the_warehouse_keeps_the_last_days(place: str, tmp_path: Path, journal: SqliteJournal) -> None:
    """Old requests leave it once they are in the cold store; a file that is filled again gets all, and is pruned again.

    Recorded replays stay in a file of another version, which is filled from journal and cold store together.
    """
    journal.append(*(Entry(msgspec.structs.replace(decision(n), ts=n * DAY_S)) for n in range(12))).result()
    journal.save(Snapshot(12, {}))
    warehouse, count = Warehouse(tmp_path / "fitrouter.duckdb"), "SELECT min(seq), count(*) FROM decisions"
    feed = WarehouseFeed(journal, warehouse)
    cooling = feed_of(journal, place, tmp_path, feed, days=5.0, clock=lambda: 12.5 * DAY_S)
    drain(cooling)
    assert payloads(journal.path) == 12, "the feed has not begun"

    def fill() -> None:
        while feed.step():
            pass

    fill()
    warehouse.note_runs([("run", 1.0, *[""] * 5, *[0.0] * 3, 1, *[0.0] * 4, "promote")])
    drain(cooling)
    assert warehouse.query(count) == [(8, 5)]
    assert payloads(journal.path) == 5
    import duckdb

    with duckdb.connect(warehouse.path) as connection:
        connection.execute("UPDATE position SET schema = 'another'")
    feed.release()
    fill()
    assert warehouse.query(count) == [(1, 12)], "from the journal and the cold store"
    assert warehouse.query("SELECT run_id FROM ope_runs") == [("run",)]
    drain(feed_of(journal, place, tmp_path, feed, days=5.0, clock=lambda: 12.5 * DAY_S))
    assert warehouse.query(count) == [(8, 5)]
    feed.release()


def test_damage_of_the_journal_loses_no_event_of_the_cold_store(journal: SqliteJournal, tmp_path: Path) -> None:
    """A journal is salvaged with the files' events, moved or not, also those whose pages are lost."""
    rows = told(journal)
    move(journal, days=None)
    path = journal.path
    journal.close()
    data = bytearray(path.read_bytes())
    page = int.from_bytes(data[16:18], "big")
    for number in range(3, len(data) // page, 2):
        data[number * page : number * page + 200] = bytes(200)
    path.write_bytes(data)
    with closing(SqliteJournal(path)) as salvaged:
        assert salvaged.quarantined
        assert list(salvaged.tail(0, len(rows))) == rows
    (tmp_path / "elsewhere").mkdir()
    made = CliRunner().invoke(app, ["journal", "salvage", str(tmp_path / "elsewhere/copy.db"), "--file", str(path)])
    assert made.exit_code == 0, made.output
    assert check(tmp_path / "elsewhere/copy.db").sound


# --- erasure -------------------------------------------------------------------------------------------------------


def test_an_erased_user_is_in_no_file(place: str, tmp_path: Path, journal: SqliteJournal) -> None:
    """All events of theirs, and others' votes on their answers, are gone; every other one stays as it was."""
    journal.append(*map(Entry, [*story(12), feedback(1, 9, 1.0, "stranger")])).result()
    drain(feed := feed_of(journal, place, tmp_path, events=5))
    before, theirs = events_at(place), {"d1", "d6", "d11"}
    with closing(SqliteIdentities(tmp_path / "identities.db")) as identities:
        assert journal.erase(["user-1"], "acme", 5.0) > 0
        Eraser(journal, identities, None, tmp_path).finish()
    assert not journal.unfinished()

    def gone(event: Event) -> bool:
        identity = getattr(event, "identity", None)
        return (identity is not None and identity.user == "user-1") or getattr(event, "decision_id", "") in theirs

    kept = [row for row in before if not gone(row.event)]
    assert events_at(place) == kept
    assert len(before) - len(kept) == 14  # with a stranger's vote and a remark
    drain(feed)
    assert events_at(place) == all_of(journal)


@pytest.mark.parametrize("when", ["after", "while it is written"])
def test_what_is_learnt_is_that_of_a_log_without_the_user(
    journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Also if the writer lost its lease, had read the rows before the erasure, and writes them after it."""
    rows = told(journal)
    gone = {row.event.id for row in journal.of(BOB)}
    never = journal_of(*(row.event for row in rows if row.event.id not in gone))
    digests, folder = [digest_of(BOB)], journal.path.parent
    if when == "after":
        move(journal)
        assert journal.erase([BOB], "default", 2.0) == len(gone)
    else:
        before: Callable[..., None] = cold.write
        erased = iter([lambda: journal.erase([BOB], "default", 2.0)])

        def late(*arguments: Any) -> None:
            for act in erased:
                act()
            before(*arguments)

        monkeypatch.setattr(cold, "write", late)
        move(journal)
    if when == "after":
        erase_cold(journal, folder, digests, float("inf"))
    journal.compact()
    assert BOB.encode() not in b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    kept = [row.event for row in rows if row.event.id not in gone]
    assert [row.event for row in all_of(journal)][: len(kept)] == kept
    assert state(journal) == state(never)
    assert check(journal.path).sound


def test_a_person_is_gone_from_the_whole_folder(tmp_path: Path) -> None:
    """With a router, the warehouse and the command: no byte in any file, and the folder goes on."""
    place = tmp_path / "data" / "cold"
    config = settings(tmp_path / "data").model_copy(update={"cold": ColdConfig(place=str(place), every_s=1.0)})

    async def life() -> None:
        async with Router.from_config(config) as router:
            await lived(router, [Identity(user="ann"), ZOE, Identity(user="ben")])

    asyncio.run(life())
    names = tokens(config.data)
    journal, identities, eraser = opened(config.data)
    move(journal, place, events=8, clock=lambda: 4e9)
    assert payloads(journal.path) < 16
    assert any(
        getattr(row.event, "identity", None) and row.event.identity.user in names for row in events_at(str(place))
    )  # type: ignore[union-attr]
    assert eraser.erase("default", SECRETS[0]).unfinished == ""
    assert found(config.data, (*SECRETS[:1], *names)) == []
    assert not any(
        getattr(row.event, "identity", None) and row.event.identity.user in names  # type: ignore[union-attr]
        for row in events_at(str(place))
    )
    assert journal.of(tokens(config.data, "ann")[0])
    journal.close()
    identities.close()
    asyncio.run(life())


def test_an_erasure_waits_for_storage_that_is_away(
    s3: S3, s3_place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is unfinished as long as rows may be left there, and says why; all else is done meanwhile, once."""
    (subject,) = filled(tmp_path)
    journal, identities, eraser = opened(tmp_path)
    drain(feed_of(journal, s3_place, tmp_path))

    def there() -> bool:
        return any(subject in repr(row) for row in events_at(s3_place))

    assert there()
    compactions: list[float] = []
    compact = journal.compact
    monkeypatch.setattr(journal, "compact", lambda s: (compactions.append(s), compact(s)))
    s3.stop()
    try:
        done = eraser.erase("default", SECRETS[0], patience_s=5.0)
        assert "the server is up" in done.unfinished
        with pytest.raises(StoreError, match="the server is up"):
            eraser.step()
    finally:
        s3.start()
    assert len(compactions) == 1
    assert not tokens(tmp_path)
    eraser.step()
    assert not journal.unfinished()
    assert not there()
    journal.close()
    identities.close()


def test_an_erasure_waits_for_a_writer(tmp_path: Path, journal: SqliteJournal) -> None:
    """It takes the writers' lease, and says so if it does not get it."""
    told(journal)
    move(journal)
    lease = journal.lease("cold")
    assert lease.held()
    with pytest.raises(StoreError, match="another process is writing to the cold store"):
        erase_cold(journal, tmp_path, [digest_of(BOB)], 0.0)
    lease.release()
    erase_cold(journal, tmp_path, [digest_of(BOB)], 0.0)
    assert BOB not in repr(events_at(str(tmp_path / "cold")))


def test_former_places_are_erased_too(tmp_path: Path, journal: SqliteJournal) -> None:
    """An erasure reaches every place that the data folder has ever used, also when the setting has changed since."""
    journal.append(*map(Entry, story(12))).result()
    places = [str(tmp_path / name) for name in ("one", "two")]
    for place in places:
        drain(feed_of(journal, place, tmp_path))
        assert "user-1" in repr(events_at(place))
    erase_cold(journal, tmp_path, [digest_of("user-1")], 0.0)
    for place in places:
        assert "user-1" not in repr(events_at(place))


# --- in a router ---------------------------------------------------------------------------------------------------


def test_answers_go_on_while_storage_is_away(s3: S3, s3_place: str, tmp_path: Path) -> None:
    """A router answers, learns and reports the trouble; what was logged meanwhile is written afterwards."""
    notices = list[Notice]()
    config = settings(tmp_path).model_copy(update={"cold": ColdConfig(place=s3_place, every_s=1.0)})

    async def live() -> None:
        async with Router.from_config(config, hooks=Hooks(notices.append)) as router:
            (service,) = [each for each in router._services if each.part == "cold"]
            service.retry_s = service.idle_s = 0.1
            s3.stop()
            try:
                while not any(isinstance(notice, Trouble) and notice.part == "cold" for notice in notices):
                    await lived(router, [ZOE])
                assert router.faults() == {}
            finally:
                s3.start()
            head = router._journal.head()
            while not (made := ranges(s3_place)) or made[-1][1] < head:  # noqa: ASYNC110 - another thread writes it
                await asyncio.sleep(0.1)

    asyncio.run(asyncio.wait_for(live(), 120.0))
    with closing(SqliteJournal(tmp_path / "journal.db")) as journal:
        written = events_at(s3_place)
        assert repr(written) == repr(all_of(journal)[: len(written)])
