"""Follower: keeps a learner up to date with the journal, refits it when needed, and saves snapshots."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from fitrouter.hooks import Hooks
from fitrouter.state.learner import Learner
from fitrouter.state.reading import Batch, read_batch, read_facts
from fitrouter.state.refit import find_poison, refit
from fitrouter.stores.journal import Entry, Journal, Snapshot
from fitrouter.types import Erasure, Event, Quarantine

POLL_S = 0.1
"""Seconds between polls for events of other processes; those of this process wake the follower at once."""
REST_S = 0.02
"""Seconds from one fold of new events to the next: looking for each event would cost more than folding it."""
SLICE, FACTS = 4, 64
"""Events folded, and events whose facts are folded, before the event loop runs other tasks."""
BEHIND = 10_000
"""Most events that a start folds before requests are answered; of more, only the facts (`Learner.facts`)."""
SNAPSHOT_EVERY = 2000
"""Events between snapshots."""
PAUSE_S = 0.001
"""Seconds of dumping a snapshot before the event loop runs other tasks."""
CHECK_S = 0.5
"""Seconds between checks of the state for numbers that are not finite."""
YIELD_S = 0.01
"""Pause of a refit between batches, in seconds, so that requests come first."""
RECENT = 256
"""Ends of requests before the snapshot that `seen` is told of at the start."""


def restore(learner: Learner, journal: Journal) -> bool:
    """Restore the stored snapshot into a learner; False if there is none that fits. Blocks on disk I/O."""
    fresh = learner.blank()
    snapshot = fresh.put_aside(journal)
    return bool(snapshot.seq) and learner.restore(snapshot, fresh)


def facts_ahead(learner: Learner, journal: Journal, snapshot: Snapshot) -> Learner:
    """Make a learner of the facts alone that is at the head of the journal. Blocks on disk I/O."""
    until, ahead = journal.head(), learner.facts_only()
    whole = not ahead.restore(snapshot)
    while ahead.seq < until and (rows := read_facts(journal, ahead.seq).rows):
        for row, related in rows:
            ahead.apply(row, related)
            if whole and row.seq <= until and isinstance(row.event, Erasure):  # its requests are gone from the journal
                ahead.of(row.event.tenant).projections.book(row.event)
    for part in ahead.parts():
        part.stale = 0 if whole and part.stale <= until else part.stale
    return ahead


def catch_up(learner: Learner, journal: Journal, until: int) -> None:
    """Fold a journal up to a position, including a pending refit. Blocks on disk I/O."""
    while learner.seq < until and (rows := read_batch(journal, learner.seq, waiting=learner.waiting).rows):
        learner.apply_batch(Batch([(row, related) for row, related in rows if row.seq <= until]))
        learner.shrink()
        if rows[-1][0].seq > until:
            break
    for part in learner.parts():
        if part.stale:
            learner.refitted(part, refit(journal, part, learner.seq))


class Follower:
    """Folds new events into a learner in the background. A failing journal only delays learning.

    The journal is read in a thread; events are folded on the event loop in small slices. Without `saves` it leaves
    snapshots to another process. `seen` is called once with each event.

    Where a start finds more than `BEHIND` events to fold, as after a change of what is learnt, `Learner.ahead` folds
    the facts of every event first, and the learner itself follows while requests are answered, for half of the time.
    """

    def __init__(
        self,
        journal: Journal,
        learner: Learner,
        hooks: Hooks,
        *,
        saves: bool = True,
        seen: Callable[[Event], None] = lambda event: None,  # noqa: ARG005
    ) -> None:
        self.journal, self.learner, self.hooks, self._saves = journal, learner, hooks, saves
        self._seen, self._seen_to = seen, 0
        self.lag = 0
        """Durable events that are not folded yet, at the last read."""
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="fitrouter-follow")
        self._lease = journal.lease("snapshot")
        self._saved = 0
        self.fault = ""
        """Why the state cannot be used; empty if it can."""
        self._checked = (0, 0.0)
        """Position and time of the last check."""
        self._woken, self._hurried = asyncio.Event(), asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._refit: asyncio.Task[tuple[Learner, Learner] | None] | None = None

    async def start(self) -> None:
        """Restore the newest snapshot, fold up to the head of the journal, then follow it in the background."""
        self._loop = asyncio.get_running_loop()
        try:
            await self._loop.run_in_executor(self._threads, self._restore)
            await self._loop.run_in_executor(self._threads, self._recall)
            while self.learner.ahead is None and await self._step():
                pass
            if self.learner.ahead is None and self._stale() is not None:  # what erased people spent is not booked yet
                self.learner.ahead = await self._loop.run_in_executor(
                    self._threads, facts_ahead, self.learner, self.journal, Snapshot(0, {})
                )
        except Exception as error:  # noqa: BLE001 - routing starts with the state there is
            self.hooks.trouble("learner", error)
        self.journal.watch(self.wake)
        self._task = asyncio.create_task(self._follow(), name="fitrouter-follow")

    async def aclose(self) -> None:
        """Stop, and save a last snapshot."""
        if self._refit is not None:
            self._refit.cancel()
            await asyncio.gather(self._refit, return_exceptions=True)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            try:
                await self._save(every=1)
            except Exception as error:  # noqa: BLE001 - the state can be rebuilt from the journal
                self.hooks.trouble("learner", error)
        self._lease.release()
        await asyncio.to_thread(self._threads.shutdown)

    def wake(self) -> None:
        """Announce new events. Thread-safe."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._woken.set)

    @property
    def follows(self) -> bool:
        """Whether new events are folded in the background."""
        return self._task is not None

    @property
    def behind(self) -> str:
        """How far behind the journal the learner is, if only the facts are current; empty if it is not."""
        if (ahead := self.learner.ahead) is None:
            return ""
        if self.learner.seq >= ahead.seq:
            return "what is learnt is being rebuilt without what was erased; spending and settings are current"
        at = f"learning is at {self.learner.seq:,} of {ahead.seq:,} events"
        return f"{at}: models are drawn by what it knows so far; spending and settings are current"

    async def caught_up(self, *, learnt: bool = True) -> None:
        """Wait until all events that are durable now are folded, including a refit that they request.

        Args:
            learnt: whether to wait for what a learner that is far behind learns from them, too.
        """
        head, learner = await asyncio.to_thread(self.journal.head), self.learner

        def waits() -> bool:
            if learner.ahead is not None and not learnt:
                return learner.ahead.seq < head
            return learner.seq < head or learner.ahead is not None or self._stale() is not None

        while waits():
            self._woken.set()
            self._hurried.set()
            await asyncio.sleep(0.01)

    async def _follow(self) -> None:
        while True:
            try:
                began = time.monotonic()
                event, wait_s = (self._hurried, REST_S) if await self._step() else (self._woken, POLL_S)
                if self.learner.ahead is not None:
                    wait_s = max(REST_S, time.monotonic() - began)
                event.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await event.wait()
                await self._check()
                if self._refit is not None and self._refit.done():
                    self._adopt_refit(self._refit.result())
                ahead = self.learner.ahead  # until it is reached, further events may request a refit
                if self._refit is None and (ahead is None or self.learner.seq >= ahead.seq) and (part := self._stale()):
                    self._refit = asyncio.create_task(self._run_refit(part), name="fitrouter-refit")
                await self._save(every=SNAPSHOT_EVERY)
            except Exception as error:  # noqa: BLE001 - a failing journal delays learning and nothing else
                self.hooks.trouble("learner", error)
                await asyncio.sleep(1.0)

    async def _check(self) -> None:
        """Quarantine the event that made the state not finite, if one did; all processes then rebuild without it."""
        seq, now = self.learner.seq, time.monotonic()
        if (seq == self._checked[0] and not self.fault) or now - self._checked[1] < CHECK_S:
            return
        self._checked = seq, now
        spoilt = next((part for part in self.learner.parts() if not part.finite()), None)
        if spoilt is None:
            self.fault = ""
            return
        self.fault = "the learned state is not finite; it is rebuilt without the event that spoilt it"
        self.hooks.trouble("learner", ValueError(self.fault))
        if not spoilt.stale:  # else a refit is due first
            row = await asyncio.to_thread(find_poison, self.journal, spoilt, seq, lambda: time.sleep(YIELD_S))
            if row is not None:
                found = Quarantine(
                    id=f"quarantine:{row.event.id}",
                    ts=row.event.ts,
                    event_id=row.event.id,
                    reason="the state was not finite after it",
                )
                await asyncio.wrap_future(self.journal.append(Entry(found)))

    def _stale(self) -> Learner | None:
        """A part of the learner that waits for a refit."""
        return next((part for part in self.learner.parts() if part.stale), None)

    def _adopt_refit(self, done: tuple[Learner, Learner] | None) -> None:
        """Replace the state of a part by the refitted one; the events since then are folded again."""
        self._refit = None
        if done is not None:
            self.learner.refitted(*done)
            self._saved = min(self._saved, self.learner.seq - 1)

    async def _run_refit(self, part: Learner) -> tuple[Learner, Learner] | None:
        """Refit a part in a thread; return the part and the refitted learner, or None on failure."""
        stopped = threading.Event()

        def rest() -> None:
            if stopped.wait(YIELD_S):
                raise asyncio.CancelledError

        try:
            return part, await asyncio.to_thread(refit, self.journal, part, part.stale, rest)
        except asyncio.CancelledError:
            stopped.set()
            raise
        except Exception as error:  # noqa: BLE001 - the state before the refit still serves
            self.hooks.trouble("learner", error)
            await asyncio.sleep(1.0)
            return None
        finally:
            self._woken.set()

    async def _step(self) -> int:
        """Fold the next rows. Returns their number."""
        assert self._loop is not None
        if (ahead := self.learner.ahead) is not None:
            facts = await self._loop.run_in_executor(self._threads, read_facts, self.journal, ahead.seq)
            self._tell(facts)
            for start in range(0, len(facts.rows), FACTS):
                ahead.apply_batch(Batch(facts.rows[start : start + FACTS]))
                await asyncio.sleep(0)
        batch = await self._loop.run_in_executor(self._threads, self._read)
        self._tell(batch)
        for start in range(0, len(batch.rows), SLICE):
            self.learner.apply_batch(Batch(batch.rows[start : start + SLICE]))
            self.lag = len(batch.rows) - start
            await asyncio.sleep(0)
        self.lag = 0
        if ahead is not None and self.learner.seq >= ahead.seq and self._stale() is None:
            self.learner.ahead, self._saved = None, 0
        if any(part.users.full for part in self.learner.parts()):
            await self._loop.run_in_executor(self._threads, self.learner.shrink)
        return len(batch.rows)

    def _restore(self) -> None:
        """Restore the stored snapshot; if it is far behind or does not fit, of the facts alone, and fold them."""
        fresh = self.learner.blank()
        snapshot = fresh.put_aside(self.journal)
        if snapshot.seq and self.learner.restore(snapshot, fresh):
            self._saved = self.learner.seq
        if self.journal.head() - self.learner.seq > BEHIND:
            self.learner.ahead = facts_ahead(self.learner, self.journal, snapshot)

    def _recall(self) -> None:
        """Tell of the last requests that are folded."""
        self._seen_to = (self.learner.ahead or self.learner).seq
        for row in reversed(self.journal.latest(("execution", "refusal"), RECENT, before=self._seen_to + 1)):
            self._seen(row.event)

    def _tell(self, batch: Batch) -> None:
        """Tell of the events that were not read before: after a refit, they are folded again."""
        for row, _ in batch.rows:
            if row.seq > self._seen_to:
                self._seen_to = row.seq
                self._seen(row.event)

    def _read(self) -> Batch:
        batch = read_batch(self.journal, self.learner.seq, waiting=self.learner.waiting)
        self.learner.load(batch)
        return batch

    async def _save(self, every: int) -> None:
        """Save a snapshot after `every` events if this process holds the lease."""
        assert self._loop is not None
        front = self.learner.ahead or self.learner
        # Of an erased user nothing is saved.
        if self.fault or front.parts_ahead or any(part.stale for part in front.parts()):
            return
        if not self._saves or front.seq - self._saved < every or not self._lease.held():
            return
        snapshot = Snapshot(front.seq, {})
        due = time.monotonic() + PAUSE_S
        try:
            # Only this task folds, so that the state stays the same in the pauses.
            for key, payload in front.changes():
                snapshot.state[key] = payload
                if time.monotonic() > due:
                    await asyncio.sleep(0)
                    due = time.monotonic() + PAUSE_S
            await self._loop.run_in_executor(self._threads, self.journal.save, snapshot)
        except BaseException:
            front.unsaved(snapshot)
            raise
        self._saved = snapshot.seq
