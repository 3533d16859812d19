"""The warehouse's DuckDB file, open only during each batch, so that other programs can read it in between.

One DuckDB per object attaches the file for each use: to make one anew takes longer than most queries.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fitrouter.errors import NoWarehouse, StoreError, WarehouseLocked
from fitrouter.stores._files import make_folder, quarantine
from fitrouter.stores.journal import Row
from fitrouter.stores.warehouse._schema import TABLES, Cells, create_sql, quoted, rows_of, schema, version
from fitrouter.stores.warehouse._words import describe
from fitrouter.types import Erasure

if TYPE_CHECKING:
    import duckdb


T = TypeVar("T")
_HEARD = ("heard_feedback", "left_out")

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

_LOCKED = ("Could not set lock", "different configuration", "Unique file handle conflict")
"""Words in its errors about a file that another process, or another object of this one, has open."""

PERSONAL = tuple(table for table, columns in schema().items() if "user" in columns)
"""Tables from which an erasure deletes a person's rows."""
_THEIRS = """sha256("user") IN (SELECT unnest($digests::VARCHAR[]))"""
_GONE = {"user": _THEIRS, "decision_id": f"decision_id IN (SELECT decision_id FROM decisions WHERE {_THEIRS})"}  # noqa: S608
"""Column → condition for rows of erased users."""
_OLD = {"decision_id": "seq <= $seq"}
"""Column → condition for rows of requests that are old."""


class OutOfStep(StoreError):
    """The warehouse lacks rows before the given batch."""


class Position(NamedTuple):
    """Sequence number and event id of the last copied row."""

    seq: int
    event_id: str


class Warehouse:
    """DuckDB tables of the journal's events, `ope_runs`, and the views `answers, outcomes, latest_feedback`.

    Tables and columns have comments (`words.yaml`); docs/warehouse.md lists them.

    Everything but `ope_runs` is rebuilt from the journal after the file was deleted or damaged; a damaged file is
    renamed to `<path>.corrupt-<seconds>`. Thread safe.

    Args:
        path: the file; its folder is created.
        memory_limit: DuckDB's setting of this name.
        clock: seconds since the epoch, for the name of a quarantined file.
        hear: makes the view `heard_feedback`, of the votes that count for others, and the table `left_out` of the rest,
            in a connection of a query that reads one of them (`fitrouter.state.heard`); by default all votes count.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        memory_limit: str = "512MB",
        clock: Callable[[], float] = time.time,
        hear: Callable[[duckdb.DuckDBPyConnection], None] | None = None,
    ) -> None:
        self.path = Path(path).absolute()
        self.quarantined: Path | None = None
        self.incident = ""
        """The last row that could not be copied since this process started, and why; empty for none."""
        self._limit = memory_limit
        self._clock = clock
        self._mutex = threading.Lock()
        self._engine: duckdb.DuckDBPyConnection | None = None
        self._hear = hear or _hear_all

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

    def ingest(self, rows: Sequence[Row], *, after: int | None = None, until: int = 0) -> int:
        """Add rows of the journal and move the position, in one transaction. Rows copied before are skipped.

        Args:
            rows: in order of their sequence numbers.
            after: the sequence number that the rows follow, to detect that the file was deleted meanwhile.
            until: the journal's last sequence number, of which a new file takes note (`queries`).

        Returns:
            The number of new rows.

        Raises:
            OutOfStep: the position is below `after`; nothing was added. Continue from `position()`.
            StoreError: the file cannot be written, or another process has it open; nothing was added. Try again.
        """
        count = 0
        for part in _apart(rows):
            count += self._ingest(part, after, until)
            after = part[-1].seq
        return count

    def _ingest(self, rows: Sequence[Row], after: int | None, until: int) -> int:
        with self._open() as connection:
            have = _position(connection).seq
            if not have:
                connection.execute("UPDATE position SET until = ?", [until])
            if after is not None and have < after:
                raise OutOfStep(f"{str(self.path)!r} ends at row {have}, but the batch follows row {after}")
            fresh = [row for row in rows if row.seq > have]
            if not fresh:
                return 0
            last = Position(fresh[-1].seq, fresh[-1].event.id)
            if not (digests := _erased(fresh[0])) or not _knows(connection, digests):
                connection.begin()
                self.incident = insert(connection, fresh) or self.incident
                connection.execute("UPDATE position SET seq = ?, event_id = ?", list(last))
                connection.commit()
                return len(fresh)
            # A process that ends from here on leaves the file as it was, before the erasure.
            new = self._copy_without(connection, _GONE, {"digests": list(digests)}, last)
        new.replace(self.path)
        return len(fresh)

    def prune(self, seq: int) -> None:
        """Delete the rows of requests up to a sequence number; models, policies, profiles and runs stay.

        Raises:
            StoreError: the file cannot be written, or another process has it open; nothing was deleted. Try again.
        """
        with self._open() as connection:
            tables = [table for table, columns in schema().items() if "decision_id" in columns]
            if not any(
                connection.execute(f"SELECT 1 FROM {table} WHERE seq <= ? LIMIT 1", [seq]).fetchone()  # noqa: S608
                for table in tables
            ):
                return
            new = self._copy_without(connection, _OLD, {"seq": seq}, _position(connection))
        new.replace(self.path)

    def _copy_without(
        self,
        connection: duckdb.DuckDBPyConnection,
        rows: Mapping[str, str],
        params: Mapping[str, object],
        last: Position,
    ) -> Path:
        """Copy the file without some rows: blocks that DuckDB frees keep their bytes.

        Args:
            connection: to the file.
            rows: column → condition for the rows of tables that have it.
            params: of the conditions.
            last: position of the copy.
        """
        columns: dict[str, Mapping[str, str]] = {**schema(), "ope_runs": {}}
        conditions = {
            table: [condition for column, condition in rows.items() if column in columns[table]] for table in columns
        }
        copies = {
            table: f"SELECT * FROM {table}"  # noqa: S608
            + (f" WHERE NOT coalesce({' OR '.join(gone)}, false)" if gone else "")
            for table, gone in conditions.items()
        }
        return self._copied(connection, copies, {table: params for table, gone in conditions.items() if gone}, last)

    def _copied(
        self,
        connection: duckdb.DuckDBPyConnection,
        copies: Mapping[str, str],
        params: Mapping[str, Mapping[str, object]],
        last: Position,
    ) -> Path:
        """Write a new file with the rows of queries, one for each table to fill, beside the present one."""
        import duckdb

        new = self.path.with_name(f"{self.path.name}.new")
        for path in (new, new.with_name(f"{new.name}.wal")):
            path.unlink(missing_ok=True)
        with duckdb.connect(new, config=self._config()) as made:
            new.chmod(0o600)
            create(made)
        name = _literal(new)
        connection.execute(f"ATTACH {name} AS made")
        for table, sql in copies.items():
            insert_ = f"INSERT INTO made.{table} BY NAME {sql}"
            connection.execute(insert_, dict(params[table]) if table in params else None)
        connection.execute("UPDATE made.position SET seq = ?, event_id = ?", list(last))
        if last.seq:
            connection.execute("UPDATE made.position SET until = (SELECT until FROM position)")
        connection.execute("DETACH made")
        return new

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

    def query(
        self, sql: str, params: Sequence[Any] = (), *, patience_s: float = 5.0, whole: bool = False
    ) -> list[tuple[Any, ...]]:
        """Run a query and return all its rows. The file is opened read-only and closed again.

        Args:
            sql: one statement, with `?` for parameters.
            params: their values.
            patience_s: how long to wait for another process to close the file.
            whole: refuse to answer while the file is filled again, as for `queries`.

        Raises:
            NoWarehouse: there is no file yet.
            WarehouseLocked: another process still has it open.
            StoreError: the query fails, or the file is damaged.
        """
        return self.queries([(sql, params)], patience_s=patience_s, whole=whole)[0]

    def queries(
        self,
        statements: Sequence[tuple[str, Sequence[Any]]],
        *,
        patience_s: float = 5.0,
        limit_s: float | None = None,
        whole: bool = False,
    ) -> list[list[tuple[Any, ...]]]:
        """Run several queries on one snapshot of the file; see `query`.

        Args:
            statements: each with its parameters.
            patience_s: how long to wait for another process to close the file.
            limit_s: time after which they are interrupted.
            whole: refuse to answer while a new file lacks events that the journal had when it was begun.

        Raises:
            StoreError: as for `query`, or they take longer than `limit_s`.
        """
        return self._read(statements, attrgetter("fetchall"), patience_s, limit_s, whole)

    def columns(self, statements: Sequence[tuple[str, Sequence[Any]]]) -> list[dict[str, Any]]:
        """Run queries and return name → array of each one's columns, which need to be numbers; see `queries`."""
        return self._read(statements, attrgetter("fetchnumpy"), 5.0, None, whole=True)

    def _read(
        self,
        statements: Sequence[tuple[str, Sequence[Any]]],
        result: Callable[[duckdb.DuckDBPyConnection], Callable[[], T]],
        patience_s: float,
        limit_s: float | None,
        whole: bool,
    ) -> list[T]:
        import duckdb

        def fetch() -> list[T]:
            with self._mutex:
                if not self.path.exists():
                    raise NoWarehouse(f"there is no {str(self.path)!r} yet: no event has been copied from the journal")
                try:
                    with self._attached(" (READ_ONLY)") as connection:
                        if not is_present(connection):
                            if _is_empty(connection):
                                raise NoWarehouse(f"{str(self.path)!r} has no tables yet: it is being made")
                            raise StoreError(
                                f"another version of fitrouter made {str(self.path)!r}; a gateway of this version, or "
                                "any router with its folder, fills it again from the journal"
                            )
                        if whole:
                            _require_whole(connection)
                        guard = threading.Timer(limit_s or 0.0, connection.interrupt)
                        if limit_s is not None:
                            guard.start()
                        try:
                            if any(name in sql for sql, _ in statements for name in _HEARD):
                                self._hear(connection)
                            return [result(connection.execute(sql, list(params)))() for sql, params in statements]
                        finally:
                            guard.cancel()
                except duckdb.Error as error:
                    kind = WarehouseLocked if is_lock_error(error) else StoreError
                    raise kind(f"{str(self.path)!r} could not be queried: {error}") from error

        return _retried(fetch, patience_s)

    def set_aside(self, reason: str) -> Path | None:
        """Quarantine the file, so that the next batch begins a new one; None if there is no file."""
        with self._mutex:
            return self._quarantine(reason) if self.path.exists() else None

    def _quarantine(self, reason: str) -> Path:
        self.quarantined = quarantine(self.path, self._clock(), (".wal",), reason)
        return self.quarantined

    def close(self) -> None:
        """Close DuckDB until the next use: a process that ends with it open is told of leaks."""
        with self._mutex:
            self._discard()

    def _config(self) -> dict[str, str | bool | int | float | list[str]]:
        return {"memory_limit": self._limit, "threads": 2, "temp_directory": f"{self.path}.tmp"}

    @contextmanager
    def _attached(self, options: str = "") -> Iterator[duckdb.DuckDBPyConnection]:
        """Open a connection whose database is the file, with options of `ATTACH`; call it with the mutex."""
        import duckdb

        engine = self._engine = self._engine or duckdb.connect(config=self._config())
        name = f"{_literal(self.path)} AS warehouse{options}"
        try:
            engine.execute(f"ATTACH {name}")
        except duckdb.Error as error:
            if not is_lock_error(error):
                self._discard()
            raise
        try:
            with engine.cursor() as connection:
                connection.execute("USE warehouse")
                yield connection
            engine.execute("DETACH warehouse")
        except BaseException:  # the file may be attached still, or DuckDB unusable
            self._discard()
            raise

    def _discard(self) -> None:
        """Close DuckDB, and with it the file."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    @contextmanager
    def _open(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Open a connection with the newest schema; a file found damaged here or later is quarantined."""
        import duckdb

        with self._mutex:
            try:
                make_folder(self.path.parent)
                with ExitStack() as opened:
                    yield self._connect(opened)
            except (duckdb.Error, OSError) as error:
                if _damaged(error) and self.path.exists():
                    self._quarantine(f"is damaged ({error})")
                kind = WarehouseLocked if is_lock_error(error) else StoreError
                raise kind(f"the warehouse {str(self.path)!r} could not be used: {error}") from error

    def _connect(self, opened: ExitStack) -> duckdb.DuckDBPyConnection:
        import duckdb

        try:
            return self._present(opened)
        except duckdb.Error as error:
            if not _damaged(error):
                raise
            self._discard()
            opened.pop_all()
            self._quarantine(f"is damaged ({error})")
        return self._present(opened)

    def _present(self, opened: ExitStack) -> duckdb.DuckDBPyConnection:
        """Connect to a file of the present schema; one of another version keeps its recorded replays alone."""
        new = not self.path.exists()
        connection = opened.enter_context(self._attached())
        if not new and is_present(connection):
            return connection
        if new or _is_empty(connection):
            self.path.chmod(0o600)
            create(connection)
            return connection
        if "event_id" not in _names(connection, "position"):
            opened.close()
            self._quarantine("is no warehouse of fitrouter")
            return self._present(opened)
        _log.warning(
            "another version of fitrouter made %r: it is filled again from the journal, and keeps its recorded replays",
            str(self.path),
        )
        made = self._copied(connection, _runs_of(connection), {}, Position(0, ""))
        opened.close()
        made.replace(self.path)
        return opened.enter_context(self._attached())


def create(connection: duckdb.DuckDBPyConnection) -> None:
    """Create the tables and views of an empty warehouse, with their comments."""
    connection.begin()
    connection.execute(create_sql())
    describe(connection)
    connection.commit()


def is_present(connection: duckdb.DuckDBPyConnection) -> bool:
    """Return whether a file is a warehouse of the present schema."""
    import duckdb

    try:
        return connection.execute("SELECT schema FROM position").fetchall() == [(version(),)]
    except (duckdb.BinderException, duckdb.CatalogException):  # a version before the first release, or no warehouse
        return False


def _is_empty(connection: duckdb.DuckDBPyConnection) -> bool:
    """Return whether a file has no tables, as a process leaves it that ended while it made the file."""
    return connection.execute("SELECT 1 FROM duckdb_tables() LIMIT 1").fetchone() is None


def _require_whole(connection: duckdb.DuckDBPyConnection) -> None:
    """Raise StoreError if the journal had events, when the file was begun, that are not copied yet."""
    ((seq, until),) = connection.execute("SELECT seq, until FROM position").fetchall()
    if seq < until:
        raise StoreError(
            f"the tables are being filled from the journal, and have {seq:,} of {until:,} events; ask again in a minute"
        )


def _runs_of(connection: duckdb.DuckDBPyConnection) -> dict[str, str]:
    """Return the query of the recorded replays in a file of another version, by their table."""
    import duckdb

    with duckdb.connect() as made:
        made.execute(create_sql())
        here, there = _names(made, "ope_runs"), _names(connection, "ope_runs")
    if shared := [quoted(name) for name in here if name in there]:
        return {"ope_runs": f"SELECT {', '.join(shared)} FROM ope_runs"}  # noqa: S608
    return {}


def _names(connection: duckdb.DuckDBPyConnection, table: str) -> list[str]:
    sql = "SELECT column_name FROM duckdb_columns() WHERE database_name = current_database() AND table_name = ?"
    return [name for (name,) in connection.execute(sql, [table]).fetchall()]


def _position(connection: duckdb.DuckDBPyConnection) -> Position:
    row = connection.execute("SELECT seq, event_id FROM position").fetchone()
    assert row is not None
    return Position(*row)


def insert(connection: duckdb.DuckDBPyConnection, rows: Sequence[Row]) -> str:
    """Add rows of the journal to the tables, and delete the rows of users whom an earlier version erased in them.

    Returns what is wrong with the last row that has no columns; it must not block all later rows.
    """
    wrong = ""
    cells: defaultdict[str, list[Cells]] = defaultdict(list)
    for row in rows:
        try:
            table, found = rows_of(row)
        except ValueError as error:
            wrong = f"row {row.seq} is not copied to the warehouse: {error}"
            _log.error("%s", wrong)
        else:
            cells[table].extend(found)
    for table in TABLES:
        if cells[table]:
            appender = connection.appender(table)
            appender.append_rows(cells[table])
            appender.flush()
    for row in rows:
        if isinstance(row.event, Erasure) and row.event.subject:
            for table in PERSONAL:
                connection.execute(f'DELETE FROM {table} WHERE "user" = ? AND seq < ?', [row.event.subject, row.seq])  # noqa: S608
    return wrong


def _erased(row: Row) -> Sequence[str]:
    """Digests of the subjects that a row erases; none for other rows."""
    return row.event.digests if isinstance(row.event, Erasure) else ()


def _apart(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Split the rows into groups, in which erasures by digest stand alone."""
    start = 0
    for i, row in enumerate(rows):
        if _erased(row):
            yield from (part for part in (rows[start:i], rows[i : i + 1]) if part)
            start = i + 1
    if start < len(rows):
        yield rows[start:]


def _knows(connection: duckdb.DuckDBPyConnection, digests: Sequence[str]) -> bool:
    """Whether any table has rows of erased users."""
    return any(
        connection.execute(
            f"SELECT 1 FROM {table} WHERE {_THEIRS} LIMIT 1",  # noqa: S608
            {"digests": list(digests)},
        ).fetchone()
        for table in PERSONAL
    )


def _hear_all(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("CREATE TEMP VIEW heard_feedback AS SELECT * FROM feedback")
    connection.execute("CREATE TEMP VIEW left_out AS SELECT * FROM feedback WHERE false")


def _retried(use: Callable[[], T], patience_s: float) -> T:
    """Call a function, repeatedly while another process has the file open."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return use()
        except WarehouseLocked:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.02)


def is_lock_error(error: Exception) -> bool:
    """Whether DuckDB could not open a file because another process, or another object of this one, has it open."""
    return any(words in str(error) for words in _LOCKED)


def _literal(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"  # ATTACH takes no parameters


def _damaged(error: Exception) -> bool:
    message = str(error).lower()
    return not is_lock_error(error) and any(word in message for word in _DAMAGED)
