"""Questions that many ask one by one, answered in groups: what costs one write for one costs one for all that wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from itertools import islice
from typing import Generic, TypeVar

from fitrouter.errors import StoreError

V = TypeVar("V")


class Coalescer(Generic[V]):
    """One thread answers all that wait, then all that came meanwhile; it ends when nobody waits any more.

    Those that ask the same share the answer, as long as it is not being looked for yet: who asks later is told what is
    true then.

    Args:
        answer: gives the value of every key; it may take long, and may raise.
        name: of the thread.
        size: keys of one group.
        capacity: keys that may wait.
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
        """The answer to come; it cannot be cancelled, and fails with `StoreError`.

        Raises:
            StoreError: too many wait.
        """
        with self._mutex:
            future = self._waiting.get(key)
            if future is not None:
                return future
            if len(self._waiting) >= self._capacity:
                raise StoreError(f"{self._capacity} wait for {self._name} already; try again later")
            if not self._running:
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
                self._running = True
            future = self._waiting[key] = Future()
            future.set_running_or_notify_cancel()
            return future

    def _run(self) -> None:
        while group := self._take():
            try:
                found = self._answer(list(group))
                answers = [found[key] for key in group]
            except Exception as error:  # noqa: BLE001 - whoever waits is told, whatever a store raises
                for future in group.values():
                    failure = StoreError(str(error))
                    failure.__cause__ = error
                    future.set_exception(failure)
            else:
                for future, value in zip(group.values(), answers, strict=True):
                    future.set_result(value)

    def _take(self) -> dict[str, Future[V]]:
        """Those that waited longest."""
        with self._mutex:
            keys = list(islice(self._waiting, self._size))
            self._running = bool(keys)
            return {key: self._waiting.pop(key) for key in keys}
