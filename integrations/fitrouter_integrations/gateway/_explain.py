"""Why this model: a decision in plain JSON, and in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fitrouter.types import Decision, Event, Execution, Feedback, Mode, Score

_MODES = {
    Mode.ONLINE: "was drawn by the policy",
    Mode.UNIFORM: "was drawn from the uniform slice",
    Mode.SHADOW: "is the default model, which took this request",
    Mode.STICKY: "stayed from earlier in the session",
    Mode.PINNED: "was named by the request",
    Mode.FORCED: "was forced",
}


def explain(events: Sequence[Event]) -> dict[str, Any]:
    """The story of one decision.

    Args:
        events: all events of the decision, the decision first.
    """
    decision = events[0]
    if not isinstance(decision, Decision):
        raise TypeError(f"the first event is a {type(decision).__name__}; give the decision first")
    execution = next((event for event in events if isinstance(event, Execution)), None)
    score = next((event for event in events if isinstance(event, Score)), None)
    votes = [event for event in events if isinstance(event, Feedback)]
    return {
        "decision_id": decision.id,
        "draw_id": decision.draw_id,
        "why": _sentence(decision, execution, score, votes),
        "ts": decision.ts,
        "mode": decision.mode.value,
        "chosen": decision.chosen,
        "propensity": decision.propensity,
        "role": decision.identity.role,
        "task": decision.identity.task,
        "eligible": _eligible(decision),
        "excluded": [{"model": model, "reason": reason} for model, reason in decision.excluded],
        "floor": decision.floor,
        "share": decision.share,
        "weights": {"cost": decision.cost_weight, "latency": decision.latency_weight},
        "asked": decision.asked,
        "asked_probability": decision.asked_probability,
        "policy": {
            "algorithm": decision.policy.algorithm,
            "config_hash": decision.policy.config_hash,
            "seq": decision.policy.seq,
        },
        "registry": decision.registry,
        "encoder": decision.encoder,
        "execution": _execution(execution) if execution else None,
        "score": _score(score) if score else None,
        "feedback": [_vote(vote) for vote in votes],
    }


def _eligible(decision: Decision) -> list[dict[str, Any]]:
    """One row a model; a number that was not computed (a pinned model has no pmf) is null."""
    columns = {
        "probability": decision.probs,
        "twin_probability": decision.twin,
        "fit_mean": decision.mean,
        "fit_sd": decision.sd,
        "cost_usd": decision.cost,
        "latency_s": decision.latency,
        "availability": decision.availability,
    }
    return [
        {"model": model, **{name: values[i] if values else None for name, values in columns.items()}}
        for i, model in enumerate(decision.eligible)
    ]


def _execution(event: Execution) -> dict[str, Any]:
    return {
        "status": event.status,
        "served_by": event.served_by,
        "attempts": [
            {"model": attempt.model, "probability": attempt.probability, "error": attempt.error, "ms": attempt.ms}
            for attempt in event.attempts
        ],
        "prompt_tokens": event.prompt_tokens,
        "completion_tokens": event.completion_tokens,
        "cost_usd": event.cost_usd,
        "ttft_ms": event.ttft_ms,
        "latency_ms": event.latency_ms,
        "overhead_ms": event.overhead_ms,
        "finish_reason": event.finish_reason,
    }


def _score(event: Score) -> dict[str, Any]:
    return {
        "status": event.status,
        "mean": event.mean,
        "sd": event.sd,
        "schema": event.schema,
        "encoder": event.encoder,
    }


def _vote(event: Feedback) -> dict[str, Any]:
    return {
        "id": event.id,
        "ts": event.ts,
        "kind": event.kind.value,
        "value": event.value,
        "scale": list(event.scale),
        "dimension": event.dimension,
        **({"other": event.other} if event.other else {}),
        "asked": event.asked,
    }


def _sentence(decision: Decision, execution: Execution | None, score: Score | None, votes: Sequence[Feedback]) -> str:
    parts = [f"{decision.chosen!r} {_MODES[decision.mode]}"]
    if decision.probs:
        parts[0] += f", with probability {decision.propensity:.3g} among {len(decision.eligible)} models"
        leader = max(range(len(decision.eligible)), key=decision.probs.__getitem__)
        if decision.eligible[leader] != decision.chosen:
            parts[0] += f" ({decision.eligible[leader]!r} was likelier, {decision.probs[leader]:.3g})"
    if decision.mean and decision.chosen in decision.eligible:
        i = decision.eligible.index(decision.chosen)
        parts.append(f"its expected fit was {decision.mean[i]:.2f} ± {decision.sd[i]:.2f}")
    parts.append(_ending(execution))
    if score is not None and score.status == "ok":
        parts.append(f"this user's reward model gives the answer {score.mean:.2f} ± {score.sd:.2f}")
    if votes:
        last = votes[-1]
        parts.append(
            f"the last verdict is a {last.kind.value} of {last.value:g} on {last.scale[0]:g} to {last.scale[1]:g}"
        )
    return "; ".join(parts) + "."


def _ending(execution: Execution | None) -> str:
    if execution is None:
        return "it has not ended yet"
    if execution.served_by is None:
        return f"nobody answered ({execution.status})"
    took = f"in {execution.latency_ms / 1000:.2g} s for ${execution.cost_usd:.2g}"
    if execution.served_by != execution.chosen:
        return f"it failed, and {execution.served_by!r} answered {took}"
    return f"it answered {took}" if execution.status == "ok" else f"its answer ended early ({execution.status}) {took}"
