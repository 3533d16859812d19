"""A gateway's journal, read as a learner reads it: nothing is written beside it, and nobody waits."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import cast

import msgspec

from fitrouter.errors import ConfigError, InvalidLog
from fitrouter.stores.journal import Journal, Row
from fitrouter.types import decode_event


class _ReadOnly:
    """What `fitrouter.state.learner.read_batch` needs of a journal."""

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
            return [self._row(*found) for found in self._connection.execute(sql, values).fetchall()]
        except sqlite3.Error as error:
            raise InvalidLog(f"{self._place} cannot be read ({error}); restore it from a backup") from error

    def _row(self, seq: int, payload: bytes, crc: int) -> Row:
        try:
            if zlib.crc32(payload) != crc:
                raise msgspec.DecodeError("its checksum differs")  # noqa: TRY301
            return Row(seq, decode_event(payload))
        except msgspec.DecodeError as error:
            raise InvalidLog(f"{self._place}: row {seq} is damaged ({error}); restore it from a backup") from error


@contextmanager
def open_journal(path: Path) -> Iterator[Journal]:
    """A journal, or the one in a gateway's folder, for `tail` and `of` alone.

    Raises:
        ConfigError: there is none.
        InvalidLog: it cannot be read.
    """
    file = path / "journal.db" if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(f"journal: there is no file {str(file)!r}; give a gateway's folder or its journal.db")
    place = f"journal {str(file)!r}"
    try:
        connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=5.0, isolation_level=None)
    except sqlite3.Error as error:
        raise InvalidLog(f"{place} cannot be opened ({error})") from error
    with closing(connection):
        # Readers of a learner's kind call nothing else of a journal.
        yield cast("Journal", _ReadOnly(connection, place))
