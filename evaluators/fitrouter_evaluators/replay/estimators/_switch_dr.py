"""Switch-DR: importance weighting where weights are small, the outcome model elsewhere."""

from __future__ import annotations

import numpy as np

from fitrouter.types import Floats
from fitrouter_evaluators.replay.estimators._base import DoublyRobustEstimator, Shrinkage


class SwitchDR(Shrinkage, DoublyRobustEstimator):
    """Mean of base + 1[w ≤ λ] · w · (reward − q).

    Reference: Wang, Agarwal and Dudík (2017), "Optimal and adaptive off-policy evaluation in contextual bandits".
    """

    name = "switch_dr"
    default = 10.0

    def shrink(self, weight: Floats) -> Floats:
        """float64[n]: w up to λ, 0 beyond."""
        return np.where(weight <= self.lam, weight, 0.0)
