"""Intervals for a single look: delta method and cluster bootstrap, for several slices at once.

They are not valid for repeated looks; `sequences` is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fitrouter.errors import ConfigError
from fitrouter.types import Floats
from fitrouter_evaluators.replay.estimators import Estimator
from fitrouter_evaluators.replay.estimators._quantiles import student
from fitrouter_evaluators.replay.estimators.rounds import Rounds
from fitrouter_evaluators.replay.inference._cells import Cells, cells_of
from fitrouter_evaluators.replay.log.log import Ints

BAGS = 4096
"""More clusters than this are resampled in bags; the standard error is then known to 1/√(2 · 4096) = 1.1%."""
_CHUNK = 1 << 21
"""Resampling weights made at a time."""


class Interval(NamedTuple):
    """Estimates of S slices with intervals."""

    value: Floats
    """float64[S]; NaN if there are no units or their weights sum to zero."""
    se: Floats
    """Standard error, float64[S]; NaN, as both limits, for fewer than two clusters."""
    low: Floats
    high: Floats
    """Limits, each exceeded with probability α/2, float64[S]."""
    n: Ints
    """Units, int64[S]."""


def deltas(
    estimators: Sequence[Estimator],
    rounds: Rounds,
    *,
    cluster: Ints | None = None,
    slices: Ints | None = None,
    n_slices: int = 1,
    alpha: float = 0.05,
) -> list[Interval]:
    """Values, standard errors and limits by the delta method, robust to dependence within clusters.

    With x̄ a slice's mean columns and g the gradient there, a cluster of m units with sums X moves the estimate by
    φ = g · (X − m x̄) / n. The variance is G / (G − 1) Σ φ² over the G clusters of the slice, and limits are Student's
    with G − 1 degrees of freedom (corrections for few clusters). Liang and Zeger (1986), "Longitudinal data analysis
    using generalized linear models".

    Args:
        estimators: smooth functions of mean columns.
        rounds: n units.
        cluster: int64[n], codes from 0: units of one cluster may depend on each other; None: all are independent.
        slices: int64[n], codes from 0 to n_slices − 1, or −1 for none; None: one slice of all units.
        n_slices: S.
        alpha: error probability of each slice's interval; corrections for several slices are the caller's.
    """
    cells = cells_of(len(rounds.reward), cluster, slices, n_slices)
    quantile = student(1.0 - _checked(alpha) / 2.0, cells.clusters.astype(np.float64) - 1.0)
    return [_delta(estimator, rounds, cells, quantile) for estimator in estimators]


def _delta(estimator: Estimator, rounds: Rounds, cells: Cells, quantile: Floats) -> Interval:
    sums = cells.sums(estimator.moments(rounds))
    means = cells.means(sums)
    value, gradient = estimator.value(means), estimator.gradient(means)
    centre = (gradient * means).sum(axis=-1)
    se = np.full(len(value), np.nan)
    for s, clusters in enumerate(cells.clusters):
        if clusters > 1:
            own = slice(cells.edges[s], cells.edges[s + 1])
            # Many small sums: einsum wakes no threads.
            influence = np.einsum("c,cg->g", gradient[s], sums[:, own]) - centre[s] * cells.size[own]
            squares = np.einsum("g,g->", influence, influence)
            se[s] = np.sqrt(squares * clusters / (clusters - 1.0)) / cells.n[s]
    return Interval(value, se, value - quantile * se, value + quantile * se, cells.n)


def bootstraps(
    estimators: Sequence[Estimator],
    rounds: Rounds,
    *,
    cluster: Ints | None = None,
    slices: Ints | None = None,
    n_slices: int = 1,
    alpha: float = 0.05,
    replicates: int = 2000,
    seed: int = 0,
) -> list[Interval]:
    """Values, standard errors and percentile limits from resampled clusters; arguments as in `deltas`.

    Each slice resamples its own clusters. More than `BAGS` clusters are dealt at random into that many bags and bags
    are resampled (random groups, Wolter 2007, "Introduction to variance estimation", ch. 2), which keeps expectation,
    variance and skewness. Replicates whose weights sum to zero are left out. There is no correction for few clusters:
    below some thirty, prefer `deltas`.
    """
    if replicates < 2:
        raise ConfigError(f"bootstrap: {replicates} replicates; at least 2 are needed, some thousands are usual")
    cells = cells_of(len(rounds.reward), cluster, slices, n_slices)
    alpha = _checked(alpha)
    bag, start = _bags(cells.clusters, seed)
    bagged, means, ends = [np.bincount(bag, cells.size, start[-1])], [], [1]
    for estimator in estimators:
        sums = cells.sums(estimator.moments(rounds))
        means.append(cells.means(sums))
        bagged += [np.bincount(bag, column, start[-1]) for column in sums]
        ends.append(len(bagged))
    totals = _resampled(np.stack(bagged, axis=-1, dtype=np.float64), start, replicates, seed)
    found = []
    for estimator, mean, first, last in zip(estimators, means, ends[:-1], ends[1:], strict=True):
        with np.errstate(divide="ignore", invalid="ignore"):
            values = estimator.value(totals[..., first:last] / totals[..., :1])
        values[cells.clusters < 2] = np.nan
        se, low, high = np.array([_spread(v, alpha) for v in values]).T
        found.append(Interval(estimator.value(mean), se, low, high, cells.n))
    return found


def _bags(clusters: Ints, seed: int) -> tuple[Ints, Ints]:
    """Assign each slice's cells to at most `BAGS` bags: each cell's bag, int64[G], slices' first bags, int64[S + 1]."""
    start = np.concatenate(([0], np.cumsum(np.minimum(clusters, BAGS))))
    bag = [
        first + np.random.default_rng((seed, 0)).permutation(count) % max(min(count, BAGS), 1)
        for first, count in zip(start[:-1], clusters, strict=True)
    ]
    return np.concatenate(bag), start


def _resampled(bagged: Floats, start: Ints, replicates: int, seed: int) -> Floats:
    """Bootstrap totals over bags, drawn with replacement within each slice, float64[S, replicates, c]."""
    counts = np.diff(start)
    totals = np.zeros((len(counts), replicates, bagged.shape[1]))
    for count in np.unique(counts[counts > 0]):
        rng = np.random.default_rng((seed, int(count)))
        step = max(_CHUNK // int(count), 1)
        for first in range(0, replicates, step):
            rows = min(step, replicates - first)
            drawn = rng.integers(0, count, (rows, count))
            drawn += np.arange(rows)[:, None] * count
            times = np.bincount(drawn.ravel(), minlength=rows * count).reshape(rows, count).astype(np.float64)
            for s in np.flatnonzero(counts == count):
                totals[s, first : first + rows] = times @ bagged[start[s] : start[s + 1]]
    return totals


def _spread(values: Floats, alpha: float) -> tuple[float, float, float]:
    """Standard error and percentile limits of bootstrap replicates."""
    values = values[np.isfinite(values)]
    if len(values) < 2:
        return np.nan, np.nan, np.nan
    low, high = np.quantile(values, (alpha / 2.0, 1.0 - alpha / 2.0))
    return float(values.std(ddof=1)), float(low), float(high)


def _checked(alpha: float) -> float:
    if not 0.0 < alpha < 1.0:
        raise ConfigError(f"interval: alpha is {alpha!r}; it must be above 0 and below 1")
    return alpha
