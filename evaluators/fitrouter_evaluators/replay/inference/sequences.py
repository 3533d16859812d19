"""Confidence sequences: limits valid at all times at once, however often one looks.

For a stream x_1 … x_n in order of time, such as doubly robust outcomes, the estimand is the running mean of the
conditional means, (1/t) Σ_{i≤t} E[x_i | past]. It may drift and depend on the past, as under a learning logging
policy. Limits at t use the first t observations only.

* `exact`, for decisions: covers at every n; needs a lower bound on outcomes known beforehand.
* `asymptotic`, for display: needs no bound; covers as n grows.

With outcomes in [0, 1] and an outcome model truncated so that x ≥ −k, a large k costs width at few observations and a
small one at many. Rows of one stream truncated at different bounds are combined: `BOUNDS` for the value of a policy do
well from 50 units to 100,000, whatever the weights, and `PAIRED_BOUNDS` for the difference of two.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import numpy as np

from fitrouter.errors import InvalidLog
from fitrouter.types import Floats
from fitrouter_evaluators.replay.inference import _betting
from fitrouter_evaluators.replay.log.log import Ints
from fitrouter_evaluators.replay.report import Band

Bound: TypeAlias = float | Floats
BOUNDS = (2.0, 16.0, 128.0)
"""Truncation bounds of outcomes in [0, 1] for the value of a policy (docs/results/replay_intervals.md)."""
PAIRED_BOUNDS = (1.0, 4.0, 16.0)
"""Truncation bounds for the difference of two policies."""
ROUNDING = 1e-9
"""Relative tolerance of a bound."""


class Sequence(NamedTuple):
    """A confidence sequence at L looks."""

    mean: Floats
    """The running mean, float64[L]."""
    low: Floats
    high: Floats
    at: Ints
    """Observations seen at each look, int64[L]."""


def spaced(n: int, points: int = 40, first: int = 50) -> Ints:
    """Choose up to `points` looks from `first` to n, evenly spaced on a logarithmic scale."""
    if n <= 0:
        return np.zeros(0, dtype=np.int64)
    return np.unique(np.geomspace(min(first, n), n, points).round().astype(np.int64))


def asymptotic(x: Floats, *, alpha: float = 0.05, at: float = 2000.0, looks: Ints | None = None) -> Sequence:
    """Compute a two-sided asymptotic confidence sequence, tightest near `at` observations; looks as in `exact_lower`.

    Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas (2024), theorem 2.2, and 2.5 for drifting means. It covers as n
    grows, under the moments of a martingale central limit theorem. Rare large weights make it too narrow at first:
    their variance is not seen before they occur.
    """
    _level(alpha)
    x = _finite(np.asarray(x, dtype=np.float64)[None])[0]
    when = _looks(looks, len(x))
    t = when.astype(np.float64)
    # Squares about the first observation keep their digits where the mean is large beside the spread.
    apart = x - x[0] if len(x) else x
    mean = np.cumsum(apart)[when - 1] / t
    spread = np.maximum(np.cumsum(np.square(apart))[when - 1] - t * np.square(mean), 0.0)
    variance = np.full(len(t), math.inf)
    np.divide(spread, t - 1.0, out=variance, where=t > 1.0)
    scale = (-2.0 * math.log(alpha) + math.log(1.0 - 2.0 * math.log(alpha))) / at
    grown = t * scale + 1.0
    half = np.sqrt(variance * 2.0 * grown / (t * t * scale) * np.log(np.sqrt(grown) / alpha))
    centre = mean + (x[0] if len(x) else 0.0)
    return Sequence(centre, centre - half, centre + half, when)


def exact_lower(x: Floats, bound: Bound, *, alpha: float = 0.025, looks: Ints | None = None) -> Floats:
    """Compute exact lower limits of the running mean of conditional means, which may drift, float64[L]; see `_betting`.

    Args:
        x: float64[n], or float64[g, n]: g outcomes of every unit with the same conditional mean.
        bound: x ≥ −bound, known before the first observation; positive; one number, or float64[g]. It may be larger
            than needed. 1 suits non-negative importance-weighted outcomes.
        alpha: of this side.
        looks: int64[L], ascending, within 1 … n; None: after every observation.

    Raises:
        InvalidLog: an observation is below its bound, or not finite.
    """
    rows, bounds, when = checked_stream(x, bound, alpha, looks)
    return _betting.lower(rows, bounds, alpha, when)


def exact(
    x_low: Floats,
    x_high: Floats,
    bound_low: Bound,
    bound_high: Bound,
    *,
    alpha: float | tuple[float, float] = 0.05,
    within: tuple[float, float] = (-math.inf, math.inf),
    looks: Ints | None = None,
) -> Sequence:
    """Compute an exact confidence sequence.

    Args:
        x_low: float64[n] or float64[g, n] ≥ −bound_low.
        x_high: the same means, with x_high ≤ bound_high. For the value of a policy with outcomes in [0, 1] it is 1 − z,
            with z ≥ −k the lower outcome of 1 − y, so that bound_high = 1 + k; for a difference of two it is −z, and k.
        bound_low: as in `exact_lower`.
        bound_high: likewise.
        alpha: of both sides together, half for each; or (of the lower limit, of the upper).
        within: known range of the mean.
        looks: int64[L], ascending, within 1 … n; None: after every observation.

    Raises:
        InvalidLog: an observation is beyond its bound, or not finite.
    """
    shares = alpha if isinstance(alpha, tuple) else (0.5 * alpha, 0.5 * alpha)
    for share in shares:
        _level(share)
    lows, below = _rows(x_low, bound_low)
    highs, above = _rows(x_high, bound_high, upper=True)
    mean = 0.5 * (lows.mean(axis=0) + highs.mean(axis=0))
    when = _looks(looks, len(mean))
    low = _betting.lower(lows, below, shares[0], when)
    high = -_betting.lower(-highs, above, shares[1], when)
    running = np.cumsum(mean)[when - 1] / when
    return Sequence(running, np.clip(low, *within), np.clip(high, *within), when)


def checked_stream(x: Floats, bound: Bound, alpha: float, looks: Ints | None) -> tuple[Floats, Floats, Ints]:
    """Validate a stream; return outcomes float64[g, n], bounds float64[g] and looks int64[L]."""
    _level(alpha)
    rows, bounds = _rows(x, bound)
    return rows, bounds, _looks(looks, rows.shape[1])


def _level(alpha: float) -> None:
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"alpha is {alpha}; it must be between 0 and 1")


def _looks(looks: Ints | None, n: int) -> Ints:
    if looks is None:
        return np.arange(1, n + 1, dtype=np.int64)
    when = np.asarray(looks, dtype=np.int64)
    if len(when) and (when[0] < 1 or when[-1] > n or (np.diff(when) <= 0).any()):
        raise ValueError(f"looks are {when}: ascending counts of observations between 1 and {n} are needed")
    return when


def _rows(x: Floats, bound: Bound, *, upper: bool = False) -> tuple[Floats, Floats]:
    """Check that x ≥ −bound (x ≤ bound if `upper`); return x as float64[g, n] and the bounds as float64[g]."""
    rows = np.atleast_2d(np.asarray(x, dtype=np.float64))
    bounds = np.atleast_1d(np.asarray(bound, dtype=np.float64))
    if bounds.shape != rows.shape[:1]:
        raise ValueError(f"{len(rows)} streams came with {bounds.size} bounds; give one bound for each row of x")
    if not (np.isfinite(bounds) & (bounds > 0.0)).all():
        raise ValueError(f"bounds are {bounds}: they must be positive and finite")
    side, sign = ("above", 1.0) if upper else ("below", -1.0)
    for row, edge in zip(_finite(rows), bounds, strict=True):
        limit = edge * (1.0 + ROUNDING)
        if len(row) and (row.max() if upper else -row.min()) > limit:
            where = int(np.argmax(sign * row > limit))
            raise InvalidLog(
                f"observation {where} is {row[where]:.6g}, {side} its bound of {sign * edge:.6g}: limits would be "
                "wrong. Truncate the outcome model, or give a bound that was known before the first observation"
            )
    return rows, bounds


def _finite(rows: Floats) -> Floats:
    for row in rows:
        if len(row) and not (math.isfinite(row.min()) and math.isfinite(row.max())):
            where = int(np.argmin(np.isfinite(row)))
            raise InvalidLog(f"observation {where} is {row[where]}: leave out units without an outcome")
    return rows


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
    """Compute an exact confidence sequence as a `Band`; streams, bounds, alpha and looks as in `sequences.exact`.

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
    """Compute an asymptotic confidence sequence as a `Band`, for display; see `sequences.asymptotic`."""
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
