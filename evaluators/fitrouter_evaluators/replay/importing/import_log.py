"""Imports another system's log (CSV, JSONL or Parquet) by a column map."""

# ruff: noqa: S608 - statements are made of constants, and refer to texts (`SqlParameters`)

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from fitrouter.errors import ConfigError, InvalidLog
from fitrouter.stores.warehouse import tables_sql
from fitrouter_evaluators.datasets import Problem
from fitrouter_evaluators.replay.importing._row_sql import columns_of, features_of, find_arms, reasons, rows_sql
from fitrouter_evaluators.replay.importing._staging import SqlParameters, StagedFile, numbered, open_source, stage
from fitrouter_evaluators.replay.importing.column_map import ArmsFile, ColumnMap, PerArm, load_map

_SHOWN = 5
"""Problems listed in an error."""

_DUPLICATE_IDS = """
    INSERT INTO unusable
    SELECT "row", 'the id ''' || left(id, 80) || ''' occurs more than once; each row needs a unique id'
    FROM (
        SELECT "row", id FROM checked
        WHERE reason IS NULL AND id IN (SELECT id FROM checked WHERE reason IS NULL GROUP BY id HAVING count(*) > 1)
    )
    QUALIFY row_number() OVER (PARTITION BY id ORDER BY "row") > 1
"""
"""Repeated ids; the first row of each is kept."""

_OF_ALL = 'seq, ts, id AS decision_id, tenant, "user", role, task, session'
_EXECUTIONS = f"""
    SELECT {_OF_ALL}, id AS execution_id, chosen, chosen AS served_by, 'ok' AS status, [] AS attempts,
        0 AS prompt_tokens, 0 AS completion_tokens, cost_usd, latency_s * 1000 AS latency_ms, 0 AS overhead_ms
    FROM rows
"""
_FEEDBACK = f"""
    SELECT {_OF_ALL}, id AS feedback_id, 'rating' AS kind, reward AS value, scale_low, scale_high,
        (reward - scale_low) / (scale_high - scale_low) AS y, 'overall' AS dimension, true AS asked,
        'import' AS source, '' AS other
    FROM (SELECT *, {{}}::DOUBLE AS scale_low, {{}}::DOUBLE AS scale_high FROM rows WHERE reward IS NOT NULL)
"""
_USABLE = """
    CREATE TEMP VIEW rows AS SELECT *, "row" + 1 AS seq FROM checked WHERE "row" NOT IN (SELECT "row" FROM unusable)
"""


class Imported(NamedTuple):
    """Result of an import."""

    folder: Path
    """`read_log` reads it."""
    rows: int
    """Decisions."""
    skipped: int
    """Invalid lines; they are listed in `problems.jsonl`."""
    arms: tuple[str, ...]
    """In sorted order."""
    features: tuple[str, ...]
    """Names of the numbers in a decision's `features`."""
    arm_features: tuple[str, ...]
    """Names of the numbers in `features` of `arms.parquet`; empty if there are none."""


def import_log(
    data: str | os.PathLike[str],
    columns: ColumnMap | Mapping[str, Any] | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    skip_bad: bool = False,
) -> Imported:
    """Write a foreign log as a folder of Parquet tables in the warehouse's form.

    Each row is a draw whose reward is a rating requested with probability 1, since every outcome was observed. With
    a propensity but no pmf, `probs` is empty; missing costs and latencies are 0; `seq` is the row in the file, from
    1. The folder also holds `import.json` (map, arms, feature names), `arms.parquet` if the arms have features, and
    `problems.jsonl` if lines were skipped.

    Args:
        data: a CSV file (.csv, .tsv, also .gz; UTF-8, with a header) or a Parquet file.
        columns: the map: name of a built-in one, a YAML file, or its content; see `ColumnMap`.
        out: the folder to make; it must not exist, or be empty.
        skip_bad: skip invalid lines instead of rejecting the file.

    Raises:
        ConfigError: the map does not fit the file, there is no such file, or the folder is not empty.
        InvalidLog: the file is damaged or has an invalid line; the message says which and why.
    """
    import duckdb

    target, chosen = Path(out), load_map(columns)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{str(target)!r} exists and is not empty; give a new folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as own:
        partial, work = Path(own) / "log", Path(own)
        partial.mkdir()
        config: dict[str, Any] = {"threads": 2, "memory_limit": "1GB", "temp_directory": str(work / "spill")}
        with duckdb.connect(work / "staged.duckdb", config=config) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            found = _write(SqlParameters(connection), Path(data), chosen, partial, skip_bad)
        if target.exists():
            target.rmdir()
        shutil.move(partial, target)
    return found._replace(folder=target)


def _write(values: SqlParameters, data: Path, columns: ColumnMap, folder: Path, skip_bad: bool) -> Imported:
    source = open_source(data, columns.delimiter)
    staged = stage(values, source, columns_of(columns, source), "staged")
    second = _second(values, data, columns)
    arms = find_arms(columns, staged, second)
    features = features_of(staged, columns.features, arms)
    reader = rows_sql(columns, staged, arms, features)
    values.connection.execute(f"CREATE TEMP VIEW checked AS {reader}")
    problems = _problems(staged, columns, skip_bad)
    values.connection.execute(_USABLE)
    _write_tables(values, columns, folder)
    arm_features = _write_arms(columns, second, folder)
    if problems:
        lines = b"".join(msgspec.json.encode(problem) + b"\n" for problem in problems)
        (folder / "problems.jsonl").write_bytes(lines)
    found = Imported(folder, _count(staged, "rows"), len(problems), arms, features.names, arm_features)
    manifest = {
        "data": data.name,
        **found._asdict(),
        "map": columns.model_dump(mode="json", exclude_defaults=True),
    }
    del manifest["folder"]
    (folder / "import.json").write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return found


def _problems(staged: StagedFile, columns: ColumnMap, skip_bad: bool) -> list[Problem]:
    """Collect the invalid lines, and list the rows among them in the table `unusable`; raises unless `skip_bad`."""
    connection = staged.values.connection
    connection.execute('CREATE TABLE unusable AS SELECT "row", reason FROM checked WHERE reason IS NOT NULL')
    if columns.id is not None:
        connection.execute(_DUPLICATE_IDS)
    bad = _count(staged, "unusable") + len(staged.broken)
    total = _count(staged, staged.table) + len(staged.broken)
    name = staged.source.path.name
    if not total:
        raise InvalidLog(f"{name!r} has a header but no rows")
    if not bad:
        return []
    found = staged.query('SELECT "row", reason FROM unusable ORDER BY "row"', total if skip_bad else _SHOWN)
    problems = numbered(staged, {int(row): str(reason) for row, reason in found})
    if bad == total or not skip_bad:
        raise InvalidLog(_refusal(name, problems, bad, total))
    return problems


def _second(values: SqlParameters, data: Path, columns: ColumnMap) -> StagedFile | None:
    if not isinstance(columns.arms, ArmsFile):
        return None
    source = open_source(data.parent / columns.arms.file, columns.delimiter)
    features = [part.column for part in columns.arms.features if not isinstance(part, PerArm)]
    staged = stage(values, source, [columns.arms.column, *features], "arms")
    if staged.broken:
        problems = numbered(staged, {})
        raise InvalidLog(_refusal(source.path.name, problems, len(problems)))
    return staged


def _write_arms(columns: ColumnMap, second: StagedFile | None, folder: Path) -> tuple[str, ...]:
    """Write the arms' features; returns their names."""
    if second is None or not isinstance(columns.arms, ArmsFile) or not columns.arms.features:
        return ()
    features = features_of(second, columns.arms.features, ())
    checked = f"SELECT rowid, {reasons(features.checks)} AS reason FROM {second.table}"
    if found := second.query(f"SELECT * FROM ({checked}) WHERE reason IS NOT NULL"):
        problems = numbered(second, {int(row): str(reason) for row, reason in found})
        raise InvalidLog(_refusal(second.source.path.name, problems, len(problems)))
    arm = second.text(columns.arms.column)
    reader = f"SELECT {arm} AS arm, {features.sql} AS features FROM {second.table} ORDER BY arm"
    second.values.connection.execute(f"COPY ({reader}) TO ? (FORMAT parquet)", [str(folder / "arms.parquet")])
    return features.names


def _write_tables(values: SqlParameters, columns: ColumnMap, folder: Path) -> None:
    """Write the view `rows` (`_row_sql.rows_sql` with `seq`) as `decisions.parquet` and so on."""
    values.connection.execute(tables_sql())
    tables = {
        "decisions": _decisions(values, columns),
        "executions": _EXECUTIONS,
        "feedback": _FEEDBACK.format(*map(repr, columns.reward.scale)),
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


def _count(staged: StagedFile, table: str) -> int:
    return int(staged.query(f"SELECT count(*) FROM {table}")[0][0])


def _refusal(name: str, problems: list[Problem], bad: int, total: int | None = None) -> str:
    word = "row" if name.lower().endswith(".parquet") else "line"
    shown = "".join(f"\n  {word} {problem.line}: {problem.reason}" for problem in problems[:_SHOWN])
    rest = f"\n  and {bad - _SHOWN} more" if bad > _SHOWN else ""
    if total is None:
        return f"{name!r}: {bad} rows cannot be used; correct them:{shown}{rest}"
    remedy = "check the map" if bad == total else "correct them, or skip them (--skip-bad)"
    return f"{name!r}: {bad} of {total} rows cannot be used; {remedy}:{shown}{rest}"
