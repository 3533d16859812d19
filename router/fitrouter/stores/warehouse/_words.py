"""Comments of the warehouse's tables and columns, from the docstrings of the events' fields and `words.yaml`."""

from __future__ import annotations

import functools
from importlib import resources
from typing import TYPE_CHECKING, Any

import yaml

from fitrouter.stores.warehouse._schema import abouts, quoted

if TYPE_CHECKING:
    import duckdb


def describe(connection: duckdb.DuckDBPyConnection) -> None:
    """Comment every table, view and column that is described."""
    words = _words()
    found = connection.execute(
        "SELECT table_name, column_name, table_name IN (SELECT view_name FROM duckdb_views()) FROM duckdb_columns() "
        "WHERE schema_name = 'main' AND NOT internal ORDER BY table_name, column_index"
    ).fetchall()
    said = []
    for table, view in dict.fromkeys((table, view) for table, _, view in found):
        if about := words["tables"].get(table, {}).get("about"):
            said.append(_comment(f"{'VIEW' if view else 'TABLE'} {quoted(table)}", about))
    for table, column, _ in found:
        if text := _columns(table, words).get(column):
            said.append(_comment(f"COLUMN {quoted(table)}.{quoted(column)}", text))
    connection.execute("\n".join(said))


def described() -> dict[str, str]:
    """Return what each table and view holds, in the order of the page."""
    return {name: each["about"] for name, each in _words()["tables"].items()}


@functools.cache
def _words() -> dict[str, Any]:
    text = resources.files(__package__ or __name__).joinpath("words.yaml").read_text(encoding="utf-8")
    # The parser in C, where PyYAML has it, takes a twentieth of the time, which every process that ingests pays.
    found: dict[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - safe loaders
    return found


def _columns(table: str, words: dict[str, Any]) -> dict[str, str]:
    """Return descriptions by column, also of columns that the table does not have."""
    own = words["tables"].get(table, {})
    found: dict[str, str] = dict(words["common"])
    for source in reversed(own.get("from", ())):
        found |= _columns(source, words)
    found |= abouts(table) | own.get("columns", {})
    return found


def _comment(what: str, text: str) -> str:
    return f"COMMENT ON {what} IS '{text.replace(chr(39), chr(39) * 2)}';"
