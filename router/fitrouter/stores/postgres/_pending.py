"""Subjects that wait on a gateway's own disk while it is cut off from the database of identities."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fitrouter.stores.identities import Offer
from fitrouter.stores.postgres._locked_files import LockedFiles

_SCHEMA = """CREATE TABLE IF NOT EXISTS offers (
    subject TEXT PRIMARY KEY, who TEXT NOT NULL, key BLOB NOT NULL, erasures INTEGER NOT NULL
)"""
_ANY_LEFT = "SELECT EXISTS (SELECT 1 FROM offers)"


class Pending:
    """Minted subjects, in one SQLite file per process, which is locked while the process lives. Thread safe.

    Args:
        folder: for the files.
    """

    def __init__(self, folder: Path) -> None:
        self._files = LockedFiles(folder, "postgres.identities-", _SCHEMA, _ANY_LEFT, "new users cannot be kept in")

    def add(self, offers: Sequence[Offer]) -> None:
        """Add subjects, in one durable commit; those that are there already are left out.

        Raises:
            StoreError: the disk is full, or fails.
        """
        rows = [(offer.subject, offer.who, offer.key, offer.erasures) for offer in offers]
        with self._files.using(), self._files.own() as connection:
            connection.execute("BEGIN")
            connection.executemany("INSERT OR IGNORE INTO offers VALUES (?, ?, ?, ?)", rows)

    def take_over(self) -> list[Offer]:
        """Take over the files of dead processes, and return the subjects in them.

        Raises:
            StoreError: a file cannot be read.
        """
        found = list[Offer]()
        with self._files.using():
            for connection in self._files.taken_over():
                rows = connection.execute("SELECT who, erasures, subject, key FROM offers ORDER BY rowid")
                found += [Offer(who, n, subject, key, True, True) for who, n, subject, key in rows]
        return found

    def remove(self, subjects: Sequence[str]) -> None:
        """Remove subjects; files that are empty then are deleted.

        Raises:
            StoreError: the disk fails.
        """
        with self._files.using():
            for connection in self._files.all():
                with connection:
                    connection.execute("BEGIN")
                    connection.executemany("DELETE FROM offers WHERE subject = ?", [(each,) for each in subjects])
                self._files.drop_if_empty(connection)

    def close(self) -> None:
        """Close the files; what is left in them is written by the next start."""
        self._files.close()
