"""Router errors as litellm's exceptions, which its retries and fallbacks understand."""

from __future__ import annotations

from typing import Any

from litellm import exceptions

from fitrouter.errors import FitrouterError, ProviderTimeout
from fitrouter_integrations._errors import Kind, failure_name, kind_of

_CLASSES: dict[Kind, Any] = {
    Kind.TOO_LONG: exceptions.ContextWindowExceededError,
    Kind.INVALID: exceptions.BadRequestError,
    Kind.NOT_AUTHORIZED: exceptions.AuthenticationError,
    Kind.NOT_FOUND: exceptions.NotFoundError,
    Kind.TIMEOUT: exceptions.Timeout,
    Kind.RATE_LIMITED: exceptions.RateLimitError,
    Kind.UNAVAILABLE: exceptions.ServiceUnavailableError,
    Kind.UNREACHABLE: exceptions.APIConnectionError,
    Kind.MISCONFIGURED: exceptions.APIConnectionError,
}
"""litellm retries timeouts, rate limits and 503, and no other 4xx."""


def translated(error: FitrouterError, model: str) -> Exception:
    """Return the litellm exception for a router error, with the same message.

    Args:
        error: the router's.
        model: the model name that litellm's caller gave.
    """
    found = _CLASSES.get(kind_of(error), exceptions.APIError)
    more: dict[str, Any] = {"status_code": 500} if found is exceptions.APIError else {}
    made: Exception = found(message=str(error), model=model, llm_provider="fitrouter", **more)
    return made


def named(error: object) -> str:
    """Return the router's name for a litellm exception, as attempts log it.

    >>> named(exceptions.RateLimitError("slow down", "openai", "gpt-4o"))
    'RateLimited'
    """
    timed_out = isinstance(error, exceptions.Timeout | TimeoutError)
    return ProviderTimeout.__name__ if timed_out else failure_name(error)
