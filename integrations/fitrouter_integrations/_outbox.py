"""A bounded background queue for feedback and observations that no caller waits for."""

from __future__ import annotations

import asyncio
import atexit
import functools
import logging
import os
import threading
import weakref
from collections.abc import Awaitable, Callable
from queue import Empty, Full, Queue
from typing import Any, Generic, TypeVar

from fitrouter.errors import in_words

T = TypeVar("T")
_log = logging.getLogger("fitrouter")
_SEND_S = 60.0
"""Time limit for sending one item."""
_IDLE_S = 5.0
"""Time after which an idle thread ends."""
_EXIT_S = 10.0
"""How long an exiting process waits for each outbox."""


class Outbox(Generic[T]):
    """Sends items from background threads; a single thread keeps their order.

    An item is lost if the queue is full, or if sending it fails or times out. Losses are counted in `lost`; the first
    of each kind is logged as a warning, later ones at debug level. An exiting process flushes its outboxes.

    Args:
        noun: name of an item, for the log.
        send: sends one item.
        size: maximum number of waiting items.
        threads: maximum number of items sent at a time.
    """

    def __init__(self, noun: str, send: Callable[[T], Awaitable[object]], *, size: int, threads: int = 1) -> None:
        self._noun, self._send, self._size, self._limit = noun, send, size, threads
        self._mutex = threading.Lock()
        self._warned: set[str] = set()
        self.lost = 0
        self._reset()
        _outboxes.add(self)
        _register()

    def put(self, item: T) -> None:
        """Queue an item. Never blocks and never raises; safe in every thread and after a fork."""
        if self._pid != os.getpid():
            self._reset()  # threads do not survive a fork, and the parent sends what it has queued
        try:
            self._queue.put_nowait(item)
        except Full:
            self.lose("full", f"the queue is full ({self._size} items wait)")
        with self._mutex:
            more = self._threads < min(self._limit, self._queue.qsize())
            self._threads += more
        if more:
            threading.Thread(target=self._work, name="fitrouter-outbox", daemon=True).start()

    def lose(self, kind: str, reason: str) -> None:
        """Count and log a loss; callers report items that never reached the queue."""
        with self._mutex:
            self.lost += 1
            first = kind not in self._warned
            self._warned.add(kind)
        _log.log(
            logging.WARNING if first else logging.DEBUG,
            "%s was lost: %s%s",
            self._noun,
            reason,
            "; further losses of this kind are logged at debug level" if first else "",
        )

    def flush(self, timeout_s: float | None) -> bool:
        """Wait until every queued item is sent or lost; returns whether that happened in time."""
        queue = self._queue
        if self._pid != os.getpid():
            return True
        with queue.all_tasks_done:
            return queue.all_tasks_done.wait_for(lambda: not queue.unfinished_tasks, timeout_s)

    def _reset(self) -> None:
        self._pid, self._threads = os.getpid(), 0
        self._queue: Queue[T] = Queue(self._size)

    def _work(self) -> None:
        with asyncio.Runner() as runner:
            while (item := self._next()) is not None:
                try:
                    runner.run(self._send_in_time(item))
                except Exception as error:  # noqa: BLE001 - no caller is left to handle it
                    self.lose(type(error).__name__, in_words(error))
                finally:
                    self._queue.task_done()

    def _next(self) -> T | None:
        """The next item; None when this thread may end."""
        while True:
            try:
                return self._queue.get(timeout=_IDLE_S)
            except Empty:
                with self._mutex:
                    if self._queue.empty():
                        self._threads -= 1
                        return None

    async def _send_in_time(self, item: T) -> None:
        async with asyncio.timeout(_SEND_S):
            await self._send(item)


_outboxes: weakref.WeakSet[Outbox[Any]] = weakref.WeakSet()


def _flush_all() -> None:
    for outbox in list(_outboxes):
        outbox.flush(_EXIT_S)


@functools.cache
def _register() -> None:
    # Callbacks run in reverse order of registration. Clients register theirs, which closes them, when their module is
    # imported; an outbox is made after that, so it is flushed first. Plain `atexit` callbacks run only after both.
    getattr(threading, "_register_atexit", atexit.register)(_flush_all)
