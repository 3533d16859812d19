"""Checking a journal, and copying what is sound in a damaged one."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from fitrouter.draw import uuid7
from fitrouter.errors import StoreError
from fitrouter.stores._files import COMPANIONS, connect_read_only, quarantine
from fitrouter.stores.cold import Payloads
from fitrouter.stores.journal._base import Entry
from fitrouter.stores.journal._erase import delete
from fitrouter.stores.journal._lease import FileLock
from fitrouter.stores.journal._pages import damage_in_log, rows
from fitrouter.stores.journal._ranges import fault_in
from fitrouter.stores.journal._record import decision_of, decoded, digest_of, kind_of, record, subject_of
from fitrouter.stores.journal._schema import open_checked
from fitrouter.types import Event, Salvage, decode_event

_GAP = 2**20
"""Sequence numbers left free after salvaged events: those of lost ones are never used again, so that the warehouse,
which may have them, keeps its rows."""
_BATCH = 256
_INSERT_MOVED = """INSERT OR IGNORE INTO events (seq, id, ts, kind, decision_id, subject, payload, crc)
VALUES (?, ?, ?, ?, ?, ?, x'', ?)"""


_MOVED = "SELECT seq, id, ts, kind, decision_id, subject, crc FROM read_parquet(?)"


class JournalCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Result of `check`: sound and damaged events."""

    events: int = 0
    """Sound events."""
    damaged: tuple[int, ...] = ()
    """Sequence numbers of events whose bytes changed."""
    unsound: tuple[tuple[str, str], ...] = ()
    """(event id, the number in it that is not finite or out of range): kept, and not learnt from."""
    file: str = ""
    """What SQLite says of the file; empty for nothing."""
    log: str = ""
    """What is wrong with its write-ahead log; empty for nothing."""

    @property
    def sound(self) -> bool:
        """Whether no byte is damaged."""
        return not (self.damaged or self.file or self.log)


def check(path: Path) -> JournalCheck:
    """Read a whole journal: every page, event and frame of its log. It may be in use, and is not changed."""
    with FileLock(path.with_name(f"{path.name}.lock")):  # nobody writes meanwhile
        log = damage_in_log(path)
    moved = Payloads(path.parent)
    events, damaged, unsound, file = 0, list[int](), list[tuple[str, str]](), ""
    # Whoever closes a damaged log in the ordinary way drops the frames behind the damage from it.
    with closing(connect_read_only(path, immutable=bool(log))) as connection:
        try:
            found = [str(line) for (line,) in connection.execute("PRAGMA integrity_check(10)")]
            file = "" if found == ["ok"] else "; ".join(found)
            for seq, payload, crc in connection.execute(
                "SELECT seq, CAST(payload AS BLOB), CAST(crc AS INTEGER) FROM events ORDER BY seq"
            ):
                payload = payload or moved.of([seq]).get(seq)
                if payload == b"":  # it was too old for the cold store
                    continue
                event = _decoded(payload, crc)
                if event is None:
                    damaged.append(seq)
                    continue
                events += 1
                if fault := fault_in(event):
                    unsound.append((event.id, fault))
        except (sqlite3.Error, StoreError) as error:
            file = file or str(error)
    return JournalCheck(events=events, damaged=tuple(damaged), unsound=tuple(unsound), file=file, log=log)


def salvage(path: Path, target: Path, now: float) -> Salvage:
    """Copy every sound event of a journal that nobody has open to a new one, with its number, and answers to score.

    Args:
        path: the damaged file; it is only read.
        target: the new file.
        now: seconds since the epoch.

    Returns:
        What was found, which is also the new journal's last event.
    """
    for suffix in ("", *COMPANIONS):
        target.with_name(target.name + suffix).unlink(missing_ok=True)
    with closing(open_checked(target)) as connection:
        connection.execute("BEGIN")
        events = _events(path)
        while batch := list(itertools.islice(events, _BATCH)):
            connection.executemany(
                "INSERT OR IGNORE INTO events (seq, id, ts, kind, decision_id, subject, payload, crc) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                batch,
            )
        connection.executemany(_INSERT_MOVED, Payloads(path.parent).rows(_MOVED))
        _salvage_spool(path, connection)
        _erase_again(connection)
        (kept,) = connection.execute("SELECT count(*) FROM events").fetchone()
        lost = connection.execute(
            "SELECT before + 1, seq - 1 FROM (SELECT seq, kind, lag(seq, 1, 0) OVER (ORDER BY seq) AS before FROM "
            "events) WHERE seq > before + 1 AND kind <> 'salvage'"
        ).fetchall()
        note = Salvage(id=f"salvage:{uuid7(now)}", ts=now, kept=kept, lost=tuple(lost))
        if kept:
            item = record(Entry(note))
            connection.execute(
                "INSERT INTO events SELECT max(seq) + ?, ?, ?, ?, ?, ?, ?, ? FROM events", (_GAP, *item[:7])
            )
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return note


def _events(path: Path) -> Iterator[tuple[object, ...]]:
    for row in rows(path):
        if len(row.cells) == 8 and isinstance(payload := row.cells[6], bytes) and row.rowid > 0:
            event = _decoded(payload, row.cells[7])
            if event is not None:  # those without a payload come from their files
                columns = event.id, event.ts, kind_of(event), decision_of(event), subject_of(event)
                yield row.rowid, *columns, payload, row.cells[7]


def _decoded(payload: object, crc: object) -> Event | None:
    with suppress(msgspec.DecodeError):
        return decoded(payload, crc)
    return None


def _salvage_spool(path: Path, connection: sqlite3.Connection) -> None:
    """Copy the encrypted answers of decisions that have an execution and no score yet."""
    waiting = "SELECT decision_id FROM events WHERE kind = ? AND decision_id = ?"
    for row in rows(path):
        match row.cells:
            case [str() as decision_id, int() as seq, int() | float() as ts, bytes() as content]:
                scored, ended = (
                    connection.execute(waiting, (kind, decision_id)).fetchone() for kind in ("score", "execution")
                )
                if ended and not scored:
                    connection.execute(
                        "INSERT OR IGNORE INTO spool (decision_id, seq, ts, content) VALUES (?, ?, ?, ?)",
                        (decision_id, seq, ts, content),
                    )
            case _:
                pass


def _erase_again(connection: sqlite3.Connection) -> None:
    """Delete events of erased users, which pages that were not rewritten yet may still hold, and note the erasures."""
    rows = connection.execute("SELECT seq, payload FROM events WHERE kind = 'erasure'").fetchall()
    erased = {digest: seq for seq, payload in rows for digest in getattr(decode_event(payload), "digests", ())}
    connection.executemany("INSERT OR IGNORE INTO erased (digest, seq) VALUES (?, ?)", erased.items())
    known = (
        connection.execute("SELECT DISTINCT subject FROM events WHERE subject IS NOT NULL").fetchall() if erased else []
    )
    delete(connection, [subject for (subject,) in known if digest_of(subject) in erased])


def replace_damaged(path: Path, now: float) -> tuple[Path, Salvage]:
    """Replace a journal that nobody has open by its sound parts; return the path of the damaged one, and the findings.

    Whenever the process ends in between, the next start finds one of both.
    """
    part, whole = path.with_name(f"{path.name}.salvaging"), path.with_name(f"{path.name}.salvaged")
    found = salvage(path, part, now)
    part.replace(whole)
    kept = quarantine(path, now, COMPANIONS, instead=f"{found.kept} sound events of it")
    whole.replace(path)
    return kept, found


def in_use(path: Path) -> bool:
    """Whether a process has the journal open."""
    return _locked(path.with_name(f"{path.name}.open"))


def leased(path: Path, name: str) -> bool:
    """Whether a process holds a lease of the journal; one that tries to take it at this moment must try again."""
    return _locked(path.with_name(f"{path.name}.{name}.lease"))


def _locked(path: Path) -> bool:
    lock = FileLock(path)
    try:
        return not lock.alone()
    finally:
        lock.close()


def finish_replacing(path: Path) -> None:
    """Complete a `replace_damaged` that was interrupted."""
    whole = path.with_name(f"{path.name}.salvaged")
    if whole.exists() and not path.exists():
        whole.replace(path)


def in_words(found: Salvage) -> str:
    """Summarise a salvage in sentences."""
    gaps = ", ".join(f"{first}–{last}" if first < last else f"{first}" for first, last in found.lost[:8])
    more = " …" if len(found.lost) > 8 else ""
    lost = f"lost or erased are the events {gaps}{more}" if found.lost else "none is missing between them"
    return f"{found.kept} sound events were salvaged; {lost}"
