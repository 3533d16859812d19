"""Reading and writing of token counts in OpenAI's `usage` format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fitrouter.types import Usage

_MOST = 2**53
"""Above it, JSON's numbers are not whole in other languages."""


def read_usage(usage: object) -> Usage | None:
    """Parse the token counts of a `usage` object; None if there is none, and 0 for impossible counts.

    Whether text and context window can hold them is checked by `fitrouter.serving.spending.checked_usage`.

    Args:
        usage: a mapping, or an object of a client library.

    >>> read_usage({"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}})
    Usage(prompt_tokens=9, completion_tokens=3, cached_tokens=4, reasoning_tokens=0, estimated=False)
    """
    if usage is None or isinstance(usage, str | int | float | list):
        return None
    return Usage(
        prompt_tokens=_count(usage, "prompt_tokens"),
        completion_tokens=_count(usage, "completion_tokens"),
        cached_tokens=_count(_get(usage, "prompt_tokens_details"), "cached_tokens"),
        reasoning_tokens=_count(_get(usage, "completion_tokens_details"), "reasoning_tokens"),
        estimated=_get(usage, "estimated") is True,
    )


def usage_body(usage: Usage) -> dict[str, Any]:
    """Format token counts as OpenAI's `usage` object; details if they are not 0, and `estimated` if true.

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
    if usage.estimated:
        body["estimated"] = True
    return body


def _count(place: object, name: str) -> int:
    found = _get(place, name)
    if isinstance(found, bool) or not isinstance(found, int | float):
        return 0
    return int(found) if 0 <= found <= _MOST else 0


def _get(place: object, name: str) -> Any:
    return place.get(name) if isinstance(place, Mapping) else getattr(place, name, None)
