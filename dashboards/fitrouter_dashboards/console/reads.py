"""Queries for the console, off the event loop: one at a time, bounded in time, and shared by all who ask the same.

Where a newer answer is not there within `WAIT_S`, the one before it is given, for `STALE_S` (RFC 5861,
stale-while-revalidate): over a long log an open page waits for its first figures only.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from fitrouter.errors import StoreError
from fitrouter.stores.figures import Figure, Query, figures
from fitrouter.stores.warehouse import Warehouse

LIMIT_S = 8.0
"""Longest time of a query."""
FRESH_S = 1.0
"""How long an answer is used again, or `REST` times as long as it took, so that open pages never load the store."""
REST = 4.0
STALE_S, WAIT_S = 20.0, 0.12
"""How long an answer may be given beyond that, while a newer one is read, and how long that one is waited for first."""
KEPT = 256
"""Answers that are kept."""

Rows = list[tuple[Any, ...]]


class _Held(NamedTuple):
    """An answer, or the read that makes it."""

    answer: asyncio.Future[Any]
    until: float = 0.0
    """When it is read again."""
    before: asyncio.Future[Any] | None = None
    """An answer that can be given until this one is there."""

    def stale(self, now: float) -> asyncio.Future[Any] | None:
        """The answer, if it can be given while it is read again."""
        sound = self.answer.done() and not self.answer.cancelled() and self.answer.exception() is None
        return self.answer if sound and now < self.until + STALE_S else None


class Reads:
    """Reads the warehouse for the console.

    Args:
        warehouse: None if the installation keeps none.
    """

    def __init__(self, warehouse: Warehouse | None) -> None:
        self._warehouse = warehouse
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fitrouter-console")
        self._answers: OrderedDict[Hashable, _Held] = OrderedDict()

    def rows(self, *queries: Query) -> list[Rows]:
        """Return the rows of each query, all of one snapshot. Blocks; for the functions that `get` runs.

        Raises:
            StoreError: there is no warehouse, or it cannot be read in time.
        """
        if self._warehouse is None:
            raise StoreError(
                "there are no figures: they are read from tables, for which DuckDB is needed; install it with "
                "`pip install 'fitrouter[warehouse]'`, and start the gateway again"
            )
        if not self._warehouse.path.exists():
            raise StoreError(
                "there are no figures yet: they come some seconds after the first request. Send one, then look again; "
                "if they stay away, GET /readyz says what hinders them"
            )
        return self._warehouse.queries(queries, patience_s=2.0, limit_s=LIMIT_S)

    def figures(self, *wanted: Figure[Any]) -> list[Any]:
        """Read figures, all of one snapshot; errors as of `rows`. Blocks."""
        return figures(lambda queries: self.rows(*queries), *wanted)

    async def get(
        self, key: Hashable, read: Callable[[], Any], fresh_s: float | None = None, *, old: bool = True
    ) -> Any:
        """Run `read` in the console's thread and return its answer; one of `fresh_s` at most, or `FRESH_S`, is reused.

        With `old`, an older one is returned if a newer one is not there within `WAIT_S`.

        Raises:
            StoreError: it is not there in time.
        """
        now, held = time.monotonic(), self._answers.get(key)
        if held is None or (held.answer.done() and now >= held.until):
            answer = asyncio.ensure_future(self._read(key, read, fresh_s))
            answer.add_done_callback(_consume_error)
            held = self._answers[key] = _Held(answer, before=held.stale(now) if held and old else None)
            self._answers.move_to_end(key)
            while len(self._answers) > KEPT:
                self._answers.popitem(last=False)
        if held.before is not None and not (await asyncio.wait({held.answer}, timeout=WAIT_S))[0]:
            return held.before.result()
        try:
            return await asyncio.wait_for(asyncio.shield(held.answer), LIMIT_S + 2.0)
        except TimeoutError:
            raise StoreError("the warehouse did not answer in time; try a shorter window") from None

    def forget(self) -> None:
        """Drop all cached answers, because something has changed."""
        self._answers.clear()

    async def _read(self, key: Hashable, read: Callable[[], Any], fresh_s: float | None) -> Any:
        begun = time.monotonic()
        found = await asyncio.get_running_loop().run_in_executor(self._thread, read)
        ended = time.monotonic()
        if (held := self._answers.get(key)) is not None:
            until = ended + max(FRESH_S if fresh_s is None else fresh_s, REST * (ended - begun))
            self._answers[key] = _Held(held.answer, until)
        return found

    def close(self) -> None:
        """Stop the thread of the queries."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _consume_error(answer: asyncio.Future[Any]) -> None:
    """Mark a query's error as seen, so that asyncio does not report it when no request waits for it any more."""
    if not answer.cancelled():
        answer.exception()
