"""Reading and writing of token counts in OpenAI's `usage` format."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fitrouter.types import Usage


def read_usage(usage: object) -> Usage | None:
    """Token counts of a `usage` object; None if there is none. Invalid numbers count as 0.

    Args:
        usage: a mapping, or an object of a client library.

    >>> read_usage({"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}})
    Usage(prompt_tokens=9, completion_tokens=3, cached_tokens=4, reasoning_tokens=0)
    """
    if usage is None or isinstance(usage, str | int | float | list):
        return None
    return Usage(
        prompt_tokens=_count(usage, "prompt_tokens"),
        completion_tokens=_count(usage, "completion_tokens"),
        cached_tokens=_count(_get(usage, "prompt_tokens_details"), "cached_tokens"),
        reasoning_tokens=_count(_get(usage, "completion_tokens_details"), "reasoning_tokens"),
    )


def usage_body(usage: Usage) -> dict[str, Any]:
    """The `usage` object in OpenAI's format; details are included if they are not 0.

    >>> usage_body(Usage(prompt_tokens=9, completion_tokens=3))
    {'prompt_tokens': 9, 'completion_tokens': 3, 'total_tokens': 12}
    """
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    body: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    if usage.cached_tokens:
        body["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
    if usage.reasoning_tokens:
        body["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return body


def _count(place: object, name: str) -> int:
    found = _get(place, name)
    return max(0, int(found)) if isinstance(found, int | float) and math.isfinite(found) else 0


def _get(place: object, name: str) -> Any:
    return place.get(name) if isinstance(place, Mapping) else getattr(place, name, None)
