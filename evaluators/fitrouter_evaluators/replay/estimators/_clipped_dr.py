"""Doubly robust with clipped weights."""

from __future__ import annotations

import numpy as np

from fitrouter.types import Floats
from fitrouter_evaluators.replay.estimators._base import Corrected, positive


class ClippedDR(Corrected):
    """Mean of base + min(w, λ) · (reward − q). Biased towards the model.

    Args:
        lam: the largest weight; 20 by default.

    Reference: Su, Dimakopoulou, Krishnamurthy and Dudík (2020), "Doubly robust off-policy evaluation with shrinkage"
    (its pessimistic shrinkage).
    """

    name = "clipped_dr"

    def __init__(self, lam: float = 20.0) -> None:
        self.lam = positive(self.name, lam)

    def shrink(self, weight: Floats) -> Floats:
        """float64[n]: min(w, λ)."""
        return np.minimum(weight, self.lam)
