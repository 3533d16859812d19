"""Votes on pairs, and outcomes of runs, of which an answer is not scored yet, so that its score finds them.

A vote is an event of the decision that it names first, an outcome one of its run. The events of the other answers do
not lead to them, and the state holds no events: only what to read again when an answer's score comes.
"""

from __future__ import annotations

from collections.abc import Sequence

from fitrouter.plain import Projection
from fitrouter.stores.journal import outcomes_of
from fitrouter.types import Event, Feedback, FeedbackKind, RunOutcome, Score

LIMIT = 4096
"""Answers that are waited for; the first is forgotten for one more."""
VOTED = 16
"""Decisions whose votes, and runs whose outcomes, wait for one answer; later ones are not noted."""


class WaitingPairs(Projection):
    """Answer without a score → decisions with a vote that compares it with theirs, and runs, the oldest first."""

    stored_type = list[tuple[str, list[str]]]

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self._waiting: dict[str, list[str]] = {}

    def get(self, answer: str) -> Sequence[str]:
        """Keys of the journal under which votes and outcomes are that wait for an answer's score."""
        return self._waiting.get(answer, ())

    def observe(self, event: Event, related: Sequence[Event]) -> None:
        """Note what a vote or outcome waits for, which has no score among the `related` events; drop what is scored."""
        if isinstance(event, Score):
            self._waiting.pop(event.decision_id, None)
        elif isinstance(event, Feedback) and event.kind is FeedbackKind.PAIR and event.other != event.decision_id:
            self._note(event.decision_id, [event.other], related)
        elif isinstance(event, RunOutcome):
            self._note(outcomes_of(event.identity.run or ""), event.decisions, related)

    def _note(self, key: str, answers: Sequence[str], related: Sequence[Event]) -> None:
        scored = {one.decision_id for one in related if isinstance(one, Score)}
        for answer in answers:
            if answer in scored:
                continue
            voted = self._waiting.setdefault(answer, [])
            if key not in voted and len(voted) < VOTED:
                voted.append(key)
            if len(self._waiting) > self.limit:
                del self._waiting[next(iter(self._waiting))]

    def _store(self) -> list[tuple[str, list[str]]]:
        return list(self._waiting.items())

    def _restore(self, stored: list[tuple[str, list[str]]]) -> bool:
        waiting = dict(stored)
        if not len(waiting) == len(stored) <= self.limit or any(not 0 < len(voted) <= VOTED for _, voted in stored):
            return False
        self._waiting = waiting
        return True
