"""Sensitivity to non-response: how far limits move if users who did not answer would have rated differently.

A marginal sensitivity model (Zhao, Small and Bhattacharya 2019, section 2): the odds of responding differ by at most a
factor Γ between any two users asked, whatever their ratings. The labels of non-respondents are then those of
respondents, reweighted by at most Γ: the least mean weights labels below some threshold by Γ. For thumbs with mean μ
it ranges from μ / (μ + Γ (1 − μ)) to Γ μ / (Γ μ + 1 − μ). Γ = 1: missing at random; Γ = ∞: worst and best case
(Manski 1990).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fitrouter.errors import InvalidLog
from fitrouter.types import Floats
from fitrouter_evaluators.replay.log.log import Ints
from fitrouter_evaluators.replay.study.outcomes import MetricOutcomes
from fitrouter_evaluators.replay.study.units import Units

GAMMA = 2.0


def tilted_means(y: Floats, weight: Floats, gamma: float) -> tuple[float, float]:
    """Least and largest mean under density ratios that vary by at most gamma.

    Args:
        y: float64[N] in [0, 1], ascending.
        weight: float64[N], the base distribution.
        gamma: at least 1.
    """
    total = float(weight.sum())
    if not total > 0.0 or gamma == np.inf:
        return 0.0, 1.0
    mass, mean = np.cumsum(weight), np.cumsum(weight * y)
    more = gamma - 1.0
    low = (mean[-1] + more * mean) / (mass[-1] + more * mass)
    high = (gamma * mean[-1] - more * mean) / (gamma * mass[-1] - more * mass)
    average = float(mean[-1] / mass[-1])
    return min(average, float(low.min())), max(average, float(high.max()))


def silence_margins(
    units: Units,
    observed: MetricOutcomes,
    weight: Floats,
    *,
    gamma: float = GAMMA,
    slices: Ints | None = None,
    n_slices: int = 1,
) -> tuple[Floats, Floats]:
    """(float64[n_slices], float64[n_slices]): margins by which to widen the lower and the upper limit of an estimate.

    Widened limits hold for every response mechanism within the bound. Units with positive and negative weights are
    treated separately: the worst case of one is the best of the other.

    Args:
        units: n of them.
        observed: outcomes of the decisions.
        weight: float64[n], importance weights, or differences of them for a paired difference.
        gamma: Γ ≥ 1; inf for no assumption.
        slices: int64[n], codes; −1 for none. None: one slice of all.
        n_slices: their number.
    """
    asked = _Asked(units, observed, weight, gamma)
    slices = np.zeros(units.n, dtype=np.int64) if slices is None else slices
    size = np.bincount(slices[slices >= 0], minlength=n_slices)
    moves = [asked.moves(slices[asked.unit] == s, int(size[s])) for s in range(n_slices)]
    return np.array([low for low, _ in moves]), np.array([high for _, high in moves])


class _Asked:
    """Decisions whose label was requested, by ascending label."""

    def __init__(self, units: Units, observed: MetricOutcomes, weight: Floats, gamma: float) -> None:
        if not gamma >= 1.0:
            raise InvalidLog(f"gamma {gamma!r}: it must be at least 1 (1: users respond at random)")
        self.gamma, self.scale = gamma, observed.scale
        rows = np.flatnonzero(observed.asked[units.member])
        rows = rows[np.argsort(observed.label[units.member[rows]], kind="stable")]
        self.unit = units.of_member()[rows]
        member = units.member[rows]
        self.y, self.seen = observed.label[member], observed.seen[member]
        turns = np.maximum(units.total(observed.e[units.member] > 0.0), 1.0)
        self.weight = weight[self.unit] / (turns[self.unit] * observed.e[member])

    def moves(self, some: NDArray[np.bool_], n: int) -> tuple[float, float]:
        """Margins of the mean over n units, from the requests in `some` (bool[asked])."""
        down = up = 0.0
        for sign in (1.0, -1.0):
            mine = some & (sign * self.weight > 0.0)
            silent, heard = mine & ~self.seen, mine & self.seen
            mass = float(np.abs(self.weight[silent]).sum())
            if mass == 0.0:
                continue
            y, w = self.y[heard], np.abs(self.weight[heard])
            low, high = tilted_means(y, w, self.gamma)
            # Where nobody answered, nothing is known of what they were taken for.
            mean = float((w * y).sum() / w.sum()) if w.sum() > 0.0 else np.nan
            less, more = (1.0, 1.0) if np.isnan(mean) else (mean - low, high - mean)
            down += mass * (less if sign > 0.0 else more)
            up += mass * (more if sign > 0.0 else less)
        return self.scale * down / max(n, 1), self.scale * up / max(n, 1)
