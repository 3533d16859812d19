"""Data of the view *People and roles*: requests, feedback, declared values and decisions of each."""

from __future__ import annotations

from typing import Any

import msgspec

from fitrouter.stores.figures import MODEL, Figure, least_satisfied, traffic, votes
from fitrouter.types import FeedbackKind, Identity
from fitrouter_dashboards.console.reads import Reads

PROMPTS = 40
"""Latest decisions that are decided again."""
ROLES = 50
"""Roles that can be chosen."""
MODELS = 20
"""Models with the most requests."""
SAID = frozenset({FeedbackKind.THUMB, FeedbackKind.RATING, FeedbackKind.PAIR})
"""Kinds of feedback in which people say what they think; the others are what they did."""

_ROLES = """
    SELECT tenant, role, count(*) AS requests, count(DISTINCT "user") FROM decisions
    WHERE ($1::VARCHAR IS NULL OR tenant = $1) AND coalesce(role, '') <> '' AND ts >= $2
    GROUP BY ALL ORDER BY requests DESC, role LIMIT $3
"""
_KNOWN = """
    SELECT DISTINCT "user" FROM decisions
    WHERE tenant = $1 AND CASE WHEN len($2) < 8 THEN "user" = $2 ELSE starts_with("user", $2) END LIMIT 3
"""
_WHO = 'tenant = $1 AND ($2::VARCHAR IS NULL OR "user" = $2) AND ($3::VARCHAR IS NULL OR role = $3)'
_REMARKS = f"""
    SELECT entry.key, count(*), avg(entry.value) FROM (
        SELECT unnest(map_entries(moved)) AS entry FROM remarks WHERE {_WHO}
    ) GROUP BY 1 ORDER BY 2 DESC LIMIT 20
"""  # noqa: S608 - a constant
_LATEST = f"""
    SELECT decision_id, chosen FROM decisions
    WHERE {_WHO} AND ts >= $4 AND mode IN ('online', 'uniform', 'shadow') AND len(probs) > 1
    ORDER BY seq DESC LIMIT $5
"""  # noqa: S608 - a constant


def roles(reads: Reads, tenant: str | None, since: float) -> list[dict[str, Any]]:
    """Read the most frequent roles of a tenant, or of all for None. Blocks."""
    (found,) = reads.rows((_ROLES, [tenant, since, ROLES]))
    return [dict(zip(("tenant", "role", "requests", "people"), row, strict=True)) for row in found]


def lowest(reads: Reads, tenant: str | None, since: float) -> list[dict[str, Any]]:
    """Read who rates lowest, below the middle of the scale; tenant and time as of `roles`. Blocks."""
    (found,) = reads.figures(least_satisfied(tenant, since=since))
    return [{"tenant": t, "subject": subject, "mean": r.mean, "ratings": r.ratings} for t, subject, r in found]


def known(reads: Reads, who: Identity) -> list[str]:
    """Tokens of users, as events name them, that are this one or begin with it (eight characters or more). Blocks."""
    return [token for (token,) in reads.rows((_KNOWN, [who.tenant, who.user]))[0]]


def history(reads: Reads, who: Identity, since: float) -> dict[str, Any]:
    """Read all feedback of a person or role, and their requests and decisions since a time. Blocks."""
    whose = [who.tenant, who.user, who.role]
    given, moved, moving, latest = reads.figures(
        votes(who),
        Figure((_REMARKS, whose), list),
        traffic(who, since=since, by=MODEL),
        Figure((_LATEST, [*whose, since, PROMPTS]), list),
    )
    shown = [msgspec.to_builtins(vote) for vote in given]
    return {
        "said": [vote for vote in shown if vote["kind"] in SAID],
        "done": [vote for vote in shown if vote["kind"] not in SAID],
        "comments": [{"dimension": name, "comments": n, "moved": mean} for name, n, mean in moved],
        "traffic": sorted(
            ({"model": model or "no model", "requests": each.requests} for model, each in moving.by.items()),
            key=lambda each: -each["requests"],
        )[:MODELS],
        "requests": moving.all.requests,
        "decisions": dict(latest),
    }
