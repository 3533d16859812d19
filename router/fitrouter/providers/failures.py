"""Translation of upstream failures (HTTP statuses, error bodies) into provider errors."""

from __future__ import annotations

import datetime
import email.utils
import math
import re
from collections.abc import Mapping
from typing import Any

from fitrouter.errors import (
    ContextOverflow,
    KeyRefused,
    ModelRefused,
    ProviderError,
    ProviderRejected,
    ProviderUnavailable,
    QuotaExhausted,
    RateLimited,
    masked,
)

_OVER_BUDGET = ("insufficient_quota", "budget_exceeded", "billing_hard_limit_reached", "quota_exceeded")
_TOO_LONG = re.compile(
    r"context_length_exceeded|context_?window|maximum context length|(?:prompt|input) is too long"
    r"|exceeds? the (?:maximum|max) number of (?:input )?tokens",
    re.IGNORECASE,
)
"""Messages of OpenAI, Anthropic, Google, Mistral, Bedrock, vLLM and litellm about a context that is too long."""
_BAD_KEY = re.compile(r"invalid_api_key|API_KEY_INVALID|API key not valid|incorrect api key", re.IGNORECASE)
"""Messages of OpenAI, Google and others about a key, which do not all come with a 401."""
_TRY_ANOTHER = frozenset({401, 402, 403, 404, 408, 429})
_EXCERPT = 300
_READ = 4096
_LONGEST_KEY = 512


def from_status(status: int, message: str, retry_after_s: float | None = None) -> ProviderError:
    """Make the provider error of an HTTP status.

    408, 5xx, redirects, and problems with the model's name (403, 404) are `ProviderUnavailable`: another model may
    answer. Of its subclasses are those with the name, and those with the account (401, 402, 429, and
    other 4xx whose message says so). Any other
    4xx is `ProviderRejected`, or `ContextOverflow` if its message says that the conversation is too long for the model.

    >>> from_status(400, "This model's maximum context length is 8192 tokens.")
    ContextOverflow("This model's maximum context length is 8192 tokens.")
    >>> from_status(429, "insufficient_quota"), from_status(401, "no such key")
    (QuotaExhausted('insufficient_quota'), KeyRefused('no such key'))
    """
    kind = _unavailable(status, message)
    if 400 <= status < 500 and status not in _TRY_ANOTHER and kind is ProviderUnavailable:
        return (ContextOverflow if _TOO_LONG.search(message) else ProviderRejected)(message, status)
    return kind(message, status, retry_after_s)


def kind_of(error: BaseException) -> type[BaseException]:
    """Return the class of a failure; a plain `ProviderUnavailable` is refined by its status and message."""
    return _unavailable(error.status, str(error)) if type(error) is ProviderUnavailable else type(error)


def _unavailable(status: int | None, message: str) -> type[ProviderUnavailable]:
    if status is None or not 400 <= status < 500:
        return ProviderUnavailable
    if status == 401 or _BAD_KEY.search(message):
        return KeyRefused
    if status == 402 or any(code in message for code in _OVER_BUDGET):
        return QuotaExhausted
    if status == 429:
        return RateLimited
    return ModelRefused if status in {403, 404} else ProviderUnavailable


def from_error_body(body: Mapping[str, Any], where: str) -> ProviderUnavailable:
    """Make the provider error of a 200 that holds {"error": {"message", "code"}} or {"error": "…"}."""
    error = body.get("error")
    code = error.get("code") if isinstance(error, dict) else None
    status = code if isinstance(code, int) and 100 <= code < 600 else None
    message = f"{where} answered 200 with an error: {excerpt(error)}"
    return _unavailable(status, message)(message, status)


def excerpt(content: object) -> str:
    """Shorten a response to its beginning, on one line and without secrets, for an error message."""
    whole = content if isinstance(content, bytes) else str(content)
    head = whole[:_READ]
    text = masked(head.decode("utf-8", "replace") if isinstance(head, bytes) else head)
    if len(whole) > _READ:  # a key that was cut is not recognised
        text = text[:-_LONGEST_KEY]
    text = " ".join(text.split())
    return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}…"


def retry_after(value: str | None, now: float) -> float | None:
    """Parse a Retry-After header, a number or an HTTP date, to seconds; None if it is neither.

    >>> retry_after("7", 0.0), retry_after("Thu, 01 Jan 1970 00:01:00 GMT", 10.0), retry_after("soon", 0.0)
    (7.0, 50.0, None)
    """
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            date = email.utils.parsedate_to_datetime(value)
        except ValueError:
            return None
        if date.tzinfo is None:
            date = date.replace(tzinfo=datetime.UTC)
        seconds = date.timestamp() - now
    return max(0.0, seconds) if math.isfinite(seconds) else None
