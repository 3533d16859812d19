"""The view `heard_feedback`: votes without those that do not count for others (`fitrouter.state.vouching`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import duckdb

VIEWS = ("heard_feedback", "left_out")
"""The view, and the table with the keys of the votes that it lacks."""
_END = "SELECT coalesce(max(seq), 0), count(*) FILTER (vouched <> '') FROM feedback"
_FIRST = """
    SELECT f.seq, f.tenant, f."user", coalesce(f.vouched, ''), x.served_by, f.dimension, CAST(f.ts // 86400 AS BIGINT)
    FROM feedback AS f
    JOIN (
        SELECT decision_id, max(served_by) AS served_by FROM executions
        WHERE decision_id IN (SELECT decision_id FROM feedback WHERE seq > $1) GROUP BY decision_id
    ) AS x USING (decision_id)
    WHERE f.seq > $1 AND x.served_by IS NOT NULL AND NOT EXISTS (
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


class Limits(NamedTuple):
    """Of votes, in the settings `feedback`."""

    people: int = 3
    """`people_per_key`."""
    votes_per_day: int = 3


class Heard:
    """Finds the votes that are left out; each vote is read once, so that later queries read what came since.

    Args:
        limits: in force.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._begin()

    def _begin(self) -> None:
        from fitrouter.state.vouching import LeftOut

        self._end, self._read = 0, LeftOut(people=self.limits.people, votes_per_day=self.limits.votes_per_day).read
        self._found: list[int] = []

    def show(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Make the view in a connection to the warehouse."""
        ((end, vouched),) = connection.execute(_END).fetchall()
        if end < self._end:  # the file was made anew
            self._begin()
        if vouched and end > self._end:
            self._found += self._read(_parts(connection.execute(_FIRST, [self._end]).fetchmany))
            self._end = end
        connection.execute(_TABLE, [self._found])
        connection.execute(_MADE)


def _parts(fetch: Callable[[int], list[tuple[Any, ...]]]) -> Iterator[Any]:
    from fitrouter.state.vouching import LoggedVote

    while rows := fetch(_PART):
        yield from map(LoggedVote._make, rows)
