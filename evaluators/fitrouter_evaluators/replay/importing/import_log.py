"""Imports another system's log (CSV, JSON or Parquet) by one SELECT that says what its columns mean."""

# ruff: noqa: S608 - statements are made of constants, and the user's own selection

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from fitrouter.errors import ConfigError, InvalidLog
from fitrouter.stores.warehouse import tables_sql
from fitrouter_evaluators.replay.importing._rows import Selected, features_of, find_arms, rows_sql
from fitrouter_evaluators.replay.importing.selection import Selection, complete
from fitrouter_evaluators.replay.importing.tables import Table, open_table

if TYPE_CHECKING:
    import duckdb

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

_USABLE = """
    CREATE TEMP VIEW rows AS SELECT *, "row" + 1 AS seq FROM checked WHERE "row" NOT IN (SELECT "row" FROM unusable)
"""
_OF_ALL = 'seq, ts, id AS decision_id, tenant, "user", role, task, session'
_TABLES = {
    # each row of a session but the first draws it again
    "decisions": f"""
        SELECT {_OF_ALL}, id AS draw_id, mode, eligible, [] AS excluded, probs, chosen,
            propensity, features, [] AS mean, [] AS sd, [] AS cost, [] AS latency, [] AS availability,
            0 AS cost_weight, 0 AS cost_unit_usd, 0 AS latency_weight, 0 AS latency_unit_s, 0 AS budget_weight,
            0 AS budget_unit_usd, [] AS switch, 0 AS floor, 1 AS share, [] AS twin, [] AS personal,
            MAP() AS candidates, [] AS new, [] AS rest, 0 AS steps, true AS user_turn,
            CASE WHEN session IS NULL OR row_number() OVER (PARTITION BY tenant, session ORDER BY ts, seq) = 1
                THEN '' ELSE 'import' END AS redraw,
            true AS asked, 1 AS asked_probability, 0 AS deadline_s, policy AS policy_algorithm,
            '' AS policy_config_hash, -1 AS policy_seq, '' AS registry, 'import' AS encoder, 0 AS seed
        FROM rows
    """,
    "executions": f"""
        SELECT {_OF_ALL}, id AS execution_id, chosen, chosen AS served_by, 'ok' AS status, [] AS attempts,
            0 AS prompt_tokens, 0 AS completion_tokens, cost_usd, latency_s * 1000 AS latency_ms, 0 AS overhead_ms
        FROM rows
    """,
    "feedback": f"""
        SELECT {_OF_ALL}, id AS feedback_id, 'rating' AS kind, reward AS value, worst AS scale_low,
            best AS scale_high, (reward - worst) / (best - worst) AS y, 'overall' AS dimension, true AS asked,
            'import' AS source, '' AS other
        FROM rows WHERE reward IS NOT NULL
    """,
    "scores": "",
}


class Imported(NamedTuple):
    """Result of an import."""

    folder: Path
    """`read_log` reads it."""
    rows: int
    """Decisions."""
    skipped: int
    """Invalid rows; they are listed in `problems.jsonl`."""
    arms: tuple[str, ...]
    """In sorted order."""
    features: tuple[str, ...]
    """Names of the numbers in a decision's `features`."""
    select: str
    """The selection: its expressions if it was completed by a guess."""


def import_log(
    data: str | os.PathLike[str], select: str | None, out: str | os.PathLike[str], *, skip_bad: bool = False
) -> Imported:
    """Write a foreign log as a folder of Parquet tables in the warehouse's form.

    Each row is a draw whose reward is a rating requested with probability 1, since every outcome was observed. With
    a propensity but no pmf, `probs` is empty; missing costs and latencies are 0; `seq` is the row of the selection,
    from 1. The folder also holds `import.json` (selection, arms, feature names), and `problems.jsonl` if rows were
    skipped.

    Args:
        data: a CSV file (.csv, .tsv, also .gz; UTF-8, with a header), a JSON file, or a Parquet file.
        select: a SELECT of the table `log`, its expressions, or a file of either (.sql); None to guess all columns.
            `docs/replay.md` has the columns.
        out: the folder to make; it must not exist, or be empty.
        skip_bad: skip invalid rows instead of rejecting the file.

    Raises:
        ConfigError: the selection does not fit the file, there is no such file, or the folder is not empty.
        InvalidLog: the file is damaged or has an invalid row; the message says which and why.
    """
    import duckdb

    target = Path(out)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{str(target)!r} exists and is not empty; give a new folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as own:
        partial, work = Path(own) / "log", Path(own)
        partial.mkdir(mode=0o700)
        config: dict[str, Any] = {"threads": 2, "memory_limit": "1GB", "temp_directory": str(work / "spill")}
        with duckdb.connect(work / "staged.duckdb", config=config) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            table = open_table(Path(data), connection)
            found = _write(table, complete(table, select), partial, skip_bad)
        if target.exists():
            target.rmdir()
        shutil.move(partial, target)
    return found._replace(folder=target)


@contextmanager
def imported(path: Path, select: str | None, *, skip_bad: bool = False) -> Iterator[Imported]:
    """Import a table into a temporary folder that `read_log` reads; raises as `import_log`."""
    with tempfile.TemporaryDirectory(prefix="fitrouter-") as folder:
        yield import_log(path, select, Path(folder) / "log", skip_bad=skip_bad)


def _write(table: Table, selection: Selection, folder: Path, skip_bad: bool) -> Imported:
    import duckdb

    connection = table.connection
    try:
        selected = Selected.of(connection, selection.sql)
    except duckdb.Error as error:
        raise ConfigError(f"--select: {error}") from None
    arms, features = find_arms(selected), features_of(selected)
    reader = rows_sql(selected, arms, features, table.path.name.split(".")[0])
    connection.execute(f"CREATE TEMP VIEW checked AS {reader}")
    problems = _problems(table, selection, "id" in selected.types, skip_bad)
    connection.execute(_USABLE)
    connection.execute(tables_sql())
    for name, sql in _TABLES.items():
        # The warehouse's own table, empty, gives the types and the columns that an import knows nothing of.
        reader = f"FROM {name}" + (f" UNION ALL BY NAME {sql}" if sql else "")
        connection.execute(f"COPY ({reader}) TO ? (FORMAT parquet)", [str(folder / f"{name}.parquet")])
    if problems:
        lines = (msgspec.json.encode({"place": place, "reason": reason}) + b"\n" for place, reason in problems)
        (folder / "problems.jsonl").write_bytes(b"".join(lines))
    shown = selection.expressions or selection.sql
    found = Imported(folder, _count(connection, "rows"), len(problems), arms, features.names, shown)
    manifest = {"data": table.path.name, **found._asdict()}
    del manifest["folder"]
    (folder / "import.json").write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return found


def _problems(table: Table, selection: Selection, ids: bool, skip_bad: bool) -> list[tuple[str, str]]:
    """Say where invalid rows are, and why; list them in the table `unusable`. Raises InvalidLog unless `skip_bad`."""
    connection, name = table.connection, table.path.name
    connection.execute('CREATE TABLE unusable AS SELECT "row", reason FROM checked WHERE reason IS NOT NULL')
    if ids:
        connection.execute(_DUPLICATE_IDS)
    bad = _count(connection, "unusable") + len(table.broken)
    total = _count(connection, "selected") + len(table.broken)
    if not total:
        raise InvalidLog(f"{name!r} has no rows, or none is selected")
    if not bad:
        return []
    unusable = connection.execute('SELECT "row", reason FROM unusable ORDER BY "row"')
    found = {int(row): str(reason) for row, reason in unusable.fetchmany(total if skip_bad else _SHOWN)}
    if selection.keeps_rows:
        problems = table.placed(found)
    else:
        problems = [*table.placed({}), *((f"row {row + 1} of the selection", reason) for row, reason in found.items())]
    if bad == total or not skip_bad:
        shown = "".join(f"\n  {place}: {reason}" for place, reason in problems[:_SHOWN])
        rest = f"\n  and {bad - _SHOWN} more" if bad > _SHOWN else ""
        remedy = "check the selection" if bad == total else "correct them, or skip them (--skip-bad)"
        raise InvalidLog(f"{name!r}: {bad} of {total} rows cannot be used; {remedy}:{shown}{rest}")
    return problems


def _count(connection: duckdb.DuckDBPyConnection, table: str) -> int:
    (n,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone() or (0,)
    return int(n)
