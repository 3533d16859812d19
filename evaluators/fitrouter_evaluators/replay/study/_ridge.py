"""Ridge regression with per-group deviations from shared coefficients; penalty chosen out of sample.

The penalty strength is chosen from `STRENGTHS` by squared errors on examples not yet trained on: later ones in a
progressive split, those of other folds in cross-fitting.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fitrouter.types import Floats
from fitrouter_evaluators.replay.log.log import Ints
from fitrouter_evaluators.replay.study.units import Units

STRENGTHS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Relative to each block's penalty; rare rewards need the largest."""
LEVEL = 0.2
"""Upper limit of the strength on the shared intercept, which few examples determine."""
OWN = 1.5
"""Penalty on group deviations relative to the shared model's."""
DOUBT = 1.5
"""Advantage, in examples' squared error, that a strength needs over its neighbour nearer to 1."""
MOST_DIMS = 64
"""Contexts of more dimensions are projected at random: few labels identify only coarse effects."""


class Examples(NamedTuple):
    """N training examples of p features, each with its unit and group."""

    unit: Ints
    group: Ints
    phi: Floats
    """float64[N, p]"""
    y: Floats
    weight: Floats
    groups: int
    blocks: tuple[tuple[int, float], ...]
    """(columns, ratio of noise variance to explained variance) of each block of columns."""


def projected(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Project features float32[n, d] to at most 64 random dimensions, float32[n, min(d, 64)]; NaN becomes 0."""
    d = x.shape[1]
    if d <= MOST_DIMS:
        return np.asarray(np.nan_to_num(x, nan=0.0))
    onto = np.random.default_rng(0).normal(size=(d, MOST_DIMS)).astype(np.float32) / np.float32(np.sqrt(MOST_DIMS))
    return np.asarray(np.matmul(np.nan_to_num(x, nan=0.0), onto, dtype=np.float32))


def ridges(examples: Examples, split: Split) -> Iterator[Floats]:
    """Fit a ridge for each part; yield the coefficients of each group, shared ones last, float64[groups + 1, p]."""
    pieces = _pieces(examples, split)
    yield from (_in_time if split.progressive else _in_folds)(examples, pieces, split.parts)


class _Sums:
    """Weighted sums Σ w φ φᵀ and Σ w φ y of each group."""

    def __init__(self, examples: Examples) -> None:
        p = examples.phi.shape[1]
        self.gram = np.zeros((examples.groups, p, p))
        self.cross = np.zeros((examples.groups, p))
        self.weight = 0.0

    def add(self, examples: Examples, rows: Ints, sign: float = 1.0) -> None:
        group = examples.group[rows]
        edges = np.flatnonzero(np.diff(group, prepend=-1, append=examples.groups))
        for a, b in pairwise(edges):
            some = rows[a:b]
            phi, w = examples.phi[some], examples.weight[some]
            weighted = phi * w[:, None]
            self.gram[group[a]] += sign * (weighted.T @ phi)
            self.cross[group[a]] += sign * (weighted.T @ examples.y[some])
            self.weight += sign * float(w.sum())

    def fit(self, examples: Examples, strength: float) -> Floats:
        """Solve for the coefficients of each group, the shared ones last, float64[groups + 1, p]."""
        p = examples.phi.shape[1]
        theta = np.zeros((examples.groups + 1, p))
        if self.weight <= 1e-9:
            return theta
        gram = self.gram.sum(axis=0)
        penalty = np.diag(strength * self._penalty(examples, np.diag(gram)))
        level = penalty.copy()
        level[0, 0] *= min(LEVEL / strength, 1.0)
        shared = np.linalg.solve(gram + level, self.cross.sum(axis=0))
        theta[:] = shared
        own = np.flatnonzero(np.diagonal(self.gram, axis1=1, axis2=2).any(axis=1))
        if examples.groups > 1:
            left = self.cross[own] - self.gram[own] @ shared
            theta[own] += np.linalg.solve(self.gram[own] + OWN * penalty, left[:, :, None])[:, :, 0]
        return theta

    def _penalty(self, examples: Examples, squares: Floats) -> Floats:
        """Penalties, float64[p], scaled so that a block's prior explained variance depends on its ratio only."""
        found, at = np.empty(len(squares)), 0
        for columns, ratio in examples.blocks:
            mean = float(squares[at : at + columns].sum()) / self.weight
            found[at : at + columns] = ratio * max(mean, 1e-6)
            at += columns
        return found


def _in_time(examples: Examples, pieces: list[Ints], parts: int) -> Iterator[Floats]:
    sums = _Sums(examples)
    errors, models = np.zeros(len(STRENGTHS)), [sums.fit(examples, 1.0)] * len(STRENGTHS)
    for part in range(parts):
        if len(pieces[part]):
            errors += [_error(examples, pieces[part], theta) for theta in models]
            sums.add(examples, pieces[part])
            models = [sums.fit(examples, strength) for strength in STRENGTHS]
        yield models[_best(errors, sums.weight)]


def _in_folds(examples: Examples, pieces: list[Ints], parts: int) -> Iterator[Floats]:
    sums, found = _Sums(examples), []
    errors = np.zeros((parts, len(STRENGTHS)))
    for rows in pieces:
        sums.add(examples, rows)
    for part in range(parts):
        sums.add(examples, pieces[part], -1.0)
        models = [sums.fit(examples, strength) for strength in STRENGTHS]
        errors[part] = [_error(examples, pieces[part], theta) for theta in models]
        found.append(models)
        sums.add(examples, pieces[part])
    for part in range(parts):
        yield found[part][_best(errors.sum(axis=0) - errors[part], sums.weight)]


def _best(errors: Floats, weight: float) -> int:
    """Index of the strength with the least error; strength 1 unless others are better by more than `DOUBT`."""
    middle = STRENGTHS.index(1.0)
    doubt = DOUBT * np.abs(np.arange(len(STRENGTHS)) - middle)
    return int((errors + doubt * errors[middle] / max(weight, 1.0)).argmin()) if weight > 0.0 else middle


def _error(examples: Examples, rows: Ints, theta: Floats) -> float:
    missed = examples.y[rows] - np.einsum("ij,ij->i", examples.phi[rows], theta[examples.group[rows]])
    return float((examples.weight[rows] * missed**2).sum())


def _pieces(examples: Examples, split: Split) -> list[Ints]:
    piece = split.piece[examples.unit]
    order = np.lexsort((examples.group, piece))
    edges = np.searchsorted(piece[order], np.arange(split.parts + 1))
    return [order[a:b] for a, b in pairwise(edges)]


FIRST, GROWTH = 4, 1.25
"""Examples before the first model, and growth of their number from one model to the next."""


class Split(NamedTuple):
    """Split of units into parts to predict, each from pieces ≤ p (progressive) or ≠ p (folds)."""

    part: Ints
    """Part in which each unit is predicted, int64[n]."""
    piece: Ints
    """Piece in which it is a training example, int64[n]; `parts` if in none."""
    parts: int
    progressive: bool


def past_sums(units: Units, values: Floats) -> Floats:
    """Sums of values (float64[n]) over the units that had ended before each began, float64[n]."""
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
    """Units in order of their end, and the number of units that had ended before each began."""
    begin = units.member[units.start[:-1]]
    if len(units.member) == units.n:
        return np.arange(units.n), np.arange(units.n)
    end = units.member[units.start[1:] - 1]
    order = np.argsort(end, kind="stable")
    return order, np.searchsorted(end[order], begin)
