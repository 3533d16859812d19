"""DuckDB connections with one view per log table, whatever the source."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fitrouter_evaluators.replay.log._schema import NEEDED, Schema, require, view

if TYPE_CHECKING:
    import duckdb


class OpenLog(NamedTuple):
    """An open log: a connection with one view per table (`log_decisions`, `log_executions`, …)."""

    connection: duckdb.DuckDBPyConnection
    place: str
    """The source in words, for messages and reports."""


@contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder: nothing is written beside the gateway's files."""
    with tempfile.TemporaryDirectory(prefix="fitrouter-replay-") as folder:
        yield Path(folder)


def open_duckdb(path: Path | str, folder: Path, *, read_only: bool = False) -> duckdb.DuckDBPyConnection:
    """A connection with bounded memory that spills into `folder` and preserves row order."""
    import duckdb

    config: dict[str, Any] = {
        "threads": 2,
        "memory_limit": "512MB",
        "temp_directory": str(folder / "spill"),
        "preserve_insertion_order": True,
    }
    return duckdb.connect(path, read_only=read_only, config=config)


def view_tables(
    connection: duckdb.DuckDBPyConnection,
    place: str,
    found: Schema,
    expected: Schema,
    relations: dict[str, str],
) -> None:
    """Create the views after checking the columns; a table without a relation becomes empty."""
    for table in NEEDED:
        if table in relations:
            require(place, table, found[table], expected[table])
            connection.execute(view(table, relations[table], found[table]))
        else:
            connection.execute(view(table, "(SELECT 1 WHERE false)", ()))


def literal(text: str) -> str:
    """A text as an SQL literal."""
    quoted = text.replace("'", "''")
    return f"'{quoted}'"
