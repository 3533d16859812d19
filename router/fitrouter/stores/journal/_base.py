"""Protocol of event journals."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple, Protocol

import msgspec

from fitrouter.types import Event, ProfileChange


class Row(NamedTuple):
    """An event with its sequence number. Numbers rise in commit order, possibly with gaps."""

    seq: int
    event: Event


class Entry(msgspec.Struct, frozen=True):
    """An event to append; an Execution can bring the answer's encrypted text.

    The text is written to the spool in the event's own transaction; appending the decision's Score removes it in the
    same way.
    """

    event: Event
    content: bytes | None = None


class Spooled(NamedTuple):
    """An encrypted answer waiting to be scored."""

    decision_id: str
    ts: float
    content: bytes


class Snapshot(NamedTuple):
    """The learned state at a position of the journal: `state` maps a key to its bytes."""

    seq: int
    state: dict[str, bytes]


class Lease(Protocol):
    """A named lock that one process of the machine holds at a time."""

    def held(self) -> bool:
        """Acquire or renew the lease; True while it is ours. Call it at least once a second."""
        ...

    def release(self) -> None:
        """Give the lease back at once."""
        ...


class Journal(Protocol):
    """The event log. Thread safe; every method but `append` may block on the disk."""

    def append(self, *entries: Entry) -> Future[int]:
        """Queue the entries as one transaction; the future gives the last sequence number once they are durable.

        Appending an event again (by id) is a no-op. The future cannot be cancelled: queued entries will be written. It
        fails with `StoreError` if they cannot be, and none of them is kept then. Without entries it is a barrier: it
        resolves after everything queued earlier.

        Raises:
            JournalFull: too many entries are queued.
            StoreError: the journal is closed.
            ValueError: an entry cannot be encoded.
        """
        ...

    def tail(self, after: int, limit: int = 512) -> Sequence[Row]:
        """The next rows after a sequence number, in order."""
        ...

    def of(self, key: str) -> Sequence[Row]:
        """All rows of a decision id or a subject, in order."""
        ...

    def profile(self, subject: str) -> ProfileChange | None:
        """The last profile of a subject; None without one."""
        ...

    def lease(self, name: str) -> Lease:
        """The lease of this name; a process that dies loses it within 5 seconds."""
        ...

    def spooled(self, limit: int = 64) -> Sequence[Spooled]:
        """The oldest unscored answers."""
        ...

    def save(self, snapshot: Snapshot) -> None:
        """Merge the state into the stored snapshot and move its position, in one transaction.

        A snapshot older than the stored one is ignored.
        """
        ...

    def snapshot(self) -> Snapshot:
        """The stored snapshot; position 0 and no state if there is none."""
        ...

    def head(self) -> int:
        """The last sequence number, 0 in an empty journal."""
        ...

    def close(self) -> None:
        """Write the queued entries, give back all leases, then close."""
        ...
