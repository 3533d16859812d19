"""From the journal to the warehouse, by one process of the machine at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from fitrouter.stores.journal import Journal, Row
from fitrouter.stores.warehouse._warehouse import OutOfStep, Position, Warehouse


class WarehouseFeed:
    """Keeps the warehouse behind the journal; call `step` in a loop, from any one thread.

    Only the holder of the lease `warehouse` reads and writes. A step that fails changes nothing, and the next one
    begins where the last one ended; a file that was deleted or set aside is filled from the start.

    Args:
        journal: the log.
        warehouse: the tables.
        batch: rows of one transaction.
        clock: seconds since the epoch, for `lag_seconds`.
    """

    def __init__(
        self, journal: Journal, warehouse: Warehouse, *, batch: int = 2000, clock: Callable[[], float] = time.time
    ) -> None:
        self.journal, self.warehouse = journal, warehouse
        self._batch = batch
        self._clock = clock
        self._lease = journal.lease("warehouse")
        self._mutex = threading.Lock()
        self._last: Position | None = None
        self._head = 0
        self._waiting_since: float | None = None
        self.holds = False
        """True while this process is the one that feeds, as of the last step."""

    def step(self) -> int:
        """Bring one batch over; the number of rows, 0 when there is nothing to do or another process feeds.

        Raises:
            StoreError: the journal cannot be read, or the warehouse not be written: somebody may hold it. Try again.
        """
        with self._mutex:
            self.holds = self._lease.held()
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
                count = self.warehouse.ingest(rows, after=last.seq)
            except OutOfStep:
                self._last = None  # the file was replaced under us: begin again from what it holds
                return 0
            self._last = Position(rows[-1].seq, rows[-1].event.id)
            self._waiting_since = rows[-1].event.ts if self._head > self._last.seq else None
            return count

    def release(self) -> None:
        """Let another process feed."""
        with self._mutex:
            self._lease.release()
            self.holds, self._last = False, None

    @property
    def lag(self) -> int:
        """Rows of the journal that are not in the warehouse, as of the last step; 0 where another process feeds."""
        last = self._last
        return max(0, self._head - (last.seq if last else 0)) if self.holds else 0

    @property
    def lag_seconds(self) -> float:
        """Age of the oldest row that waits; it grows while steps fail or hang."""
        since = self._waiting_since
        return 0.0 if since is None else max(0.0, self._clock() - since)

    def _position(self) -> Position:
        if self._last is None or not self.warehouse.path.exists():
            self._last = self.warehouse.last()
        return self._last

    def _next(self, last: Position) -> Sequence[Row]:
        """The rows after the last one, which must still be the one that the warehouse knows.

        Where it is not, the journal was replaced, and the warehouse begins again from the new one.
        """
        rows = self.journal.tail(last.seq - 1, self._batch + 1)
        first = rows[0] if rows else None
        if self._head < last.seq or (first and first.seq == last.seq and first.event.id != last.event_id):
            self.warehouse.set_aside("belongs to another journal")
            self._last = None
            return []
        return [row for row in rows if row.seq > last.seq][: self._batch]
