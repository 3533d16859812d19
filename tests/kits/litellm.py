"""Kit for tests of litellm: a registered provider, an observer, and a ban on outside connections."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import litellm
import pytest
from litellm.litellm_core_utils.logging_worker import GLOBAL_LOGGING_WORKER
from pydantic import BaseModel
from tests.kits.agents import Agent
from tests.kits.gateway import serving, wait_for
from tests.kits.home import stays_home

from fitrouter.router import Router
from fitrouter.stores.journal import MemoryJournal
from fitrouter.types import Decision, Execution
from fitrouter_integrations.client import connect
from fitrouter_integrations.litellm import FitrouterObserver, FitrouterProvider

AUTO = "fitrouter/auto"
HELLO = [{"role": "user", "content": "hello"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
        },
    }
]
OBSERVED = """
providers: {elsewhere: {kind: litellm}}
models:
  - {name: small, provider: elsewhere, target: openai/gpt-4o-mini, prices: {input: 1, output: 2}}
  - {name: gpt-4o, provider: elsewhere, target: openai/gpt-4o, prices: {input: 1, output: 2}}
encoder: hashing
scorer: {encoder: hashing}
"""


class Sum(BaseModel):
    """A typed answer."""

    value: int
    note: str


class Desk:
    """A registered provider and the router behind it."""

    def __init__(self, provider: FitrouterProvider, router: Router, agent: Agent) -> None:
        self.provider, self.router, self.agent = provider, router, agent

    def decisions(self) -> list[Decision]:
        return [event for event in events(self.router) if isinstance(event, Decision)]


class Fails(Agent):
    """Raises an error at once or after the first chunk."""

    def __init__(self, error: Exception, late: bool = False) -> None:
        super().__init__()
        self.error, self.late = error, late

    async def complete(self, call: Any) -> Any:
        if not self.late:
            raise self.error
        return self._broken(await super().complete(call))

    async def _broken(self, chunks: Any) -> Any:
        async for chunk in chunks:
            yield chunk
            raise self.error


def events(router: Router, kind: type = object) -> list[Any]:
    """The events of a router's journal."""
    assert isinstance(router._journal, MemoryJournal)
    return [row.event for row in router._journal.tail(0, 10_000) if isinstance(row.event, kind)]


def seen_by(observer: FitrouterObserver, number: int, kind: type = Execution) -> list[Any]:
    """Events of a kind in the journal of an observer's router, once there are enough."""

    def there() -> list[Any]:
        router = observer.client.backend.router  # type: ignore[attr-defined]
        found = [row.event for row in router._journal.tail(0, 1000) if isinstance(row.event, kind)]
        return found if len(found) >= number else []

    return wait_for(there)


def text(chunks: list[Any]) -> str:
    """The text of a stream."""
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def arguments(chunks: list[Any]) -> dict[int, str]:
    """The arguments of the tool calls of a stream."""
    found: dict[int, str] = {}
    for chunk in chunks:
        for call in (chunk.choices and chunk.choices[0].delta.tool_calls) or []:
            found[call.index] = found.get(call.index, "") + (call.function.arguments or "")
    return found


@contextmanager
def standing(router: Router, far: bool) -> Iterator[Any]:
    """A target: the router itself, or a gateway in front of it."""
    if not far:
        with connect(router):
            yield router
    else:
        with serving(router) as url, connect(url):
            yield url


@contextmanager
def observing(folder: Path) -> Iterator[FitrouterObserver]:
    """An observer of OpenAI's models, registered with litellm."""
    config = folder / "fitrouter.yaml"
    config.write_text(OBSERVED)
    with connect(config):
        made = FitrouterObserver(config)
        litellm.callbacks = [made]
        yield made
        assert made.flush()


@contextmanager
def at_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove other providers from litellm; fails on connections and lookups outside this machine."""
    monkeypatch.setattr(litellm, "custom_provider_map", [])
    monkeypatch.setattr(litellm, "suppress_debug_info", True)
    with stays_home(monkeypatch):
        yield


@asynccontextmanager
async def called_back() -> AsyncIterator[None]:
    """Removes litellm's callbacks and their task after the test."""
    yield
    await GLOBAL_LOGGING_WORKER.flush()
    await GLOBAL_LOGGING_WORKER.stop()
    litellm.logging_callback_manager._reset_all_callbacks()
