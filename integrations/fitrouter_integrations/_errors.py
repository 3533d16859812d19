"""Kinds of router errors that agent frameworks tell apart, and provider failures under the router's names."""

from __future__ import annotations

import enum

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
    Unreachable,
)
from fitrouter.providers import from_status


class Kind(enum.Enum):
    """What a framework's retries and fallbacks depend on."""

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
    ((NoEligibleModel, InvalidRequest, ProviderRejected), Kind.INVALID),
    (NotAuthorized, Kind.NOT_AUTHORIZED),
    (UnknownDecision, Kind.NOT_FOUND),
    (ProviderTimeout, Kind.TIMEOUT),
    ((ProviderError, AllModelsFailed, StoreError), Kind.UNAVAILABLE),
    (Unreachable, Kind.UNREACHABLE),
    (ConfigError, Kind.MISCONFIGURED),
)
"""The first class that matches decides."""


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
    """The router's name for an exception of another client, by its HTTP status: the `error` of an attempt."""
    status = getattr(error, "status_code", None)
    if not isinstance(status, int):
        return ProviderUnavailable.__name__
    return type(from_status(status, f"{type(error).__name__}: {error}")).__name__
