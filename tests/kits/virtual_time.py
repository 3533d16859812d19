"""An asyncio loop whose time is virtual: deadlines, gaps and timers pass at once, however busy the machine is.

    def test_a_deadline(tmp_path):
        async def scenario():
            ...

        virtual_time.run(scenario())

Time moves on only when no callback is ready and no job of `run_in_executor` or `asyncio.to_thread` is under way: it
then jumps to the next timer. Threads that the loop did not start are not waited for, so that what they tell the loop (a
journal on a disk, a socket) has no place in virtual time; memory journals have. `time.monotonic` is the loop's time.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar
from unittest import mock

__all__ = ["VirtualTimeLoop", "run"]

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):  # type: ignore[valid-type, misc]
    """Waits for threads in real time and for timers in virtual time."""

    loop: VirtualTimeLoop

    def select(self, timeout: float | None = None) -> Any:
        """Ready files; where there are none and no thread is at work, time jumps by the timeout."""
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if self.loop.jobs:
            return super().select(None)
        if timeout is None:
            raise RuntimeError("deadlock: no callback, no timer and no thread is left that could go on")
        self.loop.now += timeout
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """See the module.

    Args:
        seed: shuffles callbacks that are ready at the same time; None leaves their order.
        threads: False runs the jobs of executors at once, on the loop, so that a seed always gives the same order.
    """

    def __init__(self, seed: int | None = None, *, threads: bool = True) -> None:
        self.now = 0.0
        self._threads = threads
        self.jobs = 0
        """Of executors, under way."""
        self._shuffled = None if seed is None else random.Random(seed)
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self.now

    def run_in_executor(self, executor: Executor | None, func: Callable[..., Any], *args: Any) -> Any:
        """As any loop does; time stands still meanwhile."""
        if not self._threads:
            done = self.create_future()
            try:
                done.set_result(func(*args))
            except Exception as error:  # noqa: BLE001 - whoever awaits the job gets it
                done.set_exception(error)
            return done
        self.jobs += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._done)
        return future

    def _done(self, _: object) -> None:
        self.jobs -= 1

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Wait for its threads in real time."""
        executor = getattr(self, "_default_executor", None)
        if executor is not None:
            executor.shutdown(wait=True)

    def _run_once(self) -> None:
        if self._shuffled is not None:
            ready = list(self._ready)  # type: ignore[has-type]
            self._shuffled.shuffle(ready)
            self._ready.clear()  # type: ignore[has-type]
            self._ready.extend(ready)  # type: ignore[has-type]
        super()._run_once()  # type: ignore[misc]


def run(main: Coroutine[Any, Any, T], seed: int | None = None) -> T:
    """What a coroutine returns in a loop of its own with virtual time."""
    with (
        asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(seed)) as runner,
        mock.patch("time.monotonic", runner.get_loop().time),
    ):
        return runner.run(main)
