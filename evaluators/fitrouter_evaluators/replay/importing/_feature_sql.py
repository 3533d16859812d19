"""SQL of a map's features over the staged rows."""

# ruff: noqa: S608 - statements are made of positions, numbers and constants, and refer to texts (`SqlParameters`)

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from fitrouter.errors import ConfigError
from fitrouter_evaluators.replay.importing._staging import StagedFile
from fitrouter_evaluators.replay.importing.column_map import Category, Feature, Number, PerArm, Vector

Check: TypeAlias = tuple[str, str]
"""SQL of a condition that makes a row invalid, and SQL of the reason. Checks are evaluated in order."""


class Features(NamedTuple):
    """Concatenated numeric features of a row."""

    names: tuple[str, ...]
    sql: str
    """FLOAT[]"""
    checks: tuple[Check, ...]


def features_of(staged: StagedFile, features: Iterable[Feature], arms: Sequence[str]) -> Features:
    """The features of a table's rows."""
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
            vector, length = staged.list_of(feature.column, feature.separator, "FLOAT"), _length(staged, feature)
            names += [f"{feature.column}[{i}]" for i in range(length)]
            cells.append(vector)
            checks.append(_vector_check(staged, feature, vector, length))
        else:
            each = [feature]
            if isinstance(feature, PerArm):
                each = [Number(column=feature.of(arm)) for arm in arms]
            for number in each:
                assert isinstance(number, Number)
                names.append(number.column)
                cells.append(f"[{_number(staged, number)}]")
                checks.append(_number_check(staged, number))
    return Features(tuple(names), " || ".join(cells) or "[]::FLOAT[]", tuple(checks))


def reasons(checks: Sequence[Check]) -> str:
    """SQL of the first reason why a row is invalid; NULL for a valid row."""
    return f"CASE {' '.join(f'WHEN {broken} THEN {reason}' for broken, reason in checks) or 'WHEN false THEN NULL'} END"


def cell_reason(staged: StagedFile, what: str, text: str, remedy: str) -> str:
    """SQL of a reason that shows a cell; `text` is SQL."""
    shown = f"coalesce('''' || left({text}, 80) || '''', 'empty')"
    return f"{staged.values.refer(f'{what} is ')} || {shown} || {staged.values.refer(f'; {remedy}')}"


def _number(staged: StagedFile, feature: Number) -> str:
    single = f"TRY_CAST({staged.number(feature.column)} AS FLOAT)"
    return single if feature.fill is None else f"coalesce({single}, CAST({feature.fill!r} AS FLOAT))"


def _number_check(staged: StagedFile, feature: Number) -> Check:
    text = staged.text(feature.column)
    finite = f"coalesce(isfinite(TRY_CAST({staged.number(feature.column)} AS FLOAT)), false)"
    remedy = "allowed are finite numbers: correct it"
    if feature.fill is not None:
        return f"{text} IS NOT NULL AND NOT {finite}", cell_reason(staged, f"feature {feature.column!r}", text, remedy)
    return f"NOT {finite}", cell_reason(staged, f"feature {feature.column!r}", text, f"{remedy}, or give a `fill`")


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


def _length(staged: StagedFile, feature: Vector) -> int:
    """The most frequent length."""
    vector = staged.list_of(feature.column, feature.separator, "FLOAT")
    return int(staged.query(f"SELECT coalesce(mode(len({vector})), 0) FROM {staged.table}")[0][0])


def _vector_check(staged: StagedFile, feature: Vector, vector: str, length: int) -> Check:
    finite = f"list_bool_and(list_transform({vector}, lambda v: coalesce(isfinite(v), false)))"
    reason = cell_reason(
        staged,
        f"feature {feature.column!r}",
        staged.text(feature.column),
        f"allowed are {length} finite numbers, as in most rows: correct it",
    )
    return f"NOT coalesce(len({vector}) = {length} AND {finite}, false)", reason
