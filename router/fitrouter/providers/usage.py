"""Reading and writing of token counts in OpenAI's `usage` format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from fitrouter.types import Usage

_MOST = 2**53
"""Above it, JSON's numbers are not whole in other languages."""
_MOST_USD = 10_000.0
_MOST_COUNTS, _LONGEST_NAME = 16, 64
"""Limits of what is passed on of a provider's usage."""
_DETAILS = {"prompt_tokens_details": "input_tokens_details", "completion_tokens_details": "output_tokens_details"}
"""OpenAI's objects of counts in chat completions → in responses."""
_CACHED = ("prompt_cache_hit_tokens", "cached_tokens", "cache_read_input_tokens", "cached_content_token_count")
"""Names of cached tokens at DeepSeek, Moonshot, Anthropic and Google."""


def read_usage(usage: object) -> Usage | None:
    """Parse the token counts of a `usage` object, in any provider's spelling; None if there is none.

    Impossible counts are 0. Whether text and context window can hold them is checked by
    `fitrouter.serving.spending.checked_usage`.

    Args:
        usage: a mapping, or an object of a client library.

    >>> usage = read_usage({"prompt_tokens": 9, "completion_tokens": 3, "prompt_cache_hit_tokens": 4})
    >>> usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens
    (9, 3, 4)
    """
    if usage is None or isinstance(usage, str | int | float | list):
        return None
    prompt, completion = (_get(usage, name) or _get(usage, other) for name, other in _DETAILS.items())
    cost = _get(usage, "cost")
    return Usage(
        prompt_tokens=_first(usage, ("prompt_tokens", "input_tokens")),
        completion_tokens=_first(usage, ("completion_tokens", "output_tokens")),
        cached_tokens=_count(prompt, "cached_tokens") or _first(usage, _CACHED),
        reasoning_tokens=_count(completion, "reasoning_tokens") or _count(usage, "reasoning_tokens"),
        estimated=_get(usage, "estimated") is True,
        cost_usd=float(cost) if _is_number(cost) and 0.0 <= cost <= _MOST_USD else None,
        details={
            name: more for name, place in zip(_DETAILS, (prompt, completion), strict=True) if (more := _more(place))
        },
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
    body |= {name: dict(counts) for name, counts in usage.details.items()}
    if usage.cached_tokens:
        body.setdefault("prompt_tokens_details", {})["cached_tokens"] = usage.cached_tokens
    if usage.reasoning_tokens:
        body.setdefault("completion_tokens_details", {})["reasoning_tokens"] = usage.reasoning_tokens
    if usage.estimated:
        body["estimated"] = True
    return body


def _more(place: object) -> dict[str, int]:
    """The counts of a details object that we do not read ourselves; a few, with short names."""
    if not isinstance(place, Mapping):
        return {}
    found = ((name, _count(place, name)) for name in place if isinstance(name, str) and len(name) <= _LONGEST_NAME)
    read = {"cached_tokens", "reasoning_tokens"}
    return dict(islice(((name, count) for name, count in found if count and name not in read), _MOST_COUNTS))


def _first(usage: object, names: Sequence[str]) -> int:
    """The first count that is not 0 under several names."""
    return next((count for name in names if (count := _count(usage, name))), 0)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _count(place: object, name: str) -> int:
    found = _get(place, name)
    if not _is_number(found):
        return 0
    return int(found) if 0 <= found <= _MOST else 0


def _get(place: object, name: str) -> Any:
    return place.get(name) if isinstance(place, Mapping) else getattr(place, name, None)
