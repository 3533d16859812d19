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
from fitrouter.state.reading import Batch, read_batch
from fitrouter.state.refit import find_poison, refit
from fitrouter.stores.journal import Entry, Journal, Snapshot
from fitrouter.types import Event, Quarantine

POLL_S = 0.1
"""Seconds between polls for events of other processes; those of this process wake the follower at once."""
REST_S = 0.02
"""Seconds from one fold of new events to the next: looking for each event would cost more than folding it."""
SLICE = 4
"""Events folded before the event loop runs other tasks."""
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
            if await self._loop.run_in_executor(self._threads, restore, self.learner, self.journal):
                self._saved = self.learner.seq
            await self._loop.run_in_executor(self._threads, self._recall)
            while await self._step():
                pass
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

    async def caught_up(self) -> None:
        """Wait until all events that are durable now are folded, including a refit that they request."""
        head = await asyncio.to_thread(self.journal.head)
        while self.learner.seq < head or self._stale() is not None:
            self._woken.set()
            self._hurried.set()
            await asyncio.sleep(0.01)

    async def _follow(self) -> None:
        while True:
            try:
                event, wait_s = (self._hurried, REST_S) if await self._step() else (self._woken, POLL_S)
                event.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await event.wait()
                await self._check()
                if self._refit is not None and self._refit.done():
                    self._adopt_refit(self._refit.result())
                if self._refit is None and (part := self._stale()) is not None:
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
        batch = await self._loop.run_in_executor(self._threads, self._read)
        for row, _ in batch.rows:
            if row.seq > self._seen_to:  # after a refit, events are folded again
                self._seen_to = row.seq
                self._seen(row.event)
        for start in range(0, len(batch.rows), SLICE):
            self.learner.apply_batch(Batch(batch.rows[start : start + SLICE]))
            self.lag = len(batch.rows) - start
            await asyncio.sleep(0)
        self.lag = 0
        if any(part.users.full for part in self.learner.parts()):
            await self._loop.run_in_executor(self._threads, self.learner.shrink)
        return len(batch.rows)

    def _recall(self) -> None:
        """Tell of the last requests that the snapshot has folded."""
        self._seen_to = self.learner.seq
        for row in reversed(self.journal.latest(("execution", "refusal"), RECENT, before=self.learner.seq + 1)):
            self._seen(row.event)

    def _read(self) -> Batch:
        batch = read_batch(self.journal, self.learner.seq, waiting=self.learner.waiting)
        self.learner.load(batch)
        return batch

    async def _save(self, every: int) -> None:
        """Save a snapshot after `every` events if this process holds the lease."""
        assert self._loop is not None
        if self.fault or self.learner.parts_ahead or self._stale() is not None:  # of an erased user nothing is saved
            return
        if not self._saves or self.learner.seq - self._saved < every or not self._lease.held():
            return
        snapshot = Snapshot(self.learner.seq, {})
        due = time.monotonic() + PAUSE_S
        try:
            # Only this task folds, so that the state stays the same in the pauses.
            for key, payload in self.learner.changes():
                snapshot.state[key] = payload
                if time.monotonic() > due:
                    await asyncio.sleep(0)
                    due = time.monotonic() + PAUSE_S
            await self._loop.run_in_executor(self._threads, self.journal.save, snapshot)
        except BaseException:
            self.learner.unsaved(snapshot)
            raise
        self._saved = snapshot.seq
