"""Metrics: valid names, no user anywhere, and bounded labels."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.kits.gateway import chat, client, make_router, serving

from fitrouter.hooks import Happened, Trouble, Unlogged
from fitrouter.serving.services import ModelHealth
from fitrouter.serving.status import Lag, RouterStatus
from fitrouter.types import (
    Attempt,
    Decision,
    Execution,
    Feedback,
    FeedbackKind,
    Identity,
    Mode,
    PolicyVersion,
    Score,
)
from fitrouter_dashboards import Metrics


def decision(role: str | None = "cook", user: str = "token", **more: object) -> Decision:
    fields: dict[str, object] = {
        "id": "d",
        "ts": 0.0,
        "draw_id": "d",
        "identity": Identity(user=user, role=role),
        "mode": Mode.ONLINE,
        "eligible": ("alpha", "beta"),
        "probs": (0.8, 0.2),
        "chosen": "alpha",
        "propensity": 0.8,
        "policy": PolicyVersion(algorithm="squarecb"),
    }
    return Decision(**{**fields, **more})  # type: ignore[arg-type]


def execution(**more: object) -> Execution:
    fields: dict[str, object] = {
        "id": "e",
        "ts": 0.0,
        "decision_id": "d",
        "identity": Identity(user="token", role="cook"),
        "chosen": "alpha",
        "served_by": "beta",
        "status": "ok",
        "attempts": (
            Attempt(model="alpha", probability=1.0, error="ProviderTimeout"),
            Attempt(model="beta", probability=1.0),
        ),
        "prompt_tokens": 7,
        "completion_tokens": 11,
        "cost_usd": 0.25,
        "ttft_ms": 300.0,
        "latency_ms": 2000.0,
        "overhead_ms": 3.0,
    }
    return Execution(**{**fields, **more})  # type: ignore[arg-type]


def status(reward_bias: dict[str, float]) -> RouterStatus:
    """The status of an idle router."""
    empty: dict[str, Any] = {
        key: {} for key in ("leases", "role_gains", "drift", "availability", "unanswered", "reward_models")
    }
    empty |= {key: {} for key in ("budget_weights", "budget_spent", "breakers", "mixture")}
    counts = ("seq", "labels", "personalisation_off", "quarantined", "skipped", "votes_left_out")
    zero: dict[str, Any] = dict.fromkeys(counts, 0)
    return RouterStatus(
        lag=Lag(),
        gain=None,
        session_memory_s=math.inf,
        propensity_evidence=1.0,
        reward_bias=reward_bias,
        disk_free=0.5,
        outages=(),
        **empty,
        **zero,
    )


def everything(metrics: Metrics) -> None:
    """Tell of one thing of every kind."""
    identity = Identity(user="token", role="cook")
    metrics(Happened(decision()))
    metrics(Happened(execution()))
    metrics(Happened(Score(id="s", ts=0.0, decision_id="d", identity=identity, served_by="beta", mean=0.75)))
    metrics(
        Happened(
            Feedback(id="f", ts=0.0, decision_id="d", identity=identity, kind=FeedbackKind.THUMB, value=1.0), "beta"
        )
    )
    dwell = Feedback(id="g", ts=0.0, decision_id="d", identity=identity, kind=FeedbackKind.DWELL, value=90.0)
    metrics(Happened(dwell, "beta"))  # seconds are no reward
    metrics(Trouble("scorer", "RuntimeError"))
    metrics(Unlogged("d"))
    metrics.refused("too_large")


def value(metrics: Metrics, name: str, **labels: str) -> float:
    """The value of the sample with this name and these labels."""
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            if sample.name == name and sample.labels == labels:
                return float(sample.value)
    raise AssertionError(f"there is no {name} with {labels}")


def test_each_notice_is_counted() -> None:
    """Tokens, cost and latency count for the answering model, decisions for the chosen, failures for the failed one."""
    metrics = Metrics()
    everything(metrics)
    assert value(metrics, "fitrouter_decisions_total", model="alpha", role="cook", mode="online") == 1
    assert value(metrics, "fitrouter_requests_total", model="beta", role="cook", status="ok") == 1
    assert value(metrics, "fitrouter_attempts_failed_total", model="alpha", error="ProviderTimeout") == 1
    assert value(metrics, "fitrouter_tokens_total", model="beta", direction="input") == 7
    assert value(metrics, "fitrouter_tokens_total", model="beta", direction="output") == 11
    assert value(metrics, "fitrouter_cost_usd_total", model="beta") == 0.25
    assert value(metrics, "fitrouter_latency_seconds_sum", model="beta") == 2.0
    assert value(metrics, "fitrouter_ttft_seconds_sum", model="beta") == pytest.approx(0.3)
    assert value(metrics, "fitrouter_overhead_seconds_sum") == pytest.approx(0.003)
    assert value(metrics, "fitrouter_score_ratio_sum", model="beta", role="cook") == 0.75
    assert value(metrics, "fitrouter_reward_ratio_sum", model="beta", role="cook") == 1.0
    assert value(metrics, "fitrouter_feedback_total", kind="thumb", asked="false") == 1
    assert value(metrics, "fitrouter_inverse_propensity_ratio_sum") == pytest.approx(1 / (2 * 0.8))
    assert value(metrics, "fitrouter_trouble_total", part="scorer") == 1
    assert value(metrics, "fitrouter_unlogged_total") == 1
    assert value(metrics, "fitrouter_errors_total", kind="too_large") == 1


def test_only_drawn_decisions_have_inverse_propensities() -> None:
    """Pinned, sticky and forced turns have no weight, and a lost execution no latency."""
    metrics = Metrics()
    for mode in (Mode.PINNED, Mode.STICKY, Mode.FORCED):
        metrics(Happened(decision(mode=mode, probs=(), propensity=1.0)))
    metrics(Happened(execution(status="lost", served_by=None, attempts=())))
    assert value(metrics, "fitrouter_inverse_propensity_ratio_count") == 0
    assert value(metrics, "fitrouter_overhead_seconds_count") == 0
    assert value(metrics, "fitrouter_requests_total", model="alpha", role="cook", status="lost") == 1


def test_labels_stay_bounded_and_name_no_user() -> None:
    """A thousand roles make 33 label values; a thousand users make none."""
    metrics = Metrics()
    for i in range(1000):
        metrics(Happened(decision(role=f"role {i}", user=f"canary-{i}")))
    metrics(Happened(decision(role=None)))
    text = metrics.render().decode()
    assert "canary" not in text
    assert text.count("fitrouter_decisions_total{") == 34
    assert value(metrics, "fitrouter_decisions_total", model="alpha", role="other", mode="online") == 968
    assert value(metrics, "fitrouter_decisions_total", model="alpha", role="none", mode="online") == 1


def test_series_stay_few_whatever_callers_and_configurations_name() -> None:
    """A hundred models, roles, dimensions and tenants make at most 2,000 series; what is not kept apart adds up."""
    metrics = Metrics()
    total = 0
    for i in range(100):
        for role in (f"role {i}", f"role {i + 1}", None):
            model = f"model {i}"
            identity = Identity(user=f"u{i}", role=role)
            metrics(Happened(decision(role=role, eligible=(model, "beta"), chosen=model)))
            failed = (Attempt(model=model, probability=1.0, error="ProviderTimeout"),)
            metrics(Happened(execution(served_by=model, chosen=f"model {i // 2}", identity=identity, attempts=failed)))
            metrics(Happened(Score(id="s", ts=0.0, decision_id="d", identity=identity, served_by=model, mean=0.5)))
            for dimension in ("overall", f"dimension {i}"):
                vote = Feedback(
                    id="f",
                    ts=0.0,
                    decision_id="d",
                    identity=identity,
                    kind=FeedbackKind.RATING,
                    value=1.0,
                    dimension=dimension,
                )
                metrics(Happened(vote, model))
            total += 1
        metrics.gauges.reward_model(f"model {i}", ModelHealth(answers=1))
        metrics.gauges._spent.labels(f"tenant {i}").set(0.5)
    text = metrics.render().decode()
    series = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(series) <= 2000
    for family in text_string_to_metric_families(text):
        if family.name in {"fitrouter_requests", "fitrouter_decisions", "fitrouter_tokens"}:
            each = 18 * total if family.name == "fitrouter_tokens" else total
            assert sum(sample.value for sample in family.samples) == each, family.name


def test_latencies_carry_decisions_in_openmetrics() -> None:
    """A scraper that asks for OpenMetrics gets the id of a decision in each bucket that has one."""
    metrics = Metrics()
    everything(metrics)
    text = metrics.render(exemplars=True).decode()
    assert text.endswith("# EOF\n")
    lines = [line for line in text.splitlines() if " # {decision_id=" in line]
    assert {line.split("{")[0].removesuffix("_bucket") for line in lines} == {
        "fitrouter_latency_seconds",
        "fitrouter_ttft_seconds",
        "fitrouter_overhead_seconds",
        "fitrouter_inverse_propensity_ratio",
    }
    assert "decision_id" not in metrics.render().decode()


def test_exploration_is_measured() -> None:
    """Entropy of the drawn probabilities as a share of its maximum, and the draws that were not the likeliest model."""
    metrics = Metrics()
    metrics(Happened(decision(probs=(0.5, 0.5), propensity=0.5)))
    metrics(Happened(decision(probs=(0.8, 0.2), chosen="beta", propensity=0.2)))
    metrics(Happened(decision(probs=(1.0, 0.0), propensity=1.0)))
    metrics(Happened(decision(mode=Mode.PINNED, probs=(), propensity=1.0)))
    assert value(metrics, "fitrouter_entropy_ratio_count") == 2
    assert value(metrics, "fitrouter_entropy_ratio_sum") == pytest.approx(1.0 + 0.7219, abs=1e-4)
    assert value(metrics, "fitrouter_explored_total") == 1
    metrics(Happened(execution()))
    assert value(metrics, "fitrouter_fallbacks_total", model="alpha") == 1


def test_reward_models_are_counted() -> None:
    """Counters grow by what a model did since the last reading; a failing model is a gauge of 1."""
    metrics = Metrics()
    for answers, error in ((10, ""), (25, "there is no folder 'x'")):
        health = ModelHealth(error=error, answers=answers, missing=answers - 10, tokens=7 * answers, seconds=2.0)
        metrics.gauges.reward_model("sky", health)
        assert value(metrics, "fitrouter_reward_model_answers_total", model="sky") == answers
        assert value(metrics, "fitrouter_reward_model_failing", model="sky") == bool(error)
    assert value(metrics, "fitrouter_reward_model_missing_total", model="sky") == 15
    assert value(metrics, "fitrouter_reward_model_tokens_total", model="sky") == 175
    assert value(metrics, "fitrouter_reward_model_seconds_total", model="sky") == 2.0


def test_a_bias_that_has_gone_is_zero() -> None:
    """A model whose scores count again shows 0: the files of several workers cannot drop a series."""
    metrics = Metrics()
    for bias in ({"alpha": 0.25}, {}):
        metrics.gauges.show(status(bias))
        assert value(metrics, "fitrouter_flattery_ratio", model="alpha") == bias.get("alpha", 0.0)


def test_promtool_accepts_the_metrics(tmp_path: Path) -> None:
    """Names, units and help texts of a running gateway pass promtool's checks."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed; Debian has it in the package prometheus")
    metrics = Metrics()
    everything(metrics)
    with serving(make_router(tmp_path), metrics=metrics) as url, client(url) as http:
        http.post("/v1/chat/completions", json=chat())
        reply = http.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=")
    check = subprocess.run(
        [promtool, "check", "metrics"], input=reply.content, capture_output=True, check=False, timeout=300
    )
    assert (check.returncode, check.stdout.decode(), check.stderr.decode()) == (0, "", "")


_CHILD = """
import sys
from pathlib import Path
from fitrouter_dashboards import Metrics
sys.path.insert(0, sys.argv[1])
from tests.dashboards.test_metrics import everything
metrics = Metrics()
for _ in range(int(sys.argv[2])):
    everything(metrics)
metrics.gauges._lease.labels("scorer").set(sys.argv[2] == "3")
sys.stdout.buffer.write(metrics.render())
"""


def test_workers_add_up(tmp_path: Path) -> None:
    """With the folder set, any process renders the sums over all, ended ones included."""
    root = Path(__file__).parents[2]
    sources = [str(root / name) for name in ("router", "evaluators", "dashboards", "integrations")]
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sources)}
    for times in ("3", "2"):
        text = subprocess.run(
            [sys.executable, "-c", _CHILD, str(root), times],
            env=environment,
            capture_output=True,
            check=True,
            timeout=300,
        ).stdout.decode()
    assert 'fitrouter_requests_total{model="beta",role="cook",status="ok"} 5.0' in text
    assert 'fitrouter_latency_seconds_sum{model="beta"} 10.0' in text
    assert 'fitrouter_lease_held{name="scorer"} 1.0' in text
