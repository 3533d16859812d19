"""Laws of segments, in a folder and in a bucket: every event once, whoever dies, whatever is away or damaged."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest
from tests.kits.s3 import KEYS, S3
from tests.stores.test_erasure import SECRETS, ZOE, filled, lived, opened, settings, tokens
from tests.stores.test_warehouse import decision, execution, feedback, journal_of, story

from fitrouter.config import WarehouseConfig, parse_config
from fitrouter.errors import ConfigError, MissingExtra, StoreError
from fitrouter.hooks import Hooks, Notice, Trouble
from fitrouter.router import Router
from fitrouter.stores.erasure import Eraser
from fitrouter.stores.identities import SqliteIdentities
from fitrouter.stores.journal import Entry, Journal, MemoryJournal, SqliteJournal, digest_of
from fitrouter.stores.retention import LocalRetention
from fitrouter.stores.warehouse import TABLES, Warehouse, WarehouseFeed
from fitrouter.stores.warehouse.segments import (
    MANIFEST,
    Editor,
    Manifest,
    SegmentFeed,
    Superseded,
    _editor,
    erase_segments,
    fetch,
    manifest_of,
    place_of,
    storage_at,
)
from fitrouter.types import Erasure, Event, Identity

ROOT = Path(__file__).resolve().parents[2]
DAY_S = 86_400.0


def feed_of(journal: Journal, place: str, folder: Path, **settings: Any) -> SegmentFeed:
    return SegmentFeed(journal, place, folder, **{"every_s": 0.0, "events": 10} | settings)


def drain(feed: SegmentFeed) -> int:
    """Steps until nothing is due; the number of steps that did something."""
    steps = 0
    while feed.step():
        steps += 1
    return steps


def manifest_at(place: str) -> Manifest:
    return manifest_of(storage_at(place)).manifest


def rows_at(place: str, folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of every table, in the order of the files."""
    folder = folder / "read"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    _, files = fetch(storage_at(place), TABLES, folder)
    with duckdb.connect() as connection:
        return {
            table: connection.read_parquet([str(path) for path in paths], union_by_name=True).fetchall()
            for table, paths in files.items()
        }


def rows_of_file(events: Any, folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of the same journal in a file of DuckDB."""
    warehouse = Warehouse(folder / "compared.duckdb")
    feed = WarehouseFeed(events, warehouse)
    while feed.step():
        pass
    found = {table: warehouse.query(f"SELECT * FROM {table} ORDER BY seq") for table in TABLES}
    feed.release()
    return {table: rows for table, rows in found.items() if rows}


def everything(n: int) -> MemoryJournal:
    return journal_of(*story(n))


def test_the_rows_are_those_of_the_file(place: str, tmp_path: Path) -> None:
    """Every event is in one segment, with the rows that the file of DuckDB has, in the journal's order."""
    journal = everything(6)
    drain(feed_of(journal, place, tmp_path))
    assert rows_at(place, tmp_path) == rows_of_file(journal, tmp_path)
    found = manifest_at(place)
    assert found.seq == journal.head() == 29
    assert [(each.first, each.last) for each in found.segments] == [(1, 10), (11, 20), (21, 29)]
    assert storage_at(place).sizes().keys() == {*found.names(), MANIFEST}


def test_events_wait_until_they_are_many_or_old(place: str, tmp_path: Path) -> None:
    """A segment is written when it is full, or when its first event has waited for `every_s`."""
    now = [0.0]
    journal = journal_of(*[decision(n) for n in range(3)])
    feed = feed_of(journal, place, tmp_path, every_s=600.0, timer=lambda: now[0])
    assert feed.step() == 0
    now[0] = 599.0
    assert feed.step() == 0
    now[0] = 600.0
    assert feed.step() == 3
    journal.append(*[Entry(decision(n)) for n in range(3, 16)]).result()
    assert [feed.step(), feed.step()] == [10, 0]
    now[0] = 1300.0
    assert feed.step() == 3


def test_small_segments_are_merged(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many writes leave few segments, without a row lost, and no file that is not in the manifest."""
    monkeypatch.setattr(_editor, "FAN_IN", 3)
    journal = MemoryJournal()
    feed = feed_of(journal, place, tmp_path)
    for event in story(5):
        journal.append(Entry(event)).result()
        drain(feed)
    found = manifest_at(place)
    assert found.seq == 25
    assert [each.level for each in found.segments] == [2, 2, 1, 1]  # an event has no table
    assert [each.first for each in found.segments[1:]] == [each.last + 1 for each in found.segments[:-1]]
    assert rows_at(place, tmp_path) == rows_of_file(journal, tmp_path)
    assert storage_at(place).sizes().keys() == {*found.names(), MANIFEST}


def test_retention_drops_whole_segments(place: str, tmp_path: Path) -> None:
    """Requests older than `days` go, newer ones stay, and so do the profiles, models and policies in force."""
    start, events = 1_700_000_000.0, story(20)
    ordered = enumerate([*events[-5:], *events[:-5]])
    journal = journal_of(*(msgspec.structs.replace(event, ts=start + i * DAY_S) for i, event in ordered))
    now = [start]
    feed = feed_of(journal, place, tmp_path, days=40.0, clock=lambda: now[0])
    drain(feed)
    whole = rows_at(place, tmp_path)
    now[0] = start + 75.0 * DAY_S
    drain(feed)
    rows, found = rows_at(place, tmp_path), manifest_at(place)
    assert found.seq == journal.head()
    assert {name: rows[name] for name in ("profiles", "models", "policies")} == {
        name: whole[name] for name in ("profiles", "models", "policies")
    }
    times = [row[2] for row in rows["decisions"]]
    assert times == [row[2] for row in whole["decisions"]][-len(times) :]
    assert max(times) > now[0] - 40.0 * DAY_S > min(times) > now[0] - 52.0 * DAY_S  # one segment spans ten days
    assert storage_at(place).sizes().keys() == {*found.names(), MANIFEST}
    assert drain(feed) == 0


def test_merged_segments_do_not_outlive_retention(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No merged segment spans more than a tenth of `days`."""
    monkeypatch.setattr(_editor, "FAN_IN", 3)
    events: list[Event] = [msgspec.structs.replace(decision(n), ts=n * DAY_S) for n in range(12)]
    drain(feed_of(journal_of(*events), place, tmp_path, events=1, days=50.0, clock=lambda: 0.0))
    assert [each.end - each.start for each in manifest_at(place).segments] == [2 * DAY_S] * 4  # not eight


# --- crashes and other processes -----------------------------------------------------------------------------------

KILLED = """
import itertools, os, signal, sys
from pathlib import Path

from fitrouter.stores.journal import SqliteJournal
from fitrouter.stores.warehouse.segments import SegmentFeed

place, folder, at = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
journal = SqliteJournal(folder / "journal.db")
feed = SegmentFeed(journal, place, folder, every_s=0.0, events=8)
calls = itertools.count()

def dying(method):
    def call(*args):
        if next(calls) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        result = method(*args)
        if next(calls) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return call

for name in ("put", "replace", "delete"):
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


@pytest.fixture
def written(tmp_path: Path) -> SqliteJournal:
    journal = SqliteJournal(tmp_path / "journal.db")
    journal.append(*map(Entry, story(6))).result()
    return journal


def test_kill_at_any_moment(place: str, tmp_path: Path, written: SqliteJournal) -> None:
    """A process that is killed before or after any write, commit or deletion loses and doubles no row."""
    expected = rows_of_file(written, tmp_path)
    for at in (1, 2, 5, 10, 11, 24, 37, 45):
        ended = run(KILLED, place, str(tmp_path), str(at))
        assert ended.returncode == -signal.SIGKILL or "done" in ended.stdout, ended.stderr
        if manifest_at(place).seq:
            seq = manifest_at(place).seq
            rows = rows_at(place, tmp_path)
            assert rows == {
                table: kept for table, all_ in expected.items() if (kept := [row for row in all_ if row[0] <= seq])
            }
    drain(feed := feed_of(written, place, tmp_path, events=8))
    assert rows_at(place, tmp_path) == expected
    assert storage_at(place).sizes().keys() == {*manifest_at(place).names(), MANIFEST}
    feed.release()


def test_only_the_holder_of_the_lease_writes(place: str, tmp_path: Path, written: SqliteJournal) -> None:
    """Of two gateways on a journal one writes; the other goes on when it ends."""
    one, other = feed_of(written, place, tmp_path), feed_of(written, place, tmp_path)
    assert one.step() == 10
    version = manifest_at(place).version
    assert (other.step(), other.holds, one.holds) == (0, False, True)
    assert manifest_at(place).version == version
    one.release()
    drain(other)
    assert other.holds
    assert rows_at(place, tmp_path) == rows_of_file(written, tmp_path)


def test_a_writer_that_was_replaced_changes_nothing(place: str, tmp_path: Path) -> None:
    """Whoever began to write later wins, without lease and clock; commits of the other are refused, its files go."""
    journal = everything(6)
    old = feed_of(journal, place, tmp_path)
    assert old.step() == 10
    stale = old._editor
    assert stale is not None
    new = Editor(storage_at(place), tmp_path)
    with pytest.raises(Superseded, match="changed by another process"):
        stale.commit([])
    with stale.scratch() as folder, duckdb.connect() as connection:
        stale.write(connection, "SELECT 1 AS seq", "decisions", 11, 11, folder)
    assert manifest_at(place) == new.manifest
    orphans = storage_at(place).sizes().keys() - {*new.manifest.names(), MANIFEST}
    assert orphans  # uploaded, and never committed
    assert new.sweep() == []
    assert storage_at(place).sizes().keys() == {*new.manifest.names(), MANIFEST}
    drain(old)  # it begins again, and is the later one now
    assert rows_at(place, tmp_path) == rows_of_file(journal, tmp_path)


def test_a_sweep_leaves_what_a_later_writer_has_not_committed_yet(place: str, tmp_path: Path) -> None:
    """A writer that slept through the takeover deletes no file of its successor."""
    journal = everything(6)
    drain(feed := feed_of(journal, place, tmp_path))
    asleep = feed._editor
    assert asleep is not None
    successor = Editor(storage_at(place), tmp_path)
    with successor.scratch() as folder:
        with duckdb.connect() as connection:
            file = successor.write(connection, "SELECT 1 AS seq", "decisions", 30, 30, folder)
        assert file is not None
        asleep.sweep()
        assert file.name in storage_at(place).sizes()


def test_writers_without_a_common_lease(place: str, tmp_path: Path) -> None:
    """Copies of one journal whose gateways take turns by accident write every row once."""
    journals = [everything(6), everything(6)]
    expected = rows_of_file(journals[0], tmp_path)
    failures: list[StoreError] = []

    def work(journal: Journal, number: int) -> None:
        (own := tmp_path / str(number)).mkdir()
        feed = feed_of(journal, place, own, events=3)
        for _ in range(200):
            try:
                if not feed.step() and manifest_at(place).seq == 29:
                    return
            except Superseded:
                continue
            except StoreError as error:
                if "No such file" in str(error):  # the other has swept what was under way
                    continue
                failures.append(error)
                return

    threads = [threading.Thread(target=work, args=(journal, i)) for i, journal in enumerate(journals)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert rows_at(place, tmp_path) == expected


# --- what is wrong -------------------------------------------------------------------------------------------------


def harm(place: str, name: str, data: bytes | None, folder: Path) -> None:
    storage = storage_at(place)
    storage.delete([name])
    if data is not None:
        (path := folder / "harm").write_bytes(data)
        storage.put(path, name)


@pytest.mark.parametrize("how", ["truncated", "missing", "changed"])
def test_a_damaged_file_is_told_and_repaired(
    place: str, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reads it gets the name of the file and what to do; the gateway writes it again from the journal."""
    journal = everything(6)
    drain(feed := feed_of(journal, place, tmp_path))
    expected = rows_at(place, tmp_path)
    file = manifest_at(place).segments[1].files["decisions"]
    storage_at(place).fetch(file.name, tmp_path / "whole")
    data = (tmp_path / "whole").read_bytes()
    harmed = {"truncated": data[:100], "missing": None, "changed": b"x" + data[1:]}[how]
    harm(place, file.name, harmed, tmp_path)
    said = {"truncated": f"has 100 of {file.size} bytes", "missing": "is missing", "changed": "other bytes"}[how]
    with pytest.raises(StoreError, match=rf"{file.name} .*{said}.*repairs it"):
        rows_at(place, tmp_path)
    feed.release()
    if how == "changed":  # no listing shows it: merging and erasing find it
        monkeypatch.setattr(_editor, "FAN_IN", 3)
        drain(feed)
        assert rows_at(place, tmp_path) == rows_of_file(journal, tmp_path)
    else:
        drain(feed)
        assert rows_at(place, tmp_path) == expected


def test_a_damaged_segment_is_repaired_in_parts(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merged segment that is damaged is written again, as several if it is too large for one."""
    monkeypatch.setattr(_editor, "FAN_IN", 3)
    journal = everything(6)
    feed = feed_of(journal, place, tmp_path, events=4)
    drain(feed)
    merged = next(each for each in manifest_at(place).segments if each.level == 1)
    harm(place, merged.files["decisions"].name, None, tmp_path)
    feed.release()
    drain(feed)
    assert rows_at(place, tmp_path) == rows_of_file(journal, tmp_path)


def test_another_journal_is_refused(place: str, tmp_path: Path) -> None:
    """Segments of another journal, or of a later state of a restored one, are neither continued nor changed."""
    drain(feed_of(everything(6), place, tmp_path))
    found = manifest_at(place).segments
    for other in (journal_of(*(decision(n + 100) for n in range(60))), everything(2)):
        with pytest.raises(StoreError, match=r"another journal's, or this one was restored.*new place"):
            feed_of(other, place, tmp_path).step()
        assert manifest_at(place).segments == found


def test_deleted_segments_are_written_again(place: str, tmp_path: Path) -> None:
    """Without a manifest the gateway begins anew, also while it runs, and leaves no file of before."""
    journal = everything(6)
    drain(feed := feed_of(journal, place, tmp_path))
    storage_at(place).delete([MANIFEST])
    journal.append(Entry(decision(100))).result()
    drain(feed)
    assert rows_at(place, tmp_path) == rows_of_file(journal, tmp_path)
    assert storage_at(place).sizes().keys() == {*manifest_at(place).names(), MANIFEST}


@pytest.mark.parametrize(("data", "said"), [(b"{", "is damaged"), (b'{"format": 2}', "format 2, written by a later")])
def test_a_manifest_that_cannot_be_read(place: str, tmp_path: Path, data: bytes, said: str) -> None:
    """A damaged manifest, and one of a later version, are told with the way out, and left alone."""
    storage_at(place).replace(MANIFEST, data, None)
    with pytest.raises(StoreError, match=rf"{said}.*delete segments.json"):
        feed_of(everything(1), place, tmp_path).step()
    found = storage_at(place).read(MANIFEST)
    assert found is not None
    assert found.data == data


def test_a_lost_reply_is_no_failure(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that is repeated because its reply was lost counts once."""
    feed = feed_of(everything(6), place, tmp_path)
    storage = feed.storage
    replace = storage.replace

    def twice(name: str, data: bytes, tag: str | None) -> str:
        replace(name, data, tag)
        return replace(name, data, tag)

    monkeypatch.setattr(storage, "replace", twice)
    drain(feed)
    assert rows_at(place, tmp_path) == rows_of_file(everything(6), tmp_path)


def test_storage_that_is_away(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a server is down steps fail with its address; afterwards everything is written, once."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    place, journal = s3.place(), everything(6)
    feed = feed_of(journal, place, tmp_path)
    assert feed.step() == 10
    feed.release()
    monkeypatch.setattr("fitrouter.stores.warehouse.segments._bucket._RETRY_S", 0.1)
    feed = feed_of(journal, place, tmp_path)
    s3.stop()
    try:
        for _ in range(2):
            with pytest.raises(StoreError, match=rf"{place}.*127.0.0.1:{s3.port}.*see that the server is up"):
                feed.step()
    finally:
        s3.start()
    drain(feed)
    assert rows_at(place, tmp_path) == rows_of_file(journal, tmp_path)


def test_wrong_buckets_and_credentials(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the place and the variable to correct, and never a secret."""
    from moto import settings
    from moto.core.responses import ActionAuthenticatorMixin

    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    place = s3.place()
    with pytest.raises(StoreError, match=r"'s3://no-such-bucket/x' cannot be read: the bucket does not exist.*NoSuch"):
        feed_of(everything(1), "s3://no-such-bucket/x", tmp_path).step()
    monkeypatch.setattr(settings, "INITIAL_NO_AUTH_ACTION_COUNT", 0)
    monkeypatch.setattr(ActionAuthenticatorMixin, "request_count", 0)
    with pytest.raises(StoreError, match="correct AWS_ACCESS_KEY_ID") as raised:
        feed_of(everything(1), place, tmp_path).step()
    cause = raised.value.__cause__
    assert not any(secret in str(raised.value) for secret in KEYS.values() if secret != KEYS["AWS_REGION"])
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in f"{cause!r}{storage_at(place)!r}{vars(storage_at(place))}"
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(StoreError, match="no credentials: set AWS_ACCESS_KEY_ID"):
        feed_of(everything(1), place, tmp_path).step()


FULL = """
import resource, signal, sys
from pathlib import Path

from fitrouter.errors import StoreError
from fitrouter.stores.journal import SqliteJournal
from fitrouter.stores.warehouse.segments import SegmentFeed

place, folder = sys.argv[1], Path(sys.argv[2])
journal = SqliteJournal(folder / "journal.db")
feed = SegmentFeed(journal, place, folder, every_s=0.0)
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


def test_a_full_disk(place: str, tmp_path: Path, written: SqliteJournal) -> None:
    """A file that cannot be written is told, leaves nothing, and is written when there is room."""
    ended = run(FULL, place, str(tmp_path), check=True)
    assert "refused: segments cannot be written" in ended.stdout, ended
    assert rows_at(place, tmp_path) == rows_of_file(written, tmp_path)
    assert not list(tmp_path.glob("segments.new-*"))
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 3000


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """The message says what to look at."""
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StoreError, match=r"file/x' cannot be .*see that the folder is mounted"):
        feed_of(everything(1), str(tmp_path / "file" / "x"), tmp_path).step()


def test_places() -> None:
    """A place is a folder or the URL of a bucket; another URL is refused, without what may be a secret in it."""
    config = {"providers": {"s": {"kind": "simulated"}}, "models": [{"name": "a", "provider": "s"}]}
    for wrong in ("s3://key:hidden-secret@bucket/x", "https://hidden-secret/x", "s3://", "s3://b?secret=hidden", ""):
        with pytest.raises(
            ConfigError, match=r"warehouse.segments: it must be a folder or s3://BUCKET/PREFIX"
        ) as raised:
            parse_config(config | {"warehouse": {"segments": wrong}})
        assert "hidden" not in str(raised.value)
        with pytest.raises(ConfigError):
            storage_at(wrong)
    with pytest.raises(ConfigError, match=r"'local_days'.*need 'segments'"):
        parse_config(config | {"warehouse": {"local_days": 3}})
    assert parse_config(config | {"warehouse": {"segments": "s3://bucket/x/"}}).warehouse.segments == "s3://bucket/x"
    assert place_of(Path("s3://bucket/a/b")) == place_of("s3://bucket/a/b") == "s3://bucket/a/b"
    assert place_of(Path("/data/s3")) == ""


def test_without_obstore(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket needs the extra; a folder does not."""
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"fitrouter\[s3\]"):
        storage_at("s3://bucket/x")
    storage_at("folder")


# --- erasure -------------------------------------------------------------------------------------------------------


def test_an_erased_user_is_in_no_segment(place: str, tmp_path: Path) -> None:
    """All rows of theirs, and others' votes on their answers, are gone; every other row stays as it was."""
    events = [*story(12), feedback(1, 9, 1.0, "stranger")]
    journal = SqliteJournal(tmp_path / "journal.db")
    journal.append(*map(Entry, events)).result()
    feed = feed_of(journal, place, tmp_path, events=5)
    drain(feed)
    before = rows_at(place, tmp_path)
    theirs = {"d1", "d6", "d11"}
    identities = SqliteIdentities(tmp_path / "identities.db")
    assert journal.erase(["user-1"], "acme", 5.0) > 0
    Eraser(journal, identities, None, tmp_path).finish()
    assert not journal.unfinished()
    after = rows_at(place, tmp_path)

    def gone(row: tuple[Any, ...]) -> bool:
        return "user-1" in row or any(name in row for name in theirs)

    assert after == {table: kept for table, rows in before.items() if (kept := [row for row in rows if not gone(row)])}
    assert sum(map(len, before.values())) - sum(map(len, after.values())) == 14  # with a stranger's vote and a remark
    assert storage_at(place).sizes().keys() == {*manifest_at(place).names(), MANIFEST}
    drain(feed)
    assert manifest_at(place).seq == journal.head()
    identities.close()
    journal.close()


def test_an_erasure_overtakes_a_writer(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that a writer has read before an erasure and writes after it are refused."""
    journal = SqliteJournal(tmp_path / "journal.db")
    journal.append(*map(Entry, story(12))).result()
    feed = feed_of(journal, place, tmp_path, events=30)
    assert feed.step() == 30
    editor = feed._editor
    assert editor is not None
    commit = editor.commit

    def late(*args: Any) -> None:
        journal.erase(["user-1"], "acme", 5.0)
        erase_segments(tmp_path, [digest_of("user-1")])
        commit(*args)

    monkeypatch.setattr(editor, "commit", late)
    drain(feed)
    assert not any("user-1" in row for rows in rows_at(place, tmp_path).values() for row in rows)
    assert storage_at(place).sizes().keys() == {*manifest_at(place).names(), MANIFEST}
    journal.close()


def test_erasures_of_earlier_versions(place: str, tmp_path: Path) -> None:
    """An event of an erasure by subject deletes the earlier rows of that subject only."""
    events = [decision(1), execution(1), decision(2, "eve"), Erasure(id="e", ts=3.0, subject="ann"), decision(4)]
    drain(feed_of(journal_of(*events), place, tmp_path, events=2))
    rows = rows_at(place, tmp_path)
    assert [(row[1], row[5]) for row in rows["decisions"]] == [("d2", "eve"), ("d4", "ann")]
    assert "executions" not in rows


def test_an_erasure_waits_for_storage_that_is_away(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is unfinished as long as rows may be left there, and says why; all else is done meanwhile, once."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("fitrouter.stores.warehouse.segments._bucket._RETRY_S", 0.1)
    place, zoe = s3.place(), Identity(user=SECRETS[0])
    (subject,) = filled(tmp_path)
    journal, identities, eraser = opened(tmp_path)
    drain(feed_of(journal, place, tmp_path))
    assert any(subject in row for rows in rows_at(place, tmp_path).values() for row in rows)
    shutil.rmtree(tmp_path / "read")
    compactions: list[float] = []
    compact = journal.compact
    monkeypatch.setattr(journal, "compact", lambda s: (compactions.append(s), compact(s)))
    s3.stop()
    try:
        done = eraser.erase("default", zoe.user or "", patience_s=5.0)
        assert "the server is up" in done.unfinished
        with pytest.raises(StoreError, match="the server is up"):
            eraser.step()
    finally:
        s3.start()
    assert len(compactions) == 1
    assert not tokens(tmp_path)
    eraser.step()
    assert not journal.unfinished()
    assert not any(subject in row for rows in rows_at(place, tmp_path).values() for row in rows)
    journal.close()
    identities.close()


def test_former_places_are_erased_too(tmp_path: Path) -> None:
    """An erasure reaches every place that the data folder has ever used, also when the setting has changed since."""
    journal = SqliteJournal(tmp_path / "journal.db")
    journal.append(*map(Entry, story(12))).result()
    places = [str(tmp_path / name) for name in ("one", "two")]
    for place in places:
        feed = feed_of(journal, place, tmp_path)
        drain(feed)
        feed.release()
    erase_segments(tmp_path, [digest_of("user-1")])
    for place in places:
        assert not any("user-1" in row for rows in rows_at(place, tmp_path).values() for row in rows)
    journal.close()


# --- the file of DuckDB beside them --------------------------------------------------------------------------------


def test_the_file_keeps_the_last_days(place: str, tmp_path: Path) -> None:
    """With `local_days` rows leave the file once they are old and in a segment, and no others."""
    journal = journal_of(*(msgspec.structs.replace(decision(n), ts=n * DAY_S) for n in range(40)))
    warehouse = Warehouse(tmp_path / "fitrouter.duckdb")
    feed, now = WarehouseFeed(journal, warehouse), [40.0 * DAY_S]
    while feed.step():
        pass
    local = LocalRetention(storage_at(place), feed, 5.0, lambda: now[0])
    local.step()
    assert warehouse.query("SELECT count(*) FROM decisions") == [(40,)]
    segments = feed_of(journal, place, tmp_path)
    segments.step(), segments.step()
    local.step()
    assert warehouse.query("SELECT count(*) FROM decisions") == [(40,)]  # once a day
    now[0] += DAY_S
    local.step()
    assert warehouse.query("SELECT min(seq), count(*) FROM decisions") == [(21, 20)]
    drain(segments)
    now[0] += DAY_S
    local.step()
    assert warehouse.query("SELECT count(*) FROM decisions WHERE ts < ?", [37.0 * DAY_S]) == [
        (7,)
    ]  # the last segment's
    assert sum(len(rows) for rows in rows_at(place, tmp_path).values()) == 40


# --- in a router ---------------------------------------------------------------------------------------------------


def test_answers_go_on_while_storage_is_away(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A router answers, learns and reports the trouble; what was logged meanwhile is written afterwards."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("fitrouter.stores.warehouse.segments._bucket._RETRY_S", 0.1)
    place, notices = s3.place(), list[Notice]()
    config = settings(tmp_path).model_copy(update={"warehouse": WarehouseConfig(segments=place, every_s=1.0)})

    async def live() -> None:
        async with Router.from_config(config, hooks=Hooks(notices.append)) as router:
            (service,) = [each for each in router._services if each.part == "segments"]
            service.retry_s = service.idle_s = 0.1
            s3.stop()
            try:
                while not any(isinstance(notice, Trouble) and notice.part == "segments" for notice in notices):
                    await lived(router, [ZOE])
                assert router.faults() == {}
            finally:
                s3.start()
            head = router._journal.head()
            while manifest_at(place).seq < head:  # noqa: ASYNC110 - another thread writes it
                await asyncio.sleep(0.1)

    asyncio.run(asyncio.wait_for(live(), 120.0))
    journal = SqliteJournal(tmp_path / "journal.db")
    expected = rows_of_file(journal, tmp_path)
    for table, rows in rows_at(place, tmp_path).items():
        assert repr(rows) == repr(expected[table][: len(rows)])  # features of answers are NaN where unknown
    assert len(rows_at(place, tmp_path)["decisions"]) == len(expected["decisions"])
    journal.close()
