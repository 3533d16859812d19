"""A learner walks through a journal in its order, and learns from what it is let."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fitrouter.state.learner import Learner, read_batch
from fitrouter.stores.journal import Journal, Row
from fitrouter.types import Decision, Event, Execution, Feedback, PolicyChange, Score


def fold_selected(journal: Journal, learner: Learner, meet: Callable[[Decision], bool | None]) -> None:
    """Read on from where the learner stands, event by event: labels come when they came.

    Args:
        journal: what happened.
        learner: it is changed.
        meet: told of every decision before anything of it is learnt; whether what becomes of it is learnt from, or None
            to end here.
    """
    kept: set[str] = set()
    while rows := read_batch(journal, learner.seq).rows:
        for row, related in rows:
            event = row.event
            if isinstance(event, Decision):
                keep = meet(event)
                if keep is None:
                    return
                if keep:
                    kept.add(event.id)
            if _counts(event, kept):
                learner.apply(Row(row.seq, event), _known(related, kept))
            learner.seq, learner.stale = row.seq, 0


def _counts(event: Event, kept: set[str]) -> bool:
    """Whether an event belongs to what is learnt from; what no decision brought about always does."""
    match event:
        case Decision():
            return event.id in kept
        case Execution() | Score():
            return event.decision_id in kept
        case Feedback():
            return event.decision_id in kept and (not event.other or event.other in kept)
        case PolicyChange():
            return False
        case _:
            return True


def _known(related: Sequence[Event], kept: set[str]) -> list[Event]:
    return [event for event in related if _counts(event, kept)]
