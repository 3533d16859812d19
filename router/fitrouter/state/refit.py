"""Exact refit: rebuilds the state from the journal, without erased users and with the last version of each vote.

The running fold corrects a changed vote only to first order, and keeps an erased user's influence on the blocks that
users share. A refit is a function of the journal and a position alone, so that all processes end in the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from fitrouter.state.learner import Learner, read_batch
from fitrouter.stores.journal import Journal, Row
from fitrouter.types import Erasure, Event, Feedback

_ROWS = 256


def refit(journal: Journal, like: Learner, until: int, pause: Callable[[], None] = lambda: None) -> Learner:
    """A new learner, folded up to a position. Slow, and blocks on disk I/O: run it in a thread.

    Args:
        journal: the event log.
        like: the learner whose settings are used.
        until: the last sequence number.
        pause: called between batches.
    """
    erased, last_votes = _survey(journal, until)
    fresh = like.blank()
    for row, related in _rows(journal, until):
        if not isinstance(row.event, Erasure) and _subject(row.event) in erased:
            continue
        if isinstance(row.event, Feedback) and last_votes[_vote_key(row.event)] != row.event.id:
            continue
        kept = [
            event for event in related if not isinstance(event, Feedback) or last_votes[_vote_key(event)] == event.id
        ]
        fresh.apply(row, kept)
        if row.seq % _ROWS == 0:
            pause()
    fresh.seq = until
    fresh.stale = 0
    return fresh


def _survey(journal: Journal, until: int) -> tuple[set[str], dict[tuple[str, ...], str]]:
    """Erased subjects, and the id of the last vote of each key."""
    erased: set[str] = set()
    last_votes: dict[tuple[str, ...], str] = {}
    after = 0
    while rows := journal.tail(after, _ROWS):
        for row in rows:
            if row.seq > until:
                return erased, last_votes
            if isinstance(row.event, Erasure):
                erased.add(row.event.subject)
            elif isinstance(row.event, Feedback):
                last_votes[_vote_key(row.event)] = row.event.id
        after = rows[-1].seq
    return erased, last_votes


def _rows(journal: Journal, until: int) -> Iterator[tuple[Row, Sequence[Event]]]:
    after = 0
    while rows := read_batch(journal, after, _ROWS).rows:
        for row, related in rows:
            if row.seq > until:
                return
            yield row, related
        after = rows[-1][0].seq


def _vote_key(vote: Feedback) -> tuple[str, ...]:
    return vote.decision_id, vote.kind.value, vote.dimension, vote.other


def _subject(event: Event) -> str | None:
    identity = getattr(event, "identity", None)
    return identity.user if identity is not None else None
