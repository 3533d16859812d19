"""Damaged journals: what is found, what is salvaged, and what the warehouse keeps."""

from __future__ import annotations

import random
import shutil
import sqlite3
from pathlib import Path

import pytest
from tests.kits.tables import table_driven
from tests.stores.test_journal import decision, done, execution, score

from fitrouter.stores.journal import Entry, SqliteJournal, check, salvage
from fitrouter.stores.journal._pages import damage_in_log
from fitrouter.stores.warehouse import Warehouse, WarehouseFeed
from fitrouter.types import Decision, Salvage

PAGE = 4096


def written(path: Path, n: int = 120, *, checkpoint: bool = True) -> dict[str, int]:
    """A journal of decisions, answers as large as several pages, and some scores; returns id → number of its events.

    Without a checkpoint its log is left behind as by a killed process.
    """
    rng = random.Random(1)
    live = path.with_name("live.db")
    journal = SqliteJournal(live)
    for i in range(n):
        done(journal.append(decision(i), execution(i, rng.randbytes(rng.randrange(9000)))))
        if i % 3 == 0:
            done(journal.append(score(i)))
    found = {row.event.id: row.seq for row in journal.tail(0, 10_000)}
    if checkpoint:
        writer = sqlite3.connect(live)
        writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        writer.close()
    for suffix in ("", "-wal", "-shm"):
        shutil.copy(f"{live}{suffix}", f"{path}{suffix}")
    journal.close()
    return found


def kept(path: Path) -> dict[str, int]:
    """Id → number of the events of a journal, as it is opened."""
    journal = SqliteJournal(path, clock=lambda: 1234.0)
    found = {row.event.id: row.seq for row in journal.tail(0, 10_000) if not isinstance(row.event, Salvage)}
    journal.close()
    return found


def flipped(data: bytes, bit: int) -> bytes:
    out = bytearray(data)
    out[bit // 8] ^= 1 << (bit % 8)
    return bytes(out)


def test_a_sound_journal_is_left_alone(tmp_path: Path) -> None:
    """Also with the log of a killed process, which holds older rounds behind the current one."""
    expected = written(tmp_path / "j.db", checkpoint=False)
    assert damage_in_log(tmp_path / "j.db") == ""
    assert check(tmp_path / "j.db").sound
    assert kept(tmp_path / "j.db") == expected
    assert list(tmp_path.glob("*.corrupt*")) == []


def test_everything_is_salvaged_from_a_sound_file(tmp_path: Path) -> None:
    """Each event under its own number, and each answer that waits for its score: from file and log."""
    expected = written(tmp_path / "j.db", checkpoint=False)
    note = salvage(tmp_path / "j.db", tmp_path / "new.db", 1.0)
    assert (note.kept, note.lost) == (len(expected), ())
    journal = SqliteJournal(tmp_path / "new.db")
    assert {row.event.id: row.seq for row in journal.tail(0, 10_000)}.items() >= expected.items()
    original = SqliteJournal(tmp_path / "j.db")
    assert journal.spooled(1000) == original.spooled(1000)
    assert len(journal.spooled(1000)) == 80
    journal.close()
    original.close()


@table_driven("seed", range(12))
def test_one_bad_page_costs_its_own_events_only(tmp_path: Path, seed: int) -> None:
    """A page of noise, wherever it is: what SQLite cannot read is salvaged, and what is lost is named."""
    expected = written(tmp_path / "j.db")
    data = bytearray((tmp_path / "j.db").read_bytes())
    rng = random.Random(seed)
    page = seed if seed < 6 else rng.randrange(len(data) // PAGE)
    data[page * PAGE : (page + 1) * PAGE] = rng.randbytes(PAGE)
    (tmp_path / "j.db").write_bytes(data)
    found = kept(tmp_path / "j.db")
    assert found.items() <= expected.items()
    assert len(found) >= len(expected) - 30, "a leaf has at most thirty of these events"
    again = SqliteJournal(tmp_path / "j.db")
    assert again.incident == ""
    notes = [row.event for row in again.tail(0, 10_000) if isinstance(row.event, Salvage)]
    lost = {seq for note in notes for first, last in note.lost for seq in range(first, last + 1)}
    head = max(found.values())
    if notes:
        assert lost == {seq for seq in expected.values() if seq < head} - set(found.values())
    again.close()


@table_driven("seed", range(30))
def test_one_flipped_bit_in_the_log_costs_one_event_at_most(tmp_path: Path, seed: int) -> None:
    """SQLite would silently drop everything from the frame with the bit: it is seen, salvaged and reported."""
    expected = written(tmp_path / "j.db", 60, checkpoint=False)
    log = tmp_path / "j.db-wal"
    data = log.read_bytes()
    bit = seed if seed < 6 else random.Random(seed).randrange(len(data) * 8)
    bit = bit if seed != 5 else 32 * 8 + 8 * 8  # the salt of the first frame
    log.write_bytes(flipped(data, bit))
    seen = damage_in_log(tmp_path / "j.db")
    assert check(tmp_path / "j.db").log == seen
    journal = SqliteJournal(tmp_path / "j.db", clock=lambda: 1234.0)
    found = {row.event.id: row.seq for row in journal.tail(0, 10_000) if not isinstance(row.event, Salvage)}
    assert len(found) >= len(expected) - 1
    assert found.items() <= expected.items()
    assert bool(journal.incident) is bool(seen)
    if seen:
        assert "j.db.corrupt-1234" in journal.incident
        assert (tmp_path / "j.db.corrupt-1234-wal").read_bytes() == flipped(data, bit)
    else:
        assert found == expected
    journal.close()


def test_a_torn_tail_is_no_damage(tmp_path: Path) -> None:
    """A transaction that was never committed, or zeros behind it, is nothing that was acknowledged."""
    expected = written(tmp_path / "j.db", 20, checkpoint=False)
    log = tmp_path / "j.db-wal"
    data = log.read_bytes()
    for tail in (bytes(3 * (PAGE + 24)), b"", random.Random(1).randbytes(5000)):
        log.write_bytes(data + tail)
        assert damage_in_log(tmp_path / "j.db") == ""
    assert kept(tmp_path / "j.db") == expected


@table_driven("torn", [24, 25, 1000, 24 + PAGE - 1, PAGE + 24 + 24, 2 * (PAGE + 24) + 3000])
def test_a_frame_that_a_kill_tore_is_no_damage(tmp_path: Path, torn: int) -> None:
    """Behind the last commit, over frames of an earlier round; of a commit that the wal-index knows it is damage."""
    expected = written(tmp_path / "j.db", 20, checkpoint=False)
    file, log, index = (tmp_path / f"j.db{suffix}" for suffix in ("", "-wal", "-shm"))
    stored, before, known = file.read_bytes(), log.read_bytes(), index.read_bytes()
    journal = SqliteJournal(file)
    done(journal.append(decision(500), execution(500, b"an answer" * 2000)))
    after, known_after = log.read_bytes(), index.read_bytes()
    journal.close()
    assert after.startswith(before)
    assert len(after) > len(before) + 3 * (PAGE + 24)
    cut = len(before) + torn
    file.write_bytes(stored)
    log.write_bytes(after[:cut] + random.Random(torn).randbytes(len(after) - cut))
    for seen, index_bytes in ((True, known_after), (True, b""), (True, flipped(known, 8 * 16)), (False, known)):
        index.write_bytes(index_bytes)
        assert bool(damage_in_log(file)) is seen
    assert check(file).sound
    assert kept(file) == expected
    assert not list(tmp_path.glob("*.corrupt*"))


def test_a_flipped_bit_in_a_payload_is_reported(tmp_path: Path) -> None:
    """SQLite does not see it; the checksum of the event does."""
    written(tmp_path / "j.db", 20)
    data = (tmp_path / "j.db").read_bytes()
    (tmp_path / "j.db").write_bytes(flipped(data, data.index(b"squarecb") * 8))
    found = check(tmp_path / "j.db")
    assert (found.file, found.log, len(found.damaged)) == ("", "", 1)
    assert not found.sound


def test_cells_of_another_type_are_damage(tmp_path: Path) -> None:
    """A bit in the header of a row changes the type of its cells; the row is skipped and reported."""
    written(tmp_path / "j.db", 20)
    writer = sqlite3.connect(tmp_path / "j.db")
    writer.execute("UPDATE events SET payload = 7 WHERE seq = 2")
    writer.execute("UPDATE events SET payload = 'text', crc = 'text' WHERE seq = 4")
    writer.execute("UPDATE events SET payload = CAST(payload AS TEXT) WHERE seq = 5")  # not UTF-8, and still whole
    writer.commit()
    writer.close()
    assert check(tmp_path / "j.db").damaged == (2, 4)
    journal = SqliteJournal(tmp_path / "j.db")
    assert [row.seq for row in journal.tail(0, 5)] == [1, 3, 5]
    journal.close()


@pytest.mark.parametrize("step", ["j.db.salvaging", "j.db.salvaged"])
def test_an_interrupted_salvage_is_completed_or_begun_again(tmp_path: Path, step: str) -> None:
    """A process killed while it salvages leaves either the damaged file or the whole new one."""
    expected = written(tmp_path / "j.db", 20)
    if step == "j.db.salvaged":
        (tmp_path / "j.db").rename(tmp_path / step)
        (tmp_path / "j.db-wal").unlink()
    else:
        (tmp_path / step).write_bytes(b"half a file")
    assert kept(tmp_path / "j.db") == expected


def test_the_warehouse_keeps_its_rows(tmp_path: Path) -> None:
    """Events that the journal lost stay in the warehouse, and later ones never get their numbers."""
    written(tmp_path / "j.db", 40)
    journal = SqliteJournal(tmp_path / "j.db")
    warehouse = Warehouse(tmp_path / "w.duckdb")
    feed = WarehouseFeed(journal, warehouse)
    while feed.step():
        pass
    before = warehouse.query("SELECT count(*) FROM decisions")[0][0]
    feed.release()
    journal.close()
    data = bytearray((tmp_path / "j.db").read_bytes())
    last = data.rindex(b"decision-39") // PAGE
    data[last * PAGE : (last + 1) * PAGE] = bytes(PAGE)
    data[:100] = bytes(100)
    (tmp_path / "j.db").write_bytes(data)
    journal = SqliteJournal(tmp_path / "j.db")
    assert journal.incident
    assert sum(isinstance(row.event, Decision) for row in journal.tail(0, 1000)) < before
    done(journal.append(decision(1000)))
    feed = WarehouseFeed(journal, warehouse)
    while feed.step():
        pass
    assert warehouse.query("SELECT count(*) FROM decisions")[0][0] == before + 1
    assert warehouse.quarantined is None
    feed.release()
    journal.close()


def test_an_entry_without_its_number_is_no_entry(tmp_path: Path) -> None:
    """A second salvage counts the first one's gap as no loss."""
    written(tmp_path / "j.db", 20)
    first = salvage(tmp_path / "j.db", tmp_path / "a.db", 1.0)
    journal = SqliteJournal(tmp_path / "a.db")
    done(journal.append(Entry(decision(500).event)))
    journal.close()
    second = salvage(tmp_path / "a.db", tmp_path / "b.db", 2.0)
    assert second.kept == first.kept + 2
    assert second.lost == ()
