"""Subjects that wait on a gateway's own disk while it is cut off from the database of identities."""

from __future__ import annotations

import sqlite3
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from fitrouter.errors import StoreError
from fitrouter.stores._files import is_busy, make_folder
from fitrouter.stores.identities import Offer
from fitrouter.stores.postgres._backlog import open_locked

_PREFIX = "postgres.identities-"
_SCHEMA = """CREATE TABLE IF NOT EXISTS offers (
    subject TEXT PRIMARY KEY, who TEXT NOT NULL, key BLOB NOT NULL, erasures INTEGER NOT NULL
)"""


class Pending:
    """Minted subjects, in one SQLite file a process, which is locked for as long as that lives. Thread safe.

    Args:
        folder: for the files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._mutex = folder, threading.Lock()
        self._files: list[tuple[Path, sqlite3.Connection]] = []
        self._own = self._folder / f"{_PREFIX}{uuid.uuid4().hex}.db"

    def keep(self, offers: Sequence[Offer]) -> None:
        """Add subjects, in one durable commit; those that are there already are left out.

        Raises:
            StoreError: the disk is full, or fails.
        """
        with self._using():
            if self._own not in [path for path, _ in self._files]:
                make_folder(self._folder)
                self._files.append((self._own, open_locked(self._own, _SCHEMA)))
            connection = self._files[-1][1]
            rows = [(offer.subject, offer.who, offer.key, offer.erasures) for offer in offers]
            with connection:
                connection.execute("BEGIN")
                connection.executemany("INSERT OR IGNORE INTO offers VALUES (?, ?, ?, ?)", rows)

    def left(self) -> list[Offer]:
        """The subjects of dead processes, whose files are taken over.

        Raises:
            StoreError: a file cannot be read.
        """
        found = list[Offer]()
        with self._using():
            taken = {path for path, _ in self._files}
            for path in (each for each in self._folder.glob(f"{_PREFIX}*.db") if each not in taken):
                try:
                    self._files.insert(0, (path, open_locked(path, _SCHEMA)))
                except sqlite3.OperationalError as error:
                    if not is_busy(error):  # its process does not live
                        raise
            for path, connection in self._files:
                if path != self._own:
                    rows = connection.execute("SELECT who, erasures, subject, key FROM offers ORDER BY rowid")
                    found += [Offer(who, n, subject, key, True, True) for who, n, subject, key in rows]
        return found

    def forget(self, subjects: Sequence[str]) -> None:
        """Remove subjects; files that are empty then are deleted.

        Raises:
            StoreError: the disk fails.
        """
        with self._using():
            for path, connection in [*self._files]:
                with connection:
                    connection.execute("BEGIN")
                    connection.executemany("DELETE FROM offers WHERE subject = ?", [(each,) for each in subjects])
                if not connection.execute("SELECT EXISTS (SELECT 1 FROM offers)").fetchone()[0]:
                    path.unlink(missing_ok=True)  # while it is locked
                    connection.close()
                    self._files.remove((path, connection))

    def close(self) -> None:
        """Close the files; what is left in them is written by the next start."""
        with self._mutex:
            for _, connection in self._files:
                with suppress(sqlite3.Error):
                    connection.close()
            self._files.clear()

    @contextmanager
    def _using(self) -> Iterator[None]:
        with self._mutex:
            try:
                yield
            except (OSError, sqlite3.Error) as error:
                raise StoreError(f"new users cannot be kept in {str(self._folder)!r}: {error}") from error
