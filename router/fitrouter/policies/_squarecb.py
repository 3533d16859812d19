"""SquareCB: inverse gap weighting."""

from __future__ import annotations

import numpy as np

from fitrouter.policies._base import Beliefs
from fitrouter.types import Floats

__all__ = ["SquareCB"]


class SquareCB:
    """Probability falls with the gap to the best arm: p_k = 1 / (K + γ_t (u* − u_k)), the rest on the best.

    γ_t = gamma · √(1 + steps / 50) grows with what has been learnt: early traffic explores, late traffic does not.
    Reference: Foster and Rakhlin (2020), "Beyond UCB: optimal and efficient contextual bandits with regression
    oracles", Algorithm 1.

    >>> beliefs = Beliefs(arms=("a", "b"), utility=np.array([0.7, 0.5]), sd=np.zeros(2), steps=0.0)
    >>> SquareCB(gamma=20.0).propose(beliefs).round(4).tolist()
    [0.8333, 0.1667]
    """

    name = "squarecb"

    def __init__(self, gamma: float = 20.0) -> None:
        self.gamma = gamma

    def propose(self, beliefs: Beliefs) -> Floats:
        """float64[K], as in the class."""
        utility = beliefs.utility
        best = int(utility.argmax())
        gamma = self.gamma * np.sqrt(1.0 + beliefs.steps / 50.0)
        pmf: Floats = 1.0 / (len(utility) + gamma * (utility[best] - utility))
        pmf[best] = 0.0
        pmf[best] = 1.0 - pmf.sum()
        return pmf
