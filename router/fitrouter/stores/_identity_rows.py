"""The rows of `identities.db`: what is filed under which name, and the statements that read and write them."""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fitrouter.stores._files import write_ahead

COMPANIONS = ("-wal", "-shm")
"""Suffixes of the files that SQLite keeps beside it."""
_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS subjects (
        subject TEXT PRIMARY KEY,
        who TEXT NOT NULL UNIQUE,
        key BLOB NOT NULL
    )""",
    # Whoever deletes a row, and by whatever program: it is counted.
    "CREATE TABLE IF NOT EXISTS erasures (one INTEGER PRIMARY KEY CHECK (one = 1), number INTEGER NOT NULL)",
    """CREATE TRIGGER IF NOT EXISTS erased AFTER DELETE ON subjects BEGIN
        INSERT INTO erasures VALUES (1, 1) ON CONFLICT (one) DO UPDATE SET number = number + 1;
    END""",
)

# One statement for a whole group, and one row back: between two steps of a statement Python may give way to a busy
# event loop, for milliseconds each time.
_FIND = """SELECT json_group_array(json_array(who, subject)) FROM subjects
WHERE who IN (SELECT value FROM json_each(?))"""
_MAKE = """INSERT INTO subjects (subject, who, key)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), substr(?2, 32 * key + 1, 32) FROM json_each(?1)
WHERE json_extract(value, '$[2]') = (SELECT coalesce(max(number), 0) FROM erasures) ON CONFLICT (who) DO NOTHING"""
"""Rows are refused where somebody was erased since the token was made: it may have been this user."""
COUNT_ERASURE = """INSERT INTO erasures VALUES (1, 1) ON CONFLICT (one) DO UPDATE SET number = number + 1
RETURNING number"""
ERASE = "DELETE FROM subjects WHERE who = ?1 OR (who > ?2 AND who < ?3) RETURNING subject"


@dataclass(slots=True, eq=False)
class Offer:
    """A token and a key that are not in the file yet."""

    who: str
    erasures: int
    """The file's count when it was made."""
    subject: str = field(default_factory=lambda: secrets.token_hex(16))
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    minted: bool = False
    """Somebody was given the token, so that it must be written or given up, and not just replaced."""


def open_file(path: Path) -> sqlite3.Connection:
    """A connection to the file with its table, which others may be making at the same moment."""
    path.touch(mode=0o600)
    connection = connect(path, patience_s=5.0)
    try:
        write_ahead(connection)
        for statement in _SCHEMA:
            connection.execute(statement)
        connection.execute("SELECT count(*) FROM subjects").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def connect(path: Path, patience_s: float) -> sqlite3.Connection:
    """A connection that waits so long for others, and commits durably."""
    connection = sqlite3.connect(path, timeout=patience_s, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA secure_delete = ON")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def count_erasures(connection: sqlite3.Connection) -> int:
    """How many erasures the file has seen."""
    return int(connection.execute("SELECT coalesce(max(number), 0) FROM erasures").fetchone()[0])


def find(connection: sqlite3.Connection, people: Sequence[str]) -> dict[str, str]:
    """The subjects that are filed under names."""
    (rows,) = connection.execute(_FIND, (json.dumps(people),)).fetchone()
    return dict(json.loads(rows))


def make(connection: sqlite3.Connection, offers: Mapping[str, Offer]) -> None:
    """Write tokens under names that are not there yet, as long as nobody was erased since they were made."""
    rows = [(offer.subject, name, offer.erasures) for name, offer in offers.items()]
    connection.execute(_MAKE, (json.dumps(rows), b"".join(offer.key for offer in offers.values())))


def who_is(tenant: str, user: str | None) -> str:
    """One text for one (tenant, user): JSON in ASCII, so that no two pairs meet and any text is allowed."""
    return json.dumps([tenant, user])


def alias_name(offer: Offer) -> str:
    """What an alias is filed under: the user and the token, which is no (tenant, user) of anybody."""
    return json.dumps([*json.loads(offer.who), offer.subject])


def alias_bounds(who: str) -> tuple[str, str]:
    """Bounds of what the aliases of a user are filed under: all are greater than the first and less than the second."""
    return f"{who[:-1]}, ", f"{who[:-1]},!"


def is_busy(error: BaseException | None) -> bool:
    """Whether another process kept the file to itself."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
