"""Inverse propensity scoring with the sub-Gaussian correction."""

from __future__ import annotations

from fitrouter.types import Floats
from fitrouter_evaluators.replay.estimators._base import Weighted, share


class SubgaussianIPS(Weighted):
    """Mean of w / (1 − λ + λw) · reward. Weights stay below 1/λ.

    Args:
        lam: 0 to below 1; 0.05 by default, which leaves weights up to 20.

    Reference: Metelli, Russo and Restelli (2021), "Subgaussian and differentiable importance sampling for off-policy
    evaluation and learning" (power mean at s = −1).
    """

    name = "subgaussian_ips"

    def __init__(self, lam: float = 0.05) -> None:
        self.lam = share(self.name, lam)

    def shrink(self, weight: Floats) -> Floats:
        """float64[n]: w / (1 − λ + λw)."""
        return weight / (1.0 - self.lam + self.lam * weight)
