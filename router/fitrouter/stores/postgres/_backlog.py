"""Backlog: entries that a gateway logs on its own disk while it is cut off from the database."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fitrouter.stores._files import make_folder
from fitrouter.stores.journal._record import Record
from fitrouter.stores.postgres._locked_files import LockedFiles

_SCHEMA = """CREATE TABLE IF NOT EXISTS entries (
    n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, ts REAL NOT NULL, kind TEXT NOT NULL,
    decision_id TEXT, subject TEXT, payload BLOB NOT NULL, crc INTEGER NOT NULL, content BLOB
);
CREATE INDEX IF NOT EXISTS entries_decision ON entries (decision_id) WHERE decision_id IS NOT NULL"""
_ANY_LEFT = "SELECT EXISTS (SELECT 1 FROM entries)"
_COLUMNS = "id, ts, kind, decision_id, subject, payload, crc, content"


class Backlog:
    """Logged records in their order, in one SQLite file per process. Thread safe; blocks on the disk.

    A file is locked by its process for as long as that lives. One that was left behind by a dead process is taken over
    by the next that starts, and read before its own.

    Args:
        folder: for the files.

    Raises:
        StoreError: the folder cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = LockedFiles(folder, "postgres.backlog-", _SCHEMA, _ANY_LEFT, "the backlog cannot be used, in")
        self.count = 0
        """Number of records."""
        with self._files.using():
            make_folder(folder)
            for connection in self._files.taken_over():
                self.count += connection.execute("SELECT count(*) FROM entries").fetchone()[0]

    def extend(self, records: Sequence[Record]) -> None:
        """Add records, in one durable commit; those that are there already are left out.

        Raises:
            StoreError: the disk, or the backlog, is full.
        """
        with self._files.using():
            connection = self._files.own()
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
        statement = f"SELECT {_COLUMNS} FROM entries ORDER BY n LIMIT ?"  # noqa: S608
        with self._files.using():
            for connection in self._files.all():
                if found := connection.execute(statement, (limit,)).fetchall():
                    return [Record(*row) for row in found]
            return []

    def of(self, decision_id: str) -> list[Record]:
        """The records of a decision, in order."""
        statement = f"SELECT {_COLUMNS} FROM entries WHERE decision_id = ? ORDER BY n"  # noqa: S608
        with self._files.using():
            return [Record(*row) for each in self._files.all() for row in each.execute(statement, (decision_id,))]

    def remove(self, records: Sequence[Record]) -> None:
        """Remove records that `first` returned, and delete the files that are empty then."""
        with self._files.using():
            for connection in self._files.all():
                before = connection.total_changes
                with connection:
                    connection.execute("BEGIN")
                    connection.executemany("DELETE FROM entries WHERE id = ?", [(item.id,) for item in records])
                self.count -= connection.total_changes - before
                if not self._files.drop_if_empty(connection):
                    return

    def close(self) -> None:
        """Close the files; what is left in them is handed in by the next start."""
        self._files.close()
