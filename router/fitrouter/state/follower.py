"""Follower: keeps a learner up to date with the journal, refits it when needed, and saves snapshots."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from fitrouter.hooks import Hooks
from fitrouter.state.learner import Batch, Learner, read_batch
from fitrouter.state.refit import refit
from fitrouter.stores.journal import Journal

POLL_S = 0.1
"""Seconds between polls for events of other processes; those of this process wake the follower at once."""
SLICE = 16
"""Events folded before the event loop runs other tasks."""
SNAPSHOT_EVERY = 2000
"""Events between snapshots."""
YIELD_S = 0.01
"""Pause of a refit between batches, in seconds, so that requests come first."""


def catch_up(learner: Learner, journal: Journal, until: int) -> None:
    """Fold a journal up to a position, including a pending refit. Blocks on disk I/O."""
    while learner.seq < until and (rows := read_batch(journal, learner.seq).rows):
        learner.apply_batch(Batch([(row, related) for row, related in rows if row.seq <= until]))
        if rows[-1][0].seq > until:
            break
    if learner.stale:
        learner.take(refit(journal, learner, learner.seq))


class Follower:
    """Folds new events into a learner in the background. A failing journal only delays learning.

    The journal is read in a thread; events are folded on the event loop in small slices.
    """

    def __init__(self, journal: Journal, learner: Learner, hooks: Hooks) -> None:
        self.journal, self.learner, self.hooks = journal, learner, hooks
        self.lag = 0
        """Durable events that are not folded yet, at the last read."""
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="fitrouter-follow")
        self._lease = journal.lease("snapshot")
        self._saved = 0
        self._woken = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._refit: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Restore the newest snapshot, fold up to the head of the journal, then follow it in the background."""
        self._loop = asyncio.get_running_loop()
        try:
            snapshot = await self._loop.run_in_executor(self._threads, self.journal.snapshot)
            if snapshot.seq and self.learner.restore(snapshot):
                self._saved = snapshot.seq
            while await self._step():
                pass
        except Exception as error:  # noqa: BLE001 - routing starts with the state there is
            self.hooks.trouble("learner", error)
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
        while self.learner.seq < head or self.learner.stale:
            self._woken.set()
            await asyncio.sleep(0.01)

    async def _follow(self) -> None:
        while True:
            try:
                if not await self._step():
                    self._woken.clear()
                    try:
                        async with asyncio.timeout(POLL_S):
                            await self._woken.wait()
                    except TimeoutError:
                        pass
                if self.learner.stale and (self._refit is None or self._refit.done()):
                    self._refit = asyncio.create_task(self._run_refit(self.learner.stale), name="fitrouter-refit")
                await self._save(every=SNAPSHOT_EVERY)
            except Exception as error:  # noqa: BLE001 - a failing journal delays learning and nothing else
                self.hooks.trouble("learner", error)
                await asyncio.sleep(1.0)

    async def _run_refit(self, until: int) -> None:
        """Refit in a thread, replace the learner's state, and fold the events since then again."""
        stopped = threading.Event()

        def rest() -> None:
            if stopped.wait(YIELD_S):
                raise asyncio.CancelledError

        try:
            fresh = await asyncio.to_thread(refit, self.journal, self.learner, until, rest)
        except asyncio.CancelledError:
            stopped.set()
            raise
        except Exception as error:  # noqa: BLE001 - the state before the refit still serves
            self.hooks.trouble("learner", error)
            await asyncio.sleep(1.0)
            return
        self.learner.take(fresh)
        self._saved = min(self._saved, until - 1)
        self._woken.set()

    async def _step(self) -> int:
        """Fold the next rows. Returns their number."""
        assert self._loop is not None
        batch = await self._loop.run_in_executor(self._threads, read_batch, self.journal, self.learner.seq)
        for start in range(0, len(batch.rows), SLICE):
            self.learner.apply_batch(Batch(batch.rows[start : start + SLICE]))
            self.lag = len(batch.rows) - start
            await asyncio.sleep(0)
        self.lag = 0
        return len(batch.rows)

    async def _save(self, every: int) -> None:
        """Save a snapshot after `every` events if this process holds the lease."""
        assert self._loop is not None
        if self.learner.seq - self._saved < every or not self._lease.held():
            return
        snapshot = self.learner.snapshot()
        await self._loop.run_in_executor(self._threads, self.journal.save, snapshot)
        self._saved = snapshot.seq
