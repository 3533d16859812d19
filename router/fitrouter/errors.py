"""The exceptions of fitrouter.

FitrouterError
├── ConfigError             a setting is invalid
│   ├── MissingExtra        an optional dependency is not installed (also a ModuleNotFoundError)
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
│   └── ProviderUnavailable down, or it does not know the model
│       ├── ModelRefused    the provider refuses the model, or the request to this model (403, 404)
│       ├── KeyRefused      the configured key is wrong
│       ├── QuotaExhausted  the account's budget is exhausted
│       ├── RateLimited     too many requests
│       └── NotCalled       the router did not call the model: its breaker is open, or there is no free slot
│           └── NotCovered  the tenant's budget does not cover the call
├── AllModelsFailed         every attempt failed before the deadline (502, 504)
├── Unavailable             no model can be called now; holds when to try again (503)
│   ├── AllRateLimited      every model that was called limits the rate of requests (429)
│   └── BudgetExhausted     a hard limit does not cover the request (402)
├── StoreError              the journal or another store could not be read or written (503)
│   ├── JournalFull         too many events are waiting to be written (503)
│   ├── NoWarehouse         no event has been copied to the warehouse yet
│   └── WarehouseLocked     another process has the warehouse's file open
├── InvalidLog              a log is inconsistent; names the problem and the row
└── ArtifactError           a shipped or trained file is missing or does not match its sha256

Secrets are masked in every message: upstream servers echo keys, and messages reach clients and logs.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import re
import traceback
from typing import Any, Self
from urllib.parse import quote

MASK = "••••"
_SHORTEST = 8
"""Length from which a value counts as a secret: shorter ones are placeholders such as `EMPTY`."""
_SECRETS: list[str] = []
"""Every form of the secrets of this process, the longest first."""
_LOOKS_LIKE_A_KEY = re.compile(
    r"\b(?:sk|pk|rk|gsk|xai|hf|r8|pplx|nvapi|ghp|gho|glpat|xox[abps]|github_pat)[-_][\w-]{12,1000}"
    r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bAIza[\w-]{30,1000}|\beyJ[\w-]{10,1000}\.[\w.-]{10,1000}"
    r"|(?i:(?<=bearer ))[\w.~+/=-]{12,1000}"
    r"|(?i:(?:api[_-]?key|access[_-]?token|secret|password)[\"']?\s{0,3}[:=]\s{0,3}[\"']?)[^\s\"',;]{8,1000}"
)


def conceal(secret: str) -> tuple[str, ...]:
    """Mask a secret in all messages from now on: plain, URL-quoted, in Base64, and escaped as in JSON.

    Returns:
        These forms; none if it is too short for a secret.
    """
    if len(secret) < _SHORTEST:
        return ()
    escaped = json.dumps(secret)[1:-1]
    encoded = base64.b64encode(secret.encode()).decode().rstrip("=")
    forms = {secret, quote(secret, safe=""), escaped, escaped.replace("/", "\\/"), encoded}
    _SECRETS[:] = sorted({*_SECRETS, *forms}, key=len, reverse=True)
    return tuple(forms)


def masked(text: str) -> str:
    """Mask the secrets of this process, and anything that looks like an API key, in a text.

    >>> masked("Incorrect API key provided: sk-proj-abcdefgh12345678.")
    'Incorrect API key provided: ••••.'
    """
    for secret in _SECRETS:
        text = text.replace(secret, MASK)
    return _LOOKS_LIKE_A_KEY.sub(MASK, text)


def in_words(error: BaseException) -> str:
    """Describe an exception by its class and its message, if any, without secrets.

    >>> in_words(TimeoutError()), in_words(OSError("disk full"))
    ('TimeoutError: it took too long', 'OSError: disk full')
    """
    name, text = type(error).__name__, masked(str(error)).strip()
    if not text and isinstance(error, TimeoutError):
        text = "it took too long"
    return f"{name}: {text}" if text else name


def for_log(error: BaseException) -> str:
    """Describe an exception for logs and all tenants: without an upstream's words, which may repeat a prompt.

    >>> for_log(ProviderRejected("it answered 400: what is 'my secret'?", 400)), for_log(OSError("disk full"))
    ('ProviderRejected, status 400', 'OSError: disk full')
    """
    if isinstance(error, ProviderError):
        return type(error).__name__ + (f", status {error.status}" if error.status else "")
    return in_words(error)


def where(error: BaseException) -> str:
    """The traceback of an unexpected exception and of its causes, without their words."""
    found, seen = list[str](), error.__cause__ or error.__context__
    if seen is not None:
        found += [where(seen), "then"]
    return "\n".join([*found, *traceback.format_tb(error.__traceback__), type(error).__name__])


class FitrouterError(Exception):
    """Base class of fitrouter's exceptions. `too_long` is True if a shorter history would be answered."""

    too_long = False

    def __init__(self, message: str = "") -> None:
        super().__init__(masked(message))


class ConfigError(FitrouterError):
    """A setting is invalid; the message names the value, what is allowed, and the remedy."""


_EXTRAS = {
    "gateway": ("httptools", "jsonschema", "openai", "referencing", "starlette", "uvicorn"),
    "warehouse": ("duckdb",),
    "litellm": ("litellm",),
    "langchain": ("langchain", "langchain_core", "langgraph"),
    "crewai": ("crewai",),
    "postgres": ("psycopg", "psycopg_pool"),
    "s3": ("obstore",),
    "int8": ("onnxruntime",),
    "otel": ("opentelemetry",),
    "inspect": ("inspect_ai",),
    "deepeval": ("deepeval",),
    "flower": ("flwr",),
    "ray": ("ray",),
    "replay": ("jinja2", "scipy"),
    "reward": ("sentence_transformers", "sklearn", "torch", "transformers"),
}
"""Extra → the modules that it installs; a module of several extras is under the smallest."""


class MissingExtra(ConfigError, ModuleNotFoundError):
    """An optional dependency is not installed; the message names the smallest extra that has it."""

    @classmethod
    def of(cls, module: str | None, user: str) -> MissingExtra:
        """Make the error for a missing module, naming who needs it and the extra that has it.

        >>> str(MissingExtra.of("uvicorn.config", "the gateway"))
        "the gateway needs 'uvicorn', which is not installed; `pip install 'fitrouter[gateway]'`"
        """
        top = (module or "a module").partition(".")[0]
        extra = next((name for name, modules in _EXTRAS.items() if top in modules), None)
        remedy = f"pip install 'fitrouter[{extra}]'" if extra else f"pip install {top}"
        return cls(f"{user} needs {top!r}, which is not installed; `{remedy}`")


def require(module: str, user: str) -> None:
    """Check that a module can be imported, without importing it.

    Raises:
        MissingExtra: it is not installed.
    """
    if importlib.util.find_spec(module) is None:
        raise MissingExtra.of(module, user)


class Unreachable(ConfigError):
    """No gateway answers at the address: it is wrong, or the gateway is down."""


class InvalidRequest(FitrouterError):
    """A request is malformed."""


class ForbiddenField(InvalidRequest):
    """A request body sets transport options, which only the router may set."""


class TooLarge(InvalidRequest):
    """A request exceeds a limit."""


class NotAuthorized(FitrouterError):
    """The caller lacks a valid key, or the data belongs to another tenant or user."""


class UnknownModel(InvalidRequest):
    """There is no model of this name."""


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

    usage: Any = None
    """What was used (`fitrouter.types.Usage`), if the provider says so: it bills that all the same."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status

    def billed(self, usage: Any) -> Self:
        """Return the error with what was used."""
        self.usage = usage
        return self


class ProviderTimeout(ProviderError):
    """A provider did not answer in time."""


class ProviderRejected(ProviderError):
    """A provider refused the request itself; other models are not tried."""


class ContextOverflow(ProviderRejected):
    """The provider reported that the history exceeds the model's context window; a larger model may fit."""

    too_long = True


class CheckFailed(ProviderError):
    """A model answered, and the check of its answers did not let the answer pass; another model is drawn."""


class ProviderUnavailable(ProviderError):
    """A provider is down, over its quota, or rate limited; `retry_after_s` is its Retry-After, if any."""

    def __init__(self, message: str, status: int | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message, status)
        self.retry_after_s = retry_after_s


class ModelRefused(ProviderUnavailable):
    """A provider does not offer the model to this account, or refuses the request; another model may answer."""


class KeyRefused(ProviderUnavailable):
    """A provider refused the key that is configured for it."""


class QuotaExhausted(ProviderUnavailable):
    """The account at a provider has no budget left."""


class RateLimited(ProviderUnavailable):
    """A provider limits the rate of requests."""


class NotCalled(ProviderUnavailable):
    """The router decided not to call the model; it says nothing about the model itself."""


class NotCovered(NotCalled):
    """The tenant's budget does not cover a call of the model."""


class Unavailable(FitrouterError):
    """No model can be called now; `retry_after_s` says when to try again.

    `decision_id` is the logged decision, if one was made; `reason` is that of a `fitrouter.types.Refusal` otherwise.
    """

    reason = "breaker"

    def __init__(self, message: str, retry_after_s: float = 1.0, decision_id: str = "") -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.decision_id = decision_id


class BudgetExhausted(Unavailable):
    """The tenant's hard budget does not cover any model that could answer, or the named one."""

    reason = "budget"


class AllRateLimited(Unavailable):
    """Every model that was called limits the rate of requests."""


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


class NoWarehouse(StoreError):
    """The warehouse's file does not exist: no event has been copied yet. The one StoreError that means "no rows"."""


class WarehouseLocked(StoreError):
    """Another process has the warehouse's file open; try again."""


class InvalidLog(FitrouterError):
    """A log is inconsistent; the message names the problem, the row and the remedy."""


class ArtifactError(FitrouterError):
    """A shipped or trained file is missing or does not match its sha256."""
