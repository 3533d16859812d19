"""Builds a report's bands from confidence sequences."""

from __future__ import annotations

import numpy as np

from fitrouter.types import Floats
from fitrouter_evaluators.replay.inference.sequences import Bound, asymptotic, exact, spaced
from fitrouter_evaluators.replay.log.log import Ints
from fitrouter_evaluators.replay.report import Band

POINTS = 200
"""Maximum points of a path."""


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
    """An exact confidence sequence; streams, bounds, alpha and looks as in `sequences.exact`.

    `centre` (float64[n]: untruncated outcomes) supplies the displayed running mean, which truncation would distort.
    """
    below, above = np.atleast_2d(x_low), np.atleast_2d(x_high)
    n = below.shape[1]
    at = spaced(n, POINTS) if looks is None else looks
    shown = 0.5 * (below[-1] + above[-1]) if centre is None else centre
    means = np.cumsum(shown)[at - 1] / at
    found = exact(below, above, bound_low, bound_high, alpha=alpha, looks=at)
    return _band("exact", policy, where, sum(alpha), at, means, found.low, found.high)


def asymptotic_band(
    x: Floats, *, alpha: float, policy: str = "difference", where: str = "", looks: Ints | None = None
) -> Band:
    """An asymptotic confidence sequence for display; see `sequences.asymptotic`."""
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
