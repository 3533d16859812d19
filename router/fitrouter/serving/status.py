"""Status of a running router, for metrics and readiness probes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from fitrouter.posterior.mixture import EXPERTS
from fitrouter.serving.services import ModelHealth
from fitrouter.state.learner import Learner
from fitrouter.stores.journal import Journal

if TYPE_CHECKING:
    from fitrouter.serving.services import ScorerPlugin
    from fitrouter.stores.warehouse import WarehouseFeed


class Lag(msgspec.Struct, frozen=True, kw_only=True):
    """How far the parts of a router are behind the journal."""

    learner_events: int = 0
    """Durable events that this process has not folded."""
    scorer_answers: int = 0
    """Answers waiting for a score."""
    scorer_seconds: float = 0.0
    """Age of the oldest of them."""
    warehouse_events: int = 0
    """Durable events missing in the warehouse; 0 if another process feeds it."""
    warehouse_seconds: float = 0.0
    """Age of the oldest of them."""


class Gain(msgspec.Struct, frozen=True):
    """Estimated gain of personalisation per label, with its confidence sequence."""

    low: float
    mean: float
    high: float


class RouterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Position, lag, leases and monitors of a router at one moment."""

    seq: int
    """Last folded sequence number of the journal."""
    labels: int
    """Labels folded."""
    lag: Lag
    leases: Mapping[str, bool]
    """Service → whether this process held its lease at the last step."""
    gain: Gain | None
    """None before the first label."""
    personalisation_off: int
    """Number of roles, the whole installation included, with personalisation switched off."""
    propensity_evidence: float
    """E-value against the logged propensities."""
    reward_bias: Mapping[str, float]
    """Flagged arm → estimated bias of its scores."""
    budget_weights: Mapping[str, float]
    """Tenant → λ, the dual variable of its budget."""
    reward_models: Mapping[str, ModelHealth]
    """Name → state of a reward model of the scorer in this process."""
    mixture: Mapping[str, float]
    """Head → its weight for a user without labels (`posterior.mixture.EXPERTS`)."""


def status_of(
    learner: Learner, journal: Journal, scorer: ScorerPlugin | None, feed: WarehouseFeed | None, now: float
) -> RouterStatus:
    """The status. Reads the journal: call it off the event loop.

    Args:
        learner: the folded state.
        journal: the event log.
        scorer: the scoring service, if any.
        feed: the warehouse service, if any.
        now: seconds since the epoch, for budgets.
    """
    fit, projections = learner.fit, learner.projections
    monitor = projections.personalisation
    report = monitor.report()
    leases = {} if scorer is None else {"scorer": scorer.leading}
    if feed is not None:
        leases["warehouse"] = feed.holds
    return RouterStatus(
        seq=learner.seq,
        labels=fit.labels,
        lag=_lag(learner.seq, journal, scorer, feed),
        leases=leases,
        gain=None if report is None or not report.n else Gain(report.low, report.gain, report.high),
        personalisation_off=sum(monitor.off(role) for role in ("", *monitor.roles())),
        propensity_evidence=projections.propensities.evidence["all"],
        reward_bias={arm: found.bias for arm, found in fit.reward_bias.flagged().items()},
        budget_weights={tenant: projections.budgets.weight(tenant, now) for tenant in projections.budgets.known()},
        reward_models={} if scorer is None else scorer.models(),
        mixture=dict(zip(EXPERTS, fit.mixture.weights("user").tolist(), strict=True)),
    )


def _lag(seq: int, journal: Journal, scorer: ScorerPlugin | None, feed: WarehouseFeed | None) -> Lag:
    waiting, oldest_s = (0, 0.0) if scorer is None else scorer.lag()
    return Lag(
        learner_events=max(0, journal.head() - seq),
        scorer_answers=waiting,
        scorer_seconds=oldest_s,
        warehouse_events=0 if feed is None else feed.lag,
        warehouse_seconds=0.0 if feed is None else feed.lag_seconds,
    )
