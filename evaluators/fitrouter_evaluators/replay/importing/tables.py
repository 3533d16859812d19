"""Opens a table of another program (CSV, JSON or Parquet) as the relation `log` of a DuckDB connection.

Cells of CSV are texts; those of JSON and Parquet have their types.
"""

# ruff: noqa: S608 - statements are made of quoted names and constants

from __future__ import annotations

import csv
import gzip
import os
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import msgspec

from fitrouter.errors import ConfigError, InvalidLog

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
_AROUND = 8
"""Most keys of an object that holds rows; a row with lists of objects has more."""
_WRONG = {
    "MISSING COLUMNS": "it has fewer columns than the header",
    "TOO MANY COLUMNS": "it has more columns than the header",
    "UNQUOTED VALUE": "a quote is not closed, or text follows the closing quote",
    "INVALID ENCODING": "it is not UTF-8",
    "LINE SIZE OVER MAXIMUM": "it is longer than 2 MB",
}


def is_table(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a file in a format of tables: CSV, JSON or Parquet."""
    place = Path(path)
    return place.is_file() and place.name.lower().endswith(TABLES)


class Table(NamedTuple):
    """A file whose rows are the relation `log`."""

    path: Path
    connection: duckdb.DuckDBPyConnection
    names: tuple[str, ...]
    """Of the columns; of names that differ in case only, all but the first have a number added."""
    header: tuple[str, ...]
    """The names as the file has them."""
    delimiter: str
    """Empty for JSON and Parquet."""
    broken: Mapping[int, str]
    """Number of an invalid record of a text file (the header is 1) → why."""

    def placed(self, rows: Mapping[int, str]) -> list[tuple[str, str]]:
        """Say where problems are: the line of a text file, or the row of another one, from 1; and what is wrong.

        Args:
            rows: row of `log`, from 0 → what is wrong. The broken lines of a text file are added.
        """
        if not self.delimiter:
            return [(f"row {row + 1}", reason) for row, reason in sorted(rows.items())]
        # What comes after an unclosed quote is a row here and none there; it is counted in records.
        found = {row + 2: reason for row, reason in rows.items()} | dict(self.broken)
        lines, row = dict[int, str](), 0
        for record, (line, filled) in enumerate(_records(self.path, self.delimiter), start=1):
            if record in self.broken:
                lines[line] = self.broken[record]
                found.pop(record, None)
            elif filled and record > 1:
                if row in rows:
                    lines[line] = rows[row]
                    found.pop(row + 2, None)
                row += 1
        return [(f"line {line}", reason) for line, reason in sorted((found | lines).items())]


def open_table(path: Path, connection: duckdb.DuckDBPyConnection) -> Table:
    """Read a table; nothing else of the connection may be called `log`.

    Raises:
        ConfigError: there is no such file, or its name has another suffix than `TABLES`.
        InvalidLog: it is damaged.
    """
    import duckdb

    if not path.is_file():
        raise ConfigError(f"there is no file {str(path)!r}; give a CSV, JSON or Parquet file")
    name = path.name.lower()
    if not name.endswith(TABLES):
        raise ConfigError(f"{str(path)!r} has an unknown type; rename it to end in one of {', '.join(TABLES)}")
    if name.endswith(TEXT):
        return _open_text(path, connection)
    try:
        if name.endswith(".parquet"):
            reader = f"FROM read_parquet({literal(str(path))})"
            connection.execute(f"CREATE VIEW log AS {reader}")
        else:
            form = "array" if _is_array(path) else "newline_delimited"
            reader = f"FROM read_json($path, format='{form}', sample_size=-1, maximum_object_size={_LONGEST})"
            connection.execute(f"CREATE TABLE log AS {reader}", {"path": str(path)})
        names = tuple(connection.table("log").columns)
    except duckdb.Error as error:
        known = "it is not a Parquet file" if name.endswith(".parquet") else _bad_json(path)
        raise InvalidLog(f"{path.name!r} cannot be read: {known or error}; write it again") from None
    except (OSError, EOFError) as error:  # not compressed, or cut short
        raise InvalidLog(f"{path.name!r} cannot be read: {error}; write it again") from None
    if names == ("json",):
        raise InvalidLog(f"{path.name!r} cannot be read: {_bad_json(path) or 'it has no rows'}")
    return Table(path, connection, names, names, "", {})


def literal(text: str) -> str:
    """SQL of a text."""
    return "'" + text.replace("'", "''") + "'"


def identifier(name: str) -> str:
    """SQL of a column's name."""
    return '"' + name.replace('"', '""') + '"'


# --- text ---


def _open_text(path: Path, connection: duckdb.DuckDBPyConnection) -> Table:
    import duckdb

    header, delimiter = _header(path)
    names = _distinct(header)
    columns = ", ".join(f"'c{i}': 'VARCHAR'" for i in range(len(names)))
    named = ", ".join(f"nullif(c{i}, '') AS {identifier(name)}" for i, name in enumerate(names))
    reader = (
        f"SELECT {named} FROM read_csv($path, auto_detect=false, header=true, delim=$delimiter, quote='\"', "
        f"escape='\"', columns={{{columns}}}, store_rejects=true, rejects_scan='scans', rejects_table='rejects')"
    )
    try:
        connection.execute(f"CREATE TABLE log AS {reader}", {"path": str(path), "delimiter": delimiter})
        broken = connection.execute(
            "SELECT line, arg_min(error_type, byte_position), arg_min(error_message, byte_position) "
            "FROM rejects GROUP BY line"
        ).fetchall()
    except duckdb.Error as error:
        raise InvalidLog(f"{path.name!r} cannot be read: {error}; write it again") from None
    reasons = {int(line): _WRONG.get(str(kind), str(message)) for line, kind, message in broken}
    return Table(path, connection, names, header, delimiter, reasons)


def _header(path: Path) -> tuple[tuple[str, ...], str]:
    """Names of the columns, and the delimiter: a tab in .tsv, else the most frequent one of the header's first line."""
    try:
        with path.open("rb") as file:
            if file.read(2) in _BOMS:
                raise InvalidLog(f"{path.name!r} is UTF-16; save it as UTF-8")
        with _text(path) as lines:
            begins = list(islice(_lines(lines), _HEADER_LINES))
        tabs = ".tsv" in path.name.lower()[-7:]
        delimiter = "\t" if tabs else max(",;\t|", key=(begins or [""])[0].count)
        header = next(csv.reader(begins, delimiter=delimiter), [])
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
    return tuple(header), delimiter


def _distinct(header: tuple[str, ...]) -> tuple[str, ...]:
    """Names that SQL tells apart: without NUL, not empty, and no two that differ in case only."""
    found: dict[str, str] = {}
    for name in header:
        plain = name.replace("\0", "") or "column"
        n, unique = 1, plain
        while unique.lower() in found:
            unique, n = f"{plain}_{n}", n + 1
        found[unique.lower()] = unique
    return tuple(found.values())


def _records(path: Path, delimiter: str) -> Iterator[tuple[int, bool]]:
    """Iterate over the records of a text file as (number of its first line, whether it is non-empty)."""
    with _text(path) as lines:
        reader, line = csv.reader(_lines(lines), delimiter=delimiter), 1
        try:
            for cells in reader:
                yield line, bool(cells)
                line = reader.line_num + 1
        except csv.Error:  # a cell of more than 128 KB
            return


def _lines(file: IO[str]) -> Iterator[str]:
    """Iterate over the lines of a file, very long ones in pieces, so that memory stays bounded."""
    return iter(lambda: file.readline(_LONGEST), "")


def _text(path: Path) -> IO[str]:
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", errors="replace", newline="")
    return path.open(encoding="utf-8-sig", errors="replace", newline="")


# --- JSON ---


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
    around = [key for key, value in row.items() if _are_rows(value)] if isinstance(row, dict) else []
    if around and len(row) <= _AROUND:
        raise InvalidLog(
            f"{path.name!r} is one object, whose {around[0]!r} seems to be the rows; write them alone: as an array "
            "[{…}, {…}], or an object a line"
        )
    return False


def _are_rows(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 1 and all(isinstance(each, dict) for each in value)


def _bad_json(path: Path) -> str:
    """Describe the first line that is not a JSON object; empty if all are."""
    if _is_array(path):
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
