"""Marks decisions without an execution as lost after a timeout: a worker crashed, or a plan was never reported.

A plan that was looked at and not run is marked as declined instead, once it is no longer valid.

A stream may outlive its deadline. Its decision names the process that serves it by a number, which the process holds as
a lease: others leave the decision alone until the lease is free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container

from fitrouter.errors import StoreError
from fitrouter.hooks import Hooks
from fitrouter.serving.recorder import LOOK_S, Recorder, declined, execution_of
from fitrouter.state.learner import Learner
from fitrouter.stores.journal import Journal, Lease
from fitrouter.types import Decision, Execution, PlanRun

LOST_AFTER_S = 30.0
"""A decision without an execution is marked lost this long after its deadline."""
MOST = 256
"""Processes that serve one journal. Of a journal that is gone no lease is ever free."""


class Workers:
    """The processes that serve one journal, numbered from 0. Its methods block."""

    def __init__(self, journal: Journal) -> None:
        self._journal, self._leases = journal, dict[int, Lease]()
        self.own = 0
        """Number of this process."""

    def _lease(self, number: int) -> Lease:
        if number not in self._leases:
            self._leases[number] = self._journal.lease(f"worker-{number}")
        return self._leases[number]

    def join(self) -> None:
        """Keep this process's number, or take the lowest free one. Raises StoreError if leases cannot be taken."""
        for number in (self.own, *range(MOST)):
            if self._lease(number).held():
                self.own = number
                return
        raise StoreError(
            f"none of {MOST} numbers of worker processes is free: all are taken, or the journal was deleted or replaced"
        )

    def sweeps(self, number: int) -> bool:
        """Whether decisions of a process are this one's to close: its own, and those of a process that is gone."""
        if number == self.own:
            return True
        if gone := self._lease(number).held():
            self._lease(number).release()
        return gone

    def leave(self) -> None:
        """Give the number back."""
        self._lease(self.own).release()


async def close_lost(
    journal: Journal,
    workers: Workers,
    recorder: Recorder,
    learner: Learner,
    hooks: Hooks,
    deadline_s: float,
    clock: Callable[[], float],
    streaming: Container[str] = (),
) -> None:
    """Mark overdue decisions as lost, periodically, but for those of streams in progress. Runs until cancelled.

    A decision's age is the time for which this process has known it to be open: another machine's clock may be hours
    away from this one's, and this one's may jump.
    """
    since: dict[str, float] = {}
    while True:
        now = asyncio.get_running_loop().time()
        since = {key: since.get(key, now) for part in learner.parts() for key in part.open}
        try:
            await asyncio.to_thread(workers.join)
            for decision_id, first in since.items():
                age = now - first - LOST_AFTER_S
                if age <= deadline_s or decision_id in streaming:
                    continue
                events = [row.event for row in await asyncio.to_thread(journal.of, decision_id)]
                decision = next((event for event in events if isinstance(event, Decision)), None)
                if decision is None or decision.deadline_s >= age or any(isinstance(e, Execution) for e in events):
                    continue
                run = next((event for event in events if isinstance(event, PlanRun)), None)
                if decision.look and run is None:
                    if age > LOOK_S:
                        recorder.append_event(declined(decision, clock()))
                    continue
                if run is not None and clock() - run.ts <= deadline_s + LOST_AFTER_S:
                    continue
                if await asyncio.to_thread(workers.sweeps, decision.worker if run is None else run.worker):
                    recorder.append_event(execution_of(decision, clock(), status="lost", served_by=None, attempts=()))
        except Exception as error:  # noqa: BLE001 - a failing journal only delays this
            hooks.trouble("journal", error)
        await asyncio.sleep(LOST_AFTER_S)
