"""Errors of the router as litellm's own, so that its retries and fallbacks do what their users set them to."""

from __future__ import annotations

from typing import Any

from litellm import exceptions

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
    ProviderUnavailable,
    StoreError,
    UnknownDecision,
)

__all__ = ["named", "translated"]

_PROVIDER = "fitrouter"
_ANOTHER_MAY = frozenset({401, 402, 403, 404, 408, 429})
"""Statuses below 500 that are not the request's fault."""


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
    if isinstance(status, int) and 400 <= status < 500 and status not in _ANOTHER_MAY:
        return ProviderRejected.__name__
    return ProviderUnavailable.__name__


def _kind(error: FitrouterError) -> Any:
    """Its class: 4xx is not tried again, a timeout, 429 and 503 are."""
    found = exceptions.APIError
    match error:
        case NoEligibleModel():
            found = exceptions.ContextWindowExceededError if _too_long(error) else exceptions.BadRequestError
        case InvalidRequest() | ProviderRejected():
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


def _too_long(error: NoEligibleModel) -> bool:
    """Whether every model is too small; a gateway says it in words alone."""
    reasons = [reason for _, reason in error.excluded]
    reasons = reasons or [said.partition(": ")[2] for said in str(error).partition(": ")[2].split("; ")]
    return all(reason.startswith("context") for reason in reasons)
