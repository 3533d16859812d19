"""Writes the journal's events to segments, and maintains those by merging, retention and repair."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from fitrouter.errors import StoreError, require
from fitrouter.stores.journal import Journal, digest_of
from fitrouter.stores.warehouse._schema import TABLES, tables_sql
from fitrouter.stores.warehouse._warehouse import insert
from fitrouter.stores.warehouse.segments._editor import Damaged, Editor, database
from fitrouter.stores.warehouse.segments._manifest import MANIFEST, Manifest, Segment
from fitrouter.stores.warehouse.segments._places import note_place, storage_at
from fitrouter.stores.warehouse.segments._storage import Superseded
from fitrouter.types import Erasure

EVENTS = 50_000
"""Events of a new segment, at most."""
_BATCH = 2000
_SWEEP_S = 3600.0
_DAY_S = 86_400.0
_SPANS = 10.0
"""Merged segments span at most this part of `days`: a segment goes when its newest event is old enough."""


class SegmentFeed:
    """Writes and maintains segments; call `step` in a loop. Only the holder of the lease `segments` does so.

    A step that fails leaves the segments as they were, or has committed its change; the next one goes on from there.

    Args:
        journal: the source.
        place: a folder, or s3://BUCKET/PREFIX.
        folder: of this machine, for files under way.
        every_s: how old an event gets before it is written.
        days: age at which the rows of requests are dropped; None for never.
        events: most events of a new segment, which is written as soon as there are as many.
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
        *,
        every_s: float = 600.0,
        days: float | None = None,
        events: int = EVENTS,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        require("duckdb", "the setting warehouse.segments")
        self.storage = storage_at(place)
        self._journal, self._folder, self._every_s, self._events = journal, folder, every_s, events
        self._days, self._clock, self._timer = days, clock, timer
        self._lease = journal.lease("segments")
        self._mutex = threading.Lock()
        self._editor: Editor | None = None
        self._waiting: float | None = None
        self._swept = -math.inf
        self._noted = False
        self.holds = False
        """Whether this process held the lease at the last step."""

    def step(self) -> int:
        """Do one change, if one is due. Returns the number of events that it was about, 0 for none.

        Raises:
            StoreError: the place or the journal cannot be read or written, or the segments are another journal's. Try
                again.
        """
        with self._mutex:
            if not self._noted:
                note_place(self._folder, self.storage)
                self._noted = True
            self.holds = self._lease.held()
            if not self.holds:
                self._editor = None
                return 0
            try:
                try:
                    return self._change()
                except Superseded:  # by an erasure; or by a gateway that had the lease before
                    self._editor = None
                    return self._change()
            except BaseException:
                self._editor = None  # what is committed is read again
                raise

    def release(self) -> None:
        """Give the lease to another process."""
        with self._mutex:
            self._lease.release()
            self.holds, self._editor = False, None

    def _change(self) -> int:
        editor = self._editor
        if editor is None:
            editor = Editor(self.storage, self._folder)
            self._check(editor.manifest)
            self._editor, self._swept = editor, -math.inf
        if self._timer() >= self._swept + _SWEEP_S:
            for segment in editor.sweep():
                self._repair(editor, segment)
            self._swept = self._timer()
        if count := self._append(editor):
            return count
        span_s = math.inf if self._days is None else self._days * _DAY_S / _SPANS
        try:
            changed = editor.merge(span_s)
        except Damaged as error:
            self._repair(editor, error.segment)
            return 1
        if self._days is not None:
            changed |= editor.drop(self._clock() - self._days * _DAY_S)
        return int(changed)

    def _check(self, manifest: Manifest) -> None:
        """Raise StoreError if the segments are of another journal, or of a later state of this one."""
        rows = self._journal.tail(manifest.seq - 1, 1) if manifest.seq else []
        other = rows and rows[0].seq == manifest.seq and rows[0].event.id != manifest.event_id
        if other or self._journal.head() < manifest.seq:
            raise StoreError(
                f"the segments in {self.storage.place!r} are another journal's, or this one was restored from an older "
                "backup; nothing is written. Set `warehouse.segments` to a new place, which is filled from the "
                f"beginning, or delete {MANIFEST} there"
            )

    def _append(self, editor: Editor) -> int:
        """Write the due events as a new segment; return their number."""
        after, head = editor.manifest.seq, self._journal.head()
        if head <= after:
            self._waiting = None
            return 0
        if self._waiting is None:
            self._waiting = self._timer()
        if head - after < self._events and self._timer() - self._waiting < self._every_s:
            return 0
        made = self._written(editor, after, head)
        if made is None:
            return 0
        segment, event_id = made
        kept = (*editor.manifest.segments, segment) if segment.files else editor.manifest.segments
        editor.commit(kept, segment.last, event_id)
        self._waiting = None
        return segment.events

    def _written(
        self, editor: Editor, after: int, last: int, tables: tuple[str, ...] = TABLES
    ) -> tuple[Segment, str] | None:
        """Store the journal's next events, up to one; return their segment, and the id of the last event."""
        first, count, start, end, event_id = after + 1, 0, math.inf, -math.inf, ""
        with editor.scratch() as folder, database(folder) as connection:
            connection.execute(tables_sql())
            while count < self._events and after < last:
                rows = self._journal.tail(after, min(_BATCH, self._events - count))
                rows = [row for row in rows if row.seq <= last]
                if not rows:
                    break
                insert(connection, rows)
                for row in rows:  # logs of versions before this one
                    if isinstance(row.event, Erasure) and row.event.subject:
                        editor.erase([digest_of(row.event.subject)], before=row.seq)
                times = [row.event.ts for row in rows if math.isfinite(row.event.ts)]
                start, end = min([start, *times]), max([end, *times])
                count, after, event_id = count + len(rows), rows[-1].seq, rows[-1].event.id
            if not count:
                return None
            files = {}
            for table in tables:
                if file := editor.write(connection, f'SELECT * FROM "{table}"', table, first, after, folder):  # noqa: S608
                    files[table] = file
        if start > end:  # no event has a time
            start = end = 0.0
        return Segment(first, after, start, end, count, 0, files), event_id

    def _repair(self, editor: Editor, segment: Segment) -> None:
        """Rewrite a segment from the journal, as several segments if needed."""
        made: list[Segment] = []
        after = segment.first - 1
        while after < segment.last and (next_ := self._written(editor, after, segment.last, tuple(segment.files))):
            made.append(next_[0])
            after = next_[0].last
        whole = len(made) == 1
        if whole:
            made = [msgspec.structs.replace(made[0], last=segment.last, level=segment.level)]
        others = [each for each in editor.manifest.segments if each.first != segment.first]
        editor.commit([*others, *(each for each in made if each.files)])
