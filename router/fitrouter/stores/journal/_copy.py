"""Copying a journal to another place, event by event with its number, and comparing both by digest."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

import msgspec

from fitrouter.errors import ConfigError, StoreError
from fitrouter.stores._files import make_folder
from fitrouter.stores.cold import Payloads
from fitrouter.stores.journal._lease import FileLock
from fitrouter.stores.journal._schema import open_checked

BATCH = 2000
"""Rows of one transaction."""
Raw: TypeAlias = tuple[int, str, float, str, str | None, str | None, bytes, int]
"""(number, id, time, kind, decision id, subject, payload, checksum of the payload), as stored."""
Part: TypeAlias = tuple[str, tuple[object, ...]]
"""A row of another table, and which: spool, erased, snapshot_position or snapshot_state."""
_PARTS = {
    "spool": "SELECT decision_id, seq, ts, content FROM spool ORDER BY seq, decision_id",
    "erased": "SELECT digest, seq FROM erased ORDER BY digest",
    "snapshot_state": "SELECT key, value FROM snapshot_state ORDER BY key",
}
_FILL = {
    "spool": "INSERT INTO spool (decision_id, seq, ts, content) VALUES (?, ?, ?, ?)",
    "erased": "INSERT INTO erased (digest, seq) VALUES (?, ?)",
    "snapshot_position": "UPDATE snapshot_position SET seq = ?",
    "snapshot_state": "INSERT INTO snapshot_state (key, value) VALUES (?, ?)",
}


class Place(Protocol):
    """Protocol of a place where a journal is stored; nobody else may write to it meanwhile."""

    name: str

    def head(self) -> int:
        """The number of the last event."""
        ...

    def rows(self, after: int) -> Sequence[Raw]:
        """The next rows, at most `BATCH`."""
        ...

    def extend(self, rows: Sequence[Raw]) -> None:
        """Append rows with their numbers, in one transaction."""
        ...

    def parts(self) -> Iterator[Part]:
        """Yield everything of the journal other than its events."""
        ...

    def fill(self, parts: Iterable[Part]) -> None:
        """Replace everything of the journal other than its events, in one transaction."""
        ...


class Copied(NamedTuple):
    """Result of `copy`."""

    events: int
    """In the journal."""
    moved: int
    """Of them by this call: an earlier one may have been interrupted."""
    digest: str
    """Of both places."""


def copy(source: Place, target: Place, progress: Callable[[int, int], object] | None = None) -> Copied:
    """Copy a journal: what the target lacks, then compare both by digest.

    Args:
        source: is only read.
        target: empty, or what an interrupted copy left.
        progress: called with the numbers of the last copied event and of the last event.

    Raises:
        ConfigError: the target has another journal.
        StoreError: the digests differ, or a place cannot be used.
    """
    seq, head, moved = target.head(), source.head(), 0
    if seq and [row[:2] for row in source.rows(seq - 1)[:1]] != [row[:2] for row in target.rows(seq - 1)[:1]]:
        raise ConfigError(f"{target.name} has another journal; name an empty place, or delete what is there")
    while rows := source.rows(seq):
        target.extend(rows)
        seq, moved = rows[-1][0], moved + len(rows)
        if progress is not None:
            progress(seq, max(head, seq))
    target.fill(source.parts())
    (digest, events), (copied, _) = digest_of_place(source), digest_of_place(target)
    if digest != copied:
        raise StoreError(
            f"the copy differs from its source: {target.name} has digest {copied[:12]}, {source.name} {digest[:12]}. "
            "Stop what writes either, and copy again to an empty place"
        )
    return Copied(events, moved, digest)


def digest_of_place(place: Place) -> tuple[str, int]:
    """Compute the sha256 of all that a place holds of a journal; also return the number of events."""
    total, seq, count = hashlib.sha256(), 0, 0
    encode = msgspec.msgpack.Encoder().encode
    while rows := place.rows(seq):
        for row in rows:
            total.update(encode(row))
        seq, count = rows[-1][0], count + len(rows)
    for part in place.parts():
        total.update(encode(part))
    return total.hexdigest(), count


class FilePlace:
    """An SQLite file as a place of a journal; its cold store is read too, and never written.

    Args:
        path: the file, which is created if it may be.
        new: whether it may.

    Raises:
        ConfigError: there is no file.
        StoreError: it is in use.
    """

    def __init__(self, path: Path, *, new: bool) -> None:
        self.name, path = str(path), path.absolute()
        if not new and not path.is_file():
            raise ConfigError(f"there is no journal {str(path)!r}")
        make_folder(path.parent)
        self._users = FileLock(path.with_name(f"{path.name}.open"))
        if not self._users.alone():
            self._users.close()
            raise StoreError(f"{str(path)!r} is open in a gateway; stop it first")
        self._payloads = Payloads(path.parent)
        self._connection = open_checked(path)

    def head(self) -> int:
        """The number of the last event."""
        return int(self._connection.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0])

    def rows(self, after: int) -> Sequence[Raw]:
        """Return the next rows, with payloads that are in the cold store."""
        while True:
            found: list[Raw] = self._connection.execute(
                "SELECT seq, id, ts, kind, decision_id, subject, CAST(payload AS BLOB), CAST(crc AS INTEGER) "
                "FROM events WHERE seq > ? ORDER BY seq LIMIT ?",
                (after, BATCH),
            ).fetchall()
            moved = self._payloads.of([row[0] for row in found if row[6] == b""])
            # Of an event without a file `lost` stands here, which fails its checksum.
            rows = [(*row[:6], row[6] or moved.get(row[0], b"lost"), row[7]) for row in found]
            kept = [row for row in rows if row[6]]  # without those that were too old for the cold store
            if kept or not found:
                return kept
            after = found[-1][0]

    def extend(self, rows: Sequence[Raw]) -> None:
        """Append rows with their numbers."""
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def parts(self) -> Iterator[Part]:
        """Yield everything of the journal other than its events."""
        yield "snapshot_position", self._connection.execute("SELECT seq FROM snapshot_position").fetchone()
        for name, statement in _PARTS.items():
            yield from ((name, row) for row in self._connection.execute(statement))

    def fill(self, parts: Iterable[Part]) -> None:
        """Replace everything of the journal other than its events."""
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            for name in _PARTS:
                self._connection.execute(f"DELETE FROM {name}")  # noqa: S608
            for name, group in itertools.groupby(parts, lambda part: part[0]):
                self._connection.executemany(_FILL[name], (row for _, row in group))

    def close(self) -> None:
        """Close the file."""
        with closing(self._users):
            self._connection.close()
