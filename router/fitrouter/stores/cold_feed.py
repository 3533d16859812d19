"""Writes the journal's events to the cold store, and moves old ones there from journal and warehouse."""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

from fitrouter.errors import StoreError, require
from fitrouter.stores import cold
from fitrouter.stores.journal import Journal, SqliteJournal, stored
from fitrouter.stores.warehouse import WarehouseFeed
from fitrouter.types import Erasure

EVENTS = 20_000
"""Most events of a file, which readers of a moved event load whole."""
_BATCH = 2000
_DAY_S = 86_400.0
_LEASE = "cold"
_LAST = "SELECT seq, id FROM read_parquet(?) ORDER BY seq DESC LIMIT 1"
_KEYS = "SELECT crc, seq, id FROM read_parquet(?) ORDER BY seq"


class ColdFeed:
    """Keeps a cold store up to date with the journal; call `step` in a loop.

    Writers and erasures take the lease `cold` for each change. A change is one file, stored whole or not at all, and
    events leave the journal only when a file has them: a process may end at any moment.

    Args:
        journal: the source.
        place: a folder, or s3://BUCKET/PREFIX.
        folder: of the journal, or of what stays on this machine.
        feed: of the warehouse, whose process moves old events; None without DuckDB tables.
        every_s: how old an event gets before it is written.
        days: age at which events leave journal and warehouse; None for never. A database keeps its events.
        keep_days: age at which requests leave the cold store, too; None for never.
        events: most events of a file, which is written as soon as there are as many.
        clock: seconds since the epoch.
        timer: seconds, for `every_s`.

    Raises:
        ConfigError: the place is neither of both.
        MissingExtra: DuckDB or obstore is not installed.
    """

    def __init__(
        self,
        journal: Journal,
        place: str,
        folder: Path,
        feed: WarehouseFeed | None = None,
        *,
        every_s: float = 600.0,
        days: float | None = None,
        keep_days: float | None = None,
        events: int = EVENTS,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        require("duckdb", "the setting cold.place")
        self.storage = cold.storage_at(place, folder)
        self._journal, self._folder, self._feed, self._every_s = journal, folder, feed, every_s
        self._days, self._keep_days, self._events = days, keep_days, events
        self._clock, self._timer = clock, timer
        self._lease = journal.lease(_LEASE)
        self._mutex = threading.Lock()
        self._noted = False
        self._last: int | None = None
        """Last event in the cold store, as far as this process knows."""
        self._known = ""
        """Name of the last file, once it is known to be this journal's."""
        self._waiting = self._swept = -math.inf
        self._moved = 0
        self._pruned = -math.inf
        self._dropped: set[str] = set()

    def step(self) -> int:
        """Do one change, if one is due. Returns the number of events that it was about, 0 for none.

        Raises:
            StoreError: the place or the journal cannot be read or written, or the files are another journal's. Try
                again.
        """
        with self._mutex:
            now = self._timer()
            writes, sweeps = self._due(now), now >= self._swept + self._every_s
            if not (writes or sweeps) or not self._lease.held():
                return 0
            try:
                if not self._noted:  # before there is a file, so that every erasure knows of it
                    cold.note_place(self._folder, self.storage)
                    self._noted = True
                if writes and (count := self._write()):
                    return count
                if sweeps:
                    if count := self._move() or self._drop():
                        return count
                    self._swept = now
                return 0
            finally:
                self._lease.release()

    def _due(self, now: float) -> bool:
        """Whether events wait that are many, or old."""
        if self._last is None:
            return True
        if (ahead := self._journal.head() - self._last) <= 0:
            self._waiting = math.inf
            return False
        self._waiting = min(self._waiting, now)
        return ahead >= self._events or now >= self._waiting + self._every_s

    def _write(self) -> int:
        """Write the next file, a missing one, or the last one again with more events; return the number of new ones."""
        files = cold.files_at(self.storage)
        self._check(files)
        self._last = files[-1].last if files else 0
        after, until = self._last, self._journal.head()
        if holes := cold.gaps(files):
            after, until = holes[0][0] - 1, holes[0][1]
        elif files and (rows := self._journal.tail(after, 1)):
            last = files[-1]
            if cold.day_of(rows[0].event.ts) <= last.day and last.last - last.first + 1 < self._events:
                after = last.first - 1
        if after >= until:
            return 0
        before = self._erasures(0)
        made, rows_ = self._read(after, until)
        if isinstance(self._journal, SqliteJournal) and (lost := self._journal.lost(made.first, made.last)):
            raise StoreError(
                f"{lost} of the events {made.first} to {made.last} were moved to a cold store and are not there: mount "
                f"it, or restore it from a backup. Nothing is written to {self.storage.place!r} meanwhile"
            )
        cold.write(self.storage, made, rows_)
        if erased := self._erasures(max(before, default=0)):  # after a lease that was lost meanwhile
            cold.erase(self.storage, [digest for digests in erased.values() for digest in digests])
        cold.sweep(self.storage)
        new = max(1, made.last - max(self._last, after))
        if made.last >= self._last:
            self._last, self._known = made.last, made.name
        self._waiting = math.inf
        return new

    def _read(self, after: int, until: int) -> tuple[cold.File, list[cold.Stored]]:
        """Read the next events of one day, as many as a file may have."""
        first, day, rows = after + 1, "", list[cold.Stored]()
        while after < until and len(rows) < self._events:
            found = self._journal.tail(after, min(_BATCH, self._events - len(rows)))
            found = [row for row in found if row.seq <= until]
            if not found:  # those up to there were erased
                after = until
            for row in found:
                this = cold.day_of(row.event.ts)
                if day and this > day:
                    return cold.File(first, after, day), rows
                day, after = day or this, row.seq
                rows.append((row.seq, *stored(row.event)[:7]))
        return cold.File(first, after, day or cold.day_of(0.0)), rows

    def _check(self, files: Collection[cold.File]) -> None:
        """Raise StoreError if the files are of another journal, or of a later state of this one."""
        for last in list(files)[-1:]:
            if last.name == self._known:
                return
            ids = dict(cold.query(self.storage, last, _LAST))
            rows = [row for seq in ids for row in self._journal.tail(seq - 1, 1) if row.seq == seq]
            if any(row.event.id != ids[row.seq] for row in rows) or self._journal.head() < last.last:
                raise StoreError(
                    f"the cold store {self.storage.place!r} is another journal's, or this one was restored from an "
                    "older backup; nothing is written. Set `cold.place` to a new place, which is filled from the "
                    "beginning, or empty this one"
                )
            self._known = last.name

    def _erasures(self, after: int) -> dict[int, Collection[str]]:
        """The last erasures after a sequence number, with their digests."""
        rows = self._journal.latest(["erasure"], 16)
        return {row.seq: row.event.digests for row in rows if row.seq > after and isinstance(row.event, Erasure)}

    def _move(self) -> int:
        """Delete the payloads of one old file from the journal, or the rows of old files from the warehouse."""
        if self._days is None:
            return 0
        position = self._journal.head() if self._feed is None else self._feed.position()
        if position is None:  # another process feeds the warehouse
            return 0
        for file in cold.files_at(self.storage):
            if file.last <= self._moved:
                continue
            if file.last > position or file.end + self._days * _DAY_S > self._clock():
                break
            if isinstance(self._journal, SqliteJournal) and not self._journal.move(
                file.first, file.last, functools.partial(cold.query, self.storage, file, _KEYS)
            ):
                break
            self._moved, self._pruned = file.last, -math.inf
            return file.last - file.first + 1
        if self._feed is not None and self._clock() >= self._pruned + _DAY_S:  # a file that is filled again, too
            self._feed.prune(self._moved)
            self._pruned = self._clock()
        return 0

    def _drop(self) -> int:
        """Write one file that is too old again without requests; return 0 if there is none."""
        if self._keep_days is None:
            return 0
        for file in cold.files_at(self.storage):
            if file.end + self._keep_days * _DAY_S > self._clock():
                break
            if file.name not in self._dropped:
                dropped = cold.drop(self.storage, file)
                self._dropped.add(file.name)
                if dropped:
                    return file.last - file.first + 1
        return 0


def erase_cold(journal: Journal, folder: Path, digests: Collection[str], deadline: float) -> None:
    """Erase users from the cold stores in all places that a data folder has used.

    Args:
        journal: its lease excludes writers.
        folder: the data folder.
        digests: of their subjects.
        deadline: on the monotonic clock, for the lease.

    Raises:
        StoreError: something is left, and why.
    """
    if not (places := cold.noted_places(folder)):
        return
    lease = journal.lease(_LEASE)
    try:
        while not lease.held():
            if time.monotonic() > deadline:
                raise StoreError("another process is writing to the cold store")
            time.sleep(0.05)
        for place in places:
            cold.erase(cold.storage_at(place, folder), digests)
    finally:
        lease.release()
