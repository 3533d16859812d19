"""Copies segments to this machine, for programs that read them."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fitrouter.errors import ConfigError
from fitrouter.stores.warehouse.segments._editor import Damaged, fetched
from fitrouter.stores.warehouse.segments._manifest import Manifest, manifest_of
from fitrouter.stores.warehouse.segments._storage import Storage

_AT_ONCE = 8
_TRIES = 5


def fetch(storage: Storage, tables: Collection[str], folder: Path) -> tuple[Manifest, dict[str, list[Path]]]:
    """Copy the files of some tables, as of one moment; a gateway may be changing them.

    Returns:
        The manifest, and the files of each table in the order of the journal; a table without rows has none.

    Raises:
        ConfigError: there are no segments at the place.
        StoreError: they cannot be read, or are damaged.
    """
    found = manifest_of(storage)
    for attempt in range(_TRIES):
        manifest, tag = found
        if tag is None:
            raise ConfigError(
                f"there are no segments in {storage.place!r}; give the place of `warehouse.segments`, where a running "
                "gateway writes them"
            )
        wanted = [(table, each) for table in tables for each in manifest.segments if table in each.files]
        try:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                paths = list(pool.map(lambda one: fetched(storage, one[1], one[0], folder), wanted))
        except Damaged:  # or merged meanwhile
            found = manifest_of(storage)
            if found.tag == tag or attempt == _TRIES - 1:
                raise
            continue
        files: dict[str, list[Path]] = {}
        for (table, _), path in zip(wanted, paths, strict=True):
            files.setdefault(table, []).append(path)
        return manifest, files
    raise AssertionError
