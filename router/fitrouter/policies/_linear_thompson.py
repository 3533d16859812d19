"""Linear Thompson sampling with computed probabilities instead of samples."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass

from fitrouter.policies._base import DECLARED, Beliefs, Positive, sound
from fitrouter.policies._normal import density_and_cdf
from fitrouter.types import Floats

_FEW, _MANY = np.linspace(0.0, 1.0, 64), np.linspace(0.0, 1.0, 201)
"""Nodes of the quadrature where the standard deviations are alike, and where they differ by orders of magnitude."""
_ALIKE = 3.2
"""Largest span of u that the few nodes cover to 1e-7."""
_REACH = 6.5
"""Standard deviations integrated on either side: 8e-11 of an arm's mass lies beyond."""
_NARROW = 1e-5
"""Smallest sd, relative to the largest relevant one: an arm of sd 0 has no density."""
_NOTHING = 1e-290
"""An sd below this counts as 0: the density would overflow."""
_AT_ONCE = 1 << 18
"""Numbers in an array of the quadrature."""
_START, _FIRST_LABELS = 0.375, 100.0
"""Share of the scale before the first label, and labels after which it is √2 of that (docs/results/ablation.md)."""


@dataclass(frozen=True, config=DECLARED)
class LinearThompson:
    """Policy with p_k = P(arm k is the best) for independent utilities N(u_j, (scale_t · sd_j)²).

    Thompson sampling draws from these probabilities implicitly; here they are computed, so that they can be logged and
    drawn from. A `scale` below 1 explores less than the posterior suggests: an installation with few labels may never
    have many, so that scale_t = scale · min(⅜ √(1 + steps / 100), 1), which is `scale` after 612 labels.
    Reference: Agrawal and Goyal (2013), "Thompson sampling for contextual bandits with linear payoffs".

    >>> beliefs = Beliefs(arms=("a", "b"), utility=np.array([0.7, 0.5]), sd=np.array([0.1, 0.1]), steps=612.0)
    >>> LinearThompson(scale=1.0).propose(beliefs).round(4).tolist()
    [0.9214, 0.0786]
    """

    scale: Positive = 0.4
    """Multiplier of the posterior standard deviations after 612 labels; three eighths of it at the start."""

    name: ClassVar[str] = "linear_thompson"

    def propose(self, beliefs: Beliefs) -> Floats:
        """Return the pmf over the arms, float64[K], exact to 1e-7."""
        return self.pmf(*sound(beliefs), beliefs.steps)

    def pmf(self, utility: Floats, sd: Floats, steps: float | Floats) -> Floats:
        """Return the pmfs of many requests, float64[..., K]."""
        grown = np.minimum(_START * np.sqrt(1.0 + np.maximum(steps, 0.0) / _FIRST_LABELS), 1.0)
        return argmax_pmf(utility, self.scale * grown * sd)


def argmax_pmf(mean: Floats, sd: Floats) -> Floats:
    """Compute P(k = argmax_j X_j) for independent X_j ~ N(mean_j, sd_j²), all finite, sd ≥ 0, float64[..., K].

    p_k = ∫ φ_k(t) Π_{j≠k} Φ_j(t) dt = ∫ Π_j Φ_j(t) · (φ_k / Φ_k)(t) dt by the trapezoidal rule. Let L be the highest
    of the arms' lower ends m_j − 6.5 s_j. The maximum lies above L, so arms whose upper end is below L are excluded,
    and every remaining arm straddles L: at a distance t above L no density is narrower than t / 13. So the nodes are
    L + r (eᵘ − 1) with u evenly spaced, as dense as the narrowest density at L and sparser above: at most 201 nodes
    resolve sds that differ by 1e5, where an even grid would need millions. The integrand and all its derivatives
    vanish at both ends, so that the trapezoidal rule converges exponentially (Trefethen and Weideman, 2014, "The
    exponentially convergent trapezoidal rule"). The error is below 1e-7; tied arms of sd 0 share equally.
    """
    shape = mean.shape
    mean, sd = mean.reshape(-1, shape[-1]), sd.reshape(-1, shape[-1])
    mean = mean - np.maximum.reduce(mean, axis=1, keepdims=True)
    reach = _REACH * sd
    lower, upper = mean - reach, mean + reach
    low = np.maximum.reduce(lower, axis=1, keepdims=True)
    narrow, widest = (each.reduce(sd, axis=1, keepdims=True) for each in (np.minimum, np.maximum))
    sound = (
        (narrow >= _NOTHING) & (narrow >= _NARROW * widest) & (np.minimum.reduce(upper, axis=1, keepdims=True) >= low)
    )
    if shape[-1] > 1 and np.logical_and.reduce(sound[:, 0]):
        return _by_nodes(mean, sd, None, low, np.maximum.reduce(upper, axis=1, keepdims=True), narrow).reshape(shape)
    # Rows with arms that are out of reach, or nearly certain.
    alive = upper >= low
    best = mean == 0.0
    pmf: Floats = best / best.sum(axis=1, keepdims=True)
    widest = np.where(alive, sd, 0.0).max(axis=1, keepdims=True)
    doubtful = (widest[:, 0] >= _NOTHING) & (alive.sum(axis=1) > 1)
    if doubtful.any():
        mean, alive = mean[doubtful], alive[doubtful]
        sd = np.maximum(sd[doubtful], _NARROW * widest[doubtful])
        lower, upper = (np.where(alive, mean + side * sd, -np.inf) for side in (-_REACH, _REACH))
        low, high = lower.max(axis=1, keepdims=True), upper.max(axis=1, keepdims=True)
        narrow = np.where(alive, sd, np.inf).min(axis=1, keepdims=True)
        pmf[doubtful] = _by_nodes(mean, sd, alive, low, high, narrow)
    return pmf.reshape(shape)


def _by_nodes(
    mean: Floats, sd: Floats, alive: NDArray[np.bool_] | None, low: Floats, high: Floats, narrow: Floats
) -> Floats:
    """The pmfs of rows float64[n, K] with two living arms or more, by as many nodes as each needs.

    `low` and `high` bound the integral, `narrow` is the smallest sd of the living arms: float64[n, 1] each.
    """
    r = (2.0 * _REACH) * narrow
    span = np.log1p((high - low) / r)
    alike = span[:, 0] <= _ALIKE
    if alive is None and len(mean) * mean.shape[1] * len(_FEW) <= _AT_ONCE and np.logical_and.reduce(alike):
        return _integrated(mean, sd, None, low, r, span, _FEW)
    pmf = np.empty_like(mean)
    for which, u in ((alike, _FEW), (~alike, _MANY)):
        rows = np.flatnonzero(which)
        step = max(_AT_ONCE // (len(u) * mean.shape[1]), 1)
        for at in (rows[i : i + step] for i in range(0, len(rows), step)):
            pmf[at] = _integrated(mean[at], sd[at], None if alive is None else alive[at], low[at], r[at], span[at], u)
    return pmf


def _integrated(
    mean: Floats, sd: Floats, alive: NDArray[np.bool_] | None, low: Floats, r: Floats, span: Floats, u: Floats
) -> Floats:
    """The integrals of `argmax_pmf` for rows float64[n, K] at nodes `span · u`; low, r and span are float64[n, 1]."""
    growth = np.exp(span * u)
    z = (r * (growth - 1.0))[:, None, :] + (low - mean)[:, :, None]
    z /= sd[:, :, None]
    density, cdf = density_and_cdf(z)
    if alive is not None:
        density[~alive], cdf[~alive] = 0.0, 1.0
    density /= cdf
    growth *= np.multiply.reduce(cdf, axis=1)
    density *= growth[:, None, :]
    p: Floats = np.add.reduce(density, axis=2)
    p /= sd
    p /= np.add.reduce(p, axis=1, keepdims=True)
    return p
