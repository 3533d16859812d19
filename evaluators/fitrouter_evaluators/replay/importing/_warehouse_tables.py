"""Writes imported rows as the warehouse's tables in Parquet."""

# ruff: noqa: S608 - statements are made of numbers and constants, and refer to texts (`SqlParameters`)

from __future__ import annotations

from pathlib import Path

from fitrouter.stores.warehouse import migrate
from fitrouter_evaluators.replay.importing._staging import SqlParameters
from fitrouter_evaluators.replay.importing.column_map import ColumnMap

_OF_ALL = 'seq, ts, id AS decision_id, tenant, "user", role, task, session'


def write_tables(values: SqlParameters, columns: ColumnMap, folder: Path) -> None:
    """Write the view `rows` (`_row_sql.rows_sql` with `seq`) as `decisions.parquet` and so on."""
    migrate(values.connection)
    tables = {
        "decisions": _decisions(values, columns),
        "executions": _executions(),
        "feedback": _feedback(*columns.reward.scale),
        "scores": None,
    }
    for table, sql in tables.items():
        # The warehouse's own table, empty, gives the types and the columns that an import knows nothing of.
        reader = f"FROM {table}" + (f" UNION ALL BY NAME {sql}" if sql else "")
        values.connection.execute(f"COPY ({reader}) TO ? (FORMAT parquet)", [str(folder / f"{table}.parquet")])


def _decisions(values: SqlParameters, columns: ColumnMap) -> str:
    constants = columns.constants
    mode, policy = values.refer(constants.mode), values.refer(constants.policy)
    redraw = "''"
    if columns.session or constants.session:  # each of its rows but the first draws it again
        begins = "row_number() OVER (PARTITION BY tenant, session ORDER BY ts, seq) = 1"
        redraw = f"CASE WHEN session IS NULL OR {begins} THEN '' ELSE 'import' END"
    return f"""
        SELECT {_OF_ALL}, id AS draw_id, {mode} AS mode, eligible, [] AS excluded, probs, chosen,
            propensity, features, [] AS mean, [] AS sd, [] AS cost, [] AS latency, [] AS availability,
            0 AS cost_weight, 0 AS cost_unit_usd, 0 AS latency_weight, 0 AS latency_unit_s, 0 AS budget_weight,
            0 AS budget_unit_usd, [] AS switch, 0 AS floor, 1 AS share, [] AS twin, [] AS personal,
            MAP() AS candidates, [] AS new, [] AS rest, 0 AS steps, true AS user_turn, {redraw} AS redraw,
            true AS asked, 1 AS asked_probability, 0 AS deadline_s, {policy} AS policy_algorithm,
            '' AS policy_config_hash, -1 AS policy_seq, '' AS registry, 'import' AS encoder, 0 AS seed
        FROM rows
    """


def _executions() -> str:
    return f"""
        SELECT {_OF_ALL}, id AS execution_id, chosen, chosen AS served_by, 'ok' AS status, [] AS attempts,
            0 AS prompt_tokens, 0 AS completion_tokens, cost_usd, latency_s * 1000 AS latency_ms, 0 AS overhead_ms
        FROM rows
    """


def _feedback(low: float, high: float) -> str:
    """The reward as a rating requested with probability 1, since every outcome was observed."""
    return f"""
        SELECT {_OF_ALL}, id AS feedback_id, 'rating' AS kind, reward AS value, scale_low, scale_high,
            (reward - scale_low) / (scale_high - scale_low) AS y, 'overall' AS dimension, true AS asked,
            'import' AS source, '' AS other
        FROM (SELECT *, {low!r}::DOUBLE AS scale_low, {high!r}::DOUBLE AS scale_high FROM rows)
    """
