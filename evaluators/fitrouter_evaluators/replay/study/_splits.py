"""What a unit's prediction may be made of: units that had ended before it began, or those of other folds.

On a log whose logger learns, a model that has read what came after a draw makes estimates that are no martingale any
more. Sessions overlap in time, so "before" means ended before this one began.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fitrouter.types import Floats
from fitrouter_evaluators.replay.log.log import Ints
from fitrouter_evaluators.replay.study.units import Units

FIRST, GROWTH = 4, 1.25
"""Examples before the first model is made, and how many more there are at each of the next."""


class Split(NamedTuple):
    """Who predicts and who teaches. `part` p is predicted by what pieces ≤ p teach (in time), or pieces ≠ p (folds)."""

    part: Ints
    """int64[n]: part in which each unit is predicted."""
    piece: Ints
    """int64[n]: piece in which it teaches; `parts` where it never does."""
    parts: int
    progressive: bool


def past_sums(units: Units, values: Floats) -> Floats:
    """float64[n]: sums of values (float64[n]) over the units that had ended before each began."""
    order, count = _ended(units)
    return np.concatenate([[0.0], np.cumsum(values[order])])[count]


def progressive_split(units: Units, examples: Ints) -> Split:
    """Parts in order of time, a new one whenever there is a quarter more to learn from than at the last.

    Args:
        units: n of them.
        examples: int64[n], how many examples each holds.
    """
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
    """Folds of whole clusters at random: for logs whose logger does not learn."""
    clusters = int(units.cluster.max(initial=-1)) + 1
    fold = np.random.default_rng(seed).permutation(np.arange(clusters) % folds)[units.cluster]
    return Split(fold, fold, folds, False)


def _ended(units: Units) -> tuple[Ints, Ints]:
    """(units by their ends, how many had ended before each began)."""
    begin = units.member[units.start[:-1]]
    if len(units.member) == units.n:
        return np.arange(units.n), np.arange(units.n)
    end = units.member[units.start[1:] - 1]
    order = np.argsort(end, kind="stable")
    return order, np.searchsorted(end[order], begin)
