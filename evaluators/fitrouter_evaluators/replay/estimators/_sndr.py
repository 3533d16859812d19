"""Self-normalised doubly robust estimator."""

from __future__ import annotations

import numpy as np

from fitrouter.types import Floats
from fitrouter_evaluators.replay.estimators._base import ratio
from fitrouter_evaluators.replay.estimators.rounds import Rounds


class SNDR:
    """Mean of base + Σ w · (reward − q) / Σ w.

    Reference: Thomas and Brunskill (2016), "Data-efficient off-policy policy evaluation for reinforcement learning"
    (weighted doubly robust), at one step.
    """

    name = "sndr"

    def moments(self, rounds: Rounds) -> Floats:
        """float64[3, n]: base, w · (reward − q) and w."""
        return np.stack((rounds.base, rounds.weight * (rounds.reward - rounds.q), rounds.weight))

    def value(self, means: Floats) -> Floats:
        """The mean base plus the ratio of the other means."""
        return means[..., 0] + ratio(means[..., 1], means[..., 2])

    def gradient(self, means: Floats) -> Floats:
        """1, and (1, −ratio) divided by the mean weight."""
        over, under = means[..., 1], means[..., 2]
        one = np.ones_like(under)
        return np.stack((one, ratio(one, under), -ratio(ratio(over, under), under)), -1)
