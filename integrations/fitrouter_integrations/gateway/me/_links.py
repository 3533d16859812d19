"""One-time links that open a person's own page, and links to what they share of their report; of each a digest is kept.

An erasure deletes the rows of a person by their subject, the column `user` (`fitrouter.stores.erasure`).
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from fitrouter.errors import InvalidRequest, StoreError
from fitrouter_evaluators.personal import Filters

FILE = "links.db"
VALID_S = 86_400.0
"""Seconds for which a link can be redeemed, and the session that it begins lasts."""
MOST = 1000
"""Most valid links of a tenant."""
MOST_SHARES = 20
"""Most valid shares of a person."""
LONGEST = 100
"""Characters of a token that are looked at."""

_ALL = Filters()
_ID = 16
"""Digits of a digest that name a share."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS links (
    digest TEXT PRIMARY KEY, tenant TEXT NOT NULL, user TEXT NOT NULL, role TEXT NOT NULL, until REAL NOT NULL,
    redeemed INTEGER NOT NULL DEFAULT 0, sections TEXT NOT NULL DEFAULT '', filters TEXT NOT NULL DEFAULT '{}'
)
"""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A one-time link to a person's own page, or a link to what they share."""

    url: str
    """With the secret token in its fragment; it is shown this once."""
    expires: float
    """Seconds since the epoch until which it can be redeemed, or shows what is shared."""


class Withdrawn(msgspec.Struct, frozen=True, kw_only=True):
    """What the withdrawal of a person's links ended."""

    links: int
    """Valid links, sessions that they began, and shares."""


class Opened(NamedTuple):
    """The person whom a redeemed link names."""

    digest: str
    tenant: str
    subject: str
    role: str


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What a person shares of their report with whoever has its link."""

    id: str
    sections: tuple[str, ...]
    expires: float
    """Seconds since the epoch."""
    filters: Filters = Filters()
    """What the ranking is restricted to."""


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
            counted = "SELECT count(*) FROM links WHERE tenant = ? AND sections = ''"
            if connection.execute(counted, (tenant,)).fetchone()[0] >= MOST:
                raise InvalidRequest(f"links: {MOST} are valid, the most of a tenant; they end after a day")
            row = (_digest(token), tenant, subject, role, now + VALID_S)
            connection.execute("INSERT INTO links (digest, tenant, user, role, until) VALUES (?, ?, ?, ?, ?)", row)
        return token

    def redeem(self, token: str, now: float) -> Opened | None:
        """Use a link up; None if it is unknown, used or expired. Its session lasts as long as a link does."""
        digest = _digest(token[:LONGEST])
        with self._changing() as connection:
            changed = connection.execute(
                "UPDATE links SET redeemed = 1, until = ?"
                " WHERE digest = ? AND redeemed = 0 AND sections = '' AND until >= ?",
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

    def share(
        self,
        tenant: str,
        subject: str,
        role: str,
        sections: Sequence[str],
        until: float,
        now: float,
        filters: Filters = _ALL,
    ) -> tuple[str, Share]:
        """Return the secret token of a new share, and what it shows.

        Raises:
            InvalidRequest: the person has too many valid shares.
        """
        token = secrets.token_urlsafe(32)
        digest = _digest(token)
        kept = msgspec.json.encode(filters).decode()
        row = (digest, tenant, subject, role, until, ",".join(sections), kept, tenant, subject, now, MOST_SHARES)
        with self._changing() as connection:
            made = connection.execute(
                "INSERT INTO links (digest, tenant, user, role, until, sections, filters) SELECT ?, ?, ?, ?, ?, ?, ?"
                " WHERE (SELECT count(*) FROM links WHERE tenant = ? AND user = ? AND sections != '' AND until >= ?)"
                " < ?",
                row,
            )
            if not made.rowcount:
                raise InvalidRequest(f"shares: {MOST_SHARES} are valid, the most of a person; end one of them")
        return token, Share(id=digest[:_ID], sections=tuple(sections), expires=until, filters=filters)

    def shares(self, tenant: str, subject: str, now: float) -> list[Share]:
        """Return the valid shares of a person, the newest last."""
        with self._changing() as connection:
            found = connection.execute(
                "SELECT digest, sections, until, filters FROM links WHERE tenant = ? AND user = ? AND sections != ''"
                " AND until >= ? ORDER BY rowid",
                (tenant, subject, now),
            ).fetchall()
        return [_share(*each) for each in found]

    def shared(self, token: str, now: float) -> tuple[Opened, Share] | None:
        """Return whose report a share shows, and what of it; None if it is unknown, withdrawn or expired."""
        digest = _digest(token[:LONGEST])
        with self._changing() as connection:
            found = connection.execute(
                "SELECT tenant, user, role, sections, until, filters FROM links"
                " WHERE digest = ? AND sections != '' AND until >= ?",
                (digest, now),
            ).fetchone()
        if found is None:
            return None
        *whose, parts, until, filters = found
        return Opened(digest, *whose), _share(digest, parts, until, filters)

    def withdraw(self, tenant: str, subject: str, share: str = "") -> int:
        """Withdraw a share of a person, by its id, or all links and shares; return how many there were.

        The sessions that links began end, too.
        """
        with self._changing() as connection:
            return connection.execute(
                "DELETE FROM links WHERE tenant = ? AND user = ?"
                " AND (? = '' OR (substr(digest, 1, ?) = ? AND sections != ''))",
                (tenant, subject, share, _ID, share),
            ).rowcount

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


def _share(digest: str, parts: str, until: float, filters: str) -> Share:
    kept = msgspec.json.decode(filters, type=Filters)
    return Share(id=digest[:_ID], sections=tuple(parts.split(",")), expires=until, filters=kept)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
