"""Status of a running router, for metrics and readiness probes.

Where a process of its own runs the services, it writes a report into the data folder, from which the gateway's workers
complete their status.
"""

from __future__ import annotations

import heapq
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from fitrouter.errors import StoreError, in_words
from fitrouter.monitors.personalisation import PersonalisationMonitor
from fitrouter.monitors.service import Outage, ServiceHealth
from fitrouter.posterior.arms import Arms, base_arm
from fitrouter.posterior.mixture import EXPERTS
from fitrouter.routing.breakers import TenantBreakers
from fitrouter.serving.services import Failing, ModelHealth
from fitrouter.state.learner import Learner
from fitrouter.state.projections import ArmCounts, Unanswered
from fitrouter.stores.figures import many
from fitrouter.stores.identities import Identities
from fitrouter.stores.journal import Journal

if TYPE_CHECKING:
    from fitrouter.serving.services import ScorerPlugin
    from fitrouter.stores.warehouse import WarehouseFeed


LAG_S = 60.0
"""Age of the oldest waiting answer or event above which a part is behind."""
FAILING_S = 10.0
"""How long the steps of a part must fail before it is told: another program may have a file open for a moment."""
UNANSWERED = 3
"""Calls in a row without an answer from which a model is told to answer none."""
TENANTS = 100
"""Tenants, those with the most labels first, whose roles and models are shown."""


class Lag(msgspec.Struct, frozen=True, kw_only=True):
    """How far a router's projections are behind the journal."""

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
    services: int | None = None
    """Process id of the services process, whose leases and lags these are; None if there is none."""
    gain: Gain | None
    """Of the tenant with the most labels; None before the first one."""
    role_gains: Mapping[str, Gain]
    """The same for each role that has labels; of several tenants' roles with a name, the one that reaches lowest."""
    personalisation_off: int
    """Number of roles, the whole installation included, with personalisation switched off."""
    propensity_evidence: float
    """E-value against the logged propensities: the tenants' mean, which is an e-value again."""
    reward_bias: Mapping[str, float]
    """Flagged arm → estimated bias of its scores."""
    drift: Mapping[str, float]
    """Model → its larger CUSUM statistic as a share of the alarm's threshold."""
    availability: Mapping[str, float]
    """Model → posterior mean of the probability that it answers."""
    unanswered: Mapping[str, Unanswered]
    """Arm that answered none of its latest calls → how many, of the tenant with the most."""
    quarantined: int
    """Events that are excluded from what is learnt."""
    skipped: int
    """Events that were not folded, since a number in them is not finite or out of range."""
    votes_left_out: int
    """Votes that did not count for others, since users of their untrusted key had as many as they may."""
    session_memory_s: float
    """Silence after which the last session that made room for another was forgotten; infinite if none did."""
    budget_weights: Mapping[str, float]
    """Tenant → λ, the dual variable of its budget."""
    budget_spent: Mapping[str, float]
    """Tenant → share of the period's limit that is spent."""
    disk_free: float
    """Free share of the file system that holds the log; NaN if it cannot be read."""
    reward_models: Mapping[str, ModelHealth]
    """Name → state of a reward model of the scorer in this process."""
    breakers: Mapping[str, str]
    """Model, or `provider NAME`, that this process does not call now → why."""
    outages: tuple[Outage, ...]
    """Requests that go unanswered; `Router.service` tells whether users are served."""
    failing: Mapping[str, Failing] = {}
    """Part that scores, copies or erases → its failures. Requests are answered, logged and learnt from without it."""
    mixture: Mapping[str, float]
    """Head → its weight for a user without labels (`posterior.mixture.EXPERTS`), of the tenant with the most labels."""


def status_of(
    learner: Learner,
    journal: Journal,
    scorer: ScorerPlugin | None,
    feed: WarehouseFeed | None,
    breakers: TenantBreakers,
    identities: Identities,
    health: ServiceHealth,
    arms: Sequence[str],
    now: float,
    failing: Mapping[str, Failing],
) -> RouterStatus:
    """Collect the status of a router. Reads the journal: call it off the event loop.

    Args:
        learner: the folded state.
        journal: the event log.
        scorer: the scoring service, if any.
        feed: the warehouse service, if any.
        breakers: of the models and providers.
        identities: whose folder holds the log.
        health: of the service.
        arms: that are configured.
        now: seconds since the epoch, for budgets.
        failing: parts whose steps fail in this process.
    """
    parts = learner.parts()
    shown = heapq.nlargest(TENANTS, parts, key=lambda part: part.fit.labels)
    most, models = shown[0], sorted({base_arm(arm) for arm in arms})
    monitors = [part.projections.personalisation for part in parts]
    budgeted = [part.projections.budgets for part in (learner.ahead or learner).parts()]
    report = most.projections.personalisation.report()
    report = report and report.printed()
    leases = {} if scorer is None else {"scorer": scorer.leading}
    if feed is not None:
        leases["warehouse"] = feed.holds
    return RouterStatus(
        seq=learner.seq,
        labels=sum(part.fit.labels for part in parts),
        lag=_lag(learner.seq, journal, scorer, feed),
        leases=leases,
        gain=None if report is None or not report.n else Gain(report.low, report.gain, report.high),
        role_gains=_role_gains([part.projections.personalisation for part in shown]),
        personalisation_off=sum(monitor.off(role) for monitor in monitors for role in ("", *monitor.roles())),
        propensity_evidence=sum(part.projections.propensities.evidence["all"] for part in parts) / len(parts),
        reward_bias={arm: found.bias for part in parts for arm, found in part.fit.reward_bias.flagged().items()},
        drift={name: max(part.fit.drift.ratio(name) for part in shown) for name in models},
        availability=_availability([part.fit.arms for part in shown], models, now),
        unanswered=_unanswered([part.projections.arm_counts for part in shown], arms),
        quarantined=len(learner.quarantined),
        skipped=learner.skipped,
        votes_left_out=sum(part.projections.vouching.left_out for part in parts),
        session_memory_s=session_memory_s(learner),
        budget_weights={tenant: budgets.weight(tenant, now) for budgets in budgeted for tenant in budgets.spenders()},
        budget_spent={
            tenant: budgets.spent(tenant, now) / params.usd_per_period
            for budgets in budgeted
            for tenant in budgets.spenders()
            if (params := budgets.params(tenant)) is not None and params.usd_per_period
        },
        disk_free=_disk_free(identities.folder),
        reward_models={} if scorer is None else scorer.models(),
        breakers=breakers.report(),
        outages=health.outages(),
        failing=failing,
        mixture=dict(zip(EXPERTS, most.fit.mixture.weights("user").tolist(), strict=True)),
    )


def behind(status: RouterStatus, now: float) -> dict[str, str]:
    """What parts are behind or fail, each since when and why, though users are served: part → a sentence."""
    found = {}
    for part, failing in status.failing.items():
        if (age := now - failing.since) >= FAILING_S:
            found[part] = f"has failed for {duration(age)} ({many(failing.times, 'try', 'tries')}): {failing.error}"
    lag = status.lag
    for part, seconds, waiting in (
        ("scorer", lag.scorer_seconds, many(lag.scorer_answers, "answer waits", "answers wait") + " for a score"),
        ("warehouse", lag.warehouse_seconds, many(lag.warehouse_events, "event") + " not copied"),
    ):
        if seconds > LAG_S:
            late = f"is {duration(seconds)} behind, {waiting}"
            found[part] = f"{late}; it {found[part]}" if part in found else late
    return found


def duration(seconds: float) -> str:
    """A time in words.

    >>> duration(84.0), duration(600.0), duration(86_400.0)
    ('84 s', '10 min', '24 h')
    """
    if seconds < 120.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60.0:.0f} min" if seconds < 7200.0 else f"{seconds / 3600.0:.0f} h"


def session_memory_s(learner: Learner) -> float:
    """Silence after which a tenant's last evicted session was forgotten, the shortest; infinite if none was."""
    return min(part.projections.sessions.evicted_after_s for part in (learner.ahead or learner).parts())


def _role_gains(monitors: Sequence[PersonalisationMonitor]) -> dict[str, Gain]:
    found: dict[str, Gain] = {}
    for monitor in monitors:
        for key in monitor.roles():
            report, name = monitor.report(key), key.split("\x1f")[-1]
            if report is not None and report.n and (name not in found or report.low < found[name].low):
                shown = report.printed()
                found[name] = Gain(shown.low, shown.gain, shown.high)
    return found


def _availability(tenants: Sequence[Arms], models: Sequence[str], now: float) -> dict[str, float]:
    """Return the lowest of the tenants' availability estimates for each model that was called."""
    found: dict[str, float] = {}
    for arms in tenants:
        rows = {name: arms.shared[name] for name in models if name in arms.shared}
        values = arms.availability(np.fromiter(rows.values(), np.intp, len(rows)), now)
        for name, value in zip(rows, values.tolist(), strict=True):
            found[name] = min(value, found.get(name, 1.0))
    return found


def _unanswered(tenants: Sequence[ArmCounts], arms: Sequence[str]) -> dict[str, Unanswered]:
    found: dict[str, Unanswered] = {}
    for name in sorted(arms):
        rows = [counts.unanswered[name] for counts in tenants if name in counts.unanswered]
        most = max(rows, key=lambda row: row.calls, default=None)
        if most is not None and most.calls >= UNANSWERED:
            found[name] = most
    return found


def _disk_free(folder: Path) -> float:
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return math.nan
    return usage.free / usage.total if usage.total else math.nan


def _lag(seq: int, journal: Journal, scorer: ScorerPlugin | None, feed: WarehouseFeed | None) -> Lag:
    waiting, oldest_s = (0, 0.0) if scorer is None else scorer.lag()
    return Lag(
        learner_events=max(0, journal.head() - seq),
        scorer_answers=waiting,
        scorer_seconds=oldest_s,
        warehouse_events=0 if feed is None else feed.lag,
        warehouse_seconds=0.0 if feed is None else feed.lag_seconds,
    )


REPORT_FILE = "services.json"
FRESH_S = 10.0
"""Age from which the process counts as gone; it writes twice a second."""


class ServicesReport(msgspec.Struct, frozen=True, kw_only=True):
    """Status known only to the process that scores answers and feeds the warehouse."""

    pid: int
    at: float
    """Seconds since the epoch."""
    leases: Mapping[str, bool]
    warehouse_events: int
    warehouse_seconds: float
    reward_models: Mapping[str, ModelHealth]
    failing: Mapping[str, Failing] = {}


def write_report(folder: Path, status: RouterStatus, now: float) -> None:
    """Replace the report; on a full disk the old one stays."""
    report = ServicesReport(
        pid=os.getpid(),
        at=now,
        leases=status.leases,
        warehouse_events=status.lag.warehouse_events,
        warehouse_seconds=status.lag.warehouse_seconds,
        reward_models=status.reward_models,
        failing=status.failing,
    )
    with suppress(OSError):
        new = folder / f"{REPORT_FILE}.new"
        new.write_bytes(msgspec.json.encode(report))
        new.replace(folder / REPORT_FILE)


def remove_report(folder: Path) -> None:
    """Remove the report of a process that has ended."""
    with suppress(OSError):
        (folder / REPORT_FILE).unlink(missing_ok=True)


def completed(status: RouterStatus, folder: Path, now: float) -> RouterStatus:
    """Fill a worker's status with leases, lags and reward models from the services process, if there is one.

    While that is down, no lease is held, and the warehouse is late by the age of the report.

    Raises:
        StoreError: there is a report that cannot be read.
    """
    try:
        report = msgspec.json.decode((folder / REPORT_FILE).read_bytes(), type=ServicesReport)
    except FileNotFoundError:
        return status
    except (OSError, msgspec.DecodeError) as error:
        raise StoreError(f"the report of the services is not readable now: {in_words(error)}") from error
    age = max(0.0, now - report.at)
    lives = age < FRESH_S
    late = report.warehouse_seconds + (0.0 if lives else age)
    lag = msgspec.structs.replace(status.lag, warehouse_events=report.warehouse_events, warehouse_seconds=late)
    return msgspec.structs.replace(
        status,
        lag=lag,
        leases=report.leases if lives else dict.fromkeys(report.leases, False),
        reward_models=report.reward_models,
        failing=report.failing,
        services=report.pid if lives else None,
    )
