"""Votes of a log without those that do not count for others (`state.vouching`): for what is concluded for others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fitrouter.config import FeedbackConfig
from fitrouter.state.vouching import LeftOut, LoggedVote

if TYPE_CHECKING:
    import duckdb

_FIRST = """
    SELECT f.seq, f.tenant, f."user", coalesce(f.vouched, ''), x.served_by, f.dimension, CAST(f.ts // 86400 AS BIGINT)
    FROM log_feedback AS f
    JOIN (SELECT decision_id, max(served_by) AS served_by FROM log_executions GROUP BY decision_id) AS x
        USING (decision_id)
    WHERE ($1::VARCHAR IS NULL OR f.tenant = $1) AND x.served_by IS NOT NULL
        AND coalesce(f.source, '') <> 'chosen'
    QUALIFY row_number() OVER (PARTITION BY f.decision_id, f.kind, f.dimension, f.other ORDER BY f.seq) = 1
    ORDER BY f.seq
"""
_VOUCHED = "SELECT 1 FROM log_feedback WHERE vouched <> '' LIMIT 1"  # without such votes all count
_LEFT_OUT = """
    CREATE TEMP TABLE left_out AS
    SELECT decision_id, kind, dimension, other FROM log_feedback WHERE seq IN (SELECT unnest($1::BIGINT[]))
"""
_HEARD = """
    CREATE TEMP VIEW heard_feedback AS
    SELECT * FROM log_feedback ANTI JOIN left_out USING (decision_id, kind, dimension, other)
"""


def hear(connection: duckdb.DuckDBPyConnection, limits: FeedbackConfig | None = None, tenant: str | None = None) -> int:
    """Make the view `heard_feedback` of an open log: without the votes that do not count for others (`state.vouching`).

    Args:
        connection: of an `OpenLog`.
        limits: that were in force; None for those of the defaults.
        tenant: whose votes are read from the view; None for all.

    Returns:
        the number of these votes.
    """
    limits = limits or FeedbackConfig()
    limited = connection.execute(_VOUCHED).fetchone() is not None
    votes = map(LoggedVote._make, connection.execute(_FIRST, [tenant]).fetchall() if limited else ())
    found = list(LeftOut(people=limits.people_per_key, votes_per_day=limits.votes_per_day).read(votes))
    connection.execute(_LEFT_OUT, [found])
    connection.execute(_HEARD)
    return len(found)


def said_of_left_out(n: int) -> str:
    """A sentence about the ratings that do not count for others."""
    return f"{n:,} ratings were left out: their untrusted keys name more users than feedback.people_per_key lets count"
