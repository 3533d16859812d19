"""Identity inside LangGraph and `create_agent`: channels, places and entry points reach the decision log, near and far.

The rule itself, in all its combinations, is tested in `tests/client/test_identity_rule.py`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("langchain", reason="install the extra `langchain`")

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Send
from pydantic import BaseModel, ConfigDict
from tests.kits.agents import NAMES
from tests.kits.identity import (
    ANN,
    BOB,
    FIELDS,
    INVALID,
    UNSET,
    Deployment,
    deployed,
    documented_channels,
    fields,
    ids,
    mixtures,
)
from tests.kits.langchain import Chat

from fitrouter.errors import InvalidRequest, NotAuthorized
from fitrouter.types import Identity
from fitrouter_integrations.langchain import ChatFitrouter, FitrouterMiddleware


@dataclass
class Context:
    """A runtime context."""

    user_id: Any = None
    role: Any = None
    task: Any = None
    session_id: Any = None
    tenant: Any = None


class ContextModel(BaseModel):
    """A runtime context of pydantic."""

    model_config = ConfigDict(extra="allow")


class Keywords(AgentMiddleware[Any, Any]):
    """Puts the identity into the settings of the model's call."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__()
        self.settings = settings

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return handler(request.override(model_settings=self.settings))

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return await handler(request.override(model_settings=self.settings))


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@dataclass
class Asked:
    """A run of a graph: keywords of the model's call, arguments of the run, its config, settings of the model."""

    target: Any
    keywords: dict[str, Any] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    name: str | None = None
    wrap: Callable[[Any], Any] = lambda model: model

    @property
    def model(self) -> Any:
        return self.wrap(ChatFitrouter(router=self.target, **self.settings))

    @property
    def middleware(self) -> list[Any]:
        return [Keywords(self.keywords)] if self.keywords else []


CHANNELS: dict[str, Callable[[Asked, Any], object]] = {
    "keywords": lambda asked, who: asked.keywords.update(who),
    "context": lambda asked, who: asked.run.update(context=Context(**who)),
    "config.metadata": lambda asked, who: asked.config.update(metadata=who),
    "config.configurable": lambda asked, who: asked.config.update(configurable=who),
    "constructor": lambda asked, who: asked.settings.update(who),
}
"""The most explicit first."""
SHAPES: dict[str, Callable[[Any], Any]] = {
    "a dataclass": lambda who: Context(**who),
    "a dict": dict,
    "pydantic": lambda who: ContextModel(**who),
}
"""Kinds of runtime context."""


# --- places: each makes a graph with a known number of model calls in a run ------------------------------------------


def _graph(node: Any) -> Any:
    return StateGraph(MessagesState).add_node("ask", node).add_edge(START, "ask")


def _agent(asked: Asked) -> Any:
    return create_agent(asked.model, tools=[add], middleware=asked.middleware, name=asked.name)


def _own_models(asked: Asked) -> Any:
    models = {name: Chat(name_=name) for name in NAMES}
    routed = FitrouterMiddleware(models, router=asked.target, **asked.settings)
    return create_agent(models["alpha"], tools=[add], middleware=[*asked.middleware, routed], name=asked.name)


def _node(asked: Asked) -> Any:
    def ask(state: Any) -> Any:
        return {"messages": [asked.model.invoke(state["messages"], **asked.keywords)]}

    return _graph(ask).compile()


def _configured(asked: Asked) -> Any:
    def ask(state: Any, config: RunnableConfig) -> Any:
        return {"messages": [asked.model.invoke(state["messages"], config, **asked.keywords)]}

    return _graph(ask).compile()


def _streaming(asked: Asked) -> Any:
    def ask(state: Any) -> Any:
        return {"messages": [*list(asked.model.stream(state["messages"], **asked.keywords))[:1]]}

    return _graph(ask).compile()


def _awaiting(asked: Asked) -> Any:
    async def ask(state: Any) -> Any:
        return {"messages": [await asked.model.ainvoke(state["messages"], **asked.keywords)]}

    return _graph(ask).compile()


def _subgraph(asked: Asked) -> Any:
    return _graph(_agent(asked)).compile()


def _fanned(asked: Asked) -> Any:
    graph = StateGraph(MessagesState).add_node("ask", _agent(asked))
    return graph.add_conditional_edges(START, lambda state: [Send("ask", state), Send("ask", state)]).compile()


PLACES: dict[str, tuple[Callable[[Asked], Any], int]] = {
    "create_agent": (_agent, 2),
    "FitrouterMiddleware": (_own_models, 2),
    "node": (_node, 1),
    "node with a config": (_configured, 1),
    "node that streams": (_streaming, 1),
    "async node": (_awaiting, 1),
    "agent in a subgraph": (_subgraph, 2),
    "agents side by side": (_fanned, 4),
}


async def _drained(stream: Any) -> None:
    async for _ in stream:
        pass


HI = {"messages": [("user", "2 + 3?")]}
ENTRIES: dict[str, Callable[[Any, Asked], Any]] = {
    "invoke": lambda graph, asked: graph.invoke(HI, asked.config, **asked.run),
    "ainvoke": lambda graph, asked: asyncio.run(graph.ainvoke(HI, asked.config, **asked.run)),
    "stream": lambda graph, asked: list(graph.stream(HI, asked.config, **asked.run)),
    "stream of messages": lambda graph, asked: list(
        graph.stream(HI, asked.config, stream_mode="messages", **asked.run)
    ),
    "astream": lambda graph, asked: asyncio.run(_drained(graph.astream(HI, asked.config, **asked.run))),
    "astream_events": lambda graph, asked: asyncio.run(
        _drained(graph.astream_events(HI, asked.config, version="v2", **asked.run))
    ),
    "batch": lambda graph, asked: graph.batch([HI], asked.config, **asked.run),
    "abatch": lambda graph, asked: asyncio.run(graph.abatch([HI], asked.config, **asked.run)),
}
AWAITED = ("ainvoke", "astream", "astream_events", "abatch")
"""Entry points that an async node needs."""
FAR = ("invoke", "stream of messages", "astream")
"""Entry points tested against a gateway too: behind the model nothing depends on the entry point."""


@pytest.fixture(scope="module", params=["near", "far"])
def desk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A router in this process, and a gateway."""
    with deployed(tmp_path_factory.mktemp("desk"), request.param) as made:
        yield made


def values(channel: str, who: Identity, *names: str) -> dict[str, str]:
    """An identity by the names that are usual in a channel."""
    return fields(who, *names) if channel in {"keywords", "constructor"} else ids(who, *names)


def run(desk: Deployment, place: str, entry: str, name: str | None = None, **channels: Any) -> int:
    """Run a graph with values in some channels; the number of its model calls."""
    asked = Asked(desk.target, name=name)
    for channel, who in channels.items():
        CHANNELS[channel](asked, who)
    return started(asked, place, entry)


def started(asked: Asked, place: str, entry: str) -> int:
    """Run a graph; the number of its model calls."""
    make, steps = PLACES[place]
    try:
        ENTRIES[entry](make(asked), asked)
    except Exception as error:
        error.add_note(f"{place}, {entry}: {asked}")
        raise
    return steps


# --- each channel at each place --------------------------------------------------------------------------------------


@pytest.mark.parametrize("desk", ["near", "far"], indirect=True)
@pytest.mark.parametrize("place", PLACES)
def test_each_place_reads_every_channel(desk: Deployment, place: str) -> None:
    """At each entry point fields given in different channels are in every decision; each channel occurs in a run."""
    for turn, entry in enumerate(FAR if desk.far else ENTRIES):
        if place == "async node" and entry not in AWAITED:
            continue
        for mixture in mixtures(dict.fromkeys(CHANNELS, FIELDS), turn):
            channels = {channel: values(channel, ANN, name) for channel, name in mixture.items()}
            steps = run(desk, place, entry, **channels)
            names = mixture.values()
            desk.check(Identity(**fields(ANN, *names)), *names, steps=steps, cell=(place, entry, mixture))


@pytest.mark.parametrize("place", PLACES)
def test_each_channel_carries_every_field(desk: Deployment, place: str) -> None:
    """User, role, task and session are in the decision of every step of a run through any one channel."""
    for channel in CHANNELS:
        steps = run(desk, place, "astream", **{channel: values(channel, ANN)})
        desk.check(ANN, steps=steps, cell=(place, channel))


WRAPS: dict[str, Callable[[ChatFitrouter], Any]] = {
    "bind": lambda model: model.bind(**fields(ANN)),
    "with_config": lambda model: model.with_config(metadata=ids(ANN)),
    "model_kwargs": lambda model: ChatFitrouter(router=model.router, model_kwargs=fields(ANN)),
}


@pytest.mark.parametrize("channel", WRAPS)
def test_identity_of_the_model_itself(desk: Deployment, channel: str) -> None:
    """The identity of a model that was bound or constructed with one reaches graphs around it, also below its tools."""
    for place in PLACES:
        if place != "FitrouterMiddleware":
            steps = started(Asked(desk.target, wrap=WRAPS[channel]), place, "astream")
            desk.check(ANN, steps=steps, cell=place)


def test_shapes_of_the_runtime_context(desk: Deployment) -> None:
    """A runtime context can be a dataclass, a dict or a pydantic model; without one the next channel counts."""
    for place, (shape, make) in itertools.product(PLACES, SHAPES.items()):
        steps = started(Asked(desk.target, run={"context": make(ids(ANN))}), place, "ainvoke")
        desk.check(ANN, steps=steps, cell=(place, shape))
        run(desk, place, "ainvoke", **{"config.metadata": ids(BOB)})
        desk.check(BOB, steps=steps, cell=place)


@pytest.mark.parametrize("desk", ["near"], indirect=True)
@pytest.mark.parametrize("place", ["create_agent", "FitrouterMiddleware", "node that streams"])
def test_documented_order_of_channels(desk: Deployment, place: str) -> None:
    """The channel further up in the table counts, field by field; those below fill in what it leaves out."""
    for first, second in itertools.combinations(CHANNELS, 2):
        channels = {first: values(first, ANN, "user", "task"), second: values(second, BOB)}
        steps = run(desk, place, "invoke", **channels)
        expected = Identity(user="ann", role="cook", task="triage", session="s2")
        desk.check(expected, steps=steps, cell=(place, first, second))


# --- the rest --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["create_agent", "FitrouterMiddleware", "agent in a subgraph"])
def test_agent_name_is_the_default_role(desk: Deployment, place: str) -> None:
    """Without a role in any channel the agent's name is the role, on one line."""
    steps = run(desk, place, "invoke", name="tax\nanalyst " + "x" * 600)
    (role,) = {identity.role for identity in desk.identities()}
    assert role is not None
    assert role.startswith("tax analyst xxx")
    for channel in CHANNELS:
        run(desk, place, "stream", name="tax analyst", **{channel: {"role": "nurse"}})
        desk.check(ANN, "role", steps=steps, cell=channel)


@pytest.mark.parametrize("entry", ["invoke", "ainvoke"])
def test_each_role_in_a_thread_has_its_own_session(desk: Deployment, entry: str) -> None:
    """Agents that hand over within a thread are routed separately; each keeps its session for its next turn."""
    asked = Asked(desk.target, config={"configurable": {"thread_id": f"{entry} t9"}})
    graph = StateGraph(MessagesState)
    for name in ("researcher", "writer"):
        graph.add_node(name, create_agent(asked.model, tools=[add], name=name))
    team = graph.add_edge(START, "researcher").add_edge("researcher", "writer").compile(checkpointer=InMemorySaver())
    for _ in range(2):
        ENTRIES[entry](team, asked)
    found: dict[str | None, set[str | None]] = {}
    for identity in desk.identities():
        found.setdefault(identity.role, set()).add(identity.session)
    assert {role: len(sessions) for role, sessions in found.items()} == {"researcher": 1, "writer": 1}
    assert found["researcher"] != found["writer"]


def test_named_session_overrides_the_thread(desk: Deployment) -> None:
    """LangGraph copies the thread into the metadata of runs; a session that is given explicitly is kept."""
    configurable = {"thread_id": "t9", **ids(ANN)}
    desk.check(ANN, steps=run(desk, "create_agent", "invoke", **{"config.configurable": configurable}))


@pytest.mark.parametrize("place", ["FitrouterMiddleware", "node that streams"])
def test_invalid_names_are_refused(desk: Deployment, place: str) -> None:
    """No model is called, and the error names the place; unset values leave the field to the next channel."""
    for channel in list(CHANNELS)[:-1]:
        name = "user" if channel == "keywords" else "user_id"
        for value in INVALID.values():
            with pytest.raises(InvalidRequest, match=rf"{name}: (\w+ was given; give text|has )"):
                run(desk, place, "invoke", **{channel: {name: value}})
        desk.check_none()
        for unset in UNSET.values():
            steps = run(desk, place, "invoke", **{channel: {name: unset}, "constructor": {"user": "bob"}})
            desk.check(BOB, "user", steps=steps, cell=(channel, unset))


@pytest.mark.parametrize("place", ["create_agent", "FitrouterMiddleware"])
def test_tenant(desk: Deployment, place: str) -> None:
    """Any channel can name a tenant of a router in this process; a gateway takes it from the key and refuses others."""
    for channel in CHANNELS:
        channels = {channel: {**values(channel, ANN), "tenant": "acme"}}
        if desk.far:
            with pytest.raises(NotAuthorized, match="from the key"):
                run(desk, place, "invoke", **channels)
            desk.check_none()
        else:
            steps = run(desk, place, "invoke", **channels)
            expected = Identity(tenant="acme", user="ann", role="nurse", task="triage", session="s1")
            desk.check(expected, steps=steps, cell=channel)


def test_documented_channels() -> None:
    """The table of the documentation lists these channels for graphs and agents, in this order."""
    found = [name for name, cells in documented_channels("langchain.md").items() if cells[1] == "yes"]
    assert [name for name in found if name not in WRAPS] == [*CHANNELS, "the agent's name"]
    assert set(WRAPS) < set(found)
