"""Time limits for model calls: a coroutine is cancelled, plain code is abandoned in its thread."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")


class TooLate(Exception):
    """A call did not end in time."""


def call_in_time(work: Callable[[], T], patience_s: float) -> T:
    """Return the result of a function that runs in its own thread, where it goes on if it is abandoned.

    Raises:
        TooLate: it has not ended in time.
    """
    future = in_thread(work)
    if not wait([future], patience_s).done:
        raise TooLate(f"no result within {patience_s:.1f} s")
    return future.result()


async def await_in_time(work: Awaitable[T], patience_s: float) -> T:
    """Return the result of an awaitable, which is cancelled if it takes too long.

    Raises:
        TooLate: it has not ended in time.
    """
    limit = asyncio.timeout(patience_s)
    try:
        async with limit:
            return await work
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise TooLate(f"no result within {patience_s:.1f} s") from error


def in_thread(work: Callable[[], T]) -> Future[T]:
    """Start a function in a new thread with the caller's context variables, and return its future."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # from here on nobody can cancel it
    context = contextvars.copy_context()

    def run() -> None:
        try:
            result = context.run(work)
        except BaseException as error:  # noqa: BLE001 - raised where the future is read
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name="fitrouter-attempt", daemon=True).start()
    return future
