"""Satisfaction of people and savings of operators, estimated from the warehouse.

Satisfaction is of the people who rated, most recent ratings first, and always four figures together: a mean can rise
while the people who are served worst, or a whole role, lose.

Savings are against the single model with the best mean reward (self-normalised inverse propensity weighting of the
ratings). The cost of a request had that model answered is estimated doubly robustly from the drawn decisions, as the
logged expectation plus the weighted difference of what was paid; a normal interval, for one look (Dudík, Langford and
Li 2011, "Doubly robust policy evaluation and learning").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from fitrouter.stores.warehouse import Warehouse
from fitrouter.types import Floats

RATINGS = 100_000
"""Latest ratings that are read."""
DECISIONS = 20_000
"""Latest drawn decisions that are read."""
LEAST = 30
"""Ratings of a model before it can be the best single one, and decisions before savings are shown."""
_Z = 1.959964

_RATED = """
    SELECT "user", role, y FROM latest_feedback
    WHERE dimension = 'overall' AND kind IN ('thumb', 'rating') AND "user" IS NOT NULL AND y BETWEEN 0 AND 1
    ORDER BY seq DESC LIMIT ?
"""
_DRAWN = """
    SELECT chosen, propensity, eligible, cost, cost_usd, y FROM (
        SELECT decision_id, seq, chosen, propensity, eligible, cost FROM decisions
        WHERE mode IN ('online', 'uniform', 'shadow') AND propensity > 0 AND len(cost) = len(eligible)
        ORDER BY seq DESC LIMIT ?
    )
    JOIN (SELECT decision_id, cost_usd, coalesce(cost_assumed, false) AS assumed, served_by, status FROM executions)
        USING (decision_id)
    LEFT JOIN (
        SELECT decision_id, any_value(y) AS y FROM latest_feedback
        WHERE dimension = 'overall' AND kind IN ('thumb', 'rating') GROUP BY decision_id
    ) USING (decision_id)
    WHERE status = 'ok' AND served_by = chosen AND NOT assumed
"""


class Estimate(NamedTuple):
    """An estimate with its 95 % interval; NaN for a bound that is not estimated."""

    low: float
    estimate: float
    high: float


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """Satisfaction of people, and what routing saved."""

    satisfaction: dict[str, Estimate] = {}
    """`mean`, `variance` (between people), `cvar10` (mean of the worst tenth), `worst_role`; empty with few people."""
    best_single: str = ""
    """The model with the best mean reward; empty if none has enough ratings."""
    saved_usd: Estimate | None = None
    """USD per request: cost of the best single model minus what was paid."""


def measure(warehouse: Warehouse) -> Quality:
    """Estimate the current figures. Reads the warehouse: call it off the event loop, every minute or so.

    Raises:
        StoreError: the warehouse cannot be read.
    """
    found = satisfaction_estimates(warehouse.query(_RATED, [RATINGS]))
    best, saved = savings(warehouse.query(_DRAWN, [DECISIONS]))
    return Quality(satisfaction=found, best_single=best, saved_usd=saved)


def satisfaction_estimates(rated: Sequence[tuple[Any, ...]]) -> dict[str, Estimate]:
    """Estimate satisfaction from (user, role, y); empty with fewer than ten people, or without `replay`'s packages."""
    try:
        from fitrouter_evaluators.replay.study.satisfaction import satisfaction
    except ModuleNotFoundError:
        return {}
    if not rated:
        return {}
    users, people = np.unique([row[0] for row in rated], return_inverse=True)
    roles, codes = np.unique([row[1] or "" for row in rated], return_inverse=True)
    y = np.array([row[2] for row in rated], dtype=np.float64)
    names = [str(role) for role in roles]
    codes = np.where(roles[codes] == "", -1, codes)
    scopes = satisfaction(y, y, people, codes, names, replicates=100)
    if not scopes or scopes[0].role or len(users) < 10:
        return {}
    everybody = scopes[0]
    means = {scope.role: _mean(y, people, codes == names.index(scope.role)) for scope in scopes[1:]}
    overall = _mean(y, people, np.ones(len(y), dtype=bool))
    worst = min(means.values(), key=lambda found: found.estimate, default=overall)
    tail = Estimate(everybody.worst_decile_low, everybody.worst_decile, everybody.worst_decile_high)
    return {
        "mean": overall,
        "variance": Estimate(math.nan, everybody.sd**2, math.nan),
        "cvar10": tail,
        "worst_role": worst,
    }


def _mean(y: Floats, people: Any, here: Any) -> Estimate:
    """Estimate the mean over people of their mean ratings, with an interval that takes people as independent."""
    _, codes, counts = np.unique(people[here], return_inverse=True, return_counts=True)
    own = np.bincount(codes, weights=y[here]) / counts
    half = _Z * float(own.std(ddof=1)) / math.sqrt(len(own)) if len(own) > 1 else math.nan
    mean = float(own.mean())
    return Estimate(max(mean - half, 0.0), mean, min(mean + half, 1.0))


def savings(drawn: Sequence[tuple[Any, ...]]) -> tuple[str, Estimate | None]:
    """Return the best single model, and an estimate of the cost saved per request against it.

    Args:
        drawn: (chosen, propensity, eligible models, their expected costs, USD paid, rating or None) of each decision.
    """
    weights: dict[str, float] = {}
    sums: dict[str, float] = {}
    counts: dict[str, int] = {}
    for chosen, p, _, _, _, y in drawn:
        if y is not None:
            weights[chosen] = weights.get(chosen, 0.0) + 1.0 / p
            sums[chosen] = sums.get(chosen, 0.0) + y / p
            counts[chosen] = counts.get(chosen, 0) + 1
    means = {model: sums[model] / weights[model] for model, n in counts.items() if n >= LEAST}
    if not means:
        return "", None
    best = max(sorted(means), key=means.__getitem__)
    saved = []
    for chosen, p, eligible, expected, paid, _ in drawn:
        if best in eligible:
            cost = expected[eligible.index(best)]
            saved.append(cost + (paid - cost) / p * (chosen == best) - paid)
    if len(saved) < LEAST:
        return best, None
    found = np.array(saved)
    mean, half = float(found.mean()), _Z * float(found.std(ddof=1)) / math.sqrt(len(found))
    return best, Estimate(mean - half, mean, mean + half) if math.isfinite(half) else None
