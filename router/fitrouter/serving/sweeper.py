"""Marks decisions without an execution as lost after a timeout: a worker crashed, or a plan was never reported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container

from fitrouter.hooks import Hooks
from fitrouter.serving.recorder import Recorder, execution_of
from fitrouter.state.learner import Learner
from fitrouter.stores.journal import Journal
from fitrouter.types import Decision, Execution

LOST_AFTER_S = 30.0
"""A decision without an execution is marked lost this long after its deadline."""


async def close_lost(
    journal: Journal,
    recorder: Recorder,
    learner: Learner,
    hooks: Hooks,
    deadline_s: float,
    clock: Callable[[], float],
    streaming: Container[str] = (),
) -> None:
    """Mark overdue decisions as lost, periodically, but for those of this process' streams. Runs until cancelled.

    A decision's age is the time for which this process has known it to be open: another machine's clock may be hours
    away from this one's, and this one's may jump.
    """
    since: dict[str, float] = {}
    while True:
        now = asyncio.get_running_loop().time()
        since = {key: since.get(key, now) for part in learner.parts() for key in part.open}
        for decision_id, first in since.items():
            age = now - first - LOST_AFTER_S
            if age > deadline_s and decision_id not in streaming:
                try:
                    rows = await asyncio.to_thread(journal.of, decision_id)
                except Exception as error:  # noqa: BLE001 - a failing journal only delays this
                    hooks.trouble("journal", error)
                    break
                events = [row.event for row in rows]
                decision = next((event for event in events if isinstance(event, Decision)), None)
                if decision is None or decision.deadline_s >= age:
                    continue
                if not any(isinstance(event, Execution) for event in events):
                    recorder.append_event(execution_of(decision, clock(), status="lost", served_by=None, attempts=()))
        await asyncio.sleep(LOST_AFTER_S)
