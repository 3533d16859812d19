"""fitrouter for LangChain and LangGraph.

`ChatFitrouter` needs only langchain-core; the other names import LangChain's agents when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fitrouter.errors import MissingExtra

try:
    from fitrouter_integrations.langchain._chat import ChatFitrouter
except ModuleNotFoundError as error:
    raise MissingExtra.of(error.name, "the LangChain adapter") from None

if TYPE_CHECKING:
    from fitrouter_integrations.langchain._callbacks import FitrouterCallbackHandler
    from fitrouter_integrations.langchain._middleware import FitrouterMiddleware

__all__ = ["ChatFitrouter", "FitrouterCallbackHandler", "FitrouterMiddleware"]


def __getattr__(name: str) -> Any:
    if module := {"FitrouterCallbackHandler": "_callbacks", "FitrouterMiddleware": "_middleware"}.get(name):
        try:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
        except ModuleNotFoundError as error:
            raise MissingExtra.of(error.name, name) from None
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
