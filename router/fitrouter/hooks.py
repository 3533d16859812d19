"""What the router tells whoever listens: metrics, logs, tests."""

from __future__ import annotations

import logging
from typing import Protocol, TypeAlias

import msgspec

from fitrouter.types import Event

_log = logging.getLogger("fitrouter")


class Happened(msgspec.Struct, frozen=True):
    """An event that this process made; it may not be durable yet.

    `served_by`: for a Feedback, the arm whose answer it is about, where that is known.
    """

    event: Event
    served_by: str | None = None


class Trouble(msgspec.Struct, frozen=True):
    """A part failed and the request went on without it.

    `part`: journal, learner, scorer, warehouse, encoder, identities, policy.
    """

    part: str
    error: str


class Unlogged(msgspec.Struct, frozen=True):
    """An answer went out although its decision did not become durable in time."""

    decision_id: str


Notice: TypeAlias = Happened | Trouble | Unlogged


class Hook(Protocol):
    """Listens. Called on the event loop or on a service's thread: be quick; what it raises is logged and dropped."""

    def __call__(self, notice: Notice) -> None:
        """Take one notice."""
        ...


class Hooks:
    """A list of hooks that can do no harm."""

    def __init__(self, *hooks: Hook) -> None:
        self._hooks = list(hooks)

    def add(self, hook: Hook) -> None:
        """Listen from now on."""
        self._hooks.append(hook)

    def happened(self, event: Event, served_by: str | None = None) -> None:
        """Tell of an event."""
        self._tell(Happened(event, served_by))

    def unlogged(self, decision_id: str) -> None:
        """Tell of an answer that is missing in the log."""
        self._tell(Unlogged(decision_id))

    def trouble(self, part: str, error: BaseException) -> None:
        """Tell of a failure that the request survived."""
        _log.warning("%s failed: %s: %s", part, type(error).__name__, error)
        self._tell(Trouble(part, type(error).__name__))

    def _tell(self, notice: Notice) -> None:
        for hook in self._hooks:
            try:
                hook(notice)
            except Exception:  # noqa: BLE001 - a listener must not break what it listens to
                _log.exception("the hook %r failed", hook)
