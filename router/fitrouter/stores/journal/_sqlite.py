"""Journal in an SQLite file, shared by the worker processes of one machine."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from fitrouter.errors import StoreError
from fitrouter.stores._files import OpenFiles, connect, is_busy, is_damaged, make_folder
from fitrouter.stores.cold import Payloads
from fitrouter.stores.journal._base import Entry, Row, Snapshot, Spooled
from fitrouter.stores.journal._claims import KEPT_S, Claim, Grant, granted
from fitrouter.stores.journal._erase import erase
from fitrouter.stores.journal._lease import FileLease, FileLock
from fitrouter.stores.journal._pages import damage_in_log
from fitrouter.stores.journal._record import Fault, next_sound, no_fault, record, sound_rows
from fitrouter.stores.journal._salvage import finish_replacing, in_words, replace_damaged
from fitrouter.stores.journal._schema import open_checked
from fitrouter.stores.journal._sqlite_writes import SqliteWrites
from fitrouter.stores.journal._writer import GroupWriter
from fitrouter.types import Event, ProfileChange

_NEXT = """SELECT seq, CAST(payload AS BLOB), CAST(crc AS INTEGER) FROM events WHERE seq > ? ORDER BY seq LIMIT ?"""
_LATEST = """SELECT seq, CAST(payload AS BLOB), CAST(crc AS INTEGER) FROM events
WHERE kind IN (SELECT value FROM json_each(?1)) AND seq < ?2 ORDER BY seq DESC LIMIT ?3"""
_LATEST_OF = """SELECT seq, CAST(payload AS BLOB), CAST(crc AS INTEGER) FROM events
WHERE kind IN (SELECT value FROM json_each(?1)) AND seq < ?2 AND subject = ?4 ORDER BY seq DESC LIMIT ?3"""
_LATEST_IN = _LATEST_OF.replace("subject = ?4", "decision_id = ?4")
_END = 2**63 - 1
_EMPTIED = 2000
"""Rows that lose their payload in one transaction, about 50 ms."""
_EMPTY = "UPDATE events SET payload = x'', crc = ? WHERE seq = ? AND id = ? AND kind <> 'erasure'"
_CLAIMS = "SELECT holder, usd, spent, seen FROM claims WHERE account = ?"
_CLAIM = "INSERT OR REPLACE INTO claims (account, holder, usd, spent, seen, ends) VALUES (?, ?, ?, ?, ?, ?)"
_FULL = """SELECT 1 FROM events WHERE seq BETWEEN ? AND ? AND kind <> 'erasure' AND length(payload) > 0 LIMIT 1"""
_MOVED = "SELECT seq FROM events WHERE seq BETWEEN ? AND ? AND length(payload) = 0"


class SqliteJournal:
    """A `Journal` in an SQLite file with write-ahead log and group commit; acknowledged entries survive power loss.

    Commits are synced (`synchronous=FULL`).

    Any number of processes on one machine may open the same file. Their transactions queue on a lock file
    (`<path>.lock`), because SQLite's own waiting is unfair; sequence numbers are therefore committed in order, and a
    reader that polls `tail(after)` never misses a row. Open it after forking, not before.

    A corrupt file is renamed to `<path>.corrupt-<seconds>` when it is opened, and replaced by one with its sound
    events; `quarantined` is then its new path. A single row whose checksum does not match is skipped and logged.

    Args:
        path: the file; its folder is created.
        clock: seconds since the epoch, for the name of a quarantined file.
        hold: seconds that a commit waits for further entries. At 0, entries that arrive during a commit share the next.
        capacity: most entries that may be queued, before `append` raises `JournalFull`.
        fault: called before each write step, for tests of failing disks.

    Raises:
        StoreError: the file cannot be opened, a later fitrouter wrote it, or it is damaged while others use it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        clock: Callable[[], float] = time.time,
        hold: float = 0.0,
        *,
        capacity: int = 65_536,
        fault: Fault = no_fault,
    ) -> None:
        self.path = Path(path).absolute()
        self.quarantined: Path | None = None
        self.incident = ""
        self._unreadable = ""
        self._damaged: set[int] = set()
        """Rows whose checksum differs."""
        self._mutex = threading.Lock()
        self._idle: deque[sqlite3.Connection] = deque()
        self._leases: list[FileLease] = []
        self._closed = False
        self._pid = os.getpid()
        self._payloads = Payloads(self.path.parent)
        self._lock = FileLock(self._beside("lock"))
        self._users = FileLock(self._beside("open"))
        try:
            make_folder(self.path.parent)
            with self._lock:
                self._anchor = self._open(clock)
                self._users.share()
                self._files = OpenFiles(self.path)
        except (OSError, sqlite3.Error, StoreError) as error:
            self._users.close()
            self._lock.close()
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"the journal {str(self.path)!r} cannot be opened: {error}") from error
        writes = SqliteWrites(self._connect, self._lock, self._require, fault)
        self._writer = GroupWriter(writes, capacity=capacity, hold=hold)

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(f"{self.path.name}.{suffix}")

    def _open(self, clock: Callable[[], float]) -> sqlite3.Connection:
        """Open and check the file, or salvage it if it is damaged; called under the lock."""
        finish_replacing(self.path)
        # A process that still has the old file open would delete the new one's write-ahead log when it closes.
        alone = self._users.alone()
        damage = damage_in_log(self.path) if alone and self.path.exists() else ""
        if not damage:
            try:
                return open_checked(self.path)
            except sqlite3.DatabaseError as error:
                if not is_damaged(error):
                    raise
                damage = str(error)
        if not alone:
            raise StoreError(
                f"the journal {str(self.path)!r} is damaged ({damage}) and open in other processes; stop them first"
            )
        self.quarantined, found = replace_damaged(self.path, clock())
        self.incident = f"the journal was damaged ({damage}) and is kept as {self.quarantined.name}; {in_words(found)}"
        return open_checked(self.path)

    def fault(self) -> str:
        """Reason why events cannot be logged or read now (file missing or damaged); empty if they can."""
        if self._closed:
            return ""
        return self._files.fault() or self._unreadable or self._writer.failure

    def _require(self) -> None:
        if fault := self._files.fault():
            raise StoreError(fault)

    def append(self, *entries: Entry) -> Future[int]:
        """Queue the entries as one transaction; see `Journal.append`."""
        return self._writer.submit([record(entry) for entry in entries])

    def tail(self, after: int, limit: int = 512) -> Sequence[Row]:
        """The next rows after a sequence number, in order."""
        return next_sound(lambda start: self._read(_NEXT, (start, limit)), self._decode, after, limit)

    def of(self, *keys: str) -> Sequence[Row]:
        """Return all rows with any of these decision ids and subjects, each once, in order."""
        marks = ", ".join("?" * len(keys))
        where = f"decision_id IN ({marks}) OR subject IN ({marks})"
        sql = f"SELECT seq, CAST(payload AS BLOB), CAST(crc AS INTEGER) FROM events WHERE {where} ORDER BY seq"  # noqa: S608
        return self._decode(self._read(sql, (*keys, *keys)))

    def ids(self, prefix: str, limit: int) -> Sequence[str]:
        """Decision ids that begin with a prefix; see `Journal.ids`."""
        sql = "SELECT DISTINCT decision_id FROM events WHERE decision_id >= ? AND decision_id < ? LIMIT ?"
        return [found for (found,) in self._read(sql, (prefix, f"{prefix}g", limit))]

    def latest(
        self,
        kinds: Sequence[str],
        limit: int = 256,
        *,
        before: int | None = None,
        subject: str | None = None,
        run: str = "",
    ) -> Sequence[Row]:
        """The last rows of some kinds of events, the newest first; see `Journal.latest`."""
        named, end = json.dumps(list(kinds)), _END if before is None else before
        if run:
            return self._decode(self._read(_LATEST_IN, (named, end, limit, run)))
        if subject is None:
            return self._decode(self._read(_LATEST, (named, end, limit)))
        return self._decode(self._read(_LATEST_OF, (named, end, limit, subject)))

    def counts(self, key: str) -> dict[str, tuple[int, float, float]]:
        """Count the rows about a subject, or of a run, by kind of event, with the times of the first and the last."""
        where = "subject = ?1 OR decision_id = ?1"
        rows = self._read(f"SELECT kind, count(*), min(ts), max(ts) FROM events WHERE {where} GROUP BY kind", (key,))  # noqa: S608 - a constant
        return {kind: (number, first, last) for kind, number, first, last in rows}

    def event(self, event_id: str) -> Event | None:
        """The event with an id; None without one."""
        rows = self._decode(
            self._read("SELECT seq, CAST(payload AS BLOB), CAST(crc AS INTEGER) FROM events WHERE id = ?", (event_id,))
        )
        return rows[0].event if rows else None

    def profile(self, subject: str) -> ProfileChange | None:
        """The last profile of a subject; None without one."""
        rows = self._decode(
            self._read(
                "SELECT seq, CAST(payload AS BLOB), CAST(crc AS INTEGER) FROM events "
                "WHERE subject = ? AND kind = 'profile' ORDER BY seq DESC LIMIT 1",
                (subject,),
            )
        )
        return rows[0].event if rows and isinstance(rows[0].event, ProfileChange) else None

    def erase(self, subjects: Collection[str], tenant: str, ts: float) -> int:
        """Delete all events of some subjects; see `Journal.erase`."""
        with self._exclusive() as connection:
            return erase(connection, subjects, tenant, ts, lambda found: [row.event for row in self._decode(found)])

    def move(self, first: int, last: int, keys: Callable[[], Sequence[tuple[int, int, str]]]) -> bool:
        """Delete the payloads of events that a file of the cold store has, where all methods find them.

        Args:
            first: sequence number of the first of them.
            last: of the last.
            keys: reads checksum, number and id of those in the file, which may have been encoded anew.

        Returns:
            False if no snapshot was saved after them: each start would read the file.
        """
        if last > self._read("SELECT seq FROM snapshot_position", ())[0][0]:
            return False
        if self._read(_FULL, (first, last)):
            found = keys()
            for start in range(0, len(found), _EMPTIED):
                with self._exclusive() as connection:
                    connection.execute("BEGIN IMMEDIATE")
                    connection.executemany(_EMPTY, found[start : start + _EMPTIED])
                    connection.execute("COMMIT")
        return True

    def lost(self, first: int, last: int) -> int:
        """Count the moved events between two sequence numbers of which no cold store has the file."""
        moved = [seq for (seq,) in self._read(_MOVED, (first, last))]
        return len(moved) - len(self._payloads.of(moved))

    def unfinished(self) -> dict[str, int]:
        """Return the erased subjects of which something is left; see `Journal.unfinished`."""
        return dict(self._read("SELECT digest, seq FROM erased WHERE NOT done", ()))

    def finish(self, digests: Collection[str]) -> None:
        """Record that nothing is left of erased subjects."""
        with self._exclusive() as connection:
            connection.executemany("UPDATE erased SET done = 1 WHERE digest = ?", [(digest,) for digest in digests])

    def compact(self, patience_s: float = 30.0) -> None:
        """Rewrite the file; see `Journal.compact`."""
        deadline, done = time.monotonic() + patience_s, False
        while not done:
            with self._exclusive() as connection:
                try:
                    connection.execute("VACUUM")
                    done = not connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
                except sqlite3.Error as error:
                    if not is_busy(error):
                        raise
            if not done and time.monotonic() > deadline:
                raise StoreError(f"{str(self.path)!r} cannot be rewritten: another process keeps reading it")
            if not done:
                time.sleep(0.1)

    @contextmanager
    def _exclusive(self) -> Iterator[sqlite3.Connection]:
        """Provide a connection while no other process writes; what it deletes is overwritten with zeros."""
        lock = FileLock(self._beside("lock"))  # the writer's own excludes other processes only
        try:
            with lock, closing(self._connect()) as connection:
                self._require()
                connection.execute("PRAGMA secure_delete = ON")
                yield connection
        except sqlite3.Error as error:
            raise StoreError(f"the journal could not be written: {error}") from error
        finally:
            lock.close()

    def lease(self, name: str) -> FileLease:
        """The lease of this name, a locked file `<path>.<name>.lease`; the kernel frees it when its holder dies.

        Raises:
            ValueError: the name has other characters than a-z, 0-9, '-' and '_'.
        """
        if not re.fullmatch(r"[a-z0-9_-]{1,64}", name):
            raise ValueError(f"lease {name!r}: use 1 to 64 of a-z, 0-9, '-' and '_'")
        lease = FileLease(self._beside(f"{name}.lease"), lambda: not self._files.fault())
        with self._mutex:
            self._leases.append(lease)
        return lease

    def claim(self, claim: Claim) -> Grant:
        """Claim money of an account; see `Journal.claim`."""
        with self._exclusive() as connection:
            connection.execute("BEGIN IMMEDIATE")
            found, written = granted(claim, connection.execute(_CLAIMS, (claim.account,)).fetchall())
            connection.executemany(_CLAIM, written)
            connection.execute("DELETE FROM claims WHERE ends < ? AND account <> ?", (claim.ts - KEPT_S, claim.account))
            connection.execute("COMMIT")
        return found

    def watch(self, call: Callable[[], object]) -> None:
        """Do nothing: processes of one machine poll."""

    def spooled(self, limit: int = 64) -> Sequence[Spooled]:
        """The oldest unscored answers."""
        rows = self._read("SELECT decision_id, ts, content FROM spool ORDER BY seq LIMIT ?", (limit,))
        return [Spooled(*row) for row in rows]

    def save(self, snapshot: Snapshot) -> None:
        """Merge the state into the stored snapshot and move its position; see `Journal.save`."""
        self._writer.submit((), snapshot).result()

    def snapshot(self, put_aside: Callable[[str, bytes], bool] | None = None) -> Snapshot:
        """The stored snapshot; see `Journal.snapshot`."""
        with self._reader() as connection:
            connection.execute("BEGIN")
            (seq,) = connection.execute("SELECT seq FROM snapshot_position").fetchone()
            rows = connection.execute("SELECT key, value FROM snapshot_state ORDER BY key")
            state = {key: value for key, value in rows if not (put_aside and put_aside(key, value))}
            connection.execute("COMMIT")
        return Snapshot(seq, state)

    def head(self) -> int:
        """The last sequence number, 0 in an empty journal."""
        return int(self._read("SELECT coalesce(max(seq), 0) FROM events", ())[0][0])

    def close(self) -> None:
        """Write the queued entries, give back all leases, then close."""
        with self._mutex:
            if self._closed:
                return
            self._closed = True
        self._writer.close()
        for lease in self._leases:
            lease.release()
        with self._mutex:
            while self._idle:
                self._idle.pop().close()
        self._anchor.close()
        self._users.close()
        self._lock.close()

    def _decode(self, found: Sequence[tuple[int, bytes, int]]) -> list[Row]:
        moved = self._payloads.of([seq for seq, stored, _ in found if stored == b""])
        whole = ((seq, stored or moved.get(seq), crc) for seq, stored, crc in found if stored or moved.get(seq) != b"")
        return sound_rows(whole, self._damaged, self.path)

    def _read(self, sql: str, params: tuple[object, ...]) -> list[Any]:
        with self._reader() as connection:
            return connection.execute(sql, params).fetchall()

    def _connect(self) -> sqlite3.Connection:
        return connect(self.path)

    @contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        """Provide a pooled connection to this thread alone; after an error it is closed instead of reused."""
        with self._mutex:
            if self._closed or self._pid != os.getpid():
                raise StoreError("the journal is closed, or was opened before this process was forked; open it again")
            connection = self._idle.pop() if self._idle else None
        try:
            connection = connection or self._connect()
            yield connection
        except BaseException as error:
            if connection is not None:
                with suppress(sqlite3.Error):
                    connection.close()
            if isinstance(error, sqlite3.Error):
                if is_damaged(error):
                    self._unreadable = (
                        f"{str(self.path)!r} is damaged ({error}): see `fitrouter journal check`, and restart the "
                        "gateway, which salvages what is sound"
                    )
                raise StoreError(f"the journal could not read: {error}") from error
            raise
        with self._mutex:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()
