"""Satisfaction of people and savings of operators, estimated from the warehouse.

Satisfaction is of the people who rated, most recent ratings first, and always four figures together: a mean can rise
while the people who are served worst, or a whole role, lose.

Savings are against the default model, and against the single model with the best mean reward (self-normalised inverse
propensity weighting of the ratings). The cost of a request had that model answered is estimated doubly robustly from
the drawn decisions, as the logged expectation plus the weighted difference of what was paid; a normal interval, for one
look (Dudík, Langford and Li 2011, "Doubly robust policy evaluation and learning"), of a share by the delta method.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from fitrouter.errors import NoWarehouse
from fitrouter.stores.figures import Z
from fitrouter.stores.warehouse import Warehouse
from fitrouter.types import Floats

MEASURES = ("mean", "variance", "cvar10", "worst_role")
DECISIONS = 20_000
"""Latest drawn decisions that are read for savings."""
LEAST = 30
"""Decisions before savings are shown."""

_DRAWN = """
    SELECT chosen, propensity, eligible, cost, coalesce(unpriced, []), CASE WHEN NOT assumed THEN cost_usd END FROM (
        SELECT decision_id, seq, chosen, propensity, eligible, cost, unpriced FROM decisions
        WHERE mode IN ('online', 'uniform', 'shadow') AND propensity > 0 AND len(cost) = len(eligible)
            AND ($2::VARCHAR IS NULL OR tenant = $2)
        ORDER BY seq DESC LIMIT $1
    )
    JOIN (SELECT decision_id, cost_usd, coalesce(cost_assumed, false) AS assumed, served_by, status FROM executions)
        USING (decision_id)
    WHERE status = 'ok' AND served_by = chosen
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
    saved: dict[str, Savings] = {}
    """Against the `default` model and the `best` single one, where they are known."""


class Savings(NamedTuple):
    """What was saved against a single model, of the requests that were drawn."""

    model: str
    usd: Estimate
    """USD per request: what the model would have cost, less what was paid."""
    share: Estimate
    """Of what the model would have cost."""
    unpriced: int
    """Requests that are not counted, since what they cost is not known."""

    def __str__(self) -> str:
        """The share in words.

        >>> str(Savings("large", Estimate(0.1, 0.2, 0.3), Estimate(0.24, 0.31, 0.37), 2))
        '−31 % [24, 37] against large, without 2 answers of unknown cost'
        """
        low, saved, high = (None if math.isnan(each) else round(100 * each) for each in self.share)
        size = "not known" if saved is None else f"{'−' if saved >= 0 else '+'}{abs(saved)} %"
        ends = "" if low is None or high is None else f" [{low}, {high}]"
        less = f", without {self.unpriced:,} answers of unknown cost" if self.unpriced else ""
        return f"{size}{ends} against {self.model}{less}"


def measure(warehouse: Warehouse, default: str | None) -> Quality:
    """Estimate the current figures. Reads the warehouse: call it off the event loop, every minute or so.

    Args:
        warehouse: of all tenants.
        default: the default model.

    Raises:
        StoreError: the warehouse cannot be read.
    """
    try:
        from fitrouter_evaluators.personal.satisfaction import RATINGS, satisfaction_of
    except ModuleNotFoundError:  # without the packages of `replay`
        return Quality()
    rated = (RATINGS.format(log="", feedback="feedback"), [None])
    rows, drawn = warehouse.queries([rated, (_DRAWN, [DECISIONS, None])], whole=True)
    found = satisfaction_of(rows, {}, now=time.time())
    shown = {name: getattr(found, name) for name in MEASURES}
    known = {name: Estimate(each.low, each.estimate, each.high) for name, each in shown.items() if each is not None}
    return Quality(satisfaction=known, best_single=found.best_single, saved=_against(drawn, default, found.best_single))


def saved(run: Callable[..., Sequence[list[tuple[Any, ...]]]], default: str | None, tenant: str | None) -> list[str]:
    """What a tenant, or all for None, saved, in words; `run` reads queries. Blocks.

    Raises:
        StoreError: the warehouse cannot be read.
    """
    (drawn,), best, unknown = run((_DRAWN, [DECISIONS, tenant])), "", list[str]()
    try:
        from fitrouter_evaluators.personal.satisfaction import RATINGS, single_of

        best, _ = single_of(run((RATINGS.format(log="", feedback="feedback"), [tenant]))[0])
    except ModuleNotFoundError:
        unknown = ["not known against the best single model without the extra `replay`"]
    return [*(str(each) for each in _against(drawn, default, best).values()), *unknown]


def saved_in(warehouse: Warehouse | None, default: str | None, tenant: str) -> list[str]:
    """What a tenant saved, in words, or why it is not known; see `saved`. Blocks."""
    if warehouse is None:
        return ["what was saved is not known: there is no warehouse, which needs DuckDB"]
    try:
        return saved(lambda *queries: warehouse.queries(queries, whole=True), default, tenant)
    except NoWarehouse as error:
        return [f"what was saved is not known yet: {error}"]


def _against(drawn: Sequence[tuple[Any, ...]], default: str | None, best: str) -> dict[str, Savings]:
    found = {name: savings(drawn, model) for name, model in (("default", default), ("best", best)) if model}
    return {name: each for name, each in found.items() if each is not None}


def savings(drawn: Sequence[tuple[Any, ...]], model: str) -> Savings | None:
    """Estimate the cost saved against a single model; None where its price is not known.

    Args:
        drawn: (chosen, propensity, eligible models, their expected costs, those without a price, USD paid or None).
        model: the single model.
    """
    pairs = []
    for chosen, p, eligible, expected, unpriced, paid in drawn:
        if paid is not None and model in eligible and model not in unpriced:
            cost = expected[eligible.index(model)]
            pairs.append((cost + (paid - cost) / p * (chosen == model), paid))
    if len(pairs) < LEAST:
        return None
    theirs, ours = np.array(pairs).T
    usd = _mean(theirs - ours)
    if usd is None:
        return None
    share = Estimate(math.nan, math.nan, math.nan)
    if (whole := float(theirs.mean())) > 0.0:
        ratio = float(ours.mean()) / whole
        share = _mean(1.0 - ratio - (ours - ratio * theirs) / whole) or share
    return Savings(model, usd, share, sum(paid is None for *_, paid in drawn))


def _mean(values: Floats) -> Estimate | None:
    """The mean with its interval; None if it is no number, NaN for the bounds if all values are alike."""
    mean, half = float(values.mean()), Z * float(values.std(ddof=1)) / math.sqrt(len(values))
    if not math.isfinite(half):
        return None
    return Estimate(mean - half, mean, mean + half) if half > 1e-9 * abs(mean) else Estimate(math.nan, mean, math.nan)
