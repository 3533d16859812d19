"""Journal in an SQLite file, shared by the worker processes of one machine."""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from fitrouter.errors import StoreError
from fitrouter.stores._files import COMPANIONS, connect, is_damaged, quarantine
from fitrouter.stores.journal._base import Entry, Row, Snapshot, Spooled
from fitrouter.stores.journal._lease import FileLease, FileLock
from fitrouter.stores.journal._record import Fault, no_fault, record
from fitrouter.stores.journal._schema import open_checked
from fitrouter.stores.journal._writer import GroupWriter
from fitrouter.types import ProfileChange, decode_event

_log = logging.getLogger(__name__)


class SqliteJournal:
    """A `Journal` with write-ahead log, `synchronous=FULL` and group commit: acknowledged entries survive power loss.

    Any number of processes on one machine may open the same file. Their transactions queue on a lock file
    (`<path>.lock`), because SQLite's own waiting is unfair; sequence numbers are therefore committed in order, and a
    reader that polls `tail(after)` never misses a row. Open it after forking, not before.

    A corrupt file is renamed to `<path>.corrupt-<seconds>` when it is opened, and replaced by an empty one;
    `quarantined` is then its new path. A single row whose checksum does not match is skipped and logged.

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
        self._mutex = threading.Lock()
        self._idle: deque[sqlite3.Connection] = deque()
        self._leases: list[FileLease] = []
        self._closed = False
        self._pid = os.getpid()
        self._lock = FileLock(self._beside("lock"))
        self._users = FileLock(self._beside("open"))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._lock:
                self._idle.append(self._open(clock))
                self._users.share()
        except (OSError, sqlite3.Error, StoreError) as error:
            self._users.close()
            self._lock.close()
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"the journal {str(self.path)!r} cannot be opened: {error}") from error
        self._writer = GroupWriter(lambda: connect(self.path), self._lock, capacity=capacity, hold=hold, fault=fault)

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(f"{self.path.name}.{suffix}")

    def _open(self, clock: Callable[[], float]) -> sqlite3.Connection:
        """Open and check the file, or replace it if it is damaged; called under the lock."""
        try:
            return open_checked(self.path)
        except sqlite3.DatabaseError as error:
            if not is_damaged(error):
                raise
            # A process that still has the old file open would delete the new one's write-ahead log when it closes.
            if not self._users.alone():
                raise StoreError(
                    f"the journal {str(self.path)!r} is damaged ({error}) and open in other processes; stop them first"
                ) from error
        self.quarantined = quarantine(self.path, clock(), COMPANIONS)
        return open_checked(self.path)

    def append(self, *entries: Entry) -> Future[int]:
        """Queue the entries as one transaction; see `Journal.append`."""
        return self._writer.submit([record(entry) for entry in entries])

    def tail(self, after: int, limit: int = 512) -> Sequence[Row]:
        """The next rows after a sequence number, in order."""
        rows: list[Row] = []
        while not rows:
            found = self._read(
                "SELECT seq, payload, crc FROM events WHERE seq > ? ORDER BY seq LIMIT ?", (after, limit)
            )
            rows = self._decode(found)
            if len(found) < max(limit, 1):
                break
            after = found[-1][0]  # only damaged rows so far: an empty answer would look like the end
        return rows

    def of(self, key: str) -> Sequence[Row]:
        """All rows of a decision id or a subject, in order."""
        return self._decode(
            self._read(
                "SELECT seq, payload, crc FROM events WHERE decision_id = ? OR subject = ? ORDER BY seq",
                (key, key),
            )
        )

    def profile(self, subject: str) -> ProfileChange | None:
        """The last profile of a subject; None without one."""
        rows = self._decode(
            self._read(
                "SELECT seq, payload, crc FROM events WHERE subject = ? AND kind = 'profile' ORDER BY seq DESC LIMIT 1",
                (subject,),
            )
        )
        return rows[0].event if rows and isinstance(rows[0].event, ProfileChange) else None

    def lease(self, name: str) -> FileLease:
        """The lease of this name, a locked file `<path>.<name>.lease`; the kernel frees it when its holder dies.

        Raises:
            ValueError: the name has other characters than a-z, 0-9, '-' and '_'.
        """
        if not re.fullmatch(r"[a-z0-9_-]{1,64}", name):
            raise ValueError(f"lease {name!r}: use 1 to 64 of a-z, 0-9, '-' and '_'")
        lease = FileLease(self._beside(f"{name}.lease"))
        with self._mutex:
            self._leases.append(lease)
        return lease

    def spooled(self, limit: int = 64) -> Sequence[Spooled]:
        """The oldest unscored answers."""
        rows = self._read("SELECT decision_id, ts, content FROM spool ORDER BY seq LIMIT ?", (limit,))
        return [Spooled(*row) for row in rows]

    def save(self, snapshot: Snapshot) -> None:
        """Merge the state into the stored snapshot and move its position; see `Journal.save`."""
        self._writer.submit((), snapshot).result()

    def snapshot(self) -> Snapshot:
        """The stored snapshot; position 0 and no state if there is none."""
        with self._reader() as connection:
            connection.execute("BEGIN")
            (seq,) = connection.execute("SELECT seq FROM snapshot_position").fetchone()
            state = dict(connection.execute("SELECT key, value FROM snapshot_state ORDER BY key"))
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
        self._users.close()
        self._lock.close()

    def _decode(self, found: Sequence[tuple[int, bytes, int]]) -> list[Row]:
        rows: list[Row] = []
        for seq, payload, crc in found:
            try:
                if zlib.crc32(payload) != crc:
                    raise msgspec.DecodeError("its checksum differs")  # noqa: TRY301
                rows.append(Row(seq, decode_event(payload)))
            except msgspec.DecodeError as error:
                _log.error("row %d of %s is skipped: %s", seq, self.path, error)
        return rows

    def _read(self, sql: str, params: tuple[object, ...]) -> list[Any]:
        with self._reader() as connection:
            return connection.execute(sql, params).fetchall()

    @contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        """A pooled connection for this thread alone; after an error it is closed instead of reused."""
        with self._mutex:
            if self._closed or self._pid != os.getpid():
                raise StoreError("the journal is closed, or was opened before this process was forked; open it again")
            connection = self._idle.pop() if self._idle else None
        try:
            connection = connection or connect(self.path)
            yield connection
        except BaseException as error:
            if connection is not None:
                with suppress(sqlite3.Error):
                    connection.close()
            if isinstance(error, sqlite3.Error):
                raise StoreError(f"the journal could not read: {error}") from error
            raise
        with self._mutex:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()
