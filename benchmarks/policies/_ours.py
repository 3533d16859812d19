"""The product as a bandit: contexts, decisions and the fold as they ship, behind the face of `_peers.Peer`."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np

from fitrouter.config import CandidateConfig, PolicyConfig
from fitrouter.context.features import Reading, context_features, context_names
from fitrouter.policies import build_policy
from fitrouter.posterior.labels import FitParams
from fitrouter.routing.decider import Decider, Rules
from fitrouter.state.learner import Learner
from fitrouter.stores.journal import Row
from fitrouter.types import Attempt, Execution, Feedback, FeedbackKind, Identity, ModelCard, ModelChange

PAUSE_S = 28_800.0
"""Between two rounds, so that the cap on one person's votes a day never binds: nobody has a name here."""


class Raw:
    """An encoder that hands on a given vector: no basis and no order, so contexts take a random projection of it."""

    def __init__(self, dim: int) -> None:
        self.id, self.dim, self.vector = f"synthetic-{dim}", dim, np.zeros(dim)

    def encode(self, _texts: object) -> Any:
        """float64[1, dim]: the vector, whatever the text."""
        return self.vector[None]


class Ours:
    """The product as it ships, without a scorer: its context, its policy, its rules, its fold."""

    def __init__(
        self, d: int, K: int, seed: int, policy: dict[str, Any] | None = None, fit: FitParams | None = None
    ) -> None:
        config = PolicyConfig(**(policy or {}))
        self.encoder = Raw(d - 1)
        self.learner = Learner(len(context_names()), 1, params=fit, expects_scores=False)
        rules = {name: value for name, value in config.model_dump().items() if name in Rules.__struct_fields__}
        settings = config.model_dump(include=set(CandidateConfig.model_fields))
        self.decider = Decider(build_policy(**settings), self.learner, Rules(**rules, seed=seed))
        self.cards = [ModelCard(name=f"m{k:02d}", provider="p") for k in range(K)]
        self.arms = {card.arm: k for k, card in enumerate(self.cards)}
        self.decision: Any = None
        self.rounds = 0
        self._fold(ModelChange(id="registry", ts=0.0, cards=tuple(self.cards), registry="world"))

    def decide(self, x: Any) -> int:
        """The arm for a raw context."""
        self.rounds += 1
        self.encoder.vector = x[:-1]
        name, ts = str(uuid.UUID(int=self.rounds << 64 | self.rounds)), 1e9 + PAUSE_S * self.rounds
        features = context_features(Reading(text=""), self.encoder)
        self.decision = self.decider.decide(name, ts, Identity(), features, self.cards)
        return self.arms[self.decision.chosen]

    def update(self, _x: Any, _arm: int, reward: float) -> None:
        """Fold the decision, its answer and a thumb."""
        decision = self.decision
        common = {"ts": decision.ts, "decision_id": decision.id, "identity": decision.identity}
        served = {"chosen": decision.chosen, "served_by": decision.chosen, "status": "ok"}
        attempts = (Attempt(model=decision.chosen, probability=1.0),)
        execution = Execution(id=f"{decision.id}:e", attempts=attempts, features=decision.features, **common, **served)
        vote = Feedback(id=f"{decision.id}:v", kind=FeedbackKind.THUMB, value=reward, **common)
        self._fold(decision)
        self._fold(execution, decision)
        self._fold(vote, decision, execution)

    def _fold(self, event: Any, *related: Any) -> None:
        self.learner.apply(Row(self.learner.seq + 1, event), related)
