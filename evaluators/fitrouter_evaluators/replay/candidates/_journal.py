"""Reads a gateway's journal to fold a learner, of all its decisions or of some."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import cast

from fitrouter.errors import ConfigError
from fitrouter.state.learner import Learner
from fitrouter.state.reading import read_batch
from fitrouter.stores.cold import Payloads
from fitrouter.stores.journal import Journal, Row
from fitrouter.types import Decision, Event, Execution, Feedback, PolicyChange, RunOutcome, Score
from fitrouter_evaluators.replay.log._journal import connect, damaged, decode_rows


class _ReadOnlyJournal:
    """Implements the methods of `Journal` that `fitrouter.state.learner.read_batch` calls, without writing."""

    def __init__(self, connection: sqlite3.Connection, place: str, payloads: Payloads) -> None:
        self._connection, self._place, self._payloads = connection, place, payloads

    def tail(self, after: int, limit: int = 512) -> Sequence[Row]:
        return self._rows("SELECT seq, payload, crc FROM events WHERE seq > ? ORDER BY seq LIMIT ?", after, limit)

    def of(self, *keys: str) -> Sequence[Row]:
        marks = ", ".join("?" * len(keys))
        return self._rows(f"SELECT seq, payload, crc FROM events WHERE decision_id IN ({marks}) ORDER BY seq", *keys)  # noqa: S608

    def _rows(self, sql: str, *values: int | str) -> list[Row]:
        try:
            rows = self._connection.execute(sql, values).fetchall()
            return decode_rows(self._place, rows, self._payloads)
        except sqlite3.Error as error:
            damaged(self._place, error)


@contextmanager
def open_journal(path: Path) -> Iterator[Journal]:
    """Open a journal, given as a file or a gateway's folder, for reading by `tail` and `of`."""
    file = path / "journal.db" if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(f"journal: there is no file {str(file)!r}; give a gateway's folder or its journal.db")
    place = f"journal {str(file)!r}"
    with closing(connect(file, place)) as connection:
        yield cast("Journal", _ReadOnlyJournal(connection, place, Payloads(file.parent)))


def fold_selected(journal: Journal, learner: Learner, accept: Callable[[Decision], bool | None]) -> None:
    """Fold events in journal order, from the learner's position on, so that labels arrive when they were given.

    `accept` is called with every decision before anything of it is learnt; True to learn from its execution, score and
    feedback, None to stop here.
    """
    kept: set[str] = set()
    while rows := read_batch(journal, learner.seq, waiting=learner.waiting).rows:
        for row, related in rows:
            event = row.event
            if isinstance(event, Decision):
                keep = accept(event)
                if keep is None:
                    return
                if keep:
                    kept.add(event.id)
            if _selected(event, kept):
                learner.apply(Row(row.seq, event), [each for each in related if _selected(each, kept)])
            learner.seq = row.seq
            for part in learner.parts():
                part.stale = 0


def _selected(event: Event, kept: set[str]) -> bool:
    """Whether to fold an event: it belongs to an accepted decision, or to none and is no change of policy."""
    match event:
        case Decision():
            return event.id in kept
        case Execution() | Score():
            return event.decision_id in kept
        case Feedback():
            return event.decision_id in kept and (not event.other or event.other in kept)
        case RunOutcome():
            return kept.issuperset(event.decisions)
        case PolicyChange():
            return False
        case _:
            return True
