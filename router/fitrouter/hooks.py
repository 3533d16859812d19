"""Hooks: notices of events and failures for metrics, logs and tests."""

from __future__ import annotations

import logging
import math
import time
from typing import Protocol, TypeAlias

import msgspec

from fitrouter.errors import for_log
from fitrouter.types import Event

_log = logging.getLogger("fitrouter")
_AGAIN_S = 60.0
"""Between warnings of answers that were sent before their decision was durable."""


class Happened(msgspec.Struct, frozen=True):
    """Notice of an event of this process, which may not be durable yet.

    `served_by`: for a Feedback, the arm that gave the answer, if known.
    """

    event: Event
    served_by: str | None = None


class Trouble(msgspec.Struct, frozen=True):
    """Notice that a part of the router failed, and the request continued without it.

    `part`: journal, learner, scorer, warehouse, cold, encoder, identities, policy, check.
    """

    part: str
    error: str


class Unlogged(msgspec.Struct, frozen=True):
    """Notice that an answer was sent although its decision did not become durable in time."""

    decision_id: str


Notice: TypeAlias = Happened | Trouble | Unlogged


class Hook(Protocol):
    """Receives notices, on the event loop or a service's thread: must be fast; exceptions are logged and dropped."""

    def __call__(self, notice: Notice) -> None:
        """Handle a notice."""
        ...


class Hooks:
    """Calls every hook; logs and swallows what they raise."""

    def __init__(self, *hooks: Hook) -> None:
        self._hooks = list(hooks)
        self._unlogged, self._told_s = 0, -math.inf

    def add(self, hook: Hook) -> None:
        """Add a hook."""
        self._hooks.append(hook)

    def happened(self, event: Event, served_by: str | None = None) -> None:
        """Notify of an event."""
        self._notify(Happened(event, served_by))

    def unlogged(self, decision_id: str) -> None:
        """Log, once in a while, that answers left before their decisions were durable, and notify."""
        self._unlogged += 1
        if (now := time.monotonic()) - self._told_s >= _AGAIN_S:
            self._told_s = now
            many = f" ({self._unlogged} so far)"
            _log.warning("an answer was sent before its decision was durable%s: the log may lack it", many)
        self._notify(Unlogged(decision_id))

    def trouble(self, part: str, error: BaseException) -> None:
        """Log a failure that the request survived, and notify."""
        _log.warning("%s failed: %s", part, for_log(error))
        self._notify(Trouble(part, type(error).__name__))

    def _notify(self, notice: Notice) -> None:
        for hook in self._hooks:
            try:
                hook(notice)
            except Exception:  # noqa: BLE001 - a hook must not break the router
                _log.exception("the hook %r failed", hook)
