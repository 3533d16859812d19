"""Gaussian posteriors over R^D and their exact or Laplace update from one label.

A taste is a vector w over response features h; the score of an answer is hᵀw. w is a sum of blocks, population + role +
user, each with an independent prior N(m, S), so that a new user starts at the role and a new role at the population. A
label is one observation along h, whose posterior has a closed form (Gaussian) or one scalar root (logistic): see
`gaussian_update`.

Updates use numpy ufuncs and einsum in float64 only, no BLAS, so that the same events give the same bits on one build.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fitrouter.types import Floats


def ordered_sum(values: Iterable[float]) -> float:
    """Sum floats in order, rounding after each term; the built-in `sum` compensates from Python 3.12 on."""
    total = 0.0
    for value in values:
        total += value
    return total


class Gaussian:
    """Gaussian N(mean, cov) over R^D; updates replace the array, so that other threads see a consistent state."""

    __slots__ = ("state",)

    def __init__(self, mean: Floats, cov: Floats) -> None:
        self.state: Floats = np.concatenate([cov, mean[None]])
        """The covariance with the mean below it, float64[D + 1, D], so that one product reads or updates both."""

    @classmethod
    def prior(cls, mean: Floats, variance: Floats) -> Gaussian:
        """Make a Gaussian with independent coordinates; both arguments are float64[D]."""
        return cls(mean, np.diag(variance).astype(np.float64))

    @property
    def mean(self) -> Floats:
        """Mean, float64[D]."""
        mean: Floats = self.state[-1]
        return mean

    @mean.setter
    def mean(self, mean: Floats) -> None:
        self.state = np.concatenate([self.cov, mean[None]])

    @property
    def cov(self) -> Floats:
        """Covariance, float64[D, D]."""
        return self.state[:-1]

    @cov.setter
    def cov(self, cov: Floats) -> None:
        self.state = np.concatenate([cov, self.mean[None]])

    def gain(self, h: Floats) -> Floats:
        """Return S h, with S the covariance, float64[D]."""
        return self.along(h)[0]

    def along(self, h: Floats) -> tuple[Floats, float]:
        """S h and the mean of hᵀw, for an observation along h."""
        seen = np.einsum("ij,j->i", self.state, h)
        return seen[:-1], float(seen[-1])

    def learn(self, gain: Floats, update: GaussianUpdate) -> None:
        """Apply an update that `gaussian_update` computed over all blocks; `gain` is S h."""
        new = change(gain, update)
        self.state = np.subtract(self.state, new, out=new)

    def valid(self) -> bool:
        """Whether every number is finite and no variance is negative."""
        return bool(np.isfinite(self.state).all() and (np.diag(self.cov) >= 0).all())

    def dump(self) -> tuple[bytes, bytes]:
        """Mean and covariance as native float64 bytes."""
        return self.mean.tobytes(), self.cov.tobytes()

    @classmethod
    def load(cls, mean: bytes, cov: bytes, D: int) -> Gaussian:
        """Restore a Gaussian from the output of `dump`.

        Raises:
            ValueError: another dimension, a number that is not finite, or a negative variance.
        """
        found = cls(np.frombuffer(mean).reshape(D), np.frombuffer(cov).reshape(D, D))
        if not found.valid():
            raise ValueError("not the mean and covariance of a Gaussian")
        return found


def change(gain: Floats, update: GaussianUpdate) -> Floats:
    """Return what an update subtracts from a `Gaussian.state`: (S h)(S h)ᵀ·shrink above −(S h)·step."""
    by = np.empty(len(gain) + 1)
    np.multiply(gain, update.shrink, out=by[:-1])
    by[-1] = -update.step
    out: Floats = by[:, None] * gain
    return out


class GaussianUpdate:
    """Update of every block by one observation: m += (S h)·step, S −= (S h)(S h)ᵀ·shrink."""

    __slots__ = ("shrink", "step")

    def __init__(self, step: float, shrink: float) -> None:
        self.step = step
        self.shrink = shrink


def gaussian_update(
    predicted: float, variance: float, y: float, *, noise: float | None = None, weight: float = 1.0
) -> GaussianUpdate:
    """Posterior update for one observation of a = Σ hᵀw over independent blocks, a ~ N(a₀, v) before it.

    With `noise` (σ²) the observation is Gaussian: step = (y − a₀) / (σ²/ρ + v), shrink = 1 / (σ²/ρ + v). Otherwise it
    is logistic: a solves a = a₀ + ρ v (y − σ(a)) and the Laplace posterior at it has step = ρ (y − p),
    shrink = q / (1 + q v), q = ρ p (1 − p).

    Args:
        predicted: a₀, the prior mean.
        variance: v ≥ 0, the prior variance.
        y: the label, in [0, 1] for the logistic observation.
        noise: σ² of a Gaussian observation; None for a logistic one.
        weight: ρ > 0, how many observations this one counts for.
    """
    if noise is not None:
        total = noise / weight + variance
        return GaussianUpdate((y - predicted) / total, 1.0 / total)
    a = _root(predicted, weight * variance, y)
    p = _sigmoid(a)
    q = weight * p * (1.0 - p)
    return GaussianUpdate(weight * (y - p), q / (1.0 + q * variance))


def _root(predicted: float, scale: float, y: float) -> float:
    """Solve a = predicted + scale (y − σ(a)) by Newton within a bracket, bisecting where Newton is slow."""
    low, high = predicted + scale * (y - 1.0), predicted + scale * y
    a, before = predicted, high - low
    for _ in range(200):
        p = _sigmoid(a)
        error = a - predicted - scale * (y - p)
        low, high = (low, a) if error > 0 else (a, high)
        step = -error / (1.0 + scale * p * (1.0 - p))
        if not low <= a + step <= high or abs(step) > 0.5 * abs(before):
            step = 0.5 * (low + high) - a
        before = step
        a += step
        if abs(step) <= 1e-14 * max(1.0, abs(a)):
            break
    return a


def _sigmoid(a: float) -> float:
    """Compute σ(a) without overflow."""
    if a >= 0:
        return float(1.0 / (1.0 + np.exp(-a)))
    e = float(np.exp(a))
    return e / (1.0 + e)
