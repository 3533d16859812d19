"""The seam between the router and its log."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple, Protocol

import msgspec

from fitrouter.types import Event


class Row(NamedTuple):
    """An event in its place. Sequence numbers rise by commit order and have no meaning beyond order."""

    seq: int
    event: Event


class Entry(msgspec.Struct, frozen=True):
    """What `append` takes: an event, for an Execution also the answer's encrypted text.

    A content goes to the spool in the event's own transaction; a Score takes its decision's content out of the spool
    in the same way.
    """

    event: Event
    content: bytes | None = None


class Spooled(NamedTuple):
    """An answer that waits for its score."""

    decision_id: str
    ts: float
    content: bytes


class Snapshot(NamedTuple):
    """What folds had at one position of the journal: `state` maps a key to its bytes."""

    seq: int
    state: dict[str, bytes]


class Lease(Protocol):
    """A named right that one process of the machine holds at a time."""

    def held(self) -> bool:
        """Take it if it is free, renew it if it is ours; True while it is ours. Call it at least once a second."""
        ...

    def release(self) -> None:
        """Give it back at once."""
        ...


class Journal(Protocol):
    """The log that is the truth. Thread safe; every method but `append` may block on the disk."""

    def append(self, *entries: Entry) -> Future[int]:
        """Queue the entries as one transaction; the future gives the last sequence number once they are durable.

        An event whose id is already there is a no-op. Raises `JournalFull` at once when too many wait; the future
        raises `StoreError` when the disk refuses, and nothing of these entries is kept then.
        """
        ...

    def tail(self, after: int, limit: int = 512) -> Sequence[Row]:
        """The next rows after a sequence number, in order."""
        ...

    def of(self, key: str) -> Sequence[Row]:
        """All rows of a decision id or a subject, in order."""
        ...

    def lease(self, name: str) -> Lease:
        """The lease of this name; a holder that dies loses it within 5 seconds."""
        ...

    def spooled(self, limit: int = 64) -> Sequence[Spooled]:
        """The oldest answers that wait for a score."""
        ...

    def save(self, snapshot: Snapshot) -> None:
        """Merge the state into the stored snapshot and move its position, in one transaction."""
        ...

    def snapshot(self) -> Snapshot:
        """The stored snapshot; position 0 and no state where there is none."""
        ...

    def head(self) -> int:
        """The last sequence number, 0 in an empty journal."""
        ...

    def close(self) -> None:
        """Wait for what is queued, then close."""
        ...
