"""Router errors that are also LangChain's `ModelError`, which its retries and fallbacks understand.

An error keeps its own class, so `except fitrouter.errors.AllModelsFailed` still works, and gains one of LangChain's,
which says whether a retry of the same request may succeed.
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

from fitrouter.errors import FitrouterError, InvalidRequest
from fitrouter_integrations._errors import Kind, kind_of

_NO_MODEL = re.compile(r"\b(?:unknown|no) model '|\bmodel: '")
_CLASSES: dict[Kind, type[ModelError]] = {
    Kind.TOO_LONG: ContextOverflowError,
    Kind.INVALID: ModelInvalidRequestError,
    Kind.NOT_AUTHORIZED: ModelAuthenticationError,
    Kind.TIMEOUT: ModelTimeoutError,
    Kind.RATE_LIMITED: ModelRateLimitError,
    Kind.UNAVAILABLE: ModelAPIError,
    Kind.UNREACHABLE: ModelConnectionError,
}


@contextmanager
def translated() -> Iterator[None]:
    """Raise the router errors of a block as exceptions that are also LangChain's."""
    try:
        yield
    except ModelError:
        raise
    except FitrouterError as error:
        made = _made(type(error), _class_of(error), error.args, error.__dict__)
        raise made.with_traceback(error.__traceback__) from error.__cause__


def _class_of(error: FitrouterError) -> type[ModelError]:
    if isinstance(error, InvalidRequest) and _NO_MODEL.search(str(error)):
        return ModelNotFoundError
    # A plain FitrouterError comes from a gateway, for example while it shuts down.
    return _CLASSES.get(kind_of(error), ModelAPIError if type(error) is FitrouterError else ModelError)


def _made(ours: type[FitrouterError], theirs: type[ModelError], args: tuple[Any, ...], state: Any) -> FitrouterError:
    kind = _classes.setdefault((ours, theirs), _both(ours, theirs))
    made: FitrouterError = kind.__new__(kind, *args)
    made.args = args
    made.__dict__.update(state)
    return made


def _both(ours: type[FitrouterError], theirs: type[ModelError]) -> Any:
    def reduced(self: FitrouterError) -> Any:
        """Pickle by both base classes: this class is made at run time, and exceptions may go to other processes."""
        return _made, (ours, theirs, self.args, self.__dict__)

    return type(ours.__name__, (ours, theirs), {"__doc__": ours.__doc__, "__reduce__": reduced})


_classes: dict[tuple[type[FitrouterError], type[ModelError]], Any] = {}
