"""Linear Thompson sampling, with its probabilities instead of its samples."""

from __future__ import annotations

import math

import numpy as np

from fitrouter.policies._base import Beliefs, checked, sound
from fitrouter.policies._normal import normal
from fitrouter.types import Floats

GRID = 201
"""Nodes of the quadrature at most."""
_REACH = 6.5
"""Standard deviations that count on either side: beyond lies 8e-11 of an arm."""
_NARROW = 1e-5
"""An sd counts as this share of the largest one that matters at least: arms that are certain have no density."""
_NOTHING = 1e-290
"""An sd below this counts as 0: densities of such arms overflow."""
_STEP = 0.016
"""Of u."""


class LinearThompson:
    """p_k = P(arm k is the best) where arm j is worth N(u_j, (scale · sd_j)²), independently.

    Thompson sampling draws from these probabilities; here they are computed, so that they can be logged, and the one
    seeded draw is made from them. `scale` below 1 explores less than the posterior says.
    Reference: Agrawal and Goyal (2013), "Thompson sampling for contextual bandits with linear payoffs".

    >>> beliefs = Beliefs(arms=("a", "b"), utility=np.array([0.7, 0.5]), sd=np.array([0.1, 0.1]), steps=0.0)
    >>> LinearThompson(scale=1.0).propose(beliefs).round(4).tolist()
    [0.9214, 0.0786]
    """

    name = "linear_thompson"

    def __init__(self, scale: float = 0.3) -> None:
        self.scale = checked(self.name, "scale", scale)

    def propose(self, beliefs: Beliefs) -> Floats:
        """float64[K], as in the class, to 1e-7."""
        utility, sd = sound(beliefs)
        return argmax_pmf(utility, self.scale * sd)


def argmax_pmf(mean: Floats, sd: Floats) -> Floats:
    """float64[K]: P(k = argmax_j X_j) for independent X_j ~ N(mean_j, sd_j²), all finite, sd ≥ 0.

    p_k = ∫ φ_k(t) Π_{j≠k} Φ_j(t) dt = ∫ Π_j Φ_j(t) · (φ_k / Φ_k)(t) dt by the trapezoidal rule. Let L be the highest
    of the arms' lower ends m_j − 6.5 s_j. The best arm lies above L, so arms whose upper end is below L are out, and
    every arm that is left straddles L: at a distance t above L no density is narrower than t / 13. So the nodes stand
    at L + r (eᵘ − 1) with u evenly spaced, as dense as the narrowest density at L and thinner further up: 201 nodes or
    fewer resolve sds that differ by 1e5, where an even grid would need millions. The integrand and all its derivatives
    vanish at both ends, for which the trapezoidal rule converges exponentially (Trefethen and Weideman, 2014, "The
    exponentially convergent trapezoidal rule"). The error is below 1e-7; arms of sd 0 that tie share equally.
    """
    pmf = np.zeros(len(mean))
    alive = np.flatnonzero(mean + _REACH * sd >= (mean - _REACH * sd).max())
    mean, sd = mean[alive] - mean.max(), sd[alive]
    widest = float(sd.max())
    if widest < _NOTHING or len(mean) == 1:
        best = mean == mean.max()
        pmf[alive] = best / np.count_nonzero(best)
        return pmf
    sd = np.maximum(sd, _NARROW * widest)
    low = (mean - _REACH * sd).max()
    r = 2.0 * _REACH * sd.min()
    top = math.log1p(((mean + _REACH * sd).max() - low) / r)
    growth = np.exp(np.linspace(0.0, top, min(GRID, math.ceil(top / _STEP) + 2)))
    z = ((low - mean)[:, None] + r * (growth - 1.0)) / sd[:, None]
    density, cdf = normal(z)
    density /= cdf
    p = np.einsum("kg,g->k", density, cdf.prod(axis=0) * growth) / sd
    pmf[alive] = p / p.sum()
    return pmf
