"""Training splits for predictions: progressive in time, or cross-fitting over clusters.

If the logging policy learns, a model trained on later data breaks the martingale property of the estimates. Sessions
overlap in time, so "earlier" means ended before this one began.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fitrouter.types import Floats
from fitrouter_evaluators.replay.log.log import Ints
from fitrouter_evaluators.replay.study.units import Units

FIRST, GROWTH = 4, 1.25
"""Examples before the first model, and growth of their number from one model to the next."""


class Split(NamedTuple):
    """Units to train and predict on: part p is predicted from pieces ≤ p (progressive) or ≠ p (folds)."""

    part: Ints
    """int64[n]: part in which each unit is predicted."""
    piece: Ints
    """int64[n]: piece in which it is a training example; `parts` if in none."""
    parts: int
    progressive: bool


def past_sums(units: Units, values: Floats) -> Floats:
    """float64[n]: sums of values (float64[n]) over the units that had ended before each began."""
    order, count = _ended(units)
    return np.concatenate([[0.0], np.cumsum(values[order])])[count]


def progressive_split(units: Units, examples: Ints) -> Split:
    """Parts in order of time; a new one starts when the training data has grown by a quarter."""
    order, count = _ended(units)
    known = np.concatenate([[0], np.cumsum(examples[order])])[count]
    most = int(known[-1]) if units.n else 0
    steps = int(np.log(max(most / FIRST, 1.0)) / np.log(GROWTH)) + 1
    goals = FIRST * GROWTH ** np.arange(steps) if most >= FIRST else np.zeros(0)
    edges = np.unique(np.concatenate([[0], np.searchsorted(known, goals)]))
    rank = np.empty(units.n, dtype=np.int64)
    rank[order] = np.arange(units.n)
    return Split(
        part=np.searchsorted(edges, np.arange(units.n), side="right") - 1,
        piece=np.searchsorted(count[edges] if units.n else edges, rank, side="right"),
        parts=len(edges),
        progressive=True,
    )


def fold_split(units: Units, folds: int = 5, seed: int = 0) -> Split:
    """Random folds of whole clusters, for logs whose logging policy does not learn."""
    clusters = int(units.cluster.max(initial=-1)) + 1
    fold = np.random.default_rng(seed).permutation(np.arange(clusters) % folds)[units.cluster]
    return Split(fold, fold, folds, False)


def _ended(units: Units) -> tuple[Ints, Ints]:
    """(units by time of end, number that had ended before each began)."""
    begin = units.member[units.start[:-1]]
    if len(units.member) == units.n:
        return np.arange(units.n), np.arange(units.n)
    end = units.member[units.start[1:] - 1]
    order = np.argsort(end, kind="stable")
    return order, np.searchsorted(end[order], begin)
