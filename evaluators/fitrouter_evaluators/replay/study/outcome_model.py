"""Outcome model Q_j(a): expected outcome of a unit if arm a is drawn at its draw j.

Doubly robust estimates and sequences are unbiased for any Q made before the draw; a better Q makes them narrower. One
ridge for all arms reads the logged expectation of the arm (where it starts) and the context; per-arm deviations are
shrunk to it, so a new arm starts from the shared model.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fitrouter.types import Floats
from fitrouter_evaluators.replay.log.log import Ints, ragged_positions
from fitrouter_evaluators.replay.study._ridge import Examples, Split, fold_split, progressive_split, projected, ridges
from fitrouter_evaluators.replay.study.units import Units

LIMIT = 200_000
"""Maximum number of training draws, evenly spaced: more add nothing to a model of this size."""
CHUNK = 16_384
"""Draws predicted at a time."""
BLOCKS = ((1, 5.0), (1, 30.0))
"""Intercept and slope of the logged expectation; see `_ridge.Examples`."""
CONTEXT = 15.0


def predict(
    units: Units,
    y: Floats,
    weight: Floats,
    *,
    expected: Floats | None = None,
    low: float = 0.0,
    high: float = 1.0,
    adaptive: bool = True,
    folds: int = 5,
    seed: int = 0,
) -> Floats:
    """Predict Q_j(a) in [low, high] for every arm of every draw, float64[m] in the order of `Units.entries`.

    Trained on the units' outcomes y (float64[n], NaN if unobserved) with `weight`, such as numbers of labels: of units
    that had ended before each began if `adaptive`, else of other folds of whole clusters. `expected` is the logged
    expectation of each of the log's options (`outcomes.logged_expectation`).
    """
    if not units.n:
        return np.zeros(0)
    teaches = (weight > 0.0) & ~np.isnan(y)
    split = progressive_split(units, teaches.astype(np.int64)) if adaptive else fold_split(units, folds, seed)
    world = _World(units, expected, low, high)
    examples = world.examples(np.where(teaches, y, 0.0), np.where(teaches, weight, 0.0), split)
    q = np.empty(int(world.start[-1]))
    part = np.repeat(split.part, units.draws)
    order = None if adaptive else np.argsort(part, kind="stable")
    edges = np.searchsorted(part if order is None else part[order], np.arange(split.parts + 1))
    for theta, a, b in zip(ridges(examples, split), edges[:-1], edges[1:], strict=True):
        for at in range(a, b, CHUNK):
            rows = np.arange(at, min(at + CHUNK, b))
            world.fill(q, rows if order is None else order[rows], theta)
    np.clip(q, 0.0, 1.0, out=q)
    q *= high - low
    q += low
    return q


class _World:
    """Builds features and targets of draws and arms, scaled to [0, 1]."""

    def __init__(self, units: Units, expected: Floats | None, low: float, high: float) -> None:
        decisions = units.log.decisions
        self.units, self.low, self.span = units, low, high - low
        self.start = units.entry_start()
        self.arms = len(units.log.names.arms)
        self.expected = expected
        self.blocks: tuple[tuple[int, float], ...] = BLOCKS
        if decisions.x is not None and decisions.x.shape[1]:
            self.blocks = (*BLOCKS, (projected(decisions.x[:1]).shape[1], CONTEXT))

    def context(self, draws: Ints) -> NDArray[np.float32]:
        """Projected contexts of the draws, float32[draws, d]; d is 0 for a log without contexts."""
        x = self.units.log.decisions.x
        return np.zeros((len(draws), 0), np.float32) if x is None else projected(x[self.units.draw[draws]])

    def base(self, positions: Ints) -> Floats:
        """Logged expectation at these positions in the options, scaled to [0, 1]; ½ where there is none."""
        if self.expected is None:
            return np.full(len(positions), 0.5)
        return np.nan_to_num(np.clip((self.expected[positions] - self.low) / self.span, 0.0, 1.0), nan=0.5)

    def examples(self, y: Floats, weight: Floats, split: Split) -> Examples:
        """Training examples from the draws; the target is the outcome minus the logged expectation."""
        units, decisions = self.units, self.units.log.decisions
        unit = units.of_draw()
        rows = np.flatnonzero((weight > 0.0)[unit] & (split.piece < split.parts)[unit])
        rows = rows[:: max(1, -(-len(rows) // LIMIT))]
        chosen = decisions.chosen[units.draw[rows]]
        base = self.base(chosen)
        phi = np.empty((len(rows), sum(columns for columns, _ in self.blocks)))
        phi[:, 0], phi[:, 1] = 1.0, base - 0.5
        phi[:, 2:] = self.context(rows)
        outcome = np.clip((y[unit[rows]] - self.low) / self.span, 0.0, 1.0)
        arm = units.log.options.arm[chosen]
        return Examples(unit[rows], arm, phi, outcome - base, weight[unit[rows]], self.arms, self.blocks)

    def fill(self, q: Floats, draws: Ints, theta: Floats) -> None:
        """Predict these draws with the coefficients of each arm."""
        begin, count = self.start[draws], self.start[draws + 1] - self.start[draws]
        row, entry = np.repeat(np.arange(len(draws)), count), ragged_positions(begin, count)
        position = entry + np.repeat(self.units.log.decisions.start[self.units.draw[draws]] - begin, count)
        arm = self.units.log.options.arm[position]
        base = self.base(position)
        found = base + theta[arm, 0] + theta[arm, 1] * (base - 0.5)
        context = self.context(draws) @ theta[:-1, 2:].T.astype(np.float32)
        q[entry] = found + context[row, arm]
