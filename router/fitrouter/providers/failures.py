"""Translation of upstream failures (HTTP statuses, error bodies) into provider errors."""

from __future__ import annotations

import datetime
import email.utils
import math
import re
from collections.abc import Mapping
from typing import Any

from fitrouter.errors import ContextOverflow, ProviderError, ProviderRejected, ProviderUnavailable

_OVER_BUDGET = ("insufficient_quota", "budget_exceeded", "billing_hard_limit_reached", "quota_exceeded")
_TOO_LONG = re.compile(
    r"context_length_exceeded|context_?window|maximum context length|(?:prompt|input) is too long"
    r"|exceeds? the (?:maximum|max) number of (?:input )?tokens",
    re.IGNORECASE,
)
"""Messages of OpenAI, Anthropic, Google, Mistral, Bedrock, vLLM and litellm about a context that is too long."""
_TRY_ANOTHER = frozenset({401, 402, 403, 404, 408, 429})
_EXCERPT = 300


def from_status(status: int, message: str, retry_after_s: float | None = None) -> ProviderError:
    """The provider error of an HTTP status.

    408, 429, 5xx, redirects, and problems with the account or the model's name (401, 402, 403, 404, a 400 for an
    exhausted budget) are `ProviderUnavailable`: another model may answer. Any other 4xx is `ProviderRejected`, or
    `ContextOverflow` if its message says that the conversation is too long for the model.

    >>> from_status(400, "This model's maximum context length is 8192 tokens.")
    ContextOverflow("This model's maximum context length is 8192 tokens.")
    """
    over_budget = any(code in message for code in _OVER_BUDGET)
    if 400 <= status < 500 and status not in _TRY_ANOTHER and not over_budget:
        return (ContextOverflow if _TOO_LONG.search(message) else ProviderRejected)(message, status)
    return ProviderUnavailable(message, status, retry_after_s)


def from_error_body(body: Mapping[str, Any], where: str) -> ProviderUnavailable:
    """The provider error of a 200 whose body or stream holds {"error": {"message", "code"}} or {"error": "…"}."""
    error = body.get("error")
    code = error.get("code") if isinstance(error, dict) else None
    status = code if isinstance(code, int) and not isinstance(code, bool) else None
    return ProviderUnavailable(f"{where} answered 200 with an error: {excerpt(error)}", status)


def excerpt(content: object) -> str:
    """The beginning of a response, on one line, for an error message."""
    text = content.decode("utf-8", "replace") if isinstance(content, bytes) else str(content)
    text = " ".join(text[: 2 * _EXCERPT].split())
    return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}…"


def retry_after(value: str | None, now: float) -> float | None:
    """Seconds from a Retry-After header: a number or an HTTP date; None if it is neither.

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
