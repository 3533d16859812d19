"""A chat model with settings of its calls, which keeps who asks where tools or a schema come on top."""

from __future__ import annotations

from typing import Any

from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableBinding

from fitrouter_integrations._identity import NAMES


class Bound(RunnableBinding[LanguageModelInput, AIMessage]):
    """What `bind` and `with_config` make of a `ChatFitrouter`.

    LangChain's own hands `bind_tools` and `with_structured_output` on to the bare model: who asks would be lost.
    """

    @classmethod
    def lc_id(cls) -> list[str]:
        """Dumped as LangChain's own."""
        return [*cls.get_lc_namespace(), "RunnableBinding"]

    def bind_tools(self, tools: Any, **kwargs: Any) -> Runnable[LanguageModelInput, AIMessage]:
        """See `ChatFitrouter`."""
        return self._again(self.bound.bind_tools(tools, **self._who() | kwargs))  # type: ignore[attr-defined]

    def with_structured_output(self, schema: Any, **kwargs: Any) -> Runnable[LanguageModelInput, Any]:
        """See `ChatFitrouter`."""
        return self._again(self.bound.with_structured_output(schema, **self._who() | kwargs))  # type: ignore[attr-defined]

    def _who(self) -> dict[str, Any]:
        return {name: value for name, value in self.kwargs.items() if name in NAMES}

    def _again(self, made: Runnable[LanguageModelInput, Any]) -> Runnable[LanguageModelInput, Any]:
        return made.with_config(self.config) if self.config else made
