"""The view `heard_feedback` of a warehouse: votes without those that do not count for others (`state.vouching`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fitrouter.state.vouching import LeftOut, LoggedVote

if TYPE_CHECKING:
    import duckdb

_END = "SELECT coalesce(max(seq), 0), count(*) FILTER (vouched <> '') FROM feedback"
_FIRST = """
    SELECT f.seq, f.tenant, f."user", coalesce(f.vouched, ''), x.served_by, f.dimension, CAST(f.ts // 86400 AS BIGINT)
    FROM feedback AS f
    JOIN (
        SELECT decision_id, max(served_by) AS served_by FROM executions
        WHERE decision_id IN (SELECT decision_id FROM feedback WHERE seq > $1) GROUP BY decision_id
    ) AS x USING (decision_id)
    WHERE f.seq > $1 AND x.served_by IS NOT NULL AND f.source <> 'chosen' AND NOT EXISTS (
        SELECT 1 FROM feedback AS g WHERE g.decision_id = f.decision_id AND g.kind = f.kind AND g.seq < f.seq
            AND g.dimension = f.dimension AND g.other IS NOT DISTINCT FROM f.other
    )
    ORDER BY f.seq
"""
_TABLE = """
    CREATE TEMP TABLE left_out AS
    SELECT decision_id, kind, dimension, other, tenant FROM feedback WHERE seq IN (SELECT unnest($1::BIGINT[]))
"""
_MADE = """
    CREATE TEMP VIEW heard_feedback AS SELECT * FROM feedback AS f WHERE NOT EXISTS (
        SELECT 1 FROM left_out AS o WHERE o.decision_id = f.decision_id AND o.kind = f.kind
            AND o.dimension = f.dimension AND o.other IS NOT DISTINCT FROM f.other
    )
"""
_PART = 1000
"""Votes that are read at a time."""


class Heard:
    """Finds the votes that are left out; each vote is read once, so that later queries read what came since.

    Args:
        people: the limit `feedback.people_per_key`.
        votes_per_day: that of `feedback.votes_per_day`.
    """

    def __init__(self, people: int = 3, votes_per_day: int = 3) -> None:
        self._people, self._votes_per_day = people, votes_per_day
        self._begin()

    def _begin(self) -> None:
        self._end, self._read = 0, LeftOut(people=self._people, votes_per_day=self._votes_per_day).read
        self._found: list[int] = []

    def __call__(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Make the view in a connection to the warehouse, and the table `left_out` with the votes that it lacks."""
        ((end, vouched),) = connection.execute(_END).fetchall()
        if end < self._end:  # the file was made anew
            self._begin()
        if vouched and end > self._end:
            found = connection.execute(_FIRST, [self._end])
            while rows := found.fetchmany(_PART):  # an interrupted query goes on from here
                self._found += list(self._read(map(LoggedVote._make, rows)))
                self._end = rows[-1][0]
            self._end = end
        connection.execute(_TABLE, [self._found])
        connection.execute(_MADE)
