"""Folds a journal into a learner, learning only from the decisions that a callback accepts."""

from __future__ import annotations

from collections.abc import Callable

from fitrouter.state.learner import Learner, read_batch
from fitrouter.stores.journal import Journal, Row
from fitrouter.types import Decision, Event, Execution, Feedback, PolicyChange, Score


def fold_selected(journal: Journal, learner: Learner, accept: Callable[[Decision], bool | None]) -> None:
    """Fold events in journal order, from the learner's position on, so that labels arrive when they were given.

    `accept` is called with every decision before anything of it is learnt; True to learn from its execution, score and
    feedback, None to stop here.
    """
    kept: set[str] = set()
    while rows := read_batch(journal, learner.seq).rows:
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
            learner.seq, learner.stale = row.seq, 0


def _selected(event: Event, kept: set[str]) -> bool:
    """Whether an event belongs to an accepted decision, or to none."""
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
