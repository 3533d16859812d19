"""Group commit: one thread writes all queued entries in one transaction."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import NamedTuple

from fitrouter.errors import JournalFull, StoreError
from fitrouter.stores.journal._base import Snapshot
from fitrouter.stores.journal._lease import FileLock
from fitrouter.stores.journal._record import Fault, Record

_GROUP = 1024
"""Most rows of one transaction: about 40 ms, so that other processes get their turn at the lock."""

_INSERT = """INSERT INTO events (id, ts, kind, decision_id, subject, payload, crc)
VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING"""


class _Ticket(NamedTuple):
    """A caller's queued records or snapshot."""

    records: Sequence[Record]
    snapshot: Snapshot | None
    future: Future[int]


class GroupWriter:
    """A bounded queue of entries and the thread that writes them.

    A transaction that fails is rolled back as a whole: each of its callers gets a `StoreError`, the connection is
    closed, and the next transaction opens a new one. The thread survives every error.

    Args:
        connect: opens the database.
        lock: held during every transaction, so that processes take turns in order.
        capacity: most entries that may be queued.
        hold: seconds that the writer waits for further entries after the first one.
        fault: see `Fault`.
    """

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        lock: FileLock,
        *,
        capacity: int,
        hold: float,
        fault: Fault,
    ) -> None:
        self._connect, self._lock, self._fault = connect, lock, fault
        self._capacity, self._hold = capacity, hold
        self._connection: sqlite3.Connection | None = None
        self._queue: deque[_Ticket] = deque()
        self._waiting = 0
        self._closing = False
        self._changed = threading.Condition()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="fitrouter-journal", daemon=True)
        self._thread.start()

    def submit(self, records: Sequence[Record], snapshot: Snapshot | None = None) -> Future[int]:
        """Queue the records, or a snapshot, as part of one transaction; see `Journal.append`.

        Raises:
            JournalFull: the queue has no room.
            StoreError: the journal is closed, or was opened before this process was forked.
        """
        future: Future[int] = Future()
        future.set_running_or_notify_cancel()
        weight = max(len(records), 1)
        with self._changed:
            if self._closing or self._pid != os.getpid():
                reason = "is closed" if self._closing else "was opened before this process was forked"
                raise StoreError(f"the journal {reason}; open it again")
            if self._waiting + weight > self._capacity:
                raise JournalFull(
                    f"the journal's queue is full: {self._waiting} entries are queued, {weight} more would exceed "
                    f"{self._capacity}; retry later"
                )
            self._waiting += weight
            self._queue.append(_Ticket(records, snapshot, future))
            self._changed.notify()
        return future

    def close(self) -> None:
        """Write the queued entries, then stop."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._pid == os.getpid():
            self._thread.join()

    def _run(self) -> None:
        while tickets := self._take():
            self._write(tickets)
            with self._changed:
                self._waiting -= sum(max(len(ticket.records), 1) for ticket in tickets)
        self._drop()

    def _take(self) -> list[_Ticket]:
        with self._changed:
            while not self._queue and not self._closing:
                self._changed.wait()
        if self._hold:
            time.sleep(self._hold)
        tickets: list[_Ticket] = []
        rows = 0
        with self._changed:
            while self._queue and rows < _GROUP:
                tickets.append(self._queue.popleft())
                rows += len(tickets[-1].records)
        return tickets

    def _write(self, tickets: Sequence[_Ticket]) -> None:
        try:
            with self._lock:
                results = self._transact(tickets)
        except Exception as error:  # noqa: BLE001 - the thread must survive whatever a disk, a driver or a hook raises
            for ticket in tickets:
                failure = StoreError(f"the journal could not write: {error}")
                failure.__cause__ = error
                ticket.future.set_exception(failure)
        else:
            for ticket, seq in zip(tickets, results, strict=True):
                ticket.future.set_result(seq)

    def _transact(self, tickets: Sequence[_Ticket]) -> list[int]:
        """Write the tickets in one transaction; returns the last sequence number of each."""
        try:
            if self._connection is None:
                self._connection = self._connect()
            connection = self._connection
            self._fault("begin")
            connection.execute("BEGIN IMMEDIATE")
            cursor = connection.cursor()
            results = [self._apply(cursor, ticket) for ticket in tickets]
            self._fault("commit")
            connection.execute("COMMIT")
        except BaseException:
            self._drop()
            raise
        return results

    def _apply(self, cursor: sqlite3.Cursor, ticket: _Ticket) -> int:
        if ticket.snapshot is not None:
            self._save(cursor, ticket.snapshot)
        if ticket.records:
            return max([self._insert(cursor, item) for item in ticket.records])
        return _number(cursor.execute("SELECT coalesce(max(seq), 0) FROM events"))

    def _insert(self, cursor: sqlite3.Cursor, item: Record) -> int:
        self._fault("insert")
        cursor.execute(_INSERT, item[:7])
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
        if snapshot.seq < _number(cursor.execute("SELECT seq FROM snapshot_position")):
            return
        cursor.executemany(
            "INSERT INTO snapshot_state (key, value) VALUES (?, ?) "
            "ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            snapshot.state.items(),
        )
        cursor.execute("UPDATE snapshot_position SET seq = ?", (snapshot.seq,))

    def _drop(self) -> None:
        """Roll back and close the connection; after an error it is not reused."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.rollback()
            with suppress(sqlite3.Error):
                connection.close()


def _number(rows: Iterable[tuple[int]]) -> int:
    return next(iter(rows))[0]
