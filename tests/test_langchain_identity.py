"""Who asks: every channel by which LangChain hands an identity down, at every entry point, reaches the decision log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain", reason="install the extra `langchain`")

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from tests.agents_kit import agent_router

from fitrouter.errors import InvalidRequest
from fitrouter.journal import MemoryJournal
from fitrouter.types import Decision
from fitrouter_integrations.client import connect
from fitrouter_integrations.langchain import ChatFitrouter


@dataclass
class Who:
    """A runtime context."""

    user_id: str = "ann"
    role: str = "nurse"
    task: str = "triage"


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Named(AgentMiddleware[Any, Any]):
    """Names the caller in the settings of the model's call."""

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return handler(request.override(model_settings={"user": "ann", "role": "nurse", "task": "triage"}))

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return await handler(request.override(model_settings={"user": "ann", "role": "nurse", "task": "triage"}))


GIVEN = {"user_id": "ann", "role": "nurse", "task": "triage", "thread_id": "t1"}
KEYWORDS = {"user": "ann", "role": "nurse", "task": "triage", "session": "t1"}


# --- how it is said: (model, config, keyword arguments) of a call ---

Said = tuple[Any, dict[str, Any], dict[str, Any]]
CHANNELS: dict[str, Callable[[ChatFitrouter], Said]] = {
    "metadata": lambda model: (model, {"metadata": GIVEN}, {}),
    "configurable": lambda model: (model, {"configurable": GIVEN}, {}),
    "keywords": lambda model: (model, {}, KEYWORDS),
    "bound": lambda model: (model.bind(**KEYWORDS), {}, {}),
    "with_config": lambda model: (model.with_config(metadata=GIVEN), {}, {}),
    "constructor": lambda model: (model.model_copy(update=KEYWORDS), {}, {}),
    "keywords over metadata": lambda model: (model, {"metadata": {"user_id": "bob", **GIVEN, "role": "x"}}, KEYWORDS),
    "metadata over configurable": lambda model: (
        model,
        {"metadata": GIVEN, "configurable": {"user_id": "bob", "role": "cook"}},
        {},
    ),
    "metadata over constructor": lambda model: (
        model.model_copy(update={"user": "bob", "role": "cook"}),
        {"metadata": GIVEN},
        {},
    ),
}


async def _drain(stream: Any) -> None:
    async for _ in stream:
        pass


# --- where: each takes (model, config, keyword arguments) and asks once ---

ENTRIES: dict[str, Callable[[Any, dict[str, Any], dict[str, Any]], object]] = {
    "invoke": lambda model, config, more: model.invoke("hi", config, **more),
    "ainvoke": lambda model, config, more: asyncio.run(model.ainvoke("hi", config, **more)),
    "stream": lambda model, config, more: list(model.stream("hi", config, **more)),
    "astream": lambda model, config, more: asyncio.run(_drain(model.astream("hi", config, **more))),
    "batch": lambda model, config, more: model.batch(["hi"], config, **more),
    "abatch": lambda model, config, more: asyncio.run(model.abatch(["hi"], config, **more)),
    "chain": lambda model, config, more: (model.bind(**more) | RunnableLambda(lambda x: x)).invoke("hi", config),
    "chain stream": lambda model, config, more: list(
        (model.bind(**more) | RunnableLambda(lambda x: x)).stream("hi", config)
    ),
    "tools": lambda model, config, more: (
        (model if hasattr(model, "bind_tools") else model.bound)
        .bind_tools([add], **{**getattr(model, "kwargs", {}), **more})
        .invoke("hi", {**getattr(model, "config", {}), **config})
    ),
    "events": lambda model, config, more: asyncio.run(_drain(model.astream_events("hi", config, version="v2", **more))),
}


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[tuple[ChatFitrouter, Callable[[], list[Decision]]]]:
    """A model over a router in this process, and what its journal says was decided."""
    router = agent_router(tmp_path)
    journal = router.journal
    assert isinstance(journal, MemoryJournal)
    with connect(router) as client:
        model = ChatFitrouter(router=router)

        def decisions() -> list[Decision]:
            asyncio.run(_settle(client, router))
            return [row.event for row in journal.tail(0, 1000) if isinstance(row.event, Decision)]

        yield model, decisions


async def _settle(client: Any, router: Any) -> None:
    await client._await(router.settled)


def _is_ann(router: Any, decision: Decision) -> None:
    identities = router.identities
    assert decision.identity.user == identities.subject("default", "ann")
    assert (decision.identity.role, decision.identity.task) == ("nurse", "triage")


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("channel", CHANNELS)
def test_every_channel_at_every_entry_point(asked: Any, channel: str, entry: str) -> None:
    """User, role, task and session are in the decision log, whichever way they were said."""
    model, decisions = asked
    speaker, config, more = CHANNELS[channel](model)
    ENTRIES[entry](speaker, config, more)
    found = decisions()
    assert found
    for decision in found:
        _is_ann(model.router, decision)
        assert decision.identity.session is not None


AGENTS: dict[str, Callable[[Any, dict[str, Any], dict[str, Any]], object]] = {
    "invoke": lambda agent, config, more: agent.invoke({"messages": [("user", "2+3?")]}, config, **more),
    "ainvoke": lambda agent, config, more: asyncio.run(agent.ainvoke({"messages": [("user", "2+3?")]}, config, **more)),
    "stream": lambda agent, config, more: list(agent.stream({"messages": [("user", "2+3?")]}, config, **more)),
    "stream of messages": lambda agent, config, more: list(
        agent.stream({"messages": [("user", "2+3?")]}, config, stream_mode="messages", **more)
    ),
    "astream": lambda agent, config, more: asyncio.run(
        _drain(agent.astream({"messages": [("user", "2+3?")]}, config, **more))
    ),
}
AGENT_CHANNELS: dict[str, tuple[dict[str, Any], dict[str, Any], list[Any]]] = {
    "context": ({}, {"context": Who()}, []),
    "context over metadata": ({"metadata": {"user_id": "bob", "role": "cook"}}, {"context": Who()}, []),
    "metadata": ({"metadata": GIVEN}, {}, []),
    "configurable": ({"configurable": GIVEN}, {}, []),
    "middleware": ({}, {}, [Named()]),
    "middleware over context": ({}, {"context": Who("bob", "cook", "soup")}, [Named()]),
}


@pytest.mark.parametrize("entry", AGENTS)
@pytest.mark.parametrize("channel", AGENT_CHANNELS)
def test_every_channel_inside_an_agent(asked: Any, channel: str, entry: str) -> None:
    """So it is in both turns of a LangGraph agent that calls a tool."""
    model, decisions = asked
    config, more, middleware = AGENT_CHANNELS[channel]
    agent = create_agent(model, tools=[add], context_schema=Who, middleware=middleware, name="helper")
    AGENTS[entry](agent, config, more)
    found = decisions()
    assert len(found) == 2
    for decision in found:
        _is_ann(model.router, decision)


def test_an_agents_name_is_its_role(asked: Any) -> None:
    """Where nobody says a role, the agent's name is one, and its thread is the session of both turns."""
    model, decisions = asked
    agent = create_agent(model, tools=[add], name="tax analyst")
    agent.invoke({"messages": [("user", "2+3?")]}, {"configurable": {"thread_id": "t9"}})
    first, second = decisions()
    assert first.identity.role == second.identity.role == "tax analyst"
    assert first.identity.session == second.identity.session is not None
    assert second.draw_id == first.draw_id


@pytest.mark.parametrize("entry", ["invoke", "ainvoke"])
def test_each_role_in_a_thread_has_a_session_of_its_own(asked: Any, entry: str) -> None:
    """Agents that hand work on within a thread are drawn one by one; each stays on its model when its turn comes again.

    A session that was named as one is left as it is.
    """
    model, decisions = asked
    graph = StateGraph(MessagesState)
    for name in ("researcher", "writer"):
        graph.add_node(name, create_agent(model, tools=[add], name=name))
    team = graph.add_edge(START, "researcher").add_edge("researcher", "writer").compile(checkpointer=InMemorySaver())
    for _ in range(2):
        AGENTS[entry](team, {"configurable": {"thread_id": "t9"}}, {})
    found: dict[str | None, list[Decision]] = {}
    for decision in decisions():
        found.setdefault(decision.identity.role, []).append(decision)
    assert set(found) == {"researcher", "writer"}
    for turns in found.values():
        assert len({turn.identity.session for turn in turns}) == 1
        assert {turn.draw_id for turn in turns} == {turns[0].id}
    assert found["researcher"][0].identity.session != found["writer"][0].identity.session
    before = len(decisions())
    for role in ("researcher", "writer"):
        model.invoke("hi", {"configurable": {"thread_id": "t9"}}, session="s1", role=role)
    assert len({decision.identity.session for decision in decisions()[before:]}) == 1


@pytest.mark.parametrize("entry", ["invoke", "ainvoke", "stream", "astream"])
def test_metadata_as_an_argument_says_where_it_belongs(asked: Any, entry: str) -> None:
    """LangChain would fail with a TypeError that names nothing."""
    model, _ = asked
    with pytest.raises(InvalidRequest, match="config="):
        ENTRIES[entry](model, {}, {"metadata": GIVEN})


def test_an_identity_that_is_no_text_is_refused(asked: Any) -> None:
    """A user must be text or a number."""
    model, _ = asked
    with pytest.raises(InvalidRequest, match="user_id: list"):
        model.invoke("hi", {"metadata": {"user_id": ["ann"]}})


def test_feedback_joins_the_answer(asked: Any) -> None:
    """The decision id in the reply's metadata is what feedback needs, whole and streamed."""
    from fitrouter.types import FeedbackKind
    from fitrouter_integrations.client import Vote

    model, decisions = asked
    whole = model.invoke("hi", user="ann")
    streamed = None
    for chunk in model.stream("hi", user="ann"):
        streamed = chunk if streamed is None else streamed + chunk
    assert streamed is not None
    for reply in (whole, streamed):
        meta = reply.response_metadata
        assert meta["model_name"] in {"alpha", "beta", "gamma"}
        assert 0 < meta["propensity"] <= 1
        assert meta["cost_usd"] > 0
        assert model.feedback(Vote(decision_id=meta["decision_id"], kind=FeedbackKind.THUMB, value=1.0, user="ann"))
    assert {d.id for d in decisions()} == {r.response_metadata["decision_id"] for r in (whole, streamed)}
