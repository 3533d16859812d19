"""The outbox: what is to be sent later, so that nobody waits for it."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable
from queue import Empty, Full, Queue
from typing import Generic, TypeVar

T = TypeVar("T")
_log = logging.getLogger("fitrouter")
_LIMIT_S = 60.0
"""After that an item counts as lost: nobody answers."""
_IDLE_S = 5.0
"""After that a thread without work ends."""


class Outbox(Generic[T]):
    """A bounded queue and the threads that empty it; what fails or does not fit is lost, counted, and warned of once.

    Args:
        send: sends one item; what it raises loses the item.
        size: items that may wait.
        at_once: items that are under way at a time; each has a thread.
    """

    def __init__(self, send: Callable[[T], Awaitable[None]], size: int = 1000, at_once: int = 8) -> None:
        self._send, self._size, self._at_once = send, size, at_once
        self._mutex = threading.Lock()
        self._told: set[str] = set()
        self.lost = 0
        """Items that were not sent, so far."""
        self._begin()

    def put(self, item: T) -> None:
        """Send an item later. Never waits and never raises; works from every thread."""
        if self._pid != os.getpid():
            self._begin()  # a fork has no threads, and what its parent had to send is the parent's
        try:
            self._queue.put_nowait(item)
        except Full:
            self.lose("full", f"{self._size} calls wait to be written, and the router does not take them in time")
        with self._mutex:
            more = self._threads < min(self._at_once, self._queue.qsize())
            self._threads += more
        if more:
            threading.Thread(target=self._work, name="fitrouter-outbox", daemon=True).start()

    def lose(self, kind: str, why: str) -> None:
        """Count an item that cannot be sent; each kind of reason is told once."""
        with self._mutex:
            self.lost += 1
            new = kind not in self._told
            self._told.add(kind)
        if new:
            _log.warning("a call was not observed, and others may follow without a word: %s", why)

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is sent or lost; whether that came true in time."""
        queue = self._queue
        with queue.all_tasks_done:
            return queue.all_tasks_done.wait_for(lambda: not queue.unfinished_tasks, timeout_s)

    def _begin(self) -> None:
        self._pid, self._threads = os.getpid(), 0
        self._queue: Queue[T] = Queue(self._size)

    def _work(self) -> None:
        with asyncio.Runner() as runner:
            while (item := self._next()) is not None:
                try:
                    runner.run(self._sent(item))
                except Exception as error:  # noqa: BLE001 - whoever put it there is long gone
                    self.lose(type(error).__name__, f"{type(error).__name__}: {error}")
                finally:
                    self._queue.task_done()

    def _next(self) -> T | None:
        """What is to be sent now; None where this thread may end."""
        while True:
            try:
                return self._queue.get(timeout=_IDLE_S)
            except Empty:
                with self._mutex:
                    if self._queue.empty():
                        self._threads -= 1
                        return None

    async def _sent(self, item: T) -> None:
        async with asyncio.timeout(_LIMIT_S):
            await self._send(item)
