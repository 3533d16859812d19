"""Reads the journal of a running or stopped gateway.

The file is opened read-only; readers of SQLite's write-ahead log neither wait for writers nor block them. Short
transactions let the log be checkpointed meanwhile; reading ends at the row that was last when it began. Rows are
written to a temporary database in warehouse form, without the data of erased people.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from fitrouter.errors import InvalidLog
from fitrouter.stores.cold import Payloads
from fitrouter.stores.journal import Row
from fitrouter.stores.warehouse import PERSONAL, TABLES, rows_of, schema, tables_sql
from fitrouter.types import Decision, Erasure, Execution, Score, decode_event
from fitrouter_evaluators.replay.log._connection import NEEDED, OpenLog, open_duckdb, scratch, view_tables
from fitrouter_evaluators.replay.log.log import refuse

if TYPE_CHECKING:
    import duckdb


_VERSION = 2
"""Format version of the journal's tables."""
_BATCH = 4096


@contextmanager
def open_journal(path: Path, *, features: bool = True, whole: bool = False) -> Iterator[OpenLog]:
    """Open a journal; without `features`, skip the long arrays; `whole` keeps all columns, for an export."""
    place = f"journal {str(path)!r}"
    with scratch() as folder, open_duckdb(folder / "log.duckdb", folder) as connection:
        with closing(connect(path, place)) as journal:
            fill(connection, _batches(journal, place, Payloads(path.parent)), place, features=features, whole=whole)
        yield OpenLog(connection, place)


def fill(
    connection: duckdb.DuckDBPyConnection, batches: Iterable[list[Row]], place: str, *, features: bool, whole: bool
) -> None:
    """Write batches of a journal's rows to the tables of a new database, and make the views of a log of them."""
    connection.execute(tables_sql())
    for rows in batches:
        _insert(connection, rows, place, features or whole, whole)
    view_tables(connection, place, schema(), {table: table for table in NEEDED})


def head(path: Path) -> int:
    place = f"journal {str(path)!r}"
    with closing(connect(path, place)) as journal:
        return _head(journal, place)


def connect(path: Path, place: str) -> sqlite3.Connection:
    """Open a read-only connection to a journal of a known version."""
    uri = path.absolute().as_uri()
    try:
        return _checked(f"{uri}?mode=ro", place)
    except sqlite3.OperationalError:
        pass
    try:  # read-only folder without a write-ahead log, so there is no writer
        return _checked(f"{uri}?immutable=1", place)
    except sqlite3.Error as error:
        damaged(place, error)


def _checked(uri: str, place: str) -> sqlite3.Connection:
    journal = sqlite3.connect(uri, uri=True, timeout=5.0, isolation_level=None)
    try:
        (version,) = journal.execute("PRAGMA user_version").fetchone()
    except sqlite3.OperationalError:
        journal.close()
        raise
    except sqlite3.Error as error:
        journal.close()
        damaged(place, error)
    if version != _VERSION:
        journal.close()
        refuse(
            place,
            f"its format version is {version}",
            f"this version of fitrouter reads {_VERSION}: it is not a journal, or a later version wrote it",
        )
    return journal


def _head(journal: sqlite3.Connection, place: str) -> int:
    try:
        return int(journal.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0])
    except sqlite3.Error as error:
        damaged(place, error)


def _batches(journal: sqlite3.Connection, place: str, payloads: Payloads) -> Iterator[list[Row]]:
    """Iterate over batches of all rows, up to the one that is last when the iteration starts."""
    after, last = 0, _head(journal, place)
    while after < last:
        try:
            found = journal.execute(
                "SELECT seq, payload, crc FROM events WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?",
                (after, last, _BATCH),
            ).fetchall()
        except sqlite3.Error as error:
            damaged(place, error)
        if not found:
            return
        yield decode_rows(place, found, payloads)
        after = found[-1][0]


def decode_rows(place: str, rows: Sequence[tuple[int, bytes, int]], payloads: Payloads) -> list[Row]:
    """Decode rows (seq, payload, checksum), checking them; their payloads may be in the cold store.

    Those that were too old for that are left out.
    """
    moved = payloads.of([seq for seq, payload, _ in rows if not payload])
    # Of an event without a file `lost` stands here, which fails its checksum.
    whole = ((seq, payload or moved.get(seq, b"lost"), crc) for seq, payload, crc in rows)
    return [_decoded(place, seq, payload, crc) for seq, payload, crc in whole if payload]


def _decoded(place: str, seq: int, payload: bytes, crc: int) -> Row:
    where = f"{place}, row {seq}"
    if zlib.crc32(payload) != crc:
        refuse(where, "its checksum does not match", "the file is corrupted: restore it from a backup")
    try:
        return Row(seq, decode_event(payload))
    except msgspec.DecodeError as error:
        refuse(
            where,
            f"it cannot be decoded ({error})",
            "a later version of fitrouter may have written it: read it with that version",
        )


def _insert(
    connection: duckdb.DuckDBPyConnection, rows: Sequence[Row], place: str, features: bool, whole: bool
) -> None:
    cells: defaultdict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for row in rows:
        try:
            table, found = rows_of(row if whole else _lean(row, features))
        except ValueError as error:
            refuse(
                f"{place}, row {row.seq}", f"an array is not a whole number of floats ({error})", "the row is damaged"
            )
        if whole or table in NEEDED:
            cells[table].extend(found)
    connection.begin()
    for table in TABLES:
        if cells[table]:
            appender = connection.appender(table)
            appender.append_rows(cells[table])
            appender.flush()
    for row in rows:
        if isinstance(row.event, Erasure) and row.event.subject:
            for table in PERSONAL:
                connection.execute(f'DELETE FROM {table} WHERE "user" = ? AND seq < ?', [row.event.subject, row.seq])  # noqa: S608
    connection.commit()


def _lean(row: Row, features: bool) -> Row:
    """Drop the arrays of a row that will not be read, which are most of its bytes."""
    event = row.event
    if isinstance(event, Execution) or (isinstance(event, Decision) and not features):
        return Row(row.seq, msgspec.structs.replace(event, features=b""))
    if isinstance(event, Score):
        return Row(row.seq, msgspec.structs.replace(event, features=b"", **({} if features else {"h": b""})))
    return row


def damaged(place: str, error: Exception) -> NoReturn:
    raise InvalidLog(
        f"{place}: it cannot be read ({error}); it is damaged or not a journal: restore it from a backup, or read the "
        "warehouse"
    ) from error
