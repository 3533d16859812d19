"""DuckDB connections with one view per log table, whatever the source, and the columns that are read."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from fitrouter.stores.warehouse import schema
from fitrouter_evaluators.replay.log.log import refuse

if TYPE_CHECKING:
    import duckdb


Schema: TypeAlias = Mapping[str, Mapping[str, str]]
"""Table → column → DuckDB type."""


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NEEDED = {
    "decisions": words(
        "seq decision_id ts draw_id tenant user role task session mode eligible probs chosen propensity features mean "
        "sd cost latency availability cost_weight latency_weight floor share twin asked asked_probability "
        "policy_algorithm policy_seq registry encoder seed"
    ),
    "executions": words("seq execution_id decision_id user chosen served_by status cost_usd latency_ms"),
    "scores": words("seq score_id decision_id user h schema mean status"),
    "feedback": words("seq feedback_id decision_id user kind value scale_low scale_high y dimension asked"),
    "profiles": words("seq ts user declared"),
    "run_outcomes": words("seq outcome_id user run source y"),
}
"""Tables that are read, and the columns that a log must have."""

OPTIONAL = {
    "decisions": words(
        "cost_unit_usd latency_unit_s budget_weight budget_unit_usd switch personal candidates redraw rest steps run "
        "tier"
    ),
    "executions": words("cost_assumed"),
    "feedback": words("ts tenant vouched other source"),
}
"""Columns that are read where Parquet tables have them; a warehouse has all."""

_NUMBERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT")
_FITS = {
    "BIGINT": _NUMBERS,
    "DOUBLE": (*_NUMBERS, "FLOAT", "DOUBLE", "DECIMAL"),
    "FLOAT": ("FLOAT", "DOUBLE"),
    "VARCHAR": ("VARCHAR", "ENUM"),
}


def schema_of(connection: duckdb.DuckDBPyConnection) -> Schema:
    rows = connection.execute(
        "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal AND schema_name = 'main'"
    ).fetchall()
    found: dict[str, dict[str, str]] = {}
    for table, column, kind in rows:
        found.setdefault(table, {})[column] = kind
    return found


def require(place: str, table: str, found: Mapping[str, str], *, whole: bool) -> None:
    """Raise InvalidLog if a needed column, or with `whole` any, is missing from a table or has an incompatible type."""
    for column, kind in _read(table).items():
        if column in found and not _fits(found[column], kind):
            refuse(
                f"{place}, table {table}",
                f"column {column!r} holds {found[column]}",
                f"it must hold {kind}: write the table again with fitrouter, or convert the column",
            )
        if column not in found and (whole or column in NEEDED[table]):
            refuse(
                f"{place}, table {table}",
                f"there is no column {column!r}",
                f"its columns are {', '.join(sorted(schema()[table]))}: write the table again with fitrouter, or "
                "rename the column that is meant",
            )


def view(table: str, relation: str, found: Iterable[str]) -> str:
    """SQL of the temporary view `log_<table>`: the columns that are read, typed, NULL where the relation lacks one."""
    have = set(found)
    cells = [
        f"CAST({_quoted(column) if column in have else 'NULL'} AS {kind}) AS {_quoted(column)}"
        for column, kind in _read(table).items()
    ]
    return f"CREATE TEMP VIEW log_{table} AS SELECT {', '.join(cells)} FROM {relation}"  # noqa: S608


def _read(table: str) -> dict[str, str]:
    return {column: schema()[table][column] for column in (*NEEDED[table], *OPTIONAL.get(table, ()))}


def _quoted(column: str) -> str:
    return f'"{column}"'


def _fits(found: str, expected: str) -> bool:
    """Whether values of one type can be cast to another without a change of meaning."""
    if found in (expected, '"NULL"'):
        return True
    if expected.endswith("[]"):
        items = re.fullmatch(r"(.*)\[\d*\]", found)
        return items is not None and _fits(items[1], expected[:-2])
    return found.split("(")[0] in _FITS.get(expected, ())


class OpenLog(NamedTuple):
    """An open log: a connection with one view per table (`log_decisions`, `log_executions`, …)."""

    connection: duckdb.DuckDBPyConnection
    place: str
    """The source in words, for messages and reports."""


@contextmanager
def scratch() -> Iterator[Path]:
    """Create a temporary folder, so that nothing is written beside the gateway's files."""
    with tempfile.TemporaryDirectory(prefix="fitrouter-replay-") as folder:
        yield Path(folder)


def open_duckdb(path: Path | str, folder: Path, *, read_only: bool = False) -> duckdb.DuckDBPyConnection:
    """Open a connection with bounded memory that spills into `folder` and preserves row order."""
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
    relations: dict[str, str],
    *,
    whole: bool = True,
) -> None:
    """Create the views after checking the columns; a table without a relation becomes empty.

    Without `whole` the tables may lack the columns of `OPTIONAL`.
    """
    for table in NEEDED:
        if table in relations:
            require(place, table, found[table], whole=whole)
            connection.execute(view(table, relations[table], found[table]))
        else:
            connection.execute(view(table, "(SELECT 1 WHERE false)", ()))


def literal(text: str) -> str:
    """Quote a text as an SQL literal."""
    quoted = text.replace("'", "''")
    return f"'{quoted}'"
