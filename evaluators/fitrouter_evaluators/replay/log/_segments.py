"""Reads the segments that a gateway writes into a folder or a bucket, as far as they reach."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from contextlib import contextmanager

from fitrouter.stores.warehouse import TABLES
from fitrouter.stores.warehouse.segments import fetch, storage_at
from fitrouter_evaluators.replay.log._connection import NEEDED, OpenLog, open_duckdb, scratch, view_tables
from fitrouter_evaluators.replay.log.log import refuse


@contextmanager
def open_segments(place: str, *, whole: bool = False) -> Iterator[OpenLog]:
    """Open segments, copied to this machine; `whole` has all tables, for an export."""
    import duckdb

    storage = storage_at(place)
    words = f"segments {storage.place!r}"
    with scratch() as folder, open_duckdb(":memory:", folder) as connection:
        manifest, files = fetch(storage, TABLES if whole else tuple(NEEDED), folder)
        found = {}
        try:
            for table, paths in files.items():
                rows = connection.read_parquet(
                    [glob.escape(str(path)) for path in paths], union_by_name=True, hive_partitioning=False
                )
                rows.create_view(table)
                found[table] = dict(zip(rows.columns, map(str, rows.types), strict=True))
            relations = {table: table for table in files if table in NEEDED}
            view_tables(connection, words, found, relations, whole=False)
            yield OpenLog(connection, f"{words} up to event {manifest.seq}")
        except duckdb.ProgrammingError:
            raise  # our own fault
        except duckdb.Error as error:
            refuse(words, f"they cannot be read ({str(error).strip().splitlines()[0]})", "see that the disk has room")
