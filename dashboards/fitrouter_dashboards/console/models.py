"""Data of the views *Models*, *Policy* and *Learning*: figures of each model, replays, and rates of labels."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from fitrouter.stores.figures import MODEL, RATED, Z, interval, ratings, traffic
from fitrouter.types import Identity
from fitrouter_dashboards.console.reads import Reads

RUNS = 30
"""Replays and changes that are listed."""
SPENT_PERIODS = 7
"""Full periods of a budget whose spending is shown."""

_RUNS = """
    SELECT run_id, ts, candidate, baseline, estimator, metric, estimate, low, high, n, ess, verdict FROM ope_runs
    WHERE coalesce(slice, '') IN ('', 'all') ORDER BY ts DESC LIMIT $1
"""
_RUN = (
    *("run_id", "ts", "candidate", "baseline", "estimator", "metric", "estimate", "low", "high"),
    *("n", "ess", "verdict"),
)
_CHANGES = "SELECT ts, action, name, settings FROM policies ORDER BY seq DESC LIMIT $1"
_LABELS = """
    WITH made AS MATERIALIZED (
        SELECT decision_hash AS decision, asked FROM decisions
        WHERE ($1::VARCHAR IS NULL OR tenant = $1) AND ts >= $2
            AND decision_hash NOT IN (SELECT decision_hash FROM executions WHERE status = 'declined')
    ), rated AS MATERIALIZED (
        SELECT asked FROM made
        WHERE decision IN (SELECT decision_hash FROM feedback WHERE ts >= $2 AND source <> 'chosen')
    )
    SELECT (SELECT count(*) FROM made),
        (SELECT count(*) FROM made
            WHERE asked AND decision IN (SELECT decision_hash FROM requests WHERE outcome = 'answered')),
        count(*) FILTER (asked), count(*)
    FROM rated
"""

_CALIBRATION = f"""
    WITH latest AS MATERIALIZED (
        SELECT decision_hash AS decision, arg_max(y, seq) AS y, any_value(person_hash) AS person
        FROM heard_feedback WHERE ($1::VARCHAR IS NULL OR tenant = $1) AND ts >= $2 AND {RATED} GROUP BY decision
    ), scored AS (
        SELECT decision_hash AS decision, arg_min(mean, seq) AS mean FROM scores
        WHERE ($1::VARCHAR IS NULL OR tenant = $1) AND ts >= $2 AND status = 'ok'
            AND decision_hash IN (SELECT decision FROM latest) GROUP BY decision
    )
    SELECT least(9, greatest(0, floor(10 * mean))) AS bin, avg(mean), avg(y), stddev_samp(y), count(*),
        count(DISTINCT person)
    FROM latest JOIN scored USING (decision) WHERE isfinite(mean) GROUP BY bin ORDER BY bin
"""  # noqa: S608 - constants


def spending(reads: Reads, tenant: str, now: float, period_s: float) -> list[dict[str, Any]]:
    """Read a tenant's spending in this period of its budget and the seven before it, the latest first. Blocks."""
    since = (now // period_s - SPENT_PERIODS) * period_s
    (found,) = reads.figures(traffic(Identity(tenant=tenant), since=since, by=f"floor(ts / {period_s!r})", timed=False))
    return [
        {"ts": period * period_s, **msgspec.to_builtins(each.cost), "requests": each.requests}
        for period, each in reversed(found.by.items())
    ]


def model_figures(reads: Reads, tenant: str | None, since: float) -> dict[str, dict[str, Any]]:
    """Read each model's traffic, and mean rating with a 95% interval. Blocks."""
    whose = None if tenant is None else Identity(tenant=tenant)
    moving, rated = reads.figures(traffic(whose, since=since, by=MODEL), ratings(whose, since=since, by="served_by"))
    found: dict[str, dict[str, Any]] = {model: msgspec.to_builtins(each) for model, each in moving.by.items()}
    for model, rating in rated.by.items():
        found.setdefault(model, {})["reward"] = msgspec.to_builtins(rating)
    return found


def replays(reads: Reads) -> dict[str, Any]:
    """Read the latest recorded replays and the latest changes of the policy. Blocks."""
    runs, changes = reads.rows((_RUNS, [RUNS]), (_CHANGES, [RUNS]))
    return {
        "replays": [
            {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row}
            for row in (zip(_RUN, run, strict=True) for run in runs)
        ],
        "changes": [dict(zip(("ts", "action", "name", "settings"), row, strict=True)) for row in changes],
    }


def calibration(reads: Reads, tenant: str | None, since: float) -> list[dict[str, Any]]:
    """Compare predicted with actual mean ratings, with 95% intervals, in ten bins of the prediction. Blocks."""
    found = []
    for _, predicted, mean, sd, n, people in reads.rows((_CALIBRATION, [tenant, since]))[0]:
        # a few equal ratings must not look certain
        low, high = interval(mean, Z * max(sd or 0.0, 0.25) / math.sqrt(n), n)
        rated = {"ratings": n, "people": people}
        found.append({"predicted": predicted, "mean": mean, "low": low, "high": high, **rated})
    return found


def label_rates(reads: Reads, tenant: str | None, since: float) -> dict[str, int]:
    """Count the decisions of a window: all, asked about, answered among those, and rated. Blocks."""
    ((row,),) = reads.rows((_LABELS, [tenant, since]))
    return dict(zip(("decisions", "asked", "answered", "rated"), row, strict=True))
