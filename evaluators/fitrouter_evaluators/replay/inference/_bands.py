"""From sequences to the bands of a report."""

from __future__ import annotations

import numpy as np

from fitrouter.types import Floats
from fitrouter_evaluators.replay.inference.sequences import Bound, asymptotic, exact_lower, spaced
from fitrouter_evaluators.replay.log.log import Ints
from fitrouter_evaluators.replay.report import Band

POINTS = 200
"""Of a path, at most."""


def exact_band(
    x_low: Floats,
    x_high: Floats,
    bound_low: Bound,
    bound_high: Bound,
    *,
    alpha: tuple[float, float],
    policy: str = "difference",
    where: str = "",
    centre: Floats | None = None,
    looks: Ints | None = None,
) -> Band:
    """An exact confidence sequence; see `fitrouter_evaluators.replay.inference.sequences.exact`.

    Args:
        x_low: float64[n] or float64[g, n] ≥ −bound_low.
        x_high: the same means, ≤ bound_high.
        bound_low: known before the first observation.
        bound_high: likewise.
        alpha: of the lower and of the upper limit.
        policy: what it is about.
        where: slice.
        centre: float64[n], the outcomes as they are, whose running mean is shown; the cut ones where None, which are
            off the mark by luck where a bound is tight.
        looks: int64[L], ascending; up to 200 points of the path where None.
    """
    below, above = np.atleast_2d(x_low), np.atleast_2d(x_high)
    n = below.shape[1]
    at = spaced(n, POINTS) if looks is None else looks
    shown = 0.5 * (below[-1] + above[-1]) if centre is None else centre
    means = np.cumsum(shown)[at - 1] / at
    lows = exact_lower(below, bound_low, alpha=alpha[0], looks=at)
    highs = -exact_lower(-above, bound_high, alpha=alpha[1], looks=at)
    return _band("exact", policy, where, sum(alpha), at, means, lows, highs)


def asymptotic_band(
    x: Floats, *, alpha: float, policy: str = "difference", where: str = "", looks: Ints | None = None
) -> Band:
    """An asymptotic confidence sequence for display; see `fitrouter_evaluators.replay.inference.sequences.asymptotic`.

    Args:
        x: float64[n].
        alpha: of both sides together.
        policy: what it is about.
        where: slice.
        looks: int64[L], ascending; up to 200 points of the path where None.
    """
    at = spaced(len(x), POINTS) if looks is None else looks
    found = asymptotic(x, alpha=alpha, looks=at)
    return _band("asymptotic", policy, where, alpha, at, found.mean, found.low, found.high)


def _band(
    kind: str, policy: str, where: str, alpha: float, at: Ints, means: Floats, lows: Floats, highs: Floats
) -> Band:
    return Band(
        policy=policy,
        kind=kind,
        value=float(means[-1]),
        low=float(lows[-1]),
        high=float(highs[-1]),
        slice=where,
        n=int(at[-1]),
        alpha=alpha,
        at=at.tolist(),
        means=means.tolist(),
        lows=lows.tolist(),
        highs=highs.tolist(),
    )
