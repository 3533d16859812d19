"""Prometheus metrics of a router: counters fed by a hook, and gauges of its lags and monitors.

With `PROMETHEUS_MULTIPROC_DIR` set before this module is imported, each worker process writes its samples to files in
that folder, and `render` in any of them aggregates all: counters sum over all processes, dead ones included; gauges of
lag take the maximum of the living ones; leases are summed, so that 1 is right and 0 or 2 is wrong.

No label names a user. `role` is free text from callers: a process keeps the first 32 names, others become "other".
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, exposition, multiprocess
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from fitrouter.hooks import Happened, Notice, Trouble, Unlogged
from fitrouter.serving.services import ModelHealth
from fitrouter.types import Decision, Execution, Feedback, Score

if TYPE_CHECKING:
    from fitrouter.router import Router
    from fitrouter.serving.status import RouterStatus


ROLES = 32
"""Maximum number of role names."""
NO_ROLE = "none"

_Merge: TypeAlias = Literal["livemax", "livesum"]
_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
_SLOW = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
_UNIT = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_INVERSE = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


class Metrics:
    """Counts events as a `fitrouter.hooks.Hook`, reads gauges from its router, and renders both.

    Args:
        registry: where the metrics are registered; a new one by default.
    """

    content_type = exposition.CONTENT_TYPE_LATEST

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry(auto_describe=False)
        self._roles: set[str] = set()
        self._models: dict[str, ModelHealth] = {}
        self._mutex = threading.Lock()
        self._router: Router | None = None
        self.status: RouterStatus | None = None
        """As of the last `refresh`."""
        self._make_counters()
        self._make_histograms()
        self._make_gauges()

    def __call__(self, notice: Notice) -> None:
        """Count a notice."""
        match notice:
            case Trouble(part=part):
                self._trouble.labels(part).inc()
            case Unlogged():
                self._unlogged.inc()
            case Happened(event=Decision() as event):
                self._decision(event)
            case Happened(event=Execution() as event):
                self._execution(event)
            case Happened(event=Score() as event):
                self._score(event)
            case Happened(event=Feedback() as event, served_by=arm):
                self._verdict(event, arm)
            case _:
                pass

    def refused(self, kind: str) -> None:
        """Count an error response; `kind` is the error's code."""
        self._errors.labels(kind).inc()

    def bind(self, router: Router) -> None:
        """Count the events of a router, and read gauges from it."""
        self._router = router
        router.hooks.add(self)

    def refresh(self) -> None:
        """Read the gauges. Blocks on the stores: call it off the event loop, about once a second in every worker."""
        router = self._router
        if router is None:
            return
        status = router.status()
        self.status = status
        self._labels.set(status.labels)
        self._learner_lag.set(status.lag.learner_events)
        self._scorer_lag.set(status.lag.scorer_answers)
        self._scorer_age.set(status.lag.scorer_seconds)
        self._warehouse_lag.set(status.lag.warehouse_events)
        self._warehouse_age.set(status.lag.warehouse_seconds)
        for name, held in status.leases.items():
            self._lease.labels(name).set(held)
        if status.gain is not None:
            for bound, value in (("low", status.gain.low), ("gain", status.gain.mean), ("high", status.gain.high)):
                self._gain.labels(bound).set(value)
        self._off.set(status.personalisation_off)
        self._evidence.set(status.propensity_evidence)
        self._flattered.clear()
        for arm, bias in status.reward_bias.items():
            self._flattered.labels(arm).set(bias)
        for tenant, weight in status.budget_weights.items():
            self._budget.labels(tenant).set(weight)
        for name, health in status.reward_models.items():
            self._reward_model(name, health)

    def _reward_model(self, name: str, health: ModelHealth) -> None:
        before = self._models.get(name, ModelHealth())
        self._models[name] = health
        self._model_failing.labels(name).set(bool(health.error))
        self._model_usd.labels(name).set(health.usd_today)
        self._device.set(health.device_bytes)
        self._model_answers.labels(name).inc(health.answers - before.answers)
        self._model_missing.labels(name).inc(health.missing - before.missing)
        self._model_tokens.labels(name).inc(health.tokens - before.tokens)
        self._model_seconds.labels(name).inc(health.seconds - before.seconds)

    def render(self) -> bytes:
        """The metrics in Prometheus's text format, of this process or of all workers. Blocks on files."""
        registry = self.registry
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            registry = CollectorRegistry()
            multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        shown = CollectorRegistry()
        shown.register(_WithoutCreated(registry))
        return exposition.generate_latest(shown)

    # --- counting ---

    def _decision(self, event: Decision) -> None:
        model = event.chosen
        self._decisions.labels(model, self._role(event.identity.role), event.mode.value).inc()
        if event.mode.drawn:
            possible = sum(p > 0 for p in event.probs)
            self._inverse.observe(1.0 / (possible * event.propensity))

    def _execution(self, event: Execution) -> None:
        model = event.served_by or event.chosen
        self._requests.labels(model, self._role(event.identity.role), event.status).inc()
        for attempt in event.attempts:
            if attempt.error is not None:
                self._failures.labels(attempt.model, attempt.error).inc()
        if event.status == "lost":
            return
        self._overhead.observe(max(event.overhead_ms, 0.0) / 1000.0)
        if event.served_by is None:
            return
        self._latency.labels(model).observe(event.latency_ms / 1000.0)
        if event.ttft_ms is not None:
            self._ttft.labels(model).observe(event.ttft_ms / 1000.0)
        self._tokens.labels(model, "input").inc(event.prompt_tokens)
        self._tokens.labels(model, "output").inc(event.completion_tokens)
        self._cost.labels(model).inc(event.cost_usd)

    def _score(self, event: Score) -> None:
        self._scores.labels(event.status).inc()
        if event.status == "ok":
            self._predicted.labels(event.served_by, self._role(event.identity.role)).observe(event.mean)

    def _verdict(self, event: Feedback, arm: str | None) -> None:
        self._feedback.labels(event.kind.value, "true" if event.asked else "false").inc()
        if arm is not None and event.dimension == "overall":
            self._reward.labels(arm, self._role(event.identity.role)).observe(event.y)

    def _role(self, role: str | None) -> str:
        if role is None:
            return NO_ROLE
        if role in self._roles:
            return role
        with self._mutex:
            if len(self._roles) < ROLES:
                self._roles.add(role)
                return role
        return "other"

    # --- definitions ---

    def _make_counters(self) -> None:
        counter = self._counter
        self._requests = counter("requests_total", "Requests, by the model that answered.", "model", "role", "status")
        self._errors = counter("errors_total", "Error responses, by code.", "kind")
        self._failures = counter("attempts_failed_total", "Failed attempts to call a model.", "model", "error")
        self._decisions = counter("decisions_total", "Decisions, by the chosen model.", "model", "role", "mode")
        self._tokens = counter("tokens_total", "Tokens, as reported by providers.", "model", "direction")
        self._cost = counter("cost_usd_total", "Cost in USD, at the configured prices.", "model")
        self._feedback = counter("feedback_total", "Feedback events.", "kind", "asked")
        self._scores = counter("scores_total", "Scored answers, by status.", "status")
        self._model_answers = counter("reward_model_answers_total", "Answers given to a reward model.", "model")
        self._model_missing = counter("reward_model_missing_total", "Answers among them without its features.", "model")
        self._model_tokens = counter("reward_model_tokens_total", "Tokens that it read, without padding.", "model")
        self._model_seconds = counter("reward_model_seconds_total", "Time that it took.", "model")
        self._unlogged = counter("unlogged_total", "Answers whose decision was not durable in time.")
        self._trouble = counter("trouble_total", "Failures of a component that did not fail the request.", "part")

    def _make_histograms(self) -> None:
        histogram = self._histogram
        self._overhead = histogram("overhead_seconds", "Time spent in the router, without the model call.", _FAST)
        self._latency = histogram("latency_seconds", "Time to the complete answer.", _SLOW, "model")
        self._ttft = histogram("ttft_seconds", "Time to the first token of a stream.", _SLOW, "model")
        self._predicted = histogram("score_ratio", "Predicted ratings on [0, 1].", _UNIT, "model", "role")
        self._reward = histogram("reward_ratio", "Feedback, rescaled to [0, 1].", _UNIT, "model", "role")
        self._inverse = histogram(
            "inverse_propensity_ratio",
            "1 / (K p) of drawn decisions; the mean is 1 if the logged probabilities are right.",
            _INVERSE,
        )

    def _make_gauges(self) -> None:
        gauge = self._gauge
        self._learner_lag = gauge("learner_lag_events", "Durable events that a worker has not folded yet.", "livemax")
        self._labels = gauge("learner_labels", "Labels in the learner's state.", "livemax")
        self._scorer_lag = gauge("scorer_lag_answers", "Answers that wait for a score.", "livemax")
        self._scorer_age = gauge("scorer_lag_seconds", "Age of the oldest answer that waits for a score.", "livemax")
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
        self._off = gauge("personalisation_off", "Scopes in which personal terms are switched off.", "livemax")
        self._evidence = gauge(
            "propensity_evidence_ratio", "e-value against the logged propensities; alarm at 1000.", "livemax"
        )
        self._flattered = gauge(
            "flattery_ratio", "Bias of the scores of a model whose scores are ignored for it.", "livemax", "model"
        )
        self._budget = gauge("budget_weight_ratio", "Cost weight set by the budget, per tenant.", "livemax", "tenant")
        self._lease = gauge("lease_held", "Workers that hold the lease; 1 is right.", "livesum", "name")

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"fitrouter_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"fitrouter_{name}", text, labels, registry=self.registry, buckets=buckets)

    def _gauge(self, name: str, text: str, merge: _Merge, *labels: str) -> Gauge:
        return Gauge(f"fitrouter_{name}", text, labels, registry=self.registry, multiprocess_mode=merge)


class _WithoutCreated(Collector):
    """Drops the `_created` series, which double the number of series."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        """The metrics."""
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


def worker_ended(pid: int) -> None:
    """Drop the gauges of a dead worker; its counters remain."""
    mark: Any = multiprocess.mark_process_dead
    mark(pid)
