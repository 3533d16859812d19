"""Kit for tests of crews: scripted models, a router shared by many tests, and a ban on outside connections."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from crewai import Agent, Crew, Task
from crewai.tools import tool
from pydantic import BaseModel
from tests.kits import agents as agents_kit
from tests.kits.agents import agent_router
from tests.kits.gateway import serving
from tests.kits.home import stays_home

from fitrouter.router import Router
from fitrouter.stores.journal import MemoryJournal
from fitrouter.types import Call, Chunk, Completion, Decision, Usage
from fitrouter_integrations.client import connect
from fitrouter_integrations.crewai import FitrouterLLM

Script = Callable[[Call], "str | dict[str, Any] | Exception | None"]
"""What a model does: says a text, calls a tool with arguments, fails before its first byte, or what it always does."""


class Models(agents_kit.Agent):
    """Answer as agents' models do, where their script has nothing for a call."""

    def __init__(self) -> None:
        super().__init__()
        self.script: Script = lambda call: None

    async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
        if not isinstance(trouble := self.script(call), Exception):
            return await super().complete(call)
        self.calls.append(call)
        if call.stream:
            return _failing(trouble)
        raise trouble

    def _answer(self, call: Call) -> tuple[dict[str, Any], str]:
        told = self.script(call)
        if isinstance(told, str):
            return {"role": "assistant", "content": told}, "stop"
        if isinstance(told, dict):
            function = {"name": call.params["tools"][0]["function"]["name"], "arguments": json.dumps(told)}
            called = {"id": f"call_{len(self.calls)}", "type": "function", "function": function}
            return {"role": "assistant", "content": None, "tool_calls": [called]}, "tool_calls"
        return super()._answer(call)


async def _failing(trouble: Exception) -> AsyncIterator[Chunk]:
    raise trouble
    yield Chunk(usage=Usage())


class Place:
    """A router that many tests share, near or far.

    Args:
        router: what is behind it all.
        models: what is behind the router.
        target: what a crew's model is given.
    """

    def __init__(self, router: Router, models: Models, target: Any) -> None:
        self.router, self.models, self.target = router, models, target
        self._seen = 0

    def llm(self, **more: Any) -> FitrouterLLM:
        """A crew's model."""
        return FitrouterLLM(router=self.target, **more)

    def clean(self) -> None:
        """For the next test."""
        self.models.script = lambda call: None
        self.models.calls.clear()
        self._seen = len(self._all())

    def decisions(self) -> list[Decision]:
        """Of this test."""
        return self._all()[self._seen :]

    def _all(self) -> list[Decision]:
        journal = self.router._journal
        assert isinstance(journal, MemoryJournal)
        return [row.event for row in journal.tail(0, 100_000) if isinstance(row.event, Decision)]


@contextmanager
def place(folder: Path, *, far: bool, **more: Any) -> Iterator[Place]:
    """A router in this process, or behind a gateway on loopback."""
    models = Models()
    router = agent_router(folder, models, **more)
    if far:
        with serving(router) as url, connect(url):
            yield Place(router, models, url)
    else:
        with connect(router):
            yield Place(router, models, router)


@contextmanager
def nobody_leaves(folder: Path) -> Iterator[None]:
    """Asserts that nothing outside this machine is connected to or looked up; CrewAI's files go to the folder."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("CREWAI_STORAGE_DIR", str(folder / "crew"))
        patched.chdir(folder)
        with stays_home(patched):
            yield


class Sum(BaseModel):
    """A typed output."""

    value: int
    note: str


@tool("adder")
def adder(a: int, b: int) -> str:
    """Adds two numbers."""
    return f"{a + b}"


def agent(llm: Any, role: str = "Researcher", **more: Any) -> Agent:
    """An agent."""
    return Agent(role=role, goal="find out", backstory="a person", llm=llm, verbose=False, **more)


def task(who: Agent | None = None, what: str = "Say hello", **more: Any) -> Task:
    """A task."""
    return Task(description=what, expected_output="text", agent=who, **more)


def crew(agents: Sequence[Agent], tasks: Sequence[Task], **more: Any) -> Crew:
    """A crew."""
    return Crew(agents=list(agents), tasks=list(tasks), verbose=False, **more)
