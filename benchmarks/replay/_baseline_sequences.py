"""Other confidence sequences, as baselines for the exact one, and one sequence for each slice of a stream.

Gamma-exponential mixture: Howard, Ramdas, McAuliffe and Sekhon (2021), "Time-uniform, nonparametric, nonasymptotic
confidence sequences": proposition 9 is the mixture boundary, theorem 4 the empirical variance process. With predictable
x̂_i and x_i − x̂_i ≥ −c, exp(λ Σ(x_i − μ_i)/c + (log(1 − λ) + λ) Σ(x_i − x̂_i)²/c²) is a supermartingale for every λ in
[0, 1) (Fan, Grama and Liu 2015), and λ is mixed over with a gamma density.

Empirical Bernstein (predictable plug-in, closed form, for a constant mean): Waudby-Smith and Ramdas (2024, theorem 2);
for importance-weighted outcomes, which have a lower bound only, Waudby-Smith, Wu, Ramdas, Karampatziakis and Mineiro
(arXiv 2210.10768).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fitrouter.types import Floats
from fitrouter_evaluators.replay.inference.sequences import Sequence, checked_stream, spaced
from fitrouter_evaluators.replay.log.log import Ints

FINE = 1.005
"""Ratio of neighbours on the grid of intrinsic time: the boundary is at most a quarter of a percent too high."""
START = 1e-3
CHUNK = 512
"""The grid grows by so many points, so that tables are found again."""
STEPS = 40


def precision(alpha: float, v: float) -> float:
    """Return the mixture's precision ρ whose boundary is tightest near intrinsic time v (after proposition 3)."""
    return v / (-2.0 * math.log(alpha) + math.log(1.0 - 2.0 * math.log(alpha)))


def wealth(s: Floats, v: Floats, rho: float) -> Floats:
    """Return the logarithm of the mixture at sum s ≥ 0 and intrinsic time v, both in units of c."""
    from scipy.special import gammainc, gammaln

    def mass(a: Floats | float, x: Floats | float) -> Floats:
        """Return log γ(a, x), the lower incomplete gamma function."""
        return np.asarray(np.log(gammainc(a, x)) + gammaln(a), dtype=np.float64)

    shape, rate = v + rho, s + v + rho
    return s + v + rho * math.log(rho) - shape * np.log(rate) + mass(shape, rate) - mass(rho, rho)


def boundary(v: Floats, rho: float, alpha: float) -> Floats:
    """Return sums that the process stays below at all times, with probability 1 − alpha; rounded up a little.

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
    """Compute a grid of intrinsic times and the boundary at each, by Newton's method.

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


def _gamma_exponential(x: Floats, bound: float, cap: float, alpha: float, v: float) -> Floats:
    """Return lower limits of the running mean of the conditional means, after every observation.

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


LARGEST = 0.5
"""Of λ_i, in shares of the largest that cannot ruin."""


def _empirical_bernstein(x: Floats, bound: float, cap: float, alpha: float) -> Floats:
    """Return lower limits of a constant mean, after every observation.

    Args:
        x: float64[n] ≥ −bound.
        bound: positive.
        cap: the predictable centre is cut here.
        alpha: of this one side.

    Returns:
        float64[n].
    """
    t = np.arange(1.0, len(x) + 1.0)
    scale = bound + cap
    z = (x + bound) / scale
    prior, most = (0.5 * cap + bound) / scale, 1.0
    sums = np.cumsum(z)
    centre = np.minimum((prior + sums - z) / t, most)
    squares = np.square(z - np.minimum((prior + sums) / (t + 1.0), most))
    variance = (0.25 / scale + np.cumsum(squares) - squares) / t
    need = -math.log(alpha)
    bet = np.minimum(np.sqrt(2.0 * need / (variance * t * np.log1p(t))), LARGEST)
    paid = np.square(z - centre) * (-np.log1p(-bet) - bet)
    limit = (np.cumsum(bet * z) - need - np.cumsum(paid)) / np.cumsum(bet)
    return np.asarray(np.maximum(scale * limit - bound, -bound), dtype=np.float64)


def gamma_exponential_lower(
    x: Floats, bound: float, *, alpha: float = 0.025, cap: float = 1.0, at: float = 2000.0, looks: Ints | None = None
) -> Floats:
    """Return lower limits by the gamma-exponential mixture: the estimand of `exact_lower`, wider, one pass.

    Args:
        x: float64[n] ≥ −bound.
        bound: positive.
        alpha: of this side.
        cap: what the mean is not expected to exceed. Any number is valid.
        at: Σ(x − mean)² near which it is tightest.
        looks: int64[L], ascending, within 1 … n; None: after every observation.
    """
    rows, bounds, when = checked_stream(x, bound, alpha, looks)
    return _gamma_exponential(rows[0], float(bounds[0]), cap, alpha, at)[when - 1]


def empirical_bernstein_lower(
    x: Floats, bound: float, *, alpha: float = 0.025, cap: float = 1.0, looks: Ints | None = None
) -> Floats:
    """Return lower limits by predictable plug-in bets, for a conditional mean that does not change.

    Args:
        x: float64[n] ≥ −bound.
        bound: positive.
        alpha: of this side.
        cap: what the mean is not expected to exceed. Any number is valid.
        looks: int64[L], ascending, within 1 … n; None: after every observation.
    """
    rows, bounds, when = checked_stream(x, bound, alpha, looks)
    return _empirical_bernstein(rows[0], float(bounds[0]), cap, alpha)[when - 1]


class Path(NamedTuple):
    """The confidence sequence of one slice of a stream."""

    sequence: Sequence
    rows: Ints
    """int64[L]: position in the whole stream of the last observation seen at each look."""


def by_slice(
    of: Callable[[Ints, Ints], Sequence], slices: Ints, n_slices: int, *, points: int = 40, first: int = 50
) -> list[Path]:
    """Compute a confidence sequence for each slice. Divide alpha by their number where all are to hold together.

    Args:
        of: (rows, looks) → Sequence of these observations, as in
            `lambda rows, looks: exact(x_low.take(rows, axis=-1), x_high.take(rows, axis=-1), 16.0, 17.0, looks=looks)`.
        slices: int64[n]: slice of each observation, −1 for none.
        n_slices: S.
        points: looks, `spaced` over the observations of each slice.
        first: the first of them.

    Returns:
        S paths, empty where a slice is.
    """
    if len(slices) and not -1 <= slices.min() <= slices.max() < n_slices:
        raise ValueError(f"slices are {slices.min()} to {slices.max()}: codes from 0 to {n_slices - 1}, or −1 for none")
    # Small integers are sorted by their digits.
    code = slices.astype(np.int16) if n_slices < 1 << 15 else slices
    order = np.argsort(code, kind="stable")
    edges = np.searchsorted(code[order], np.arange(n_slices + 1))
    paths = []
    for s in range(n_slices):
        rows = order[edges[s] : edges[s + 1]]
        looks = spaced(len(rows), points, first)
        paths.append(Path(of(rows, looks), rows[looks - 1]))
    return paths
