"""Doubly robust estimator with optimistic shrinkage."""

from __future__ import annotations

from fitrouter.types import Floats
from fitrouter_evaluators.replay.estimators._base import DoublyRobustEstimator, Shrinkage


class DRos(Shrinkage, DoublyRobustEstimator):
    """Mean of base + λw / (w² + λ) · (reward − q). Shrunk weights peak at w = √λ with the value √λ / 2.

    Reference: Su, Dimakopoulou, Krishnamurthy and Dudík (2020), "Doubly robust off-policy evaluation with shrinkage".
    """

    name = "dr_os"
    default = 50.0  # the smallest error over our logging policies

    def shrink(self, weight: Floats) -> Floats:
        """float64[n]: w / (1 + w²/λ), which is w for infinite λ."""
        return weight / (1.0 + weight * weight / self.lam)
