"""Satisfaction of people and savings of operators, estimated from the warehouse.

Satisfaction is of the people who rated, most recent ratings first, and always four figures together: a mean can rise
while the people who are served worst, or a whole role, lose.

Savings and gains are against the default model, and against the best single one of the whole log
(`figures.best_single`), over the latest `DECISIONS` drawn decisions. The cost of a request had
that model answered is estimated doubly robustly, as the logged expectation plus the weighted difference of what was
paid; a normal interval, for one look (Dudík, Langford and Li 2011, "Doubly robust policy evaluation and learning"), of
a share by the delta method. The mean rating had that model answered is Σ w y / Σ w with w = 1[chosen] / p; its
interval, and that of the difference, take people as independent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from fitrouter.errors import NoWarehouse
from fitrouter.stores import figures
from fitrouter.stores.figures import FEWEST, RATED, Query, Z, interval, many
from fitrouter.stores.warehouse import Warehouse
from fitrouter.types import Floats

MEASURES = ("mean", "variance", "cvar10", "worst_role")
DECISIONS = 20_000
"""Latest drawn decisions that are read for savings."""
LEAST = 30
"""Decisions before savings are shown, and rated answers of a model before its mean rating is."""
FAR = 100_000
"""Ratings that nobody waits for."""

_LEFT_OUT = "SELECT count(*) FROM left_out WHERE $1::VARCHAR IS NULL OR tenant = $1"
_WHOSE = "untrusted keys' users, more than feedback.people_per_key lets count"
_MOMENTS = """
    WITH drawn AS (
        SELECT chosen, propensity AS p, CASE WHEN NOT assumed THEN cost_usd END AS paid,
            CASE WHEN list_contains(eligible, $3) AND NOT list_contains(coalesce(unpriced, []), $3)
                THEN cost[list_position(eligible, $3)] END AS expected
        FROM (
            SELECT decision_id, seq, chosen, propensity, eligible, cost, unpriced FROM decisions
            WHERE mode IN ('online', 'uniform', 'shadow') AND propensity > 0 AND len(cost) = len(eligible)
                AND ($2::VARCHAR IS NULL OR tenant = $2)
            ORDER BY seq DESC LIMIT $1
        )
        JOIN (SELECT decision_id, cost_usd, coalesce(cost_assumed, false) AS assumed, served_by, status FROM executions)
            USING (decision_id)
        WHERE status = 'ok' AND served_by = chosen
    ), pairs AS (
        SELECT paid AS ours, expected + CASE WHEN chosen = $3 THEN (paid - expected) / p ELSE 0 END AS theirs
        FROM drawn WHERE paid IS NOT NULL AND expected IS NOT NULL
    ), means AS (SELECT avg(ours) AS ours, avg(theirs) AS theirs FROM pairs)
    SELECT count(*), any_value(means.ours), any_value(means.theirs), stddev_samp(pairs.theirs - pairs.ours),
        stddev_samp(CASE WHEN means.theirs > 0 THEN pairs.ours - means.ours / means.theirs * pairs.theirs END),
        (SELECT count(*) FROM drawn WHERE paid IS NULL)
    FROM pairs, means
"""


_DRAWN = f"""
    WITH drawn AS MATERIALIZED (
        SELECT decision_id, seq, "user", mode <> 'shadow' AS ours, chosen, propensity AS p, eligible, unpriced,
            CASE WHEN len(cost) = len(eligible) THEN cost END AS cost
        FROM decisions WHERE rowid IN (  -- arrays are read for these rows only
            SELECT rowid FROM decisions
            WHERE mode IN ('online', 'uniform', 'shadow') AND propensity > 0 AND ts >= $3
                AND ($2::VARCHAR IS NULL OR tenant = $2) ORDER BY seq DESC LIMIT $1)
    ), ended AS (
        SELECT decision_id, arg_max(status, seq) = 'ok' AS ok, bool_and(served_by = chosen) AS plain,
            CASE WHEN NOT coalesce(arg_max(cost_assumed, seq), false) THEN arg_max(cost_usd, seq) END AS paid
        FROM executions
        WHERE seq > (SELECT min(seq) FROM drawn) AND decision_id IN (SELECT decision_id FROM drawn)
        GROUP BY decision_id
    ), rated AS (
        SELECT decision_id, arg_max(y, seq) AS y FROM heard_feedback
        WHERE seq > (SELECT min(seq) FROM drawn) AND decision_id IN (SELECT decision_id FROM drawn)
            AND {RATED} AND "user" IS NOT NULL AND y BETWEEN 0 AND 1
        GROUP BY decision_id
    ), unit AS MATERIALIZED (
        SELECT chosen, p, ok AND cost IS NOT NULL AS priced, paid, CASE WHEN ours THEN y END AS y,
            hash("user") AS person, eligible, cost, coalesce(unpriced, []) AS unpriced
        FROM drawn JOIN ended USING (decision_id) LEFT JOIN rated USING (decision_id) WHERE plain
    )
    SELECT chosen, p, priced, paid, y, person, list_contains(eligible, $4), list_contains(eligible, $5),
        CASE WHEN NOT list_contains(unpriced, $4) THEN cost[list_position(eligible, $4)] END,
        CASE WHEN NOT list_contains(unpriced, $5) THEN cost[list_position(eligible, $5)] END
    FROM unit
"""  # noqa: S608 - constants


class Estimate(NamedTuple):
    """An estimate with its 95% interval; NaN for a bound that is not estimated."""

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
    requests: int = 0
    """Requests that are."""

    def __str__(self) -> str:
        """The share in words: how much less, or more, and from where to where.

        >>> str(Savings("large", Estimate(0.1, 0.2, 0.3), Estimate(0.24, 0.31, 0.37), 2))
        '−31% [24, 37] against large, without 2 answers of unknown cost'
        >>> str(Savings("small", Estimate(-0.1, -0.05, 0.01), Estimate(-0.37, -0.31, 0.02), 0))
        '+31% [-2, 37] against small'
        """
        more = self.share.estimate < 0.0
        share = [-each for each in reversed(self.share)] if more else self.share
        low, saved, high = (None if math.isnan(each) else round(100 * each) for each in share)
        size = "not known" if saved is None else f"{'+' if more else '−'}{saved}%"
        ends = "" if low is None or high is None else f" [{low}, {high}]"
        less = f", without {many(self.unpriced, 'answer')} of unknown cost" if self.unpriced else ""
        return f"{size}{ends} against {self.model}{less}"


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """Mean rating of drawn answers, beside what it had been with a single model alone."""

    ratings: int
    """Rated answers that it could have given."""
    own: int
    """Those that it did give."""
    alone: Estimate | None = None
    """Mean rating of the model alone; None, like `gain`, with too few of its own."""
    gain: Estimate | None = None
    """Mean rating less that."""
    more: int | None = None
    """About how many more ratings tell the sign of the gain, if it stays; None for none, or more than `FAR`."""


class Against(msgspec.Struct, frozen=True, kw_only=True):
    """Routing against a single model."""

    model: str
    saved: Savings | None
    rating: Gain


def against(
    run: Callable[..., Sequence[list[tuple[Any, ...]]]],
    default: str | None,
    best: str,
    tenant: str | None,
    since: float = 0.0,
) -> dict[str, Against]:
    """Compare with the `default` model and the `best` single one, where they are known; `run` reads queries. Blocks.

    Args:
        run: reads queries.
        default: the default model.
        best: the best single one, of `figures.best_single`; empty if it is not known.
        tenant: whose requests; None for all.
        since: time of the first.

    Raises:
        StoreError: the warehouse cannot be read.
    """
    (rows,) = run((_DRAWN, [DECISIONS, tenant, since, default or "", best]))
    names = {"default": default, "best": best}
    found = {}
    for at, (name, model) in enumerate(names.items()):
        if model:
            priced = [(chosen, p, costs[2 + at], paid) for chosen, p, ok, paid, _, _, *costs in rows if ok]
            rated = [
                (who, chosen == model, p, y) for chosen, p, _, _, y, who, *can in rows if y is not None and can[at]
            ]
            pairs = [
                (cost + (paid - cost) / p * (chosen == model), paid)
                for chosen, p, cost, paid in priced
                if paid is not None and cost is not None
            ]
            saved = _of_pairs(model, pairs, sum(paid is None for *_, paid in priced))
            found[name] = Against(model=model, saved=saved, rating=gain(rated))
    return found


def measure(warehouse: Warehouse, default: str | None) -> Quality:
    """Estimate the current figures. Reads the warehouse: call it off the event loop, every minute or so.

    Args:
        warehouse: of all tenants.
        default: the default model.

    Raises:
        StoreError: the warehouse cannot be read.
    """
    try:
        from fitrouter_evaluators.personal.satisfaction import NUMBERS, ROLES, satisfaction_in
    except ModuleNotFoundError:  # without the packages of `replay`
        return Quality()
    tables = {"log": "", "feedback": "heard_feedback"}
    single = figures.best_single()
    roles, sums = warehouse.queries([(ROLES.format(**tables), [None]), single.query], whole=True)
    (numbers,) = warehouse.columns([(NUMBERS.format(**tables), [None])])
    best, known = single.read(sums)[0], dict[str, Estimate]()
    if len(numbers["y"]):
        found = satisfaction_in(numbers["y"], numbers["person"], numbers["role"], [name for (name,) in roles])
        shown = {name: getattr(found, name) for name in MEASURES}
        known = {name: Estimate(each.low, each.estimate, each.high) for name, each in shown.items() if each is not None}

    def run(*queries: Query) -> list[list[tuple[Any, ...]]]:
        return warehouse.queries(queries, whole=True)

    return Quality(satisfaction=known, best_single=best, saved=_against(run, default, best, None))


def saved(run: Callable[..., Sequence[list[tuple[Any, ...]]]], default: str | None, tenant: str | None) -> list[str]:
    """What a tenant, or all for None, saved, in words; `run` reads queries. Blocks.

    Raises:
        StoreError: the warehouse cannot be read.
    """
    single = figures.best_single(tenant)
    best, _ = single.read(run(single.query)[0])
    (((left_out,),),) = run((_LEFT_OUT, [tenant]))
    unheard = (
        [f"mean ratings and the best single model: {many(left_out, 'vote')} of {_WHOSE} left out"] if left_out else []
    )
    # Where the best single model is the default, both comparisons are the same sentence.
    return [*dict.fromkeys(str(each) for each in _against(run, default, best, tenant).values()), *unheard]


def saved_in(warehouse: Warehouse | None, default: str | None, tenant: str) -> list[str]:
    """What a tenant saved, in words, or why it is not known; see `saved`. Blocks."""
    if warehouse is None:
        return ["what was saved is not known: there is no warehouse, which needs DuckDB"]
    try:
        return saved(lambda *queries: warehouse.queries(queries, whole=True), default, tenant)
    except NoWarehouse as error:
        return [f"what was saved is not known yet: {error}"]


def _against(
    run: Callable[..., Sequence[list[tuple[Any, ...]]]], default: str | None, best: str, tenant: str | None
) -> dict[str, Savings]:
    """Savings against the models that are known, summed in the warehouse: a log may be long."""
    models = {name: model for name, model in (("default", default), ("best", best)) if model}
    rows = run(*((_MOMENTS, [DECISIONS, tenant, model]) for model in models.values())) if models else ()
    found = {name: _savings(model, *row) for (name, model), (row,) in zip(models.items(), rows, strict=True)}
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
    return _of_pairs(model, pairs, sum(paid is None for *_, paid in drawn))


def _of_pairs(model: str, pairs: Sequence[tuple[float, float]], unknown: int) -> Savings | None:
    """Savings by what each request would have cost and what was paid."""
    if len(pairs) < LEAST:
        return None
    theirs, ours = np.array(pairs).T
    mean, whole = float(ours.mean()), float(theirs.mean())
    off = float((ours - mean / whole * theirs).std(ddof=1)) if whole > 0.0 else None
    return _savings(model, len(pairs), mean, whole, float((theirs - ours).std(ddof=1)), off, unknown)


def _savings(
    model: str, n: int, ours: float, theirs: float, spread: float, off: float | None, unknown: int
) -> Savings | None:
    """Savings by their moments: of what was paid, what the model would have cost, and the differences of a request."""
    usd = _mean(theirs - ours, spread, n) if n >= LEAST else None
    if usd is None:
        return None
    share = Estimate(math.nan, math.nan, math.nan)
    if off is not None and theirs > 0.0:
        share = _mean(1.0 - ours / theirs, off / theirs, n) or share
    return Savings(model, usd, share, unknown, n)


def gain(rated: Sequence[tuple[Any, bool, float, float]]) -> Gain:
    """Compare the mean rating with that of a single model alone.

    Args:
        rated: (person, whether the model answered, propensity, rating) of each drawn answer that it could have given.
    """
    own = sum(each[1] for each in rated)
    found = Gain(ratings=len(rated), own=own)
    if own < LEAST:
        return msgspec.structs.replace(found, more=_rounded((LEAST - own) * len(rated) / own) if own else None)
    people, codes = np.unique([each[0] for each in rated], return_inverse=True)
    y, w = np.array([each[3] for each in rated]), np.array([each[1] / each[2] for each in rated])
    mean, alone = float(y.mean()), float(w @ y / w.sum())
    ours, theirs = (y - mean) / len(y), w * (y - alone) / w.sum()
    m = len(people)

    def half(influence: Floats) -> float:
        return (
            Z * math.sqrt(float((np.bincount(codes, influence) ** 2).sum()) * m / (m - 1)) if m >= FEWEST else math.nan
        )

    by, apart = half(theirs), half(ours - theirs)
    low, high = (math.nan, math.nan) if math.isnan(by) else interval(alone, by, m)
    better = mean - alone
    more = None
    if abs(better) < apart and better:
        more = _rounded(len(rated) * ((apart / better) ** 2 - 1.0))
    return msgspec.structs.replace(
        found,
        alone=Estimate(low, alone, high),
        gain=Estimate(max(better - apart, -1.0), better, min(better + apart, 1.0)),
        more=more,
    )


def _rounded(ratings: float) -> int | None:
    """A number of ratings to wait for, upwards to one digit and a half; None if nobody waits for as many.

    >>> _rounded(0.3), _rounded(41.0), _rounded(1234.0), _rounded(1e7)
    (1, 45, 1500, None)
    """
    if not ratings <= FAR:
        return None
    step: int = max(1, 5 * 10 ** (len(str(math.ceil(ratings))) - 2))
    return int(max(1, math.ceil(ratings / step) * step))


def _mean(mean: float, sd: float, n: int) -> Estimate | None:
    """A mean with its interval; None if it is no number, NaN for the bounds if all values are alike."""
    half = Z * sd / math.sqrt(n)
    if not math.isfinite(half):
        return None
    return Estimate(mean - half, mean, mean + half) if half > 1e-9 * abs(mean) else Estimate(math.nan, mean, math.nan)
