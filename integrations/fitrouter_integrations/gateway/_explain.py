"""The JSON of a decision for `GET /v1/decisions/{decision_id}` and the console, and of its kept texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from fitrouter.routing.explanation import Explanation
from fitrouter.routing.tiers import BALANCED
from fitrouter.stores.content import Content
from fitrouter.types import TOKENS, Decision, Event, Execution, Feedback, Remark, Score

MOST_SHOWN = 20_000
"""Characters of a kept text that are shown."""
_DECISION = ("draw_id", "ts", "mode", "chosen", "propensity", "floor", "share", "asked", "asked_probability")
_COLUMNS = {
    "probability": "probs",
    "twin_probability": "twin",
    "fit_mean": "mean",
    "fit_sd": "sd",
    "cost_usd": "cost",
    "latency_s": "latency",
    "availability": "availability",
}
"""Field of a model's row → field of the decision."""
_EXECUTION = (
    *("status", "served_by", "attempts", *TOKENS, "estimated"),
    *("ttft_ms", "latency_ms", "overhead_ms", "finish_reason"),
)
_ATTEMPT = ("model", "probability", "error", "ms", "cost_usd")
_SCORE = ("status", "mean", "sd", "schema", "encoder")
_REMARK = ("id", "ts", "kind", "moved", "y")
_VOTE = ("id", "ts", "kind", "value", "scale", "dimension", "other", "asked")


def decision_json(events: Sequence[Event], explanation: Explanation) -> dict[str, Any]:
    """Return the JSON of a decision with its outcome, score and votes.

    Args:
        events: all events of the decision, the decision first.
        explanation: why this model.
    """
    decision = events[0]
    assert isinstance(decision, Decision)
    execution = next((event for event in events if isinstance(event, Execution)), None)
    score = next((event for event in events if isinstance(event, Score)), None)
    return {
        "decision_id": decision.id,
        **_fields(decision, _DECISION),
        "why": " ".join(explanation.sentences),
        "role": decision.identity.role,
        "task": decision.identity.task,
        "eligible": _eligible(decision),
        "excluded": [{"model": model, "reason": reason} for model, reason in decision.excluded],
        "tier": decision.tier or BALANCED,
        "weights": {"cost": decision.cost_weight, "latency": decision.latency_weight},
        "policy": _fields(decision.policy, ("algorithm", "config_hash", "seq")),
        "registry": decision.registry,
        "encoder": decision.encoder,
        "execution": execution and _execution(execution),
        "score": score and _fields(score, _SCORE),
        "feedback": [_vote(event) for event in events if isinstance(event, Feedback)],
        "remarks": [_fields(event, _REMARK) for event in events if isinstance(event, Remark)],
        "explanation": msgspec.to_builtins(explanation),
    }


def content_json(content: Content) -> dict[str, Any]:
    """Return the beginnings of a kept prompt and its answer, and the number of characters left out."""
    said, calls = content.message.get("content"), content.message.get("tool_calls")
    if isinstance(said, list):
        said = "\n".join(str(part.get("text", "")) for part in said if isinstance(part, dict))
    texts = {"prompt": content.prompt, "answer": said or "", "tool_calls": json.dumps(calls) if calls else ""}
    left_out = sum(max(len(text) - MOST_SHOWN, 0) for text in texts.values())
    return {**{name: text[:MOST_SHOWN] for name, text in texts.items()}, "left_out": left_out}


def _fields(value: Any, names: Sequence[str]) -> dict[str, Any]:
    return {name: msgspec.to_builtins(getattr(value, name)) for name in names}


def _eligible(decision: Decision) -> list[dict[str, Any]]:
    """Return one row per eligible model; numbers that were not computed are null, such as those of a pinned model."""
    columns = {name: getattr(decision, field) for name, field in _COLUMNS.items()}
    return [
        {"model": model, **{name: values[i] if values else None for name, values in columns.items()}}
        | (
            {"unpriced": True, "cost_usd": (decision.cost[i] if decision.cost else None) or None}
            if model in decision.unpriced
            else {}
        )
        for i, model in enumerate(decision.eligible)
    ]


def _execution(event: Execution) -> dict[str, Any]:
    money = {"cost_usd": event.known_usd, "unpriced": event.cost_assumed}
    return _fields(event, _EXECUTION) | money | {"attempts": [_fields(attempt, _ATTEMPT) for attempt in event.attempts]}


def _vote(event: Feedback) -> dict[str, Any]:
    found = _fields(event, _VOTE)
    return found if event.other else {name: value for name, value in found.items() if name != "other"}
