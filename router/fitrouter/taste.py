"""Tastes: what people like in an answer's text, as Gaussians that one kernel updates.

A taste is a vector w over response features h; the score of an answer is hᵀw. w is a sum of blocks, population + role +
user, each with its own Gaussian N(m, S) and independent priors, so that a new user starts at the role and a new role at
the population. A label is one observation along h, and the exact posterior of a single observation has closed form
(Gaussian) or one scalar root (logistic), see `innovate`.

Folds use this module, so it is numpy ufuncs and einsum in float64 only: the same events give the same bits on one
build.
"""

from __future__ import annotations

import numpy as np

from fitrouter.types import Floats

__all__ = ["Gaussian", "Innovation", "innovate"]


class Gaussian:
    """N(mean, cov) over float64[D]. Updates replace the arrays, so that a reader in another thread sees old or new."""

    __slots__ = ("cov", "mean")

    def __init__(self, mean: Floats, cov: Floats) -> None:
        self.mean = mean
        self.cov = cov

    @classmethod
    def prior(cls, mean: Floats, variance: Floats) -> Gaussian:
        """Independent coordinates: both arguments are float64[D]."""
        return cls(mean.copy(), np.diag(variance).astype(np.float64))

    def gain(self, h: Floats) -> Floats:
        """float64[D]: s = S h."""
        s: Floats = np.einsum("ij,j->i", self.cov, h)
        return s

    def learn(self, gain: Floats, innovation: Innovation) -> None:
        """Move along S h by an innovation that `innovate` computed over all blocks."""
        self.mean = self.mean + gain * innovation.step
        self.cov = self.cov - np.multiply.outer(gain, gain) * innovation.shrink

    def valid(self) -> bool:
        """Every number is finite and no variance is negative."""
        return bool(np.isfinite(self.mean).all() and np.isfinite(self.cov).all() and (np.diag(self.cov) >= 0).all())


class Innovation:
    """How far one observation moves every block: m += (S h)·step, S −= (S h)(S h)ᵀ·shrink."""

    __slots__ = ("shrink", "step")

    def __init__(self, step: float, shrink: float) -> None:
        self.step = step
        self.shrink = shrink


def innovate(
    predicted: float, variance: float, y: float, *, noise: float | None = None, weight: float = 1.0
) -> Innovation:
    """The exact posterior of one observation of a = Σ hᵀm, var(a) = Σ hᵀS h over independent blocks.

    With `noise` (σ²) the observation is Gaussian: step = (y − a₀) / (σ²/ρ + v), shrink = 1 / (σ²/ρ + v). Without, it
    is logistic: a solves a = a₀ + ρ v (y − σ(a)) and the Laplace posterior at it has step = ρ (y − p),
    shrink = q / (1 + q v), q = ρ p (1 − p).

    Args:
        predicted: a₀, the mean before the label.
        variance: v ≥ 0, its variance before the label.
        y: the label, in [0, 1] for the logistic observation.
        noise: σ² of a Gaussian observation; None for a logistic one.
        weight: ρ > 0, how many observations this one counts for.
    """
    if noise is not None:
        total = noise / weight + variance
        return Innovation((y - predicted) / total, 1.0 / total)
    a = _root(predicted, weight * variance, y)
    p = _sigmoid(a)
    q = weight * p * (1.0 - p)
    return Innovation(weight * (y - p), q / (1.0 + q * variance))


def _root(predicted: float, scale: float, y: float) -> float:
    """The a with a = predicted + scale (y − σ(a)): Newton inside a bracket, bisecting where Newton is slow."""
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
    """σ(a) without overflow."""
    if a >= 0:
        return float(1.0 / (1.0 + np.exp(-a)))
    e = float(np.exp(a))
    return e / (1.0 + e)
