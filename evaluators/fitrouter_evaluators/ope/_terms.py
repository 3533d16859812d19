"""What the columns of a map mean, as SQL over the staged rows: the cells of a decision, and why a row has none."""

# ruff: noqa: S608 - columns are known by their positions, and texts are quoted by `literal`

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from fitrouter.errors import ConfigError, InvalidLog
from fitrouter_evaluators.ope._staging import Source, Staged, literal
from fitrouter_evaluators.ope.column_map import (
    ARM,
    ArmList,
    ArmsFile,
    Category,
    ColumnMap,
    Feature,
    ListColumn,
    Number,
    PerArm,
    Vector,
)

if TYPE_CHECKING:
    import duckdb

__all__ = ["ARM_LIMIT", "IDENTITY", "Features", "columns_of", "features_of", "find_arms", "reasons", "rows_sql"]

ARM_LIMIT = 1000
"""More arms than this are somebody's ids."""

IDENTITY = ("tenant", "user", "role", "task", "session")

_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}

_Check: TypeAlias = tuple[str, str]
"""SQL that is true for a row that cannot be used, and SQL of the reason. Checks are asked one after another."""


class Features(NamedTuple):
    """Numbers of a row, one after another."""

    names: tuple[str, ...]
    sql: str
    """FLOAT[]"""
    checks: tuple[_Check, ...]


# --- which columns -----------------------------------------------------------------------------------------------


def columns_of(columns: ColumnMap, source: Source) -> list[str]:
    """Names of the columns that a map reads; where they are named after arms, all that are there."""
    parts = (columns.reward, columns.time, columns.eligible, columns.pmf, *columns.features)
    plain = (columns.arm, columns.propensity, columns.id, columns.cost_usd, columns.latency_s)
    names = [name for name in (*plain, *(getattr(columns, field) for field in IDENTITY)) if name is not None]
    for part in parts:
        if isinstance(part, PerArm):
            before, _, after = part.columns.partition(ARM)
            size = len(before) + len(after)
            names += [
                name
                for name in source.names
                if len(name) > size
                and name.startswith(before)
                and name.endswith(after)
                and source.names.count(name) < 2
            ]
        elif part is not None:
            names.append(part.column)
    return names


def find_arms(
    connection: duckdb.DuckDBPyConnection, columns: ColumnMap, staged: Staged, second: Staged | None
) -> tuple[str, ...]:
    """The arms in canonical order: those of the map, of the file of the arms, or all that occur.

    Raises:
        ConfigError: there are too many.
        InvalidLog: the file of the arms has one twice, or a row without a name.
    """
    if isinstance(columns.arms, ArmList):
        return tuple(sorted(columns.arms.names))
    if second is not None and isinstance(columns.arms, ArmsFile):
        name = second.text(columns.arms.column)
        found = [row[0] for row in connection.execute(f"SELECT {name} FROM {second.table} ORDER BY rowid").fetchall()]
        for row, arm in enumerate(found):
            if arm is None or found.index(arm) < row:
                raise InvalidLog(
                    f"{second.source.path.name!r}, row {row + 1}: the arm is {arm!r}; name every arm once in column "
                    f"{columns.arms.column!r}"
                )
    else:
        occur = f"SELECT {staged.text(columns.arm)} AS arm FROM {staged.table}"
        if columns.eligible is not None:
            names = staged.list_of(columns.eligible.column, columns.eligible.separator, "VARCHAR")
            occur += f" UNION SELECT unnest({names}) FROM {staged.table}"
        sql = f"SELECT DISTINCT arm FROM ({occur}) WHERE arm IS NOT NULL LIMIT {ARM_LIMIT + 1}"
        found = [row[0] for row in connection.execute(sql).fetchall()]
    if len(found) > ARM_LIMIT:
        raise ConfigError(
            f"there are more than {ARM_LIMIT} arms; is {columns.arm!r} the column of the arm that was chosen?"
        )
    return tuple(sorted(found))


# --- features ----------------------------------------------------------------------------------------------------


def features_of(
    connection: duckdb.DuckDBPyConnection, staged: Staged, features: Iterable[Feature], arms: Sequence[str]
) -> Features:
    """The features of a table's rows.

    Raises:
        ConfigError: a column is not there, or a category has too many values.
    """
    names: list[str] = []
    cells: list[str] = []
    checks: list[_Check] = []
    for feature in features:
        if isinstance(feature, PerArm):
            numbers = [Number(column=feature.of(arm)) for arm in arms]
        else:
            numbers = [feature] if isinstance(feature, Number) else []
        for number in numbers:
            names.append(number.column)
            cells.append(f"[{_number(staged, number)}]")
            checks.append(_number_check(staged, number))
        if isinstance(feature, Category):
            levels = _levels(connection, staged, feature)
            names += [f"{feature.column}={level}" for level in levels]
            text = staged.text(feature.column)
            hot = ", ".join(f"coalesce(CAST({text} = {literal(level)} AS FLOAT), 0)" for level in levels)
            cells.append(f"[{hot}]::FLOAT[]")
        elif isinstance(feature, Vector):
            numbers_of, length = _vector(connection, staged, feature)
            names += [f"{feature.column}[{i}]" for i in range(length)]
            cells.append(numbers_of)
            checks.append(_vector_check(staged, feature, numbers_of, length))
    return Features(tuple(names), " || ".join(cells) or "[]::FLOAT[]", tuple(checks))


def _number(staged: Staged, feature: Number) -> str:
    single = f"TRY_CAST({staged.number(feature.column)} AS FLOAT)"
    return single if feature.fill is None else f"coalesce({single}, CAST({feature.fill!r} AS FLOAT))"


def _number_check(staged: Staged, feature: Number) -> _Check:
    text = staged.text(feature.column)
    empty = "false" if feature.fill is not None else f"{text} IS NULL"
    broken = f"{text} IS NOT NULL AND NOT coalesce(isfinite(TRY_CAST({staged.number(feature.column)} AS FLOAT)), false)"
    remedy = "; allowed are finite numbers: correct it" + ("" if feature.fill is not None else ", or give a `fill`")
    return f"{empty} OR ({broken})", _said(f"feature {feature.column!r}", text, remedy)


def _levels(connection: duckdb.DuckDBPyConnection, staged: Staged, feature: Category) -> list[str]:
    text = staged.text(feature.column)
    sql = f"SELECT DISTINCT {text} AS level FROM {staged.table} WHERE level IS NOT NULL LIMIT {feature.limit + 1}"
    levels = sorted(str(row[0]) for row in connection.execute(sql).fetchall())
    if len(levels) > feature.limit:
        raise ConfigError(
            f"the category {feature.column!r} has more than {feature.limit} values; raise its `limit`, or leave it out"
        )
    return levels


def _vector(connection: duckdb.DuckDBPyConnection, staged: Staged, feature: Vector) -> tuple[str, int]:
    numbers = staged.list_of(feature.column, feature.separator, "FLOAT")
    row = connection.execute(f"SELECT mode(len({numbers})) FROM {staged.table}").fetchone()
    return numbers, int(row[0] or 0) if row else 0


def _vector_check(staged: Staged, feature: Vector, numbers: str, length: int) -> _Check:
    finite = f"list_bool_and(list_transform({numbers}, lambda v: coalesce(isfinite(v), false)))"
    sound = f"len({numbers}) = {length} AND {finite}"
    remedy = f"; allowed are {length} finite numbers, as in most rows: correct it"
    return f"NOT coalesce({sound}, false)", _said(f"feature {feature.column!r}", staged.text(feature.column), remedy)


# --- rows --------------------------------------------------------------------------------------------------------


def rows_sql(columns: ColumnMap, staged: Staged, arms: Sequence[str], features: Features) -> str:
    """SELECT with one row for each staged row: `row`, the cells of a decision, and `reason` where it cannot be used.

    Cells are id, ts, tenant, "user", role, task, session, chosen, eligible (sorted), probs (in its order; empty where
    only the propensity is known), propensity, reward (on its scale), cost_usd, latency_s, features.
    """
    time, time_check = _time(columns, staged)
    plain = {
        "id": staged.text(columns.id) if columns.id else f"{literal(_stem(staged) + '-')} || (rowid + 1)",
        "ts": time,
        "chosen": staged.text(columns.arm),
        "reward": staged.number(columns.reward.column),
        "drawn": staged.number(columns.propensity) if columns.propensity else "NULL::DOUBLE",
        "cost_usd": staged.number(columns.cost_usd) if columns.cost_usd else "0.0",
        "latency_s": staged.number(columns.latency_s) if columns.latency_s else "0.0",
        "features": features.sql,
    }
    for field in IDENTITY:
        column, constant = getattr(columns, field), getattr(columns.constants, field)
        plain[field] = staged.text(column) if column else literal(constant) if constant else "NULL::VARCHAR"
    plain["tenant"] = f"coalesce({plain['tenant']}, 'default')"
    given = ", ".join(f'{sql} AS "{name}"' for name, sql in plain.items())
    listed, eligible = _eligible(columns, staged, arms)
    checks = [
        ("id IS NULL", "'the id is empty; every row has one of its own'"),
        time_check,
        ("chosen IS NULL", "'no arm was chosen; name it'"),
        *_eligible_checks(columns, arms),
        *_pmf_checks(columns),
        *_propensity_checks(columns),
        *_outcome_checks(columns, staged),
        *features.checks,
    ]
    return f"""
        WITH given AS (SELECT rowid AS "row", *, {given}, {listed} AS listed FROM {staged.table}),
        sorted AS (SELECT *, {eligible} AS eligible FROM given),
        measured AS (SELECT *, {_pmf(columns, staged, arms)} AS pmf FROM sorted),
        scaled AS (SELECT *, list_sum(pmf) AS total FROM measured),
        probable AS (SELECT *, {_probs(columns)} AS probs FROM scaled),
        complete AS (SELECT *, {_propensity(columns)} AS propensity FROM probable)
        SELECT "row", id, ts, tenant, "user", role, task, session, chosen, eligible, probs, propensity, reward,
            cost_usd, latency_s, features, {reasons(checks)} AS reason
        FROM complete
    """


def reasons(checks: Sequence[_Check]) -> str:
    """SQL of the first reason why a row cannot be used, NULL where there is none."""
    return f"CASE {' '.join(f'WHEN {broken} THEN {reason}' for broken, reason in checks) or 'WHEN false THEN NULL'} END"


def _stem(staged: Staged) -> str:
    return staged.source.path.name.split(".")[0]


def _said(what: str, text: str, remedy: str) -> str:
    """SQL of a reason that shows a cell."""
    return f"{literal(what + ' is ')} || coalesce('''' || left({text}, 80) || '''', 'empty') || {literal(remedy)}"


def _time(columns: ColumnMap, staged: Staged) -> tuple[str, _Check]:
    if columns.time is None:
        return "CAST(rowid + 1 AS DOUBLE)", ("false", "''")
    name, kind = columns.time.column, staged.types[columns.time.column]
    if columns.time.unit:
        seconds, allowed = f"{staged.number(name)} * {_SECONDS[columns.time.unit]!r}", "a number"
    elif kind == "VARCHAR":
        seconds, allowed = (
            f"epoch_us(TRY_CAST({staged.column(name)} AS TIMESTAMPTZ)) / 1e6",
            "a date and time as in ISO 8601",
        )
    elif kind.startswith(("TIMESTAMP", "DATE")):
        seconds, allowed = f"epoch_us({staged.column(name)}) / 1e6", "a date and time"
    else:
        raise ConfigError(f"time: column {name!r} holds numbers; say in which `unit`: s, ms, us or ns")
    reason = _said("the time", staged.text(name), f"; allowed is {allowed}: correct it, or give its `unit`")
    return seconds, ("NOT coalesce(isfinite(ts), false)", reason)


def _names(arms: Sequence[str]) -> str:
    return f"[{', '.join(literal(arm) for arm in arms)}]"


def _eligible(columns: ColumnMap, staged: Staged, arms: Sequence[str]) -> tuple[str, str]:
    """The list as it is in the row, and in canonical order."""
    if columns.eligible is None:
        return "NULL::VARCHAR[]", _names(arms)
    return staged.list_of(columns.eligible.column, columns.eligible.separator, "VARCHAR"), "list_sort(listed)"


def _eligible_checks(columns: ColumnMap, arms: Sequence[str]) -> list[_Check]:
    shown = f"{literal(', '.join(arms[:20]) + (' …' if len(arms) > 20 else ''))}"
    if columns.eligible is None:
        among = f"'the arm ''' || left(chosen, 80) || ''' is none of ' || {shown} || '; name all arms in `arms`'"
        return [("NOT list_contains(eligible, chosen)", among)]
    row = "left(CAST(listed AS VARCHAR), 200)"
    hole = "'eligible is no list of arms; give a JSON list, or the `separator` between the names'"
    return [
        ("NOT coalesce(len(listed) > 0 AND list_count(listed) = len(listed), false)", hole),
        ("len(list_distinct(listed)) < len(listed)", f"'eligible is ' || {row} || '; name every arm once'"),
        (
            f"NOT list_has_all({_names(arms)}, listed)",
            f"'eligible is ' || {row} || '; arms of the map are ' || {shown}",
        ),
        (
            "NOT list_contains(listed, chosen)",
            f"'the arm ''' || left(chosen, 80) || ''' was chosen, and eligible were ' || {row} || '; name all that "
            "could have been drawn'",
        ),
    ]


def _pmf(columns: ColumnMap, staged: Staged, arms: Sequence[str]) -> str:
    """The probabilities as they are in the row, in the order of `eligible`; NULL where there are none."""
    pmf = columns.pmf
    if columns.constants.mode == "uniform":
        return "list_transform(eligible, lambda a: 1.0::DOUBLE / len(eligible))"
    if pmf is None:
        return "NULL::DOUBLE[]"
    if isinstance(pmf, PerArm):
        whole = f"[{', '.join(staged.number(pmf.of(arm)) for arm in arms)}]"
        if columns.eligible is None:
            return whole
        return f"list_transform(eligible, lambda a: {whole}[list_position({_names(arms)}, a)])"
    given = staged.list_of(pmf.column, pmf.separator, "DOUBLE")
    order = "listed" if columns.eligible is not None else _names(_in_order(columns))
    return (
        f"CASE WHEN len({given}) = len(eligible) THEN "
        f"list_transform(list_sort(list_zip({order}, {given})), lambda pair: pair[2]) END"
    )


def _in_order(columns: ColumnMap) -> tuple[str, ...]:
    assert isinstance(columns.arms, ArmList)
    return columns.arms.names


def _pmf_checks(columns: ColumnMap) -> list[_Check]:
    if columns.pmf is None:
        return []
    shown = "left(CAST(pmf AS VARCHAR), 200)"
    checks: list[_Check] = []
    if isinstance(columns.pmf, ListColumn):
        checks.append(
            ("pmf IS NULL", "'pmf is no list of ' || len(eligible) || ' numbers; give one for each eligible arm'")
        )
    inside = "list_bool_and(list_transform(pmf, lambda p: coalesce(p >= 0 AND p <= 1 + 1e-9, false)))"
    return [
        *checks,
        (f"NOT {inside}", f"'pmf is ' || {shown} || '; allowed are numbers from 0 to 1, one for each eligible arm'"),
        (
            f"NOT abs(total - 1) <= {columns.tolerance!r} + 1e-12",
            f"'pmf sums to ' || total || ' over the eligible arms; it must be 1 within the `tolerance` of "
            f"{columns.tolerance:g}'",
        ),
    ]


def _probs(columns: ColumnMap) -> str:
    """What rounding took is given back, so that they are a pmf; a sum as near to 1 as sums come is left alone."""
    if columns.pmf is None and columns.constants.mode != "uniform":
        return "[]::DOUBLE[]"
    return "CASE WHEN abs(total - 1) <= 1e-12 THEN pmf ELSE list_transform(pmf, lambda p: p / total) END"


def _propensity(columns: ColumnMap) -> str:
    known = columns.pmf is not None or columns.constants.mode == "uniform"
    return "probs[list_position(eligible, chosen)]" if known else "drawn"


def _propensity_checks(columns: ColumnMap) -> list[_Check]:
    checks: list[_Check] = []
    if columns.propensity is not None:
        checks += [
            (
                "NOT coalesce(drawn > 0 AND drawn <= 1, false)",
                "'the propensity is ' || coalesce(CAST(drawn AS VARCHAR), 'no number') || '; what was drawn had a "
                "probability above 0 and up to 1: give the one that it was drawn with'",
            ),
            (
                f"abs(drawn - propensity) > {columns.tolerance!r} + 1e-12",
                "'the propensity is ' || drawn || ', and the pmf has ' || propensity || ' for the arm; they are one "
                f"number, within the `tolerance` of {columns.tolerance:g}'",
            ),
        ]
    zero = "'the pmf gives the chosen arm the probability 0; what was drawn had one: give the pmf it was drawn from'"
    return [*checks, ("NOT coalesce(propensity > 0, false)", zero)]


def _outcome_checks(columns: ColumnMap, staged: Staged) -> list[_Check]:
    low, high = columns.reward.scale
    checks = [
        (
            f"NOT coalesce(reward BETWEEN {low!r} AND {high!r}, false)",
            _said("the reward", staged.text(columns.reward.column), f"; its scale goes from {low:g} to {high:g}"),
        )
    ]
    for name, column in (("cost_usd", columns.cost_usd), ("latency_s", columns.latency_s)):
        if column is not None:
            reason = _said(name, staged.text(column), "; allowed are finite numbers from 0 on")
            checks.append((f"NOT coalesce({name} >= 0 AND isfinite({name}), false)", reason))
    return checks
