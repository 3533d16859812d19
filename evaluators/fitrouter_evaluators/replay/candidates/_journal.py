"""Read-only access to a gateway's journal for folding a learner."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import cast

from fitrouter.errors import ConfigError
from fitrouter.stores.journal import Journal, Row
from fitrouter_evaluators.replay.log._journal import connect, damaged, decode_row


class _ReadOnlyJournal:
    """The methods of `Journal` that `fitrouter.state.learner.read_batch` calls."""

    def __init__(self, connection: sqlite3.Connection, place: str) -> None:
        self._connection, self._place = connection, place

    def tail(self, after: int, limit: int = 512) -> Sequence[Row]:
        """The next rows after a sequence number, in order."""
        return self._rows("SELECT seq, payload, crc FROM events WHERE seq > ? ORDER BY seq LIMIT ?", after, limit)

    def of(self, key: str) -> Sequence[Row]:
        """All rows of a decision id, in order."""
        return self._rows("SELECT seq, payload, crc FROM events WHERE decision_id = ? ORDER BY seq", key)

    def _rows(self, sql: str, *values: int | str) -> list[Row]:
        try:
            return [decode_row(self._place, *found) for found in self._connection.execute(sql, values).fetchall()]
        except sqlite3.Error as error:
            damaged(self._place, error)


@contextmanager
def open_journal(path: Path) -> Iterator[Journal]:
    """A journal file, or the one in a gateway's folder, opened for `tail` and `of`."""
    file = path / "journal.db" if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(f"journal: there is no file {str(file)!r}; give a gateway's folder or its journal.db")
    place = f"journal {str(file)!r}"
    with closing(connect(file, place)) as connection:
        yield cast("Journal", _ReadOnlyJournal(connection, place))
