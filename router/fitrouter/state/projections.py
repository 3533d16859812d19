"""Projections of the journal other than the reward model: settings, sessions, budgets, arm counts and monitors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from fitrouter.monitors.personalisation import PersonalisationMonitor
from fitrouter.monitors.propensities import Propensities
from fitrouter.plain import Projection
from fitrouter.state.accounts import Accounts, day_left_s
from fitrouter.state.added_models import AddedModels
from fitrouter.state.budgets import BudgetParams, Budgets
from fitrouter.state.publication import Publication
from fitrouter.state.quality_floor import QualityFloor
from fitrouter.state.sessions import LIMIT, Sessions
from fitrouter.state.settings import PolicySettings
from fitrouter.state.vouching import Vouching
from fitrouter.state.waiting_pairs import WaitingPairs
from fitrouter.types import (
    DECLINED,
    NO_EVIDENCE,
    NOT_CALLED,
    RECORDED,
    Attempt,
    Decision,
    Erasure,
    Event,
    Execution,
    Feedback,
    Payer,
    PlanRun,
    PolicyChange,
)

FACTS = "accounts", "added", "budgets", "control", "sessions"
"""Projections that are current before the first answer, however far learning is (`Learner.facts`)."""


class Unanswered(msgspec.Struct, frozen=True):
    """Calls in a row that a model has not answered, up to its latest one."""

    calls: int
    since: float
    """Time of the first, in seconds since the epoch."""


class _StoredProjections(msgspec.Struct, array_like=True):
    counts: dict[str, int]
    labels: dict[str, int]
    joined: dict[str, int]
    answers: dict[str, int]
    unanswered: dict[str, Unanswered]


class ArmCounts(Projection):
    """Numbers of calls, answers and labels of each arm, and which arms joined late."""

    stored_type = _StoredProjections

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        """arm → calls."""
        self.labels: dict[str, int] = {}
        """arm → labels."""
        self.joined: dict[str, int] = {}
        """arm → calls of the busiest arm when it joined."""
        self.answers: dict[str, int] = {}
        """arm → answers."""
        self.unanswered: dict[str, Unanswered] = {}
        """Arms whose latest call was not answered."""

    def join(self, arm: str) -> None:
        """Register an arm."""
        if arm not in self.joined:
            self.joined[arm] = max(self.counts.values(), default=0)

    def observe(self, attempts: Sequence[Attempt], ts: float) -> None:
        """Count the calls of one request, at a time in seconds since the epoch."""
        for attempt in attempts:
            self.join(attempt.model)
            if attempt.error in NOT_CALLED:
                continue
            self.counts[attempt.model] = self.counts.get(attempt.model, 0) + 1
            if attempt.error is None:
                self.answers[attempt.model] = self.answers.get(attempt.model, 0) + 1
                self.unanswered.pop(attempt.model, None)
            elif attempt.error not in NO_EVIDENCE:
                row = self.unanswered.get(attempt.model, Unanswered(0, ts))
                self.unanswered[attempt.model] = Unanswered(row.calls + 1, row.since)

    def observe_label(self, arm: str) -> None:
        """Count a label of an arm's answer."""
        self.labels[arm] = self.labels.get(arm, 0) + 1

    def new_arms(self, arms: Sequence[str], pulls: int, labels: int) -> tuple[tuple[str, bool], ...]:
        """New arms, each with whether it has had `pulls` calls.

        An arm is new if the busiest arm had at least five times `pulls` calls when it joined, so that no arm is new at
        the start of an installation. It stays new until it has `labels` labels, or ten times `pulls` calls if few of
        its answers are labelled.
        """
        busiest = max((self.counts.get(arm, 0) for arm in arms), default=0)
        found = []
        for arm in arms:
            count = self.counts.get(arm, 0)
            late = self.joined.get(arm, busiest) >= 5 * pulls
            if late and (count < pulls or (count < 10 * pulls and self.labels.get(arm, 0) < labels)):
                found.append((arm, count >= pulls))
        return tuple(found)

    def _store(self) -> _StoredProjections:
        return _StoredProjections(self.counts, self.labels, self.joined, self.answers, self.unanswered)

    def _restore(self, stored: _StoredProjections) -> bool:
        if any(n < 0 for part in (stored.counts, stored.labels, stored.joined, stored.answers) for n in part.values()):
            return False
        if any(row.calls < 1 or not math.isfinite(row.since) for row in stored.unanswered.values()):
            return False
        self.counts, self.labels, self.joined = stored.counts, stored.labels, stored.joined
        self.answers, self.unanswered = stored.answers, stored.unanswered
        return True


class ProjectionParams(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the projections. They are part of the state's version: snapshots made with others are not loaded."""

    budget: BudgetParams | None = None
    """Default budget of tenants."""
    tenants: Mapping[str, BudgetParams] = {}
    sessions: int = LIMIT
    """Sessions of each tenant that are kept."""


class Projections:
    """All projections other than the reward model."""

    def __init__(self, params: ProjectionParams | None = None) -> None:
        self.params = params or ProjectionParams()
        self.policy_settings = PolicySettings()
        self.added_models = AddedModels()
        self.arm_counts = ArmCounts()
        self.sessions = Sessions(self.params.sessions)
        self.personalisation = PersonalisationMonitor()
        self.quality_floor = QualityFloor()
        self.propensities = Propensities()
        self.publication = Publication()
        self.waiting_pairs = WaitingPairs()
        self.accounts = Accounts()
        self.vouching = Vouching()
        self.budgets = Budgets(self.params.budget, self.params.tenants)

    def observe(self, event: Event, related: Sequence[Event] = ()) -> None:
        """Fold an event into the `FACTS`."""
        match event:
            case Decision():
                if event.cost:
                    cost = event.cost[event.eligible.index(event.chosen)]
                    self.budgets.observe_decision(event.identity.tenant, event.ts, cost, event.id)
                self.sessions.observe_decision(event, user_turn=event.user_turn)
            case Execution(status=status) if status == DECLINED:
                self.budgets.release(event.identity.tenant, event.decision_id)
            case Execution(status=status) if status != RECORDED:
                self.sessions.observe_execution(event)
                self.budgets.observe(event.identity.tenant, event.ts, event.cost_usd, event.decision_id)
                if event.payer:
                    self.accounts.observe(event.payer, event.ts, event.cost_usd)
            case PlanRun(by=by) if by == event.decision_id and not any(isinstance(one, PlanRun) for one in related):
                for plan in (one for one in related if isinstance(one, Decision)):  # the session goes on from it
                    run = msgspec.structs.replace(plan, ts=event.ts, look="")
                    self.sessions.observe_decision(run, user_turn=plan.user_turn)
            case Feedback():
                self.sessions.observe_feedback(event)
            case PolicyChange():
                self.policy_settings.observe(event)
                self.added_models.observe(event)
                self.budgets.observe_change(event)
            case _:
                pass

    def book(self, erasure: Erasure) -> None:
        """Book the costs of an erased user's requests, which a refit no longer finds in the journal."""
        for spent in erasure.spent:
            self.budgets.book(erasure.tenant, spent.ts, spent.usd, spent.requests)
            if spent.payer:
                self.accounts.observe(spent.payer, spent.ts, spent.usd)

    def wait_s(self, tenant: str, payer: Payer | None, ts: float) -> float:
        """Seconds until a tenant or a key gets more money: to the end of the limit of which the least is left."""
        by_key = self.accounts.left(payer, ts) < self.budgets.left(tenant, ts)
        return day_left_s(ts) if by_key else self.budgets.period_left_s(tenant, ts)

    def named(self) -> dict[str, Projection]:
        """Return the projections by name, in a fixed order; the names are keys of snapshots."""
        return {
            "accounts": self.accounts,
            "added": self.added_models,
            "base layer": self.quality_floor,
            "budgets": self.budgets,
            "control": self.policy_settings,
            "propensities": self.propensities,
            "published": self.publication,
            "pulls": self.arm_counts,
            "sessions": self.sessions,
            "twin": self.personalisation,
            "vouching": self.vouching,
            "waiting pairs": self.waiting_pairs,
        }
