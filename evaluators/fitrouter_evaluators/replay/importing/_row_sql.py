"""SQL that turns the staged columns into decisions and their features, with the reason for each invalid row."""

# ruff: noqa: S608 - statements are made of positions, numbers and constants, and refer to texts (`SqlParameters`)

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from fitrouter.errors import ConfigError, InvalidLog
from fitrouter_evaluators.replay.importing._staging import SourceFile, StagedFile
from fitrouter_evaluators.replay.importing.column_map import (
    ARM,
    Amount,
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

ARM_LIMIT = 1000
"""More distinct values than this are not arms but ids."""

WORDS = (
    "CASE WHEN lower(trim({0})) IN ('up', 'yes', 'true', 'like', 'liked', 'positive', 'thumbs_up', '👍') "
    "THEN 1.0 WHEN lower(trim({0})) IN ('down', 'no', 'false', 'dislike', 'disliked', 'negative', "
    "'thumbs_down', '👎') THEN 0.0 END"
)
"""SQL of a reward in a word, for a text."""
_IDENTITY = ("tenant", "user", "role", "task", "session")
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
Check: TypeAlias = tuple[str, str]
"""SQL of a condition that makes a row invalid, and SQL of the reason. Checks are evaluated in order."""
_NEAR = 1e-12
"""Rounding error of a sum of doubles."""


def columns_of(columns: ColumnMap, source: SourceFile) -> list[str]:
    """Names of the columns that a map reads; for per-arm columns, all that match."""
    amounts = columns.cost_usd, columns.latency_s
    parts = (columns.reward, columns.time, columns.eligible, columns.pmf, *amounts, *columns.features)
    plain = (columns.arm, columns.propensity, columns.id)
    names = [name for name in (*plain, *(getattr(columns, field) for field in _IDENTITY)) if name is not None]
    for part in parts:
        if isinstance(part, PerArm):
            before, _, after = part.columns.partition(ARM)
            fits = [name for name in source.names if name.startswith(before) and name.endswith(after)]
            size = len(before) + len(after)
            names += [name for name in fits if len(name) > size and source.names.count(name) == 1]
        elif part is not None:
            names.append(part.column)
    return names


def find_arms(columns: ColumnMap, staged: StagedFile, second: StagedFile | None) -> tuple[str, ...]:
    """Find the arms in sorted order: those of the map or of the arms file, else all that occur."""
    if isinstance(columns.arms, ArmList):
        return tuple(sorted(columns.arms.names))
    if second is not None and isinstance(columns.arms, ArmsFile):
        name = second.text(columns.arms.column)
        found = [row[0] for row in second.query(f"SELECT {name} FROM {second.table} ORDER BY rowid", ARM_LIMIT + 1)]
        for row, arm in enumerate(found):
            if arm is None or found.index(arm) < row:
                raise InvalidLog(
                    f"{second.source.path.name!r}, row {row + 1}: the arm is {arm!r}; list each arm once in column "
                    f"{columns.arms.column!r}"
                )
    else:
        occur = f"SELECT {staged.text(columns.arm)} AS arm FROM {staged.table}"
        if columns.eligible is not None:
            names = staged.list_of(columns.eligible.column, columns.eligible.separator, "VARCHAR")
            occur += f" UNION SELECT unnest({names}) FROM {staged.table}"
        found = [
            row[0] for row in staged.query(f"SELECT DISTINCT arm FROM ({occur}) WHERE arm IS NOT NULL", ARM_LIMIT + 1)
        ]
    if len(found) > ARM_LIMIT:
        raise ConfigError(
            f"there are more than {ARM_LIMIT} arms; is {columns.arm!r} the column of the arm that was chosen?"
        )
    return tuple(sorted(found))


def rows_sql(columns: ColumnMap, staged: StagedFile, arms: Sequence[str], features: Features) -> str:
    """SQL that selects one decision per staged row: `row`, its cells, and `reason` if it is invalid.

    Cells are id, ts, tenant, "user", role, task, session, chosen, eligible (sorted), probs (in its order; empty if only
    the propensity is known), propensity, reward (on its scale), cost_usd, latency_s, features.
    """
    every, stem = staged.values.refer(arms), staged.source.path.name.split(".")[0]
    eligible, known = columns.eligible, columns.pmf is not None or columns.constants.mode == "uniform"
    # The probabilities are renormalised unless their sum is 1 up to rounding.
    scaled = f"CASE WHEN abs(total - 1) <= {_NEAR!r} THEN pmf ELSE list_transform(pmf, lambda p: p / total) END"
    probs = scaled if known else "[]::DOUBLE[]"
    propensity = "probs[list_position(eligible, chosen)]" if known else "drawn"
    time, time_check = _time(columns, staged)
    word = WORDS.format(staged.text(columns.reward.column))
    plain = _identity(columns, staged) | {
        "id": staged.text(columns.id) if columns.id else f"{staged.values.refer(stem)} || '-' || (rowid + 1)",
        "ts": time,
        "chosen": staged.text(columns.arm),
        "reward": f"coalesce({staged.number(columns.reward.column)}, {word})",
        "drawn": staged.number(columns.propensity) if columns.propensity else "NULL::DOUBLE",
        "cost_usd": _amount(staged, columns.cost_usd),
        "latency_s": _amount(staged, columns.latency_s),
        "features": features.sql,
        "listed": staged.list_of(eligible.column, eligible.separator, "VARCHAR") if eligible else "NULL::VARCHAR[]",
    }
    given = ", ".join(f'{sql} AS "{name}"' for name, sql in plain.items())
    checks = [
        ("id IS NULL", "'the id is empty; each row needs a unique id'"),
        time_check,
        ("chosen IS NULL", "'the chosen arm is empty; name it'"),
        *_eligible_checks(columns, staged, arms, every),
        *_pmf_checks(columns),
        *_propensity_checks(columns),
        *_outcome_checks(columns, staged),
        *features.checks,
    ]
    return f"""
        WITH given AS (SELECT rowid AS "row", *, {given} FROM {staged.table}),
        sorted AS (SELECT *, {every if columns.eligible is None else "list_sort(listed)"} AS eligible FROM given),
        measured AS (SELECT *, {_pmf(columns, staged, arms, every)} AS pmf FROM sorted),
        scaled AS (SELECT *, list_sum(pmf) AS total FROM measured),
        probable AS (SELECT *, {probs} AS probs FROM scaled),
        complete AS (SELECT *, {propensity} AS propensity FROM probable)
        SELECT "row", id, ts, tenant, "user", role, task, session, chosen, eligible, probs, propensity, reward,
            cost_usd, latency_s, features, {reasons(checks)} AS reason
        FROM complete
    """


def _amount(staged: StagedFile, amount: Amount | None) -> str:
    """SQL of a cost or a latency; what is missing is 0."""
    return "0.0" if amount is None else f"{staged.number(amount.column)} * {amount.factor!r}"


def _identity(columns: ColumnMap, staged: StagedFile) -> dict[str, str]:
    found = {}
    for field in _IDENTITY:
        column, constant = getattr(columns, field), getattr(columns.constants, field)
        found[field] = "NULL::VARCHAR"
        if column is not None:
            found[field] = staged.text(column)
        elif constant is not None:
            found[field] = staged.values.refer(constant)
    return found | {"tenant": f"coalesce({found['tenant']}, 'default')"}


def _time(columns: ColumnMap, staged: StagedFile) -> tuple[str, Check]:
    if columns.time is None:
        return "CAST(rowid + 1 AS DOUBLE)", ("false", "''")
    name, kind = columns.time.column, staged.types[columns.time.column]
    if columns.time.unit:
        seconds, allowed = f"{staged.number(name)} * {_SECONDS[columns.time.unit]!r}", "a number"
    elif kind == "VARCHAR":
        seconds = f"epoch_us(TRY_CAST({staged.column(name)} AS TIMESTAMPTZ)) / 1e6"
        allowed = "a date and time as in ISO 8601"
    elif kind.startswith(("TIMESTAMP", "DATE")):
        seconds, allowed = f"epoch_us({staged.column(name)}) / 1e6", "a date and time"
    else:
        raise ConfigError(f"time: column {name!r} holds numbers; give its `unit`: s, ms, us or ns")
    reason = cell_reason(staged, "the time", staged.text(name), f"allowed is {allowed}: correct it, or give its `unit`")
    return seconds, ("NOT coalesce(isfinite(ts), false)", reason)


def _eligible_checks(columns: ColumnMap, staged: StagedFile, arms: Sequence[str], every: str) -> list[Check]:
    shown = staged.values.refer(", ".join(arms[:20]) + (" …" if len(arms) > 20 else ""))
    arm = "'the arm ''' || left(chosen, 80)"
    if columns.eligible is None:
        among = f"{arm} || ''' is not among ' || {shown} || '; list all arms in `arms`'"
        return [("NOT list_contains(eligible, chosen)", among)]
    row = "left(CAST(listed AS VARCHAR), 200)"
    hole = "'eligible is not a list of arms; give a JSON list, or the `separator` between the names'"
    return [
        ("NOT coalesce(len(listed) > 0 AND list_count(listed) = len(listed), false)", hole),
        ("len(list_distinct(listed)) < len(listed)", f"'eligible is ' || {row} || '; list each arm once'"),
        (f"NOT list_has_all({every}, listed)", f"'eligible is ' || {row} || '; arms of the map are ' || {shown}"),
        (
            "NOT list_contains(listed, chosen)",
            f"{arm} || ''' was chosen, but eligible are ' || {row} || '; list all arms that could have been drawn'",
        ),
    ]


def _pmf(columns: ColumnMap, staged: StagedFile, arms: Sequence[str], every: str) -> str:
    """The row's probabilities in the order of `eligible`; NULL if there are none."""
    pmf = columns.pmf
    if columns.constants.mode == "uniform":
        return "list_transform(eligible, lambda a: 1.0::DOUBLE / len(eligible))"
    if pmf is None:
        return "NULL::DOUBLE[]"
    if isinstance(pmf, PerArm):
        has_full_pmf = f"[{', '.join(staged.number(pmf.of(arm)) for arm in arms)}]"
        if columns.eligible is None:
            return has_full_pmf
        return f"list_transform(eligible, lambda a: {has_full_pmf}[list_position({every}, a)])"
    given = staged.list_of(pmf.column, pmf.separator, "DOUBLE")
    order = "listed"
    if columns.eligible is None:
        assert isinstance(columns.arms, ArmList)
        order = staged.values.refer(columns.arms.names)
    pairs = f"list_sort(list_zip({order}, {given}))"
    return f"CASE WHEN len({given}) = len(eligible) THEN list_transform({pairs}, lambda pair: pair[2]) END"


def _pmf_checks(columns: ColumnMap) -> list[Check]:
    if columns.pmf is None:
        return []
    shown = "left(CAST(pmf AS VARCHAR), 200)"
    checks: list[Check] = []
    if isinstance(columns.pmf, ListColumn):
        short = "'pmf is not a list of ' || len(eligible) || ' numbers; give one for each eligible arm'"
        checks.append(("pmf IS NULL", short))
    inside = "list_bool_and(list_transform(pmf, lambda p: coalesce(p >= 0 AND p <= 1 + 1e-9, false)))"
    return [
        *checks,
        (f"NOT {inside}", f"'pmf is ' || {shown} || '; allowed are numbers from 0 to 1, one for each eligible arm'"),
        (
            f"NOT abs(total - 1) <= {columns.tolerance + _NEAR!r}",
            f"'pmf sums to ' || total || ' over the eligible arms; it must be 1 within the `tolerance` of "
            f"{columns.tolerance:g}'",
        ),
    ]


def _propensity_checks(columns: ColumnMap) -> list[Check]:
    checks: list[Check] = []
    if columns.propensity is not None:
        checks += [
            (
                "NOT coalesce(drawn > 0 AND drawn <= 1, false)",
                "'the propensity is ' || coalesce(CAST(drawn AS VARCHAR), 'not a number') || '; it must be above 0 and "
                "at most 1: give the probability with which the arm was drawn'",
            ),
            (
                f"abs(drawn - propensity) > {columns.tolerance + _NEAR!r}",
                "'the propensity is ' || drawn || ', and the pmf has ' || propensity || ' for the arm; they must be "
                f"equal within the `tolerance` of {columns.tolerance:g}'",
            ),
        ]
    zero = "'the pmf gives the chosen arm the probability 0; give the pmf from which the arm was drawn'"
    return [*checks, ("NOT coalesce(propensity > 0, false)", zero)]


def _outcome_checks(columns: ColumnMap, staged: StagedFile) -> list[Check]:
    low, high = sorted(columns.reward.scale)
    text = staged.text(columns.reward.column)
    rated = f"{text} IS NOT NULL AND " if columns.reward.unrated else ""
    checks = [
        (
            f"{rated}NOT coalesce(reward BETWEEN {low!r} AND {high!r}, false)",
            cell_reason(staged, "the reward", text, f"the scale is {low:g} to {high:g}"),
        )
    ]
    for name, column in (("cost_usd", columns.cost_usd), ("latency_s", columns.latency_s)):
        if column is not None:
            remedy = "allowed are finite numbers of at least 0"
            reason = cell_reason(staged, name, staged.text(column.column), remedy)
            checks.append((f"NOT coalesce({name} >= 0 AND isfinite({name}), false)", reason))
    return checks


class Features(NamedTuple):
    """Concatenated numeric features of a row."""

    names: tuple[str, ...]
    sql: str
    """FLOAT[]"""
    checks: tuple[Check, ...]


def features_of(staged: StagedFile, features: Iterable[Feature], arms: Sequence[str]) -> Features:
    """Build the SQL, names and checks of a table's features."""
    names: list[str] = []
    cells: list[str] = []
    checks: list[Check] = []
    for feature in features:
        if isinstance(feature, Category):
            levels = _levels(staged, feature)
            text, known = staged.text(feature.column), staged.values.refer(levels)
            names += [f"{feature.column}={level}" for level in levels]
            cells.append(f"list_transform({known}, lambda level: CAST(coalesce({text} = level, false) AS FLOAT))")
        elif isinstance(feature, Vector):
            vector, length, check = _vector(staged, feature)
            names += [f"{feature.column}[{i}]" for i in range(length)]
            cells.append(vector)
            checks.append(check)
        else:
            for number in (
                [Number(column=feature.of(arm)) for arm in arms] if isinstance(feature, PerArm) else [feature]
            ):
                names.append(number.column)
                cell, check = _number(staged, number)
                cells.append(f"[{cell}]")
                checks.append(check)
    return Features(tuple(names), " || ".join(cells) or "[]::FLOAT[]", tuple(checks))


def reasons(checks: Sequence[Check]) -> str:
    """SQL of the first reason why a row is invalid; NULL for a valid row."""
    return f"CASE {' '.join(f'WHEN {broken} THEN {reason}' for broken, reason in checks) or 'WHEN false THEN NULL'} END"


def cell_reason(staged: StagedFile, what: str, text: str, remedy: str) -> str:
    """SQL of a reason that shows a cell; `text` is SQL."""
    shown = f"coalesce('''' || left({text}, 80) || '''', 'empty')"
    return f"{staged.values.refer(f'{what} is ')} || {shown} || {staged.values.refer(f'; {remedy}')}"


def _number(staged: StagedFile, feature: Number) -> tuple[str, Check]:
    """SQL of a numeric feature, and the check that finds invalid cells."""
    text, single = staged.text(feature.column), f"TRY_CAST({staged.number(feature.column)} AS FLOAT)"
    finite, remedy = f"coalesce(isfinite({single}), false)", "allowed are finite numbers: correct it"
    if feature.fill is None:
        reason = cell_reason(staged, f"feature {feature.column!r}", text, f"{remedy}, or give a `fill`")
        return single, (f"NOT {finite}", reason)
    reason = cell_reason(staged, f"feature {feature.column!r}", text, remedy)
    filled = f"coalesce({single}, CAST({feature.fill!r} AS FLOAT))"
    return filled, (f"{text} IS NOT NULL AND NOT {finite}", reason)


def _levels(staged: StagedFile, feature: Category) -> list[str]:
    text = staged.text(feature.column)
    found = staged.query(
        f"SELECT DISTINCT {text} AS level FROM {staged.table} WHERE level IS NOT NULL", feature.limit + 1
    )
    if len(found) > feature.limit:
        raise ConfigError(
            f"the category {feature.column!r} has more than {feature.limit} values; raise its `limit`, or leave it out"
        )
    return sorted(str(row[0]) for row in found)


def _vector(staged: StagedFile, feature: Vector) -> tuple[str, int, Check]:
    """SQL of a vector feature, its most frequent length, and the check that finds invalid cells."""
    vector = staged.list_of(feature.column, feature.separator, "FLOAT")
    length = int(staged.query(f"SELECT coalesce(mode(len({vector})), 0) FROM {staged.table}")[0][0])
    finite = f"list_bool_and(list_transform({vector}, lambda v: coalesce(isfinite(v), false)))"
    remedy = f"allowed are {length} finite numbers, as in most rows: correct it"
    reason = cell_reason(staged, f"feature {feature.column!r}", staged.text(feature.column), remedy)
    return vector, length, (f"NOT coalesce(len({vector}) = {length} AND {finite}, false)", reason)
