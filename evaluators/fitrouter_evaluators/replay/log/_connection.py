"""What a source gives: a connection with one view a table, whatever the log lies in."""

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
    """A log that is open for reading: its connection has the views `log_decisions`, `log_executions`, ….

    A source is a context manager that gives one of these, and closes it at its end.
    """

    connection: duckdb.DuckDBPyConnection
    place: str
    """What it is, for messages and reports."""


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder of our own: nothing is ever written beside the gateway's files."""
    with tempfile.TemporaryDirectory(prefix="fitrouter-replay-") as folder:
        yield Path(folder)


def open_duckdb(path: Path | str, folder: Path, *, read_only: bool = False) -> duckdb.DuckDBPyConnection:
    """A connection that spills into `folder` where memory does not suffice, and keeps the order of rows."""
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
    """Make the views, after a look at the columns; a table without a relation is empty.

    Args:
        connection: where the relations can be read.
        place: for messages.
        found: table → column → type.
        expected: the columns that must be there.
        relations: table → what it is read from, in SQL.

    Raises:
        InvalidLog: a column is missing or holds something else.
    """
    for table in NEEDED:
        if table in relations:
            require(place, table, found[table], expected[table])
            connection.execute(view(table, relations[table], found[table]))
        else:
            connection.execute(view(table, "(SELECT 1 WHERE false)", ()))


def literal(text: str) -> str:
    """A text as SQL says it."""
    quoted = text.replace("'", "''")
    return f"'{quoted}'"
