"""Clipped importance weights: min(w, λ)."""

from __future__ import annotations

import numpy as np

from fitrouter.types import Floats
from fitrouter_evaluators.replay.estimators._base import DoublyRobustEstimator, Shrinkage, WeightedEstimator


class _Clipped(Shrinkage):
    default = 20.0

    def shrink(self, weight: Floats) -> Floats:
        """float64[n]: min(w, λ)."""
        return np.minimum(weight, self.lam)


class ClippedIPS(_Clipped, WeightedEstimator):
    """Mean of min(w, λ) · reward. Biased downwards for positive rewards.

    Reference: Ionides (2008), "Truncated importance sampling"; Bottou et al. (2013), "Counterfactual reasoning and
    learning systems", §4.
    """

    name = "clipped_ips"


class ClippedDR(_Clipped, DoublyRobustEstimator):
    """Mean of base + min(w, λ) · (reward − q). Biased towards the outcome model.

    Reference: Su, Dimakopoulou, Krishnamurthy and Dudík (2020), "Doubly robust off-policy evaluation with shrinkage"
    (its pessimistic shrinkage).
    """

    name = "clipped_dr"
