"""Group commit: one thread writes all queued entries in one transaction."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple, Protocol

from fitrouter.errors import JournalFull, StoreError
from fitrouter.stores.journal._base import Snapshot
from fitrouter.stores.journal._record import Record

_GROUP = 1024
"""Most rows of one transaction: about 40 ms, so that other processes get their turn at the lock."""

_RETRY_S = 1.0
"""Seconds after a failure until the writer tries whether it can write again."""
PROBE = Snapshot(-1, {})
"""Stands for a write that changes nothing."""


class Ticket(NamedTuple):
    """Records or a snapshot that a caller has queued, and the future of the result."""

    records: Sequence[Record]
    snapshot: Snapshot | None
    future: Future[int]


class Writes(Protocol):
    """Protocol of the transactions of one kind of database, used by one thread."""

    @property
    def pause(self) -> float | None:
        """Seconds after which `write` must be called even if nothing was queued; None for never."""
        ...

    def write(self, tickets: Sequence[Ticket]) -> Sequence[int | StoreError]:
        """Write the tickets in one transaction, all or none; returns the last sequence number of each, or its error."""
        ...

    def drop(self) -> None:
        """Roll back and close the connection; the next write opens a new one."""
        ...


class GroupWriter:
    """A bounded queue of entries and the thread that writes them.

    A transaction that fails is rolled back as a whole: each of its callers gets a `StoreError`. The thread survives
    every error.

    Args:
        writes: the database.
        capacity: most entries that may be queued.
        hold: seconds that the writer waits for further entries after the first one.
    """

    def __init__(self, writes: Writes, *, capacity: int, hold: float) -> None:
        self._writes, self._capacity, self._hold = writes, capacity, hold
        self.failure = ""
        """Why the last transaction failed; empty if it did not. While it is set, the writer tries again by itself."""
        self._queue: deque[Ticket] = deque()
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
            self._queue.append(Ticket(records, snapshot, future))
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
        while tickets := self._next_batch():
            self._write(tickets)
            with self._changed:
                self._waiting -= sum(max(len(each.records), 1) for each in tickets if each.snapshot is not PROBE)
        self._writes.drop()

    def _next_batch(self) -> list[Ticket]:
        with self._changed:
            while not self._queue and not self._closing:
                pause = _RETRY_S if self.failure else self._writes.pause
                if not self._changed.wait(pause) and pause is not None:
                    return [Ticket((), PROBE, _unwatched())]
        if self._hold:
            time.sleep(self._hold)
        tickets: list[Ticket] = []
        rows = 0
        with self._changed:
            while self._queue and rows < _GROUP:
                tickets.append(self._queue.popleft())
                rows += len(tickets[-1].records)
        return tickets

    def _write(self, tickets: Sequence[Ticket]) -> None:
        try:
            results = self._writes.write(tickets)
        except Exception as error:  # noqa: BLE001 - the thread must survive whatever a disk, a driver or a hook raises
            self.failure = f"the journal could not write: {error}"
            for ticket in tickets:
                failure = StoreError(self.failure)
                failure.__cause__ = error
                ticket.future.set_exception(failure)
        else:
            if any(ticket.records or ticket.snapshot for ticket in tickets):
                self.failure = ""
            for ticket, result in zip(tickets, results, strict=True):
                if isinstance(result, StoreError):
                    ticket.future.set_exception(result)
                else:
                    ticket.future.set_result(result)


def _unwatched() -> Future[int]:
    future: Future[int] = Future()
    future.set_running_or_notify_cancel()
    return future
