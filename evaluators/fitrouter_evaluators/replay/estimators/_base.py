"""Estimator protocol and shared base classes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Protocol

import numpy as np

from fitrouter.errors import ConfigError
from fitrouter.types import Floats
from fitrouter_evaluators.replay.estimators.rounds import Rounds


class Estimator(Protocol):
    """Protocol of estimators: smooth functions of the means of c per-unit columns.

    Intervals need nothing else: sums add up over clusters and slices, the gradient gives the delta method, and a
    bootstrap replicate is the value at resampled means.
    """

    @property
    def name(self) -> str:
        """Key of the estimator in `ESTIMATORS`."""
        ...

    def moments(self, rounds: Rounds) -> Floats:
        """Each unit's contribution to each of the c means, float64[c, n]."""
        ...

    def value(self, means: Floats) -> Floats:
        """Compute the estimate from the means, float64[...] from float64[..., c]; NaN where the weights sum to zero."""
        ...

    def gradient(self, means: Floats) -> Floats:
        """Compute the gradient of `value` in the means, float64[..., c] from float64[..., c]."""
        ...


class MeanEstimator(ABC):
    """Base of estimators that are the mean of one column."""

    @abstractmethod
    def score(self, rounds: Rounds) -> Floats:
        """The column whose mean is the estimate, float64[n]."""

    def moments(self, rounds: Rounds) -> Floats:
        return self.score(rounds)[None]

    def value(self, means: Floats) -> Floats:
        return means[..., 0]

    def gradient(self, means: Floats) -> Floats:
        return np.ones_like(means)


class WeightedEstimator(MeanEstimator):
    """Importance weighting: mean of ŵ · reward, where a subclass shrinks w to ŵ."""

    def shrink(self, weight: Floats) -> Floats:
        """Shrink the importance weights, float64[n]; the result lies between 0 and w."""
        return weight

    def residual(self, rounds: Rounds) -> Floats:
        """The quantity that the shrunk weights multiply, float64[n]."""
        return rounds.reward

    def score(self, rounds: Rounds) -> Floats:
        return self.shrink(rounds.weight) * self.residual(rounds)


class DoublyRobustEstimator(WeightedEstimator):
    """Mean of base + ŵ · (reward − q): an outcome model corrected by weighted residuals.

    In a unit of several draws only the product of all weights is shrunk; the partial products inside `Rounds.base`
    are not.
    """

    def residual(self, rounds: Rounds) -> Floats:
        return rounds.reward - rounds.q

    def score(self, rounds: Rounds) -> Floats:
        return rounds.base + super().score(rounds)


class Shrinkage:
    """Mixin for estimators that shrink weights with a parameter λ > 0."""

    name: ClassVar[str]
    default: ClassVar[float]
    allowed: ClassVar[str] = "give a number above 0, or inf for no shrinkage"

    def __init__(self, lam: float | None = None) -> None:
        self.lam = self.default if lam is None else float(lam)
        if not self.valid():
            raise ConfigError(f"estimator: λ of {self.name!r} is {lam!r}; {self.allowed}")

    def valid(self) -> bool:
        return self.lam > 0.0


class Clipping(Shrinkage):
    """Mixin that clips importance weights: min(w, λ)."""

    default = 20.0

    def shrink(self, weight: Floats) -> Floats:
        return np.minimum(weight, self.lam)


class SubgaussianShrinkage(Shrinkage):
    """Mixin that shrinks weights to w / (1 − λ + λw), which stays below 1/λ."""

    default = 0.05
    allowed = "give a number from 0 (no shrinkage) to below 1"

    def valid(self) -> bool:
        return 0.0 <= self.lam < 1.0

    def shrink(self, weight: Floats) -> Floats:
        return weight / (1.0 - self.lam + self.lam * weight)


class RatioEstimator:
    """Base of estimators that are the mean of one column divided by the mean of another."""

    def value(self, means: Floats) -> Floats:
        return ratio(means[..., 0], means[..., 1])

    def gradient(self, means: Floats) -> Floats:
        under = means[..., 1]
        return np.stack((ratio(np.ones_like(under), under), -ratio(self.value(means), under)), axis=-1)


def ratio(over: Floats, under: Floats) -> Floats:
    """Divide; NaN, without a warning, where the denominator is 0."""
    quotient = np.full(np.shape(under), np.nan)
    np.divide(over, under, out=quotient, where=np.not_equal(under, 0.0))
    return quotient
