"""In-memory journal for tests and simulations, with the semantics of the SQLite one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future

from fitrouter.draw import uuid7
from fitrouter.errors import JournalFull, StoreError
from fitrouter.stores.journal._base import Entry, Row, Snapshot, Spooled
from fitrouter.stores.journal._claims import Claim, ClaimRow, Grant, granted
from fitrouter.stores.journal._record import Fault, Record, costs_of, digest_of, no_fault, record, rehearse
from fitrouter.types import Erasure, Event, ProfileChange, decode_event


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

    incident = ""

    def __init__(self, *, capacity: int = 65_536, fault: Fault = no_fault) -> None:
        self._capacity = capacity
        self._fault = fault
        self._records: list[Record | None] = []
        """None for a deleted one."""
        self._erased: set[str] = set()
        self._snapshots_from = 0
        self._seq: dict[str, int] = {}
        self._spool: dict[str, Spooled] = {}
        self._snapshot = Snapshot(0, {})
        self._holders: dict[str, _MemoryLease] = {}
        self._claims: dict[str, dict[str, ClaimRow]] = {}
        self._mutex = threading.Lock()
        self._closed = False

    def fault(self) -> str:
        """Return an empty string: nothing can fail."""
        return ""

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
            last = max((self._seq.get(item.id, 0) for item in records), default=0) or len(self._records)
        future.set_result(last)
        return future

    def _rehearse(self, records: Sequence[Record]) -> None:
        self._fault("begin")
        rehearse(self._fault, records)
        self._fault("commit")

    def _keep(self, item: Record) -> None:
        if item.id in self._seq or (item.subject and digest_of(item.subject) in self._erased):
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
        rows = [Row(after + i, decode_event(item.payload)) for i, item in enumerate(records, 1) if item]
        # An empty answer would look like the end.
        return self.tail(after + len(records), limit) if records and not rows else rows

    def of(self, *keys: str) -> Sequence[Row]:
        """Return all rows with any of these decision ids and subjects, each once, in order."""
        wanted = {*keys}
        found = [(seq, item) for seq, item in self._kept() if item.decision_id in wanted or item.subject in wanted]
        return [Row(seq, decode_event(item.payload)) for seq, item in found]

    def ids(self, prefix: str, limit: int) -> Sequence[str]:
        """Decision ids that begin with a prefix; see `Journal.ids`."""
        about = (item.decision_id for _, item in self._kept() if (item.decision_id or "").startswith(prefix))
        return list(dict.fromkeys(each for each in about if each))[:limit]

    def _kept(self) -> list[tuple[int, Record]]:
        """The records that were not deleted, with their sequence numbers."""
        with self._mutex:
            return [(seq, item) for seq, item in enumerate(self._records, 1) if item is not None]

    def latest(
        self,
        kinds: Sequence[str],
        limit: int = 256,
        *,
        before: int | None = None,
        subject: str | None = None,
        run: str = "",
    ) -> Sequence[Row]:
        """The last rows of some kinds of events, the newest first."""
        about = [(seq, item) for seq, item in reversed(self._kept()) if subject in (None, item.subject)]
        about = [(seq, item) for seq, item in about if run in ("", item.decision_id)]
        found = [(seq, item) for seq, item in about if item.kind in kinds and (before is None or seq < before)]
        return [Row(seq, decode_event(item.payload)) for seq, item in found[:limit]]

    def counts(self, key: str) -> dict[str, tuple[int, float, float]]:
        """Count the rows about a subject, or of a run, by kind of event, with the times of the first and the last."""
        about = [item for _, item in self._kept() if key in (item.subject, item.decision_id)]
        times = {item.kind: [one.ts for one in about if one.kind == item.kind] for item in about}
        return {kind: (len(each), min(each), max(each)) for kind, each in times.items()}

    def event(self, event_id: str) -> Event | None:
        """The event with an id; None without one."""
        return next((decode_event(item.payload) for _, item in self._kept() if item.id == event_id), None)

    def profile(self, subject: str) -> ProfileChange | None:
        """The last profile of a subject; None without one."""
        found = (row.event for row in reversed(self.of(subject)))
        return next((event for event in found if isinstance(event, ProfileChange)), None)

    def erase(self, subjects: Collection[str], tenant: str, ts: float) -> int:
        """Delete all events of some subjects; see `Journal.erase`."""
        kept = self._kept()
        decisions = {item.decision_id for _, item in kept if item.subject in subjects and item.kind == "decision"}
        about = [(seq, item) for seq, item in kept if item.subject in subjects or item.decision_id in decisions]
        with self._mutex:
            for seq, item in about:
                self._records[seq - 1] = None
                self._spool.pop(item.decision_id or "", None)
                del self._seq[item.id]
            digests = sorted(map(digest_of, subjects))
            self._erased.update(digests)
            if about:
                events = [decode_event(item.payload) for _, item in about]
                people = (getattr(event, "identity", None) for event in events)
                tenant = tenant or next((who.tenant for who in people if who is not None), "")
                self._snapshot = Snapshot(0, {})
                spent = costs_of(events, ts)
                note = Erasure(id=uuid7(ts), ts=ts, tenant=tenant, digests=tuple(digests), spent=spent)
                self._keep(record(Entry(note)))
                self._snapshots_from = len(self._records)
        return len(about)

    def unfinished(self) -> dict[str, int]:
        """Return nothing: memory needs no rewriting."""
        return {}

    def finish(self, digests: Collection[str]) -> None:
        """Do nothing."""

    def compact(self, patience_s: float = 30.0) -> None:
        """Do nothing."""

    def claim(self, claim: Claim) -> Grant:
        """Claim money of an account; see `Journal.claim`."""
        with self._mutex:
            rows = self._claims.setdefault(claim.account, {})
            found, written = granted(claim, list(rows.values()))
            rows.update({holder: (holder, usd, spent, seen) for _, holder, usd, spent, seen, _ in written})
        return found

    def watch(self, call: Callable[[], object]) -> None:
        """Do nothing: no other process appends."""

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
            if snapshot.seq >= max(self._snapshot.seq, self._snapshots_from):
                state = self._snapshot.state | snapshot.state
                self._snapshot = Snapshot(snapshot.seq, {key: payload for key, payload in state.items() if payload})

    def snapshot(self, put_aside: Callable[[str, bytes], bool] | None = None) -> Snapshot:
        """The stored snapshot; see `Journal.snapshot`."""
        with self._mutex:
            seq, state = self._snapshot
            return Snapshot(
                seq, {key: value for key, value in state.items() if not (put_aside and put_aside(key, value))}
            )

    def head(self) -> int:
        """The last sequence number, 0 in an empty journal."""
        return len(self._records)

    def close(self) -> None:
        """Refuse further entries and give back all leases; rows can still be read."""
        with self._mutex:
            self._closed = True
            self._holders.clear()
