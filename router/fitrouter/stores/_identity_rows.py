"""Schema and statements of `identities.db`."""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fitrouter.stores import _files

_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS subjects (
        subject TEXT PRIMARY KEY,
        who TEXT NOT NULL UNIQUE,
        key BLOB NOT NULL
    )""",
    "CREATE TABLE IF NOT EXISTS salts (one INTEGER PRIMARY KEY CHECK (one = 1), salt BLOB NOT NULL)",
    # A trigger also counts rows that another program deletes.
    "CREATE TABLE IF NOT EXISTS erasures (one INTEGER PRIMARY KEY CHECK (one = 1), number INTEGER NOT NULL)",
    """CREATE TRIGGER IF NOT EXISTS erased AFTER DELETE ON subjects BEGIN
        INSERT INTO erasures VALUES (1, 1) ON CONFLICT (one) DO UPDATE SET number = number + 1;
    END""",
)

# One statement and one result row for a whole batch: sqlite3 releases the GIL at every step of a statement, and getting
# it back from a busy event loop takes milliseconds.
_FIND = """SELECT json_group_array(json_array(who, subject)) FROM subjects
WHERE who IN (SELECT value FROM json_each(?))"""
_MAKE = """INSERT INTO subjects (subject, who, key)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), substr(?2, 32 * key + 1, 32) FROM json_each(?1)
WHERE json_extract(value, '$[2]') = (SELECT coalesce(max(number), 0) FROM erasures) ON CONFLICT (who) DO NOTHING"""
"""A row is refused if any user was erased since the token was minted: it may have been this one."""
COUNT_ERASURE = """INSERT INTO erasures VALUES (1, 1) ON CONFLICT (one) DO UPDATE SET number = number + 1
RETURNING number"""
ERASE = "DELETE FROM subjects WHERE who = ?1 OR (who > ?2 AND who < ?3) RETURNING subject"

SUBJECTS = "SELECT subject FROM subjects WHERE who = ?1 OR (who > ?2 AND who < ?3) ORDER BY who = ?1 DESC, rowid"
UNKNOWN = "SELECT value FROM json_each(?) WHERE value NOT IN (SELECT subject FROM subjects)"
PEOPLE = """SELECT who FROM subjects
WHERE json_array_length(who) = 2 AND json_type(who, '$[1]') = 'text' AND (?1 IS NULL OR json_extract(who, '$[0]') = ?1)
ORDER BY rowid DESC LIMIT ?2"""
"""Aliases have three parts, and nobody in particular (the anonymous subject of a tenant) has no name."""


@dataclass(slots=True, eq=False)
class Offer:
    """A subject and its key, not yet written to the file."""

    who: str
    erasures: int
    """The file's erasure count when the subject was made."""
    subject: str = field(default_factory=lambda: secrets.token_hex(16))
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    minted: bool = False
    """Whether the subject was returned by `mint`: then it must be written or given up, not silently replaced."""


def open_file(path: Path) -> sqlite3.Connection:
    """Open the file and create its tables, possibly at the same time as other processes."""
    connection = connect(path, patience_s=5.0)
    try:
        _files.write_ahead(connection)
        for statement in _SCHEMA:
            connection.execute(statement)
        connection.execute("INSERT INTO salts VALUES (1, ?) ON CONFLICT DO NOTHING", (secrets.token_bytes(32),))
        connection.execute("SELECT count(*) FROM subjects").fetchone()
        _files.quick_check(connection, path)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def connect(path: Path, patience_s: float) -> sqlite3.Connection:
    """A connection that waits up to `patience_s` for locks and overwrites deleted rows with zeros."""
    connection = _files.connect(path, patience_s)
    try:
        connection.execute("PRAGMA secure_delete = ON")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def count_erasures(connection: sqlite3.Connection) -> int:
    """The number of erasures so far."""
    return int(connection.execute("SELECT coalesce(max(number), 0) FROM erasures").fetchone()[0])


def find_salt(connection: sqlite3.Connection) -> bytes:
    """The installation's secret."""
    return bytes(connection.execute("SELECT salt FROM salts").fetchone()[0])


def find(connection: sqlite3.Connection, people: Sequence[str]) -> dict[str, str]:
    """The subjects of users, as far as the file has them."""
    (rows,) = connection.execute(_FIND, (json.dumps(people),)).fetchone()
    return dict(json.loads(rows))


def make(connection: sqlite3.Connection, offers: Mapping[str, Offer]) -> None:
    """Insert subjects of users that have none, unless any user was erased since the subjects were made."""
    rows = [(offer.subject, name, offer.erasures) for name, offer in offers.items()]
    connection.execute(_MAKE, (json.dumps(rows), b"".join(offer.key for offer in offers.values())))


def who_is(tenant: str, user: str | None) -> str:
    """The key of a user: ASCII JSON of (tenant, user), unique for every pair of strings."""
    return json.dumps([tenant, user])


def alias_name(offer: Offer) -> str:
    """The key of an alias: (tenant, user, subject), which no (tenant, user) equals."""
    return json.dumps([*json.loads(offer.who), offer.subject])


def alias_bounds(who: str) -> tuple[str, str]:
    """Exclusive bounds of the keys of a user's aliases."""
    return f"{who[:-1]}, ", f"{who[:-1]},!"
