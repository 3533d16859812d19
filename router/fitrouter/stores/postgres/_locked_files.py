"""SQLite files that a gateway writes while it is cut off from the database, each locked by its process."""

from __future__ import annotations

import sqlite3
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fitrouter.errors import StoreError
from fitrouter.stores._files import connect, is_busy, make_folder

MOST_PAGES = 65_536
"""Of 4 KiB, of a process's own file: about 300,000 events."""


class LockedFiles:
    """SQLite files with one table, one per process: this process's own, and those taken over from dead processes.

    A file is locked for as long as the process lives that has it open. Use the connections within `using` only.

    Args:
        folder: for the files.
        prefix: of their names.
        schema: statements that create the table.
        any_left: statement that returns whether the table has rows.
        failing: how a `StoreError` begins; the folder and the cause follow.
    """

    def __init__(self, folder: Path, prefix: str, schema: str, any_left: str, failing: str) -> None:
        self.folder = folder
        self._prefix, self._schema, self._any_left, self._failing = prefix, schema, any_left, failing
        self._mutex = threading.Lock()
        self._own = folder / f"{prefix}{uuid.uuid4().hex}.db"
        self._open: dict[Path, sqlite3.Connection] = {}

    @contextmanager
    def using(self) -> Iterator[None]:
        """Hold the mutex within the context; raise StoreError if the disk fails or is full."""
        with self._mutex:
            try:
                yield
            except (OSError, sqlite3.Error) as error:
                raise StoreError(f"{self._failing} {str(self.folder)!r}: {error}") from error

    def own(self) -> sqlite3.Connection:
        """Return the connection to this process's own file, made at the first call."""
        if self._own not in self._open:
            make_folder(self.folder)
            self._open[self._own] = self._lock(self._own)
        return self._open[self._own]

    def taken_over(self) -> list[sqlite3.Connection]:
        """Take over the files of dead processes; return their connections, the oldest first."""
        for path in sorted(self.folder.glob(f"{self._prefix}*.db"), key=_modified):
            if path not in self._open:
                with suppress(_Lives):
                    self._open[path] = self._lock(path)
        return [connection for path, connection in self._open.items() if path != self._own]

    def all(self) -> list[sqlite3.Connection]:
        """Return the open connections, those of dead processes' files first."""
        return [self._open[path] for path in sorted(self._open, key=lambda path: path == self._own)]

    def drop_if_empty(self, connection: sqlite3.Connection) -> bool:
        """Delete a file if it has no rows; return whether it was deleted."""
        if connection.execute(self._any_left).fetchone()[0]:
            return False
        (path,) = (path for path, each in self._open.items() if each is connection)
        path.unlink(missing_ok=True)  # while it is locked
        connection.close()
        del self._open[path]
        return True

    def close(self) -> None:
        """Close the files; the next process takes over what is left in them."""
        with self._mutex:
            for connection in self._open.values():
                with suppress(sqlite3.Error):
                    connection.close()
            self._open.clear()

    def _lock(self, path: Path) -> sqlite3.Connection:
        try:
            connection = connect(path, patience_s=0.0)
            try:
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # from the first access until it is closed
                connection.execute("PRAGMA secure_delete = ON")
                connection.execute("BEGIN EXCLUSIVE")
                for statement in self._schema.split(";\n"):
                    connection.execute(statement)
                connection.execute("COMMIT")
                connection.execute(f"PRAGMA max_page_count = {MOST_PAGES}")
            except BaseException:
                connection.close()
                raise
        except sqlite3.OperationalError as error:
            if is_busy(error):
                raise _Lives from error
            raise
        return connection


class _Lives(Exception):
    """The process that locked a file is still alive."""


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # its process has just dropped it
        return 0.0
