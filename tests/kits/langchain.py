"""Scripted LangChain chat models: they call tools for a number of steps, fail, or are slow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import Field
from tests.kits.gateway import PATIENCE_S, make_router, serving

from fitrouter.router import Router
from fitrouter.routing.decider import Rules
from fitrouter.serving.attempts import Timers
from fitrouter.stores.journal import MemoryJournal
from fitrouter.types import ModelCard, Prices
from fitrouter_integrations.client import _client, connect
from fitrouter_integrations.langchain import FitrouterMiddleware

HOW = ("invoke", "ainvoke")
WHERE = ("near", "far")
PAIRS = (("near", "ainvoke"), ("far", "invoke"))
"""Place and entry point: each value of both once."""
FAIR = Rules(registry="r1", floor=1.0)
"""Every model is as likely as any other, whatever was learnt."""
said_where: ContextVar[str] = ContextVar("said_where", default="nowhere")


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


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
        if self.fails is not None and (error := self.fails(len(self.heard))) is not None:
            raise error
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


class Streamed(Chat):
    """Streams its answer word by word."""

    def _stream(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Iterator[Any]:
        for word in self._answer(messages, kwargs).text.split(" "):
            yield ChatGenerationChunk(message=AIMessageChunk(content=f"{word} "))


class Busy(Exception):
    """A rate limit error of a provider's client."""

    status_code = 429


class Refused(Exception):
    """An invalid request error of a provider's client."""

    status_code = 400


def router_over(folder: Path, models: Any, **more: Any) -> Router:
    """An in-memory router with cards of these names."""
    cards = [ModelCard(name=name, provider="agent", prices=Prices(input=1.0, output=2.0)) for name in models]
    timers = Timers(deadline_s=PATIENCE_S, first_token_s=PATIENCE_S, chunk_gap_s=PATIENCE_S)
    return make_router(folder, models=cards, **{"timers": timers, **more})


def routed(folder: Path, models: dict[str, Chat], **more: Any) -> tuple[FitrouterMiddleware, Router]:
    """The middleware over a router in this process."""
    router = router_over(folder, models, **more.pop("over", {}))
    return FitrouterMiddleware(models, router=router, **more), router


@contextmanager
def placed(where: str, folder: Path, models: dict[str, Chat], **more: Any) -> Iterator[tuple[Any, Router]]:
    """The middleware over a router in this process, or behind a gateway."""
    if where == "near":
        yield routed(folder, models, **more)
        return
    router = router_over(folder, models, **more.pop("over", {}))
    with serving(router) as url:
        middleware = FitrouterMiddleware(models, router=url, **more)
        yield middleware, router
        middleware.close()


def logged(router: Router, kind: type[Any]) -> list[Any]:
    """Events of a router in this process, once all are durable."""
    asyncio.run(connect(router)._await(router.settled))
    return written(router, kind)


def written(router: Router, kind: type[Any]) -> list[Any]:
    """Durable events of a router in this process or behind a gateway."""
    assert isinstance(router._journal, MemoryJournal)
    return [row.event for row in router._journal.tail(0, 100_000) if isinstance(row.event, kind)]


def team(**more: Any) -> dict[str, Chat]:
    return {name: Chat(name_=name, **more) for name in ("deep", "fast", "wide")}


def run(agent: Any, text: str = "2+3?", how: str = "invoke", config: Any = None, **more: Any) -> list[Any]:
    """The messages of an agent's run."""
    asked = {"messages": [("user", text)]}
    if how == "ainvoke":
        return asyncio.run(agent.ainvoke(asked, config, **more))["messages"]
    return agent.invoke(asked, config, **more)["messages"]


def answers(messages: list[Any]) -> list[AIMessage]:
    return [message for message in messages if isinstance(message, AIMessage)]


def close_all() -> None:
    """Close every router that a test connected to."""
    _client._close_all()
    _client._clients.clear()
