"""fitrouter for LangChain and LangGraph.

`ChatFitrouter` needs only langchain-core; the other names import LangChain's agents when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fitrouter_integrations.langchain._chat import ChatFitrouter

if TYPE_CHECKING:
    from fitrouter_integrations.langchain._callbacks import FitrouterCallbackHandler
    from fitrouter_integrations.langchain._middleware import FitrouterMiddleware

__all__ = ["ChatFitrouter", "FitrouterCallbackHandler", "FitrouterMiddleware"]


def __getattr__(name: str) -> Any:
    if module := {"FitrouterCallbackHandler": "_callbacks", "FitrouterMiddleware": "_middleware"}.get(name):
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
