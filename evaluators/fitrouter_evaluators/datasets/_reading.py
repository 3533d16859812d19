"""Reads the open formats from JSONL or Parquet; invalid rows are reported as problems."""

from __future__ import annotations

import datetime
import decimal
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from fitrouter.errors import ConfigError
from fitrouter_evaluators.datasets._formats import Choice, MatrixRow, Pair, Rating, Row, lift

T = TypeVar("T", bound=Row)
JSONL = (".jsonl", ".ndjson", ".json")


class Problem(msgspec.Struct, frozen=True):
    """An invalid row."""

    line: int
    """Line of the JSONL file or row of the Parquet file, from 1."""
    reason: str
    """What was given, and what is allowed."""


class Records(msgspec.Struct, Generic[T], frozen=True):
    """Valid rows in file order, and the problems of the others."""

    rows: list[T]
    problems: list[Problem]

    def some(self, path: str | os.PathLike[str]) -> list[T]:
        """Return the rows of a file. Raises ConfigError if it has none, with the first problem."""
        if not self.rows:
            why = f"line {self.problems[0].line}: {self.problems[0].reason}" if self.problems else "it is empty"
            raise ConfigError(f"{os.fspath(path)!r} has no usable row: {why}")
        return self.rows


def read_pairs(path: str | os.PathLike[str]) -> Records[Pair]:
    """Read pairs. Raises ConfigError if the file is missing or of another type."""
    return _read(Path(path), Pair)


def read_ratings(path: str | os.PathLike[str]) -> Records[Rating]:
    """Read ratings; see `read_pairs`."""
    return _read(Path(path), Rating)


def read_choices(path: str | os.PathLike[str]) -> Records[Choice]:
    """Read choices; see `read_pairs`."""
    return _read(Path(path), Choice)


def read_matrix(path: str | os.PathLike[str]) -> Records[MatrixRow]:
    """Read response matrices; see `read_pairs`."""
    return _read(Path(path), MatrixRow)


def read_values(path: Path) -> Iterator[tuple[int, Any]]:
    """Iterate over (line, JSON value or ValueError if invalid) of a JSONL or Parquet file; empty lines are skipped.

    Raises:
        ConfigError: the file is missing or of another type.
    """
    if not path.is_file():
        raise ConfigError(f"there is no file {str(path)!r}; give a JSONL or Parquet file in one of the open formats")
    suffix = path.suffix.lower()
    if suffix in JSONL:
        return _json_lines(path)
    if suffix == ".parquet":
        return _parquet_rows(path)
    raise ConfigError(
        f"{str(path)!r} ends in {suffix!r}; allowed are .parquet, {', '.join(JSONL)}: rename or convert it"
    )


def _read(path: Path, kind: type[T]) -> Records[T]:
    rows: list[T] = []
    problems: list[Problem] = []
    for line, value in read_values(path):
        try:
            rows.append(msgspec.convert(lift(kind, _object(value)), kind))
        except RecursionError:
            problems.append(Problem(line, "the row is nested too deeply to be read; flatten it"))
        except ValueError as error:
            problems.append(Problem(line, f"{error}{_remedy(kind, error)}"))
    return Records(rows, problems)


def _object(value: Any) -> dict[str, Any]:
    """Return a line's value if it is a JSON object, else raise ValueError."""
    if isinstance(value, ValueError):
        raise value
    if not isinstance(value, dict):
        raise ValueError(f"the line holds a {type(value).__name__}; a row is one JSON object")  # noqa: TRY004
    return value


def _remedy(kind: type[Row], error: ValueError) -> str:
    """Name the fields of the format, to complete an error message of msgspec; empty for other errors."""
    if isinstance(error, msgspec.ValidationError) and str(error).startswith(("Expected", "Object missing", "Invalid")):
        fields = [field.name + ("" if field.required else "?") for field in msgspec.structs.fields(kind)]
        return f"; a row has the fields {', '.join(name for name in fields if name != 'extra?')}: correct it"
    return ""


def _json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    decode = msgspec.json.Decoder().decode
    with path.open("rb") as file:
        for line, raw in enumerate(file, start=1):
            text = raw.removeprefix(b"\xef\xbb\xbf").strip() if line == 1 else raw.strip()
            if not text:
                continue
            try:
                yield line, decode(text)
            except RecursionError:
                yield line, ValueError("the line is nested too deeply to be read; flatten it")
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                yield line, ValueError(f"the line is not JSON in UTF-8 ({error}); write one JSON object a line")


def _parquet_rows(path: Path) -> Iterator[tuple[int, Any]]:
    import duckdb

    with duckdb.connect() as connection:
        try:
            table = connection.execute("select * from read_parquet(?)", [str(path)])
        except duckdb.Error as error:
            raise ConfigError(f"{str(path)!r} is no Parquet file: {error}; write it again or give JSONL") from None
        columns, line = table.description or [], 0
        while batch := table.fetchmany(1024):
            for cells in batch:
                line += 1
                try:
                    row = {name: _cell(cell, type_) for cell, (name, type_, *_) in zip(cells, columns, strict=True)}
                except (msgspec.DecodeError, RecursionError) as error:
                    yield line, ValueError(f"a column of type JSON holds something else ({error}); write it again")
                else:
                    yield line, {name: value for name, value in row.items() if value is not None}


def _cell(value: Any, type_: Any) -> Any:
    """Convert a Parquet cell to a JSON value. Columns of type JSON are parsed; nulls in structs are dropped."""
    if value is None:
        return None
    if str(type_) == "JSON":
        return msgspec.json.decode(value)
    if type_.id == "struct":
        cells = {name: _cell(value[name], child) for name, child in type_.children}
        return {name: cell for name, cell in cells.items() if cell is not None}
    if type_.id == "map":
        child = dict(type_.children)["value"]
        return {str(name): _cell(cell, child) for name, cell in value.items() if cell is not None}
    if type_.id in ("list", "array"):
        child = type_.children[0][1]
        return [_cell(cell, child) for cell in value]
    if isinstance(value, decimal.Decimal):
        return float(value)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return value if isinstance(value, bool | int | float | str) else str(value)
