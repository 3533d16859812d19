"""In-memory journal for tests and simulations, with the semantics of the SQLite one."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future

from fitrouter.errors import JournalFull, StoreError
from fitrouter.stores.journal._base import Entry, Row, Snapshot, Spooled
from fitrouter.stores.journal._record import Fault, Record, no_fault, record
from fitrouter.types import Event, ProfileChange, decode_event


class _MemoryLease:
    def __init__(self, name: str, holders: dict[str, _MemoryLease], mutex: threading.Lock) -> None:
        self._name, self._holders, self._mutex = name, holders, mutex

    def held(self) -> bool:
        with self._mutex:
            return self._holders.setdefault(self._name, self) is self

    def release(self) -> None:
        with self._mutex:
            if self._holders.get(self._name) is self:
                del self._holders[self._name]


class MemoryJournal:
    """A `Journal` in memory.

    Events are encoded and decoded as in a file, so that a test reads back exactly what a file would give.
    """

    def __init__(self, *, capacity: int = 65_536, fault: Fault = no_fault) -> None:
        self._capacity = capacity
        self._fault = fault
        self._records: list[Record] = []
        self._seq: dict[str, int] = {}
        self._spool: dict[str, Spooled] = {}
        self._snapshot = Snapshot(0, {})
        self._holders: dict[str, _MemoryLease] = {}
        self._mutex = threading.Lock()
        self._closed = False

    def append(self, *entries: Entry) -> Future[int]:
        """Append the entries, all or none; see `Journal.append`."""
        if len(entries) > self._capacity:
            raise JournalFull(f"{len(entries)} entries do not fit into a queue of {self._capacity}; append fewer")
        records = [record(entry) for entry in entries]
        future: Future[int] = Future()
        future.set_running_or_notify_cancel()
        with self._mutex:
            if self._closed:
                raise StoreError("the journal is closed; open another one")
            try:
                self._rehearse(records)
            except Exception as error:  # noqa: BLE001 - whatever the hook raises simulates a failing disk
                future.set_exception(StoreError(f"the journal could not write: {error}"))
                return future
            for item in records:
                self._keep(item)
            last = max((self._seq[item.id] for item in records), default=len(self._records))
        future.set_result(last)
        return future

    def _rehearse(self, records: Sequence[Record]) -> None:
        self._fault("begin")
        for item in records:
            self._fault("insert")
            if item.content is not None:
                self._fault("spool")
            if item.kind == "score":
                self._fault("unspool")
        self._fault("commit")

    def _keep(self, item: Record) -> None:
        if item.id in self._seq:
            return
        self._records.append(item)
        self._seq[item.id] = len(self._records)
        if item.content is not None and item.decision_id is not None:
            self._spool[item.decision_id] = Spooled(item.decision_id, item.ts, item.content)
        if item.kind == "score" and item.decision_id is not None:
            self._spool.pop(item.decision_id, None)

    def tail(self, after: int, limit: int = 512) -> Sequence[Row]:
        """The next rows after a sequence number, in order."""
        after = max(after, 0)
        with self._mutex:
            records = self._records[after : after + limit]
        return [Row(after + i, _event(item)) for i, item in enumerate(records, 1)]

    def of(self, key: str) -> Sequence[Row]:
        """All rows of a decision id or a subject, in order."""
        with self._mutex:
            records = list(enumerate(self._records, 1))
        return [Row(seq, _event(item)) for seq, item in records if key in (item.decision_id, item.subject)]

    def profile(self, subject: str) -> ProfileChange | None:
        """The last profile of a subject; None without one."""
        found = (row.event for row in reversed(self.of(subject)))
        return next((event for event in found if isinstance(event, ProfileChange)), None)

    def lease(self, name: str) -> _MemoryLease:
        """The lease of this name; leases of one journal object exclude each other."""
        return _MemoryLease(name, self._holders, self._mutex)

    def spooled(self, limit: int = 64) -> Sequence[Spooled]:
        """The oldest unscored answers."""
        with self._mutex:
            return list(self._spool.values())[:limit]

    def save(self, snapshot: Snapshot) -> None:
        """Merge the state and move the position; see `Journal.save`."""
        with self._mutex:
            try:
                for step in ("begin", "snapshot", "commit"):
                    self._fault(step)
            except Exception as error:
                raise StoreError(f"the journal could not write: {error}") from error
            if snapshot.seq >= self._snapshot.seq:
                self._snapshot = Snapshot(snapshot.seq, self._snapshot.state | snapshot.state)

    def snapshot(self) -> Snapshot:
        """The stored snapshot."""
        with self._mutex:
            return Snapshot(self._snapshot.seq, dict(self._snapshot.state))

    def head(self) -> int:
        """The last sequence number, 0 in an empty journal."""
        return len(self._records)

    def close(self) -> None:
        """Refuse further entries and give back all leases; rows can still be read."""
        with self._mutex:
            self._closed = True
            self._holders.clear()


def _event(item: Record) -> Event:
    return decode_event(item.payload)
