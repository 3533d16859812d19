"""The router as a bandit with the interface of `_peers.Peer`: contexts, policy and learner as they ship."""

from __future__ import annotations

from typing import Any

import numpy as np

from fitrouter.config import CandidateConfig, PolicyConfig
from fitrouter.context.features import Reading, context_features, context_names
from fitrouter.policies import build_policy
from fitrouter.posterior.labels import FitParams
from fitrouter.routing.decider import Rules
from fitrouter.state.learner import Learner
from fitrouter.types import FeedbackKind, Identity, ModelCard
from fitrouter_evaluators.simulation.runner import InProcess

PAUSE_S = 28_800.0
"""Seconds between two rounds: all users are anonymous, and the cap on one user's votes per day must not bind."""


class Raw:
    """Encoder that returns a given vector. It has no basis and no order, so contexts are a random projection."""

    def __init__(self, dim: int) -> None:
        self.id, self.dim, self.vector = f"synthetic-{dim}", dim, np.zeros(dim)

    def encode(self, _texts: object) -> Any:
        """Return the given vector, whatever the text; float64[1, dim]."""
        return self.vector[None]


class Ours:
    """The product as it ships, without a scorer: its context, policy, rules and learner."""

    def __init__(
        self, d: int, K: int, seed: int, policy: dict[str, Any] | None = None, fit: FitParams | None = None
    ) -> None:
        config = PolicyConfig(**(policy or {}))
        self.encoder = Raw(d - 1)
        rules = {name: value for name, value in config.model_dump().items() if name in Rules.__struct_fields__}
        settings = config.model_dump(include=set(CandidateConfig.model_fields))
        self.router = InProcess(
            Learner(len(context_names()), 1, params=fit, expects_scores=False),
            build_policy(**settings),
            Rules(**rules, seed=seed),
            [ModelCard(name=f"m{k:02d}", provider="p") for k in range(K)],
        )
        self.arms = {card.arm: k for k, card in enumerate(self.router.cards)}
        self.decision: Any = None
        self.rounds = 0

    def decide(self, x: Any) -> int:
        """Return the arm chosen for a raw context."""
        self.rounds += 1
        self.encoder.vector = x[:-1]
        features = context_features(Reading(text=""), self.encoder)
        number, ts = self.rounds << 64 | self.rounds, 1e9 + PAUSE_S * self.rounds
        self.decision = self.router.decide(number, ts, Identity(), features)
        return self.arms[self.decision.chosen]

    def update(self, _x: Any, _arm: int, reward: float) -> None:
        """Record the decision's answer and a thumb on it."""
        self.router.vote(self.router.answer(self.decision), FeedbackKind.THUMB, reward)
