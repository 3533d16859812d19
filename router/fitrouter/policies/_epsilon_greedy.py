"""ε-greedy exploration."""

from __future__ import annotations

from typing import ClassVar

from pydantic.dataclasses import dataclass

from fitrouter.policies._base import DECLARED, Beliefs, Share, sound
from fitrouter.types import Floats


@dataclass(frozen=True, config=DECLARED)
class EpsilonGreedy:
    """Policy that gives the best arm 1 − epsilon and spreads epsilon uniformly; tied best arms share equally.

    >>> import numpy as np
    >>> beliefs = Beliefs(arms=("a", "b"), utility=np.array([0.7, 0.5]), sd=np.zeros(2), steps=0.0)
    >>> EpsilonGreedy(epsilon=0.1).propose(beliefs).round(4).tolist()
    [0.95, 0.05]
    """

    epsilon: Share = 0.05
    """Share of the traffic spread uniformly."""

    name: ClassVar[str] = "epsilon_greedy"

    def propose(self, beliefs: Beliefs) -> Floats:
        """Return the pmf over the arms, float64[K]."""
        return self.pmf(*sound(beliefs), beliefs.steps)

    def pmf(self, utility: Floats, sd: Floats, steps: float | Floats) -> Floats:  # noqa: ARG002 - of every policy
        """Return the pmfs of many requests, float64[..., K]."""
        best = utility == utility.max(axis=-1, keepdims=True)
        share = (1.0 - self.epsilon) / best.sum(axis=-1, keepdims=True)
        pmf: Floats = share * best + self.epsilon / best.shape[-1]
        return pmf
