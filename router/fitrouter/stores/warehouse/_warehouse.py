"""The warehouse's DuckDB file, opened for each batch and closed again so that other programs can read it in between."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fitrouter.errors import StoreError
from fitrouter.stores._files import quarantine
from fitrouter.stores.journal import Row
from fitrouter.stores.warehouse._migrations import migrate
from fitrouter.stores.warehouse._rows import TABLES, Cells, rows_of
from fitrouter.types import Erasure

if TYPE_CHECKING:
    import duckdb


T = TypeVar("T")

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
"""Words in DuckDB's errors about a corrupt file: it has no error codes. Tests check them against the pinned version."""

_ERASE = (
    'DELETE FROM decisions WHERE "user" = ? AND seq < ?',
    'DELETE FROM executions WHERE "user" = ? AND seq < ?',
    'DELETE FROM scores WHERE "user" = ? AND seq < ?',
    'DELETE FROM feedback WHERE "user" = ? AND seq < ?',
    'DELETE FROM profiles WHERE "user" = ? AND seq < ?',
)


class OutOfStep(StoreError):
    """The warehouse lacks rows before the given batch."""


class Position(NamedTuple):
    """Sequence number and event id of the last copied row."""

    seq: int
    event_id: str


class Warehouse:
    """Tables `decisions, executions, scores, feedback, profiles, models, ope_runs`; views `outcomes, latest_feedback`.

    Everything but `ope_runs` is rebuilt from the journal after the file was deleted or damaged; a damaged file is
    renamed to `<path>.corrupt-<seconds>`. Thread safe.

    Args:
        path: the file; its folder is created.
        memory_limit: DuckDB's setting of this name.
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
        """Sequence number of the last copied row.

        Raises:
            StoreError: the file cannot be opened, for example because another process has it open.
        """
        return self.last().seq

    def last(self) -> Position:
        """Sequence number and event id of the last copied row; see `position`."""
        if not self.path.exists():
            return Position(0, "")
        with self._open() as connection:
            return _position(connection)

    def ingest(self, rows: Sequence[Row], *, after: int | None = None) -> int:
        """Add rows of the journal and move the position, in one transaction. Rows copied before are skipped.

        Args:
            rows: in order of their sequence numbers.
            after: the sequence number that the rows follow, to detect that the file was deleted meanwhile.

        Returns:
            The number of new rows.

        Raises:
            OutOfStep: the position is below `after`; nothing was added. Continue from `position()`.
            StoreError: the file cannot be written, or another process has it open; nothing was added. Try again.
        """
        if not rows:
            return 0
        with self._open() as connection:
            have = _position(connection).seq
            if after is not None and have < after:
                raise OutOfStep(f"{str(self.path)!r} ends at row {have}, but the batch follows row {after}")
            fresh = [row for row in rows if row.seq > have]
            if fresh:
                connection.begin()
                _insert(connection, fresh)
                last = Position(fresh[-1].seq, fresh[-1].event.id)
                connection.execute("UPDATE position SET seq = ?, event_id = ?", list(last))
                connection.commit()
        return len(fresh)

    def note_runs(self, runs: Sequence[Cells], *, patience_s: float = 5.0) -> None:
        """Add rows to `ope_runs`, the results of replays.

        Args:
            runs: one for each estimate, in the order of the table's columns.
            patience_s: how long to wait for another process to close the file.

        Raises:
            StoreError: the file cannot be written, or another process still has it open.
        """

        def append() -> None:
            with self._open() as connection:
                appender = connection.appender("ope_runs")
                appender.append_rows(list(runs))
                appender.flush()

        _retried(append, patience_s)

    def query(self, sql: str, params: Sequence[Any] = (), *, patience_s: float = 5.0) -> list[tuple[Any, ...]]:
        """Run a query and return all its rows. The file is opened read-only and closed again.

        Args:
            sql: one statement, with `?` for parameters.
            params: their values.
            patience_s: how long to wait for another process to close the file.

        Raises:
            StoreError: there is no file yet, another process has it open, or the query fails.
        """
        import duckdb

        def fetch() -> list[tuple[Any, ...]]:
            with self._mutex:
                try:
                    with duckdb.connect(self.path, read_only=True, config=self._config()) as connection:
                        return connection.execute(sql, list(params)).fetchall()
                except duckdb.Error as error:
                    raise StoreError(f"{str(self.path)!r} could not be queried: {error}") from error

        return _retried(fetch, patience_s)

    def set_aside(self, reason: str) -> Path | None:
        """Quarantine the file, so that the next batch begins a new one; None if there is no file."""
        with self._mutex:
            return self._quarantine(reason) if self.path.exists() else None

    def _quarantine(self, reason: str) -> Path:
        self.quarantined = quarantine(self.path, self._clock(), (".wal",), reason)
        return self.quarantined

    def _config(self) -> dict[str, str | bool | int | float | list[str]]:
        return {"memory_limit": self._limit, "threads": 2}

    @contextmanager
    def _open(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection with the newest schema. A damaged file is quarantined, on opening or when a statement fails."""
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
            _log.error("row %d is not copied to the warehouse: %s", row.seq, error)  # it must not block all later rows
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


def _retried(use: Callable[[], T], patience_s: float) -> T:
    """The result of `use`, tried again while another process has the file open."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return use()
        except StoreError as error:
            if not _held(error) or time.monotonic() > deadline:
                raise
        time.sleep(0.02)


def _held(error: Exception) -> bool:
    return "Could not set lock" in str(error) or "different configuration" in str(error)


def _damaged(error: Exception) -> bool:
    message = str(error).lower()
    return not _held(error) and any(word in message for word in _DAMAGED)
