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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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

_ANSWERS = """
    SELECT d."user", x.served_by, s.h FROM log_decisions AS d
    JOIN (SELECT decision_id, any_value(served_by) AS served_by FROM log_executions WHERE status = 'ok' GROUP BY ALL)
        AS x USING (decision_id)
    LEFT JOIN (
        SELECT decision_id, arg_max(h, seq) AS h FROM log_scores WHERE schema = ? AND status = 'ok' GROUP BY decision_id
    ) AS s USING (decision_id)
    WHERE d.tenant = ? AND d."user" IS NOT NULL ORDER BY d.seq
"""
_RATED = f"""
    WITH rated AS (
        SELECT decision_id, y FROM heard_feedback
        WHERE {RATED} AND y BETWEEN 0 AND 1
        QUALIFY row_number() OVER (PARTITION BY decision_id ORDER BY seq DESC) = 1
    ), served AS (
        SELECT decision_id, bool_and(served_by = chosen) AS plain FROM log_executions GROUP BY decision_id
    )
    SELECT coalesce("user", decision_id), chosen, eligible, probs, twin, rest, mean, y
    FROM rated JOIN log_decisions USING (decision_id) JOIN served USING (decision_id)
    WHERE tenant = ? AND mode IN ('online', 'uniform') AND plain
        AND len(probs) = len(eligible) AND len(mean) = len(probs)
    ORDER BY seq
"""  # noqa: S608 - constants


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
        answers = opened.connection.execute(_ANSWERS, [schema, tenant]).fetchall()
        rated = opened.connection.execute(_RATED, [tenant]).fetchall()
    found = exposure(answers, style)
    return msgspec.structs.replace(found, prices=price_list(rated), units=len(rated), left_out=left_out)


def exposure(answers: Sequence[tuple[Any, ...]], style: Sequence[int]) -> Exposure:
    """Measure exposure from (user, model, h or None) of each answer, in order; without prices."""
    counts: dict[str, int] = {}
    own: dict[str, dict[str, int]] = {}
    styles: dict[str, list[Floats]] = {}
    by_model: dict[str, list[Floats]] = {}
    for user, model, h in answers:
        counts[model] = counts.get(model, 0) + 1
        mine = own.setdefault(user, {})
        mine[model] = mine.get(model, 0) + 1
        if h is not None:
            vector = np.array([h[i] for i in style], dtype=np.float64)
            if np.isfinite(vector).all():
                styles.setdefault(user, []).append(vector)
                by_model.setdefault(model, []).append(vector)
    shares = {model: n / len(answers) for model, n in sorted(counts.items())}
    found = Exposure(people=len(own), models=shares)
    known = [mine for mine in own.values() if sum(mine.values()) >= LEAST_ANSWERS]
    if len(known) < LEAST_PEOPLE:
        return found
    effective, most = [], []
    for mine in known:
        p = np.array(list(mine.values())) / sum(mine.values())
        effective.append(math.exp(-float((p * np.log(p)).sum())))
        most.append(float(p.max()) >= 0.95)
    return msgspec.structs.replace(
        found,
        models_each=interval_of(np.array(effective), Z, 1.0, float(len(counts))) if len(counts) > 1 else None,
        in_bubble=interval_of(np.array(most, dtype=np.float64)),
        unusual=_unusual(styles, by_model),
    )


def _unusual(styles: dict[str, list[Floats]], by_model: dict[str, list[Floats]]) -> Interval | None:
    apart = [
        np.linalg.norm(rows - rows.mean(axis=0), axis=1) * math.sqrt(len(rows) / (len(rows) - 1))
        for rows in (np.array(each) for each in by_model.values())
        if len(rows) >= LEAST_ANSWERS
    ]
    if not apart:
        return None
    reach, found = float(np.quantile(np.concatenate(apart), 0.9)), []
    for each in styles.values():
        rows = np.array(each)
        if len(rows) >= LEAST_ANSWERS:
            n = np.arange(2, len(rows), dtype=np.float64)  # answers before; the first two say little
            before = np.cumsum(rows, axis=0)[1:-1] / n[:, None]
            distance = np.linalg.norm(rows[2:] - before, axis=1) / np.sqrt(1.0 + 1.0 / n)
            found.append(float((distance > reach).mean()))
    return interval_of(np.array(found)) if len(found) >= LEAST_PEOPLE else None


def price_list(rated: Sequence[tuple[Any, ...]]) -> tuple[Price, ...]:
    """Compute prices from (cluster, chosen, eligible, probs, twin, rest, mean, y) of each rated decision."""
    people, clusters = np.unique([row[0] for row in rated], return_inverse=True)
    if len(rated) < LEAST_UNITS or len(people) < LEAST_PEOPLE:
        return ()
    changes: dict[str, list[float]] = {"friction": [], "floor": [], "blind": []}
    for _, chosen, eligible, probs, twin, rest, mean, y in rated:
        p, m = np.array(probs, dtype=np.float64), np.array(mean, dtype=np.float64)
        a = eligible.index(chosen)
        good = m >= m.max() - NEAR
        good[p.argmax()] = False
        other = good / good.sum() if good.any() else p
        free = p
        if rest and len(rest) == len(p) and sum(rest) < 1.0 - 1e-9:
            free = (p - np.array(rest)) / (1.0 - sum(rest))
        blind = np.array(twin) if len(twin) == len(p) else p
        for name, to, sign in (("friction", other, 1.0), ("floor", free, -1.0), ("blind", blind, 1.0)):
            changed = to - p
            changes[name].append(sign * float(changed @ m + changed[a] / p[a] * (y - m[a])))
    cost = {name: _clustered(-np.array(values), clusters) for name, values in changes.items()}
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
