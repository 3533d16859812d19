"""The copy beside `identities.db`, in lines with a checksum each, from which a damaged file is restored.

It has a line for each subject, and one for the salt. Lines are appended, and the copy is rewritten without them when a
user is erased, while the database is locked for writing, so that no line of an erased user is ever added after that.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import zlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeAlias

_Row: TypeAlias = tuple[str, str, bytes]
"""(subject, who, key)."""
_ROWS = "SELECT subject, who, key FROM subjects UNION ALL SELECT '', '', salt FROM salts"
"""The installation's salt is the row of nobody."""
_THESE = "SELECT subject, who, key FROM subjects WHERE subject IN (SELECT value FROM json_each(?))"


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the texts of the undamaged lines; nothing if there is no copy."""
    if path.exists():
        with path.open("rb") as file:
            for line in file:
                checksum, _, text = line.rstrip(b"\n").partition(b" ")
                if checksum == b"%08x" % zlib.crc32(text):
                    yield text


def _texts(rows: Iterable[_Row]) -> Iterator[bytes]:
    return (json.dumps([subject, who, bytes(key).hex()]).encode() for subject, who, key in rows)


def _sum(texts: Iterable[bytes]) -> int:
    """Hash texts to a number that does not depend on their order."""
    return sum(int.from_bytes(hashlib.sha256(text).digest()[:16], "big") for text in texts)


def extend(path: Path, connection: sqlite3.Connection, subjects: Collection[str]) -> None:
    """Append those of the given subjects that are in the file."""
    if subjects:
        with _locked(connection), closing(connection.execute(_THESE, (json.dumps([*subjects]),))) as rows:
            _write(path, "ab", rows)


def rewrite(path: Path, connection: sqlite3.Connection) -> None:
    """Replace the copy by one of the file as it is now; if that fails, remove it.

    Raises:
        OSError: neither can be done.
    """
    new = path.with_name(f"{path.name}.new")
    with _locked(connection):
        try:
            with closing(connection.execute(_ROWS)) as rows:
                _write(new, "wb", rows)
            new.replace(path)
        except OSError:
            new.unlink(missing_ok=True)
            path.unlink(missing_ok=True)


def compare(path: Path, connection: sqlite3.Connection) -> None:
    """Rewrite the copy if it differs from the file, as after a crash, or if there is none."""
    with closing(connection.execute(_ROWS)) as rows:
        same = _sum(_lines(path)) == _sum(_texts(rows))
    if not same or not path.exists():
        rewrite(path, connection)


def restore(path: Path, connection: sqlite3.Connection) -> int:
    """Fill an empty file from the copy; returns the number of subjects."""
    with _locked(connection):
        for subject, who, key in map(json.loads, _lines(path)):
            row = subject, who, bytes.fromhex(key)
            if subject:
                connection.execute("INSERT OR IGNORE INTO subjects (subject, who, key) VALUES (?, ?, ?)", row)
            else:
                connection.execute("UPDATE salts SET salt = ?", row[2:])
    return int(connection.execute("SELECT count(*) FROM subjects").fetchone()[0])


@contextmanager
def _locked(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.execute("COMMIT")


def _write(path: Path, mode: str, rows: Iterable[_Row]) -> None:
    path.touch(mode=0o600)
    with path.open(mode) as file:
        file.writelines(b"%08x %s\n" % (zlib.crc32(text), text) for text in _texts(rows))
