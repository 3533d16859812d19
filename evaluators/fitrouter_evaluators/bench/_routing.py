"""Cost-quality measures of routing.

A *point* is (mean cost in USD, mean reward) of one contender. A router at several ceilings is a curve of points;
fixed models are points, and mixtures of two of them reach the upper hull.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fitrouter.types import Floats


class Point(NamedTuple):
    """A model or policy as a point: its mean cost and mean reward per request."""

    cost: float
    reward: float


class Spread(NamedTuple):
    """Spread of the users' mean rewards."""

    mean: float
    variance: float
    """Of the users' mean rewards."""
    worst_decile: float
    """Mean of the lowest tenth of the users, at least one."""


def hull(points: Sequence[Point]) -> list[Point]:
    """Upper convex hull of points from the cheapest to the best: the rewards of mixtures of two.

    >>> hull([Point(0.0, 0.2), Point(1.0, 0.3), Point(2.0, 0.9), Point(3.0, 0.8)])
    [Point(cost=0.0, reward=0.2), Point(cost=2.0, reward=0.9)]
    """
    kept: list[Point] = []
    for point in sorted(points, key=lambda p: (p.cost, -p.reward)):
        if kept and point.reward <= kept[-1].reward:
            continue
        while len(kept) > 1 and _below(kept[-2], kept[-1], point):
            kept.pop()
        kept.append(point)
    return kept


def _below(left: Point, middle: Point, right: Point) -> bool:
    """Whether the middle point lies on or under the chord from left to right."""
    rise = (right.reward - left.reward) * (middle.cost - left.cost)
    return (middle.reward - left.reward) * (right.cost - left.cost) <= rise


def mixture(points: Sequence[Point], ceiling: float) -> float:
    """Reward of the best mixture of two points within a mean cost; the cheapest if there is none."""
    edge = hull(points)
    return float(np.interp(ceiling, [p.cost for p in edge], [p.reward for p in edge]))


def area(ceilings: Sequence[float], rewards: Sequence[float]) -> float:
    """Mean reward over the logarithm of the ceiling: the area under the curve (trapezoids) divided by its width."""
    x = np.log(np.asarray(ceilings, dtype=np.float64))
    return float(np.trapezoid(np.asarray(rewards, dtype=np.float64), x) / (x[-1] - x[0]))


def aiq(points: Sequence[Point], low: float, high: float) -> float:
    """Average improvement in quality: mean of the points' non-decreasing hull over costs in [low, high], in USD.

    The range should begin at the cheapest point, left of which the contender is unknown; right of the best point the
    hull is constant. Reference: Hu et al. (2024), "RouterBench", §3.
    """
    edge = hull(points)
    costs, rewards = [p.cost for p in edge], [p.reward for p in edge]
    x = np.unique([low, high, *(c for c in costs if low < c < high)])
    return float(np.trapezoid(np.interp(x, costs, rewards), x) / (high - low)) if high > low else rewards[-1]


def _recovered(points: Sequence[Point], weak: Point, strong: Point) -> tuple[Floats, Floats]:
    """Shares of the cost gap and of the quality gap from weak to strong that each point covers, by ascending cost."""
    inside = [p for p in points if weak.cost < p.cost < strong.cost]
    ordered = sorted([weak, *inside, strong])
    x = np.array([(p.cost - weak.cost) / (strong.cost - weak.cost) for p in ordered])
    return x, np.array([(p.reward - weak.reward) / (strong.reward - weak.reward) for p in ordered])


def apgr(points: Sequence[Point], weak: Point, strong: Point) -> float:
    """Average performance gap recovered: mean share of the gap between two models over the share of the costlier one.

    Shares are of cost, which are shares of calls where a model costs the same for every prompt; a random mixture has ½.
    Reference: Ong et al. (2024), "RouteLLM", §3.
    """
    x, y = _recovered(points, weak, strong)
    return float(np.trapezoid(y, x))


def cpt(points: Sequence[Point], weak: Point, strong: Point, target: float) -> float:
    """Call-performance threshold: the least share of the way in cost that recovers this share of the gap (RouteLLM)."""
    x, y = _recovered(points, weak, strong)
    above = int(np.flatnonzero(y >= target)[0])
    if above == 0:
        return 0.0
    step = (target - y[above - 1]) / (y[above] - y[above - 1])
    return float(x[above - 1] + step * (x[above] - x[above - 1]))


def cost_of(points: Sequence[Point], reward: float) -> float | None:
    """Least mean cost at which mixtures of the points reach a reward; None if they never do."""
    edge = hull(points)
    if reward > edge[-1].reward:
        return None
    return float(np.interp(reward, [p.reward for p in edge], [p.cost for p in edge]))


def windows(costs: Floats, after: int = 200, length: int = 500) -> Floats:
    """Mean cost of every window of `length` requests that begins after the first `after`; empty for a short stream."""
    total = np.concatenate([[0.0], np.cumsum(costs[after:])])
    means: Floats = (total[length:] - total[:-length]) / length
    return means


def satisfaction(rewards: Floats, users: Sequence[str | None]) -> Spread:
    """Mean, variance and worst tenth of the users' mean rewards.

    Args:
        rewards: float64[T].
        users: of each; rows without one are left out.

    Raises:
        ValueError: no row has a user.
    """
    by: dict[str, list[float]] = {}
    for user, reward in zip(users, rewards.tolist(), strict=True):
        if user is not None:
            by.setdefault(user, []).append(reward)
    if not by:
        raise ValueError("no row has a user; give 'user' in the matrix to measure how users are served")
    means = np.sort([float(np.mean(found)) for found in by.values()])
    worst = means[: max(1, len(means) // 10)]
    return Spread(float(means.mean()), float(means.var()), float(worst.mean()))
