"""fitrouter for LangChain and LangGraph."""

from __future__ import annotations

from fitrouter_integrations.langchain._chat import ChatFitrouter

__all__ = ["ChatFitrouter"]
