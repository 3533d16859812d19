"""Who asks, inside LangGraph and `create_agent`: each channel × each place × each entry point, near and far."""

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
from tests.kits.identity import ANN, BOB, NOTHING, REFUSED, Desk, fields, ids, standing, told
from tests.kits.langchain import Chat

from fitrouter.errors import InvalidRequest, NotAuthorized
from fitrouter.types import Identity
from fitrouter_integrations.langchain import ChatFitrouter, FitrouterMiddleware


@dataclass
class Who:
    """A runtime context."""

    user_id: Any = None
    role: Any = None
    task: Any = None
    session_id: Any = None
    tenant: Any = None


class Modelled(BaseModel):
    """The same for pydantic."""

    model_config = ConfigDict(extra="allow")


class Named(AgentMiddleware[Any, Any]):
    """Names the caller in the settings of the model's call."""

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
class Said:
    """A run that somebody starts: what is said on the way to the model, the more explicit first."""

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
    def named(self) -> list[Any]:
        return [Named(self.keywords)] if self.keywords else []


CHANNELS: dict[str, Callable[[Said, Any], object]] = {
    "keywords": lambda said, who: said.keywords.update(who),
    "context": lambda said, who: said.run.update(context=Who(**who)),
    "context, a dict": lambda said, who: said.run.update(context=who),
    "context, pydantic": lambda said, who: said.run.update(context=Modelled(**who)),
    "config.metadata": lambda said, who: said.config.update(metadata=who),
    "config.configurable": lambda said, who: said.config.update(configurable=who),
    "constructor": lambda said, who: said.settings.update(who),
}
SHAPES = ("context, a dict", "context, pydantic")
ORDER = [name for name in CHANNELS if name not in SHAPES]


# --- where a model is asked: each makes a graph, and says how often a run asks ---


def _graph(node: Any) -> Any:
    return StateGraph(MessagesState).add_node("ask", node).add_edge(START, "ask")


def _agent(said: Said) -> Any:
    return create_agent(said.model, tools=[add], middleware=said.named, name=said.name)


def _own_models(said: Said) -> Any:
    models = {name: Chat(name_=name) for name in NAMES}
    routed = FitrouterMiddleware(models, router=said.target, **said.settings)
    return create_agent(models["alpha"], tools=[add], middleware=[*said.named, routed], name=said.name)


def _node(said: Said) -> Any:
    def ask(state: Any) -> Any:
        return {"messages": [said.model.invoke(state["messages"], **said.keywords)]}

    return _graph(ask).compile()


def _configured(said: Said) -> Any:
    def ask(state: Any, config: RunnableConfig) -> Any:
        return {"messages": [said.model.invoke(state["messages"], config, **said.keywords)]}

    return _graph(ask).compile()


def _streaming(said: Said) -> Any:
    def ask(state: Any) -> Any:
        return {"messages": [*list(said.model.stream(state["messages"], **said.keywords))[:1]]}

    return _graph(ask).compile()


def _awaiting(said: Said) -> Any:
    async def ask(state: Any) -> Any:
        return {"messages": [await said.model.ainvoke(state["messages"], **said.keywords)]}

    return _graph(ask).compile()


def _subgraph(said: Said) -> Any:
    return _graph(_agent(said)).compile()


def _fanned(said: Said) -> Any:
    graph = StateGraph(MessagesState).add_node("ask", _agent(said))
    return graph.add_conditional_edges(START, lambda state: [Send("ask", state), Send("ask", state)]).compile()


PLACES: dict[str, tuple[Callable[[Said], Any], int]] = {
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
ENTRIES: dict[str, Callable[[Any, Said], Any]] = {
    "invoke": lambda graph, said: graph.invoke(HI, said.config, **said.run),
    "ainvoke": lambda graph, said: asyncio.run(graph.ainvoke(HI, said.config, **said.run)),
    "stream": lambda graph, said: list(graph.stream(HI, said.config, **said.run)),
    "stream of messages": lambda graph, said: list(graph.stream(HI, said.config, stream_mode="messages", **said.run)),
    "astream": lambda graph, said: asyncio.run(_drained(graph.astream(HI, said.config, **said.run))),
    "astream_events": lambda graph, said: asyncio.run(
        _drained(graph.astream_events(HI, said.config, version="v2", **said.run))
    ),
    "batch": lambda graph, said: graph.batch([HI], said.config, **said.run),
    "abatch": lambda graph, said: asyncio.run(graph.abatch([HI], said.config, **said.run)),
}
AWAITED = ("ainvoke", "astream", "astream_events", "abatch")
"""What an async node needs."""
FAR = ("invoke", "stream of messages", "astream")
"""What is asked of a gateway too: beyond the model nothing knows how a run was started."""
CELLS = [
    (where, place, entry)
    for where, entries in (("near", ENTRIES), ("far", FAR))
    for place in PLACES
    for entry in entries
    if place != "async node" or entry in AWAITED
]


@pytest.fixture(scope="module", params=["near", "far"])
def desk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A router in this process, and a gateway."""
    with standing(tmp_path_factory.mktemp("desk"), request.param) as made:
        yield made


def names_of(channel: str, who: Identity) -> dict[str, str]:
    return fields(who) if channel in {"keywords", "constructor"} else ids(who)


def ask(desk: Desk, place: str, entry: str, name: str | None = None, **channels: Any) -> int:
    """A run in which each channel says something; how often it asks."""
    said = Said(desk.target, name=name)
    for channel, who in channels.items():
        CHANNELS[channel](said, who)
    make, steps = PLACES[place]
    ENTRIES[entry](make(said), said)
    return steps


@pytest.mark.parametrize(("desk", "place", "entry"), CELLS, indirect=["desk"])
@pytest.mark.parametrize("channel", ORDER)
def test_each_channel_at_each_place(desk: Desk, channel: str, place: str, entry: str) -> None:
    """User, role, task and session are in the decision of every step of a run, however it is started."""
    steps = ask(desk, place, entry, **{channel: names_of(channel, ANN)})
    desk.check(ANN, steps=steps)


WRAPS: dict[str, Callable[[ChatFitrouter], Any]] = {
    "bind": lambda model: model.bind(**fields(ANN)),
    "with_config": lambda model: model.with_config(metadata=ids(ANN)),
    "model_kwargs": lambda model: ChatFitrouter(router=model.router, model_kwargs=fields(ANN)),
}


@pytest.mark.parametrize("place", [place for place in PLACES if place != "FitrouterMiddleware"])
@pytest.mark.parametrize("channel", WRAPS)
def test_a_model_that_says_it_itself(desk: Desk, channel: str, place: str) -> None:
    """What a model was made or bound with is in the decisions of graphs that it is put into, also below its tools."""
    said = Said(desk.target, wrap=WRAPS[channel])
    make, steps = PLACES[place]
    ENTRIES["astream"](make(said), said)
    desk.check(ANN, steps=steps)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("channel", SHAPES)
def test_contexts_of_any_shape(desk: Desk, channel: str, place: str) -> None:
    """A runtime context may be a dataclass, a dict or a pydantic model; without one the next channel counts."""
    steps = ask(desk, place, "ainvoke", **{channel: ids(ANN)})
    desk.check(ANN, steps=steps)
    ask(desk, place, "ainvoke", **{"config.metadata": ids(BOB)})
    desk.check(BOB, steps=steps)


@pytest.mark.parametrize("desk", ["near"], indirect=True)
@pytest.mark.parametrize("place", ["create_agent", "FitrouterMiddleware", "node that streams"])
@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(ORDER, 2)))
def test_the_more_explicit_channel_counts(desk: Desk, first: str, second: str, place: str) -> None:
    """Of two channels the one further up counts, field by field; the other fills in what it leaves out."""
    steps = ask(desk, place, "invoke", **{first: names_of(first, ANN), second: names_of(second, BOB)})
    desk.check(ANN, steps=steps)
    some = {name: value for name, value in names_of(first, ANN).items() if name in {"user", "user_id", "task"}}
    ask(desk, place, "ainvoke", **{first: some, second: names_of(second, BOB)})
    desk.check(Identity(user="ann", role="cook", task="triage", session="s2"), steps=steps)


@pytest.mark.parametrize("place", ["create_agent", "FitrouterMiddleware", "agent in a subgraph"])
def test_an_agents_name_is_its_role(desk: Desk, place: str) -> None:
    """Where nobody says a role the agent's name is one, on one line; a role that somebody says goes before."""
    steps = ask(desk, place, "invoke", name="tax\nanalyst " + "x" * 600)
    (role,) = {identity.role for identity in desk.seen()}
    assert role is not None
    assert role.startswith("tax analyst xxx")
    for channel in ORDER:
        ask(desk, place, "stream", name="tax analyst", **{channel: {"role": "nurse"}})
        desk.check(ANN, "role", steps=steps)


@pytest.mark.parametrize("entry", ["invoke", "ainvoke"])
def test_each_role_in_a_thread_has_a_session_of_its_own(desk: Desk, entry: str) -> None:
    """Agents that hand work on within a thread are drawn one by one; each keeps its session for its next turn."""
    said = Said(desk.target, config={"configurable": {"thread_id": f"{entry} t9"}})
    graph = StateGraph(MessagesState)
    for name in ("researcher", "writer"):
        graph.add_node(name, create_agent(said.model, tools=[add], name=name))
    team = graph.add_edge(START, "researcher").add_edge("researcher", "writer").compile(checkpointer=InMemorySaver())
    for _ in range(2):
        ENTRIES[entry](team, said)
    found: dict[str | None, set[str | None]] = {}
    for identity in desk.seen():
        found.setdefault(identity.role, set()).add(identity.session)
    assert {role: len(sessions) for role, sessions in found.items()} == {"researcher": 1, "writer": 1}
    assert found["researcher"] != found["writer"]


def test_a_session_that_is_named_goes_before_the_thread(desk: Desk) -> None:
    """LangGraph copies the thread into the metadata of runs; a session that somebody names stays what it is."""
    configurable = {"thread_id": "t9", **ids(ANN)}
    desk.check(ANN, steps=ask(desk, "create_agent", "invoke", **{"config.configurable": configurable}))


@pytest.mark.parametrize("channel", [name for name in CHANNELS if name != "constructor"])
@pytest.mark.parametrize("place", ["FitrouterMiddleware", "node that streams"])
def test_what_is_no_name_is_refused(desk: Desk, channel: str, place: str) -> None:
    """No step is asked, and the error names the place; what says nothing leaves it to the next channel."""
    name = "user" if channel == "keywords" else "user_id"
    for value in REFUSED.values():
        with pytest.raises(InvalidRequest, match=rf"{name}: (\w+ was given; give text|has )"):
            ask(desk, place, "invoke", **{channel: {name: value}})
    desk.nobody()
    for nothing in NOTHING.values():
        steps = ask(desk, place, "invoke", **{channel: {name: nothing}, "constructor": {"user": "bob"}})
        desk.check(BOB, "user", steps=steps)


@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize("place", ["create_agent", "FitrouterMiddleware"])
def test_a_tenant_near_and_far(desk: Desk, channel: str, place: str) -> None:
    """Any channel may name a tenant of a router in this process; a gateway knows it by the key, and this is said."""
    who = {**names_of(channel, ANN), "tenant": "acme"}
    if desk.far:
        with pytest.raises(NotAuthorized, match="by the key"):
            ask(desk, place, "invoke", **{channel: who})
        desk.nobody()
    else:
        steps = ask(desk, place, "invoke", **{channel: who})
        desk.check(Identity(tenant="acme", user="ann", role="nurse", task="triage", session="s1"), steps=steps)


def test_the_documentation_says_the_same() -> None:
    """Its table has these channels for graphs and agents, in this order."""
    found = [name for name, cells in told("langchain.md").items() if cells[1] == "yes"]
    assert [name for name in found if name not in WRAPS] == [*ORDER, "the agent's name"]
    assert set(WRAPS) < set(found)
