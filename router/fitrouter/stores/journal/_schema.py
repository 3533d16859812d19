"""The journal's file: its tables, and how it is opened."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path

from fitrouter.errors import StoreError
from fitrouter.stores._files import write_ahead

COMPANIONS = ("-wal", "-shm")
"""Files that belong to the database."""

_VERSION = 1
_CHECKED_BYTES = 64 * 2**20
"""A file up to this size is checked page by page when it is opened (0.1 s); a greater one only where it is read."""

_SCHEMA = (
    """CREATE TABLE events (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        ts REAL NOT NULL,
        kind TEXT NOT NULL,
        decision_id TEXT,
        subject TEXT,
        payload BLOB NOT NULL,
        crc INTEGER NOT NULL
    )""",
    "CREATE INDEX events_decision ON events (decision_id) WHERE decision_id IS NOT NULL",
    "CREATE INDEX events_subject ON events (subject) WHERE subject IS NOT NULL",
    "CREATE TABLE spool (decision_id TEXT PRIMARY KEY, seq INTEGER NOT NULL, ts REAL NOT NULL, content BLOB NOT NULL)",
    "CREATE INDEX spool_seq ON spool (seq)",
    "CREATE TABLE snapshot_state (key TEXT PRIMARY KEY, value BLOB NOT NULL)",
    "CREATE TABLE snapshot_position (one INTEGER PRIMARY KEY CHECK (one = 1), seq INTEGER NOT NULL)",
    "INSERT INTO snapshot_position VALUES (1, 0)",
    "PRAGMA user_version = 1",
)


def connect(path: Path) -> sqlite3.Connection:
    """A connection that commits when told to, and may be handed from thread to thread."""
    connection = sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA synchronous = FULL")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def damaged(error: BaseException) -> bool:
    """True if the error says that the file itself is no good, and not that it is busy, missing or full."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def open_checked(path: Path) -> sqlite3.Connection:
    """Open the file, make the tables where there are none, and read a little of each.

    Raises:
        sqlite3.Error: it cannot be opened; `damaged` tells why.
        StoreError: a later version of fitrouter wrote it.
    """
    connection = connect(path)
    try:
        write_ahead(connection)
        connection.execute("BEGIN IMMEDIATE")
        _create(connection, path)
        connection.execute("COMMIT")
        _check(connection, path)
    except BaseException:
        with suppress(sqlite3.Error):
            connection.close()
        raise
    return connection


def _create(connection: sqlite3.Connection, path: Path) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > _VERSION:
        raise StoreError(
            f"{str(path)!r} has the journal format {version}; this fitrouter knows {_VERSION}. Use the later one again"
        )
    if version == 0:
        for statement in _SCHEMA:
            connection.execute(statement)


def _check(connection: sqlite3.Connection, path: Path) -> None:
    if path.stat().st_size <= _CHECKED_BYTES:
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            error = sqlite3.DatabaseError(f"quick_check: {verdict}")
            error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise error
    connection.execute("SELECT seq, length(payload) FROM events ORDER BY seq DESC LIMIT 1").fetchone()
    connection.execute("SELECT count(*) FROM spool").fetchone()
    connection.execute("SELECT seq FROM snapshot_position").fetchone()
