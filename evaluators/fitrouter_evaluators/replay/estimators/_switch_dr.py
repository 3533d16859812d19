"""Switch-DR."""

from __future__ import annotations

import numpy as np

from fitrouter.types import Floats
from fitrouter_evaluators.replay.estimators._base import Corrected, positive


class SwitchDR(Corrected):
    """Mean of base + 1[w ≤ λ] · w · (reward − q): the model alone where the weight is large.

    Args:
        lam: the largest weight that counts; 10 by default.

    Reference: Wang, Agarwal and Dudík (2017), "Optimal and adaptive off-policy evaluation in contextual bandits".
    """

    name = "switch_dr"

    def __init__(self, lam: float = 10.0) -> None:
        self.lam = positive(self.name, lam)

    def shrink(self, weight: Floats) -> Floats:
        """float64[n]: w up to λ, 0 beyond."""
        return np.where(weight <= self.lam, weight, 0.0)
