"""What is folded beside the fit: settings at run time, sessions, money, who is new, what personalisation buys.

The learner feeds it, the decider reads it. Each part is stored under its own name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from fitrouter.monitors.personalisation import PersonalisationMonitor
from fitrouter.monitors.propensities import Propensities
from fitrouter.state.budgets import BudgetParams, Budgets
from fitrouter.state.quality_floor import QualityFloor
from fitrouter.state.sessions import Sessions
from fitrouter.state.settings import PolicySettings
from fitrouter.types import Attempt, Projection


class _Newcomers(msgspec.Struct, array_like=True):
    counts: dict[str, int]
    labels: dict[str, int]
    joined: dict[str, int]


class ArmCounts(Projection):
    """How often each arm was asked and judged, and which of them joined late."""

    stored_type = _Newcomers

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        """arm → calls."""
        self.labels: dict[str, int] = {}
        """arm → labels."""
        self.joined: dict[str, int] = {}
        """arm → how often the busiest one had been asked when it was first heard of."""

    def join(self, arm: str) -> None:
        """Note that an arm is on offer."""
        if arm not in self.joined:
            self.joined[arm] = max(self.counts.values(), default=0)

    def observe(self, attempts: Sequence[Attempt]) -> None:
        """Fold the calls of one request."""
        for attempt in attempts:
            self.join(attempt.model)
            self.counts[attempt.model] = self.counts.get(attempt.model, 0) + 1

    def hear(self, arm: str) -> None:
        """Fold that an answer was judged."""
        self.labels[arm] = self.labels.get(arm, 0) + 1

    def newcomers(self, arms: Sequence[str], pulls: int, labels: int) -> tuple[tuple[str, bool], ...]:
        """Arms that joined when another had been asked five times `pulls`, and whether they were asked `pulls` times.

        An arm stays one until it has that many labels, or ten times `pulls` calls, where few are judged. At an
        installation's beginning all are new, and none is treated as such.
        """
        busiest = max((self.counts.get(arm, 0) for arm in arms), default=0)
        found = []
        for arm in arms:
            count = self.counts.get(arm, 0)
            late = self.joined.get(arm, busiest) >= 5 * pulls
            if late and (count < pulls or (count < 10 * pulls and self.labels.get(arm, 0) < labels)):
                found.append((arm, count >= pulls))
        return tuple(found)

    def _store(self) -> _Newcomers:
        return _Newcomers(self.counts, self.labels, self.joined)

    def _restore(self, stored: _Newcomers) -> bool:
        if any(n < 0 for part in (stored.counts, stored.labels, stored.joined) for n in part.values()):
            return False
        self.counts, self.labels, self.joined = stored.counts, stored.labels, stored.joined
        return True


class ProjectionParams(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the parts; states that were made under others do not fit."""

    budget: BudgetParams | None = None
    """Of every tenant that has none of its own."""
    tenants: Mapping[str, BudgetParams] = {}


class Projections:
    """The parts, by name."""

    def __init__(self, params: ProjectionParams | None = None) -> None:
        self.params = params or ProjectionParams()
        self.policy_settings = PolicySettings()
        self.arm_counts = ArmCounts()
        self.sessions = Sessions()
        self.personalisation = PersonalisationMonitor()
        self.quality_floor = QualityFloor()
        self.propensities = Propensities()
        self.budgets = Budgets(self.params.budget, self.params.tenants)

    def parts(self) -> dict[str, Projection]:
        """Name → part, in a fixed order."""
        return {
            "base layer": self.quality_floor,
            "budgets": self.budgets,
            "control": self.policy_settings,
            "propensities": self.propensities,
            "pulls": self.arm_counts,
            "sessions": self.sessions,
            "twin": self.personalisation,
        }
