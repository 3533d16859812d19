"""Discrete prior over users' taste scale and noise, learned by EM.

    w_u ~ N(μ_u, s² Σ),  noise variance r² σ²,  (s, r) ~ π on a grid

With one s for all, a Gaussian prior shrinks every user by the same factor: average users follow noise, and unusual ones
are held back. With π learned from training users, a user's labels determine their own shrinkage (a scale mixture;
Laird 1978, Kiefer and Wolfowitz 1956). The posterior is a mixture, of which two moments are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fitrouter.posterior.gaussian import Gaussian
from fitrouter.types import Floats
from fitrouter_evaluators.training.hierarchy import Observations, Prior

_SPREAD = np.array([0.05, 0.25, 0.6, 1.0, 1.6, 2.5])
"""s²"""
_NOISE = np.array([0.4, 0.7, 1.0, 1.5, 2.2])
"""r²"""
_ITERATIONS = 30
_S, _R = (grid.ravel() for grid in np.meshgrid(_SPREAD, _NOISE, indexing="ij"))


class Scales(NamedTuple):
    """Weights π of a grid over taste scale and noise, float64[30]."""

    weight: Floats

    @classmethod
    def fit(cls, prior: Prior, users: Sequence[Observations], declared: Floats | None) -> Scales:
        """Fit π to the labels of users."""
        parts = []
        for i, user in enumerate(users):
            if len(user.y):
                away = user.y - user.X @ prior.centre(None if declared is None else declared[i])
                parts.append(_basis(user.X @ prior.cov @ user.X.T, away))
        return cls.fit_parts([(values, z) for values, z, _ in parts], prior.noise)

    @classmethod
    def fit_parts(cls, parts: Sequence[tuple[Floats, Floats]], noise: float) -> Scales:
        """Fit π by EM to each user's labels z, in the basis where their covariance is values + noise.

        A uniform pseudo-count of five users keeps every cell possible.
        """
        weight = np.full(len(_S), 1.0 / len(_S))
        if not parts:
            return cls(weight)
        log = np.array([_evidence(values, z, noise) for values, z in parts])
        for _ in range(_ITERATIONS):
            share = _normal(log + np.log(weight))
            weight = (share.sum(axis=0) + 5.0 / len(_S)) / (len(log) + 5.0)
        return cls(weight)

    def posterior(self, prior: Prior, labels: Observations, declared: Floats | None = None) -> tuple[Gaussian, float]:
        """Posterior of a user's taste, and mean variance of their noise."""
        centre = prior.centre(declared)
        gain = prior.cov @ labels.X.T
        values, z, vectors = _basis(labels.X @ gain, labels.y - labels.X @ centre)
        share = _normal(_evidence(values, z, prior.noise) + np.log(self.weight))
        shrink = _S[:, None] / (_S[:, None] * values + _R[:, None] * prior.noise)  # [cells, n]
        along = gain @ vectors  # [D, n]
        means = (shrink * z) @ along.T  # [cells, D]
        mean = share @ means
        kept = (share * _S) @ shrink
        cov = float(share @ _S) * prior.cov - (along * kept) @ along.T
        apart = means - mean
        cov = cov + (apart * share[:, None]).T @ apart
        return Gaussian(centre + mean, (cov + cov.T) / 2.0), float(share @ _R) * prior.noise


def _basis(K: Floats, y: Floats) -> tuple[Floats, Floats, Floats]:
    """Eigenvalues of K, the coordinates of y in the eigenbasis, and the basis itself."""
    values, vectors = np.linalg.eigh(K)
    return np.maximum(values, 0.0), vectors.T @ y, vectors


def _evidence(values: Floats, z: Floats, noise: float) -> Floats:
    """Log evidence of a user's labels at each grid cell, up to a constant; values and z are in the basis of X Σ Xᵀ."""
    variance = _S[:, None] * values + _R[:, None] * noise
    out: Floats = -0.5 * (np.log(variance) + z**2 / variance).sum(axis=1)
    return out


def _normal(log: Floats) -> Floats:
    weight = np.exp(log - log.max(axis=-1, keepdims=True))
    out: Floats = weight / weight.sum(axis=-1, keepdims=True)
    return out
