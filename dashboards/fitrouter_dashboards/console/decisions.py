"""Data of the view *Decisions*: a page of the log by filters, newest or worst first, and what has changed since."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fitrouter.stores.figures import RATED
from fitrouter_dashboards.console.reads import Reads

PAGE = 50
"""Decisions of a page."""
FILTERS = ("role", "model", "mode", "status", "rated", "id", "session", "run")
"""Names that `filters` may hold; `model` answered, or was drawn where none did; `rated` is `any`, `low` (below 0.5) or
`high`; `id` is a prefix."""
LATEST = 1000
"""Latest decisions of which the worst are found."""

_QUERY = f"""
    WITH {{changed}}page AS (
        SELECT seq, decision_id, ts, left(role, 200) AS role, left(task, 200) AS task, "user", tenant, mode, chosen,
            propensity, asked, eligible[list_position(probs, list_max(probs))] AS likeliest, len(eligible) AS models,
            CASE WHEN len(mean) = len(eligible) THEN mean[list_position(eligible, $12)] END AS expected
        FROM decisions WHERE rowid IN (SELECT rowid FROM decisions  -- arrays are read for the rows of the page only
        WHERE ($1::VARCHAR IS NULL OR tenant = $1) AND ($2::BIGINT IS NULL OR seq < $2)
            AND ($3::VARCHAR IS NULL OR left(coalesce(role, ''), 200) = $3)
            AND ($5::VARCHAR IS NULL OR mode = $5)
            AND {{model}} AND {{status}} AND {{rated}}
            AND ($8::VARCHAR IS NULL OR starts_with(decision_id, $8))
            AND ($9::VARCHAR IS NULL OR session = $9) AND ($10::VARCHAR IS NULL OR run = $10){{since}}
        ORDER BY seq DESC LIMIT $11)
    ), ended AS (
        SELECT decision_id, arg_max(served_by, seq) AS served_by, arg_max(status, seq) AS status,
            arg_max(coalesce(cost_assumed, false), seq) AS unpriced,
            CASE WHEN NOT unpriced THEN arg_max(cost_usd, seq) END AS cost_usd, arg_max(latency_ms, seq) AS latency_ms
        FROM executions
        WHERE seq > (SELECT min(seq) FROM page) AND decision_id IN (SELECT decision_id FROM page) GROUP BY decision_id
    ), scored AS (
        SELECT decision_id, arg_max(mean, seq) AS mean, arg_max(sd, seq) AS sd FROM scores
        WHERE seq > (SELECT min(seq) FROM page) AND decision_id IN (SELECT decision_id FROM page) AND status = 'ok'
        GROUP BY decision_id
    ), rated AS (
        SELECT decision_id, arg_max(y, seq) AS y, count(*) AS votes FROM feedback
        WHERE seq > (SELECT min(seq) FROM page) AND decision_id IN (SELECT decision_id FROM page)
            AND {RATED}
        GROUP BY decision_id
    )
    SELECT page.seq, decision_id, page.ts, role, task, "user", tenant, mode, chosen, propensity, asked, likeliest,
        models, served_by, status, cost_usd, unpriced, latency_ms, mean, sd, y, votes,
        coalesce(y, CASE WHEN status IN ('failed', 'partial', 'refused') THEN 0.0 END) - coalesce(expected, 0.5) AS gap
    FROM page LEFT JOIN ended USING (decision_id) LEFT JOIN scored USING (decision_id)
        LEFT JOIN rated USING (decision_id)
    ORDER BY CASE WHEN $13 THEN gap END NULLS LAST, page.seq DESC LIMIT $14
"""  # noqa: S608 - constants
_MODEL = """(
    decision_hash IN (SELECT decision_hash FROM executions WHERE served_by = $4)
    OR chosen = $4 AND decision_hash NOT IN (SELECT decision_hash FROM executions WHERE served_by IS NOT NULL)
)"""
_STATUS = "decision_id IN (SELECT decision_id FROM executions WHERE status = $6)"
_RATED = f"""decision_id IN (
    SELECT decision_id FROM feedback WHERE {RATED} GROUP BY decision_id
    HAVING $7 NOT IN ('low', 'high') OR (arg_max(y, seq) < 0.5) = ($7 = 'low')
)"""  # noqa: S608 - constants
_CHANGED = """changed AS (
    SELECT decision_id FROM executions WHERE seq > $15
    UNION ALL SELECT decision_id FROM scores WHERE seq > $15
    UNION ALL SELECT decision_id FROM feedback WHERE seq > $15
), """
_SINCE = " AND (seq > $15 OR (seq >= $16 AND decision_id IN (SELECT decision_id FROM changed)))"
_FIELDS = (
    *("seq", "decision_id", "ts", "role", "task", "user", "tenant", "mode", "chosen", "propensity", "asked"),
    *("likeliest", "models", "served_by", "status", "cost_usd", "unpriced", "latency_ms", "score", "score_sd"),
    *("rating", "votes", "gap"),
)
_POSITION = "SELECT coalesce(max(seq), 0) FROM position"

_NAMES = """
    SELECT left(coalesce(role, ''), 200) AS name, count(*) AS n FROM decisions
    WHERE $1::VARCHAR IS NULL OR tenant = $1 GROUP BY 1 ORDER BY n DESC LIMIT 50
"""


def decisions(
    reads: Reads,
    tenant: str | None,
    filters: Mapping[str, str],
    before: int | None,
    *,
    default: str | None = None,
    worst: bool = False,
    changed: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """Read a page of decisions, the newest first. Blocks.

    Args:
        reads: the warehouse.
        tenant: whose decisions; None for all.
        filters: name of `FILTERS` → value.
        before: sequence number that all of the page are below, for the pages after the first.
        default: the default model. The `gap` of a decision is its rating, 0 if there was no answer, less the rating
            that was expected of the default model; less the middle of the scale where that is not known.
        worst: whether those with the lowest gap come first, of the latest `LATEST`.
        changed: a position in the log, and a sequence number: only what is new or has changed after the position, and
            is not below the number.
    """
    values = [filters.get(name) for name in FILTERS]
    given = [tenant, before, *values, LATEST if worst else PAGE + 1, default, worst, PAGE + 1]
    sql = _QUERY.format(
        model=_MODEL if "model" in filters else "$4::VARCHAR IS NULL",  # other tables are read for a filter only
        status=_STATUS if "status" in filters else "$6::VARCHAR IS NULL",
        rated=_RATED if "rated" in filters else "$7::VARCHAR IS NULL",
        changed=_CHANGED if changed else "",
        since=_SINCE if changed else "",
    )
    ((position,),), found = reads.rows((_POSITION, []), (sql, [*given, *(changed or ())]))
    page = [dict(zip(_FIELDS, row, strict=True)) for row in found[:PAGE]]
    more = len(found) > PAGE and not worst
    return {"decisions": page, "next": page[-1]["seq"] if more else None, "position": position}


def role_names(reads: Reads, tenant: str | None) -> list[str]:
    """Read the names of the most frequent roles, to choose from. Blocks."""
    return [name for name, _ in reads.rows((_NAMES, [tenant]))[0]]
