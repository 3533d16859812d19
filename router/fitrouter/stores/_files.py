"""What every store does with its file: open it beside others, and set it aside where it cannot be read."""

from __future__ import annotations

import logging
import sqlite3
import time
from pathlib import Path

_log = logging.getLogger(__name__)


def quarantine(path: Path, now: float, companions: tuple[str, ...] = (), reason: str = "is damaged") -> Path:
    """Rename a damaged file to `<name>.corrupt-<seconds>` and say so in the log.

    Args:
        path: the file.
        now: seconds since the epoch, for the name.
        companions: suffixes of files that belong to it, such as a write-ahead log; they move along where they exist.
        reason: what is wrong with it, for the log.

    Returns:
        Where the file is now.
    """
    target = path.with_name(f"{path.name}.corrupt-{int(now)}")
    n = 1
    while target.exists():
        target = path.with_name(f"{path.name}.corrupt-{int(now)}-{n}")
        n += 1
    for suffix in companions:
        companion = path.with_name(path.name + suffix)
        if companion.exists():
            companion.rename(target.with_name(target.name + suffix))
    path.rename(target)
    _log.warning("%s %s; it was moved to %s and an empty one takes its place", path, reason, target)
    return target


def write_ahead(connection: sqlite3.Connection, patience_s: float = 5.0) -> None:
    """Put an SQLite file into write-ahead mode, waiting for others that do so at the same moment.

    SQLite itself does not: of two processes that make a file together, one would be told at once that it is locked.

    Raises:
        sqlite3.Error: it is still locked after the patience, or the file is no good.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            busy = error.sqlite_errorcode & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
            if not busy or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return
