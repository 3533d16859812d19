"""The seam between rounds and estimates, and what estimators share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import numpy as np

from fitrouter.errors import ConfigError
from fitrouter.types import Floats
from fitrouter_evaluators.replay.estimators.rounds import Rounds


class Estimator(Protocol):
    """A smooth function of the means of c columns over the units.

    That is all an interval needs to know: means add up over clusters and slices, the gradient linearises them (delta
    method), and a bootstrap replicate is the value at other means.
    """

    @property
    def name(self) -> str:
        """Its key in `ESTIMATORS`."""
        ...

    def moments(self, rounds: Rounds) -> Floats:
        """float64[c, n]: what each unit adds to each mean."""
        ...

    def value(self, means: Floats) -> Floats:
        """float64[...] from float64[..., c]: the estimate; NaN where the means say nothing (no weight at all)."""
        ...

    def gradient(self, means: Floats) -> Floats:
        """float64[..., c] from float64[..., c]: derivatives of `value`."""
        ...


class Mean(ABC):
    """The mean of one column."""

    @abstractmethod
    def score(self, rounds: Rounds) -> Floats:
        """float64[n]: the column."""

    def moments(self, rounds: Rounds) -> Floats:
        """float64[1, n], see `Estimator`."""
        return self.score(rounds)[None]

    def value(self, means: Floats) -> Floats:
        """The mean itself."""
        return means[..., 0]

    def gradient(self, means: Floats) -> Floats:
        """1 everywhere."""
        return np.ones_like(means)


class Weighted(Mean):
    """Mean of ŵ · reward, with ŵ what a subclass makes of the weight."""

    def shrink(self, weight: Floats) -> Floats:
        """float64[n]: ŵ, between 0 and the weight."""
        return weight

    def residual(self, rounds: Rounds) -> Floats:
        """float64[n]: what is weighted."""
        return rounds.reward

    def score(self, rounds: Rounds) -> Floats:
        """float64[n]: ŵ · reward."""
        return self.shrink(rounds.weight) * self.residual(rounds)


class Corrected(Weighted):
    """Mean of base + ŵ · (reward − q): an outcome model, corrected by weighted residuals.

    Where a unit has several draws, ŵ stands for the product of all its weights; the earlier partial products, inside
    `Rounds.base`, are left as they are.
    """

    def residual(self, rounds: Rounds) -> Floats:
        """float64[n]: reward − q."""
        return rounds.reward - rounds.q

    def score(self, rounds: Rounds) -> Floats:
        """float64[n]: base + ŵ · (reward − q)."""
        return rounds.base + super().score(rounds)


class Ratio:
    """The mean of a first column over that of a second."""

    def value(self, means: Floats) -> Floats:
        """The ratio of the means."""
        return ratio(means[..., 0], means[..., 1])

    def gradient(self, means: Floats) -> Floats:
        """(1, −value) over the second mean."""
        under = means[..., 1]
        return np.stack((ratio(np.ones_like(under), under), -ratio(self.value(means), under)), axis=-1)


def ratio(over: Floats, under: Floats) -> Floats:
    """The quotient, and NaN without a warning where `under` is 0."""
    quotient = np.full(np.shape(under), np.nan)
    np.divide(over, under, out=quotient, where=np.not_equal(under, 0.0))
    return quotient


def positive(name: str, lam: float) -> float:
    """λ of an estimator.

    Raises:
        ConfigError: it is not over 0.
    """
    if not lam > 0.0:
        raise ConfigError(f"estimator: λ of {name!r} is {lam!r}; allowed is over 0: give one, or inf for no shrinkage")
    return float(lam)


def share(name: str, lam: float) -> float:
    """λ of an estimator, as a share.

    Raises:
        ConfigError: it is not in [0, 1).
    """
    if not 0.0 <= lam < 1.0:
        raise ConfigError(f"estimator: λ of {name!r} is {lam!r}; allowed is 0 to below 1: give one, 0 shrinks nothing")
    return float(lam)
