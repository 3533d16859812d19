"""Softmax (Boltzmann) exploration."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic.dataclasses import dataclass

from fitrouter.policies._base import DECLARED, Beliefs, Positive, sound
from fitrouter.types import Floats


@dataclass(frozen=True, config=DECLARED)
class Softmax:
    """Policy with p_k ∝ exp(u_k / temperature): a gap of one temperature is a factor of e.

    It ignores the uncertainty of the estimates; use it as a baseline, or to spread traffic over models that are nearly
    as good.

    >>> beliefs = Beliefs(arms=("a", "b"), utility=np.array([0.7, 0.5]), sd=np.zeros(2), steps=0.0)
    >>> Softmax(temperature=0.1).propose(beliefs).round(4).tolist()
    [0.8808, 0.1192]
    """

    temperature: Positive = 0.02
    """Temperature, in units of rating on [0, 1]."""

    name: ClassVar[str] = "softmax"

    def propose(self, beliefs: Beliefs) -> Floats:
        """Return the pmf over the arms, float64[K]."""
        return self.pmf(*sound(beliefs), beliefs.steps)

    def pmf(self, utility: Floats, sd: Floats, steps: float | Floats) -> Floats:  # noqa: ARG002 - of every policy
        """Return the pmfs of many requests, float64[..., K]."""
        # exp underflows far below the best arm; beyond 700 temperatures the probability is negligible.
        weight: Floats = np.exp(np.maximum((utility - utility.max(axis=-1, keepdims=True)) / self.temperature, -700.0))
        weight /= weight.sum(axis=-1, keepdims=True)
        return weight
