"""The DuckDB file: opened for each batch and closed again, so that others can open it in between."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fitrouter.errors import StoreError
from fitrouter.stores._files import quarantine
from fitrouter.stores.journal import Row
from fitrouter.stores.warehouse._migrations import migrate
from fitrouter.stores.warehouse._rows import TABLES, Cells, rows_of
from fitrouter.types import Erasure

if TYPE_CHECKING:
    import duckdb


_log = logging.getLogger(__name__)

_DAMAGED = (
    "corrupt",
    "not a valid duckdb",
    "could not read enough bytes",
    "checksum",
    "deserializ",
    "serialization",
    "replaying wal",
)
"""What DuckDB says of a file that it cannot read. It has no error codes; the words are pinned by tests."""

_ERASE = (
    'DELETE FROM decisions WHERE "user" = ? AND seq < ?',
    'DELETE FROM executions WHERE "user" = ? AND seq < ?',
    'DELETE FROM scores WHERE "user" = ? AND seq < ?',
    'DELETE FROM feedback WHERE "user" = ? AND seq < ?',
    'DELETE FROM profiles WHERE "user" = ? AND seq < ?',
)


class OutOfStep(StoreError):
    """A batch begins behind a row that the warehouse does not have."""


class Position(NamedTuple):
    """The last row of the journal that is in the warehouse: its sequence number and event id."""

    seq: int
    event_id: str


class Warehouse:
    """Tables `decisions, executions, scores, feedback, profiles, models, ope_runs`; views `outcomes, latest_feedback`.

    Everything but `ope_runs` comes from the journal, so that a file that is damaged is renamed to
    `<path>.corrupt-<seconds>` and filled anew, as is one that was deleted. Thread safe.

    Args:
        path: the file; its folder is made.
        memory_limit: DuckDB's own, for each opening.
        clock: seconds since the epoch, for the name of a quarantined file.
    """

    def __init__(
        self, path: str | os.PathLike[str], memory_limit: str = "512MB", clock: Callable[[], float] = time.time
    ) -> None:
        self.path = Path(path).absolute()
        self.quarantined: Path | None = None
        self._limit = memory_limit
        self._clock = clock
        self._mutex = threading.Lock()

    def position(self) -> int:
        """The sequence number of the last row of the journal that is here.

        Raises:
            StoreError: the file cannot be opened, for example because another process holds it.
        """
        return self.last().seq

    def last(self) -> Position:
        """The last row of the journal that is here; see `position`."""
        if not self.path.exists():
            return Position(0, "")
        with self._open() as connection:
            return _position(connection)

    def ingest(self, rows: Sequence[Row], *, after: int | None = None) -> int:
        """Add rows of the journal and move the position, in one transaction. Rows that are here already are skipped.

        Args:
            rows: in order of their sequence numbers.
            after: the sequence number that the rows follow. A warehouse that does not reach it, because its file was
                deleted meanwhile, refuses the batch.

        Returns:
            How many rows were new.

        Raises:
            OutOfStep: the position is below `after`; nothing was added. Begin again from `position()`.
            StoreError: the file cannot be written, or is held by another process; nothing was added. Try again.
        """
        if not rows:
            return 0
        with self._open() as connection:
            have = _position(connection).seq
            if after is not None and have < after:
                raise OutOfStep(f"{str(self.path)!r} reaches to {have}, and the rows follow {after}")
            fresh = [row for row in rows if row.seq > have]
            if fresh:
                connection.begin()
                _insert(connection, fresh)
                last = Position(fresh[-1].seq, fresh[-1].event.id)
                connection.execute("UPDATE position SET seq = ?, event_id = ?", list(last))
                connection.commit()
        return len(fresh)

    def note_runs(self, runs: Sequence[Cells], *, patience_s: float = 5.0) -> None:
        """Add rows to `ope_runs`, whose columns they follow; everything else comes from the journal.

        Args:
            runs: one for each estimate of a replay.
            patience_s: how long to wait for a process that is writing a batch.

        Raises:
            StoreError: the file cannot be written, or is still held by another process.
        """
        deadline = time.monotonic() + patience_s
        while True:
            try:
                with self._open() as connection:
                    appender = connection.appender("ope_runs")
                    appender.append_rows(list(runs))
                    return appender.flush()
            except StoreError as error:
                if not _held(error) or time.monotonic() > deadline:
                    raise
            time.sleep(0.02)

    def query(self, sql: str, params: Sequence[Any] = (), *, patience_s: float = 5.0) -> list[tuple[Any, ...]]:
        """All rows of a query. The file is opened for reading only and closed before the answer is given.

        Args:
            sql: one statement, with `?` for parameters.
            params: their values.
            patience_s: how long to wait for a process that is writing a batch.

        Raises:
            StoreError: there is no file yet, another process holds it, or the query is wrong.
        """
        import duckdb

        deadline = time.monotonic() + patience_s
        while True:
            with self._mutex:
                try:
                    with duckdb.connect(self.path, read_only=True, config=self._config()) as connection:
                        return connection.execute(sql, list(params)).fetchall()
                except duckdb.Error as error:
                    if not _held(error) or time.monotonic() > deadline:
                        raise StoreError(f"{str(self.path)!r} could not be queried: {error}") from error
            time.sleep(0.02)

    def set_aside(self, reason: str) -> Path | None:
        """Rename the file as a damaged one, so that the next batch begins a new one; None where there is no file."""
        with self._mutex:
            return self._quarantine(reason) if self.path.exists() else None

    def _quarantine(self, reason: str) -> Path:
        self.quarantined = quarantine(self.path, self._clock(), (".wal",), reason)
        return self.quarantined

    def _config(self) -> dict[str, str | bool | int | float | list[str]]:
        return {"memory_limit": self._limit, "threads": 2}

    @contextmanager
    def _open(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection to the newest schema. A damaged file is set aside: at once, or when that is found in use."""
        import duckdb

        with self._mutex:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                connection = self._connect()
                with connection:
                    yield connection
            except (duckdb.Error, OSError) as error:
                if _damaged(error) and self.path.exists():
                    self._quarantine(f"is damaged ({error})")
                raise StoreError(f"the warehouse {str(self.path)!r} could not be used: {error}") from error

    def _connect(self) -> duckdb.DuckDBPyConnection:
        import duckdb

        try:
            return self._migrated()
        except duckdb.Error as error:
            if not _damaged(error):
                raise
            self._quarantine(f"is damaged ({error})")
        return self._migrated()

    def _migrated(self) -> duckdb.DuckDBPyConnection:
        import duckdb

        connection = duckdb.connect(self.path, config=self._config())
        try:
            migrate(connection)
        except BaseException:
            connection.close()
            raise
        return connection


def _position(connection: duckdb.DuckDBPyConnection) -> Position:
    row = connection.execute("SELECT seq, event_id FROM position").fetchone()
    assert row is not None
    return Position(*row)


def _insert(connection: duckdb.DuckDBPyConnection, rows: Sequence[Row]) -> None:
    cells: defaultdict[str, list[Cells]] = defaultdict(list)
    for row in rows:
        try:
            table, found = rows_of(row)
        except ValueError as error:
            _log.error("row %d is left out of the warehouse: %s", row.seq, error)  # it must not stop all that follow
        else:
            cells[table].extend(found)
    for table in TABLES:
        if cells[table]:
            appender = connection.appender(table)
            appender.append_rows(cells[table])
            appender.flush()
    for row in rows:
        if isinstance(row.event, Erasure):
            for statement in _ERASE:
                connection.execute(statement, [row.event.subject, row.seq])


def _held(error: Exception) -> bool:
    return "Could not set lock" in str(error) or "different configuration" in str(error)


def _damaged(error: Exception) -> bool:
    told = str(error).lower()
    return not _held(error) and any(word in told for word in _DAMAGED)
