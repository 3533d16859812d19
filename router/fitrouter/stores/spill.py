"""Spill file: rows of one process that do not fit into its memory. They live as long as the process."""

from __future__ import annotations

import sqlite3
import tempfile
import threading
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path

_GROUP = 64
"""Rows written at a time, so that reads never wait long."""


class Spill:
    """Stores keys and their bytes in a private SQLite file. Thread-safe; every method blocks on the disk.

    The file is unlinked as soon as it is open, so that it goes with the process. Nothing in it is durable: whoever
    uses it can rebuild it.

    Args:
        folder: for the file; None for the system's folder for temporary files.

    Raises:
        sqlite3.Error: the file cannot be opened.
        OSError: the folder cannot be used.
    """

    def __init__(self, folder: Path | None = None) -> None:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix="fitrouter-spill-") as file:
            self._connection = sqlite3.connect(file.name, isolation_level=None, check_same_thread=False)
            self._connection.executescript(
                "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF;"
                "CREATE TABLE rows (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID"
            )
        self._mutex = threading.Lock()

    def read(self, key: str) -> bytes | None:
        """The bytes of a key; None without any."""
        with self._mutex:
            row = self._connection.execute("SELECT value FROM rows WHERE key = ?", (key,)).fetchone()
        return None if row is None else row[0]

    def write(self, rows: Iterable[tuple[str, bytes]], gone: Collection[str] = ()) -> None:
        """Remove some keys, then write rows."""
        with self._mutex:
            self._connection.executemany("DELETE FROM rows WHERE key = ?", [(key,) for key in gone])
        left = iter(rows)
        while group := list(islice(left, _GROUP)):
            with self._mutex:
                self._connection.execute("BEGIN")
                try:
                    self._connection.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?)", group)
                    self._connection.execute("COMMIT")
                except BaseException:
                    self._connection.rollback()
                    raise

    def keys(self) -> Iterator[str]:
        """All keys, in order."""
        after = ""
        while True:
            with self._mutex:
                found = self._connection.execute(
                    "SELECT key FROM rows WHERE key > ? ORDER BY key LIMIT 4096", (after,)
                ).fetchall()
            if not found:
                return
            yield from (key for (key,) in found)
            after = found[-1][0]
