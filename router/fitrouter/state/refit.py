"""The exact re-fit: everything folded again from the journal, without those who were erased, each vote as it stands.

The running fold corrects a changed vote to first order and leaves what an erased user taught in the pooled blocks. The
re-fit reads the journal again as if the last vote had been the only one and the erased had never been there. It is a
function of the journal and the position alone, so every process that follows it ends in the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from fitrouter.state.learner import Learner, read_batch
from fitrouter.stores.journal import Journal, Row
from fitrouter.types import Erasure, Event, Feedback

_ROWS = 256


def refit(journal: Journal, like: Learner, until: int, pause: Callable[[], None] = lambda: None) -> Learner:
    """A fresh learner, folded up to a position. Blocks on the disk and takes long: run it beside the requests.

    Args:
        journal: what happened.
        like: whose settings to use.
        until: the last sequence number that counts.
        pause: called between batches, to let others work.
    """
    erased, last = _survey(journal, until)
    fresh = like.blank()
    for row, related in _rows(journal, until):
        if not isinstance(row.event, Erasure) and _subject(row.event) in erased:
            continue
        if isinstance(row.event, Feedback) and last[_vote(row.event)] != row.event.id:
            continue
        kept = [event for event in related if not isinstance(event, Feedback) or last[_vote(event)] == event.id]
        fresh.apply(row, kept)
        if row.seq % _ROWS == 0:
            pause()
    fresh.seq = until
    fresh.stale = 0
    return fresh


def _survey(journal: Journal, until: int) -> tuple[set[str], dict[tuple[str, ...], str]]:
    """Who was erased, and the id of the last vote under each key."""
    erased: set[str] = set()
    last: dict[tuple[str, ...], str] = {}
    after = 0
    while rows := journal.tail(after, _ROWS):
        for row in rows:
            if row.seq > until:
                return erased, last
            if isinstance(row.event, Erasure):
                erased.add(row.event.subject)
            elif isinstance(row.event, Feedback):
                last[_vote(row.event)] = row.event.id
        after = rows[-1].seq
    return erased, last


def _rows(journal: Journal, until: int) -> Iterator[tuple[Row, Sequence[Event]]]:
    after = 0
    while rows := read_batch(journal, after, _ROWS).rows:
        for row, related in rows:
            if row.seq > until:
                return
            yield row, related
        after = rows[-1][0].seq


def _vote(vote: Feedback) -> tuple[str, ...]:
    return vote.decision_id, vote.kind.value, vote.dimension, vote.other


def _subject(event: Event) -> str | None:
    identity = getattr(event, "identity", None)
    return identity.user if identity is not None else None
