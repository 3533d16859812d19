"""Errors of the router as litellm's own, so that its retries and fallbacks do what their users set them to."""

from __future__ import annotations

from typing import Any

from fitrouter.errors import (
    AllModelsFailed,
    ConfigError,
    FitrouterError,
    InvalidRequest,
    NoEligibleModel,
    NotAuthorized,
    ProviderError,
    ProviderRejected,
    ProviderTimeout,
    StoreError,
    UnknownDecision,
)
from fitrouter.providers.failures import from_status
from litellm import exceptions

_PROVIDER = "fitrouter"


def translated(error: FitrouterError, model: str) -> Exception:
    """The error of litellm that stands for an error of the router; it says the same.

    Args:
        error: of the router.
        model: as litellm's caller named it.
    """
    kind = _kind(error)
    more: dict[str, Any] = {"status_code": 500} if kind is exceptions.APIError else {}
    made: Exception = kind(message=str(error), model=model, llm_provider=_PROVIDER, **more)
    return made


def named(error: object) -> str:
    """The router's name for an error of litellm, as attempts are logged with: rejected, timed out or unavailable.

    >>> named(exceptions.RateLimitError("slow down", "openai", "gpt-4o"))
    'ProviderUnavailable'
    """
    status = getattr(error, "status_code", None)
    if isinstance(error, exceptions.Timeout | TimeoutError):
        return ProviderTimeout.__name__
    return type(from_status(status if isinstance(status, int) else 503, f"{type(error).__name__}: {error}")).__name__


def _kind(error: FitrouterError) -> Any:
    """Its class: 4xx is not tried again, a timeout, 429 and 503 are."""
    found = exceptions.APIError
    match error:
        case FitrouterError(too_long=True):
            found = exceptions.ContextWindowExceededError
        case NoEligibleModel() | InvalidRequest() | ProviderRejected():
            found = exceptions.BadRequestError
        case NotAuthorized():
            found = exceptions.AuthenticationError
        case UnknownDecision():
            found = exceptions.NotFoundError
        case ProviderTimeout() | AllModelsFailed(timed_out=True):
            found = exceptions.Timeout
        case ProviderError(status=429):
            found = exceptions.RateLimitError
        case ProviderError() | AllModelsFailed() | StoreError():
            found = exceptions.ServiceUnavailableError
        case ConfigError():
            found = exceptions.APIConnectionError
        case _:
            pass
    return found
