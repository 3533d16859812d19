"""Writes the open formats as JSONL or Parquet."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from fitrouter_evaluators.datasets._formats import Cell, Choice, MatrixRow, Pair, Rating, Row, Text, plain

_Type: TypeAlias = Any
"""A DuckDB type: its name, or an object such as `duckdb.struct_type` makes."""

_COMMON = {"dimension": "VARCHAR", "role": "VARCHAR", "declared": "MAP(VARCHAR, DOUBLE)", "ts": "DOUBLE"}
_COLUMNS: dict[type[Row], dict[str, str]] = {
    Text: {"text": "VARCHAR", "model": "VARCHAR"},
    Pair: {"user": "VARCHAR", "prompt": "VARCHAR", "a": "", "b": "", "label": "DOUBLE", **_COMMON},
    Rating: {"user": "VARCHAR", "prompt": "VARCHAR", "rating": "DOUBLE", "scale": "DOUBLE[]", "response": "VARCHAR"}
    | {"model": "VARCHAR", "item": "VARCHAR", "kind": "VARCHAR", **_COMMON},
    Choice: {"user": "VARCHAR", "declared": "VARCHAR[]", "prompt": "VARCHAR", "options": "VARCHAR[]", "best": "BIGINT"},
    Cell: {"reward": "DOUBLE", "cost_usd": "DOUBLE", "latency_s": "DOUBLE", "response": "VARCHAR"},
    MatrixRow: {"prompt": "VARCHAR", "models": "", "source": "VARCHAR", "user": "VARCHAR", "role": "VARCHAR"},
}
"""Columns of the formats; types of nested rows, here empty, depend on their extra fields."""


def write_jsonl(path: str | os.PathLike[str], rows: Iterable[Row]) -> None:
    """Write one JSON object per line.

    Raises:
        ValueError: a text has a lone surrogate, which UTF-8 cannot encode.
    """
    with Path(path).open("wb") as file:
        file.writelines(_line(number, row) for number, row in enumerate(rows, start=1))


def write_parquet(path: str | os.PathLike[str], rows: Sequence[Row]) -> None:
    """Write one column per field; extra fields keep their type if all rows agree on one, else become JSON.

    Parquet does not distinguish null from absent: an extra field whose value is None does not come back.

    Raises:
        ValueError: there are no rows or several formats, an extra field's name cannot be a column, or a text has a lone
            surrogate.
    """
    import duckdb

    kinds = {type(row) for row in rows}
    if len(kinds) != 1:
        raise ValueError(f"there are rows of {sorted(kind.__name__ for kind in kinds)}; give rows of one format")
    columns = _columns(kinds.pop(), rows)
    with tempfile.TemporaryDirectory() as folder, duckdb.connect() as connection:
        lines, longest = Path(folder) / "rows.jsonl", 0
        with lines.open("wb") as file:
            for number, row in enumerate(rows, start=1):
                longest = max(longest, file.write(_line(number, row)))
        table = connection.read_json(
            str(lines),
            columns={name: str(type_) for name, type_ in columns.items()},
            format="newline_delimited",
            maximum_object_size=max(2 * longest, 1 << 24),
        )
        table.write_parquet(os.fspath(path), compression="zstd")


def _line(number: int, row: Row) -> bytes:
    try:
        return msgspec.json.encode(plain(row)) + b"\n"
    except UnicodeEncodeError as error:
        raise ValueError(f"row {number} holds half a character ({error}); replace it before writing") from None


def _columns(kind: type[Row], rows: Sequence[Row]) -> dict[str, _Type]:
    """Types of the Parquet columns by name, for rows or nested rows of one kind."""
    import duckdb

    columns: dict[str, _Type] = dict(_COLUMNS[kind])
    for name, part in kind.parts().items():
        held = [getattr(row, name) for row in rows]
        if kind is MatrixRow:
            cells = [cell for models in held for cell in models.values()]
            columns[name] = duckdb.map_type("VARCHAR", duckdb.struct_type(_columns(part, cells)))
        else:
            columns[name] = duckdb.struct_type(_columns(part, held))
    extras: list[Mapping[str, Any]] = [row.extra for row in rows]  # type: ignore[attr-defined]
    unknown = {name: None for extra in extras for name in extra}
    _check_names([*columns, *unknown])
    return columns | {name: _type([extra[name] for extra in extras if name in extra]) for name in unknown}


def _check_names(names: Iterable[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        if not name or "\0" in name:
            raise ValueError(f"an unknown field is named {name!r}, which no column can be; rename it or write JSONL")
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            raise ValueError(f"columns {other!r} and {name!r} differ in case only; rename one or write JSONL")


def _type(values: Sequence[Any]) -> str:
    """Find a Parquet type that represents all the values exactly."""
    kinds = {type(value) for value in values}
    if kinds == {int} and all(-(2**63) <= value < 2**63 for value in values):
        return "BIGINT"
    names = {bool: "BOOLEAN", float: "DOUBLE", str: "VARCHAR"}
    return names.get(kinds.pop(), "JSON") if len(kinds) == 1 else "JSON"
