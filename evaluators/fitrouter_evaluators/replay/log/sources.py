"""Reads logs from a warehouse file, a gateway's journal, a cold store, or a folder of Parquet files.

All four give the same `Log` for the same events, and none blocks a running gateway.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fitrouter.config import FeedbackConfig
from fitrouter.errors import ConfigError
from fitrouter.stores.cold import place_of
from fitrouter.stores.warehouse import TABLES
from fitrouter_evaluators.replay.log import _cold, _journal, _parquet, _warehouse
from fitrouter_evaluators.replay.log._assembly import assemble
from fitrouter_evaluators.replay.log._columns import fetch_columns
from fitrouter_evaluators.replay.log._connection import OpenLog, literal, schema_of
from fitrouter_evaluators.replay.log._constraints import check_structure
from fitrouter_evaluators.replay.log.heard import hear
from fitrouter_evaluators.replay.log.log import Log
from fitrouter_evaluators.replay.log.validation import validate

JOURNAL, WAREHOUSE = "journal.db", "fitrouter.duckdb"
"""File names in a gateway's folder."""
_FEED_S = 1.5
"""Seconds within which a running feed adds rows."""
_POLL_S = 0.1


def read_log(
    path: str | os.PathLike[str],
    *,
    since: float | None = None,
    until: float | None = None,
    features: bool = True,
    limits: FeedbackConfig | None = None,
) -> Log:
    """Read and validate a log; see `fitrouter_evaluators.replay.log.validation`.

    Rows are in order of time, then of the journal. A decision's label is its last rating, else its last thumb.
    Outcomes of users who were erased while a request was in progress are left out and counted in the log's `source`.

    Args:
        path: a warehouse (`*.duckdb`), a journal (`*.db`), a cold store (a folder, or s3://BUCKET/PREFIX), a folder of
            Parquet files, or a gateway's folder, of which the warehouse is read if it is up to date with the journal,
            else the journal. A warehouse of a million decisions takes seconds, a journal minutes.
        since: seconds since the epoch; earlier decisions are left out.
        until: decisions at this time and later are left out.
        features: False to leave out x and h, most of a log's bytes.
        limits: on votes, in force during logging: labels that do not count for others by these are left out. None:
            the defaults.

    Raises:
        ConfigError: there is no log at the path.
        InvalidLog: estimates from the log would be wrong; the message says what, where, and what to do.
        StoreError: the file is written without a pause; try again.
    """
    with open_log(Path(path), features=features) as log:
        left = check_structure(log)
        hear(log.connection, limits)
        columns = fetch_columns(log.connection, since, until, features)
    found = assemble(columns, log.place)
    validate(found)
    return found._replace(source=f"{log.place}, without {left} outcomes of erased people") if left else found


def export(log_path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> list[Path]:
    """Write a log's tables as Parquet (`decisions.parquet` …) into a new folder; returns the files.

    Raises:
        ConfigError: the folder holds such files, or there is no log at the path.
        InvalidLog: the log cannot be read.
        StoreError: the file is written without a pause; try again.
    """
    target = Path(folder)
    paths = {table: target / f"{table}.parquet" for table in TABLES}
    if taken := [path.name for path in paths.values() if path.exists()]:
        raise ConfigError(f"{str(target)!r} holds {', '.join(taken)} already; give a new folder")
    target.mkdir(parents=True, exist_ok=True)
    with open_log(Path(log_path), whole=True) as log:
        have = schema_of(log.connection)
        written = {table: path for table, path in paths.items() if table in have}
        if not written:
            raise ConfigError(f"{str(log_path)!r} holds Parquet files already; give a warehouse or a journal")
        for table, path in written.items():
            partial = path.with_suffix(".partial")
            sql = f"COPY (SELECT * FROM {table} ORDER BY seq) TO {literal(str(partial))} (FORMAT parquet)"  # noqa: S608
            log.connection.execute(sql)
            partial.chmod(0o600)  # people's
            partial.rename(path)
    return list(written.values())


@contextmanager
def open_log(path: Path, *, features: bool = True, whole: bool = False) -> Iterator[OpenLog]:
    """The log at a path, by the type of what is there, as in `read_log`; without its checks.

    Raises:
        ConfigError: there is no log at the path.
        InvalidLog: it cannot be read.
        StoreError: the file is written without a pause; try again.
    """
    journal, warehouse, note = path / JOURNAL, path / WAREHOUSE, ""
    if place := place_of(path) or (str(path) if _cold.is_place(path) else ""):
        source = _cold.open_cold(place, features=features, whole=whole)
    elif path.is_file():
        journalled = _is_journal(path)
        source = (
            _journal.open_journal(path, features=features, whole=whole)
            if journalled
            else _warehouse.open_warehouse(path)
        )
    elif (path / "decisions.parquet").is_file():
        source = _parquet.open_parquet(path)
    elif journal.is_file():
        behind = _behind(journal, warehouse) if warehouse.is_file() else -1
        source = (
            _journal.open_journal(journal, features=features, whole=whole)
            if behind
            else _warehouse.open_warehouse(warehouse)
        )
        note = f", whose warehouse is {behind} rows behind" if behind > 0 else ""
    elif warehouse.is_file():
        source = _warehouse.open_warehouse(warehouse)
    else:
        raise ConfigError(
            f"there is no log at {str(path)!r}; give a warehouse (fitrouter.duckdb), a journal (journal.db), a folder "
            "with one of them, a cold store (a folder, or s3://BUCKET/PREFIX), or a folder with decisions.parquet, "
            "executions.parquet, scores.parquet, feedback.parquet"
        )
    with source as log:
        yield log._replace(place=f"{log.place}{note}")


def _behind(journal: Path, warehouse: Path) -> int:
    """Number of rows of the journal that the warehouse lacks; waits for a feed as long as it adds rows."""
    head, reached = _journal.head(journal), _warehouse.reaches(warehouse)
    until = time.monotonic() + _FEED_S
    while reached < head and time.monotonic() < until:
        time.sleep(min(_FEED_S, _POLL_S))
        if (now := _warehouse.reaches(warehouse)) > reached:
            reached, until = now, time.monotonic() + _FEED_S
    return max(head - reached, 0)


def _is_journal(path: Path) -> bool:
    """Whether a file is an SQLite database, as journals are."""
    with path.open("rb") as file:
        return file.read(16) == b"SQLite format 3\x00" or path.suffix == ".db"
