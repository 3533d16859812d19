"""Waiting, in the event loop, for the result of a store's thread."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def result_within(future: Future[T], seconds: float) -> T:
    """Wait for the result of a future, which is not cancelled if it takes longer.

    A failure after that is the store's to report: without a callback that reads it, asyncio would log a traceback for
    each request.

    Raises:
        TimeoutError: it takes longer.
    """
    waited = asyncio.wrap_future(future)
    waited.add_done_callback(lambda done: done.cancelled() or done.exception())
    async with asyncio.timeout(seconds):
        return await asyncio.shield(waited)
