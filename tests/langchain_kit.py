"""Chat models of LangChain for tests: they call tools for as many steps as they are told, fail, and are slow."""

from __future__ import annotations

import asyncio
import time
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import Field
from tests.gateway_kit import make_router

from fitrouter.attempts import Timers
from fitrouter.journal import MemoryJournal
from fitrouter.router import Router
from fitrouter.types import ModelCard, Prices
from fitrouter_integrations.client import connect
from fitrouter_integrations.langchain import AgentModels, FitrouterMiddleware
from fitrouter_integrations.langchain._agent_models import PARAMETERS

said_where: ContextVar[str] = ContextVar("said_where", default="nowhere")


class Chat(BaseChatModel):
    """Calls the first tool until `steps` results are there, then answers; `fails` says for which calls it raises."""

    name_: str = "chat"
    steps: int = 1
    fails: Any = None
    pause_s: float = 0.0
    heard: list[Any] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "chat"

    def bind_tools(self, tools: Any, *, tool_choice: Any = None, **kwargs: Any) -> Any:
        return self.bind(tools=[convert_to_openai_tool(each) for each in tools], tool_choice=tool_choice, **kwargs)

    def _answer(self, messages: list[Any], kwargs: dict[str, Any]) -> AIMessage:
        self.heard.append((said_where.get(), kwargs, messages))
        if self.fails is not None and self.fails(len(self.heard)):
            raise self.fails(len(self.heard))
        done = sum(message.type == "tool" for message in messages)
        usage = {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110}
        meta = {"model_name": f"{self.name_}-2026"}
        if (tools := kwargs.get("tools")) and done < self.steps:
            arguments = {"a": done, "b": 1} if tools[0]["function"]["name"] == "add" else {"value": 5}
            call = {"name": tools[0]["function"]["name"], "args": arguments, "id": f"call_{done}", "type": "tool_call"}
            return AIMessage("", tool_calls=[call], usage_metadata=usage, response_metadata=meta)
        return AIMessage(f"{self.name_} heard {messages[-1].text}", usage_metadata=usage, response_metadata=meta)

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        if self.pause_s:
            time.sleep(self.pause_s)
        return ChatResult(generations=[ChatGeneration(message=self._answer(messages, kwargs))])

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        await asyncio.sleep(self.pause_s)
        return ChatResult(generations=[ChatGeneration(message=self._answer(messages, kwargs))])


def routed(folder: Path, models: dict[str, Chat], **more: Any) -> tuple[FitrouterMiddleware, Router]:
    """The middleware over a router that keeps everything in memory."""
    timers = more.pop("timers", Timers(deadline_s=30.0))
    cards = [
        ModelCard(name=name, provider="agent", prices=Prices(input=1.0, output=2.0), parameters=PARAMETERS)
        for name in models
    ]
    router = make_router(folder, {"agent": AgentModels()}, models=cards, timers=timers, **more.pop("router", {}))
    return FitrouterMiddleware(models, router=router, **more), router


def logged(router: Router, kind: type[Any]) -> list[Any]:
    asyncio.run(connect(router)._await(router.settled))
    assert isinstance(router.journal, MemoryJournal)
    return [row.event for row in router.journal.tail(0, 100_000) if isinstance(row.event, kind)]


def team(**more: Any) -> dict[str, Chat]:
    return {name: Chat(name_=name, **more) for name in ("deep", "fast", "wide")}
