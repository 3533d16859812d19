"""Data of the views *Models*, *Policy* and *Learning*: figures of each model, replays, and rates of labels."""

from __future__ import annotations

import math
from typing import Any

from fitrouter_dashboards.console.overview import FEWEST
from fitrouter_dashboards.console.reads import Reads

RUNS = 30
"""Replays and changes that are listed."""
SPENT_PERIODS = 7
"""Full periods of a budget whose spending is shown."""
_Z = 1.959964

_TRAFFIC = """
    SELECT coalesce(served_by, chosen), count(*), count(*) FILTER (served_by IS NULL), sum(cost_usd), median(latency_ms)
    FROM executions WHERE ($1::VARCHAR IS NULL OR tenant = $1) AND ts >= $2 GROUP BY 1
"""
_RATINGS = """
    WITH latest AS (
        SELECT decision_id, arg_max(y, seq) AS y, any_value(coalesce("user", decision_id)) AS person FROM feedback
        WHERE ($1::VARCHAR IS NULL OR tenant = $1) AND ts >= $2
            AND dimension = 'overall' AND kind IN ('thumb', 'rating')
        GROUP BY decision_id, kind
    ), own AS (
        SELECT served_by AS model, person, sum(y) AS total, count(*) AS n
        FROM latest JOIN executions USING (decision_id) WHERE served_by IS NOT NULL GROUP BY ALL
    ), together AS (SELECT model, sum(total) / sum(n) AS mean FROM own GROUP BY model)
    SELECT model, any_value(mean), sum(n), count(*), sqrt(sum((total - n * mean) ** 2)) / sum(n)
    FROM own JOIN together USING (model) GROUP BY model
"""
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
    SELECT count(*), count(*) FILTER (asked),
        count(*) FILTER (asked AND decision_id IN (SELECT decision_id FROM feedback WHERE ts >= $2)),
        count(*) FILTER (decision_id IN (SELECT decision_id FROM feedback WHERE ts >= $2))
    FROM decisions WHERE ($1::VARCHAR IS NULL OR tenant = $1) AND ts >= $2
"""

_CALIBRATION = """
    WITH latest AS (
        SELECT decision_id, arg_max(y, seq) AS y FROM feedback
        WHERE ($1::VARCHAR IS NULL OR tenant = $1) AND ts >= $2
            AND dimension = 'overall' AND kind IN ('thumb', 'rating')
        GROUP BY decision_id
    ), scored AS (
        SELECT decision_id, arg_min(mean, seq) AS mean FROM scores
        WHERE ($1::VARCHAR IS NULL OR tenant = $1) AND ts >= $2 AND status = 'ok' GROUP BY decision_id
    )
    SELECT least(9, greatest(0, floor(10 * mean))) AS bin, avg(mean), avg(y), stddev_samp(y), count(*)
    FROM latest JOIN scored USING (decision_id) WHERE isfinite(mean) GROUP BY bin ORDER BY bin
"""

_SPENT = """
    SELECT floor(ts / $2) AS period, coalesce(sum(cost_usd), 0), count(*) FROM executions
    WHERE tenant = $1 AND ts >= $3 GROUP BY period ORDER BY period DESC
"""


def spending(reads: Reads, tenant: str, now: float, period_s: float) -> list[dict[str, Any]]:
    """Read a tenant's spending in this period of its budget and the seven before it, the latest first. Blocks."""
    since = (now // period_s - SPENT_PERIODS) * period_s
    (rows,) = reads.rows((_SPENT, [tenant, period_s, since]))
    return [{"ts": period * period_s, "usd": usd, "requests": n} for period, usd, n in rows]


def model_figures(reads: Reads, tenant: str | None, since: float) -> dict[str, dict[str, Any]]:
    """Read each model's requests, failures, cost, latency, and mean rating with a 95 % interval. Blocks."""
    traffic, ratings = reads.rows((_TRAFFIC, [tenant, since]), (_RATINGS, [tenant, since]))
    found: dict[str, dict[str, Any]] = {
        model: {"requests": n, "failed": failed, "cost_usd": usd, "p50_ms": ms} for model, n, failed, usd, ms in traffic
    }
    for model, mean, n, people, error in ratings:
        half = _Z * error * math.sqrt(people / (people - 1)) if people >= FEWEST else None
        low, high = (None, None) if half is None else (max(0.0, mean - half), min(1.0, mean + half))
        rating = {"mean": mean, "low": low, "high": high, "ratings": int(n), "people": people}
        found.setdefault(model, {})["reward"] = rating
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
    """Compare predicted with actual mean ratings, with 95 % intervals, in ten bins of the prediction. Blocks."""
    found = []
    for _, predicted, mean, sd, n in reads.rows((_CALIBRATION, [tenant, since]))[0]:
        # a few equal ratings must not look certain
        half = _Z * max(sd or 0.0, 0.25) / math.sqrt(n)
        low, high = max(0.0, mean - half), min(1.0, mean + half)
        found.append({"predicted": predicted, "mean": mean, "low": low, "high": high, "ratings": n})
    return found


def label_rates(reads: Reads, tenant: str | None, since: float) -> dict[str, int]:
    """Count the decisions of a window: all, asked about, answered among those, and rated. Blocks."""
    ((row,),) = reads.rows((_LABELS, [tenant, since]))
    return dict(zip(("decisions", "asked", "answered", "rated"), row, strict=True))
