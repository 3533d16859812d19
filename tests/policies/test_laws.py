"""Laws of policy, decider and learner together, in small simulations for every policy that learns."""

from __future__ import annotations

import uuid

import numpy as np
import pytest
from tests.policies.test_conformance import NAMES, beliefs, make

from fitrouter.draw import renormalise
from fitrouter.plain import pack
from fitrouter.routing.decider import Decider, Rules
from fitrouter.state.learner import Learner
from fitrouter.stores.journal import Row
from fitrouter.types import Attempt, Decision, Event, Execution, Feedback, FeedbackKind, Identity, ModelCard

LEARNING = [
    name
    for name in NAMES
    if make(name).propose(beliefs([0.1, 0.9])).tolist() != make(name).propose(beliefs([0.9, 0.1])).tolist()
]
"""Policies whose choices follow what is believed."""

CARDS = [ModelCard(name=name, provider="p") for name in ("a0", "a1", "a2")]
FLOOR = 0.05
_X = np.array([1.0, 0.0, 0.0])


class Town:
    """Three models: `broken` never answers; a1 pleases nine times in ten, the others four times."""

    def __init__(self, algorithm: str, broken: str | None) -> None:
        self.broken = broken
        self.learner = Learner(3, 1, expects_scores=False, votes_per_day=10**6)
        self.decider = Decider(make(algorithm), self.learner, Rules(floor=FLOOR))
        self.rng = np.random.default_rng(0)
        self.rounds = 0

    def round(self) -> Decision:
        """A request every ten seconds: decided, tried until a model answers, judged by what the reader sees."""
        self.rounds += 1
        name, ts = str(uuid.UUID(int=self.rounds)), 1e9 + 10.0 * self.rounds
        decision = self.decider.decide(name, ts, Identity(), _X, CARDS)
        attempts = [Attempt(model=decision.chosen, probability=1.0, error=self._error(decision.chosen))]
        while attempts[-1].error is not None:
            again = renormalise(decision, [attempt.model for attempt in attempts], len(attempts))
            assert again is not None
            attempts.append(Attempt(model=again[0], probability=again[1], error=self._error(again[0])))
        served = attempts[-1].model
        execution = Execution(
            id=f"{name}:execution",
            ts=ts,
            decision_id=name,
            identity=Identity(),
            chosen=decision.chosen,
            served_by=served,
            status="ok",
            attempts=tuple(attempts),
            features=pack(_X),
        )
        vote = Feedback(
            id=f"{name}:vote",
            ts=ts,
            decision_id=name,
            identity=Identity(),
            kind=FeedbackKind.THUMB,
            value=float(self.rng.random() < (0.9 if served == "a1" else 0.4)),
        )
        self._fold([decision, execution, vote])
        return decision

    def _error(self, model: str) -> str | None:
        return "ProviderUnavailable" if model == self.broken else None

    def _fold(self, events: list[Event]) -> None:
        for place, event in enumerate(events):
            self.learner.apply(Row(self.learner.seq + 1, event), events[:place])


@pytest.mark.parametrize("algorithm", LEARNING)
def test_a_model_that_always_fails_loses_its_traffic(algorithm: str) -> None:
    """Its requests end well, since the fallback is excellent, and it is left with the floor all the same.

    What readers say of the fallback's answers teaches about the fallback, never about the model that failed.
    """
    town = Town(algorithm, broken="a0")
    late = [town.round() for _ in range(150)][-30:]
    assert np.mean([decision.probs[0] for decision in late]) < 0.1
    assert np.mean([decision.probs[1] for decision in late]) > 0.7
    arms = town.learner.fit.arms
    assert arms.correction[arms.names["a1"]].any()
    assert not arms.correction[arms.names["a0"]].any()


@pytest.mark.parametrize("algorithm", LEARNING)
def test_a_model_that_recovers_is_found_again(algorithm: str) -> None:
    """An outage of the best model is forgotten after it: the floor finds out."""
    town = Town(algorithm, broken="a1")
    for _ in range(60):
        during = town.round()
    town.broken = None
    late = [town.round() for _ in range(300)][-30:]
    assert during.probs[1] < 0.15
    assert np.mean([decision.probs[1] for decision in late]) > 0.7
