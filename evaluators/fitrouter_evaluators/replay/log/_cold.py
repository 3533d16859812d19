"""Reads the cold store that a gateway writes into a folder or a bucket, as far as it reaches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fitrouter.errors import ConfigError
from fitrouter.stores.cold import Missing, Payloads, Storage, files_at, query, storage_at
from fitrouter.stores.journal import Row
from fitrouter_evaluators.replay.log._connection import OpenLog, open_duckdb, scratch
from fitrouter_evaluators.replay.log._journal import decode_rows, fill
from fitrouter_evaluators.replay.log.log import refuse

_NEXT = "SELECT seq, payload, crc FROM read_parquet(?) WHERE seq > ? ORDER BY seq"
_TRIES = 5


def is_place(path: Path) -> bool:
    """Whether a folder is a cold store."""
    return path.is_dir() and bool(files_at(storage_at(str(path))))


@contextmanager
def open_cold(place: str, *, features: bool = True, whole: bool = False) -> Iterator[OpenLog]:
    """Open a cold store; without `features`, skip the long arrays; `whole` keeps all columns, for an export."""
    storage = storage_at(place)
    words, files = f"cold store {storage.place!r}", files_at(storage)
    if not files:
        raise ConfigError(
            f"there is no cold store in {storage.place!r}; give the place of `cold.place`, where a running gateway "
            "writes it"
        )
    with scratch() as folder, open_duckdb(folder / "log.duckdb", folder) as connection:
        fill(connection, _batches(storage, words, files[-1].last, folder), words, features=features, whole=whole)
        yield OpenLog(connection, f"{words} up to event {files[-1].last}")


def _batches(storage: Storage, words: str, until: int, folder: Path) -> Iterator[list[Row]]:
    """Iterate over the rows of each file; files may be written again and grow meanwhile."""
    after = tries = 0
    while after < until:
        file = next((each for each in files_at(storage) if each.last > after), None)
        if file is None or (after and file.first > after + 1):
            end = until if file is None else file.first - 1
            refuse(
                words,
                f"the events {after + 1} to {end} are missing",
                "let the gateway that writes it run, or restore it",
            )
        try:
            found = query(storage, file, _NEXT, [after])
        except Missing:
            tries += 1
            if tries > _TRIES:
                raise
            continue
        yield decode_rows(words, [row for row in found if row[0] <= until], Payloads(folder))
        after = file.last
