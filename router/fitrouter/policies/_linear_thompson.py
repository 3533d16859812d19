"""Linear Thompson sampling with computed probabilities instead of samples."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
from pydantic.dataclasses import dataclass

from fitrouter.policies._base import DECLARED, Beliefs, Positive, sound
from fitrouter.policies._normal import density_and_cdf
from fitrouter.types import Floats

GRID = 201
"""Most nodes of the quadrature."""
_REACH = 6.5
"""Standard deviations integrated on either side: 8e-11 of an arm's mass lies beyond."""
_NARROW = 1e-5
"""Smallest sd, relative to the largest relevant one: an arm of sd 0 has no density."""
_NOTHING = 1e-290
"""An sd below this counts as 0: the density would overflow."""
_STEP = 0.016
"""Spacing of the nodes in u."""


@dataclass(frozen=True, config=DECLARED)
class LinearThompson:
    """Policy with p_k = P(arm k is the best) for independent utilities N(u_j, (scale · sd_j)²).

    Thompson sampling draws from these probabilities implicitly; here they are computed, so that they can be logged and
    drawn from. A `scale` below 1 explores less than the posterior suggests.
    Reference: Agrawal and Goyal (2013), "Thompson sampling for contextual bandits with linear payoffs".

    >>> beliefs = Beliefs(arms=("a", "b"), utility=np.array([0.7, 0.5]), sd=np.array([0.1, 0.1]), steps=0.0)
    >>> LinearThompson(scale=1.0).propose(beliefs).round(4).tolist()
    [0.9214, 0.0786]
    """

    scale: Positive = 0.3
    """Multiplier of the posterior standard deviations."""

    name: ClassVar[str] = "linear_thompson"

    def propose(self, beliefs: Beliefs) -> Floats:
        """Return the pmf over the arms, float64[K], exact to 1e-7."""
        utility, sd = sound(beliefs)
        return argmax_pmf(utility, self.scale * sd)


def argmax_pmf(mean: Floats, sd: Floats) -> Floats:
    """Compute P(k = argmax_j X_j) for independent X_j ~ N(mean_j, sd_j²), all finite, sd ≥ 0, float64[K].

    p_k = ∫ φ_k(t) Π_{j≠k} Φ_j(t) dt = ∫ Π_j Φ_j(t) · (φ_k / Φ_k)(t) dt by the trapezoidal rule. Let L be the highest
    of the arms' lower ends m_j − 6.5 s_j. The maximum lies above L, so arms whose upper end is below L are excluded,
    and every remaining arm straddles L: at a distance t above L no density is narrower than t / 13. So the nodes are
    L + r (eᵘ − 1) with u evenly spaced, as dense as the narrowest density at L and sparser above: at most 201 nodes
    resolve sds that differ by 1e5, where an even grid would need millions. The integrand and all its derivatives
    vanish at both ends, so that the trapezoidal rule converges exponentially (Trefethen and Weideman, 2014, "The
    exponentially convergent trapezoidal rule"). The error is below 1e-7; tied arms of sd 0 share equally.
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
    density, cdf = density_and_cdf(z)
    density /= cdf
    p = np.einsum("kg,g->k", density, cdf.prod(axis=0) * growth) / sd
    pmf[alive] = p / p.sum()
    return pmf
