"""Data of the view *Now*: requests, ratings, cost and latency over time, and traffic from roles to models."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from fitrouter_dashboards.console.reads import Query, Reads

WINDOWS = {"1h": 3600.0, "24h": 86_400.0, "7d": 604_800.0, "30d": 2_592_000.0}
"""Name → seconds. `all` begins with the first request; `auto` is the shortest with `ENOUGH` requests, or with all."""
ENOUGH = 500
STEPS = (1.0, 2.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 10_800.0, 21_600.0, 43_200.0, 86_400.0)
"""Seconds of a point in time; above, whole days."""
POINTS = 60
"""Most points of a chart."""
SPARSE = 4
"""Points of the chart of requests for one of ratings, which are rarer."""
NAMES = 8
"""Roles and models that are shown by name; others are summed up."""
FEWEST = 5
"""People with fewer of whom an interval says little."""
_Z = 1.959964

_SPAN = """
    SELECT min(ts), count(*), count(*) FILTER (ts > $2 - 3600), count(*) FILTER (ts > $2 - 86400),
        count(*) FILTER (ts > $2 - 604800), count(*) FILTER (ts > $2 - 2592000)
    FROM executions WHERE $1::VARCHAR IS NULL OR tenant = $1
"""
_TOTALS = """
    SELECT count(*), count(*) FILTER (served_by IS NOT NULL), coalesce(sum(cost_usd), 0),
        coalesce(sum(cost_usd) FILTER (coalesce(cost_assumed, false)), 0),
        quantile_cont(latency_ms, [0.5, 0.95]) FILTER (served_by IS NOT NULL),
        count(*) FILTER (served_by IS NOT NULL AND served_by <> chosen)
    FROM executions WHERE ($1::VARCHAR IS NULL OR tenant = $1) AND ts >= $2
"""
_SERIES = """
    SELECT CAST(floor((ts - $2) / $3) AS BIGINT) AS point, count(*), coalesce(sum(cost_usd), 0),
        quantile_cont(latency_ms, [0.5, 0.95]) FILTER (served_by IS NOT NULL)
    FROM executions WHERE ($1::VARCHAR IS NULL OR tenant = $1) AND ts >= $2 GROUP BY point ORDER BY point
"""
_FLOWS = """
    SELECT left(coalesce(role, ''), 200) AS role, coalesce(served_by, '') AS model, count(*) AS n
    FROM executions WHERE ($1::VARCHAR IS NULL OR tenant = $1) AND ts >= $2
    GROUP BY 1, 2 ORDER BY n DESC LIMIT 5000
"""
# Groups of hashes, 64 bits, take half the time of groups of texts; two of a million are equal once in 10⁷ logs.
_RATED = """
    WITH latest AS MATERIALIZED (
        SELECT arg_max(ts, seq) AS ts, arg_max(y, seq) AS y, any_value(hash(coalesce("user", decision_id))) AS person
        FROM feedback
        WHERE ($1::VARCHAR IS NULL OR tenant = $1) AND ts >= $2
            AND dimension = 'overall' AND kind IN ('thumb', 'rating')
        GROUP BY hash(decision_id, kind)
    ), own AS (
        SELECT point, person, sum(y) AS total, count(*) AS n FROM (
            SELECT CAST(floor((ts - $2) / $3) AS BIGINT) AS point, person, y FROM latest
            UNION ALL SELECT -1, person, y FROM latest
        ) GROUP BY ALL
    ), together AS (SELECT point, sum(total) / sum(n) AS mean FROM own GROUP BY point)
    SELECT point, any_value(mean), sum(n), count(*), sqrt(sum((total - n * mean) ** 2)) / sum(n)
    FROM own JOIN together USING (point) GROUP BY point ORDER BY point
"""


def overview(reads: Reads, tenant: str | None, window: str, now: float) -> dict[str, Any]:
    """Read the figures of a window that ends now. Blocks.

    Args:
        reads: the warehouse.
        tenant: whose requests; None for all.
        window: `auto`, `all`, or a name of `WINDOWS`.
        now: seconds since the epoch.
    """
    ((first, everything, *counts),) = reads.rows((_SPAN, [tenant, now]))[0]
    if window == "auto":
        within = (name for name, n in zip(WINDOWS, counts, strict=True) if n >= min(ENOUGH, everything))
        window = next(within, "all")
    length = WINDOWS[window] if window in WINDOWS else max(now - (now if first is None else first), 60.0)
    step = _step(length)
    begin = (math.floor(now / step) + 1) * step - math.ceil(length / step) * step
    here: list[Any] = [tenant, begin]
    queries: tuple[Query, ...] = (
        (_TOTALS, here),
        (_SERIES, [*here, step]),
        (_FLOWS, here),
        (_RATED, [*here, SPARSE * step]),
    )
    totals, series, flows, rated = reads.rows(*queries)
    requests, answered, cost, assumed, latency, fallbacks = totals[0]
    return {
        "window": window,
        "from": begin,
        "to": now,
        "step_s": step,
        "rating_step_s": SPARSE * step,
        "points": math.ceil((now - begin) / step),
        "ever": everything,
        "totals": {
            "requests": requests,
            "answered": answered,
            "fallbacks": fallbacks,
            "cost_usd": cost,
            "cost_assumed_usd": assumed,
            **_latency(latency),
            "reward": _rating(rated[0]) if rated else None,  # the point −1 is the whole window
        },
        "series": [{"point": point, "requests": n, "cost_usd": usd, **_latency(ms)} for point, n, usd, ms in series],
        "ratings": [{"point": row[0], **_rating(row)} for row in rated[1:]],
        "flows": _folded(flows, requests),
    }


def _step(length: float) -> float:
    for step in STEPS:
        if length / step <= POINTS:
            return step
    return math.ceil(length / POINTS / 86_400.0) * 86_400.0


def _latency(quantiles: list[float] | None) -> dict[str, float | None]:
    p50, p95 = quantiles or (None, None)
    return {"p50_ms": p50, "p95_ms": p95}


def _rating(row: tuple[Any, ...]) -> dict[str, Any]:
    """Return a mean rating with its 95 % interval, clustered by person; no bounds for fewer than `FEWEST` people."""
    _, mean, n, people, error = row
    half = _Z * error * math.sqrt(people / (people - 1)) if people >= FEWEST else None
    low, high = (None, None) if half is None else (max(0.0, mean - half), min(1.0, mean + half))
    return {"mean": mean, "low": low, "high": high, "ratings": int(n), "people": people}


def _folded(flows: list[tuple[Any, ...]], requests: int) -> list[dict[str, Any]]:
    """Count traffic from roles to models, largest first; roles and models beyond the `NAMES` largest become `null`."""
    roles, models, found = Counter[str](), Counter[str](), Counter[tuple[str | None, str | None]]()
    for role, model, n in flows:
        roles[role] += n
        models[model] += n
    shown_roles = {name for name, _ in roles.most_common(NAMES)}
    shown_models = {name for name, _ in models.most_common(NAMES)}
    for role, model, n in flows:
        found[role if role in shown_roles else None, model if model in shown_models else None] += n
    if (rest := requests - sum(found.values())) > 0:
        found[None, None] += rest
    return [{"role": role, "model": model, "requests": n} for (role, model), n in found.most_common()]
