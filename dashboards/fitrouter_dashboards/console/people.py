"""Data of the view *People and roles*: requests, feedback, declared values and decisions of each."""

from __future__ import annotations

from typing import Any

from fitrouter.types import FeedbackKind, Identity
from fitrouter_dashboards.console.reads import Reads

PROMPTS = 40
"""Latest decisions that are decided again."""
ROLES = 50
"""Roles that can be chosen."""
SAID = frozenset({FeedbackKind.THUMB, FeedbackKind.RATING, FeedbackKind.PAIR})
"""Kinds of feedback in which people say what they think; the others are what they did."""

_ROLES = """
    SELECT tenant, role, count(*) AS requests, approx_count_distinct("user") FROM decisions
    WHERE ($1::VARCHAR IS NULL OR tenant = $1) AND coalesce(role, '') <> '' AND ts >= $2
    GROUP BY ALL ORDER BY requests DESC, role LIMIT $3
"""
_KNOWN = """
    SELECT DISTINCT "user" FROM decisions
    WHERE tenant = $1 AND CASE WHEN len($2) < 8 THEN "user" = $2 ELSE starts_with("user", $2) END LIMIT 3
"""
_WHO = 'tenant = $1 AND ($2::VARCHAR IS NULL OR "user" = $2) AND ($3::VARCHAR IS NULL OR role = $3)'
_VOTES = f"""
    WITH latest AS (
        SELECT any_value(kind) AS kind, any_value(dimension) AS dimension, arg_max(y, seq) AS y FROM feedback
        WHERE {_WHO} GROUP BY hash(decision_id, kind, dimension, "user")
    )
    SELECT kind, left(dimension, 80), count(*), avg(y) FROM latest GROUP BY 1, 2 ORDER BY 3 DESC LIMIT 30
"""  # noqa: S608 - a constant
_REMARKS = f"""
    SELECT entry.key, count(*), avg(entry.value) FROM (
        SELECT unnest(map_entries(moved)) AS entry FROM remarks WHERE {_WHO}
    ) GROUP BY 1 ORDER BY 2 DESC LIMIT 20
"""  # noqa: S608 - a constant
_TRAFFIC = f"""
    SELECT coalesce(served_by, chosen), count(*) FROM executions WHERE {_WHO} AND ts >= $4
    GROUP BY 1 ORDER BY 2 DESC LIMIT 20
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


def known(reads: Reads, who: Identity) -> list[str]:
    """Tokens of users, as events name them, that are this one or begin with it (eight characters or more). Blocks."""
    return [token for (token,) in reads.rows((_KNOWN, [who.tenant, who.user]))[0]]


def history(reads: Reads, who: Identity, since: float) -> dict[str, Any]:
    """Read all feedback of a person or role, and their requests and decisions since a time. Blocks."""
    whose = [who.tenant, who.user, who.role]
    votes, moved, traffic, latest = reads.rows(
        (_VOTES, whose), (_REMARKS, whose), (_TRAFFIC, [*whose, since]), (_LATEST, [*whose, since, PROMPTS])
    )
    fields = ("kind", "dimension", "votes", "mean")
    given = [dict(zip(fields, row, strict=True)) for row in votes]
    return {
        "said": [vote for vote in given if vote["kind"] in SAID],
        "done": [vote for vote in given if vote["kind"] not in SAID],
        "comments": [{"dimension": name, "comments": n, "moved": mean} for name, n, mean in moved],
        "traffic": [{"model": model, "requests": n} for model, n in traffic],
        "decisions": dict(latest),
    }
