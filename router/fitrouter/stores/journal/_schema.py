"""Schema of the journal's SQLite file, and opening with integrity checks."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path

from fitrouter.errors import StoreError
from fitrouter.stores._files import connect, quick_check, write_ahead

_VERSION = 2
"""2: payloads may be in a cold store."""

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
    "PRAGMA user_version = 2",
)
_PROFILES = "CREATE INDEX IF NOT EXISTS events_profile ON events (subject, seq) WHERE kind = 'profile'"
_ERASED = """CREATE TABLE IF NOT EXISTS erased (
    digest TEXT NOT NULL UNIQUE, seq INTEGER NOT NULL, done INTEGER NOT NULL DEFAULT 0
)"""
_CLAIMS = """CREATE TABLE IF NOT EXISTS claims (
    account TEXT NOT NULL, holder TEXT NOT NULL, usd REAL NOT NULL, spent REAL NOT NULL, seen REAL NOT NULL,
    ends REAL NOT NULL, PRIMARY KEY (account, holder)
)"""
"""These are no part of the format: files of earlier versions get them when they are opened."""


def open_checked(path: Path) -> sqlite3.Connection:
    """Open the journal's file, create its tables if it is new, and check its integrity.

    Raises:
        sqlite3.Error: the file cannot be opened, or is damaged (`is_damaged`).
        StoreError: a later version of fitrouter wrote it.
    """
    connection = connect(path)
    try:
        write_ahead(connection)
        connection.execute("BEGIN IMMEDIATE")
        create(connection, path)
        connection.execute("COMMIT")
        _check(connection, path)
    except BaseException:
        with suppress(sqlite3.Error):
            connection.close()
        raise
    return connection


def create(connection: sqlite3.Connection, path: Path) -> None:
    """Create the tables of a new file.

    Raises:
        StoreError: a later version of fitrouter wrote the file.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > _VERSION:
        raise StoreError(
            f"{str(path)!r} has journal format {version}, written by a later fitrouter; this one reads up to "
            f"{_VERSION}. Upgrade fitrouter"
        )
    if version == 0:
        for statement in _SCHEMA:
            connection.execute(statement)
    connection.execute(_PROFILES)
    connection.execute(_ERASED)
    connection.execute(_CLAIMS)


def _check(connection: sqlite3.Connection, path: Path) -> None:
    quick_check(connection, path)
    connection.execute("SELECT seq, length(payload) FROM events ORDER BY seq DESC LIMIT 1").fetchone()
    connection.execute("SELECT count(*) FROM spool").fetchone()
    connection.execute("SELECT seq FROM snapshot_position").fetchone()
