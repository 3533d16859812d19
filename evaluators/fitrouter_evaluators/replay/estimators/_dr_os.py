"""Doubly robust with optimistic shrinkage."""

from __future__ import annotations

from fitrouter.types import Floats
from fitrouter_evaluators.replay.estimators._base import Corrected, positive


class DRos(Corrected):
    """Mean of base + λw / (w² + λ) · (reward − q). Weights fall again beyond √λ, where they are at most √λ / 2.

    Args:
        lam: 50 by default, which had the smallest errors over our loggers.

    Reference: Su, Dimakopoulou, Krishnamurthy and Dudík (2020), "Doubly robust off-policy evaluation with shrinkage".
    """

    name = "dr_os"

    def __init__(self, lam: float = 50.0) -> None:
        self.lam = positive(self.name, lam)

    def shrink(self, weight: Floats) -> Floats:
        """float64[n]: w / (1 + w²/λ), which is w where λ is infinite."""
        return weight / (1.0 + weight * weight / self.lam)
