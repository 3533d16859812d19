"""The journal of a live gateway, or of one that has stopped.

Nobody is held up: the file is opened for reading only, and readers of SQLite's write-ahead log never wait for writers
nor make them wait. It is read in short transactions, so that the log can be folded into the file meanwhile, and up to
the row that was the last when reading began. The rows go into a file of our own as the gateway's feed would write
them, and are read from there like a warehouse: what people erased is not in it.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from fitrouter.errors import InvalidLog
from fitrouter.stores.journal import Row
from fitrouter.stores.warehouse import TABLES, migrate, rows_of
from fitrouter.types import Decision, Erasure, Event, Execution, Score, decode_event
from fitrouter_evaluators.replay.log._base import Opened, open_duckdb, scratch, view_tables
from fitrouter_evaluators.replay.log._schema import NEEDED, current
from fitrouter_evaluators.replay.log.refusals import refuse

if TYPE_CHECKING:
    import duckdb


_VERSION = 1
"""Of the journal's tables."""
_BATCH = 4096
_PERSONAL = ("decisions", "executions", "scores", "feedback", "profiles")
"""Tables that somebody's erasure empties of them."""


@contextmanager
def opened(path: Path, *, features: bool = True, whole: bool = False) -> Iterator[Opened]:
    """The journal in a file.

    Args:
        path: the file.
        features: False to leave out the long arrays.
        whole: keep what nobody here reads, for an export.

    Raises:
        InvalidLog: it is no journal, is damaged, or a later version wrote it.
    """
    place = f"journal {str(path)!r}"
    with scratch() as folder, open_duckdb(folder / "log.duckdb", folder) as connection:
        migrate(connection)
        with closing(_connect(path, place)) as journal:
            for rows in _batches(journal, place):
                _insert(connection, rows, place, features or whole, whole)
        schema = current()
        view_tables(connection, place, schema, schema, {table: table for table in NEEDED})
        yield Opened(connection, place)


def head(path: Path) -> int:
    """The last sequence number of a journal. Raises as `opened` does."""
    place = f"journal {str(path)!r}"
    with closing(_connect(path, place)) as journal:
        return _head(journal, place)


def _connect(path: Path, place: str) -> sqlite3.Connection:
    uri = path.absolute().as_uri()
    try:
        return _checked(f"{uri}?mode=ro", place)
    except sqlite3.OperationalError:
        pass
    try:  # no write-ahead log, and a folder in which none can be made: nobody is writing
        return _checked(f"{uri}?immutable=1", place)
    except sqlite3.Error as error:
        _damaged(place, error)


def _checked(uri: str, place: str) -> sqlite3.Connection:
    journal = sqlite3.connect(uri, uri=True, timeout=5.0, isolation_level=None)
    try:
        (version,) = journal.execute("PRAGMA user_version").fetchone()
    except sqlite3.OperationalError:
        journal.close()
        raise
    except sqlite3.Error as error:
        journal.close()
        _damaged(place, error)
    if version != _VERSION:
        journal.close()
        refuse(
            place,
            f"its format is {version}",
            f"this fitrouter reads {_VERSION}: it is no journal, or a later fitrouter wrote it, read it with that",
        )
    return journal


def _head(journal: sqlite3.Connection, place: str) -> int:
    try:
        return int(journal.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0])
    except sqlite3.Error as error:
        _damaged(place, error)


def _batches(journal: sqlite3.Connection, place: str) -> Iterator[list[Row]]:
    """All rows up to the one that is the last now."""
    after, last = 0, _head(journal, place)
    while after < last:
        try:
            found = journal.execute(
                "SELECT seq, payload, crc FROM events WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?",
                (after, last, _BATCH),
            ).fetchall()
        except sqlite3.Error as error:
            _damaged(place, error)
        if not found:
            return
        yield [Row(seq, _event(seq, payload, crc, place)) for seq, payload, crc in found]
        after = found[-1][0]


def _event(seq: int, payload: bytes, crc: int, place: str) -> Event:
    where = f"{place}, row {seq}"
    if zlib.crc32(payload) != crc:
        refuse(where, "its bytes do not match their checksum", "the disk changed them: restore the file from a backup")
    try:
        return decode_event(payload)
    except msgspec.DecodeError as error:
        refuse(where, f"it is no event ({error})", "a later fitrouter wrote it, read it with that")


def _insert(
    connection: duckdb.DuckDBPyConnection, rows: Sequence[Row], place: str, features: bool, whole: bool
) -> None:
    cells: defaultdict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for row in rows:
        try:
            table, found = rows_of(row if whole else _lean(row, features))
        except ValueError as error:
            refuse(f"{place}, row {row.seq}", f"an array is no whole number of floats ({error})", "the row is damaged")
        if whole or table in NEEDED:
            cells[table].extend(found)
    connection.begin()
    for table in TABLES:
        if cells[table]:
            appender = connection.appender(table)
            appender.append_rows(cells[table])
            appender.flush()
    for row in rows:
        if isinstance(row.event, Erasure):
            for table in _PERSONAL:
                connection.execute(f'DELETE FROM {table} WHERE "user" = ? AND seq < ?', [row.event.subject, row.seq])  # noqa: S608
    connection.commit()


def _lean(row: Row, features: bool) -> Row:
    """The row without arrays that nobody reads: they are most of its bytes."""
    event = row.event
    if isinstance(event, Execution) or (isinstance(event, Decision) and not features):
        return Row(row.seq, msgspec.structs.replace(event, features=b""))
    if isinstance(event, Score):
        return Row(row.seq, msgspec.structs.replace(event, features=b"", **({} if features else {"h": b""})))
    return row


def _damaged(place: str, error: Exception) -> NoReturn:
    raise InvalidLog(
        f"{place}: it cannot be read ({error}); it is damaged or no journal: restore it from a backup, or read the "
        "warehouse"
    ) from error
