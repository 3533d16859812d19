"""Data of the view *People*: who is least satisfied; requests, feedback, declared values and decisions of each."""

from __future__ import annotations

from typing import Any

import msgspec

from fitrouter.stores.figures import MODEL, Figure, raters, ratings, traffic, votes
from fitrouter.types import FeedbackKind, Identity
from fitrouter_dashboards.console.reads import Reads

PROMPTS = 40
"""Latest decisions that are decided again."""
ROLES = 50
"""Roles that can be chosen."""
PERSONS = 15
"""People of a page."""
MODELS = 20
"""Models with the most requests."""
SAID = frozenset({FeedbackKind.THUMB, FeedbackKind.RATING, FeedbackKind.PAIR})
"""Kinds of feedback in which people say what they think; the others are what they did."""

_ROLES = """
    SELECT tenant, role, count(*) AS requests, count(DISTINCT person_hash) FROM requests
    WHERE ($1::VARCHAR IS NULL OR tenant = $1) AND coalesce(role, '') <> '' AND ts >= $2 AND outcome <> 'refused'
    GROUP BY ALL ORDER BY requests DESC, role LIMIT $3
"""
_MOST = """WITH most AS MATERIALIZED (
        SELECT person_hash FROM requests
        WHERE ($1::VARCHAR IS NULL OR tenant = $1) AND ts >= $2 AND person_hash IS NOT NULL
        GROUP BY person_hash ORDER BY sum(n) DESC, person_hash LIMIT $3 OFFSET $4
    )"""
_USED = """{most}
    SELECT tenant, "user", coalesce(served_by, ''), CAST(sum(n) AS BIGINT), left(coalesce(arg_max(role, seq), ''), 200),
        max(seq)
    FROM requests WHERE ($1::VARCHAR IS NULL OR tenant = $1) AND ts >= $2 AND {whom}
    GROUP BY tenant, "user", person_hash, coalesce(served_by, '') ORDER BY person_hash
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
    WITH latest AS MATERIALIZED (
        SELECT seq, decision_id, chosen FROM decisions
        WHERE {_WHO} AND ts >= $4 AND mode IN ('online', 'uniform', 'shadow') AND len(probs) > 1
        ORDER BY seq DESC LIMIT $5
    )
    SELECT decision_id, served_by, served_by <> chosen FROM latest JOIN (
        SELECT decision_id, arg_max(served_by, seq) AS served_by FROM executions
        WHERE seq > (SELECT min(seq) FROM latest) AND decision_id IN (SELECT decision_id FROM latest)
        GROUP BY decision_id
    ) USING (decision_id) WHERE served_by IS NOT NULL
"""  # noqa: S608 - a constant


def roles(reads: Reads, tenant: str | None, since: float) -> list[dict[str, Any]]:
    """Read the most frequent roles of a tenant, or of all for None. Blocks."""
    (found,) = reads.rows((_ROLES, [tenant, since, ROLES]))
    return [dict(zip(("tenant", "role", "requests", "people"), row, strict=True)) for row in found]


def listed(reads: Reads, tenant: str | None, since: float, *, satisfied: bool = True, skip: int = 0) -> dict[str, Any]:
    """Read a page of the people who rated, the least satisfied first, or of all, those with the most requests first.

    Blocks.

    Args:
        reads: the warehouse.
        tenant: of the people; None for all.
        since: requests and ratings from this time on.
        satisfied: whether by satisfaction.
        skip: people before the page.
    """
    whose = None if tenant is None else Identity(tenant=tenant)
    if satisfied:
        (rated,) = reads.figures(raters(whose, since=since, most=PERSONS + 1, skip=skip))
        order = [(t, user) for t, user, _ in rated.listed]
        sql = _USED.format(most="", whom='"user" IN (SELECT unnest($3::VARCHAR[]))')
        (rows,) = reads.rows((sql, [tenant, since, [user for _, user in order]]))
    else:
        sql = _USED.format(most=_MOST, whom="person_hash IN (SELECT person_hash FROM most)")
        (rows,) = reads.rows((sql, [tenant, since, PERSONS + 1, skip]))
    used: dict[tuple[Any, Any], list[tuple[Any, ...]]] = {}
    for t, user, *rest in rows:
        used.setdefault((t, user), []).append(tuple(rest))
    if not satisfied:  # those with as many stay in the order of the query
        order = sorted(used, key=lambda who: -sum(n for _, n, *_ in used[who]))
        (rated,) = reads.figures(raters(whose, since=since, users=[user for _, user in order], most=len(order)))
    shown, own = order[:PERSONS], {(t, user): each for t, user, each in rated.listed}
    return {
        "listed": [
            {
                "tenant": t,
                "subject": user,
                "requests": sum(n for _, n, _, _ in used.get((t, user), ())),
                "role": max(used.get((t, user), [("", 0, "", 0)]), key=lambda each: each[3])[2],
                "model": max((n, model) for model, n, *_ in [*used.get((t, user), ()), ("", 0)] if model or not n)[1],
                "rating": msgspec.to_builtins(own.get((t, user))),
            }
            for t, user in shown
        ],
        "raters": rated.people if satisfied else None,
        "unhappy": rated.unhappy if satisfied else None,
        "next": skip + PERSONS if len(order) > PERSONS else None,
    }


def known(reads: Reads, who: Identity) -> list[str]:
    """Tokens of users, as events name them, that are this one or begin with it (eight characters or more). Blocks."""
    return [token for (token,) in reads.rows((_KNOWN, [who.tenant, who.user]))[0]]


def history(reads: Reads, who: Identity, since: float, rated_since: float) -> dict[str, Any]:
    """Read all feedback of a person or role; mean rating, requests and decisions since a time. Blocks."""
    whose = [who.tenant, who.user, who.role]
    rating: Figure[Any] = raters(who, since=rated_since, most=1) if who.user else ratings(who, since=rated_since)
    given, rated, moved, moving, latest = reads.figures(
        votes(who),
        rating,
        Figure((_REMARKS, whose), list),
        traffic(who, since=since, by=MODEL, timed=False),
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
        "rating": msgspec.to_builtins(next((one for *_, one in rated.listed), None) if who.user else rated.all),
        "requests": moving.all.requests,
        "decisions": {decision: (model, fallback) for decision, model, fallback in latest},
    }
