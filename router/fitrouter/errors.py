"""The exceptions of fitrouter.

FitrouterError
├── ConfigError             a setting is invalid
│   └── Unreachable         no gateway answers at the address
├── InvalidRequest          a request is malformed (HTTP 400)
│   ├── ForbiddenField      a body tried to set transport: api_base, api_key, headers …
│   └── TooLarge            a body, header or history exceeds its limit (413)
├── NotAuthorized           missing key, or another tenant's or user's data (401, 403)
├── UnknownDecision         the tenant has no logged decision with this id (404)
├── NoEligibleModel         every model was excluded; holds the reasons (400)
├── ProviderError           a provider returned no usable answer
│   ├── ProviderTimeout     no answer in time
│   ├── ProviderRejected    the request was refused (4xx except 408 and 429); no other model is tried
│   │   └── ContextOverflow the history exceeds the model's context window; another model may fit
│   └── ProviderUnavailable down, over quota or rate limited
├── AllModelsFailed         every attempt failed before the deadline (502, 504)
├── StoreError              the journal or another store could not be read or written (503)
│   └── JournalFull         too many events are waiting to be written (503)
├── InvalidLog              a log is inconsistent; names the problem and the row
└── ArtifactError           a shipped or trained file is missing or does not match its sha256
"""

from __future__ import annotations


class FitrouterError(Exception):
    """Base class of fitrouter's exceptions. `too_long` is True if a shorter history would be answered."""

    too_long = False


class ConfigError(FitrouterError):
    """A setting is invalid; the message names the value, what is allowed, and the remedy."""


class Unreachable(ConfigError):
    """No gateway answers at the address: it is wrong, or the gateway is down."""


class InvalidRequest(FitrouterError):
    """A request is malformed."""


class ForbiddenField(InvalidRequest):
    """A request body tried to set transport options."""


class TooLarge(InvalidRequest):
    """A request exceeds a limit."""


class NotAuthorized(FitrouterError):
    """The caller lacks a valid key, or the data belongs to another tenant or user."""


class UnknownDecision(FitrouterError):
    """The tenant has no logged decision with this id."""


class NoEligibleModel(FitrouterError):
    """Every model was excluded.

    `excluded` holds (model, reason) in canonical order.
    """

    def __init__(self, message: str, excluded: tuple[tuple[str, str], ...] = (), too_long: bool = False) -> None:
        super().__init__(message)
        self.excluded = excluded
        self.too_long = too_long or (bool(excluded) and all(reason.startswith("context") for _, reason in excluded))


class ProviderError(FitrouterError):
    """A provider returned no usable answer; `status` is the HTTP status, if any."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class ProviderTimeout(ProviderError):
    """A provider did not answer in time."""


class ProviderRejected(ProviderError):
    """A provider refused the request itself; other models are not tried."""


class ContextOverflow(ProviderRejected):
    """The provider reported that the history exceeds the model's context window; a larger model may fit."""

    too_long = True


class ProviderUnavailable(ProviderError):
    """A provider is down, over its quota, or rate limited; `retry_after_s` is its Retry-After, if any."""

    def __init__(self, message: str, status: int | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message, status)
        self.retry_after_s = retry_after_s


class AllModelsFailed(FitrouterError):
    """Every attempt failed before the deadline.

    `decision_id` is the logged decision; `timed_out` is True if the deadline ended the last attempt.
    """

    def __init__(self, message: str, decision_id: str = "", timed_out: bool = False) -> None:
        super().__init__(message)
        self.decision_id = decision_id
        self.timed_out = timed_out


class StoreError(FitrouterError):
    """The journal or another store could not be read or written."""


class JournalFull(StoreError):
    """Too many events are waiting to be written."""


class InvalidLog(FitrouterError):
    """A log is inconsistent; the message names the problem, the row and the remedy."""


class ArtifactError(FitrouterError):
    """A shipped or trained file is missing or does not match its sha256."""
