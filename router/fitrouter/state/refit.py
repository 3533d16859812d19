"""Exact refit: rebuilds the state from the journal, without erased users and superseded votes.

The running fold corrects a changed vote only to first order, and keeps an erased user's influence on the blocks that
users share. A refit is a function of the journal and a position alone, so that all processes end in the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import cast

from fitrouter.state.learner import Learner
from fitrouter.state.reading import read_batch, tenant_of
from fitrouter.state.run_outcomes import effective, standing
from fitrouter.stores.journal import Journal, Row, fault_in
from fitrouter.types import Erasure, Event, Feedback, Quarantine, Remark, RunOutcome

_ROWS = 256
_SAID = Feedback | Remark | RunOutcome


def refit(
    journal: Journal,
    like: Learner,
    until: int,
    pause: Callable[[], None] = lambda: None,
    check: Callable[[Row, Learner], None] | None = None,
) -> Learner:
    """Build a new learner from the journal up to a position. Slow, and blocks on disk I/O: run it in a thread.

    Args:
        journal: the event log.
        like: the learner whose settings, and whose tenant's events, are used.
        until: the last sequence number.
        pause: called between batches.
        check: called after each event that was folded.
    """
    erased, counted, quarantined = _survey(journal, until)
    fresh = like.part(like.tenant)
    fresh.quarantined = quarantined
    for row, related in _rows(journal, fresh, until):
        if not isinstance(row.event, Erasure) and _subject(row.event) in erased:
            continue
        if like.tenant is not None and tenant_of(row.event, related) not in {None, like.tenant}:
            continue
        if isinstance(row.event, _SAID) and row.event.id not in counted:
            continue
        kept = [event for event in related if not isinstance(event, _SAID) or event.id in counted]
        fresh.apply(row, kept)
        if isinstance(row.event, Erasure):
            fresh.projections.book(row.event)
        if check is not None:
            check(row, fresh)
        if row.seq % _ROWS == 0:
            fresh.users.shrink()
            pause()
    fresh.seq = until
    fresh.stale = 0
    return fresh


def find_poison(journal: Journal, like: Learner, until: int, pause: Callable[[], None] = lambda: None) -> Row | None:
    """Find the first event after which the state is not finite; None if it stays finite. Takes up to two refits."""
    near = _first_unsound(journal, like, until, pause, after=0, every=_ROWS)
    return near and _first_unsound(journal, like, near.seq, pause, after=near.seq - 2 * _ROWS, every=1)


def _first_unsound(
    journal: Journal, like: Learner, until: int, pause: Callable[[], None], *, after: int, every: int
) -> Row | None:
    """Find the first event after which the state is found not to be finite, checking it every `every` events."""
    checked, last = after, cast("Row | None", None)

    def check(row: Row, fresh: Learner) -> None:
        nonlocal checked, last
        last = row
        if row.seq - checked >= every:
            checked = row.seq
            if not fresh.finite():
                raise _Found(row)
            fresh.snapshot()  # people who do not change from here on are not checked again

    try:
        fresh = refit(journal, like, until, pause, check)
    except _Found as found:
        return found.row
    return None if fresh.finite() else last


class _Found(Exception):
    def __init__(self, row: Row) -> None:
        super().__init__(row.seq)
        self.row = row


def _survey(journal: Journal, until: int) -> tuple[set[str], set[str], set[str]]:
    """Collect the erased subjects, the votes, remarks and outcomes that count, and the quarantined events."""
    erased, quarantined = set[str](), set[str]()
    votes: dict[tuple[str, ...], list[str]] = {}
    remarks: dict[str, list[Remark]] = {}
    ended: dict[str, list[RunOutcome]] = {}
    for row in _tail(journal, until):
        if isinstance(row.event, Erasure):
            erased.update({row.event.subject} - {""})
        elif isinstance(row.event, Quarantine):
            quarantined.add(row.event.event_id)
        elif isinstance(row.event, Feedback) and not fault_in(row.event):
            votes.setdefault(_vote_key(row.event), []).append(row.event.id)
        elif isinstance(row.event, Remark) and not fault_in(row.event):
            remarks.setdefault(row.event.decision_id, []).append(row.event)
        elif isinstance(row.event, RunOutcome) and not fault_in(row.event):
            ended.setdefault(row.event.identity.run or "", []).append(row.event)
    kept = [[vote for vote in ids if vote not in quarantined] for ids in votes.values()]
    said = (standing([remark for remark in each if remark.id not in quarantined]) for each in remarks.values())
    runs = (effective([report for report in each if report.id not in quarantined]) for each in ended.values())
    counted = {ids[-1] for ids in kept if ids} | {one.id for one in (*said, *runs) if one is not None}
    return erased, counted, quarantined


def _tail(journal: Journal, until: int) -> Iterator[Row]:
    after = 0
    while rows := journal.tail(after, _ROWS):
        for row in rows:
            if row.seq > until:
                return
            yield row
        after = rows[-1].seq


def _rows(journal: Journal, fresh: Learner, until: int) -> Iterator[tuple[Row, Sequence[Event]]]:
    after = 0
    while rows := read_batch(journal, after, _ROWS, fresh.waiting).rows:
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
