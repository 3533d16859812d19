"""SQL that turns the rows of a selection into decisions and their features, with the reason for each invalid row."""

# ruff: noqa: S608 - statements are made of constants and quoted names

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from fitrouter.errors import ConfigError
from fitrouter_evaluators.replay.importing.selection import WORDS
from fitrouter_evaluators.replay.importing.tables import identifier, literal

if TYPE_CHECKING:
    import duckdb

ARM_LIMIT = 1000
"""More distinct values than this are not arms but ids."""
LEVEL_LIMIT = 100
"""More distinct values than this are no category."""
TOLERANCE = 1e-3
"""How far a pmf's sum may be from 1, and a propensity from its place in the pmf: what rounding left of them."""
_TEXTS = ("tenant", "user", "role", "task", "session", "policy", "mode")
_NUMBERS = frozenset(
    {
        *("tinyint", "smallint", "integer", "bigint", "hugeint", "float", "double", "decimal"),
        *("utinyint", "usmallint", "uinteger", "ubigint", "uhugeint"),
    }
)
_SHAPES = {
    "time": (("varchar", "date", "timestamp", *_NUMBERS), "a date and time, or a number since 1970"),
    "eligible": (("varchar", "list", "array"), "a list of arms"),
    "pmf": (("varchar", "list", "array", "map", "struct", "json"), "a map of arm → probability, an object, or a list"),
}
"""Column → the beginnings of the types that it may have, and what to give. Any other column may be of any type."""
_UNITS = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3), (0.0, 1.0))
"""Least number of a time since 1970 → its units in a second, for times from 1973 on."""
_NEAR = 1e-12
"""Rounding error of a sum of doubles."""
Check: TypeAlias = tuple[str, str]
"""SQL of a condition that makes a row invalid, and SQL of the reason. Checks are evaluated in order."""


class Selected(NamedTuple):
    """The rows of a selection: a table `selected` with the columns `in_arm` and so on, and their types."""

    connection: duckdb.DuckDBPyConnection
    types: dict[str, Any]
    """Column, without `in_`, → DuckDB type."""

    @classmethod
    def of(cls, connection: duckdb.DuckDBPyConnection, reader: str) -> Selected:
        """Make the table `selected` of a SELECT; raises duckdb.Error if a value cannot be converted."""
        connection.execute(f"CREATE TABLE selected AS SELECT COLUMNS('(.*)') AS 'in_\\1' FROM ({reader}\n)")
        relation = connection.table("selected")
        names = (name.removeprefix("in_") for name in relation.columns)
        types = dict(zip(names, relation.types, strict=True))
        for name, (allowed, what) in _SHAPES.items():
            if name in types and not types[name].id.startswith(allowed):
                raise ConfigError(f"--select: {name} is of type {types[name]}; give {what}")
        return cls(connection, types)

    def one(self, sql: str) -> Any:
        """The first value of a query."""
        return (self.connection.execute(sql).fetchone() or [None])[0]

    def text(self, name: str) -> str:
        """SQL of a column as text; NULL if it is empty, or not there."""
        return f"nullif(CAST(in_{name} AS VARCHAR), '')" if name in self.types else "NULL::VARCHAR"

    def number(self, name: str) -> str:
        """SQL of a column as a number; NULL if it is not one."""
        return f"TRY_CAST({self.text(name)} AS DOUBLE)"


class Features(NamedTuple):
    """Concatenated numeric features of a row."""

    names: tuple[str, ...]
    sql: str
    """FLOAT[]"""
    checks: tuple[Check, ...]


def find_arms(selected: Selected) -> tuple[str, ...]:
    """Find the arms that occur in sorted order: chosen, eligible, or with a probability."""
    listed, names, _ = _probabilities(selected)
    reader = " UNION ".join(
        f"SELECT {sql} AS arm FROM selected" for sql in (selected.text("arm"), f"unnest({listed})", f"unnest({names})")
    )
    found = selected.connection.execute(f"SELECT arm FROM ({reader}) WHERE arm IS NOT NULL ORDER BY arm")
    arms = tuple(str(arm) for (arm,) in found.fetchmany(ARM_LIMIT + 1))
    if len(arms) > ARM_LIMIT:
        raise ConfigError(f"there are more than {ARM_LIMIT} arms; is `arm` the column of the arm that was chosen?")
    return tuple(sorted(arms))


def rows_sql(selected: Selected, arms: Sequence[str], features: Features, stem: str) -> str:
    """SQL that selects one decision per selected row: `row`, its cells, and `reason` if it is invalid.

    Cells are id, ts, tenant, "user", role, task, session, policy, mode, chosen, eligible (sorted), probs (in its order;
    empty if only the propensity is known), propensity, reward, worst, best, cost_usd, latency_s, features.
    """
    every = f"[{', '.join(map(literal, arms))}]::VARCHAR[]"
    listed, names, chances = _probabilities(selected)
    time, time_check = _time(selected)
    plain = {name: selected.text(name) for name in _TEXTS} | {
        "id": selected.text("id") if "id" in selected.types else f"{literal(stem)} || '-' || (rowid + 1)",
        "ts": time,
        "chosen": selected.text("arm"),
        "reward": f"coalesce({selected.number('reward')}, {WORDS.format(selected.text('reward'))})",
        "drawn": selected.number("propensity"),
        "cost_usd": selected.number("cost_usd") if "cost_usd" in selected.types else "0.0",
        "latency_s": selected.number("latency_s") if "latency_s" in selected.types else "0.0",
        "worst": selected.number("worst") if "worst" in selected.types else "0.0",
        "best": selected.number("best") if "best" in selected.types else "1.0",
        "features": features.sql,
        "listed": listed,
        "names": names,
        "chances": chances,
    }
    plain["tenant"] = f"coalesce({plain['tenant']}, 'default')"
    plain["policy"] = f"coalesce({plain['policy']}, 'imported')"
    plain["mode"] = f"coalesce({plain['mode']}, 'online')"
    given = ", ".join(f'{sql} AS "{name}"' for name, sql in plain.items())
    of_names = "list_transform(eligible, lambda a: chances[list_position(names, a)])"
    pmf = f"CASE WHEN mode = 'uniform' THEN list_transform(eligible, lambda a: 1.0 / len(eligible)) ELSE {of_names} END"
    # The probabilities are renormalised unless their sum is 1 up to rounding.
    scaled = f"CASE WHEN abs(total - 1) <= {_NEAR!r} THEN pmf ELSE list_transform(pmf, lambda p: p / total) END"
    sure = "pmf" in selected.types
    own = every if not sure else "list_filter(names, lambda a: chances[list_position(names, a)] IS NOT NULL)"
    checks = [
        ("id IS NULL", "'the id is empty; each row needs a unique id'"),
        time_check,
        ("chosen IS NULL", "'the chosen arm is empty; name it'"),
        ("mode NOT IN ('online', 'uniform')", "'the mode is ' || mode || '; allowed are online and uniform'"),
        *_pmf_shape(selected),
        *_eligible_checks(selected),
        *_pmf_checks(selected),
        *_outcome_checks(selected),
        *features.checks,
    ]
    return f"""
        WITH given AS (SELECT rowid AS "row", *, {given} FROM selected),
        sorted AS (SELECT *, list_sort({"listed" if "eligible" in selected.types else own}) AS eligible FROM given),
        measured AS (SELECT *, {pmf} AS pmf FROM sorted),
        scaled AS (SELECT *, list_sum(pmf) AS total FROM measured),
        probable AS (SELECT *, CASE WHEN {sure or "mode = 'uniform'"} THEN coalesce({scaled}, []) ELSE [] END AS probs
            FROM scaled),
        complete AS (SELECT *, CASE WHEN len(probs) > 0 THEN probs[list_position(eligible, chosen)] ELSE drawn END
            AS propensity FROM probable)
        SELECT "row", id, ts, tenant, "user", role, task, session, policy, mode, chosen, eligible, probs, propensity,
            reward, worst, best, cost_usd, latency_s, features, {reasons(checks)} AS reason
        FROM complete
    """


def reasons(checks: Sequence[Check]) -> str:
    """SQL of the first reason why a row is invalid; NULL for a valid row."""
    return f"CASE {' '.join(f'WHEN {broken} THEN {reason}' for broken, reason in checks)} END"


def _shown(what: str, text: str, remedy: str) -> str:
    """SQL of a reason that shows a cell; `text` is SQL."""
    shown = f"coalesce('''' || left({text}, 80) || '''', 'empty')"
    return f"{literal(f'{what} is ')} || {shown} || {literal(f'; {remedy}')}"


def _probabilities(selected: Selected) -> tuple[str, str, str]:
    """SQL of the eligible arms, of the arms with probabilities, and of these; NULL where nothing tells."""
    nothing, name = "NULL::VARCHAR[]", "in_pmf"
    listed = _list(selected, "eligible", "VARCHAR")
    kind = selected.types.get("pmf")
    if kind is None:
        return listed, nothing, "NULL::DOUBLE[]"
    if kind.id == "map":
        return listed, f"map_keys({name})::VARCHAR[]", f"TRY_CAST(map_values({name}) AS DOUBLE[])"
    if kind.id == "struct":
        fields = [field for field, _ in kind.children]
        values = (f"TRY_CAST({name}.{identifier(field)} AS DOUBLE)" for field in fields)
        return listed, f"[{', '.join(map(literal, fields))}]", f"[{', '.join(values)}]"
    if kind.id in {"list", "array"}:
        given = f"TRY_CAST({name} AS DOUBLE[])"
        return listed, listed, f"CASE WHEN len({given}) = len({listed}) THEN {given} END"
    given = f"TRY_CAST(TRY_CAST({name} AS JSON) AS MAP(VARCHAR, DOUBLE))"
    return listed, f"map_keys({given})", f"map_values({given})"


def _list(selected: Selected, name: str, kind: str) -> str:
    if name not in selected.types:
        return f"NULL::{kind}[]"
    column = f"in_{name}"
    if selected.types[name].id == "varchar":
        return f"TRY_CAST(TRY_CAST({column} AS JSON) AS {kind}[])"
    return f"TRY_CAST({column} AS {kind}[])"


def _time(selected: Selected) -> tuple[str, Check]:
    kind = selected.types.get("time")
    if kind is None:
        return "CAST(rowid + 1 AS DOUBLE)", ("false", "''")
    number = selected.number("time")
    most = float(selected.one(f"SELECT max(abs({number})) FILTER (isfinite({number})) FROM selected") or 0.0)
    seconds = f"{number} / {next(units for least, units in _UNITS if most >= least)!r}"
    if kind.id == "varchar":
        seconds = f"coalesce({seconds}, epoch_us(TRY_CAST(in_time AS TIMESTAMPTZ)) / 1e6)"
    elif kind.id not in _NUMBERS:
        seconds = "epoch_us(in_time) / 1e6"
    remedy = "allowed are ISO 8601, and numbers of s, ms, µs or ns since 1970: correct it"
    return seconds, ("NOT coalesce(isfinite(ts), false)", _shown("the time", selected.text("time"), remedy))


def _eligible_checks(selected: Selected) -> list[Check]:
    arm, row = "'the arm ''' || left(chosen, 80)", "left(CAST(eligible AS VARCHAR), 200)"
    among = f"{arm} || ''' was chosen, but eligible are ' || {row} || '; list all arms that could have been drawn'"
    chosen = ("NOT coalesce(list_contains(eligible, chosen), false)", among)
    if "eligible" not in selected.types:
        return [chosen]
    hole = "'eligible is not a list of arms; give a list, such as [''small'', ''large''] or string_split(…)'"
    return [
        ("NOT coalesce(len(listed) > 0 AND list_count(listed) = len(listed), false)", hole),
        ("len(list_distinct(listed)) < len(listed)", f"'eligible is ' || {row} || '; list each arm once'"),
        chosen,
    ]


def _pmf_shape(selected: Selected) -> list[Check]:
    """Checks of a pmf before its eligible arms are read from it."""
    if "pmf" not in selected.types:
        return []
    if selected.types["pmf"].id in {"list", "array"}:
        if "eligible" not in selected.types:
            raise ConfigError(
                "--select: pmf is a list, whose order is not known; give the arms in its order as `eligible`, or a "
                "map: MAP {'small': p_small, …} AS pmf"
            )
        short = "'pmf is not a list of ' || len(listed) || ' numbers; give one for each eligible arm'"
        return [("listed IS NOT NULL AND chances IS NULL", short)]
    empty = "'pmf is empty or no map; give the probability of each arm: MAP {''small'': p_small, …}'"
    return [("NOT coalesce(len(names) > 0, false)", empty)]


def _pmf_checks(selected: Selected) -> list[Check]:
    checks: list[Check] = []
    if "pmf" in selected.types:
        shown = "left(CAST(pmf AS VARCHAR), 200)"
        inside = "list_bool_and(list_transform(pmf, lambda p: coalesce(p >= 0 AND p <= 1 + 1e-9, false)))"
        checks += [
            (
                f"NOT {inside}",
                f"'pmf is ' || {shown} || '; allowed are numbers from 0 to 1, one for each eligible arm'",
            ),
            (
                f"NOT abs(total - 1) <= {TOLERANCE + _NEAR!r}",
                f"'pmf sums to ' || total || ' over the eligible arms; it must be 1, up to {TOLERANCE:g}'",
            ),
        ]
    if "propensity" in selected.types:
        checks += [
            (
                "NOT coalesce(drawn > 0 AND drawn <= 1, false)",
                "'the propensity is ' || coalesce(CAST(drawn AS VARCHAR), 'not a number') || '; it must be above 0 and "
                "at most 1: give the probability with which the arm was drawn'",
            ),
            (
                f"abs(drawn - propensity) > {TOLERANCE + _NEAR!r}",
                "'the propensity is ' || drawn || ', and the pmf has ' || propensity || ' for the arm; they must be "
                f"equal, up to {TOLERANCE:g}'",
            ),
        ]
    zero = "'the pmf gives the chosen arm the probability 0; give the pmf from which the arm was drawn'"
    return [*checks, ("NOT coalesce(propensity > 0, false)", zero)]


def _outcome_checks(selected: Selected) -> list[Check]:
    text = selected.text("reward")
    checks = [
        (
            "NOT coalesce(isfinite(worst) AND isfinite(best) AND worst <> best, false)",
            "'worst and best are ' || coalesce(CAST(worst AS VARCHAR), 'not a number') || ' and ' || "
            "coalesce(CAST(best AS VARCHAR), 'not a number') || '; give two numbers that differ'",
        ),
        (
            f"{text} IS NOT NULL AND NOT coalesce(reward BETWEEN least(worst, best) AND greatest(worst, best), false)",
            f"{_shown('the reward', text, 'the scale is ')} || format('{{:g}} to {{:g}}', least(worst, best), "
            "greatest(worst, best))",
        ),
    ]
    for name in ("cost_usd", "latency_s"):
        if name in selected.types:
            reason = _shown(name, selected.text(name), "allowed are finite numbers of at least 0")
            checks.append((f"NOT coalesce({name} >= 0 AND isfinite({name}), false)", reason))
    return checks


# --- features ---


def features_of(selected: Selected) -> Features:
    """Build the SQL, names and checks of the column `features`: a list of numbers, or an object of named features.

    Raises:
        ConfigError: a feature has another type, or too many values.
    """
    kind = selected.types.get("features")
    if kind is None:
        return Features((), "[]::FLOAT[]", ())
    column = "in_features"
    if kind.id != "struct":
        return _feature(selected, "features", column, kind)
    parts = [_feature(selected, name, f"{column}.{identifier(name)}", each) for name, each in kind.children]
    names = tuple(name for part in parts for name in part.names)
    return Features(names, " || ".join(part.sql for part in parts), tuple(c for part in parts for c in part.checks))


def _feature(selected: Selected, name: str, value: str, kind: Any) -> Features:
    if kind.id in {"list", "array"}:
        return _vector(selected, name, value)
    if kind.id in _NUMBERS:
        single = f"TRY_CAST({value} AS FLOAT)"
        reason = _shown(f"feature {name!r}", f"CAST({value} AS VARCHAR)", "allowed are finite numbers: correct it")
        return Features((name,), f"[{single}]", ((f"NOT coalesce(isfinite({single}), false)", reason),))
    if kind.id not in {"varchar", "boolean", "enum"}:
        raise ConfigError(f"--select: feature {name!r} is a {kind}; give a number, a text, or a list of numbers")
    text = f"nullif(CAST({value} AS VARCHAR), '')"
    reader = f"SELECT DISTINCT {text} AS level FROM selected WHERE level IS NOT NULL ORDER BY level"
    found = selected.connection.execute(reader).fetchmany(LEVEL_LIMIT + 1)
    if len(found) > LEVEL_LIMIT:
        raise ConfigError(
            f"--select: feature {name!r} is a text with more than {LEVEL_LIMIT} values; leave it out, or make it a "
            f"number: TRY_CAST({name} AS DOUBLE)"
        )
    levels = sorted(str(level) for (level,) in found)
    known = f"[{', '.join(map(literal, levels))}]::VARCHAR[]"
    one_hot = f"list_transform({known}, lambda level: CAST(coalesce({text} = level, false) AS FLOAT))"
    return Features(tuple(f"{name}={level}" for level in levels), one_hot, ())


def _vector(selected: Selected, name: str, value: str) -> Features:
    vector = f"TRY_CAST({value} AS FLOAT[])"
    length = int(selected.one(f"SELECT coalesce(mode(len({vector})), 0) FROM selected") or 0)
    finite = f"coalesce(list_bool_and(list_transform({vector}, lambda v: coalesce(isfinite(v), false))), true)"
    remedy = f"allowed are {length} finite numbers, as in most rows: correct it"
    reason = _shown(f"feature {name!r}", f"CAST({value} AS VARCHAR)", remedy)
    check = (f"NOT coalesce(len({vector}) = {length} AND {finite}, false)", reason)
    return Features(tuple(f"{name}[{i}]" for i in range(length)), vector, (check,))
