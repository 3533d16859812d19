"""Data of the view *Money*: requests, tokens and costs by model, role, day or person."""

from __future__ import annotations

from typing import Any

import msgspec

from fitrouter.stores.figures import MODEL, Traffic, traffic
from fitrouter.types import Identity
from fitrouter_dashboards.console.reads import Reads

GROUPS = {
    "model": MODEL,
    "role": "left(coalesce(role, ''), 200)",
    "day": "CAST(floor(ts / 86400) AS BIGINT) * 86400",
    "person": """coalesce("user", '')""",
}
"""Name → SQL of the group."""
MOST = 60
"""Groups that are shown, those of most money first."""


def spent(reads: Reads, tenant: str | None, since: float, by: str) -> dict[str, Any]:
    """Read what was spent since a time, of all and of each group. Blocks.

    Args:
        reads: the warehouse.
        tenant: whose requests; None for all.
        since: time of the first.
        by: a name of `GROUPS`.
    """
    whose = None if tenant is None else Identity(tenant=tenant)
    (found,) = reads.figures(traffic(whose, since=since, by=GROUPS[by], most=MOST + 1, timed=False))
    rows = sorted(found.by.items(), key=lambda each: (-(each[1].cost.usd or 0.0), -each[1].requests, str(each[0])))
    if by == "day":
        rows.sort(reverse=True)
    return {
        "by": by,
        "all": None if found.all is None else _of(found.all),
        "rows": [{"key": key, **_of(each)} for key, each in rows[:MOST]],
        "more": len(rows) > MOST,
    }


def _of(each: Traffic) -> dict[str, Any]:
    """Figures of a group; tokens of which a provider charges alike are in one of five parts, which add up."""
    return {
        "requests": each.requests,
        "answered": each.answered,
        "fresh": each.prompt_tokens - each.cached_tokens - each.written_tokens,
        "cached": each.cached_tokens,
        "written": each.written_tokens,
        "output": each.completion_tokens - each.reasoning_tokens,
        "reasoning": each.reasoning_tokens,
        "estimated": each.estimated,
        "cost": msgspec.to_builtins(each.cost),
    }
