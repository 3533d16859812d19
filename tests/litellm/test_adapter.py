"""The litellm provider: `fitrouter/auto` as a model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import litellm
import pytest
from tests.kits.agents import Agent, agent_router
from tests.kits.gateway import make_router, serving
from tests.kits.litellm import (
    AUTO,
    HELLO,
    TOOLS,
    Desk,
    Fails,
    Sum,
    arguments,
    at_home,
    called_back,
    events,
    standing,
    text,
)

from fitrouter.errors import ProviderError, ProviderRejected, ProviderTimeout, ProviderUnavailable
from fitrouter.types import Decision, FeedbackKind, Identity, ModelCard
from fitrouter_integrations.client import Vote, connect
from fitrouter_integrations.litellm import handler, register

pytestmark = pytest.mark.filterwarnings("ignore")  # litellm's own


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with at_home(monkeypatch):
        yield


@pytest.fixture(autouse=True)
async def worker() -> AsyncIterator[None]:
    async with called_back():
        yield


@pytest.fixture(params=["near", "far"])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    """`fitrouter/…` over a router in this process, and over a gateway."""
    agent = Agent()
    router = agent_router(tmp_path, agent)
    with standing(router, request.param == "far") as target:
        yield Desk(register(target), router, agent)


def test_whole_answers_carry_the_decision(desk: Desk) -> None:
    """An answer has text, usage, model, decision id, propensity and cost; litellm counts that cost as its own."""
    answer = litellm.completion(model=AUTO, messages=HELLO)
    decision = desk.decisions()[-1]
    assert answer.choices[0].message.content == f"{answer.model} heard hello"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == 11
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 11
    assert answer.id == f"chatcmpl-{decision.id}"
    assert answer.model == decision.chosen
    assert answer.fitrouter["decision_id"] == decision.id
    assert answer.fitrouter["propensity"] == decision.propensity
    cost = (answer.usage.prompt_tokens + 2 * 11) / 1e6
    assert answer._hidden_params["response_cost"] == pytest.approx(cost)
    assert answer._hidden_params["fitrouter"]["propensity"] == decision.propensity
    assert answer.model_dump()["fitrouter"]["decision_id"] == decision.id


def test_streamed_answers_carry_the_decision(desk: Desk) -> None:
    """The first chunk says who answers, the last what it cost; usage comes once where it was asked for."""
    chunks = list(litellm.completion(model=AUTO, messages=HELLO, stream=True, stream_options={"include_usage": True}))
    decision = desk.decisions()[-1]
    assert text(chunks) == f"{decision.chosen} heard hello"
    assert {chunk.id for chunk in chunks} == {f"chatcmpl-{decision.id}"}
    assert chunks[0].fitrouter["decision_id"] == decision.id
    told = [chunk.fitrouter for chunk in chunks if getattr(chunk, "fitrouter", None)]
    tokens = [chunk.usage for chunk in chunks if getattr(chunk, "usage", None)]
    assert [usage.completion_tokens for usage in tokens] == [11]
    assert told[-1]["cost_usd"] == pytest.approx((tokens[0].prompt_tokens + 2 * 11) / 1e6)
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
    assert text(list(litellm.completion(model=AUTO, messages=HELLO, stream=True))).endswith("heard hello")


def test_tools_whole_and_streamed(desk: Desk) -> None:
    """A model calls a tool, whole and in pieces, and reads its result; litellm's own messages can be given back."""
    answer = litellm.completion(model=AUTO, messages=HELLO, tools=TOOLS, tool_choice="required")
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "tool_calls"
    assert message.tool_calls[0].function.name == "add"
    assert message.tool_calls[0].function.arguments == '{"a": 3, "b": 3}'
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "6"}
    final = litellm.completion(model=AUTO, messages=[*HELLO, message, result], tools=TOOLS)
    assert final.choices[0].message.content == f"{final.model} heard 6"
    assert desk.agent.calls[-1].messages[1]["tool_calls"][0]["function"]["name"] == "add"
    chunks = list(litellm.completion(model=AUTO, messages=HELLO, tools=TOOLS, stream=True))
    assert arguments(chunks) == {0: '{"a": 3, "b": 3}'}
    built = litellm.stream_chunk_builder(chunks)
    assert built.choices[0].message.tool_calls[0].function.name == "add"
    assert built.choices[0].finish_reason == "tool_calls"


def test_parameters_and_schemas_reach_the_model(desk: Desk) -> None:
    """Sampling options and a response format are the model's; litellm's own settings and identities are not."""
    answer = litellm.completion(
        model=AUTO,
        messages=HELLO,
        temperature=0.3,
        max_tokens=9,
        response_format=Sum,
        metadata={"role": "clerk"},
        task="sums",
        timeout=300,
    )
    assert Sum.model_validate_json(answer.choices[0].message.content) == Sum(value=3, note="hello")
    params = desk.agent.calls[-1].params
    assert (params["temperature"], params["max_tokens"]) == (0.3, 9)
    assert params["response_format"]["type"] == "json_schema"
    assert set(params) == {"temperature", "max_tokens", "response_format"}


def test_a_named_model_is_pinned(desk: Desk) -> None:
    """`fitrouter/NAME` asks that model and is logged as pinned."""
    assert litellm.completion(model="fitrouter/beta", messages=HELLO).model == "beta"
    assert desk.decisions()[-1].mode == "pinned"


async def test_async_and_blocking_calls_inside_a_running_loop(desk: Desk) -> None:
    """All four kinds of call work inside a running event loop, many at once, and none is lost or crossed."""
    whole = await litellm.acompletion(model=AUTO, messages=HELLO, tools=TOOLS)
    assert whole.choices[0].message.tool_calls[0].function.name == "add"
    stream = await litellm.acompletion(model=AUTO, messages=HELLO, tools=TOOLS, stream=True)
    assert arguments([chunk async for chunk in stream]) == {0: '{"a": 3, "b": 3}'}
    assert litellm.completion(model=AUTO, messages=HELLO).choices[0].message.content.endswith("heard hello")
    assert text(list(litellm.completion(model=AUTO, messages=HELLO, stream=True))).endswith("heard hello")
    asked = [[{"role": "user", "content": f"task {i}"}] for i in range(40)]
    answers = await asyncio.gather(*(litellm.acompletion(model=AUTO, messages=each) for each in asked))
    assert [each.choices[0].message.content.split(" heard ")[1] for each in answers] == [f"task {i}" for i in range(40)]
    assert len({each.fitrouter["decision_id"] for each in answers}) == 40


# --- identity: what tests/litellm/test_identity.py leaves ---


def test_invalid_identities_are_errors(tmp_path: Path) -> None:
    """A value that is not text, and a tenant named by a proxy client, are errors of the request."""
    with connect(router := agent_router(tmp_path)):
        register(router, identity=Identity(role="clerk"))
        with pytest.raises(litellm.BadRequestError, match="role: list was given"):
            litellm.completion(model=AUTO, messages=HELLO, metadata={"role": ["nurse"]})
        with pytest.raises(litellm.BadRequestError, match="tenant"):
            litellm.completion(model=AUTO, messages=HELLO, metadata={"user_api_key_hash": "h", "tenant": "b"})
        assert not [event for event in events(router) if isinstance(event, Decision)]
        litellm.completion(model=AUTO, messages=HELLO, metadata={"tenant": "b"})
        made = [event for event in events(router) if isinstance(event, Decision)][-1]
        assert (made.identity.tenant, made.identity.role) == ("b", "clerk")


def test_the_master_key_of_a_proxy_identifies_nobody(tmp_path: Path) -> None:
    """Its holders share litellm's default name, which is not one person."""
    with connect(router := agent_router(tmp_path)):
        register(router)
        proxied = {"user_api_key_hash": "h", "user_api_key_user_id": "default_user_id"}
        litellm.completion(model=AUTO, messages=HELLO, metadata=proxied)
        litellm.completion(model=AUTO, messages=HELLO, metadata={**proxied, "user_api_key_end_user_id": "ann"})
        nobody, ann = [made.identity.user for made in events(router, Decision)]
        assert nobody is None
        assert ann == router._identities.subject("default", "ann")


# --- errors ---


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (ProviderRejected("no such thing", 400), litellm.BadRequestError),
        (ProviderTimeout("too slow"), (litellm.Timeout, litellm.ServiceUnavailableError)),
        (ProviderUnavailable("down", 503), litellm.ServiceUnavailableError),
        (ValueError("a bug"), litellm.ServiceUnavailableError),
    ],
)
async def test_errors_are_litellms(tmp_path: Path, error: Exception, wanted: Any, far: bool) -> None:
    """Failures are raised as litellm's exceptions with the router's message, whole or streamed."""
    with standing(agent_router(tmp_path, Fails(error)), far) as target:
        register(target)
        with pytest.raises(wanted, match=str(error)):
            litellm.completion(model=AUTO, messages=HELLO)
        with pytest.raises(wanted, match=str(error)):
            list(litellm.completion(model=AUTO, messages=HELLO, stream=True))
        with pytest.raises(wanted, match=str(error)):
            await litellm.acompletion(model=AUTO, messages=HELLO)
        with pytest.raises(wanted, match=str(error)):
            async for _chunk in await litellm.acompletion(model=AUTO, messages=HELLO, stream=True):
                pass


async def test_streams_that_break_off_raise(tmp_path: Path) -> None:
    """A stream that fails after its first piece does not look whole."""
    with connect(router := agent_router(tmp_path, Fails(ProviderError("gone"), late=True))):
        register(router)
        with pytest.raises(litellm.ServiceUnavailableError, match="gone"):
            list(litellm.completion(model=AUTO, messages=HELLO, stream=True))
        with pytest.raises(litellm.ServiceUnavailableError, match="gone"):
            async for _chunk in await litellm.acompletion(model=AUTO, messages=HELLO, stream=True):
                pass


@pytest.mark.parametrize("far", [False, True])
def test_what_is_too_long_is_litellms_context_error(tmp_path: Path, far: bool) -> None:
    """Litellm's `context_window_fallbacks` and agents that shorten their history look for that exception."""
    small = [ModelCard(name="alpha", provider="agent", target="alpha", context_window=4, parameters=None)]
    router = make_router(tmp_path, {"agent": Agent()}, models=small)
    words = [{"role": "user", "content": "many words " * 50}]
    with standing(router, far) as target:
        register(target)
        with pytest.raises(litellm.ContextWindowExceededError):
            litellm.completion(model=AUTO, messages=words)


def test_fallbacks_and_retries_of_litellm_work(desk: Desk) -> None:
    """A model that is not there is an error that litellm falls back from; a router that is not there likewise."""
    with pytest.raises(litellm.BadRequestError, match="unknown model 'nobody'"):
        litellm.completion(model="fitrouter/nobody", messages=HELLO)
    answer = litellm.completion(model="fitrouter/nobody", messages=HELLO, fallbacks=["fitrouter/beta"])
    assert answer.model == "beta"
    listed = [
        {"model_name": "away", "litellm_params": {"model": AUTO, "api_base": "http://127.0.0.1:9"}},
        {"model_name": "here", "litellm_params": {"model": AUTO}},
    ]
    routed = litellm.Router(model_list=listed, fallbacks=[{"away": ["here"]}], num_retries=0)
    assert routed.completion("away", messages=HELLO).choices[0].message.content.endswith("heard hello")
    with pytest.raises(litellm.APIConnectionError, match="fitrouter serve"):
        litellm.completion(model=AUTO, messages=HELLO, api_base="http://127.0.0.1:9")


# --- feedback, registration, the proxy ---


def test_feedback_by_the_decision_id(desk: Desk) -> None:
    """What an answer says is enough to judge it."""
    answer = litellm.completion(model=AUTO, messages=HELLO, user="ann")
    vote = Vote(decision_id=answer.fitrouter["decision_id"], kind=FeedbackKind.THUMB, value=1.0, user="ann")
    assert desk.provider.feedback(vote)


def test_registering_again_replaces(tmp_path: Path) -> None:
    """One provider is registered however often; providers of others stay."""
    other = {"provider": "other", "custom_handler": litellm.CustomLLM()}
    litellm.custom_provider_map = [other]
    with connect(router := agent_router(tmp_path)):
        register("missing.yaml")
        provider = register(router)
        assert litellm.custom_provider_map == [other, {"provider": "fitrouter", "custom_handler": provider}]
        assert litellm.completion(model=AUTO, messages=HELLO).choices


def test_the_proxy_loads_the_handler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Litellm's loader finds `fitrouter_integrations.litellm.handler`; FITROUTER names the router that it asks."""
    from litellm.proxy.types_utils.utils import get_instance_fn

    loaded = get_instance_fn("fitrouter_integrations.litellm.handler", str(tmp_path / "config.yaml"))
    assert loaded is handler
    with serving(agent_router(tmp_path)) as url:
        monkeypatch.setenv("FITROUTER", url)
        litellm.custom_provider_map = [{"provider": "fitrouter", "custom_handler": loaded}]
        assert litellm.completion(model=AUTO, messages=HELLO).fitrouter["mode"] == "online"
        connect(url).close()
