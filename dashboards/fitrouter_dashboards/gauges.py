"""Prometheus gauges of a router's status: lags, leases, monitors, budgets, availability."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

from prometheus_client import Gauge

from fitrouter.serving.services import ModelHealth
from fitrouter.serving.status import Gain, RouterStatus
from fitrouter_dashboards.families import Families, Family
from fitrouter_dashboards.quality import Estimate, Quality


class Gauges:
    """Gauges of a router, and counters of its reward models, which are set from its status."""

    def __init__(self, families: Families) -> None:
        gauge, counter = families.gauge, families.counter
        self._moved = (0, 0.0)
        self._models: dict[str, ModelHealth] = {}
        self._breakers: set[str] = set()
        self._biased: set[str] = set()
        self._outages: set[tuple[str, str, str]] = set()
        self._learner_lag = gauge("learner_lag_events", "Durable events that a worker has not folded yet.", "livemax")
        self._stalled = gauge("learner_stalled_seconds", "Time without progress while events wait.", "livemax")
        self._labels = gauge("learner_labels", "Labels in the learner's state.", "livemax")
        self._quarantined = gauge("quarantined_events", "Events excluded from what is learnt.", "livemax")
        self._skipped = gauge("skipped_events", "Events that were not folded: numbers out of range.", "livemax")
        self._left_out = gauge("votes_left_out", "Votes beyond what users of an untrusted key may teach.", "livemax")
        self._sessions = gauge(
            "session_memory_seconds",
            "Silence after which the last session that made room for another was forgotten; +Inf if none did.",
            "livemin",
        )
        self._sessions.metric.set(math.inf)  # a process that has not shown a status yet counts, too
        self._scorer_lag = gauge("scorer_lag_answers", "Answers that wait for a score.", "livemax")
        self._scorer_age = gauge("scorer_lag_seconds", "Age of the oldest answer that waits for a score.", "livemax")
        self._model_answers = counter("reward_model_answers_total", "Answers given to a reward model.", "model")
        self._model_missing = counter("reward_model_missing_total", "Answers among them without its features.", "model")
        self._model_tokens = counter("reward_model_tokens_total", "Tokens that it read, without padding.", "model")
        self._model_seconds = counter("reward_model_seconds_total", "Time that it took.", "model")
        self._model_failing = gauge("reward_model_failing", "1 while its features are missing.", "livemax", "model")
        self._model_usd = gauge("reward_model_usd_today", "Cost of a judge's calls today, UTC.", "livemax", "model")
        self._device = gauge("scorer_device_bytes", "GPU memory allocated by the scorer.", "livemax")
        self._warehouse_lag = gauge("warehouse_lag_events", "Durable events missing in the warehouse.", "livemax")
        self._warehouse_age = gauge("warehouse_lag_seconds", "Age of the oldest event missing in it.", "livemax")
        self._gain = gauge(
            "personalisation_gain_ratio",
            "Estimated gain of personalisation per label, with an anytime-valid interval.",
            "livemax",
            "bound",
        )
        self._role_gain = gauge("role_gain_ratio", "The same for each role.", "livemax", "role", "bound")
        self._off = gauge("personalisation_off", "Scopes in which personal terms are switched off.", "livemax")
        self._evidence = gauge(
            "propensity_evidence_ratio", "e-value against the logged propensities; alarm at 1000.", "livemax"
        )
        self._flattered = gauge(
            "flattery_ratio",
            "Bias of the scores of a model whose scores are ignored for it; 0 when they count again.",
            "livemax",
            "model",
        )
        self._drift = gauge(
            "drift_ratio",
            "CUSUM statistic of a model's residuals; an alarm at 1, which 30 ratings keep there.",
            "livemax",
            "model",
        )
        self._available = gauge("availability_ratio", "Probability that a model answers.", "livemax", "model")
        self._open = gauge("breaker_open", "1 while a worker does not call the model or provider.", "livemax", "name")
        self._outage = gauge(
            "outage",
            "2 while no request is answered (for the model `name`, if all went to one), 1 while some go unanswered: "
            "whose (all, tenant, key, model), and why.",
            "livemax",
            *("scope", "name", "error"),
        )
        self._budget = gauge("budget_weight_ratio", "Cost weight set by the budget, per tenant.", "livemax", "tenant")
        self._spent = gauge("budget_spent_ratio", "Share of the period's limit that is spent.", "livemax", "tenant")
        self._lease = gauge("lease_held", "Processes that hold the lease; 1 is right.", "livesum", "name")
        self._disk = gauge("disk_free_ratio", "Free share of the file system of the data folder.", "livemax")
        self._satisfaction = gauge(
            "satisfaction_ratio",
            "Of people's true mean ratings, without sampling noise: mean, variance, mean of the worst tenth, worst "
            "role.",
            "livemax",
            "measure",
            "bound",
        )
        self._saved = gauge(
            "saved_usd",
            "Cost saved per request against the default and the best single model, with a 95% interval.",
            "livemax",
            "against",
            "bound",
        )
        self._saved_share = gauge(
            "saved_ratio", "The same as a share of that model's cost.", "livemax", "against", "bound"
        )

    def show(self, status: RouterStatus) -> None:
        """Set the gauges from a status."""
        lag = status.lag
        self._learner_lag.metric.set(lag.learner_events)
        self._stalled.metric.set(self._waited(status))
        self._labels.metric.set(status.labels)
        self._quarantined.metric.set(status.quarantined)
        self._skipped.metric.set(status.skipped)
        self._left_out.metric.set(status.votes_left_out)
        self._sessions.metric.set(status.session_memory_s)
        self._scorer_lag.metric.set(lag.scorer_answers)
        self._scorer_age.metric.set(lag.scorer_seconds)
        self._warehouse_lag.metric.set(lag.warehouse_events)
        self._warehouse_age.metric.set(lag.warehouse_seconds)
        _set(self._lease, status.leases)
        if status.gain is not None:
            _show(self._gain, status.gain)
        for role, gain in status.role_gains.items():
            _show(self._role_gain, gain, role)
        self._off.metric.set(status.personalisation_off)
        self._evidence.metric.set(status.propensity_evidence)
        self._biased |= status.reward_bias.keys()  # the files of several workers cannot drop a series
        _set(self._flattered, {name: status.reward_bias.get(name, 0.0) for name in self._biased})
        _set(self._drift, status.drift)
        _set(self._available, status.availability)
        _set(self._budget, status.budget_weights)
        _set(self._spent, status.budget_spent)
        self._breakers |= status.breakers.keys()
        _set(self._open, {name: name in status.breakers for name in self._breakers})
        now = {
            (each.scope, each.name, each.errors[0] if each.errors else ""): 1.0 + (each.level == "down")
            for each in status.outages
        }
        self._outages |= now.keys()
        for labels in self._outages:
            self._outage.labels(*labels).set(now.get(labels, 0.0))
        if not math.isnan(status.disk_free):
            self._disk.metric.set(status.disk_free)
        for name, health in status.reward_models.items():
            self.reward_model(name, health)

    def reward_model(self, name: str, health: ModelHealth) -> None:
        """Add what a reward model did since the last reading."""
        before = self._models.get(name, ModelHealth())
        self._models[name] = health
        self._model_failing.labels(name).set(bool(health.error))
        self._model_usd.labels(name).set(health.usd_today)
        self._device.metric.set(health.device_bytes)
        self._model_answers.labels(name).inc(health.answers - before.answers)
        self._model_missing.labels(name).inc(health.missing - before.missing)
        self._model_tokens.labels(name).inc(health.tokens - before.tokens)
        self._model_seconds.labels(name).inc(health.seconds - before.seconds)

    def quality(self, found: Quality) -> None:
        """Set satisfaction and savings; what is not known is not shown."""
        for measure, estimate in found.satisfaction.items():
            for bound, value in estimate._asdict().items():
                if not math.isnan(value):
                    self._satisfaction.labels(measure, bound).set(value)
        for against, saved in found.saved.items():
            for bound in Estimate._fields:
                self._saved.labels(against, bound).set(getattr(saved.usd, bound))
                self._saved_share.labels(against, bound).set(getattr(saved.share, bound))

    def _waited(self, status: RouterStatus) -> float:
        now, (seq, since) = time.monotonic(), self._moved
        if status.seq != seq or not status.lag.learner_events:
            self._moved = status.seq, now
            return 0.0
        return now - since


def _set(family: Family[Gauge], values: Mapping[str, float]) -> None:
    for name, value in values.items():
        family.labels(name).set(value)


def _show(family: Family[Gauge], gain: Gain, *labels: str) -> None:
    for bound, value in (("low", gain.low), ("gain", gain.mean), ("high", gain.high)):
        family.labels(*labels, bound).set(value)
