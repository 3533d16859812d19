"""Transactions of the journal's SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from fitrouter.stores.journal._base import Snapshot
from fitrouter.stores.journal._erase import INSERT
from fitrouter.stores.journal._lease import FileLock
from fitrouter.stores.journal._record import Fault, Record, digest_of
from fitrouter.stores.journal._writer import PROBE, Ticket


class SqliteWrites:
    """`Writes` to an SQLite file; after an error the connection is closed, and the next transaction opens a new one.

    Args:
        connect: opens the database.
        lock: held during every transaction, so that processes take turns in order.
        require: called before and after every transaction, under the lock; raises if what is written would be lost.
        fault: see `Fault`.
    """

    pause: float | None = None

    def __init__(
        self, connect: Callable[[], sqlite3.Connection], lock: FileLock, require: Callable[[], None], fault: Fault
    ) -> None:
        self._connect, self._lock, self._require, self._fault = connect, lock, require, fault
        self._connection: sqlite3.Connection | None = None
        self._erased: set[str] = set()
        """Digests of erased subjects, as of the row `_known` of their table."""
        self._known = 0

    def write(self, tickets: Sequence[Ticket]) -> list[int]:
        """Write the tickets in one transaction; returns the last sequence number of each."""
        with self._lock:
            self._require()
            results = self._transact(tickets)
            self._require()
        return results

    def _transact(self, tickets: Sequence[Ticket]) -> list[int]:
        try:
            if self._connection is None:
                self._connection = self._connect()
            connection = self._connection
            self._fault("begin")
            connection.execute("BEGIN IMMEDIATE")
            cursor = connection.cursor()
            self._refresh(cursor)
            results = [self._apply(cursor, ticket) for ticket in tickets]
            self._fault("commit")
            connection.execute("COMMIT")
        except BaseException:
            self.drop()
            raise
        return results

    def _apply(self, cursor: sqlite3.Cursor, ticket: Ticket) -> int:
        if ticket.snapshot is not None:
            self._save(cursor, ticket.snapshot)
        if ticket.records:
            return max([self._insert(cursor, item) for item in ticket.records])
        return _number(cursor.execute("SELECT coalesce(max(seq), 0) FROM events"))

    def _refresh(self, cursor: sqlite3.Cursor) -> None:
        """Read which subjects other threads and processes have erased."""
        last = _number(cursor.execute("SELECT coalesce(max(rowid), 0) FROM erased"))
        if last != self._known:
            found = cursor.execute("SELECT digest FROM erased WHERE rowid > ?", (self._known,)).fetchall()
            self._erased.update(digest for (digest,) in found)
            self._known = last

    def _insert(self, cursor: sqlite3.Cursor, item: Record) -> int:
        if self._erased and item.subject is not None and digest_of(item.subject) in self._erased:
            return _number(cursor.execute("SELECT coalesce(max(seq), 0) FROM events"))  # a request that was in progress
        self._fault("insert")
        cursor.execute(INSERT, item[:7])
        if cursor.rowcount == 0:
            return _number(cursor.execute("SELECT seq FROM events WHERE id = ?", (item.id,)))
        seq = cursor.lastrowid
        assert seq is not None
        if item.content is not None:
            self._fault("spool")
            cursor.execute(
                "INSERT OR REPLACE INTO spool (decision_id, seq, ts, content) VALUES (?, ?, ?, ?)",
                (item.decision_id, seq, item.ts, item.content),
            )
        if item.kind == "score":
            self._fault("unspool")
            cursor.execute("DELETE FROM spool WHERE decision_id = ?", (item.decision_id,))
        return seq

    def _save(self, cursor: sqlite3.Cursor, snapshot: Snapshot) -> None:
        self._fault("snapshot")
        if snapshot is PROBE:
            cursor.execute("UPDATE snapshot_position SET seq = seq")
        if snapshot.seq < _number(
            cursor.execute("SELECT max(seq, (SELECT coalesce(max(seq), 0) FROM erased)) FROM snapshot_position")
        ):
            return
        cursor.executemany(
            "INSERT INTO snapshot_state (key, value) VALUES (?, ?) "
            "ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            ((key, payload) for key, payload in snapshot.state.items() if payload),
        )
        gone = [(key,) for key, payload in snapshot.state.items() if not payload]
        cursor.executemany("DELETE FROM snapshot_state WHERE key = ?", gone)
        cursor.execute("UPDATE snapshot_position SET seq = ?", (snapshot.seq,))

    def drop(self) -> None:
        """Roll back and close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.rollback()
            with suppress(sqlite3.Error):
                connection.close()


def _number(rows: Iterable[tuple[int]]) -> int:
    return next(iter(rows))[0]
