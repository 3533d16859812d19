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
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from fitrouter.stores.figures import Z
from fitrouter.stores.warehouse import Warehouse

MEASURES = ("mean", "variance", "cvar10", "worst_role")
DECISIONS = 20_000
"""Latest drawn decisions that are read for savings."""
LEAST = 30
"""Decisions before savings are shown."""

_DRAWN = """
    SELECT chosen, propensity, eligible, cost, coalesce(unpriced, []), cost_usd FROM (
        SELECT decision_id, seq, chosen, propensity, eligible, cost, unpriced FROM decisions
        WHERE mode IN ('online', 'uniform', 'shadow') AND propensity > 0 AND len(cost) = len(eligible)
        ORDER BY seq DESC LIMIT ?
    )
    JOIN (SELECT decision_id, cost_usd, coalesce(cost_assumed, false) AS assumed, served_by, status FROM executions)
        USING (decision_id)
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
    try:
        from fitrouter_evaluators.personal.satisfaction import RATINGS, satisfaction_of
    except ModuleNotFoundError:  # without the packages of `replay`
        return Quality()
    found = satisfaction_of(warehouse.query(RATINGS.format(log=""), [None], whole=True), {}, now=time.time())
    shown = {name: getattr(found, name) for name in MEASURES}
    saved = savings(warehouse.query(_DRAWN, [DECISIONS], whole=True), found.best_single)
    known = {name: Estimate(each.low, each.estimate, each.high) for name, each in shown.items() if each is not None}
    return Quality(satisfaction=known, best_single=found.best_single, saved_usd=saved)


def savings(drawn: Sequence[tuple[Any, ...]], best: str) -> Estimate | None:
    """Estimate the cost saved per request against a single model; None where its price is not known.

    Args:
        drawn: (chosen, propensity, eligible models, their expected costs, those without a price, USD paid) each.
        best: the single model.
    """
    saved = []
    for chosen, p, eligible, expected, unpriced, paid in drawn:
        if best in eligible and best not in unpriced:
            cost = expected[eligible.index(best)]
            saved.append(cost + (paid - cost) / p * (chosen == best) - paid)
    if len(saved) < LEAST:
        return None
    found = np.array(saved)
    mean, half = float(found.mean()), Z * float(found.std(ddof=1)) / math.sqrt(len(found))
    if not math.isfinite(half):
        return None
    return Estimate(mean - half, mean, mean + half) if half > 1e-9 * abs(mean) else Estimate(math.nan, mean, math.nan)
