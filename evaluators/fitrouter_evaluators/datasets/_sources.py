"""Finds and parses the files of published datasets."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

import msgspec

from fitrouter.errors import ConfigError


def source(folder: str | os.PathLike[str], name: str) -> Path:
    """Return the path of a file in a published dataset's folder.

    Raises:
        ConfigError: the folder has no such file.
    """
    path = Path(folder) / name
    if not path.is_file():
        raise ConfigError(
            f"{str(folder)!r} has no file {name!r}; give the folder of the set as its authors published it"
        )
    return path


def read_table(path: Path, delimiter: str = ",") -> list[dict[str, str]]:
    """Read the rows of a CSV or TSV file with a header, every cell as text."""
    csv.field_size_limit(1 << 30)
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file, delimiter=delimiter))


def read_json(path: Path) -> Any:
    """Read the value of a JSON file."""
    return msgspec.json.decode(path.read_bytes())


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Read the objects of a JSONL file."""
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines() if line.strip()]


def number(cell: str) -> float | None:
    """Convert a cell to a number; None if empty, nan or NA."""
    return float(cell) if cell.strip() not in ("", "nan", "NA") else None
