"""Stages a foreign file as a DuckDB table: the requested columns, unconverted, and the invalid lines.

Headers are read separately, and DuckDB knows columns by position only (c0, c1, …), so names in a header cannot collide
with each other, with keywords, or with the statements. Texts of a map or file are bound as variables (`SqlParameters`),
never part of a statement.
"""

# ruff: noqa: S608 - statements are made of positions and constants

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import msgspec

from fitrouter.errors import ConfigError, InvalidLog
from fitrouter_evaluators.datasets import Problem

if TYPE_CHECKING:
    import duckdb


TEXT = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
"""Suffixes of text files."""
JSON = (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz")
"""Suffixes of files with a JSON object a line, or one array of objects."""
TABLES = (*TEXT, *JSON, ".parquet")
_LONGEST = 1 << 21
"""Longest line in characters: the reader of rows takes no longer ones."""
_LONGEST_NAME, _HEADER_LINES = 1 << 17, 1000
"""Bounds of a header: characters of a name, and lines (a name may have line breaks)."""
_BOMS = (b"\xff\xfe", b"\xfe\xff")

_READ_JSON = f"read_json($path, format='{{}}', sample_size=-1, maximum_object_size={_LONGEST})"
_WRONG = {
    "MISSING COLUMNS": "it has fewer columns than the header",
    "TOO MANY COLUMNS": "it has more columns than the header",
    "UNQUOTED VALUE": "a quote is not closed, or text follows the closing quote",
    "INVALID ENCODING": "it is not UTF-8",
    "LINE SIZE OVER MAXIMUM": "it is longer than 2 MB",
}


class SourceFile(NamedTuple):
    path: Path
    names: tuple[str, ...]
    delimiter: str
    """Empty for JSON and Parquet."""
    array: bool = False
    """Whether it is one JSON array."""
    nested: tuple[tuple[str, ...], ...] = ()
    """Paths of the fields inside of objects; they are the last of the names, joined by dots."""

    def position(self, name: str) -> int:
        """Position of a named column; raises ConfigError unless the header has it exactly once."""
        if self.names.count(name) == 1:
            return self.names.index(name)
        shown = ", ".join(repr(known) for known in self.names[:40]) + (" …" if len(self.names) > 40 else "")
        if name in self.names:
            raise ConfigError(f"{self.path.name!r} has several columns {name!r}; rename all but one: {shown}")
        raise ConfigError(f"{self.path.name!r} has no column {name!r}; its columns are {shown}")


class SqlParameters:
    """Binds texts as variables of a connection."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self.connection = connection
        self._count = 0

    def refer(self, value: str | Sequence[str]) -> str:
        """SQL that refers to a text, or to a list of texts."""
        name = f"value_{self._count}"
        self._count += 1
        single = isinstance(value, str)
        self.connection.execute(f"SET VARIABLE {name} = ?", [value if single else list(value)])
        return f"CAST(getvariable('{name}') AS {'VARCHAR' if single else 'VARCHAR[]'})"


class StagedFile(NamedTuple):
    """A file's rows in a table, in file order; `rowid` counts from 0."""

    source: SourceFile
    table: str
    types: Mapping[str, str]
    """Column name → DuckDB type."""
    broken: Mapping[int, str]
    """Number of an invalid record of a text file (the header is 1) → why."""
    values: SqlParameters

    def query(self, sql: str, limit: int = 1_000_000) -> list[tuple[Any, ...]]:
        """Run a query and return at most `limit` of its rows."""
        return self.values.connection.execute(sql).fetchmany(limit)

    def column(self, name: str) -> str:
        return f"c{self.source.position(name)}"

    def text(self, name: str) -> str:
        """SQL of a column as text; NULL if empty."""
        return f"nullif(CAST({self.column(name)} AS VARCHAR), '')"

    def number(self, name: str) -> str:
        """SQL of a column as a number; NULL if it is not one."""
        return f"TRY_CAST({self.column(name)} AS DOUBLE)"

    def list_of(self, name: str, separator: str | None, kind: str) -> str:
        """SQL of a column as a list of `kind`; NULL if it is not one."""
        column = self.column(name)
        if self.types[name] != "VARCHAR":
            return f"TRY_CAST({column} AS {kind}[])"
        if separator is None:
            return f"TRY_CAST(TRY_CAST({column} AS JSON) AS {kind}[])"
        cells = f"string_split({column}, {self.values.refer(separator)})"
        return f"TRY_CAST(list_transform({cells}, lambda s: trim(s)) AS {kind}[])"


def open_source(path: Path, delimiter: str | None = None) -> SourceFile:
    """Open a CSV, JSONL or Parquet file, and read the names of its columns."""
    if not path.is_file():
        raise ConfigError(f"there is no file {str(path)!r}; give a CSV, JSONL or Parquet file")
    name = path.name.lower()
    if name.endswith(".parquet"):
        return SourceFile(path, _parquet_names(path), "")
    if name.endswith(JSON):
        return _json_source(path)
    if not name.endswith(TEXT):
        raise ConfigError(f"{str(path)!r} has an unknown type; rename it to end in one of {', '.join(TABLES)}")
    delimiter = delimiter or ("\t" if ".tsv" in name[-7:] else ",")
    try:
        with path.open("rb") as file:
            if file.read(2) in _BOMS:
                raise InvalidLog(f"{path.name!r} is UTF-16; save it as UTF-8")
        with _text(path) as lines:
            header = next(csv.reader(islice(_lines(lines), _HEADER_LINES), delimiter=delimiter), [])
    except (OSError, EOFError, csv.Error) as error:
        raise InvalidLog(f"{path.name!r} cannot be read: {error}; write it again") from None
    # The csv module has a limit, too, but any library of the process may have raised it.
    if max(map(len, header), default=0) > _LONGEST_NAME:
        raise InvalidLog(
            f"{path.name!r} cannot be read: its header has a name of more than {_LONGEST_NAME} characters; its first "
            "line must be the names of the columns"
        )
    if not header:
        raise InvalidLog(f"{path.name!r} is empty or begins with an empty line; its first line is the header")
    return SourceFile(path, tuple(header), delimiter)


def stage(values: SqlParameters, source: SourceFile, names: Iterable[str], table: str) -> StagedFile:
    """Copy columns of a file into a table."""
    import duckdb

    connection = values.connection
    wanted = sorted({source.position(name) for name in names})
    columns = ", ".join(f"c{i}" for i in wanted)
    reader, given = reader_of(source, table)
    try:
        connection.execute(f"CREATE TABLE {table} AS SELECT {columns} FROM {reader}", given)
        rejects = _rejected(connection, table) if source.delimiter else {}
    except duckdb.Error as error:
        raise InvalidLog(f"{source.path.name!r} cannot be read: {error}; write it again") from None
    described = connection.execute(f"SELECT * FROM {table} LIMIT 0").description or []
    types = {source.names[i]: str(cell[1]) for i, cell in zip(wanted, described, strict=True)}
    return StagedFile(source, table, types, rejects, values)


def numbered(staged: StagedFile, rows: Mapping[int, str]) -> list[Problem]:
    """List all problems by line (text) or row (Parquet), from 1; `rows` maps the `rowid` of invalid rows to reasons."""
    if not staged.source.delimiter:
        return [Problem(row + 1, reason) for row, reason in sorted(rows.items())]
    # A row that the other reader did not see, after an unclosed quote, is counted in records.
    found = {("row", row): Problem(row + 2, reason) for row, reason in rows.items()}
    found |= {("record", record): Problem(record, reason) for record, reason in staged.broken.items()}
    row = 0
    for record, (line, filled) in enumerate(_records(staged.source), start=1):
        if record in staged.broken:
            found["record", record] = Problem(line, staged.broken[record])
        elif filled and record > 1:
            if row in rows:
                found["row", row] = Problem(line, rows[row])
            row += 1
    return sorted(found.values(), key=lambda problem: problem.line)


def _records(source: SourceFile) -> Iterator[tuple[int, bool]]:
    """Iterate over the records of a text file as (number of its first line, whether it is non-empty)."""
    with _text(source.path) as lines:
        reader = csv.reader(_lines(lines), delimiter=source.delimiter)
        line = 1
        try:
            for cells in reader:
                yield line, bool(cells)
                line = reader.line_num + 1
        except csv.Error:  # a cell of more than 128 KB
            return


def _lines(file: IO[str]) -> Iterator[str]:
    """Iterate over the lines of a file, very long ones in pieces, so that memory stays bounded."""
    return iter(lambda: file.readline(_LONGEST), "")


def _json_source(path: Path) -> SourceFile:
    """Read the names of the keys of all rows, and of the keys of objects in them as `outer.inner`."""
    import duckdb

    array = _is_array(path)
    try:
        with duckdb.connect() as connection:
            reader = _READ_JSON.format("array" if array else "newline_delimited")
            found = connection.execute(f"SELECT * FROM {reader} LIMIT 0", {"path": str(path)}).description or []
    except duckdb.Error as error:
        raise InvalidLog(f"{path.name!r} cannot be read: {_bad_json(path, array) or error}") from None
    names = tuple(str(row[0]) for row in found)
    if names == ("json",):
        raise InvalidLog(f"{path.name!r} cannot be read: {_bad_json(path, array) or 'it has no rows'}")
    nested = tuple(field for name, kind, *_ in found for field in _fields((str(name),), kind))
    return SourceFile(path, (*names, *map(".".join, nested)), "", array, nested)


def _fields(path: tuple[str, ...], kind: Any) -> Iterator[tuple[str, ...]]:
    """Iterate over the paths of the fields inside of a column of objects."""
    if kind.id == "struct":
        for name, inner in kind.children:
            yield (*path, name)
            yield from _fields((*path, name), inner)


def _is_array(path: Path) -> bool:
    """Whether a file is one JSON array; raises InvalidLog for an object around the rows."""
    with _text(path) as lines:
        first = next((line for line in _lines(lines) if line.strip()), "")
    if first.lstrip().startswith("["):
        return True
    try:
        row = msgspec.json.decode(first) if first else {}
    except msgspec.DecodeError:
        return False
    around = [key for key, value in row.items() if _rows_in(value)] if isinstance(row, dict) else []
    if around and len(row) <= _AROUND:
        raise InvalidLog(
            f"{path.name!r} is one object, whose {around[0]!r} seems to be the rows; write them alone: as an array "
            "[{…}, {…}], or an object a line"
        )
    return False


def _rows_in(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 1 and all(isinstance(each, dict) for each in value)


_AROUND = 8
"""Most keys of an object that holds rows; a row with lists of objects has more."""


def _bad_json(path: Path, array: bool) -> str:
    """Describe the first line that is not a JSON object; empty if all are."""
    if array:
        return "it is not an array of objects; write [{…}, {…}], or an object a line"
    with _text(path) as lines:
        for number, line in enumerate(_lines(lines), start=1):
            try:
                found = msgspec.json.decode(line) if line.strip() else {}
            except msgspec.DecodeError as error:
                return f"line {number} is not JSON ({error}); write an object a line, or one array [{{…}}, {{…}}]"
            if not isinstance(found, dict):
                return f"line {number} is not a JSON object; write an object a line"
    return ""


def _text(path: Path) -> IO[str]:
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", errors="replace", newline="")
    return path.open(encoding="utf-8-sig", errors="replace", newline="")


def _parquet_names(path: Path) -> tuple[str, ...]:
    """Column names as in the file; DuckDB would rename one of two that differ only in case."""
    import duckdb

    try:
        with duckdb.connect() as connection:
            found = connection.execute(
                "SELECT name, coalesce(num_children, 0) FROM parquet_schema(?)", [str(path)]
            ).fetchall()
    except duckdb.Error as error:
        raise InvalidLog(f"{path.name!r} is not a Parquet file: {error}; write it again") from None
    names, inside = [], 0  # the schema is a tree, depth first; the first entry is its root
    for name, children in found[1:]:
        if not inside:
            names.append(str(name))
        inside = max(0, inside - 1) + int(children)
    return tuple(names)


def reader_of(source: SourceFile, table: str) -> tuple[str, dict[str, str]]:
    """SQL that reads a file, and its parameters."""
    path, everything = str(source.path), range(len(source.names))
    if not source.delimiter:
        own = len(source.names) - len(source.nested)
        form = _READ_JSON.format("array" if source.array else "newline_delimited")
        read = "read_parquet($path)" if path.lower().endswith(".parquet") else form
        read = f"{read} AS t({', '.join(f'c{i}' for i in everything[:own])})"
        if source.nested:
            inner = (f"{_field(source, at)} AS c{own + i}" for i, at in enumerate(source.nested))
            read = f"(SELECT *, {', '.join(inner)} FROM {read})"
        return read, {"path": path}
    columns = ", ".join(f"'c{i}': 'VARCHAR'" for i in everything)
    return (
        "read_csv($path, auto_detect=false, header=true, delim=$delimiter, quote='\"', escape='\"', "
        f"columns={{{columns}}}, store_rejects=true, rejects_scan='{table}_scans', rejects_table='{table}_rejects')"
    ), {"path": path, "delimiter": source.delimiter}


def _field(source: SourceFile, at: tuple[str, ...]) -> str:
    """SQL of a field inside of objects."""
    found = f"c{source.names.index(at[0])}"
    for name in at[1:]:
        quoted = name.replace("'", "''")
        found = f"struct_extract({found}, '{quoted}')"
    return found


def _rejected(connection: duckdb.DuckDBPyConnection, table: str) -> dict[int, str]:
    found = connection.execute(
        "SELECT line, arg_min(error_type, byte_position), arg_min(error_message, byte_position) "
        f"FROM {table}_rejects GROUP BY line"
    ).fetchall()
    return {int(line): _WRONG.get(str(kind), str(message)) for line, kind, message in found}
