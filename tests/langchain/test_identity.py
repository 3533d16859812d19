"""Who asks, by LangChain's chat model: each channel × each entry point reaches the decision log, near and far."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("langchain", reason="install the extra `langchain`")

from langchain_core.messages import HumanMessage
from langchain_core.runnables import ConfigurableField, RunnableLambda, RunnableParallel
from langchain_core.tools import tool
from pydantic import BaseModel, ValidationError
from tests.kits.agents import NAMES
from tests.kits.identity import ANN, BOB, NOTHING, REFUSED, TAKEN, Desk, fields, ids, standing, told

from fitrouter.errors import InvalidRequest, NotAuthorized
from fitrouter.types import FeedbackKind, Identity
from fitrouter_integrations.client import Vote
from fitrouter_integrations.langchain import ChatFitrouter

# LangChain says of its third version of events that it may change.
pytestmark = pytest.mark.filterwarnings("ignore::langchain_core._api.beta_decorator.LangChainBetaWarning")


@dataclass
class Said:
    """A call that somebody makes: settings of the model, what wraps it, and config and keywords of the entry point."""

    target: Any
    settings: dict[str, Any] = field(default_factory=dict)
    wraps: list[Callable[[Any], Any]] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    keywords: dict[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> Any:
        """The model as its caller made it."""
        return functools.reduce(lambda model, wrap: wrap(model), self.wraps, self.bare)

    @property
    def bare(self) -> ChatFitrouter:
        """The model as it was constructed."""
        return ChatFitrouter(router=self.target, **self.settings)

    @property
    def bound(self) -> Any:
        """The model with the keywords, for what takes none."""
        return self.model.bind(**self.keywords) if self.keywords else self.model


class Sum(BaseModel):
    """A typed answer."""

    value: int


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


# --- how it is said: the more explicit first -------------------------------------------------------------------------


CHANNELS: dict[str, Callable[[Said, Any], object]] = {
    "keywords": lambda said, who: said.keywords.update(who),
    "bind": lambda said, who: said.wraps.append(lambda model: model.bind(**who)),
    "config.metadata": lambda said, who: said.config.update(metadata=who),
    "with_config": lambda said, who: said.wraps.append(lambda model: model.with_config(metadata=who)),
    "config.configurable": lambda said, who: said.config.update(configurable=who),
    "constructor": lambda said, who: said.settings.update(who),
    "model_kwargs": lambda said, who: said.settings.update(model_kwargs=who),
}


# --- where: each asks once -------------------------------------------------------------------------------------------


async def _drained(stream: Any) -> None:
    async for _ in stream:
        pass


async def _awaited_events(said: Said) -> None:
    stream = await said.model.astream_events("hi", said.config, version="v3", **said.keywords)
    await _drained(stream)


async def _inner(said: Said) -> Any:
    async def ask(text: str) -> Any:
        return await said.bound.ainvoke(text)

    return await RunnableLambda(ask).ainvoke("hi", said.config)


ENTRIES: dict[str, Callable[[Said], Any]] = {
    "invoke": lambda s: s.model.invoke("hi", s.config, **s.keywords),
    "ainvoke": lambda s: asyncio.run(s.model.ainvoke("hi", s.config, **s.keywords)),
    "stream": lambda s: list(s.model.stream("hi", s.config, **s.keywords)),
    "astream": lambda s: asyncio.run(_drained(s.model.astream("hi", s.config, **s.keywords))),
    "batch": lambda s: s.model.batch(["hi"], s.config, **s.keywords),
    "abatch": lambda s: asyncio.run(s.model.abatch(["hi"], s.config, **s.keywords)),
    "batch_as_completed": lambda s: list(s.model.batch_as_completed(["hi"], s.config, **s.keywords)),
    "abatch_as_completed": lambda s: asyncio.run(_drained(s.model.abatch_as_completed(["hi"], s.config, **s.keywords))),
    "astream_events v2": lambda s: asyncio.run(
        _drained(s.model.astream_events("hi", s.config, version="v2", **s.keywords))
    ),
    "astream_events v3": lambda s: asyncio.run(_awaited_events(s)),
    "stream_events v3": lambda s: list(s.model.stream_events("hi", s.config, version="v3", **s.keywords)),
    "bind_tools": lambda s: s.model.bind_tools([add], **s.keywords).invoke("hi", s.config),
    "bind_tools, stream": lambda s: list(s.model.bind_tools([add], **s.keywords).stream("hi", s.config)),
    "with_structured_output": lambda s: s.model.with_structured_output(Sum).invoke("hi", s.config, **s.keywords),
    "with_structured_output, ainvoke": lambda s: asyncio.run(
        s.model.with_structured_output(Sum, method="json_schema").ainvoke("hi", s.config, **s.keywords)
    ),
    "with_retry": lambda s: s.bound.with_retry().invoke("hi", s.config),
    "with_fallbacks": lambda s: s.bound.with_fallbacks([s.bound]).invoke("hi", s.config),
    "configurable_fields": lambda s: (
        s.bound
        if hasattr(s.bound, "bound")
        else s.bound.configurable_fields(temperature=ConfigurableField(id="temperature"))
    ).invoke("hi", s.config),
    "configurable_alternatives": lambda s: s.bound.configurable_alternatives(
        ConfigurableField(id="which"), default_key="one", other=s.bound
    ).invoke("hi", s.config),
    "chain": lambda s: (s.bound | RunnableLambda(lambda x: x)).invoke("hi", s.config),
    "chain, stream": lambda s: list((RunnableLambda(lambda x: x) | s.bound).stream("hi", s.config)),
    "in a function": lambda s: RunnableLambda(lambda text: s.bound.invoke(text)).invoke("hi", s.config),
    "streamed in a function": lambda s: RunnableLambda(lambda text: list(s.bound.stream(text))).invoke("hi", s.config),
    "in a coroutine": lambda s: asyncio.run(_inner(s)),
    "in parallel": lambda s: RunnableParallel(one=s.bound).invoke("hi", s.config),
}

FAR = [("far", entry) for entry in ("invoke", "astream", "bind_tools", "in a function", "stream_events v3")]
"""What is asked of a gateway too: beyond the model nothing knows how it was asked."""


@pytest.fixture(scope="module", params=["near", "far"])
def desk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A router in this process, and a gateway."""
    with standing(tmp_path_factory.mktemp("desk"), request.param) as made:
        yield made


def said_by(desk: Desk, **channels: Any) -> Said:
    """A call in which each channel says something."""
    said = Said(desk.target)
    for name, who in channels.items():
        CHANNELS[name](said, who)
    return said


def names_of(channel: str, who: Identity) -> dict[str, str]:
    return fields(who) if channel in {"keywords", "bind", "constructor"} else ids(who)


@pytest.mark.parametrize(("desk", "entry"), [*itertools.product(["near"], ENTRIES), *FAR], indirect=["desk"])
@pytest.mark.parametrize("channel", CHANNELS)
def test_each_channel_at_each_entry_point(desk: Desk, channel: str, entry: str) -> None:
    """User, role, task and session are in the decision log, whichever way they were said and wherever it was asked."""
    ENTRIES[entry](said_by(desk, **{channel: names_of(channel, ANN)}))
    desk.check(ANN)


# --- which counts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("desk", "entry"),
    [("near", "invoke"), ("near", "astream"), ("near", "bind_tools"), ("far", "stream")],
    indirect=["desk"],
)
@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(CHANNELS, 2)))
def test_the_more_explicit_channel_counts(desk: Desk, first: str, second: str, entry: str) -> None:
    """Of two channels the one further up in the table counts, field by field; the other fills in what it leaves out."""
    ENTRIES[entry](said_by(desk, **{first: names_of(first, ANN), second: names_of(second, BOB)}))
    desk.check(ANN)
    some = {name: value for name, value in names_of(first, ANN).items() if name in {"user", "user_id", "task"}}
    ENTRIES[entry](said_by(desk, **{first: some, second: names_of(second, BOB)}))
    desk.check(Identity(user="ann", role="cook", task="triage", session="s2"))


def test_a_surrounding_config_reaches_models_inside(desk: Desk) -> None:
    """What a chain's config says counts for a model inside that says nothing, and less than what it is told itself."""
    said = said_by(desk)
    outer = RunnableLambda(lambda text: said.model.invoke(text, {"metadata": {"user_id": "bob"}}))
    outer.invoke("hi", {"metadata": ids(ANN)})
    desk.check(Identity(user="bob", role="nurse", task="triage", session="s1"))


def test_callers_at_once_stay_apart(desk: Desk) -> None:
    """Each of forty calls in a batch, and of forty at once, has the user of its own config."""
    model = said_by(desk).model
    configs = [{"metadata": {"user_id": f"user {i}"}} for i in range(40)]

    async def together() -> None:
        await asyncio.gather(*(model.ainvoke("hi", config) for config in configs))

    model.batch(["hi"] * 40, configs)
    asyncio.run(together())
    users = [identity.user for identity in desk.seen()]
    assert sorted(users) == sorted(2 * [desk.router._identities.subject("default", f"user {i}") for i in range(40)])


# --- what is a name --------------------------------------------------------------------------------------------------


def user_of(channel: str, value: Any) -> dict[str, Any]:
    return {"user" if channel in {"keywords", "bind", "constructor"} else "user_id": value}


@pytest.mark.parametrize("value", REFUSED)
@pytest.mark.parametrize("channel", CHANNELS)
def test_what_is_no_name_is_refused(desk: Desk, channel: str, value: str) -> None:
    """Nobody is asked, and the error names the place; pydantic says it of settings."""
    error: Any = ValidationError if channel in {"constructor", "model_kwargs"} else InvalidRequest
    for entry in ("invoke", "stream", "abatch"):
        with pytest.raises(error, match=r"user(_id)?: (\w+ was given; give text|has )"):
            ENTRIES[entry](said_by(desk, **{channel: user_of(channel, REFUSED[value])}))
    desk.nobody()


@pytest.mark.parametrize("channel", CHANNELS)
def test_what_is_a_name_is_taken(desk: Desk, channel: str) -> None:
    """Text of any script, and whole numbers as text."""
    for given, read in TAKEN.values():
        for entry in ("invoke", "astream"):
            ENTRIES[entry](said_by(desk, **{channel: user_of(channel, given)}))
            desk.check(Identity(user=read), "user")


@pytest.mark.parametrize("channel", [name for name in CHANNELS if name != "model_kwargs"])
def test_nothing_is_no_answer(desk: Desk, channel: str) -> None:
    """None and empty text leave it to the next channel."""
    for nothing in NOTHING.values():
        for entry in ("invoke", "astream"):
            ENTRIES[entry](said_by(desk, **{channel: user_of(channel, nothing), "model_kwargs": {"user": "bob"}}))
            desk.check(Identity(user="bob"), "user")


@pytest.mark.parametrize("entry", ["invoke", "ainvoke", "stream", "astream", "batch", "abatch", "astream_events v3"])
def test_metadata_as_an_argument_says_where_it_belongs(desk: Desk, entry: str) -> None:
    """LangChain would fail with a TypeError that names nothing, or lose it."""
    for channel in ("keywords", "bind"):
        said = said_by(desk, **{channel: {"metadata": ids(ANN)}})
        with pytest.raises(InvalidRequest, match="config="):
            ENTRIES[entry](said)
    desk.nobody()


@pytest.mark.parametrize("awaited", [False, True])
def test_generate_takes_keywords_and_metadata(desk: Desk, awaited: bool) -> None:
    """`generate` has no config: keywords, its `metadata=`, and what stands around it say who asks."""

    def generate(model: ChatFitrouter, **more: Any) -> Any:
        asked = [[HumanMessage("hi")]]
        return asyncio.run(model.agenerate(asked, **more)) if awaited else model.generate(asked, **more)

    model = said_by(desk).bare
    for more in ({"metadata": ids(ANN)}, fields(ANN)):
        generate(model, **more)
        desk.check(ANN)
    if not awaited:
        RunnableLambda(lambda _: generate(model)).invoke("hi", {"configurable": ids(ANN)})
        desk.check(ANN)


def test_a_tenant_near_and_far(desk: Desk) -> None:
    """Any channel may name a tenant of a router in this process; a gateway knows it by the key, and this is said."""
    for channel in CHANNELS:
        said = said_by(desk, **{channel: {**names_of(channel, ANN), "tenant": "acme"}})
        if desk.far:
            with pytest.raises(NotAuthorized, match="by the key"):
                ENTRIES["invoke"](said)
            desk.nobody()
        else:
            ENTRIES["invoke"](said)
            desk.check(Identity(tenant="acme", user="ann", role="nurse", task="triage", session="s1"))


@pytest.mark.parametrize("channel", ["keywords", "config.metadata", "config.configurable"])
def test_a_thread_is_a_session_of_each_role(desk: Desk, channel: str) -> None:
    """At each entry point a thread is the same session for a role, and another for another role; keywords name it."""
    found = {}
    for role in ("nurse", "cook"):
        for entry in ("invoke", "stream", "astream", "bind_tools", "in a function", "stream_events v3"):
            ENTRIES[entry](said_by(desk, **{channel: {"user_id": "ann", "role": role, "thread_id": "t9"}}))
        sessions = {identity.session for identity in desk.seen()}
        assert len(sessions) == 1
        found[role] = sessions.pop()
    assert (found["nurse"] == found["cook"]) == (channel == "keywords")


def test_feedback_joins_the_answer(desk: Desk) -> None:
    """The decision id in the reply's metadata is what feedback needs, whole and streamed."""
    model = said_by(desk).bare
    whole = model.invoke("hi", user="ann")
    streamed = functools.reduce(lambda one, more: one + more, model.stream("hi", user="ann"))
    for reply in (whole, streamed):
        meta = reply.response_metadata
        assert meta["model_name"] in NAMES
        assert 0 < meta["propensity"] <= 1
        assert meta["cost_usd"] > 0
        assert model.feedback(Vote(decision_id=meta["decision_id"], kind=FeedbackKind.THUMB, value=1.0, user="ann"))
    desk.check(Identity(user="ann"), "user", steps=2)


def test_the_documentation_says_the_same() -> None:
    """Its table has these channels for direct calls, in this order."""
    assert [name for name, cells in told("langchain.md").items() if cells[0] == "yes"] == list(CHANNELS)
