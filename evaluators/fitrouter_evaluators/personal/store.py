"""Store of open quizzes: one SQLite file beside the journal, so that any worker can go on with a quiz.

It holds choices, places in the answer pool and posterior draws, under the user's subject; no texts and no user ids. A
quiz is kept for a day after its start. What was learnt is in the journal.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from fitrouter.errors import InvalidRequest, StoreError, UnknownDecision
from fitrouter.posterior.draws import Draws
from fitrouter.types import Floats, Identity
from fitrouter_evaluators.personal.quiz import Quiz

KEPT_S = 86_400.0
"""Seconds after its start for which a quiz is kept."""
OPEN = 100
"""Most quizzes of a tenant at a time."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS quizzes (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, user TEXT NOT NULL, ts REAL NOT NULL, step INTEGER NOT NULL,
    body BLOB NOT NULL, draws BLOB
)
"""
_BY_ID = "SELECT body, draws FROM quizzes WHERE id = ? AND tenant = ? AND ts >= ?"
_BY_USER = "SELECT body, draws FROM quizzes WHERE tenant = ? AND user = ? AND ts >= ?"


class _StoredDraws(msgspec.Struct, array_like=True):
    """Posterior draws of a quiz as stored: float32 bytes and their shapes."""

    shapes: tuple[tuple[int, int], ...]
    arrays: tuple[bytes, ...]


class QuizStore:
    """Quizzes by id, of which each user has at most one.

    Args:
        file: created with the first quiz.
    """

    def __init__(self, file: Path) -> None:
        self.file = file

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        try:
            with contextlib.closing(sqlite3.connect(self.file, timeout=5.0, isolation_level=None)) as connection:
                connection.execute(_SCHEMA)
                connection.execute("BEGIN IMMEDIATE")
                yield connection
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise StoreError(f"the quizzes cannot be read or written now ({error}); try again") from error

    def add(self, quiz: Quiz, draws: Draws) -> None:
        """Store a new quiz in place of the user's earlier one.

        Raises:
            InvalidRequest: the tenant has too many.
        """
        owner = quiz.identity.tenant, quiz.identity.user or ""
        with self._connection() as connection:
            connection.execute("DELETE FROM quizzes WHERE ts < ?", [quiz.ts - KEPT_S])
            connection.execute("DELETE FROM quizzes WHERE tenant = ? AND user = ?", owner)
            (open_,) = connection.execute("SELECT count(*) FROM quizzes WHERE tenant = ?", owner[:1]).fetchone()
            if open_ >= OPEN:
                raise InvalidRequest(f"quiz: {open_} quizzes are open, which is the limit; they expire after a day")
            row = (quiz.id, *owner, quiz.ts, quiz.step, msgspec.json.encode(quiz), _packed(draws))
            connection.execute("INSERT INTO quizzes VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def get(self, quiz_id: str, tenant: str, now: float) -> tuple[Quiz, Draws]:
        """A quiz and its draws.

        Raises:
            UnknownDecision: the tenant has no such quiz.
        """
        found = self._find(_BY_ID, (quiz_id, tenant), now)
        if found is None:
            raise UnknownDecision(f"there is no quiz {quiz_id[:40]!r}, or it has expired; start another one")
        return found

    def of(self, identity: Identity, now: float) -> tuple[Quiz, Draws] | None:
        """Find the open quiz of a user, with its draws; None if there is none."""
        return self._find(_BY_USER, (identity.tenant, identity.user or ""), now)

    def _find(self, query: str, values: tuple[str, str], now: float) -> tuple[Quiz, Draws] | None:
        with self._connection() as connection:
            row = connection.execute(query, (*values, now - KEPT_S)).fetchone()
        if row is None:
            return None
        return msgspec.json.decode(row[0], type=Quiz), _unpacked(row[1])

    def replace(self, quiz: Quiz) -> bool:
        """Store the next step of a quiz; return False if another process already did, or the quiz is gone."""
        with self._connection() as connection:
            changed = connection.execute(
                "UPDATE quizzes SET step = ?, body = ? WHERE id = ? AND step = ?",
                (quiz.step, msgspec.json.encode(quiz), quiz.id, quiz.step - 1),
            ).rowcount
        return changed == 1


def _packed(draws: Draws) -> bytes:
    arrays = tuple(np.ascontiguousarray(each, dtype="<f4").tobytes() for each in draws)
    return msgspec.msgpack.encode(_StoredDraws(tuple(each.shape for each in draws), arrays))


def _unpacked(payload: bytes) -> Draws:
    stored = msgspec.msgpack.decode(payload, type=_StoredDraws)
    found: list[Floats] = [
        np.frombuffer(each, dtype="<f4").reshape(shape).astype(np.float64)
        for each, shape in zip(stored.arrays, stored.shapes, strict=True)
    ]
    return Draws(*found)
