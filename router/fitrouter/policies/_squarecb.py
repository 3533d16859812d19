"""SquareCB: inverse gap weighting."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic.dataclasses import dataclass

from fitrouter.policies._base import DECLARED, Beliefs, Positive, sound
from fitrouter.types import Floats


@dataclass(frozen=True, config=DECLARED)
class SquareCB:
    """Policy by inverse-gap weighting: p_k = 1 / (K + γ_t (u* − u_k)), and the best arm has the remaining probability.

    γ_t = gamma · √(1 + steps / 50) grows with the number of labels: early traffic explores more than late traffic.
    Tied best arms share the remaining probability.
    Reference: Foster and Rakhlin (2020), "Beyond UCB: optimal and efficient contextual bandits with regression
    oracles", Algorithm 1.

    >>> beliefs = Beliefs(arms=("a", "b"), utility=np.array([0.7, 0.5]), sd=np.zeros(2), steps=0.0)
    >>> SquareCB(gamma=20.0).propose(beliefs).round(4).tolist()
    [0.8333, 0.1667]
    """

    gamma: Positive = 2560.0
    """Exploration parameter; larger values explore less."""

    name: ClassVar[str] = "squarecb"

    def propose(self, beliefs: Beliefs) -> Floats:
        """Return the pmf over the arms, float64[K]."""
        return self.pmf(*sound(beliefs), beliefs.steps)

    def pmf(self, utility: Floats, sd: Floats, steps: float | Floats) -> Floats:  # noqa: ARG002 - of every policy
        """Return the pmfs of many requests, float64[..., K]."""
        gap = utility.max(axis=-1, keepdims=True) - utility
        pmf: Floats = 1.0 / (gap.shape[-1] + self.gamma * np.sqrt(1.0 + np.maximum(steps, 0.0) / 50.0) * gap)
        best = gap == 0.0
        pmf[best] = 0.0
        left = (1.0 - pmf.sum(axis=-1, keepdims=True)) / best.sum(axis=-1, keepdims=True)
        np.copyto(pmf, left, where=best)
        return pmf
