"""Converts events to warehouse rows: one function for each table, in the order of its columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np

from fitrouter.stores.journal import Row
from fitrouter.types import (
    Decision,
    Execution,
    Feedback,
    Identity,
    ModelChange,
    PolicyChange,
    ProfileChange,
    Refusal,
    Remark,
    Score,
)

Cells: TypeAlias = tuple[Any, ...]

TABLES = ("decisions", "executions", "scores", "feedback", "profiles", "models", "policies", "remarks", "refusals")
"""Tables filled from the journal."""


def rows_of(row: Row) -> tuple[str, Sequence[Cells]]:
    """Convert an event to rows; return their table and the rows, an empty name for an event without a table.

    Raises:
        ValueError: the size of an encoded array is not a multiple of four bytes.
    """
    event = row.event
    if isinstance(event, Decision):
        return "decisions", (_decision(row.seq, event),)
    if isinstance(event, Execution):
        return "executions", (_execution(row.seq, event),)
    if isinstance(event, Score):
        return "scores", (_score(row.seq, event),)
    if isinstance(event, Feedback):
        return "feedback", (_feedback(row.seq, event),)
    if isinstance(event, Remark):
        own = event.decision_id, *_identity(event.identity), event.kind, event.moved, event.y
        return "remarks", ((row.seq, event.id, event.ts, *own),)
    if isinstance(event, Refusal):
        own = event.model or None, event.reason, event.n
        return "refusals", ((row.seq, event.id, event.ts, *_identity(event.identity), *own),)
    if isinstance(event, ProfileChange):
        return "profiles", ((row.seq, event.id, event.ts, *_identity(event.identity), event.declared),)
    if isinstance(event, ModelChange):
        return "models", _models(row.seq, event)
    if isinstance(event, PolicyChange):
        settings = msgspec.json.encode(event.settings, order="sorted").decode()
        return "policies", ((row.seq, event.id, event.ts, event.action, event.name, settings, event.config_hash),)
    return "", ()


def _decision(seq: int, event: Decision) -> Cells:
    return (
        seq,
        event.id,
        event.ts,
        event.draw_id,
        *_identity(event.identity),
        event.mode.value,
        event.eligible,
        [{"model": model, "reason": reason} for model, reason in event.excluded],
        event.probs,
        event.chosen,
        event.propensity,
        _floats(event.features),
        event.mean,
        event.sd,
        event.cost,
        event.latency,
        event.availability,
        event.cost_weight,
        event.latency_weight,
        event.floor,
        event.share,
        event.twin,
        event.asked,
        event.asked_probability,
        event.policy.algorithm,
        event.policy.config_hash,
        _int64(event.policy.seq),
        event.registry,
        event.encoder,
        _int64(event.seed),
        event.cost_unit_usd,
        event.latency_unit_s,
        event.budget_weight,
        event.budget_unit_usd,
        event.switch,
        event.personal,
        event.candidates,
        event.new,
        event.user_turn,
        event.redraw,
        event.rest,
        event.steps,
        event.deadline_s,
        event.turn,
        event.unpriced,
    )


def _execution(seq: int, event: Execution) -> Cells:
    return (
        seq,
        event.id,
        event.ts,
        event.decision_id,
        *_identity(event.identity),
        event.chosen,
        event.served_by,
        event.status,
        [{"model": a.model, "probability": a.probability, "error": a.error, "ms": a.ms} for a in event.attempts],
        _int64(event.prompt_tokens),
        _int64(event.completion_tokens),
        event.cost_usd,
        event.ttft_ms,
        event.latency_ms,
        event.finish_reason,
        event.overhead_ms,
        event.cost_assumed,
        event.believed,
        event.estimated,
    )


def _score(seq: int, event: Score) -> Cells:
    return (
        seq,
        event.id,
        event.ts,
        event.decision_id,
        *_identity(event.identity),
        event.served_by,
        _floats(event.h),
        event.schema,
        event.encoder,
        event.mean,
        event.sd,
        event.status,
        {name: {"mean": mean, "sd": sd} for name, (mean, sd) in event.dimensions.items()},
        dict(event.sampled),
    )


def _feedback(seq: int, event: Feedback) -> Cells:
    return (
        seq,
        event.id,
        event.ts,
        event.decision_id,
        *_identity(event.identity),
        event.kind.value,
        event.value,
        *event.scale,
        event.y if event.scale[0] != event.scale[1] else None,
        event.dimension,
        event.asked,
        event.source,
        event.other,
    )


def _models(seq: int, event: ModelChange) -> Sequence[Cells]:
    return [
        (
            seq,
            event.id,
            event.ts,
            event.registry,
            card.arm,
            card.name,
            card.provider,
            card.target,
            card.prices.input,
            card.prices.output,
            _int64(card.context_window),
            card.capabilities,
            card.revision,
            card.variant.name if card.variant else "",
            card.max_output_tokens and _int64(card.max_output_tokens),
            card.prices.known,
        )
        for card in event.cards
    ]


def _identity(identity: Identity) -> Cells:
    return identity.tenant, identity.user, identity.role, identity.task, identity.session


def _floats(payload: bytes) -> list[float]:
    values: list[float] = np.frombuffer(payload, dtype="<f4").tolist()
    return values


def _int64(value: int) -> int:
    """Clamp a value to the range of a BIGINT, since providers' token counts are not validated."""
    return max(-(2**63), min(value, 2**63 - 1))
