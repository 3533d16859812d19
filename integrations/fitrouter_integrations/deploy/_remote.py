"""The services' side of the scorers: sends answers to them in small requests, and again if a scorer is lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from fitrouter.types import Floats
from fitrouter_evaluators.scoring.models import Item

CHUNK = 8
"""Answers of a request; a scorer joins the requests that have come into one batch."""
PATIENCE_S = 60.0
"""How long answers are sent again before the step fails; they stay in the spool then, and the next step tries."""
_PAUSE_S = 0.2


class Task(NamedTuple):
    """Answers, and what a scorer is to compute for them."""

    model: str
    """A reward model; empty for the built-in features."""
    items: Sequence[Item]
    lag_s: float
    """Age of the oldest answer without a score."""


class Pending(Protocol):
    """A request under way, such as `ray.serve.handle.DeploymentResponse`."""

    def result(self, timeout_s: float | None = None) -> Floats:
        """Wait for the answer."""
        ...


class RemoteScoring:
    """Distributes answers over the scorers; it is a `Remote` of `fitrouter_evaluators.scoring.plugin`.

    What scorers compute depends on the answers only, so a request can be repeated.

    Args:
        send: starts a request; it goes to a scorer that has room.
        lost: exceptions that say that a scorer is gone, not that an answer is bad.
        patience_s: how long to repeat.
        pause_s: between repetitions.
    """

    def __init__(
        self,
        send: Callable[[Task], Pending],
        lost: tuple[type[Exception], ...],
        *,
        patience_s: float = PATIENCE_S,
        pause_s: float = _PAUSE_S,
    ) -> None:
        self._send, self._lost = send, lost
        self._patience_s, self._pause_s = patience_s, pause_s
        self.lag_s = 0.0
        """The last known lag, which every request tells its scorer."""

    def __call__(self, model: str, items: Sequence[Item]) -> Floats:
        """Compute a model's scores of items, float64[n, dimensions] in the order of the items.

        Raises:
            Exception: what a scorer raised, or the last loss.
        """
        tasks = [Task(model, items[i : i + CHUNK], self.lag_s) for i in range(0, len(items), CHUNK)]
        deadline = time.monotonic() + self._patience_s
        done: dict[int, Floats] = {}
        while True:
            failed: Exception | None = None
            under_way = [(i, self._send(task)) for i, task in enumerate(tasks) if i not in done]
            for i, pending in under_way:
                try:
                    done[i] = pending.result(timeout_s=max(self._pause_s, deadline - time.monotonic()))
                except self._lost as error:
                    failed = error
            if failed is None:
                return np.vstack([done[i] for i in range(len(tasks))])
            if time.monotonic() >= deadline:
                raise failed
            time.sleep(self._pause_s)
