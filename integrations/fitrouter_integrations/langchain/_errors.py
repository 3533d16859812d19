"""Errors of the router that are LangChain's too: its retries, fallbacks and summaries do what their users set them to.

Each stays what it is (`except fitrouter.errors.AllModelsFailed` still works) and becomes a `ModelError` besides, which
says whether the same request may succeed when it is tried again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from langchain_core.exceptions import (
    ContextOverflowError,
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelError,
    ModelInvalidRequestError,
    ModelNotFoundError,
    ModelRateLimitError,
    ModelTimeoutError,
)

from fitrouter.errors import (
    AllModelsFailed,
    FitrouterError,
    InvalidRequest,
    NoEligibleModel,
    NotAuthorized,
    ProviderError,
    ProviderRejected,
    ProviderTimeout,
    StoreError,
    Unreachable,
)

_NO_MODEL = re.compile(r"\bno model '|\bmodel: '")


@contextmanager
def told() -> Iterator[None]:
    """What the router raises inside is raised as LangChain's, too."""
    try:
        yield
    except ModelError:
        raise
    except FitrouterError as error:
        raise _as_both(error).with_traceback(error.__traceback__) from error.__cause__


def _as_both(error: FitrouterError) -> FitrouterError:
    return _made(type(error), _kind(error), error.args, error.__dict__)


def _kind(error: FitrouterError) -> type[ModelError]:
    """What LangChain calls it."""
    found: type[ModelError] = ModelError
    match error:
        case FitrouterError(too_long=True):
            found = ContextOverflowError
        case InvalidRequest() if _NO_MODEL.search(str(error)):
            found = ModelNotFoundError
        case NoEligibleModel() | ProviderRejected() | InvalidRequest():
            found = ModelInvalidRequestError
        case NotAuthorized():
            found = ModelAuthenticationError
        case ProviderTimeout() | AllModelsFailed(timed_out=True):
            found = ModelTimeoutError
        case ProviderError(status=429):
            found = ModelRateLimitError
        case ProviderError() | AllModelsFailed() | StoreError():
            found = ModelAPIError
        case Unreachable():
            found = ModelConnectionError
        case _ if type(error) is FitrouterError:
            found = ModelAPIError  # a gateway that shuts down, and what else it may say one day
        case _:
            pass
    return found


def _made(ours: type[FitrouterError], theirs: type[ModelError], args: tuple[Any, ...], state: Any) -> FitrouterError:
    kind = _kinds.setdefault((ours, theirs), _both(ours, theirs))
    made: FitrouterError = kind.__new__(kind, *args)
    made.args = args
    made.__dict__.update(state)
    return made


def _both(ours: type[FitrouterError], theirs: type[ModelError]) -> Any:
    def reduced(self: FitrouterError) -> Any:
        """Pickled by its parts: workers hand exceptions to other processes."""
        return _made, (ours, theirs, self.args, self.__dict__)

    return type(ours.__name__, (ours, theirs), {"__doc__": ours.__doc__, "__reduce__": reduced})


_kinds: dict[tuple[type[FitrouterError], type[ModelError]], Any] = {}
