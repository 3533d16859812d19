"""Protocol of event journals."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import NamedTuple, Protocol

import msgspec

from fitrouter.stores.journal._claims import Claim, Grant
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
        """Acquire or renew the lease; True while this process holds it. Call it at least once a second."""
        ...

    def release(self) -> None:
        """Give the lease back at once."""
        ...


class Journal(Protocol):
    """The event log. Thread safe; every method but `append` and `fault` may block on the disk."""

    incident: str
    """What was found damaged when the journal was opened, and what became of it; empty for nothing."""

    def fault(self) -> str:
        """Reason why events cannot be logged or read now; empty if they can. Cheap: may be called on every request."""
        ...

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

    def of(self, *keys: str) -> Sequence[Row]:
        """Return all rows with any of these decision ids and subjects, each once, in order."""
        ...

    def ids(self, prefix: str, limit: int) -> Sequence[str]:
        """Decision ids that begin with a prefix of lower-case hexadecimal digits and dashes, at most `limit`."""
        ...

    def latest(
        self,
        kinds: Sequence[str],
        limit: int = 256,
        *,
        before: int | None = None,
        subject: str | None = None,
        run: str = "",
    ) -> Sequence[Row]:
        """The last rows of some kinds of events, the newest first.

        Args:
            kinds: tags of events, such as `decision`.
            limit: most rows; damaged ones count and are left out.
            before: only rows before this sequence number.
            subject: only rows about this subject.
            run: only rows of this run.
        """
        ...

    def counts(self, key: str) -> dict[str, tuple[int, float, float]]:
        """Count the rows about a subject, or of a run, by kind of event, with the times of the first and the last."""
        ...

    def event(self, event_id: str) -> Event | None:
        """The event with an id; None without one."""
        ...

    def profile(self, subject: str) -> ProfileChange | None:
        """The last profile of a subject; None without one."""
        ...

    def erase(self, subjects: Collection[str], tenant: str, ts: float) -> int:
        """Delete all events of some subjects and of their decisions, their unscored answers, and every snapshot.

        One transaction, which also appends an `Erasure`, so that all processes rebuild the tenant's state, and refuses
        what is appended about the subjects later. The files still hold bytes of it until `compact`.

        Args:
            subjects: of one user.
            tenant: of the user; empty for that of their events.
            ts: time of the erasure.

        Returns:
            The number of deleted events.
        """
        ...

    def unfinished(self) -> dict[str, int]:
        """Return the digests of erased subjects not passed to `finish` yet, with the position of their Erasure or 0."""
        ...

    def finish(self, digests: Collection[str]) -> None:
        """Record that nothing is left of erased subjects in any store."""
        ...

    def compact(self, patience_s: float = 30.0) -> None:
        """Rewrite the file, so that no free page and no log holds deleted rows. Appending waits meanwhile.

        Raises:
            StoreError: it cannot be done, for example because another process keeps reading. Try again.
        """
        ...

    def lease(self, name: str) -> Lease:
        """The lease of this name; a process that dies loses it within 5 seconds."""
        ...

    def claim(self, claim: Claim) -> Grant:
        """Claim money of an account that all processes of the journal share, or give it back, in one transaction.

        Raises:
            StoreError: it cannot be written, or perhaps was.
        """
        ...

    def watch(self, call: Callable[[], object]) -> None:
        """Register a function to call after other processes append, where that is notified; followers also poll."""
        ...

    def spooled(self, limit: int = 64) -> Sequence[Spooled]:
        """The oldest unscored answers."""
        ...

    def save(self, snapshot: Snapshot) -> None:
        """Merge the state into the stored snapshot and move its position, in one transaction.

        A snapshot older than the stored one, or than the last erasure, is ignored. Keys without bytes are removed.
        """
        ...

    def snapshot(self, put_aside: Callable[[str, bytes], bool] | None = None) -> Snapshot:
        """The stored snapshot; position 0 and no state if there is none.

        Args:
            put_aside: called with each key and its bytes; those for which it returns True are left out of the state.
        """
        ...

    def head(self) -> int:
        """The last sequence number, 0 in an empty journal."""
        ...

    def close(self) -> None:
        """Write the queued entries, give back all leases, then close."""
        ...
