"""Kinds of router errors that agent frameworks distinguish, and provider failures under the router's names."""

from __future__ import annotations

import enum

from fitrouter import errors
from fitrouter.errors import (
    FitrouterError,
    ProviderError,
    ProviderRejected,
    ProviderTimeout,
    ProviderUnavailable,
    in_words,
)
from fitrouter.providers import from_status


class Kind(enum.Enum):
    """Kinds of failure on which a framework's retries and fallbacks depend."""

    TOO_LONG = enum.auto()
    """The request exceeds every context window; a summarised history may fit."""
    INVALID = enum.auto()
    NOT_AUTHORIZED = enum.auto()
    NOT_FOUND = enum.auto()
    TIMEOUT = enum.auto()
    RATE_LIMITED = enum.auto()
    UNAVAILABLE = enum.auto()
    UNREACHABLE = enum.auto()
    MISCONFIGURED = enum.auto()
    UNKNOWN = enum.auto()
    """A plain `FitrouterError`, such as from a gateway that is shutting down."""


_KINDS: tuple[tuple[type[FitrouterError] | tuple[type[FitrouterError], ...], Kind], ...] = (
    ((errors.NoEligibleModel, errors.InvalidRequest, ProviderRejected), Kind.INVALID),
    (errors.NotAuthorized, Kind.NOT_AUTHORIZED),
    (errors.UnknownDecision, Kind.NOT_FOUND),
    (ProviderTimeout, Kind.TIMEOUT),
    (errors.AllRateLimited, Kind.RATE_LIMITED),
    ((ProviderError, errors.AllModelsFailed, errors.Unavailable, errors.StoreError), Kind.UNAVAILABLE),
    (errors.Unreachable, Kind.UNREACHABLE),
    (errors.ConfigError, Kind.MISCONFIGURED),
)
"""The first class that matches decides."""


CODES: tuple[tuple[type[FitrouterError], int, str], ...] = (
    (errors.ForbiddenField, 400, "forbidden_field"),
    (errors.TooLarge, 413, "too_large"),
    (errors.UnknownModel, 404, "model_not_found"),
    (errors.InvalidRequest, 400, "invalid_request"),
    (errors.NotAuthorized, 403, "not_authorized"),
    (errors.UnknownDecision, 404, "unknown_decision"),
    (ProviderTimeout, 504, "provider_timeout"),
    (ProviderError, 502, "provider_error"),
    (errors.BudgetExhausted, 402, "budget_exhausted"),
    (errors.AllRateLimited, 429, "models_rate_limited"),
    (errors.Unavailable, 503, "unavailable"),
    (errors.StoreError, 503, "store_unavailable"),
)
"""Class, HTTP status and code of errors over HTTP. The first class that matches decides."""


def kind_of(error: FitrouterError) -> Kind:
    """The kind of a router error."""
    if error.too_long:
        return Kind.TOO_LONG
    if getattr(error, "timed_out", False):
        return Kind.TIMEOUT
    if isinstance(error, ProviderError) and not isinstance(error, ProviderRejected) and error.status == 429:
        return Kind.RATE_LIMITED
    return next((kind for classes, kind in _KINDS if isinstance(error, classes)), Kind.UNKNOWN)


def failure_name(error: object) -> str:
    """Return the router's name for another client's exception, by its HTTP status; it is an attempt's `error`."""
    status = getattr(error, "status_code", None)
    if not isinstance(status, int) or not isinstance(error, BaseException):
        return ProviderUnavailable.__name__
    return type(from_status(status, in_words(error))).__name__
