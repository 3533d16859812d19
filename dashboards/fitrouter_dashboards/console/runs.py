"""Data of the view *Runs*: the latest runs of agents, with their steps, cost and outcome."""

from __future__ import annotations

from typing import Any

from fitrouter.stores.figures import COUNTED_OUTCOME
from fitrouter.types import DECLINED, OUTCOMES
from fitrouter_dashboards.console.reads import Reads

MOST = 50
"""Runs that are shown, those that were active last."""
NAMES = 12
"""Roles and models of a run that are named."""
_FAILED = ", ".join(f"'{status}'" for status, outcome in OUTCOMES.items() if outcome == "failed")
_QUERY = f"""
    WITH latest AS (
        SELECT run, max(seq) AS newest FROM decisions
        WHERE run IS NOT NULL AND ($1::VARCHAR IS NULL OR tenant = $1) AND ($4::VARCHAR IS NULL OR run = $4)
        GROUP BY run ORDER BY newest DESC LIMIT $2
    ), step AS (
        SELECT run, decision_id, ts, left(role, 200) AS role, "user", tenant, chosen, redraw
        FROM decisions WHERE run IN (SELECT run FROM latest)
    ), ended AS (
        SELECT decision_id, arg_max(served_by, seq) AS served_by, arg_max(status, seq) AS status,
            arg_max(coalesce(cost_assumed, false), seq) AS unpriced, arg_max(cost_usd, seq) AS cost_usd,
            arg_max(latency_ms, seq) AS latency_ms
        FROM executions WHERE decision_id IN (SELECT decision_id FROM step) GROUP BY decision_id
    ), summed AS (
        SELECT run, any_value("user") AS who, any_value(tenant) AS tenant, min(ts) AS began,
            max(ts + coalesce(latency_ms, 0) / 1000) AS active,
            count(*) AS steps, list(DISTINCT role)[:$3] AS roles,
            list(DISTINCT coalesce(served_by, chosen))[:$3] AS models,
            sum(cost_usd) FILTER (NOT unpriced) AS usd, count(*) FILTER (unpriced) AS unpriced,
            count(*) FILTER (redraw = 'stuck') AS stuck,
            count(*) FILTER (status IN ({_FAILED})) AS failed
        FROM step LEFT JOIN ended USING (decision_id) WHERE status IS DISTINCT FROM '{DECLINED}' GROUP BY run
    ), counted AS (
        SELECT run, y, kind, value, source FROM run_outcomes WHERE run IN (SELECT run FROM latest)
        QUALIFY {COUNTED_OUTCOME}
    )
    SELECT run, who, summed.tenant, began, active, steps, roles, models, usd, unpriced, stuck, failed,
        y, kind, counted.value, source
    FROM summed JOIN latest USING (run) LEFT JOIN counted USING (run) ORDER BY newest DESC
"""  # noqa: S608 - constants
_FIELDS = ("run", "user", "tenant", "began", "active", "steps", "roles", "models", "usd", "unpriced", "stuck", "failed")
_OUTCOME = ("y", "kind", "value", "source")


def runs(reads: Reads, tenant: str | None, run: str | None = None) -> list[dict[str, Any]]:
    """Read the latest runs, those that were active last first; `outcome` is None for a silent one. Blocks.

    Args:
        reads: the warehouse.
        tenant: whose runs; None for all.
        run: the only one that is read; None for the latest.
    """
    found = []
    for row in reads.rows((_QUERY, [tenant, MOST, NAMES, run]))[0]:
        one = dict(zip(_FIELDS, row, strict=False))
        one["roles"] = sorted(role for role in one["roles"] if role)
        one["cost"] = {"usd": one.pop("usd"), "unpriced": one.pop("unpriced")}
        told = dict(zip(_OUTCOME, row[len(_FIELDS) :], strict=True))
        found.append({**one, "models": sorted(one["models"]), "outcome": told if told["source"] else None})
    return found
