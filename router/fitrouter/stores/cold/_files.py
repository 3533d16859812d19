"""Parquet files of events: their names, and writing, reading and rewriting them with DuckDB.

A file has the events of a range of the journal, of one day (UTC). Its name says which, `2026-11-27-000000000001-
000000000029.parquet`, so that a listing tells what is there, without an index that could disagree. The last file of a
day grows by being written again under a longer name; of two that begin alike the longer one counts.
"""

from __future__ import annotations

import glob
import itertools
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from fitrouter.errors import StoreError, require
from fitrouter.stores.cold._storage import Missing, Storage

if TYPE_CHECKING:
    import duckdb


Stored: TypeAlias = tuple[int, str, float, str, str | None, str | None, bytes, int]
"""(number, id, time, kind, decision id, subject, payload, checksum of the payload)."""
_NAME = re.compile(r"(\d{4}-\d\d-\d\d)-(\d{12,})-(\d{12,})\.parquet")
_END = 253_402_300_800.0
"""The year 10,000, which no date has."""
_ROWS = 4096
"""Rows of a row group."""
_TABLE = """CREATE TABLE events (seq BIGINT, id VARCHAR, ts DOUBLE, kind VARCHAR, decision_id VARCHAR, subject VARCHAR,
payload BLOB, crc BIGINT)"""
_DECISIONS = """INSERT INTO theirs SELECT decision_id FROM read_parquet(?)
WHERE kind = 'decision' AND sha256(subject) IN (FROM digests)"""
_THEIRS = "coalesce(sha256(subject) IN (FROM digests) OR decision_id IN (FROM theirs), false)"
_REQUESTS = "(decision_id IS NOT NULL OR kind = 'refusal')"


class File(NamedTuple):
    """A file, by the sequence numbers that it covers."""

    first: int
    last: int
    day: str
    """Date of its events; none is later."""

    @property
    def name(self) -> str:
        """Its name."""
        return f"{self.day}-{self.first:012d}-{self.last:012d}.parquet"

    @property
    def end(self) -> float:
        """Time after all of its events, in seconds since the epoch."""
        return datetime.fromisoformat(self.day).replace(tzinfo=UTC).timestamp() + 86_400.0


def day_of(ts: float) -> str:
    """Return the date of a time (UTC); that of the epoch for a time that has none, as in a damaged event."""
    return datetime.fromtimestamp(ts if 0.0 <= ts < _END else 0.0, UTC).date().isoformat()


def files_at(storage: Storage) -> list[File]:
    """Return the files that count, in the order of the journal."""
    matches = filter(None, map(_NAME.fullmatch, storage.sizes()))
    found = [File(int(match[2]), int(match[3]), match[1]) for match in matches]
    kept: list[File] = []
    for file in sorted(found, key=lambda each: (each.first, -each.last)):
        if not kept or file.last > kept[-1].last:
            kept.append(file)
    return kept


def gaps(files: Sequence[File]) -> list[tuple[int, int]]:
    """Return the ranges of events between the files that no file covers."""
    pairs = itertools.pairwise(files)
    return [(one.last + 1, two.first - 1) for one, two in pairs if two.first > one.last + 1]


def sweep(storage: Storage) -> None:
    """Delete what interrupted processes left, and files that longer ones replaced. Call it under the lease."""
    kept = {file.name for file in files_at(storage)}
    left = [name for name in storage.sizes() if name not in kept and _NAME.fullmatch(name.removesuffix(".new"))]
    storage.delete(left)


def write(storage: Storage, file: File, rows: Sequence[Stored]) -> None:
    """Write a file of events, in order.

    Raises:
        StoreError: it cannot be written.
    """
    with _database() as connection:
        _run(connection, _TABLE)
        if rows:
            appender = connection.appender("events")
            appender.append_rows(list(rows))
            appender.flush()
        _put(connection, storage, file, "FROM events ORDER BY seq")


def query(storage: Storage, file: File, sql: str, values: Sequence[object] = ()) -> list[Any]:
    """Return the rows of a query, whose first parameter is the file.

    Raises:
        Missing: it was replaced or deleted meanwhile.
        StoreError: it cannot be read, or is damaged.
    """
    with storage.local(file.name) as path, _database() as connection:
        try:
            return _run(connection, sql, [_path(path), *values])
        except StoreError as error:
            if file.name not in storage.sizes():
                raise Missing(f"the cold store {storage.place!r} lacks {file.name}") from error
            raise StoreError(f"{file.name} in the cold store {storage.place!r} cannot be used: {error}") from error


def erase(storage: Storage, digests: Collection[str]) -> int:
    """Write the files with rows of erased users again without them; return their number. Call it under the lease.

    Args:
        storage: the place.
        digests: of their subjects.

    Raises:
        StoreError: a file cannot be read or written.
    """
    sweep(storage)
    files, changed = files_at(storage), 0
    with _database() as connection:
        _run(connection, "CREATE TABLE digests AS SELECT unnest(?::VARCHAR[]) AS digest", [list(digests)])
        _run(connection, "CREATE TABLE theirs (decision_id VARCHAR)")
        for file in files:
            with storage.local(file.name) as path:
                _run(connection, _DECISIONS, [_path(path)])
        for file in files:
            changed += _without(connection, storage, file, _THEIRS)
    return changed


def drop(storage: Storage, file: File) -> bool:
    """Write a file again without requests and what belongs to them; False if it has none. Call it under the lease.

    Raises:
        StoreError: it cannot be read or written.
    """
    with _database() as connection:
        return _without(connection, storage, file, _REQUESTS)


def _without(connection: duckdb.DuckDBPyConnection, storage: Storage, file: File, gone: str) -> bool:
    with storage.local(file.name) as path:
        where = "FROM read_parquet(?) WHERE"
        if not _run(connection, f"SELECT 1 {where} {gone} LIMIT 1", [_path(path)]):
            return False
        _put(connection, storage, file, f"{where} NOT {gone} ORDER BY seq", [_path(path)])
        return True


def _put(
    connection: duckdb.DuckDBPyConnection, storage: Storage, file: File, sql: str, values: Sequence[object] = ()
) -> None:
    import duckdb

    def write(path: Path) -> None:
        rows = connection.sql(sql, params=list(values))
        rows.write_parquet(str(path), compression="zstd", row_group_size=_ROWS)

    try:
        storage.put(file.name, write)
    except duckdb.Error as error:
        raise StoreError(f"{file.name} cannot be written to the cold store {storage.place!r}: {error}") from error


@contextmanager
def _database() -> Iterator[duckdb.DuckDBPyConnection]:
    require("duckdb", "the cold store")
    import duckdb

    settings: dict[str, Any] = {"threads": 1, "memory_limit": "512MB", "temp_directory": ""}
    with duckdb.connect(":memory:", config=settings) as connection:
        yield connection


def _run(connection: duckdb.DuckDBPyConnection, sql: str, values: Sequence[object] = ()) -> list[Any]:
    import duckdb

    try:
        return connection.execute(sql, list(values)).fetchall()
    except duckdb.Error as error:
        raise StoreError(str(error)) from error


def _path(path: Path) -> str:
    return glob.escape(str(path))
