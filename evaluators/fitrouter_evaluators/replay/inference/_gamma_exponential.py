"""The gamma-exponential mixture: exact lower confidence limits in one pass over sums.

Howard, Ramdas, McAuliffe and Sekhon (2021), "Time-uniform, nonparametric, nonasymptotic confidence sequences":
proposition 9 is the mixture boundary, theorem 4 the empirical variance process. With predictable x̂_i and
x_i − x̂_i ≥ −c, exp(λ Σ(x_i − μ_i)/c + (log(1 − λ) + λ) Σ(x_i − x̂_i)²/c²) is a supermartingale for every λ in [0, 1)
(Fan, Grama and Liu 2015), and λ is mixed over with a gamma density. That a bound is needed on one side only is what
makes importance weighted outcomes fit (Waudby-Smith, Wu, Ramdas, Karampatziakis and Mineiro, arXiv 2210.10768).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from fitrouter.types import Floats

FINE = 1.005
"""Ratio of neighbours on the grid of intrinsic time: the boundary is at most a quarter of a percent too high."""
START = 1e-3
CHUNK = 512
"""The grid grows by so many points, so that tables are found again."""
STEPS = 40


def precision(alpha: float, v: float) -> float:
    """ρ, for a boundary that is tightest near intrinsic time v (after the reference's proposition 3)."""
    return v / (-2.0 * math.log(alpha) + math.log(1.0 - 2.0 * math.log(alpha)))


def wealth(s: Floats, v: Floats, rho: float) -> Floats:
    """Logarithm of the mixture at sum s ≥ 0 and intrinsic time v, both in units of c."""
    from scipy.special import gammainc, gammaln

    def mass(a: Floats | float, x: Floats | float) -> Floats:
        """Log γ(a, x), the lower incomplete gamma function."""
        return np.asarray(np.log(gammainc(a, x)) + gammaln(a), dtype=np.float64)

    shape, rate = v + rho, s + v + rho
    return s + v + rho * math.log(rho) - shape * np.log(rate) + mass(shape, rate) - mass(rho, rho)


def boundary(v: Floats, rho: float, alpha: float) -> Floats:
    """Sums that the process stays below at all times, with probability 1 − alpha; rounded up a little.

    Args:
        v: float64[n] ≥ 0, intrinsic times.
        rho: the mixture's precision.
        alpha: of this one side.
    """
    if not len(v):
        return np.zeros(0)
    need = math.log(max(float(v.max()), START) / START) / math.log(FINE)
    grid, sums = _table(rho, alpha, CHUNK * (int(need + 2) // CHUNK + 1))
    return np.asarray(sums[np.searchsorted(grid, v)], dtype=np.float64)


@lru_cache(maxsize=64)
def _table(rho: float, alpha: float, points: int) -> tuple[Floats, Floats]:
    """The grid of intrinsic times and the boundary at each, by Newton's method.

    The logarithm of the mixture is convex in s: steps from the right of the root stay there. The start is beyond it as
    the sub-gamma boundary for a single λ is wider, with room for the mixture's weights.
    """
    from scipy.special import gammainc, gammaln

    grid = START * FINE ** np.arange(points, dtype=np.float64)
    need = -math.log(alpha)
    s = np.sqrt(2.0 * need * (grid + rho)) + need + 1.0
    while (short := wealth(s, grid, rho) < need).any():
        s = np.where(short, 2.0 * s, s)
    for _ in range(STEPS):
        shape, rate = grid + rho, s + grid + rho
        density = np.exp((shape - 1.0) * np.log(rate) - rate - np.log(gammainc(shape, rate)) - gammaln(shape))
        step = (wealth(s, grid, rho) - need) / (1.0 - shape / rate + density)
        s = s - np.maximum(step, 0.0)
        if float(np.abs(step).max()) < 1e-10:
            break
    return grid, s


def lower(x: Floats, bound: float, cap: float, alpha: float, v: float) -> Floats:
    """Lower limits of the running mean of the conditional means, after every observation.

    Args:
        x: float64[n] ≥ −bound.
        bound: positive.
        cap: x̂_i, the mean so far, is cut here; c = bound + cap.
        alpha: of this one side.
        v: Σ(x_i − x̂_i)² near which it is tightest.

    Returns:
        float64[n].
    """
    t = np.arange(1.0, len(x) + 1.0)
    sums = np.cumsum(x)
    centre = np.clip((0.5 * cap + sums - x) / t, -bound, cap)
    scale = bound + cap
    spread = np.cumsum(np.square((x - centre) / scale))
    limit = (sums - scale * boundary(spread, precision(alpha, v / scale**2), alpha)) / t
    return np.maximum(limit, -bound)
