"""Prometheus metrics of a router: counters fed by a hook, and gauges of its lags and monitors.

With `PROMETHEUS_MULTIPROC_DIR` set before this module is imported, each worker process writes its samples to files in
that folder, and `render` in any of them aggregates all: counters sum over all processes, dead ones included; gauges of
lag take the maximum of the living ones; leases are summed, so that 1 is right and 0 or 2 is wrong.

No label names a user. `role` is free text from callers: a process keeps the first 32 names, others become "other". So
do errors of attempts that are not exceptions of fitrouter: clients that call models themselves report any text.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, exposition, multiprocess
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from fitrouter import errors
from fitrouter.hooks import Happened, Notice, Trouble, Unlogged
from fitrouter.serving.services import Service
from fitrouter.types import DECLINED, Decision, Execution, Feedback, FeedbackKind, Refusal, Remark, Score
from fitrouter_dashboards.families import OTHER, Families
from fitrouter_dashboards.gauges import Gauges
from fitrouter_dashboards.quality import measure
from fitrouter_dashboards.samples import reserve_samples

if TYPE_CHECKING:
    from fitrouter.router import Router
    from fitrouter.serving.status import RouterStatus


ROLES = 32
"""Maximum number of role names."""
NO_ROLE = "none"
CONTENT_TYPES = {False: exposition.CONTENT_TYPE_LATEST, True: openmetrics.CONTENT_TYPE_LATEST}
"""By whether there are exemplars."""
_ERRORS = frozenset(name for name, found in vars(errors).items() if isinstance(found, type))

_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
_SLOW = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
_UNIT = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_INVERSE = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


class Metrics:
    """Counts events as a `fitrouter.hooks.Hook`, reads gauges from its router, and renders both.

    Args:
        registry: where the metrics are registered; a new one by default.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        reserve_samples()
        self.registry = registry or CollectorRegistry(auto_describe=False)
        self._roles: set[str] = set()
        self._mutex = threading.Lock()
        self._router: Router | None = None
        self.status: RouterStatus | None = None
        """As of the last `refresh`, with what the services process reports."""
        families = Families(self.registry)
        self._make_counters(families)
        self._make_histograms(families)
        self.gauges = Gauges(families)
        self.best_single = ""
        """The best single model of the whole log at the last `measure`; empty if it is not known here."""
        self._measured, self._feeds = 0, False

    def __call__(self, notice: Notice) -> None:
        """Count a notice."""
        match notice:
            case Trouble(part=part):
                self._trouble.labels(part).inc()
            case Unlogged():
                self._unlogged.metric.inc()
            case Happened(event=Decision() as event):
                self._decision(event)
            case Happened(event=Execution() as event):
                self._execution(event)
            case Happened(event=Refusal() as event):
                role = self._role(event.identity.role)
                self._requests.labels(event.model or NO_ROLE, role, "refused").inc(event.n)
            case Happened(event=Score() as event):
                self._score(event)
            case Happened(event=Feedback() as event, served_by=arm):
                self._verdict(event, arm)
            case Happened(event=Remark() as event):
                self._remarks.labels(event.kind).inc()
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
        own = router.status()
        self.gauges.show(own)
        self._feeds = own.leases.get("warehouse", False)
        self.status = router.completed(own)

    def measure(self) -> int:
        """Estimate satisfaction and savings, in the process that feeds the warehouse. Blocks: call it every minute."""
        router, status = self._router, self.status
        if router is None or router.warehouse is None or status is None or not self._feeds:
            self.best_single, self._measured = "", 0
            return 0
        if status.seq != self._measured:
            found = measure(router.warehouse, router.policy.default)
            self.gauges.quality(found)
            self.best_single = found.best_single
            self._measured = status.seq
        return 0

    @contextmanager
    def watching(self, seen: Callable[[RouterStatus], None] | None = None) -> Iterator[None]:
        """Refresh the gauges in threads while the context lasts.

        Args:
            seen: called with every status, in a thread.
        """
        assert self._router is not None

        def refresh() -> int:
            self.refresh()
            if seen is not None and self.status is not None:
                seen(self.status)
            return 0

        hooks = self._router.hooks
        watched = [
            Service("metrics", refresh, hooks, idle_s=0.5),
            Service("metrics", self.measure, hooks, idle_s=30.0, retry_s=60.0),
        ]
        for service in watched:
            service.start()
        try:
            yield
        finally:
            for service in watched:
                service.stop(timeout_s=1.0)

    def render(self, *, exemplars: bool = False) -> bytes:
        """Return the metrics of this process, or of all workers, in Prometheus's text format. Blocks on files.

        Args:
            exemplars: in OpenMetrics instead, where latencies carry ids of decisions (in a single process only:
                prometheus-client keeps none for several).
        """
        registry = self.registry
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            registry = CollectorRegistry()
            multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        shown = CollectorRegistry()
        removed = self._router.registry.retired if self._router is not None else frozenset[str]()
        shown.register(_Shown(registry, removed))
        text: bytes = (openmetrics if exemplars else exposition).generate_latest(shown)
        return text

    # --- counting ---

    def _decision(self, event: Decision) -> None:
        model = event.chosen
        self._decisions.labels(model, self._role(event.identity.role), event.mode.value).inc()
        if event.mode.drawn:
            possible = [p for p in event.probs if p > 0.0]
            self._inverse.metric.observe(1.0 / (len(possible) * event.propensity), _exemplar(event.id))
            if len(possible) > 1:
                entropy = -math.fsum(p * math.log(p) for p in possible) / math.log(len(possible))
                self._entropy.metric.observe(min(max(entropy, 0.0), 1.0))
            if event.propensity < max(possible):
                self._explored.metric.inc()

    def _execution(self, event: Execution) -> None:
        if event.status == DECLINED:  # no request
            return
        model = event.served_by or event.chosen
        self._requests.labels(model, self._role(event.identity.role), event.status).inc()
        for attempt in event.attempts:
            if attempt.error is not None:
                error = attempt.error if attempt.error in _ERRORS else OTHER
                self._failures.labels(attempt.model, error).inc()
        if event.status == "lost":
            return
        exemplar = _exemplar(event.decision_id)
        self._overhead.metric.observe(max(event.overhead_ms, 0.0) / 1000.0, exemplar)
        if event.known_usd is not None:
            self._cost.labels(model).inc(event.known_usd)
        self._unpriced.labels(model).inc(event.cost_assumed)
        if event.served_by is None:
            return
        if event.served_by != event.chosen:
            self._fallbacks.labels(event.chosen).inc()
        self._latency.labels(model).observe(event.latency_ms / 1000.0, exemplar)
        if event.ttft_ms is not None:
            self._ttft.labels(model).observe(event.ttft_ms / 1000.0, exemplar)
        self._tokens.labels(model, "input").inc(event.prompt_tokens)
        self._tokens.labels(model, "output").inc(event.completion_tokens)
        for part in ("cached", "written", "reasoning"):
            self._parts.labels(model, part).inc(getattr(event, f"{part}_tokens"))
        self._estimated.labels(model).inc(event.estimated)

    def _score(self, event: Score) -> None:
        self._scores.labels(event.status).inc()
        if event.status == "ok":
            self._predicted.labels(event.served_by, self._role(event.identity.role)).observe(event.mean)

    def _verdict(self, event: Feedback, arm: str | None) -> None:
        self._feedback.labels(event.kind.value, "true" if event.asked else "false").inc()
        if arm is None or event.kind is FeedbackKind.DWELL:  # seconds
            return
        role = self._role(event.identity.role)
        if event.dimension == "overall":
            self._reward.labels(arm, role).observe(event.y)
        else:
            self._dimension.labels(arm, role, event.dimension).observe(event.y)

    def _role(self, role: str | None) -> str:
        if role is None:
            return NO_ROLE
        if role in self._roles:
            return role
        with self._mutex:
            if len(self._roles) < ROLES:
                self._roles.add(role)
                return role
        return OTHER

    # --- definitions ---

    def _make_counters(self, families: Families) -> None:
        counter = families.counter
        self._requests = counter("requests_total", "Requests, by model and how they ended.", "model", "role", "status")
        self._errors = counter("errors_total", "Error responses, by code.", "kind")
        self._failures = counter("attempts_failed_total", "Failed attempts to call a model.", "model", "error")
        self._decisions = counter("decisions_total", "Decisions, by the chosen model.", "model", "role", "mode")
        self._tokens = counter("tokens_total", "Tokens, as reported by providers or estimated.", "model", "direction")
        self._parts = counter("token_parts_total", "Those cached, written, reasoning.", "model", "part")
        self._estimated = counter("estimated_total", "Answers whose tokens or cost are estimated.", "model")
        self._cost = counter("cost_usd_total", "Cost in USD of the answers whose price is known.", "model")
        self._unpriced = counter("unpriced_total", "Answers without a price, whose cost is not known.", "model")
        self._feedback = counter("feedback_total", "Feedback events.", "kind", "asked")
        self._remarks = counter("remarks_total", "Understood remarks on answers: comment, implicit.", "kind")
        self._scores = counter("scores_total", "Scored answers, by status.", "status")
        self._fallbacks = counter("fallbacks_total", "Answers of another model than the chosen one.", "model")
        self._explored = counter("explored_total", "Draws of another model than the likeliest.")
        self._unlogged = counter("unlogged_total", "Answers whose decision was not durable in time.")
        self._trouble = counter("trouble_total", "Failures of a component that did not fail the request.", "part")

    def _make_histograms(self, families: Families) -> None:
        histogram, summary = families.histogram, families.summary
        self._overhead = histogram("overhead_seconds", "Time spent in the router, without the model call.", _FAST)
        self._latency = histogram("latency_seconds", "Time to the complete answer.", _SLOW, "model")
        self._ttft = histogram("ttft_seconds", "Time to the first token of a stream.", _SLOW, "model")
        self._predicted = summary("score_ratio", "Predicted ratings on [0, 1].", "model", "role")
        self._reward = summary(
            "reward_ratio", "Every vote but dwell as it came, replaced ones too; from 0 to 1.", "model", "role"
        )
        self._dimension = summary(
            "reward_dimension_ratio", "Feedback on other dimensions than overall.", "model", "role", "dimension"
        )
        self._entropy = histogram("entropy_ratio", "Entropy of the drawn probabilities; 1 if uniform.", _UNIT)
        self._inverse = histogram(
            "inverse_propensity_ratio",
            "1 / (K p) of drawn decisions; the mean is 1 if the logged probabilities are right.",
            _INVERSE,
        )


def _exemplar(decision_id: str) -> dict[str, str]:
    return {"decision_id": decision_id[:100]}  # OpenMetrics allows 128 characters


class _Shown(Collector):
    """Collector that drops the series of removed models, and the `_created` series, which double their number."""

    def __init__(self, registry: CollectorRegistry, removed: Collection[str]) -> None:
        self._registry, self._removed = registry, removed

    def collect(self) -> Iterator[Metric]:
        """Yield the remaining metrics."""
        for metric in self._registry.collect():
            metric.samples = [
                sample
                for sample in metric.samples
                if not sample.name.endswith("_created")
                and sample.labels.get("model") not in self._removed
                and (metric.name != "fitrouter_breaker_open" or sample.labels.get("name") not in self._removed)
            ]
            yield metric
