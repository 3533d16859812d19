"""Coalesces concurrent lookups into batched ones, as a DataLoader does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from itertools import islice
from typing import Generic, TypeVar

from fitrouter.errors import StoreError

V = TypeVar("V")


class Coalescer(Generic[V]):
    """Batches concurrent lookups by key in one background thread, which ends when no lookup is pending.

    Concurrent lookups of one key share a result, unless its batch has started: a later lookup must see later data.

    Args:
        answer: returns the value of each key; it may block, and may raise.
        name: of the thread.
        size: most keys of one batch.
        capacity: most keys that may be pending.
    """

    def __init__(
        self, answer: Callable[[Sequence[str]], Mapping[str, V]], name: str, *, size: int = 512, capacity: int = 65_536
    ) -> None:
        self._answer, self._name = answer, name
        self._size, self._capacity = size, capacity
        self._mutex = threading.Lock()
        self._waiting: dict[str, Future[V]] = {}
        self._running = False

    def ask(self, key: str) -> Future[V]:
        """Queue a lookup. The future cannot be cancelled, and fails with `StoreError`.

        Raises:
            StoreError: too many lookups are pending.
        """
        with self._mutex:
            future = self._waiting.get(key)
            if future is not None:
                return future
            if len(self._waiting) >= self._capacity:
                raise StoreError(f"{self._name}: {self._capacity} lookups are pending; try again later")
            if not self._running:
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
                self._running = True
            future = self._waiting[key] = Future()
            future.set_running_or_notify_cancel()
            return future

    def _run(self) -> None:
        while group := self._next_batch():
            try:
                found = self._answer(list(group))
                answers = [found[key] for key in group]
            except Exception as error:  # noqa: BLE001 - every caller gets the failure, whatever a store raises
                for future in group.values():
                    failure = StoreError(str(error))
                    failure.__cause__ = error
                    future.set_exception(failure)
            else:
                for future, value in zip(group.values(), answers, strict=True):
                    future.set_result(value)

    def _next_batch(self) -> dict[str, Future[V]]:
        """Take the oldest pending lookups out of the queue."""
        with self._mutex:
            keys = list(islice(self._waiting, self._size))
            self._running = bool(keys)
            return {key: self._waiting.pop(key) for key in keys}
