"""The exceptions of fitrouter.

FitrouterError
├── ConfigError             a setting cannot be used
│   └── Unreachable         nobody answers at a gateway's address now
├── InvalidRequest          a request cannot be understood (HTTP 400)
│   ├── ForbiddenField      a body tried to set transport: api_base, api_key, headers …
│   └── TooLarge            a body, header or history is over its limit (413)
├── NotAuthorized           no key, or a key of another tenant (401, 403)
├── UnknownDecision         no logged decision has this id for this tenant (404)
├── NoEligibleModel         every model was excluded; carries the reasons (400)
├── ProviderError           a provider gave no usable answer
│   ├── ProviderTimeout     it did not answer in time
│   ├── ProviderRejected    it refused the request itself (4xx other than 408/429); no other model is tried
│   │   └── ContextOverflow  the history does not fit into its window; it may into another model's
│   └── ProviderUnavailable it is down, over quota or rate limited
├── AllModelsFailed         every attempt failed inside the deadline (502, 504)
├── StoreError              the journal or the warehouse could not read or write
│   └── JournalFull         too many events wait to become durable (503)
├── InvalidLog              a log that would give wrong numbers; what is wrong, and in which row
└── ArtifactError           a shipped or trained file is missing or does not match its sha256
"""

from __future__ import annotations


class FitrouterError(Exception):
    """Anything that fitrouter raises on purpose. `too_long` says that a shorter history would be answered."""

    too_long = False


class ConfigError(FitrouterError):
    """A setting cannot be used; the message names the value, what is allowed, and the remedy."""


class Unreachable(ConfigError):
    """Nobody answers at a gateway's address: it is wrong, or the gateway is down now."""


class InvalidRequest(FitrouterError):
    """A request cannot be understood."""


class ForbiddenField(InvalidRequest):
    """A request body tried to choose its transport."""


class TooLarge(InvalidRequest):
    """A request is over one of the limits."""


class NotAuthorized(FitrouterError):
    """The caller has no key, or one of another tenant."""


class UnknownDecision(FitrouterError):
    """No logged decision has this id for this tenant."""


class NoEligibleModel(FitrouterError):
    """Every model was excluded.

    `excluded` holds (model, reason) in canonical order.
    """

    def __init__(self, message: str, excluded: tuple[tuple[str, str], ...] = (), too_long: bool = False) -> None:
        super().__init__(message)
        self.excluded = excluded
        self.too_long = too_long or (bool(excluded) and all(reason.startswith("context") for _, reason in excluded))


class ProviderError(FitrouterError):
    """A provider gave no usable answer; `status` is its HTTP status where there was one."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class ProviderTimeout(ProviderError):
    """A provider did not answer in time."""


class ProviderRejected(ProviderError):
    """A provider refused the request itself, so another model would be asked in vain."""


class ContextOverflow(ProviderRejected):
    """The history does not fit into a model's window, as its provider says; another model may have a larger one."""

    too_long = True


class ProviderUnavailable(ProviderError):
    """A provider is down, over its quota, or rate limited; `retry_after_s` is how long it asked for, if it did."""

    def __init__(self, message: str, status: int | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message, status)
        self.retry_after_s = retry_after_s


class AllModelsFailed(FitrouterError):
    """Every attempt failed inside the deadline.

    `decision_id` is what the failed request was logged under; `timed_out` says that the deadline ended it.
    """

    def __init__(self, message: str, decision_id: str = "", timed_out: bool = False) -> None:
        super().__init__(message)
        self.decision_id = decision_id
        self.timed_out = timed_out


class StoreError(FitrouterError):
    """The journal or the warehouse could not read or write."""


class JournalFull(StoreError):
    """Too many events wait to become durable."""


class InvalidLog(FitrouterError):
    """A log that would give wrong numbers: what is wrong, in which row, and what to do."""


class ArtifactError(FitrouterError):
    """A shipped or trained file is missing or does not match its sha256."""
