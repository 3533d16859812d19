"""Sensitivity to non-response: how far limits move if users who did not answer would have rated differently.

A marginal sensitivity model (Zhao, Small and Bhattacharya 2019, section 2): the odds of responding differ by at most a
factor Γ between any two users asked, whatever their ratings. The labels of non-respondents are then those of
respondents, reweighted by at most Γ: the least mean weights labels below some threshold by Γ. For thumbs with mean μ
it ranges from μ / (μ + Γ (1 − μ)) to Γ μ / (Γ μ + 1 − μ). Γ = 1: missing at random; Γ = ∞: worst and best case
(Manski 1990).
"""

from __future__ import annotations

import numpy as np

from fitrouter.errors import InvalidLog
from fitrouter.types import Floats
from fitrouter_evaluators.replay.log.log import Ints
from fitrouter_evaluators.replay.study.outcomes import MetricOutcomes
from fitrouter_evaluators.replay.study.units import Units

GAMMA = 2.0


def tilted_means(y: Floats, weight: Floats, gamma: float) -> tuple[float, float]:
    """Least and largest mean of y (ascending, in [0, 1]) under density ratios to `weight` that vary by gamma ≥ 1."""
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
    units: Units, observed: MetricOutcomes, weight: Floats, *, gamma: float = GAMMA, rows: Ints | None = None
) -> tuple[float, float]:
    """Margins that widen the lower and upper limit of an estimate over `rows` (None: all units) for non-response.

    Widened limits hold for every response mechanism within the bound Γ ≥ 1 (inf: no assumption). `weight`, float64[n],
    are importance weights, or differences of them for a paired difference; positive and negative ones are treated
    separately: the worst case of one is the best of the other.
    """
    if not gamma >= 1.0:
        raise InvalidLog(f"gamma {gamma!r}: it must be at least 1 (1: users respond at random)")
    inside = np.zeros(units.n, dtype=bool)
    inside[slice(None) if rows is None else rows] = True
    unit = units.of_member()
    asked = np.flatnonzero(observed.asked[units.member] & inside[unit])
    asked = asked[np.argsort(observed.label[units.member[asked]], kind="stable")]
    unit, member = unit[asked], units.member[asked]
    turns = np.maximum(units.total(observed.e[units.member] > 0.0), 1.0)
    each = weight[unit] / (turns[unit] * observed.e[member])
    down = up = 0.0
    for sign in (1.0, -1.0):
        mine = sign * each > 0.0
        mass = float(np.abs(each[mine & ~observed.seen[member]]).sum())
        if mass == 0.0:
            continue
        heard = mine & observed.seen[member]
        y, w = observed.label[member[heard]], np.abs(each[heard])
        low, high = tilted_means(y, w, gamma)
        # Where nobody answered, nothing is known of what they were taken for.
        mean = float((w * y).sum() / w.sum()) if w.sum() > 0.0 else np.nan
        less, more = (1.0, 1.0) if np.isnan(mean) else (mean - low, high - mean)
        down += mass * (less if sign > 0.0 else more)
        up += mass * (more if sign > 0.0 else less)
    n = max(int(inside.sum()), 1)
    return observed.scale * down / n, observed.scale * up / n
