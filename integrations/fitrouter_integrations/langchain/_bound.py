"""`ChatFitrouter` with bound arguments, which keeps the identity when tools or a schema are bound on top."""

from __future__ import annotations

from typing import Any

from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableBinding

from fitrouter_integrations._identity import NAMES


class Bound(RunnableBinding[LanguageModelInput, AIMessage]):
    """The result of `bind` and `with_config` of a `ChatFitrouter`.

    LangChain's class passes `bind_tools` and `with_structured_output` on to the bare model, losing the identity.
    """

    @classmethod
    def lc_id(cls) -> list[str]:
        """The id of LangChain's own class, under which it is dumped."""
        return [*cls.get_lc_namespace(), "RunnableBinding"]

    def bind_tools(self, tools: Any, **kwargs: Any) -> Runnable[LanguageModelInput, AIMessage]:
        """See `ChatFitrouter`."""
        return self._configured(self.bound.bind_tools(tools, **self._identity() | kwargs))  # type: ignore[attr-defined]

    def with_structured_output(self, schema: Any, **kwargs: Any) -> Runnable[LanguageModelInput, Any]:
        """See `ChatFitrouter`."""
        return self._configured(self.bound.with_structured_output(schema, **self._identity() | kwargs))  # type: ignore[attr-defined]

    def _identity(self) -> dict[str, Any]:
        return {name: value for name, value in self.kwargs.items() if name in NAMES}

    def _configured(self, made: Runnable[LanguageModelInput, Any]) -> Runnable[LanguageModelInput, Any]:
        return made.with_config(self.config) if self.config else made
