"""Shared handling of store files: opening SQLite databases, and quarantine of damaged files."""

from __future__ import annotations

import logging
import sqlite3
import time
from pathlib import Path

_log = logging.getLogger(__name__)

COMPANIONS = ("-wal", "-shm")
"""Suffixes of the files that SQLite keeps beside a database."""


def connect(path: Path, patience_s: float = 5.0) -> sqlite3.Connection:
    """A connection in autocommit mode with durable commits, usable from any one thread at a time."""
    connection = sqlite3.connect(path, timeout=patience_s, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA synchronous = FULL")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def is_damaged(error: BaseException) -> bool:
    """Whether an SQLite error means that the file is corrupt, not that it is busy, missing or full."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def is_busy(error: BaseException | None) -> bool:
    """Whether an SQLite error means that another connection has locked the file."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def quarantine(path: Path, now: float, companions: tuple[str, ...] = (), reason: str = "is damaged") -> Path:
    """Rename a damaged file to `<name>.corrupt-<seconds>` and log a warning.

    Args:
        path: the file.
        now: seconds since the epoch, for the name.
        companions: suffixes of files that are renamed along with it, such as a write-ahead log.
        reason: the problem, for the log.

    Returns:
        The file's new path.
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
    _log.warning("%s %s; it was moved to %s and replaced by an empty file", path, reason, target)
    return target


def write_ahead(connection: sqlite3.Connection, patience_s: float = 5.0) -> None:
    """Put an SQLite file into write-ahead mode, waiting for other processes that do so at the same moment.

    SQLite's own timeout does not cover this pragma: when two processes create a file together, one fails at once.

    Raises:
        sqlite3.Error: the file is still locked after `patience_s`, or is damaged.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return
