"""One-time links that open a person's own page, in a file of the data folder; of each only a digest is kept.

An erasure deletes the rows of a person by their subject, the column `user` (`fitrouter.stores.erasure`).
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from fitrouter.errors import InvalidRequest, StoreError

FILE = "links.db"
VALID_S = 86_400.0
"""Seconds for which a link can be redeemed, and the session that it begins lasts."""
MOST = 1000
"""Most valid links of a tenant."""
LONGEST = 100
"""Characters of a token that are looked at."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS links (
    digest TEXT PRIMARY KEY, tenant TEXT NOT NULL, user TEXT NOT NULL, role TEXT NOT NULL, until REAL NOT NULL,
    redeemed INTEGER NOT NULL DEFAULT 0
)
"""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A one-time link to a person's own page."""

    url: str
    """With the secret token in its fragment; it is shown this once."""
    expires: float
    """Seconds since the epoch until which it can be redeemed."""


class Withdrawn(msgspec.Struct, frozen=True, kw_only=True):
    """What the withdrawal of a person's links ended."""

    links: int
    """Valid links, and sessions that they began."""


class Opened(NamedTuple):
    """The person whom a redeemed link names."""

    digest: str
    tenant: str
    subject: str
    role: str


class Links:
    """Links of an installation. All methods block on the disk.

    Args:
        data: folder of the file, which the first link creates.

    Raises:
        StoreError: the file cannot be used now (all methods).
    """

    def __init__(self, data: Path) -> None:
        self.file = data / FILE

    def make(self, tenant: str, subject: str, role: str, now: float) -> str:
        """Return the secret token of a new link.

        Raises:
            InvalidRequest: the tenant has too many valid links.
        """
        token = secrets.token_urlsafe(32)
        with self._changing() as connection:
            connection.execute("DELETE FROM links WHERE until < ?", (now,))
            (valid,) = connection.execute("SELECT count(*) FROM links WHERE tenant = ?", (tenant,)).fetchone()
            if valid >= MOST:
                raise InvalidRequest(f"links: {MOST} are valid, the most of a tenant; they end after a day")
            row = (_digest(token), tenant, subject, role, now + VALID_S)
            connection.execute("INSERT INTO links (digest, tenant, user, role, until) VALUES (?, ?, ?, ?, ?)", row)
        return token

    def redeem(self, token: str, now: float) -> Opened | None:
        """Use a link up; None if it is unknown, used or expired. Its session lasts as long as a link does."""
        digest = _digest(token[:LONGEST])
        with self._changing() as connection:
            changed = connection.execute(
                "UPDATE links SET redeemed = 1, until = ? WHERE digest = ? AND redeemed = 0 AND until >= ?",
                (now + VALID_S, digest, now),
            ).rowcount
            if changed != 1:
                return None
            found = connection.execute("SELECT tenant, user, role FROM links WHERE digest = ?", (digest,)).fetchone()
        return Opened(digest, *found)

    def lasts(self, digest: str, now: float) -> bool:
        """Whether the session of a redeemed link still lasts: it is neither over nor withdrawn."""
        with self._changing() as connection:
            found = connection.execute(
                "SELECT 1 FROM links WHERE digest = ? AND redeemed = 1 AND until >= ?", (digest, now)
            ).fetchone()
        return found is not None

    def withdraw(self, tenant: str, subject: str) -> int:
        """Withdraw all links of a person, and end the sessions that they began; return how many there were."""
        with self._changing() as connection:
            return connection.execute("DELETE FROM links WHERE tenant = ? AND user = ?", (tenant, subject)).rowcount

    def end(self, digest: str) -> None:
        """End the session of a redeemed link."""
        with self._changing() as connection:
            connection.execute("DELETE FROM links WHERE digest = ? AND redeemed = 1", (digest,))

    @contextlib.contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(self.file, timeout=5.0, isolation_level=None)) as connection:
                connection.execute(_SCHEMA)
                connection.execute("BEGIN IMMEDIATE")
                yield connection
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise StoreError(f"links: {str(self.file)!r} cannot be used now: {error}") from error


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
