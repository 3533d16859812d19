"""Inverse propensity scoring with clipped weights."""

from __future__ import annotations

import numpy as np

from fitrouter.types import Floats
from fitrouter_evaluators.replay.estimators._base import Weighted, positive


class ClippedIPS(Weighted):
    """Mean of min(w, λ) · reward. Biased low where rewards are positive.

    Args:
        lam: the largest weight; 20 by default.

    Reference: Ionides (2008), "Truncated importance sampling"; Bottou et al. (2013), "Counterfactual reasoning and
    learning systems", §4.
    """

    name = "clipped_ips"

    def __init__(self, lam: float = 20.0) -> None:
        self.lam = positive(self.name, lam)

    def shrink(self, weight: Floats) -> Floats:
        """float64[n]: min(w, λ)."""
        return np.minimum(weight, self.lam)
