"""Votes on pairs whose other answer is not scored yet, so that its score finds them.

A vote is an event of the decision that it names first. The events of the other answer do not lead to it, and the state
holds no events: only which decisions to read again when that answer's score comes.
"""

from __future__ import annotations

from collections.abc import Sequence

from fitrouter.types import Event, Feedback, FeedbackKind, Projection, Score

LIMIT = 1024
"""Answers that are waited for; the first is forgotten for one more."""
VOTED = 16
"""Decisions whose votes wait for one answer; later ones are not noted."""


class WaitingPairs(Projection):
    """Answer without a score → decisions with a vote that compares it with theirs, the oldest first."""

    stored_type = list[tuple[str, list[str]]]

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self._waiting: dict[str, list[str]] = {}

    def get(self, answer: str) -> Sequence[str]:
        """The decisions whose votes wait for an answer's score."""
        return self._waiting.get(answer, ())

    def observe(self, event: Event, related: Sequence[Event]) -> None:
        """Note a vote whose other answer has no score among the `related` events; drop what waited for a score."""
        if isinstance(event, Score):
            self._waiting.pop(event.decision_id, None)
        elif isinstance(event, Feedback) and event.kind is FeedbackKind.PAIR and event.other != event.decision_id:
            if any(isinstance(one, Score) and one.decision_id == event.other for one in related):
                return
            voted = self._waiting.setdefault(event.other, [])
            if event.decision_id not in voted and len(voted) < VOTED:
                voted.append(event.decision_id)
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
