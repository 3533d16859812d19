"""Reads a folder of Parquet tables as written by `export`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from fitrouter_evaluators.replay.log._connection import NEEDED, OpenLog, open_duckdb, scratch, view_tables
from fitrouter_evaluators.replay.log.log import refuse

OPTIONAL = ("profiles", "run_outcomes")
"""Tables that may be missing."""


@contextmanager
def open_parquet(folder: Path) -> Iterator[OpenLog]:
    import duckdb

    place = f"Parquet folder {str(folder)!r}"
    relations, found = {}, {}
    with scratch() as own, open_duckdb(":memory:", own) as connection:
        for table in NEEDED:
            path = folder / f"{table}.parquet"
            if not path.is_file():
                if table not in OPTIONAL:
                    refuse(place, f"there is no {path.name}", "write all tables with `fitrouter replay export`")
                continue
            try:
                escaped = re.sub(r"([*?[])", r"[\1]", str(path))  # it would be a glob pattern
                file = connection.read_parquet(escaped, hive_partitioning=False)
            except duckdb.Error as error:
                _damaged(place, path, error)
            relations[table] = f"file_{table}"
            file.create_view(relations[table])
            found[table] = dict(zip(file.columns, map(str, file.types), strict=True))
        view_tables(connection, place, found, relations, whole=False)
        try:
            yield OpenLog(connection, place)
        except duckdb.ProgrammingError:
            raise  # our own fault
        except duckdb.Error as error:
            _damaged(place, folder, error)


def _damaged(place: str, path: Path, error: Exception) -> NoReturn:
    refuse(
        f"{place}, {path.name}",
        f"it cannot be read ({str(error).strip().splitlines()[0]})",
        "it is truncated, damaged or no Parquet file: write it again with `fitrouter replay export`",
    )
