"""Votes on pairs, and outcomes of runs, of which an answer is not scored yet, so that its score finds them.

A vote is an event of the decision that it names first, an outcome one of its run. The events of the other answers do
not lead to them, and the state holds no events: only what to read again when an answer's score comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import msgspec

from fitrouter.plain import Projection
from fitrouter.stores.journal import outcomes_of
from fitrouter.types import RECORDED, Event, Execution, Feedback, FeedbackKind, RunOutcome, Score

_OUTCOMES = outcomes_of("")
_SCORED = {"ok", RECORDED}
"""How an answer ends that is scored."""

LIMIT = 4096
"""Answers that are waited for; the first is forgotten for one more."""
PATIENCE = 1024
"""Scores of its tenant after which an outcome waits no longer for an answer: the scorer has lost it."""
VOTED = 16
"""Decisions whose votes, and runs whose outcomes, wait for one answer; later ones are not noted."""


class _Stored(msgspec.Struct, array_like=True):
    waiting: list[tuple[str, list[str]]]
    since: list[tuple[str, int]]
    scores: int


class WaitingPairs(Projection):
    """Answer without a score → decisions with a vote that compares it with theirs, and runs, the oldest first."""

    stored_type = _Stored

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit, self.scores = limit, 0
        self._waiting: dict[str, list[str]] = {}
        self._since: dict[str, int] = {}
        """Answer that a run waits for → scores before it did, in order."""

    def get(self, answer: str) -> Sequence[str]:
        """Keys of the journal under which votes and outcomes are that wait for an answer's score."""
        return self._waiting.get(answer, ())

    def waits(self, answer: str) -> bool:
        """Whether a run waits for the score of an answer."""
        return answer in self._since

    def overdue(self, ahead: int = 0) -> list[str]:
        """Keys of the runs that will have waited too long for an answer after so many more scores."""
        late = takewhile(lambda each: self.scores + ahead - self._since[each] >= PATIENCE, self._since)
        return [key for answer in late for key in self._waiting[answer] if key.endswith(_OUTCOMES)]

    def give_up(self) -> list[str]:
        """Wait no longer for answers of runs that are overdue; returns the keys of these runs."""
        keys = self.overdue()
        for answer in [each for each, n in self._since.items() if self.scores - n >= PATIENCE]:
            del self._since[answer]
            self._waiting[answer] = [key for key in self._waiting[answer] if not key.endswith(_OUTCOMES)]
            if not self._waiting[answer]:
                del self._waiting[answer]
        return keys

    def observe(self, event: Event, related: Sequence[Event]) -> None:
        """Note what a vote or outcome waits for, which has no score among the `related` events; drop what is scored."""
        if isinstance(event, Score):
            self.scores += 1
            self._waiting.pop(event.decision_id, None)
            self._since.pop(event.decision_id, None)
        elif isinstance(event, Feedback) and event.kind is FeedbackKind.PAIR and event.other != event.decision_id:
            self._note(event.decision_id, [event.other], related)
        elif isinstance(event, RunOutcome):
            ends = {one.decision_id: one.status for one in related if isinstance(one, Execution)}
            answers = [each for each in event.decisions if ends.get(each, "ok") in _SCORED]
            self._note(outcomes_of(event.identity.run or ""), answers, related)

    def _note(self, key: str, answers: Sequence[str], related: Sequence[Event]) -> None:
        scored = {one.decision_id for one in related if isinstance(one, Score)}
        for answer in answers:
            if answer in scored:
                continue
            voted = self._waiting.setdefault(answer, [])
            if key not in voted and len(voted) < VOTED:
                voted.append(key)
                if key.endswith(_OUTCOMES):
                    self._since.setdefault(answer, self.scores)
            if len(self._waiting) > self.limit:
                del self._waiting[first := next(iter(self._waiting))]
                self._since.pop(first, None)

    def _store(self) -> _Stored:
        return _Stored(list(self._waiting.items()), list(self._since.items()), self.scores)

    def _restore(self, stored: _Stored) -> bool:
        waiting, since = dict(stored.waiting), dict(stored.since)
        sound = len(waiting) == len(stored.waiting) <= self.limit and since.keys() <= waiting.keys()
        if not sound or any(not 0 < len(voted) <= VOTED for voted in waiting.values()):
            return False
        self._waiting, self._since, self.scores = waiting, since, stored.scores
        return True
