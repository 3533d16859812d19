"""Retention: moves old events from journal and warehouse to Parquet files, which learning and replay still read."""

from __future__ import annotations

import time
from collections.abc import Callable

from fitrouter.stores.journal import SEGMENT, SqliteJournal
from fitrouter.stores.warehouse import WarehouseFeed
from fitrouter.stores.warehouse.segments import Storage, manifest_of

_DAY_S = 86_400.0


class Retention:
    """Moves events that are older than some days, a whole file at a time. All methods block on the disk.

    Args:
        journal: the log.
        feed: of the warehouse, whose process does the work; None without DuckDB tables.
        days: age of the events.
        clock: seconds since the epoch.
        size: events of a file.
    """

    def __init__(
        self,
        journal: SqliteJournal,
        feed: WarehouseFeed | None,
        days: float,
        clock: Callable[[], float] = time.time,
        size: int = SEGMENT,
    ) -> None:
        self._journal, self._feed, self._days, self._clock, self._size = journal, feed, days, clock, size

    def step(self) -> int:
        """Move the events of one file; returns their number.

        Raises:
            StoreError: a file cannot be written. Try again.
        """
        position = self._journal.head() if self._feed is None else self._feed.position()
        if position is None:  # another process feeds the warehouse
            return 0
        moved = self._journal.archive(self._clock() - self._days * _DAY_S, position, self._size)
        if self._feed is not None and not moved:  # which copies the warehouse
            self._feed.prune(self._journal.archived())
        return moved


class LocalRetention:
    """Removes old requests' rows from the DuckDB file once segments have them. All methods block on the disk.

    Args:
        storage: of the segments.
        feed: of the file.
        days: age of the rows.
        clock: seconds since the epoch.
    """

    def __init__(
        self, storage: Storage, feed: WarehouseFeed, days: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._storage, self._feed, self._days, self._clock = storage, feed, days, clock
        self._pruned = 0.0

    def step(self) -> int:
        """Remove rows, at most once a day since it copies the file; return 0.

        Raises:
            StoreError: the segments cannot be read, or the file cannot be written. Try again.
        """
        now, position = self._clock(), self._feed.position()
        if position is None or now < self._pruned + _DAY_S:  # another process feeds the file
            return 0
        seq = manifest_of(self._storage).manifest.before(now - self._days * _DAY_S)
        self._feed.prune(min(seq, position))
        self._pruned = now
        return 0
