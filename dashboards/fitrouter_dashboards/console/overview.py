"""Data of the view *Now*: requests, ratings, cost and latency over time, gains, and what happened since a time."""

from __future__ import annotations

import math
from collections import Counter
from statistics import NormalDist
from typing import Any

import msgspec

from fitrouter.stores.figures import MODEL, Figure, Rating, Traffic, Z, best_single, raters, ratings, traffic
from fitrouter.types import Identity
from fitrouter_dashboards.console.alarms import Unhappy
from fitrouter_dashboards.console.reads import Reads
from fitrouter_dashboards.quality import against

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

CHANGES = 20
"""Latest changes of the policy that are told."""

_CHANGED = "SELECT ts, action, name, settings FROM policies WHERE ts >= $1 ORDER BY seq DESC LIMIT $2"
_SPAN = """
    SELECT min(ts), sum(n), sum(n) FILTER (ts > $2 - 3600), sum(n) FILTER (ts > $2 - 86400),
        sum(n) FILTER (ts > $2 - 604800), sum(n) FILTER (ts > $2 - 2592000)
    FROM requests WHERE $1::VARCHAR IS NULL OR tenant = $1
"""
_FLOWS = """
    SELECT left(coalesce(role, ''), 200) AS role, coalesce(model, '') AS model, CAST(sum(n) AS BIGINT) AS n
    FROM (
        SELECT role, served_by AS model, sum(n) AS n FROM requests
        WHERE ($1::VARCHAR IS NULL OR tenant = $1) AND ts >= $2 GROUP BY ALL
    ) GROUP BY 1, 2 ORDER BY n DESC LIMIT 5000
"""


def overview(reads: Reads, tenant: str | None, window: str, now: float) -> dict[str, Any]:
    """Read the figures of a window that ends now. Blocks.

    Args:
        reads: the warehouse.
        tenant: whose requests; None for all.
        window: `auto`, `all`, or a name of `WINDOWS`.
        now: seconds since the epoch.
    """
    ((first, *spans),) = reads.rows((_SPAN, [tenant, now]))[0]
    everything, *counts = (int(n or 0) for n in spans)
    if window == "auto":
        within = (name for name, n in zip(WINDOWS, counts, strict=True) if n >= min(ENOUGH, everything))
        window = next(within, "all")
    length = WINDOWS[window] if window in WINDOWS else max(now - (now if first is None else first), 60.0)
    step = _step(length)
    begin = (math.floor(now / step) + 1) * step - math.ceil(length / step) * step
    if window == "all" and first is not None:  # the first request need not be in the step that the length ends in
        begin = min(begin, math.floor(first / step) * step)
    whose = None if tenant is None else Identity(tenant=tenant)

    def point(seconds: float) -> str:
        return f"CAST(floor((ts - {begin!r}) / {seconds!r}) AS BIGINT)"

    moving, rated, flows = reads.figures(
        traffic(whose, since=begin, by=point(step)),
        ratings(whose, since=begin, by=point(SPARSE * step)),
        Figure((_FLOWS, [tenant, begin]), list),
    )
    totals: Traffic = moving.all
    return {
        "window": window,
        "from": begin,
        "to": now,
        "step_s": step,
        "rating_step_s": SPARSE * step,
        "points": math.ceil((now - begin) / step),
        "ever": everything,
        "totals": {**msgspec.to_builtins(totals), "reward": msgspec.to_builtins(rated.all)},
        "series": [
            {
                "point": at,
                "requests": each.requests,
                "cost_usd": each.cost.usd,
                "p50_ms": each.p50_ms,
                "p95_ms": each.p95_ms,
            }
            for at, each in moving.by.items()
        ],
        "ratings": [{"point": at, **msgspec.to_builtins(each)} for at, each in rated.by.items()],
        "flows": _folded(flows, totals.requests),
    }


def single(reads: Reads, tenant: str | None) -> str:
    """Read the best single model, of the whole log; empty if it is not known. Blocks."""
    return str(reads.figures(best_single(tenant))[0][0])


def gains(reads: Reads, tenant: str | None, since: float, default: str | None, best: str) -> dict[str, Any]:
    """Compare with the default and the best single model since a time, see `quality.against`. Blocks."""
    return {name: msgspec.to_builtins(each) for name, each in against(reads.rows, default, best, tenant, since).items()}


def looked(reads: Reads, tenant: str | None, since: float, now: float) -> dict[str, Any]:
    """Read what happened since somebody last looked, beside as long a time before. Blocks.

    Args:
        reads: the warehouse.
        tenant: whose requests; None for all, with the changes of the policy.
        since: time of the last look.
        now: seconds since the epoch.
    """
    whose, begin = None if tenant is None else Identity(tenant=tenant), 2.0 * since - now
    half = f"CASE WHEN ts >= {since!r} THEN 'since' ELSE 'before' END"
    moving, models, rated, roles, changed = reads.figures(
        traffic(whose, since=begin, by=half, timed=False),
        traffic(whose, since=begin, by=f"[{half}, {MODEL}]", timed=False),
        ratings(whose, since=begin, by=half),
        ratings(whose, since=begin, by=f"[{half}, role]"),
        Figure((_CHANGED, [since, CHANGES]), list),
    )
    compared = sum(when == "since" for when, _ in roles.by)  # at once, so that none seems to change by chance (Šidák)
    wider = NormalDist().inv_cdf(0.5 + 0.5 * 0.95 ** (1.0 / max(compared, 1))) / Z
    apart = [
        {"role": role, **change}
        for (when, role), after in roles.by.items()
        if when == "since" and role and (change := _change(roles.by.get(("before", role)), after, wider)) is not None
    ]
    clear = [each for each in apart if each["low"] > 0.0 or each["high"] < 0.0]
    return {
        "since": since,
        "traffic": {name: msgspec.to_builtins(each) for name, each in moving.by.items()},
        "ratings": {name: msgspec.to_builtins(each) for name, each in rated.by.items()},
        "change": _change(rated.by.get("before"), rated.by.get("since")),
        "roles": sorted(clear, key=lambda each: -abs(each["mean"])),
        "models": {
            when: {model: each.requests for (at, model), each in models.by.items() if at == when and model}
            for when in ("since", "before")
        },
        "changes": [dict(zip(("ts", "action", "name", "settings"), row, strict=True)) for row in changed]
        if tenant is None
        else [],
    }


def _change(before: Rating | None, after: Rating | None, wider: float = 1.0) -> dict[str, float] | None:
    """Difference of two mean ratings with its 95% interval, as if of different people; None if it is not known."""
    if before is None or after is None or None in (before.low, after.low):
        return None
    mean = after.mean - before.mean
    low = mean - wider * math.hypot(after.mean - after.low, before.high - before.mean)  # type: ignore[operator]
    high = mean + wider * math.hypot(after.high - after.mean, before.mean - before.low)  # type: ignore[operator]
    return {"mean": mean, "low": max(low, -1.0), "high": min(high, 1.0)}


def unhappy(reads: Reads, tenant: str | None, since: float) -> Unhappy:
    """Read how many people are unhappy, and who is unhappiest. Blocks."""
    whose = None if tenant is None else Identity(tenant=tenant)
    (found,) = reads.figures(raters(whose, since=since, most=1))
    return Unhappy(found.unhappy, [(t, user, r.mean, r.ratings) for t, user, r in found.listed][: found.unhappy])


def _step(length: float) -> float:
    for step in STEPS:
        if length / step <= POINTS:
            return step
    return math.ceil(length / POINTS / 86_400.0) * 86_400.0


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
