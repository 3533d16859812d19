"""What it would mean if those who were asked and said nothing would have said otherwise.

Nothing in a log says so; a bound has to be assumed, and is stated. The odds of answering differ at most by a factor Γ
between any two people who were asked, whatever they would have said (a marginal sensitivity model; Zhao, Small and
Bhattacharya 2019, section 2). Then the verdicts of those who said nothing are those of people who answered, tilted by
at most Γ: the least mean gives the verdicts below some threshold Γ times the weight of those above. For thumbs with a
share μ of people content this is μ / (μ + Γ (1 − μ)) to Γ μ / (Γ μ + 1 − μ). Γ = 1: they would have said the same;
Γ = ∞: the worst and the best (Manski 1990).
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
    """The least and the largest mean of a distribution whose density ratio to a given one varies by at most gamma.

    Args:
        y: float64[N] in [0, 1], in ascending order.
        weight: float64[N], the given distribution.
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
    """(float64[n_slices], float64[n_slices]): by how much the lower and the upper limit of an estimate move apart.

    An estimate takes those who said nothing as those who answered; so its limits, less and more these, hold for every
    way of answering inside the bound. Units with positive and negative weights are looked at apart: what is worst for
    the one is best for the other.

    Args:
        units: n of them.
        observed: what is known of the decisions.
        weight: float64[n], importance weights, or their differences for a paired difference of two policies.
        gamma: Γ ≥ 1; inf for no assumption at all.
        slices: int64[n], codes; −1 for none. None: all are one slice.
        n_slices: how many.

    Raises:
        InvalidLog: gamma is below 1.
    """
    asked = _Asked(units, observed, weight, gamma)
    slices = np.zeros(units.n, dtype=np.int64) if slices is None else slices
    size = np.bincount(slices[slices >= 0], minlength=n_slices)
    moves = [asked.moves(slices[asked.unit] == s, int(size[s])) for s in range(n_slices)]
    return np.array([low for low, _ in moves]), np.array([high for _, high in moves])


class _Asked:
    """Those who were asked, in ascending order of what they said."""

    def __init__(self, units: Units, observed: MetricOutcomes, weight: Floats, gamma: float) -> None:
        if not gamma >= 1.0:
            raise InvalidLog(f"gamma {gamma!r}: it has to be at least 1; 1 is for people who answer at random")
        self.gamma, self.scale = gamma, observed.scale
        rows = np.flatnonzero(observed.asked[units.member])
        rows = rows[np.argsort(observed.label[units.member[rows]], kind="stable")]
        self.unit = units.of_member()[rows]
        member = units.member[rows]
        self.y, self.seen = observed.label[member], observed.seen[member]
        turns = np.maximum(units.total(observed.e[units.member] > 0.0), 1.0)
        self.weight = weight[self.unit] / (turns[self.unit] * observed.e[member])

    def moves(self, some: NDArray[np.bool_], n: int) -> tuple[float, float]:
        """How much the mean over n units moves down and up, by the people in some (bool[asked]) of them."""
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
