"""Allowed ranges of the numbers in events; events outside of them are neither appended nor folded."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from fitrouter.types import (
    SOURCES,
    TOKENS,
    Decision,
    Erasure,
    Event,
    Execution,
    Feedback,
    FeedbackKind,
    ModelChange,
    Prices,
    ProfileChange,
    Refusal,
    Remark,
    RunOutcome,
    Score,
)

LONGEST_MS = 86_400_000.0
"""A day."""
MOST_TOKENS = 2**31
MOST_USD = 1e6
LONGEST_NAME = 256
"""Characters of the name of a dimension."""
MOST_DIMENSIONS = 256
"""Dimensions of one event."""
_LARGEST = 1e9
"""Of predictions, features, ratings and the ends of their scales; squares of it still add up."""
_SMALL = 1e6
_LATEST = 1e11
"""Seconds since the epoch."""


def fault_in(event: Event) -> str:
    """Find the first number of an event that is not finite or out of range, as `name value`; empty if there is none."""
    if _plainly_sound(event):
        return ""
    return next((f"{name} {value!r}" for name, value, low, high in _numbers(event) if not low <= value <= high), "")


def _plainly_sound(event: Event) -> bool:
    """Quick check that an event of a frequent kind is in range; False means that a closer look is needed."""
    match event:
        case Decision():
            total = event.propensity  # a sum of numbers ≥ 0 is in range only if each of them is, and none is NaN
            for values in (event.probs, event.mean, event.sd, event.cost, event.latency):
                total += sum(map(abs, values))
            for values in (event.availability, event.twin, event.rest, event.switch):
                total += sum(map(abs, values))
            return total < _LARGEST and 0.0 <= event.propensity <= 1.0 and _small(event.ts, event.features)
        case Execution():
            return (
                0.0 <= event.cost_usd < MOST_USD
                and 0 <= event.prompt_tokens < MOST_TOKENS
                and 0 <= event.completion_tokens < MOST_TOKENS
                and 0 <= event.cached_tokens + event.written_tokens <= event.prompt_tokens
                and min(event.cached_tokens, event.written_1h_tokens, event.reasoning_tokens) >= 0
                and event.written_1h_tokens <= event.written_tokens
                and event.reasoning_tokens <= event.completion_tokens
                and 0.0 <= event.latency_ms < LONGEST_MS
                and 0.0 <= (event.ttft_ms or 0.0) < LONGEST_MS
                and -LONGEST_MS < event.overhead_ms < LONGEST_MS
                and all(0.0 <= each.probability <= 1.0 and 0.0 <= each.ms < LONGEST_MS for each in event.attempts)
                and all(0.0 <= (each.cost_usd or 0.0) < MOST_USD for each in event.attempts)
                and _small(event.ts, event.features)
            )
        case Score() if not event.dimensions and not len(event.h) % 4:
            largest = np.fmax.reduce(np.abs(np.frombuffer(event.h, dtype="<f4")), initial=0.0)
            sound = -_LARGEST < event.mean < _LARGEST and 0.0 <= event.sd < _LARGEST and largest < _SMALL
            return bool(sound) and _small(event.ts, event.features)
        case _:
            return False


def _small(ts: float, payload: bytes) -> bool:
    """Whether a time is in range, and all of float32[d] are numbers far below the largest one allowed."""
    if len(payload) % 4:
        return False
    values = np.frombuffer(payload, dtype="<f4")
    return -_LATEST < ts < _LATEST and bool(np.maximum.reduce(np.abs(values), initial=0.0) < _SMALL)


def _numbers(event: Event) -> Iterable[tuple[str, float, float, float]]:
    """Yield (name, value, lowest, highest) for each number of an event; NaN is in no range."""
    yield "ts", event.ts, -_LATEST, _LATEST
    match event:
        case Feedback():
            low, high = event.scale
            seconds = event.kind is FeedbackKind.DWELL
            yield "value", event.value, -_LARGEST, _LARGEST
            yield "scale", low, -_LARGEST, _LARGEST
            yield "scale", high, low, _LARGEST
            if high - low < 1e-9:
                yield "scale", high, math.inf, math.inf
            else:
                yield "value on its scale", event.y, -1e-9, LONGEST_MS / 1000.0 if seconds else 1.0 + 1e-9
            yield "length of dimension", len(event.dimension), 1, LONGEST_NAME
        case Execution():
            yield "cost_usd", event.cost_usd, 0.0, MOST_USD
            for name in (*TOKENS, "written_1h_tokens"):
                yield name, getattr(event, name), 0, MOST_TOKENS
            yield "latency_ms", event.latency_ms, 0.0, LONGEST_MS
            yield "ttft_ms", event.ttft_ms or 0.0, 0.0, LONGEST_MS
            yield "overhead_ms", event.overhead_ms, -LONGEST_MS, LONGEST_MS
            for attempt in event.attempts:
                yield "probability", attempt.probability, 0.0, 1.0 + 1e-9
                yield "ms", attempt.ms, 0.0, LONGEST_MS
                yield "cost_usd", attempt.cost_usd or 0.0, 0.0, MOST_USD
            yield from _array("features", event.features)
        case Refusal():
            yield "n", event.n, 1, MOST_TOKENS
        case Decision():
            yield "propensity", event.propensity, 0.0, 1.0 + 1e-9
            tables = event.probs, event.mean, event.sd, event.cost, event.latency, event.availability, event.twin
            for values in (*tables, event.rest, event.switch):
                if values:
                    yield "sum of predictions", sum(map(abs, values)), 0.0, _LARGEST
            yield from _array("features", event.features)
        case Score():
            yield "mean", event.mean, -_LARGEST, _LARGEST
            yield "sd", event.sd, 0.0, _LARGEST
            yield "number of dimensions", len(event.dimensions), 0, MOST_DIMENSIONS
            for pair in event.dimensions.values():
                for value in pair:
                    yield "dimensions", value, -_LARGEST, _LARGEST
            yield from _array("features", event.features)
            yield from _array("h", event.h, missing=True)
        case ProfileChange():
            yield "number of dimensions", len(event.declared), 0, MOST_DIMENSIONS
            for value in event.declared.values():
                yield "declared", value, -_LARGEST, _LARGEST
        case RunOutcome():
            worst, best = event.scale
            yield "value", event.value, -_LARGEST, _LARGEST
            yield "scale", worst, -_LARGEST, _LARGEST
            yield "scale", best, -_LARGEST, _LARGEST
            yield "width of scale", abs(best - worst), 1e-9, math.inf
            yield "source", float(event.source in SOURCES), 1.0, 1.0
        case Remark():
            yield "number of dimensions", len(event.moved), 0, MOST_DIMENSIONS
            yield "y", event.y or 0.0, 0.0, 1.0
            for value in event.moved.values():
                yield "moved", value, -1.0, 1.0
        case ModelChange():
            for card in event.cards:
                for name in Prices.__struct_fields__:
                    yield f"price {name}", getattr(card.prices, name) or 0.0, 0.0, MOST_USD
        case Erasure():
            for each in event.spent:
                yield "ts of spending", each.ts, -_LATEST, _LATEST
                yield "spent usd", each.usd, 0.0, _LARGEST
                yield "requests", each.requests, 1, MOST_TOKENS
        case _:
            pass


def _array(name: str, payload: bytes, *, missing: bool = False) -> Iterable[tuple[str, float, float, float]]:
    """Yield the largest number of float32[d] with its range; NaN is allowed if it marks a `missing` number."""
    if len(payload) % 4:
        yield f"bytes of {name}", len(payload), math.inf, math.inf
    elif payload:
        sizes = np.abs(np.frombuffer(payload, dtype="<f4"))
        yield name, float((np.fmax if missing else np.maximum).reduce(sizes, initial=0.0)), 0.0, _LARGEST
