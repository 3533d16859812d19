"""Fetches whole columns from an open log, in table order, without a Python object per row (except decision ids).

List columns are fetched flattened and name columns as codes: DuckDB hashes the names, and the distinct ones are looked
up once. DuckDB preserves row order for queries on `chosen_decisions` alone (SELECT, WHERE and `row_number() OVER ()`
on one table), so columns fetched separately line up.
"""

# ruff: noqa: S608 - names of tables and columns are constants of our own; names of candidates are quoted

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fitrouter.stores.figures import RATED
from fitrouter.types import SOURCES
from fitrouter_evaluators.replay.log._connection import literal, words
from fitrouter_evaluators.replay.log._constraints import ARRAYS
from fitrouter_evaluators.replay.log.log import Ints

if TYPE_CHECKING:
    import duckdb


_NUMBERS = words(
    "seq ts propensity asked_probability policy_seq seed floor share cost_weight cost_unit_usd latency_weight "
    "latency_unit_s budget_weight budget_unit_usd steps"
)
_NAMES = words("mode tenant user role task session encoder policy_algorithm registry run tier")
_ANSWERED = "log_scores WHERE status = 'ok'"
_WINDOW = """
    CREATE TEMP VIEW chosen_decisions AS
    SELECT * FROM log_decisions WHERE ts >= getvariable('since') AND ts < getvariable('until')
    AND decision_id NOT IN (SELECT decision_id FROM log_executions WHERE status = 'declined')
"""
_DECLARED = """
    SELECT "user", declared FROM log_profiles WHERE "user" IS NOT NULL AND ts < getvariable('until')
    QUALIFY row_number() OVER (PARTITION BY "user" ORDER BY seq DESC) = 1
"""
_VOTES = """
    SELECT decision_id, y, asked FROM heard_feedback WHERE kind IN ('thumb', 'rating') AND dimension = 'overall'
    QUALIFY row_number() OVER (PARTITION BY decision_id ORDER BY kind = 'rating' DESC, seq DESC) = 1
"""
"""The label of each decision: its last rating, else its last thumb."""
_DECLINED = """
    SELECT count(*) FROM log_decisions JOIN log_executions USING (decision_id)
    WHERE log_decisions.ts >= getvariable('since') AND log_decisions.ts < getvariable('until')
    AND status = 'declined' AND mode IN ('online', 'uniform', 'shadow')
"""
_ENDED = f"""
    SELECT run, y FROM log_run_outcomes WHERE y IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY run ORDER BY list_position({list(SOURCES)}, source) DESC, seq DESC) = 1
"""
"""The outcome of each run that counts."""
_LEFT_OUT = f"SELECT DISTINCT decision_id FROM left_out JOIN places USING (decision_id) WHERE {RATED}"


class Arrays(NamedTuple):
    """A list column of n rows."""

    lengths: Ints
    values: NDArray[Any]
    """Those of the first row, those of the second, …"""


class Coded(NamedTuple):
    """A column of names: code c stands for names[c], which are sorted; −1 for none."""

    codes: Ints
    names: tuple[str, ...]


class Scores(NamedTuple):
    """Reward-model scores."""

    row: Ints
    """Row of the decision; −1 if it is not in the window."""
    mean: NDArray[Any]
    schema: Coded
    h: Arrays | None


class Columns(NamedTuple):
    """Columns fetched from a log; rows are numbered as in the table."""

    ids: NDArray[np.object_]
    numbers: dict[str, NDArray[Any]]
    names: dict[str, Coded]
    arms: tuple[str, ...]
    eligible: Arrays
    """Codes of `arms`."""
    chosen: Ints
    draw: Ints
    """Row of the decision named by `draw_id`; −1 if absent."""
    arrays: dict[str, Arrays]
    candidates: dict[str, Arrays]
    features: Arrays | None
    executions: dict[str, NDArray[Any]]
    """row, cost_usd, cost_assumed, latency_ms, served (code of `arms`), status (code of `statuses`)."""
    statuses: tuple[str, ...]
    votes: dict[str, NDArray[Any]]
    """row, y, asked."""
    ended: dict[str, NDArray[Any]]
    """row, y: the outcome of the decision's run."""
    left_out: int
    """Decisions with a rating that does not count for others."""
    declined: int
    """Draws of plans that were looked at and not run, which are left out."""
    scores: Scores
    declared: list[tuple[str, dict[str, float]]]


def fetch_columns(
    connection: duckdb.DuckDBPyConnection, since: float | None, until: float | None, features: bool
) -> Columns:
    """Fetch the decisions in [since, until) and their outcomes from a log after `check_structure` and `hear`."""
    connection.execute("SET VARIABLE since = ?::DOUBLE", [-np.inf if since is None else since])
    connection.execute("SET VARIABLE until = ?::DOUBLE", [np.inf if until is None else until])
    connection.execute(_WINDOW)
    connection.execute(
        "CREATE TEMP TABLE places AS "
        "SELECT decision_id, draw_id, run, row_number() OVER () - 1 AS row FROM chosen_decisions"
    )
    lists = ("eligible", *ARRAYS, *(("features",) if features else ()))
    cells = [*_NUMBERS, "asked", "coalesce(redraw, '') = '' AS fresh", "decision_id", 'hash(chosen) AS "hash chosen"']
    cells += [f'hash("{name}") AS "hash {name}"' for name in _NAMES]
    cells += [f'coalesce(len({name}), 0) AS "length of {name}"' for name in lists]
    rows = _fetch(connection, f"SELECT {', '.join(cells)} FROM chosen_decisions")
    arms = _Names(
        connection, "SELECT unnest(eligible) AS name FROM log_decisions UNION SELECT served_by FROM log_executions"
    )
    statuses = _Names(connection, "SELECT status AS name FROM log_executions")
    draws = _fetch(
        connection, "SELECT s.row, d.row AS draw FROM places AS s JOIN places AS d ON s.draw_id = d.decision_id"
    )
    executions = _fetch(
        connection,
        "SELECT row, cost_usd, coalesce(cost_assumed, false) AS cost_assumed, latency_ms, "
        "hash(served_by) AS served, hash(status) AS status "
        "FROM log_executions JOIN places USING (decision_id)",
    )
    executions |= {"served": arms.codes(executions["served"]), "status": statuses.codes(executions["status"])}
    shadows = "SELECT DISTINCT unnest(map_keys(candidates)) AS name FROM chosen_decisions ORDER BY name"
    candidates = [name for (name,) in connection.execute(shadows).fetchall()]
    arrays = {name: _arrays(connection, name, rows.pop(f"length of {name}")) for name in lists if name != "eligible"}
    return Columns(
        ids=rows.pop("decision_id"),
        names={name: _coded(connection, name, rows.pop(f"hash {name}")) for name in _NAMES},
        arms=arms.names,
        chosen=arms.codes(rows.pop("hash chosen")),
        eligible=_arrays(connection, "eligible", rows.pop("length of eligible"), within=arms),
        numbers=rows,
        draw=_at(len(rows["seq"]), draws["row"], draws["draw"]),
        features=arrays.pop("features", None),
        arrays=arrays,
        candidates={name: _arrays(connection, f"candidates[{literal(name)}]") for name in candidates},
        executions=executions,
        statuses=statuses.names,
        votes=_fetch(connection, f"SELECT row, y, asked FROM ({_VOTES}) JOIN places USING (decision_id)"),
        ended=_fetch(connection, f"SELECT row, y FROM ({_ENDED}) JOIN places USING (run)"),
        left_out=len(connection.execute(_LEFT_OUT).fetchall()),
        declined=connection.execute(_DECLINED).fetchall()[0][0],
        scores=_scores(connection, features),
        declared=connection.execute(_DECLARED).fetchall(),
    )


class _Names:
    """Distinct names of a column, which are looked up by hash."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, sql: str) -> None:
        found = _fetch(
            connection,
            f"SELECT name, hash(name) AS key FROM (SELECT DISTINCT name FROM ({sql})) "
            "WHERE name IS NOT NULL ORDER BY name",
        )
        self.names: tuple[str, ...] = tuple(found["name"].tolist())
        self._order = np.argsort(found["key"])
        self._keys = found["key"][self._order]
        assert len(np.unique(self._keys)) == len(self._keys), "two names have one 64-bit hash"

    def codes(self, hashes: NDArray[Any]) -> Ints:
        """Look up the codes of hashed names, int64[n]; −1 for NULL."""
        codes = np.full(len(hashes), -1, dtype=np.int64)
        if len(self._keys):
            at = np.minimum(np.searchsorted(self._keys, hashes), len(self._keys) - 1)
            known = self._keys[at] == hashes
            codes[known] = self._order[at[known]]
        return codes


def _coded(
    connection: duckdb.DuckDBPyConnection, column: str, hashes: NDArray[Any], relation: str = "chosen_decisions"
) -> Coded:
    names = _Names(connection, f'SELECT "{column}" AS name FROM {relation}')
    return Coded(names.codes(hashes), names.names)


def _arrays(
    connection: duckdb.DuckDBPyConnection,
    column: str,
    lengths: NDArray[Any] | None = None,
    relation: str = "chosen_decisions",
    *,
    within: _Names | None = None,
) -> Arrays:
    """Fetch a list column; names are replaced by their codes in `within`."""
    if lengths is None:
        lengths = _fetch(connection, f"SELECT coalesce(len({column}), 0) AS n FROM {relation}")["n"]
    lengths = lengths.astype(np.int64)
    if not lengths.any():
        return Arrays(lengths, np.zeros(0))
    values = f"SELECT unnest({column}) AS v FROM {relation}"
    if within is None:
        return Arrays(lengths, _fetch(connection, values)["v"])
    return Arrays(lengths, within.codes(_fetch(connection, f"SELECT hash(v) AS v FROM ({values})")["v"]))


def _scores(connection: duckdb.DuckDBPyConnection, features: bool) -> Scores:
    connection.execute(
        f"CREATE TEMP TABLE answers AS SELECT decision_id, row_number() OVER () - 1 AS i FROM {_ANSWERED}"
    )
    found = _fetch(connection, f"SELECT mean, hash(schema) AS schema, coalesce(len(h), 0) AS length FROM {_ANSWERED}")
    rows = _fetch(connection, "SELECT i, row FROM answers JOIN places USING (decision_id)")
    return Scores(
        row=_at(len(found["mean"]), rows["i"], rows["row"]),
        mean=found["mean"],
        schema=_coded(connection, "schema", found["schema"], _ANSWERED),
        h=_arrays(connection, "h", found["length"], _ANSWERED) if features else None,
    )


def _at(n: int, places: Ints, values: Ints) -> Ints:
    """Scatter values to their places in int64[n], with −1 elsewhere."""
    found = np.full(n, -1, dtype=np.int64)
    found[places] = values
    return found


def _fetch(connection: duckdb.DuckDBPyConnection, sql: str) -> dict[str, NDArray[Any]]:
    """Run a query and return its columns by name; NULL becomes 0, or None in text columns."""
    found: dict[str, Any] = connection.execute(sql).fetchnumpy()
    return {
        name: np.ma.filled(values, None if values.dtype == object else 0) if np.ma.isMaskedArray(values) else values
        for name, values in found.items()
    }
