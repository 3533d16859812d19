"""Exposure of people to answers and models beyond their usual ones, and what pluralism would cost them.

**Exposure.** An answer is outside a person's usual style if it is further from the mean of their earlier answers than
nine tenths of one model's answers are from that model's mean. So a person with one model is near a tenth. The effective
number of models is the exponential of the entropy of their shares.

**Price list.** What a change of the probabilities would cost in rating, from the logged ones, doubly robust with the
logged predictions as baseline (Dudík, Langford and Li 2011): a unit's difference is

    Σ_k (π'_k − π_k) m_k + (π'_a − π_a) / π_a · (y − m_a),

and people are independent, so that intervals are of a mean over clusters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np

from fitrouter.config import FeedbackConfig
from fitrouter.stores.figures import RATED, Z
from fitrouter.types import Floats
from fitrouter_evaluators.personal.satisfaction import Interval, interval_of
from fitrouter_evaluators.replay.log.heard import hear
from fitrouter_evaluators.replay.log.sources import open_log

LEAST_ANSWERS, LEAST_PEOPLE, LEAST_UNITS = 5, 10, 100
"""Fewest answers of a person or model for a style, people for exposure, and ratings for prices."""
NEAR = 0.1
"""A model is good if its predicted rating is at most this below the best one's."""
FRICTIONS = (0.05, 0.1, 0.2)

_SERVED = """(
        SELECT decision_id, any_value(served_by) AS model FROM log_executions WHERE status = 'ok' {where} GROUP BY ALL
    )"""
_COUNTS = f"""
    SELECT hash("user") AS person, model, count(*) AS n FROM log_decisions JOIN {_SERVED.format(where="")}
        USING (decision_id)
    WHERE tenant = ? AND "user" IS NOT NULL GROUP BY ALL
"""  # noqa: S608 - constants
_STYLES = f"""
    WITH scored AS (
        SELECT decision_id, arg_max(h, seq) AS h FROM log_scores WHERE schema = ? AND status = 'ok' GROUP BY decision_id
    )
    SELECT hash("user") AS person, hash(model) AS model {{style}} FROM scored JOIN log_decisions USING (decision_id)
    JOIN {_SERVED.format(where="AND decision_id IN (SELECT decision_id FROM scored)")} USING (decision_id)
    WHERE tenant = ? AND "user" IS NOT NULL ORDER BY seq
"""  # noqa: S608 - constants
_RATED = f"""
    WITH rated AS (
        SELECT decision_id, y FROM heard_feedback
        WHERE {RATED} AND y BETWEEN 0 AND 1
        QUALIFY row_number() OVER (PARTITION BY decision_id ORDER BY seq DESC) = 1
    ), served AS (
        SELECT decision_id, bool_and(served_by = chosen) AS plain FROM log_executions
        WHERE decision_id IN (SELECT decision_id FROM rated) GROUP BY decision_id
    )
    SELECT seq, hash(coalesce("user", decision_id)) AS person, y,
        generate_subscripts(probs, 1) AS place, coalesce(place = list_position(eligible, chosen), false) AS drawn,
        unnest(probs) AS p, unnest(mean) AS mean,
        unnest(CASE WHEN len(twin) = len(probs) THEN twin ELSE probs END) AS blind,
        unnest(CASE WHEN len(rest) = len(probs) THEN rest ELSE [0.0 for _ in probs] END) AS rest
    FROM rated JOIN log_decisions USING (decision_id) JOIN served USING (decision_id)
    WHERE tenant = ? AND mode IN ('online', 'uniform') AND plain
        AND len(probs) = len(eligible) AND len(mean) = len(probs)
    ORDER BY seq, place
"""  # noqa: S608 - constants

Columns: TypeAlias = Mapping[str, Any]
"""Name → array, as DuckDB gives them."""


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """Price of a change in mean rating, on a scale from 0 to 1; negative for a gain."""

    name: str
    words: str
    cost: Interval


class Exposure(msgspec.Struct, frozen=True, kw_only=True):
    """Variety of the models and answers that people get, and the price of more or less of it."""

    people: int
    models: dict[str, float]
    """Share of the answers by model."""
    models_each: Interval | None = None
    """Effective number of models of a person, the mean over people with at least five answers."""
    unusual: Interval | None = None
    """Share of a person's answers outside their usual style, the mean over people; .1 is one model's own spread."""
    in_bubble: Interval | None = None
    """Share of people to whom one model gave at least 95% of their answers."""
    prices: tuple[Price, ...] = ()
    units: int = 0
    """Ratings that the prices are estimated from; none are with fewer than 100, or of fewer than ten people."""
    left_out: int = 0
    """Votes that do not count for the prices, because their untrusted keys name more users than count for others."""


def exposed(
    log: Path, *, tenant: str, schema: str, style: Sequence[int], limits: FeedbackConfig | None = None
) -> Exposure:
    """Measure the exposure of a tenant's people, with the price list, from a log. Blocks.

    Args:
        log: any that `read_log` takes; a gateway may be writing it.
        tenant: whose people.
        schema: of the response features.
        style: indices of the style dimensions among them.
        limits: on votes, in force during logging; None for the defaults.

    Raises:
        ConfigError, InvalidLog, StoreError: as `open_log`.
    """
    with open_log(log) as opened:
        left_out = hear(opened.connection, limits, tenant)
        dimensions = "".join(f", h[{i + 1}]" for i in style)
        counts = opened.connection.execute(_COUNTS, [tenant]).fetchnumpy()
        styles = opened.connection.execute(_STYLES.format(style=dimensions), [schema, tenant]).fetchnumpy()
        rated = opened.connection.execute(_RATED, [tenant]).fetchnumpy()
    found = exposure(counts, styles)
    units = len(np.unique(rated["seq"]))
    return msgspec.structs.replace(found, prices=price_list(rated), units=units, left_out=left_out)


def exposure(counts: Columns, styles: Columns) -> Exposure:
    """Measure exposure.

    Args:
        counts: `person`, `model`, and number `n` of the model's answers to the person.
        styles: `person`, `model` and, under other names, the style dimensions of each scored answer, in order.
    """
    users, who = np.unique(counts["person"], return_inverse=True)
    models, which = np.unique(np.asarray(counts["model"], dtype=str), return_inverse=True)
    answers = np.bincount(who, counts["n"])
    shares = np.bincount(which, counts["n"]) / max(answers.sum(), 1)
    found = Exposure(people=len(users), models=dict(zip(models.tolist(), shares.tolist(), strict=True)))
    known = answers >= LEAST_ANSWERS
    if known.sum() < LEAST_PEOPLE:
        return found
    p, most = counts["n"] / answers[who], np.zeros(len(users))
    np.maximum.at(most, who, p)
    effective = np.exp(-np.bincount(who, p * np.log(p)))
    return msgspec.structs.replace(
        found,
        models_each=interval_of(effective[known], Z, 1.0, float(len(models))) if len(models) > 1 else None,
        in_bubble=interval_of((most[known] >= 0.95).astype(np.float64)),
        unusual=_unusual(**styles),
    )


def _unusual(person: Any, model: Any, **style: Any) -> Interval | None:
    if not style:
        return None
    rows = np.stack([np.ma.filled(each.astype(np.float64), np.nan) for each in style.values()], axis=1)
    here = np.flatnonzero(np.isfinite(rows).all(axis=1))
    here = here[np.argsort(person[here], kind="stable")]
    rows, model, (_, first, who, each) = rows[here], model[here], np.unique(person[here], True, True, True)
    apart = [
        np.linalg.norm(own - own.mean(axis=0), axis=1) * math.sqrt(len(own) / (len(own) - 1))
        for own in (rows[model == one] for one in np.unique(model))
        if len(own) >= LEAST_ANSWERS
    ]
    if not apart:
        return None
    reach = float(np.quantile(np.concatenate(apart), 0.9))
    sums = np.cumsum(rows, axis=0) - rows
    n = np.arange(len(rows)) - first[who]  # answers before; the first two say little
    told = (n >= 2) & (each[who] >= LEAST_ANSWERS)
    before, n = (sums - sums[first][who])[told] / n[told, None], n[told]
    distance = np.linalg.norm(rows[told] - before, axis=1) / np.sqrt(1.0 + 1.0 / n)
    counted = each >= LEAST_ANSWERS
    unusual = np.bincount(who[told], distance > reach, len(each))[counted] / (each[counted] - 2)
    return interval_of(unusual) if len(unusual) >= LEAST_PEOPLE else None


def price_list(rated: Columns) -> tuple[Price, ...]:
    """Compute prices from rated decisions, one row for each eligible model of each, in order.

    Args:
        rated: `seq` of the decision, `person`, rating `y`, whether the model was `drawn`, its probability `p`, the
            predicted `mean`, its probability `blind` to the person, and the `rest` of it that is for exploration.
    """
    _, starts, unit = np.unique(rated["seq"], return_index=True, return_inverse=True)
    people, clusters = np.unique(rated["person"][starts], return_inverse=True)
    if len(starts) < LEAST_UNITS or len(people) < LEAST_PEOPLE:
        return ()
    p, m, drawn = rated["p"], rated["mean"], rated["drawn"]
    top = np.flatnonzero(p == np.maximum.reduceat(p, starts)[unit])
    good = m >= np.maximum.reduceat(m, starts)[unit] - NEAR
    good[top[np.unique(unit[top], return_index=True)[1]]] = False
    near, rest = np.add.reduceat(good.astype(np.float64), starts)[unit], np.add.reduceat(rated["rest"], starts)[unit]
    other = np.where(near > 0.0, good / np.maximum(near, 1.0), p)
    split = rest < 1.0 - 1e-9
    free = np.where(split, (p - rated["rest"]) / np.where(split, 1.0 - rest, 1.0), p)
    cost = {}
    for name, to, sign in (("friction", other, -1.0), ("floor", free, 1.0), ("blind", rated["blind"], -1.0)):
        changed = to - p
        each = changed * m + np.where(drawn, changed / np.where(drawn, p, 1.0) * (rated["y"] - m), 0.0)
        cost[name] = _clustered(sign * np.add.reduceat(each, starts), clusters)
    found = [
        Price(
            name=f"friction {share:g}",
            words=f"{share:.0%} of the traffic for other models that are about as good",
            cost=_scaled(cost["friction"], share),
        )
        for share in FRICTIONS
    ]
    found.append(Price(name="floor", words="exploration (floor, new models, uniform slice)", cost=cost["floor"]))
    for share in (0.5, 1.0):
        text = f"noise that hides who asks in {share:.0%} of the requests" if share < 1.0 else "nothing personal at all"
        found.append(Price(name=f"privacy {share:g}", words=text, cost=_scaled(cost["blind"], share)))
    return tuple(each for each in found if each.cost.low < each.cost.high)  # else the change changes nothing


def _scaled(cost: Interval, share: float) -> Interval:
    return Interval(share * cost.estimate, share * cost.low, share * cost.high, cost.people)


def _clustered(values: Floats, clusters: Any) -> Interval:
    """Mean over units, with a normal interval that allows for dependence within clusters."""
    mean = float(values.mean())
    sums = np.bincount(clusters, weights=values - mean)
    U = len(sums)
    half = Z * math.sqrt(float((sums**2).sum()) * U / (U - 1)) / len(values)
    return Interval(mean, mean - half, mean + half, U)
