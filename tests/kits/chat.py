"""ChatFitrouter over scripted models, in process and through a gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.kits.agents import NAMES, Agent
from tests.kits.gateway import make_router, serving

from fitrouter.router import Router
from fitrouter.stores.journal import MemoryJournal
from fitrouter.types import Chunk, Completion, ModelCard, Prices, Usage
from fitrouter_integrations.client import connect
from fitrouter_integrations.langchain import ChatFitrouter

HOW = ("invoke", "ainvoke", "stream", "astream")
"""Entry points of a model, and of a graph."""
PAIRS = (("near", "invoke"), ("far", "ainvoke"), ("near", "astream"), ("far", "stream"))
"""Place and entry point: each entry point once, each place whole and streamed."""
WHOLE = (("near", "ainvoke"), ("far", "invoke"))
"""The same for whole answers."""
ABLE = ("audio", "files", "images", "json", "streaming", "tools", "video")


class Steps(Agent):
    """Calls the first tool until `steps` results are there, `width` calls at a time; then says how many there were."""

    def __init__(self, steps: int = 1, width: int = 1) -> None:
        super().__init__()
        self.steps, self.width = steps, width

    def _answer(self, call: Any) -> Any:
        message, reason = super()._answer(call)
        if reason == "tool_calls":
            (first,) = message["tool_calls"]
            more = [{**first, "id": f"{first['id']}_{i}"} for i in range(1, self.width)]
            message = {**message, "content": "Let me look.", "tool_calls": [first, *more]}
        return message, reason

    def _tool(self, params: Any, last: Any) -> Any:
        history = self.calls[-1].messages
        turn = max(i for i, message in enumerate(history) if message["role"] == "user")
        done = sum(message["role"] == "tool" for message in history[turn:])
        self.number = 3 + done  # the same call again would be a sign of a stuck agent
        return params["tools"][0] if params.get("tools") and done < self.steps * self.width else None

    async def _pieces(self, message: Any, reason: str, usage: Any) -> Any:
        if message.get("tool_calls") and message["content"]:
            yield Chunk(delta={"role": "assistant", "content": message["content"]})
        async for piece in super()._pieces(message, reason, usage):
            yield piece


class Says:
    """Answers with one message, whole or in the given deltas."""

    def __init__(self, message: dict[str, Any], deltas: list[dict[str, Any]] | None = None) -> None:
        self.message, self.deltas = {"role": "assistant", "content": "", **message}, deltas
        self.calls: list[Any] = []

    async def complete(self, call: Any) -> Any:
        self.calls.append(call)
        reason = "tool_calls" if self.message.get("tool_calls") else "stop"
        usage = Usage(prompt_tokens=7, completion_tokens=11)
        if not call.stream:
            return Completion(message=self.message, finish_reason=reason, usage=usage)

        async def pieces() -> Any:
            for delta in self.deltas or [self.message]:
                yield Chunk(delta=delta)
            yield Chunk(finish_reason=reason)
            yield Chunk(usage=usage)

        return pieces()

    async def aclose(self) -> None:
        """Nothing is open."""


@contextmanager
def chat(folder: Path, where: str, provider: Any, **more: Any) -> Iterator[tuple[ChatFitrouter, Router]]:
    """The chat model over three scripted models, `near` (in process) or `far` (through a gateway), and its router."""
    names, able = more.pop("names", NAMES), more.pop("able", ABLE)
    window = more.pop("window", 128_000)
    cards = [
        ModelCard(
            name=name,
            provider="agent",
            target=name,
            capabilities=able,
            prices=Prices(input=1.0, output=2.0),
            context_window=window,
        )
        for name in names
    ]
    router = make_router(folder, {"agent": provider}, models=cards, timers=more.pop("timers", None))
    if where == "near":
        with connect(router):
            yield ChatFitrouter(router=router, **more), router
        return
    with serving(router) as url, connect(url):
        yield ChatFitrouter(router=url, **more), router


def events(router: Router, kind: type[Any]) -> list[Any]:
    """The events of the journal."""
    assert isinstance(router._journal, MemoryJournal)
    return [row.event for row in router._journal.tail(0, 100_000) if isinstance(row.event, kind)]


def asked(model: Any, how: str, *arguments: Any, **named: Any) -> Any:
    """The answer of a model, or the final state of a graph, by any entry point; chunks are joined."""
    if how == "invoke":
        return model.invoke(*arguments, **named)
    if how == "ainvoke":
        return asyncio.run(model.ainvoke(*arguments, **named))
    pieces = list(model.stream(*arguments, **named)) if how == "stream" else asyncio.run(_all(model, arguments, named))
    if isinstance(pieces[0], dict):
        return pieces[-1]
    whole = pieces[0]
    for piece in pieces[1:]:
        whole = whole + piece
    return whole


async def _all(model: Any, arguments: Any, named: Any) -> list[Any]:
    return [piece async for piece in model.astream(*arguments, **named)]


def sent(provider: Any) -> list[dict[str, Any]]:
    """The messages of the last call, as a provider sends them."""
    found: list[dict[str, Any]] = json.loads(json.dumps(provider.calls[-1].messages))
    return found
