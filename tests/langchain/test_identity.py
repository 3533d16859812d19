"""Identity of LangChain's chat model: each channel and each entry point reaches the decision log, near and far.

The rule itself, in all its combinations, is tested in `tests/client/test_identity_rule.py`.
"""

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
from tests.kits.identity import (
    ANN,
    BOB,
    FIELDS,
    INVALID,
    UNSET,
    VALID,
    Deployment,
    deployed,
    documented_channels,
    fields,
    ids,
    mixtures,
)

from fitrouter.errors import InvalidRequest, NotAuthorized
from fitrouter.types import FeedbackKind, Identity
from fitrouter_integrations.client import Vote
from fitrouter_integrations.langchain import ChatFitrouter

# LangChain warns that its third version of events can change.
pytestmark = pytest.mark.filterwarnings("ignore::langchain_core._api.beta_decorator.LangChainBetaWarning")


@dataclass
class Asked:
    """A call: settings of the model, what wraps it, and config and keywords of the entry point."""

    target: Any
    settings: dict[str, Any] = field(default_factory=dict)
    wraps: list[Callable[[Any], Any]] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    keywords: dict[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> Any:
        """The model with its wraps."""
        return functools.reduce(lambda model, wrap: wrap(model), self.wraps, self.bare)

    @property
    def bare(self) -> ChatFitrouter:
        """The model as it was constructed."""
        return ChatFitrouter(router=self.target, **self.settings)

    @property
    def bound(self) -> Any:
        """The model bound to the keywords, for entry points that take none."""
        return self.model.bind(**self.keywords) if self.keywords else self.model


class Sum(BaseModel):
    """A typed answer."""

    value: int


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


# --- channels, the most explicit first -------------------------------------------------------------------------------

CHANNELS: dict[str, Callable[[Asked, Any], object]] = {
    "keywords": lambda asked, who: asked.keywords.update(who),
    "bind": lambda asked, who: asked.wraps.append(lambda model: model.bind(**who)),
    "config.metadata": lambda asked, who: asked.config.update(metadata=who),
    "with_config": lambda asked, who: asked.wraps.append(lambda model: model.with_config(metadata=who)),
    "config.configurable": lambda asked, who: asked.config.update(configurable=who),
    "constructor": lambda asked, who: asked.settings.update(who),
    "model_kwargs": lambda asked, who: asked.settings.update(model_kwargs=who),
}
KEYWORDS = ("keywords", "bind", "constructor")
"""Channels whose values are keyword arguments."""


# --- entry points: each makes one call -------------------------------------------------------------------------------


async def _drained(stream: Any) -> None:
    async for _ in stream:
        pass


async def _awaited_events(asked: Asked) -> None:
    stream = await asked.model.astream_events("hi", asked.config, version="v3", **asked.keywords)
    await _drained(stream)


async def _inner(asked: Asked) -> Any:
    async def call(text: str) -> Any:
        return await asked.bound.ainvoke(text)

    return await RunnableLambda(call).ainvoke("hi", asked.config)


ENTRIES: dict[str, Callable[[Asked], Any]] = {
    "invoke": lambda a: a.model.invoke("hi", a.config, **a.keywords),
    "ainvoke": lambda a: asyncio.run(a.model.ainvoke("hi", a.config, **a.keywords)),
    "stream": lambda a: list(a.model.stream("hi", a.config, **a.keywords)),
    "astream": lambda a: asyncio.run(_drained(a.model.astream("hi", a.config, **a.keywords))),
    "batch": lambda a: a.model.batch(["hi"], a.config, **a.keywords),
    "abatch": lambda a: asyncio.run(a.model.abatch(["hi"], a.config, **a.keywords)),
    "batch_as_completed": lambda a: list(a.model.batch_as_completed(["hi"], a.config, **a.keywords)),
    "abatch_as_completed": lambda a: asyncio.run(_drained(a.model.abatch_as_completed(["hi"], a.config, **a.keywords))),
    "astream_events v2": lambda a: asyncio.run(
        _drained(a.model.astream_events("hi", a.config, version="v2", **a.keywords))
    ),
    "astream_events v3": lambda a: asyncio.run(_awaited_events(a)),
    "stream_events v3": lambda a: list(a.model.stream_events("hi", a.config, version="v3", **a.keywords)),
    "bind_tools": lambda a: a.model.bind_tools([add], **a.keywords).invoke("hi", a.config),
    "bind_tools, stream": lambda a: list(a.model.bind_tools([add], **a.keywords).stream("hi", a.config)),
    "with_structured_output": lambda a: a.model.with_structured_output(Sum).invoke("hi", a.config, **a.keywords),
    "with_structured_output, ainvoke": lambda a: asyncio.run(
        a.model.with_structured_output(Sum, method="json_schema").ainvoke("hi", a.config, **a.keywords)
    ),
    "with_retry": lambda a: a.bound.with_retry().invoke("hi", a.config),
    "with_fallbacks": lambda a: a.bound.with_fallbacks([a.bound]).invoke("hi", a.config),
    "configurable_fields": lambda a: (
        a.bound
        if hasattr(a.bound, "bound")
        else a.bound.configurable_fields(temperature=ConfigurableField(id="temperature"))
    ).invoke("hi", a.config),
    "configurable_alternatives": lambda a: a.bound.configurable_alternatives(
        ConfigurableField(id="which"), default_key="one", other=a.bound
    ).invoke("hi", a.config),
    "chain": lambda a: (a.bound | RunnableLambda(lambda x: x)).invoke("hi", a.config),
    "chain, stream": lambda a: list((RunnableLambda(lambda x: x) | a.bound).stream("hi", a.config)),
    "in a function": lambda a: RunnableLambda(lambda text: a.bound.invoke(text)).invoke("hi", a.config),
    "streamed in a function": lambda a: RunnableLambda(lambda text: list(a.bound.stream(text))).invoke("hi", a.config),
    "in a coroutine": lambda a: asyncio.run(_inner(a)),
    "in parallel": lambda a: RunnableParallel(one=a.bound).invoke("hi", a.config),
}
FAR = ("invoke", "astream", "bind_tools", "in a function", "stream_events v3")
"""Entry points tested against a gateway too: behind the model nothing depends on the entry point."""


@pytest.fixture(scope="module", params=["near", "far"])
def desk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A router in this process, and a gateway."""
    with deployed(tmp_path_factory.mktemp("desk"), request.param) as made:
        yield made


def asked_by(desk: Deployment, **channels: Any) -> Asked:
    """A call with values in some channels."""
    asked = Asked(desk.target)
    for name, values in channels.items():
        CHANNELS[name](asked, values)
    return asked


def call(desk: Deployment, entry: str, **channels: Any) -> None:
    """Call the model at an entry point with values in some channels."""
    try:
        ENTRIES[entry](asked_by(desk, **channels))
    except Exception as error:
        error.add_note(f"{entry} with {channels}")
        raise


def values(channel: str, who: Identity, *names: str) -> dict[str, str]:
    """An identity by the names that are usual in a channel."""
    return fields(who, *names) if channel in KEYWORDS else ids(who, *names)


def user(channel: str, value: Any) -> dict[str, Any]:
    return {"user" if channel in KEYWORDS else "user_id": value}


# --- each channel at each entry point --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("desk", "entry"),
    [*itertools.product(["near"], ENTRIES), *itertools.product(["far"], FAR)],
    indirect=["desk"],
)
def test_each_entry_point_reads_every_channel(desk: Deployment, entry: str) -> None:
    """Fields given in different channels of one call are all in the decision log; each channel occurs in a call."""
    turn = list(ENTRIES).index(entry)
    for mixture in mixtures(dict.fromkeys(CHANNELS, FIELDS), turn):
        call(desk, entry, **{channel: values(channel, ANN, name) for channel, name in mixture.items()})
        desk.check(Identity(**fields(ANN, *mixture.values())), *mixture.values(), cell=(entry, mixture))


@pytest.mark.parametrize("desk", ["near", "far"], indirect=True)
def test_each_channel_carries_every_field(desk: Deployment) -> None:
    """User, role, task and session reach the decision log through any one channel."""
    for channel in CHANNELS:
        call(desk, "stream", **{channel: values(channel, ANN)})
        desk.check(ANN, cell=channel)


@pytest.mark.parametrize(
    ("desk", "entry"),
    [("near", "invoke"), ("near", "astream"), ("near", "bind_tools"), ("far", "stream")],
    indirect=["desk"],
)
def test_documented_order_of_channels(desk: Deployment, entry: str) -> None:
    """The channel further up in the table counts, field by field; those below fill in what it leaves out."""
    names = list(CHANNELS)
    pairs = itertools.combinations(names, 2) if entry == "invoke" else itertools.pairwise(names)
    for first, second in pairs:
        call(desk, entry, **{first: values(first, ANN, "user", "task"), second: values(second, BOB)})
        desk.check(Identity(user="ann", role="cook", task="triage", session="s2"), cell=(first, second))


def test_surrounding_config(desk: Deployment) -> None:
    """The config around a model counts where the model's own call leaves a field out, whole and streamed."""
    model, own = asked_by(desk).model, {"metadata": {"user_id": "bob"}}
    for inner in (lambda text: model.invoke(text, own), lambda text: list(model.stream(text, own))):
        for config in ({"metadata": ids(ANN)}, {"configurable": ids(ANN)}):
            RunnableLambda(inner).invoke("hi", config)
            desk.check(Identity(user="bob", role="nurse", task="triage", session="s1"), cell=config)


def test_concurrent_callers(desk: Deployment) -> None:
    """Each of forty calls in a batch, and of forty concurrent ones, has the user of its own config."""
    model = asked_by(desk).model
    configs = [{"metadata": {"user_id": f"user {i}"}} for i in range(40)]

    async def together() -> None:
        await asyncio.gather(*(model.ainvoke("hi", config) for config in configs))

    model.batch(["hi"] * 40, configs)
    asyncio.run(together())
    users = [identity.user for identity in desk.identities()]
    assert sorted(users) == sorted(2 * [desk.router._identities.subject("default", f"user {i}") for i in range(40)])


# --- valid and invalid names -----------------------------------------------------------------------------------------


def test_invalid_names_are_refused(desk: Deployment) -> None:
    """No model is called, and the error names the place: pydantic's for settings, `InvalidRequest` elsewhere."""
    entries = itertools.cycle(("invoke", "stream", "abatch", "bind_tools"))
    for channel, value in itertools.product(CHANNELS, INVALID.values()):
        error: Any = ValidationError if channel in {"constructor", "model_kwargs"} else InvalidRequest
        with pytest.raises(error, match=r"user(_id)?: (\w+ was given; give text|has )"):
            call(desk, next(entries), **{channel: user(channel, value)})
    desk.check_none()


def test_valid_names_are_accepted(desk: Deployment) -> None:
    """Text of any script, and whole numbers as text; None and empty text leave the field to the next channel."""
    entries = itertools.cycle(("invoke", "astream", "batch"))
    for channel, (value, text) in itertools.product(CHANNELS, VALID.values()):
        call(desk, next(entries), **{channel: user(channel, value)})
        desk.check(Identity(user=text), "user", cell=(channel, value))
    for channel, value in itertools.product(list(CHANNELS)[:-1], UNSET.values()):
        call(desk, next(entries), **{channel: user(channel, value), "model_kwargs": {"user": "bob"}})
        desk.check(Identity(user="bob"), "user", cell=(channel, value))


def test_metadata_argument_is_refused(desk: Deployment) -> None:
    """The error points to `config=`; LangChain would fail with an unspecific TypeError, or ignore it."""
    entries = ("invoke", "ainvoke", "stream", "astream", "batch", "abatch", "astream_events v3")
    for channel, entry in itertools.product(("keywords", "bind"), entries):
        with pytest.raises(InvalidRequest, match="config="):
            call(desk, entry, **{channel: {"metadata": ids(ANN)}})
    desk.check_none()


# --- the rest --------------------------------------------------------------------------------------------------------


def test_generate(desk: Deployment) -> None:
    """`generate` has no config: keywords, its `metadata=` and the surrounding config carry the identity."""
    model = asked_by(desk).bare
    messages = [[HumanMessage("hi")]]
    for more in ({"metadata": ids(ANN)}, fields(ANN)):
        model.generate(messages, **more)
        desk.check(ANN)
        asyncio.run(model.agenerate(messages, **more))
        desk.check(ANN)
    RunnableLambda(lambda _: model.generate(messages)).invoke("hi", {"configurable": ids(ANN)})
    desk.check(ANN)


def test_tenant(desk: Deployment) -> None:
    """Any channel can name a tenant of a router in this process; a gateway takes it from the key and refuses others."""
    for channel in CHANNELS:
        channels = {channel: {**values(channel, ANN), "tenant": "acme"}}
        if desk.far:
            with pytest.raises(NotAuthorized, match="from the key"):
                call(desk, "invoke", **channels)
            desk.check_none()
        else:
            call(desk, "invoke", **channels)
            desk.check(Identity(tenant="acme", user="ann", role="nurse", task="triage", session="s1"), cell=channel)


def test_session_of_a_thread(desk: Deployment) -> None:
    """At each entry point a thread is one session for a role and another for another role; keywords name it exactly."""
    for channel in ("keywords", "config.metadata", "config.configurable"):
        found = {}
        for role in ("nurse", "cook"):
            for entry in ("invoke", "stream", "astream", "bind_tools", "in a function", "stream_events v3"):
                call(desk, entry, **{channel: {"user_id": "ann", "role": role, "thread_id": "t9"}})
            (found[role],) = {identity.session for identity in desk.identities()}
        assert (found["nurse"] == found["cook"]) == (channel == "keywords")


def test_feedback_joins_the_answer(desk: Deployment) -> None:
    """The decision id in the reply's metadata is all that feedback needs, for whole and streamed answers."""
    model = asked_by(desk).bare
    whole = model.invoke("hi", user="ann")
    streamed = functools.reduce(lambda one, more: one + more, model.stream("hi", user="ann"))
    for reply in (whole, streamed):
        meta = reply.response_metadata
        assert meta["model_name"] in NAMES
        assert 0 < meta["propensity"] <= 1
        assert meta["cost_usd"] > 0
        assert model.feedback(Vote(decision_id=meta["decision_id"], kind=FeedbackKind.THUMB, value=1.0, user="ann"))
    desk.check(Identity(user="ann"), "user", steps=2)


def test_documented_channels() -> None:
    """The table of the documentation lists these channels for direct calls, in this order."""
    assert [name for name, cells in documented_channels("langchain.md").items() if cells[0] == "yes"] == list(CHANNELS)


@pytest.mark.parametrize("desk", ["near", "far"], indirect=True)
def test_the_tier_of_a_call(desk: Deployment) -> None:
    """The cost tier comes from the call, its config, or the constructor; what else metadata calls a tier is none."""
    desk.identities()
    model = ChatFitrouter(router=desk.target, tier="quality")
    model.invoke("hi")
    model.invoke("hi", tier="economy")
    model.bind(tier="economy").invoke("hi")
    list(model.stream("hi", config={"metadata": {"tier": "economy"}}))
    model.invoke("hi", config={"metadata": {"tier": "gold plan"}})
    ChatFitrouter(router=desk.target).invoke("hi", config={"configurable": {"tier": "economy"}})
    assert desk.tiers() == ["quality", "economy", "economy", "economy", "quality", "economy"]
    with pytest.raises(InvalidRequest, match="tier: got 'gold'"):
        model.invoke("hi", tier="gold")
