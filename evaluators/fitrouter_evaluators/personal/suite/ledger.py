"""Ledger of paid calls: what was asked and answered, on disk, so that nothing is paid twice.

A call is entered before it is made. After a crash those without an answer are known: the provider may have billed them,
so that they are left out unless the caller says to ask them again.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec

from fitrouter.errors import StoreError


class LedgerAnswer(NamedTuple):
    """A kept answer to a paid call, with its cost."""

    text: str
    usd: float | None
    """None without a known price."""


class Ledger:
    """Answers by model and request. Use it from one thread; two processes cannot share a file.

    Args:
        path: SQLite file.
        ask_again: whether calls that were in progress at a crash are made again.

    Raises:
        StoreError: the file cannot be used.
    """

    def __init__(self, path: Path, *, ask_again: bool = False) -> None:
        self.path = path
        self.lost: set[str] = set()
        """Keys of calls that were in progress at a crash."""
        self.paid, self.usd, self.unpriced = 0, 0.0, 0
        """Calls made by this object, what they cost, and those without a price, which that lacks."""
        try:
            self._db = sqlite3.connect(path, isolation_level=None, timeout=0.0)
            self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS calls (key TEXT PRIMARY KEY, model TEXT, text TEXT, usd REAL) STRICT"
            )
            if ask_again:
                self._db.execute("DELETE FROM calls WHERE text IS NULL")
            self.lost = {row[0] for row in self._db.execute("SELECT key FROM calls WHERE text IS NULL")}
        except sqlite3.Error as error:
            raise StoreError(
                f"{str(path)!r} cannot be used: {error}; end the other run, or give another --calls"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._db.close()

    def known(self, model: str, request: Any) -> LedgerAnswer | None:
        """Return the kept answer to a request, if there is one."""
        found = self._db.execute(
            "SELECT text, usd FROM calls WHERE key = ? AND text IS NOT NULL", (key_of(model, request),)
        ).fetchone()
        return None if found is None else LedgerAnswer(*found)

    async def ask(self, model: str, request: Any, call: Callable[[], Awaitable[LedgerAnswer]]) -> LedgerAnswer | None:
        """Return the kept answer to a request, else pay for a call and keep its answer; None if it was lost in a crash.

        A call that fails is taken out of the ledger; one that is cancelled stays as one in progress.
        """
        key = key_of(model, request)
        if (found := self.known(model, request)) is not None:
            return found
        if key in self.lost:
            return None
        self._db.execute("INSERT OR IGNORE INTO calls VALUES (?, ?, NULL, NULL)", (key, model))
        try:
            answered = await call()
        except Exception:
            self._db.execute("DELETE FROM calls WHERE key = ?", (key,))
            raise
        self._db.execute("UPDATE calls SET text = ?, usd = ? WHERE key = ?", (answered.text, answered.usd, key))
        self.paid += 1
        self.usd += answered.usd or 0.0
        self.unpriced += answered.usd is None
        return answered


def key_of(model: str, request: Any) -> str:
    """Digest of a request to a model."""
    return hashlib.sha256(msgspec.json.encode((model, request), order="deterministic")).hexdigest()
