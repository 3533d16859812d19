"""Reads the warehouse file while a gateway writes it.

The gateway is not blocked: it works from its journal, and its feed retries when the file is locked. The file is opened
read-only and closed before anything is computed. If the feed keeps it open for some seconds, a copy is read instead.

A copy made during a write is consistent: DuckDB never overwrites a block that the file's header refers to, so if the
header is the same before and after copying, the copy is the state of that header plus the committed transactions in
the write-ahead log.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fitrouter.errors import StoreError
from fitrouter.stores.warehouse import is_lock_error, is_present
from fitrouter_evaluators.replay.log._connection import (
    NEEDED,
    OpenLog,
    open_duckdb,
    schema_of,
    scratch,
    view_tables,
)
from fitrouter_evaluators.replay.log.log import refuse

if TYPE_CHECKING:
    import duckdb


PATIENCE_S = 3.0
"""Seconds to wait for a writer before reading a copy."""
_HEADER = 3 * 4096
"""Bytes of the file's three headers; the last two alternate, and a checkpoint ends by writing one of them."""
_COPIES = 20


@contextmanager
def open_warehouse(path: Path, *, patience_s: float = PATIENCE_S) -> Iterator[OpenLog]:
    place = f"warehouse {str(path)!r}"
    with scratch() as folder, _connected(path, folder, place, patience_s) as connection:
        found = schema_of(connection)
        if not is_present(connection):
            refuse(
                place,
                "it is no warehouse of this version of fitrouter",
                "start a gateway of this version on its folder, which fills it again from the journal; or read the "
                "journal itself",
            )
        view_tables(connection, place, found, {table: table for table in NEEDED})
        yield OpenLog(connection, place)


def reaches(path: Path, *, patience_s: float = PATIENCE_S) -> int:
    """The last journal sequence number in the warehouse."""
    with open_warehouse(path, patience_s=patience_s) as log:
        row = log.connection.execute("SELECT seq FROM position").fetchone()
        return int(row[0]) if row else 0


@contextmanager
def _connected(path: Path, folder: Path, place: str, patience_s: float) -> Iterator[duckdb.DuckDBPyConnection]:
    import duckdb

    try:
        with _unlocked(path, folder, patience_s) as connection:
            yield connection
    except duckdb.ProgrammingError:
        raise  # our own fault
    except duckdb.Error as error:
        refuse(
            place,
            f"it cannot be read ({str(error).strip().splitlines()[0]})",
            "it is damaged or no warehouse: delete it, the gateway fills it again from its journal; or read the "
            "journal itself",
        )


def _unlocked(path: Path, folder: Path, patience_s: float) -> duckdb.DuckDBPyConnection:
    """A connection to the file, or to a copy if it stays locked."""
    import duckdb

    deadline, wait = time.monotonic() + patience_s, 0.01
    while True:
        try:
            return open_duckdb(path, folder, read_only=True)
        except duckdb.Error as error:
            if not is_lock_error(error):
                raise
        if time.monotonic() > deadline:
            return open_duckdb(_copied(path, folder), folder)
        time.sleep(wait)
        wait = min(2.0 * wait, 0.3)


def _copied(path: Path, folder: Path) -> Path:
    """Copy the file and its write-ahead log, between two checkpoints."""
    copy = folder / "copy.duckdb"
    log, log_copy = path.with_name(path.name + ".wal"), copy.with_name(copy.name + ".wal")
    for _ in range(_COPIES):
        before = _header(path)
        shutil.copyfile(path, copy)
        log_copy.unlink(missing_ok=True)
        with suppress(FileNotFoundError):  # where there is none, all is in the file
            shutil.copyfile(log, log_copy)
        if before == _header(path) == _header(copy):
            return copy
    raise StoreError(f"{str(path)!r} is being written all the time and could not be copied; read the journal instead")


def _header(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEADER)
