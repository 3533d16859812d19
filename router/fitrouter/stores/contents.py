"""Store of prompts and answers, for installations that keep them (`content: encrypted` or `plain`).

Rows go when they are older than `content_days`, and when their user is erased. No answer waits for this file.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec

from fitrouter.errors import StoreError
from fitrouter.stores._files import connect, make_folder
from fitrouter.stores.content import Content, pack_content, unpack_content
from fitrouter.stores.identities import Identities, UnknownSubject
from fitrouter.stores.journal import Journal
from fitrouter.types import Decision

FILE, TABLE = "content.db", "contents"
_SCHEMA = f"""CREATE TABLE IF NOT EXISTS {TABLE} (
    decision_id TEXT PRIMARY KEY, user TEXT, ts REAL NOT NULL, body BLOB NOT NULL
) WITHOUT ROWID"""
UNKNOWN_S = 3600.0
"""Age from which a content goes whose user the identities do not know: new users are written within moments."""
_DAY_S = 86_400.0
_COMMENT = ":comment"
"""Ends the key of a comment's text, after the id of the answer's decision."""
_PLAIN = b"{"
"""First byte of a text that is not encrypted; encrypted ones begin with a version."""


class KeptContent(msgspec.Struct, frozen=True, kw_only=True):
    """The last user message of a request with its answer, or a comment."""

    decision_id: str
    ts: float
    """Of the answer, in seconds since the epoch."""
    content: Content


class ContentStore:
    """Keeps contents in a file of the data folder. All methods block on the disk.

    Args:
        folder: the data folder.
        journal: of the decisions. Without its decision, as after an erasure, no content is kept.
        identities: have the users' keys.
        encrypted: whether texts are encrypted under a key of their user, which an erasure deletes.
        days: after which a content is deleted.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        folder: Path,
        journal: Journal,
        identities: Identities,
        *,
        encrypted: bool = True,
        days: float = 30.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = folder / FILE
        self._journal, self._identities = journal, identities
        self._encrypted, self._days, self._clock = encrypted, days, clock

    def keep(self, decision_id: str, subject: str | None, tenant: str, text: str, *, of: str = "") -> None:
        """Store the output of `pack_content`.

        Args:
            decision_id: the key of the text.
            subject: of the user.
            tenant: of the user.
            text: to be kept.
            of: the decision that it belongs to, where that is not the key.

        Raises:
            StoreError: the file or the user's key cannot be read or written.
        """
        body = self._identities.encrypt(subject, text, tenant=tenant) if self._encrypted else text.encode()
        with self._opened() as connection:
            connection.execute("BEGIN IMMEDIATE")
            # An erasure deletes the decision first, and then waits for this transaction before it deletes the contents.
            if self._journal.of(of or decision_id):
                row = decision_id, subject, self._clock(), body
                connection.execute(f"INSERT OR REPLACE INTO {TABLE} VALUES (?, ?, ?, ?)", row)  # noqa: S608
            connection.execute("COMMIT")

    def keep_comment(self, decision: Decision, text: str | None) -> None:
        """Store a comment on an answer, replacing an earlier one; None deletes it.

        Raises:
            StoreError: the file or the user's key cannot be read or written.
        """
        name, who = decision.id + _COMMENT, decision.identity
        if text is not None:
            said = pack_content("", {"role": "user", "content": text})
            self.keep(name, who.user, who.tenant, said, of=decision.id)
        elif self.path.exists():
            with self._opened() as connection:
                connection.execute(f"DELETE FROM {TABLE} WHERE decision_id = ?", (name,))  # noqa: S608

    def comments(self, subject: str, most: int) -> list[KeptContent]:
        """The latest comments of a user, oldest first.

        Raises:
            StoreError: the file or a key cannot be read.
            ValueError: a comment was changed.
        """
        if not self.path.exists():
            return []
        with self._opened() as connection:
            rows = connection.execute(
                f"SELECT decision_id FROM {TABLE} WHERE user = ? AND decision_id LIKE ? ORDER BY ts DESC LIMIT ?",  # noqa: S608
                (subject, "%" + _COMMENT, most),
            ).fetchall()
        return self.of([name for (name,) in reversed(rows)])

    def of(self, decision_ids: Sequence[str]) -> list[KeptContent]:
        """The contents of those decisions that have one, in this order.

        Raises:
            StoreError: the file or a key cannot be read.
            ValueError: a content was changed.
        """
        found: dict[str, KeptContent] = {}
        if self.path.exists():
            with self._opened() as connection:
                for name in decision_ids:
                    row = connection.execute(
                        f"SELECT ts, body FROM {TABLE} WHERE decision_id = ?",  # noqa: S608
                        (name,),
                    ).fetchone()
                    if row is None:
                        continue
                    try:
                        text = row[1].decode() if row[1][:1] == _PLAIN else self._identities.decrypt(row[1])
                    except UnknownSubject:  # an erasure is being completed
                        continue
                    found[name] = KeptContent(decision_id=name, ts=row[0], content=unpack_content(text))
        return list(found.values())

    def expire(self) -> int:
        """Delete contents that are too old or whose user is unknown, overwriting them with zeros; return 0."""
        if self.path.exists():
            with self._opened() as connection:
                old = self._clock() - self._days * _DAY_S
                connection.execute(f"DELETE FROM {TABLE} WHERE ts < ?", (old,))  # noqa: S608
                # A user whose row was never written, as on a full disk, cannot ask for an erasure.
                rows = connection.execute(
                    f"SELECT DISTINCT user FROM {TABLE} WHERE user IS NOT NULL AND ts < ?",  # noqa: S608
                    (self._clock() - UNKNOWN_S,),
                )
                for subject in self._identities.unknown([user for (user,) in rows]):
                    connection.execute(f"DELETE FROM {TABLE} WHERE user = ?", (subject,))  # noqa: S608
        return 0

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        try:
            make_folder(self.path.parent)
            with closing(connect(self.path)) as connection:
                connection.execute("PRAGMA secure_delete = ON")
                connection.execute(_SCHEMA)
                yield connection
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"the contents {str(self.path)!r} cannot be read or written: {error}") from error
