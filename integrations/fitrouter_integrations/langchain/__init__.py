"""fitrouter for LangChain and LangGraph.

`ChatFitrouter` needs no more than langchain-core; `FitrouterMiddleware` brings LangChain's agents when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fitrouter_integrations.langchain._chat import ChatFitrouter

if TYPE_CHECKING:
    from fitrouter_integrations.langchain._callbacks import FitrouterCallbackHandler
    from fitrouter_integrations.langchain._middleware import FitrouterMiddleware

__all__ = ["ChatFitrouter", "FitrouterCallbackHandler", "FitrouterMiddleware"]


def __getattr__(name: str) -> Any:
    if name == "FitrouterCallbackHandler":
        from fitrouter_integrations.langchain._callbacks import FitrouterCallbackHandler

        return FitrouterCallbackHandler
    if name == "FitrouterMiddleware":
        from fitrouter_integrations.langchain._middleware import FitrouterMiddleware

        return FitrouterMiddleware
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
