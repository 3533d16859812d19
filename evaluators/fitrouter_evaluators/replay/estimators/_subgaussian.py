"""Sub-Gaussian importance weights: w / (1 − λ + λw), which stay below 1/λ."""

from __future__ import annotations

from fitrouter.types import Floats
from fitrouter_evaluators.replay.estimators._base import DoublyRobustEstimator, Shrinkage, WeightedEstimator


class _Subgaussian(Shrinkage):
    default = 0.05
    allowed = "give a number from 0 (no shrinkage) to below 1"

    def valid(self) -> bool:
        """Whether λ is allowed."""
        return 0.0 <= self.lam < 1.0

    def shrink(self, weight: Floats) -> Floats:
        """float64[n]: w / (1 − λ + λw)."""
        return weight / (1.0 - self.lam + self.lam * weight)


class SubgaussianIPS(_Subgaussian, WeightedEstimator):
    """Mean of w / (1 − λ + λw) · reward.

    Reference: Metelli, Russo and Restelli (2021), "Subgaussian and differentiable importance sampling for off-policy
    evaluation and learning" (power mean at s = −1).
    """

    name = "subgaussian_ips"


class SubgaussianDR(_Subgaussian, DoublyRobustEstimator):
    """Mean of base + w / (1 − λ + λw) · (reward − q): the same weights in the doubly robust estimator."""

    name = "subgaussian_dr"
