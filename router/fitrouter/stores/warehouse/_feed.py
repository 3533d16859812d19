"""Copies the journal into the warehouse, from one process of the machine at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from fitrouter.errors import StoreError
from fitrouter.stores.journal import Journal, Row
from fitrouter.stores.warehouse._warehouse import OutOfStep, Position, Warehouse


class WarehouseFeed:
    """Keeps the warehouse up to date with the journal; call `step` in a loop.

    Only the holder of the lease `warehouse` reads and writes. A step that fails changes nothing, and the next one
    resumes at the same row; a file that was deleted or quarantined is filled from the start.

    Args:
        journal: the source.
        warehouse: the destination.
        batch: most rows of one transaction.
        clock: seconds since the epoch, for `lag_seconds`.
    """

    def __init__(
        self, journal: Journal, warehouse: Warehouse, *, batch: int = 2000, clock: Callable[[], float] = time.time
    ) -> None:
        self.journal, self.warehouse = journal, warehouse
        self.batch = batch
        self._clock = clock
        self._lease = journal.lease("warehouse")
        self._mutex = threading.Lock()
        self._last: Position | None = None
        self._head = 0
        self._waiting_since: float | None = None
        self._looked = False
        self.holds = False
        """Whether this process held the lease at the last step."""

    def step(self) -> int:
        """Copy one batch. Returns the number of rows, 0 if all are copied or another process holds the lease.

        Raises:
            StoreError: the journal cannot be read, or the warehouse cannot be written (another program may have it
                open). Try again.
        """
        with self._mutex:
            self.holds, self._looked = self._lease.held(), True
            if not self.holds:
                self._last, self._waiting_since = None, None
                return 0
            self._head = self.journal.head()
            last = self._position()
            rows = self._next(last) if self._head != last.seq else []
            self._waiting_since = rows[0].event.ts if rows else None
            if not rows:
                return 0
            try:
                count = self.warehouse.ingest(rows, after=last.seq, until=self._head)
            except OutOfStep:
                self._last = None  # the file was replaced meanwhile: continue from its own position
                return 0
            self._last = Position(rows[-1].seq, rows[-1].event.id)
            self._waiting_since = rows[-1].event.ts if self._head > self._last.seq else None
            return count

    def drain(self, timeout_s: float) -> int:
        """Copy what is left when the process ends; return how many rows were not copied in time.

        Another process that holds the lease copies them.
        """
        deadline = time.monotonic() + timeout_s
        while self.holds and time.monotonic() < deadline:
            try:
                if not self.step() and not self.lag:
                    return 0
            except StoreError:
                time.sleep(min(0.1, timeout_s))
        return max(0, self.journal.head() - self._last.seq) if self.holds and self._last else 0

    def position(self) -> int | None:
        """Sequence number of the last copied row; None if another process holds the lease."""
        last = self._last
        return last.seq if self.holds and last is not None else None

    def prune(self, seq: int) -> None:
        """Delete the rows of requests up to a sequence number, if this process holds the lease.

        Raises:
            StoreError: the file cannot be written. Try again.
        """
        with self._mutex:
            if self.holds and self.warehouse.path.exists():
                self.warehouse.prune(seq)

    def release(self) -> None:
        """Give the lease to another process."""
        with self._mutex:
            self._lease.release()
            self.holds, self._last = False, None

    @property
    def lag(self) -> int:
        """Number of rows not known to be copied: all before the first step, none if another process has the lease.

        Reads the journal.
        """
        last = self._last
        return max(0, self.journal.head() - (last.seq if last else 0)) if self.holds or not self._looked else 0

    @property
    def lag_seconds(self) -> float:
        """Age of the oldest row not yet copied; it grows while steps fail or hang."""
        since = self._waiting_since
        return 0.0 if since is None else max(0.0, self._clock() - since)

    def _position(self) -> Position:
        if self._last is None or not self.warehouse.path.exists():
            self._last = self.warehouse.last()
        return self._last

    def _next(self, last: Position) -> Sequence[Row]:
        """Read the rows after the last copied one.

        If the journal has another event at that position, it was replaced, and the warehouse is filled again.
        """
        rows = self.journal.tail(last.seq - 1, self.batch + 1)
        first = rows[0] if rows else None
        if self._head < last.seq or (first and first.seq == last.seq and first.event.id != last.event_id):
            self.warehouse.set_aside("belongs to another journal")
            self._last = None
            return []
        return [row for row in rows if row.seq > last.seq][: self.batch]
