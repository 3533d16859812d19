"""What is folded beside the fit: settings at run time, sessions, money, who is new, what personalisation buys.

The learner feeds it, the decider reads it. Each part is stored under its own name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from fitrouter.audit import Propensities
from fitrouter.base_layer import BaseLayer
from fitrouter.budget import BudgetParams, Budgets
from fitrouter.control import Control
from fitrouter.sessions import Sessions
from fitrouter.twin import Twin
from fitrouter.types import Attempt

__all__ = ["Part", "Pulls", "Watch", "WatchParams"]


class Part(Protocol):
    """A piece of state."""

    def dump(self) -> bytes:
        """The state, exactly."""
        ...

    def load(self, payload: bytes) -> bool:
        """Restore the state; False, and unchanged, where the bytes cannot be what `dump` made."""
        ...


class Pulls:
    """How often each arm was asked."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def observe(self, attempts: Sequence[Attempt]) -> None:
        """Fold the calls of one request."""
        for attempt in attempts:
            self.counts[attempt.model] = self.counts.get(attempt.model, 0) + 1

    def newcomers(self, arms: Sequence[str], pulls: int) -> tuple[str, ...]:
        """Arms that were asked less than `pulls` times, once another one was five times as often.

        At an installation's beginning all are new, and none is treated as such.
        """
        counts = [self.counts.get(arm, 0) for arm in arms]
        if not counts or max(counts) < 5 * pulls:
            return ()
        return tuple(arm for arm, count in zip(arms, counts, strict=True) if count < pulls)

    def dump(self) -> bytes:
        """The state, exactly."""
        return msgspec.msgpack.encode(self.counts)

    def load(self, payload: bytes) -> bool:
        """Restore the state; False, and unchanged, where the bytes cannot be what `dump` made."""
        try:
            counts = msgspec.msgpack.decode(payload, type=dict[str, int])
        except (msgspec.DecodeError, ValueError):
            return False
        if any(count < 0 for count in counts.values()):
            return False
        self.counts = counts
        return True


class WatchParams(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the parts; states that were made under others do not fit."""

    budget: BudgetParams | None = None
    """Of every tenant that has none of its own."""
    tenants: Mapping[str, BudgetParams] = {}


class Watch:
    """The parts, by name."""

    def __init__(self, params: WatchParams | None = None) -> None:
        self.params = params or WatchParams()
        self.control = Control()
        self.pulls = Pulls()
        self.sessions = Sessions()
        self.twin = Twin()
        self.base_layer = BaseLayer()
        self.propensities = Propensities()
        self.budgets = Budgets(self.params.budget, self.params.tenants)

    def parts(self) -> dict[str, Part]:
        """Name → part, in a fixed order."""
        return {
            "base layer": self.base_layer,
            "budgets": self.budgets,
            "control": self.control,
            "propensities": self.propensities,
            "pulls": self.pulls,
            "sessions": self.sessions,
            "twin": self.twin,
        }
