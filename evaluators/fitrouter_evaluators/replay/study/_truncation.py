"""Truncated control variates: pseudo-outcomes that stay above a bound known before each unit begins.

For units of several draws, with p_j the logged pmf, plus and minus two policies (either may be absent), ρ_j and ρ⁰_j
the products of their importance weights, u_j = ρ_j − ρ⁰_j and R in [0, 1] the outcome of a unit of m draws,

    x = u_m R + Σ_j ( E_{a ~ p_j}[g_j(a)] − g_j(a_j) )

has the mean V(plus) − V(minus) for any g_j known before draw j. The best one is u_j(a) Q_j(a). It is truncated to keep
x ≥ −k, as in Waudby-Smith, Wu, Ramdas, Karampatziakis and Mineiro (2022, arXiv 2210.10768), where m = 1, minus is
absent and Q ≤ k / u. In general, with P_j the sum up to draw j and C_j(a) = ρ⁰_j(a) the largest later loss (from then
on g = −ρ⁰ loses no more; after a unit's last possible draw C_j = max(−u_j, 0)), draw j requires

    P_{j−1} + E[g_j] − g_j(a) − C_j(a) ≥ −B_j   for every a,

with bounds B_1 ≤ B_2 ≤ … < k. As E[C_j] ≤ C_{j−1}, this is feasible if B_1 ≥ C_0 (1 with a minus, else 0):
g_j(a) = min(u_j(a) Q_j(a), B_j + P_{j−1} + G − C_j(a)) with G ≤ E[g_j]. The largest such G is approached from below:
G = −E[C_j] is feasible, and so is E[g_j] given a feasible G.

Labels come last: what the draws leave of k bounds the loss of the prediction f_t of a label requested with probability
e, |u| f (1 − e)/e for u > 0 and |u| (1 − f) (1 − e)/e for u < 0; f is truncated accordingly.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fitrouter.types import Floats
from fitrouter_evaluators.replay.log.log import Ints, ragged_positions

ROUNDS = 6
"""Fixed-point iterations for G."""
EARLY = 0.5
"""Share of the bound reserved for the draws, where labels follow them."""


class UnitBatch(NamedTuple):
    """Arrays of n units with d draws, m arms in total and t decisions; outcomes lie in [0, 1]."""

    p: Floats
    """float64[m]"""
    q: Floats
    """The outcome model, float64[m]."""
    entry: Ints
    """int64[d + 1]: where each draw's arms begin."""
    chosen: Ints
    """Positions among the m arms, int64[d]."""
    draw: Ints
    """int64[n + 1]: where each unit's draws begin."""
    again: NDArray[np.bool_]
    """bool[n]: at each of its draws, the unit may still be redrawn later."""
    known: Floats
    """The part of the outcome known without labels, float64[n]."""
    scale: float
    """Scale of labels in the outcome."""
    turn: Ints
    """int64[n + 1]: where each unit's decisions begin."""
    label: Floats
    seen: NDArray[np.bool_]
    f: Floats
    """Predictions of the labels, float64[t]."""
    chance: Floats
    """Probability of observing the label, float64[t]; 0 where the decision does not count."""


def truncated_outcomes(part: UnitBatch, plus: Floats | None, minus: Floats | None, bounds: tuple[float, ...]) -> Floats:
    """Compute outcomes with mean V(plus) − V(minus), float64[bounds, n], which are at least −k for each bound k.

    `plus` and `minus` are policies' probabilities, float64[m], or None; with `minus` each bound must be at least 1.
    """
    n, count = len(part.known), np.diff(part.draw)
    least = 0.0 if minus is None else 1.0
    asks = part.scale > 0.0 and bool(((part.chance > 0.0) & (part.chance < 1.0)).any())
    free = [(k - least) * (EARLY if asks else 1.0) for k in bounds]
    up, down = np.full(n, float(plus is not None)), np.full(n, float(minus is not None))
    paid = np.zeros((len(bounds), n))
    for j in range(int(count.max(initial=0))):
        some = np.flatnonzero(count > j)
        stage = _Stage(part, part.draw[some] + j, plus, minus, up[some], down[some], part.again[some])
        share = np.where(part.again[some], 1.0 - 0.5 ** (j + 1), 1.0)
        for row, left in zip(paid, free, strict=True):
            row[some] += stage.cut(least + left * share + row[some])
        up[some], down[some] = stage.up[stage.chosen], stage.down[stage.chosen]
    u = up - down
    return np.array([row + u * _outcome(part, u, k + row) for k, row in zip(bounds, paid, strict=True)]).reshape(-1, n)


class _Stage:
    """The j-th draws of all units that have one, with the policies' weights after them."""

    def __init__(
        self,
        part: UnitBatch,
        draws: Ints,
        plus: Floats | None,
        minus: Floats | None,
        up: Floats,
        down: Floats,
        again: NDArray[np.bool_],
    ) -> None:
        begin, size = part.entry[draws], part.entry[draws + 1] - part.entry[draws]
        self.start = np.concatenate([[0], np.cumsum(size)])
        if self.start[-1] == len(part.p):
            at: Ints | slice = slice(None)
        else:
            at = ragged_positions(begin, size)
        self.chosen = part.chosen[draws] - begin + self.start[:-1]
        self.p = part.p[at]
        zero = np.zeros(1)
        towards = zero if plus is None else np.repeat(up, size) * plus[at]
        away = zero if minus is None else np.repeat(down, size) * minus[at]
        there = self.p > 0.0
        self.up = np.divide(towards, self.p, out=np.zeros(len(self.p)), where=there)
        self.down = np.divide(away, self.p, out=np.zeros(len(self.p)), where=there)
        u = self.up - self.down
        self.goal = u * part.q[at]
        if minus is None:
            self.later = np.zeros(len(u))
        else:
            self.later = np.where(np.repeat(again, size), self.down, np.maximum(-u, 0.0))
        # Where the logger never goes nothing is known: the worst is taken, 0 for plus and 1 for minus.
        lost = np.zeros(len(u)) if minus is None else np.where(there, 0.0, away)
        self.lost = self._sum(lost)

    def _sum(self, values: Floats) -> Floats:
        return np.asarray(np.add.reduceat(values, self.start[:-1]))

    def cut(self, bound: Floats) -> Floats:
        """Control variate E[g] − g(a) less unsupported losses, float64[draws]; truncated to stay at or above −bound."""
        slack = bound - self.lost
        mean = self._sum(self.p * self.goal)
        taken = self.goal[self.chosen]
        worst = np.maximum.reduceat(self.goal + self.later, self.start[:-1])
        bad = np.flatnonzero(worst > slack + mean)
        if len(bad):
            mean[bad], taken[bad] = self._cut(bad, slack[bad])
        return np.asarray(mean - taken - self.lost)

    def _cut(self, bad: Ints, slack: Floats) -> tuple[Floats, Floats]:
        size = self.start[bad + 1] - self.start[bad]
        start = np.cumsum(size) - size
        at = ragged_positions(self.start[bad], size)
        p, goal, later = self.p[at], self.goal[at], self.later[at]
        mean: Floats = -np.add.reduceat(p * later, start)
        g = goal
        for _ in range(ROUNDS):
            g = np.minimum(goal, np.repeat(slack + mean, size) - later)
            mean = np.add.reduceat(p * g, start)
        return mean, g[self.chosen[bad] - self.start[bad] + start]


def _outcome(part: UnitBatch, u: Floats, room: Floats) -> Floats:
    """Outcomes with predictions truncated so that u · outcome ≥ −room, float64[n]."""
    turns = np.diff(part.turn)
    counts = part.chance > 0.0
    total = np.add.reduceat(counts.astype(np.float64), part.turn[:-1]) if len(turns) else np.zeros(0)
    if part.scale == 0.0:
        return part.known
    room = np.maximum(room + u * part.known - part.scale * np.maximum(-u, 0.0), 0.0)
    chance = np.where(counts, part.chance, 1.0)
    often = np.repeat(part.scale * np.abs(u), turns) * (1.0 - chance)
    most = np.divide(np.repeat(room, turns) * chance, often, out=np.full(len(often), np.inf), where=often > 0.0)
    f = np.where(np.repeat(u, turns) > 0.0, np.minimum(part.f, most), np.maximum(part.f, 1.0 - most))
    powered = np.where(counts, f + np.where(part.seen, part.label - f, 0.0) / chance, 0.0)
    return np.asarray(part.known + part.scale * np.add.reduceat(powered, part.turn[:-1]) / total)
