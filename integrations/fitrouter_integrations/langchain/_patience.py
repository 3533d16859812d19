"""Waiting no longer than one wants to: for a coroutine, which is cancelled then, or for plain code, which goes on."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")


class TooLate(Exception):
    """It has not ended in time."""


def call_in_time(work: Callable[[], T], patience_s: float) -> T:
    """What a function gives. Where it is given up it ends in its own thread, and what it says then is dropped.

    Raises:
        TooLate: it has not ended in time.
    """
    future = aside(work)
    if not wait([future], patience_s).done:
        raise TooLate(f"nothing came in {patience_s:.1f} s")
    return future.result()


async def await_in_time(work: Awaitable[T], patience_s: float) -> T:
    """What an awaitable gives; it is cancelled where it is given up.

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
        raise TooLate(f"nothing came in {patience_s:.1f} s") from error


def aside(work: Callable[[], T]) -> Future[T]:
    """A function's result, from a thread that sees the caller's context variables."""
    future: Future[T] = Future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            result = context.run(work)
        except BaseException as error:  # noqa: BLE001 - told to whoever waits
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name="fitrouter-attempt", daemon=True).start()
    return future
