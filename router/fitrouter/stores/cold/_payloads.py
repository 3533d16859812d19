"""Reading the payloads of events that the journal has moved to a cold store."""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from pathlib import Path

from fitrouter.stores.cold._files import File, files_at, query
from fitrouter.stores.cold._places import noted_places, storage_at
from fitrouter.stores.cold._storage import Missing, Storage

_KEPT = 2
"""Files whose payloads are kept in memory."""
_ALL = "SELECT seq, payload FROM read_parquet(?)"
_SOME = "SELECT seq, payload FROM read_parquet(?) WHERE seq IN (SELECT unnest(?::BIGINT[]))"


class Payloads:
    """Payloads of events in the cold stores that a data folder has used. Thread safe.

    Args:
        folder: of the journal.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mutex = threading.Lock()
        self._files: list[tuple[Storage, File]] = []
        self._kept: OrderedDict[tuple[str, File], dict[int, bytes]] = OrderedDict()

    def of(self, seqs: Sequence[int]) -> dict[int, bytes]:
        """The payloads of events by their sequence numbers.

        Events that a file covers and no longer has, since they were too old, have an empty one; those of which no file
        is there are left out.

        Raises:
            StoreError: a file cannot be read.
        """
        if not seqs:
            return {}
        with self._mutex:
            try:
                return self._read(seqs)
            except Missing:  # it was written again under a longer name
                self._files = []
                return self._read(seqs)

    def rows(self, sql: str) -> list[tuple[object, ...]]:
        """Return the rows of a query of each file, which is its parameter."""
        with self._mutex:
            self._list()
            return [row for storage, file in self._files for row in query(storage, file, sql)]

    def _read(self, seqs: Sequence[int]) -> dict[int, bytes]:
        groups = self._grouped(seqs)
        if sum(map(len, groups.values())) < len(seqs):  # another process may have written more
            self._list()
            groups = self._grouped(seqs)
        made: dict[int, bytes] = {}
        for (storage, file), wanted in groups.items():
            key = storage.place, file
            payloads = self._kept.pop(key, None)
            if payloads is None and len(groups) > _KEPT:  # those of one person are in many files
                found = dict(query(storage, file, _SOME, [wanted]))
            else:
                found = dict(query(storage, file, _ALL)) if payloads is None else payloads
                self._kept[key] = found
                if len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
            made |= {seq: found.get(seq, b"") for seq in wanted}
        return made

    def _grouped(self, seqs: Sequence[int]) -> dict[tuple[Storage, File], list[int]]:
        groups: defaultdict[tuple[Storage, File], list[int]] = defaultdict(list)
        last = None
        for seq in seqs:
            if last is None or not last[1].first <= seq <= last[1].last:
                last = next((each for each in self._files if each[1].first <= seq <= each[1].last), None)
            if last is not None:
                groups[last].append(seq)
        return groups

    def _list(self) -> None:
        """List the files, those of the present place first."""
        places = [storage_at(place, self._folder) for place in reversed(noted_places(self._folder))]
        self._files = [(storage, file) for storage in places for file in files_at(storage)]
