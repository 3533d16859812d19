"""Data of the view *Money*: requests, tokens and costs by model, role, day or person; which efforts may be allowed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from fitrouter.posterior.arms import EFFORTS
from fitrouter.routing.variants import effort_level
from fitrouter.state.settings import names_of
from fitrouter.stores.figures import MODEL, Traffic, traffic
from fitrouter.types import Identity, ModelCard
from fitrouter_dashboards.console.reads import Reads

GROUPS = {
    "model": MODEL,
    "role": "left(coalesce(role, ''), 200)",
    "day": "CAST(floor(ts / 86400) AS BIGINT) * 86400",
    "person": "coalesce(person_hash, 0)",
}
"""Name → SQL of the group."""
_NAMES = {"person": """coalesce("user", '')"""}
"""Name → SQL of the group's name, where it is another."""
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
    most = MOST + 1 if by in {"role", "person"} else None  # of the others there are few: to choose takes a second pass
    moved = traffic(whose, since=since, by=GROUPS[by], named=_NAMES.get(by, ""), most=most, timed=False)
    (found,) = reads.figures(moved)
    rows = sorted(found.by.items(), key=lambda each: (-(each[1].cost.usd or 0.0), -each[1].requests, str(each[0])))
    rows = rows[: MOST + 1]
    if by == "day":
        rows.sort(reverse=True)
    return {
        "by": by,
        "all": None if found.all is None else _of(found.all),
        "rows": [{"key": key, **_of(each)} for key, each in rows[:MOST]],
        "more": len(rows) > MOST,
    }


def caps(models: Mapping[str, ModelCard], paused: str) -> dict[str, Any] | None:
    """Levels of effort that may be the highest allowed, and the value of `paused` for each; None where there are none.

    Args:
        models: by the names that requests pin.
        paused: the setting in force.
    """
    levels = {name: EFFORTS.index(level) for name, card in models.items() if (level := effort_level(card))}
    if not levels:
        return None
    names, most = names_of(paused), [-1, *sorted({*levels.values()})]
    now = max((level for name, level in levels.items() if name not in names), default=-1)

    def beyond(most: int) -> str:
        kept = [name for name in names if not now < levels.get(name, -1) <= most]
        return ",".join(dict.fromkeys([*kept, *(name for name, level in levels.items() if level > most)]))

    return {
        "now": most.index(now),
        "levels": [EFFORTS[level] if level >= 0 else "" for level in most],
        "paused": [beyond(level) for level in most],
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
