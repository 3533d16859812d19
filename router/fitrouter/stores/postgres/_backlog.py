"""Backlog: entries that a gateway logs on its own disk while it is cut off from the database."""

from __future__ import annotations

import sqlite3
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from fitrouter.errors import StoreError
from fitrouter.stores._files import connect, is_busy, make_folder
from fitrouter.stores.journal._record import Record

MOST_PAGES = 65_536
"""Of 4 KiB, of a process's own file: about 300,000 events."""
_PREFIX = "postgres.backlog-"
_SCHEMA = """CREATE TABLE IF NOT EXISTS entries (
    n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, ts REAL NOT NULL, kind TEXT NOT NULL,
    decision_id TEXT, subject TEXT, payload BLOB NOT NULL, crc INTEGER NOT NULL, content BLOB
);
CREATE INDEX IF NOT EXISTS entries_decision ON entries (decision_id) WHERE decision_id IS NOT NULL"""
_COLUMNS = "id, ts, kind, decision_id, subject, payload, crc, content"


class Backlog:
    """Records in the order in which they were logged, in one SQLite file a process. Thread safe; blocks on the disk.

    A file is locked by its process for as long as that lives. One that was left behind by a dead process is taken over
    by the next that starts, and read before its own.

    Args:
        folder: for the files.

    Raises:
        StoreError: the folder cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mutex = threading.Lock()
        self._files: list[tuple[Path, sqlite3.Connection]] = []
        """The oldest first; the last is this process's own, if `_own`."""
        self._own = False
        self.count = 0
        """Number of records."""
        try:
            make_folder(folder)
            for path in sorted(folder.glob(f"{_PREFIX}*.db"), key=lambda found: found.stat().st_mtime):
                self._take_over(path)
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"the backlog in {str(folder)!r} cannot be read: {error}") from error

    def _take_over(self, path: Path) -> None:
        try:
            connection = open_locked(path, _SCHEMA)
        except sqlite3.OperationalError as error:
            if is_busy(error):  # its process lives
                return
            raise
        self._files.append((path, connection))
        self.count += connection.execute("SELECT count(*) FROM entries").fetchone()[0]

    @contextmanager
    def _using(self) -> Iterator[None]:
        with self._mutex:
            try:
                yield
            except (OSError, sqlite3.Error) as error:
                raise StoreError(f"the backlog in {str(self.folder)!r} cannot be used: {error}") from error

    def extend(self, records: Sequence[Record]) -> None:
        """Add records, in one durable commit; those that are there already are left out.

        Raises:
            StoreError: the disk, or the backlog, is full.
        """
        with self._using():
            if not self._own:
                path = self.folder / f"{_PREFIX}{uuid.uuid4().hex}.db"
                self._files.append((path, open_locked(path, _SCHEMA)))
                self._own = True
            connection = self._files[-1][1]
            before = connection.total_changes
            with connection:
                connection.execute("BEGIN")
                connection.executemany(
                    f"INSERT OR IGNORE INTO entries ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
                    records,
                )
            self.count += connection.total_changes - before

    def first(self, limit: int) -> list[Record]:
        """The oldest records.

        Raises:
            StoreError: the disk fails.
        """
        with self._using():
            for _, connection in self._files:
                found = connection.execute(f"SELECT {_COLUMNS} FROM entries ORDER BY n LIMIT ?", (limit,)).fetchall()  # noqa: S608
                if found:
                    return [Record(*row) for row in found]
            return []

    def of(self, decision_id: str) -> list[Record]:
        """The records of a decision, in order."""
        statement = f"SELECT {_COLUMNS} FROM entries WHERE decision_id = ? ORDER BY n"  # noqa: S608
        with self._using():
            return [Record(*row) for _, each in self._files for row in each.execute(statement, (decision_id,))]

    def remove(self, records: Sequence[Record]) -> None:
        """Remove what `first` returned; files that are empty then are deleted."""
        with self._using():
            while self._files:
                path, connection = self._files[0]
                before = connection.total_changes
                with connection:
                    connection.execute("BEGIN")
                    connection.executemany("DELETE FROM entries WHERE id = ?", [(item.id,) for item in records])
                self.count -= connection.total_changes - before
                if connection.execute("SELECT EXISTS (SELECT 1 FROM entries)").fetchone()[0]:
                    return
                path.unlink(missing_ok=True)  # while it is locked
                connection.close()
                del self._files[0]
            self._own = False

    def close(self) -> None:
        """Close the files; what is left in them is handed in by the next start."""
        with self._mutex:
            for _, connection in self._files:
                with suppress(sqlite3.Error):
                    connection.close()
            self._files.clear()
            self._own = False


def open_locked(path: Path, schema: str) -> sqlite3.Connection:
    """A connection to a file that no other process can open meanwhile.

    Raises:
        sqlite3.Error: another process has it open (`is_busy`), or the disk fails.
    """
    connection = connect(path, patience_s=0.0)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # from the first access until it is closed
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("BEGIN EXCLUSIVE")
        for statement in schema.split(";\n"):
            connection.execute(statement)
        connection.execute("COMMIT")
        connection.execute(f"PRAGMA max_page_count = {MOST_PAGES}")
    except BaseException:
        connection.close()
        raise
    return connection
