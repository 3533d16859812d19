"""Estimators that use an outcome model: the direct method, and doubly robust ones."""

from __future__ import annotations

import numpy as np

from fitrouter.types import Floats
from fitrouter_evaluators.replay.estimators._base import (
    Clipping,
    DoublyRobustEstimator,
    MeanEstimator,
    Shrinkage,
    SubgaussianShrinkage,
    ratio,
)
from fitrouter_evaluators.replay.estimators.rounds import Rounds


class DirectMethod(MeanEstimator):
    """Direct method: mean of V_1 = Σ_a π(a) q(a), the outcome model's prediction without correction.

    As biased as the model, and its interval does not show it: for comparison only.
    Reference: Beygelzimer and Langford (2009), "The offset tree for learning with partial labels".
    """

    name = "dm"

    def score(self, rounds: Rounds) -> Floats:
        return rounds.direct


class DR(DoublyRobustEstimator):
    """Doubly robust: mean of base + w · (reward − q); unbiased under full support, precise if the model is good.

    Reference: Dudík, Langford and Li (2011), "Doubly robust policy evaluation and learning"; over several draws
    Jiang and Li (2016), "Doubly robust off-policy value evaluation for reinforcement learning", eq. 10.
    """

    name = "dr"


class ClippedDR(Clipping, DoublyRobustEstimator):
    """Doubly robust with clipped weights: mean of base + min(w, λ) · (reward − q); biased towards the outcome model.

    Reference: Su, Dimakopoulou, Krishnamurthy and Dudík (2020), "Doubly robust off-policy evaluation with shrinkage"
    (its pessimistic shrinkage).
    """

    name = "clipped_dr"


class SNDR:
    """Self-normalised doubly robust: mean of base + Σ w · (reward − q) / Σ w.

    Reference: Thomas and Brunskill (2016), "Data-efficient off-policy policy evaluation for reinforcement learning"
    (weighted doubly robust), at one step.
    """

    name = "sndr"

    def moments(self, rounds: Rounds) -> Floats:
        return np.stack((rounds.base, rounds.weight * (rounds.reward - rounds.q), rounds.weight))

    def value(self, means: Floats) -> Floats:
        return means[..., 0] + ratio(means[..., 1], means[..., 2])

    def gradient(self, means: Floats) -> Floats:
        over, under = means[..., 1], means[..., 2]
        one = np.ones_like(under)
        return np.stack((one, ratio(one, under), -ratio(ratio(over, under), under)), -1)


class SwitchDR(Shrinkage, DoublyRobustEstimator):
    """Switch: mean of base + 1[w ≤ λ] · w · (reward − q), which drops the correction of units with large weights.

    Reference: Wang, Agarwal and Dudík (2017), "Optimal and adaptive off-policy evaluation in contextual bandits".
    """

    name = "switch_dr"
    default = 10.0

    def shrink(self, weight: Floats) -> Floats:
        return np.where(weight <= self.lam, weight, 0.0)


class DRos(Shrinkage, DoublyRobustEstimator):
    """Doubly robust with optimistic shrinkage: λw / (w² + λ), at most √λ / 2, replaces w in base + w · (reward − q).

    Reference: Su, Dimakopoulou, Krishnamurthy and Dudík (2020), "Doubly robust off-policy evaluation with shrinkage".
    """

    name = "dr_os"
    default = 50.0  # the smallest error over our logging policies

    def shrink(self, weight: Floats) -> Floats:
        # Of this form it is w for infinite λ.
        return weight / (1.0 + weight * weight / self.lam)


class SubgaussianDR(SubgaussianShrinkage, DoublyRobustEstimator):
    """Doubly robust with the weights of `SubgaussianIPS`: mean of base + w / (1 − λ + λw) · (reward − q)."""

    name = "subgaussian_dr"
