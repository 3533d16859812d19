"""The litellm observer records existing traffic without delaying it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import litellm
import pytest
from litellm.litellm_core_utils.logging_worker import GLOBAL_LOGGING_WORKER
from tests.kits.agents import Agent, agent_router
from tests.kits.fake_openai import FakeOpenAI, Reply, event, reply, sse
from tests.kits.gateway import serving, wait_for
from tests.kits.litellm import AUTO, HELLO, TOOLS, at_home, called_back, events, observing, seen_by, text

from fitrouter.errors import InvalidRequest
from fitrouter.types import Completion, Decision, Execution, FeedbackKind, Request, Score
from fitrouter_integrations.client import ObservedCall, Vote, connect
from fitrouter_integrations.litellm import FitrouterObserver, register

pytestmark = pytest.mark.filterwarnings("ignore")  # litellm's own


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with at_home(monkeypatch):
        yield


@pytest.fixture(autouse=True)
async def worker() -> AsyncIterator[None]:
    async with called_back():
        yield


@pytest.fixture
def observer(tmp_path: Path) -> Iterator[FitrouterObserver]:
    with observing(tmp_path) as made:
        yield made


async def test_existing_traffic_is_observed(observer: FitrouterObserver) -> None:
    """Whole, streamed and tool calls, awaited or not, are logged as pinned, with tokens, cost and identity."""
    async with FakeOpenAI() as server:
        call: dict[str, Any] = {"api_base": server.base_url, "api_key": "k", "messages": HELLO, "user": "ann"}
        call["metadata"] = {"role": "nurse"}
        whole = await litellm.acompletion(model="openai/gpt-4o-mini", **call)
        await asyncio.to_thread(seen_by, observer, 1)
        await asyncio.to_thread(litellm.completion, model="openai/gpt-4o", **call)
        await asyncio.to_thread(seen_by, observer, 2)
        streamed = await litellm.acompletion(
            model="openai/gpt-4o-mini", stream=True, stream_options={"include_usage": True}, **call
        )
        assert text([chunk async for chunk in streamed]) == "gpt-4o-mini answers: hello"
        await asyncio.to_thread(seen_by, observer, 3)
        await asyncio.to_thread(litellm.completion, model="openai/gpt-4o", tools=TOOLS, **call)
        executions = await asyncio.to_thread(seen_by, observer, 4)
    assert observer.flush(60.0)
    decisions = seen_by(observer, 4, Decision)
    assert [made.chosen for made in decisions] == ["small", "gpt-4o", "small", "gpt-4o"]
    assert {(made.mode.value, made.propensity, made.probs) for made in decisions} == {("pinned", 1.0, ())}
    assert {made.identity.role for made in decisions} == {"nurse"}
    assert len({made.identity.user for made in decisions}) == 1
    assert decisions[0].identity.user not in {None, "ann"}
    assert observer.decision_of(whole.id) == decisions[3].id  # the server gives every answer the same id
    assert observer.decision_of("unknown") is None
    for made, ended in zip(decisions, executions, strict=True):
        assert (ended.decision_id, ended.served_by, ended.status) == (made.id, made.chosen, "ok")
        assert ended.prompt_tokens == whole.usage.prompt_tokens
        assert ended.latency_ms > 0
        tokens = {"prompt_tokens": ended.prompt_tokens, "completion_tokens": ended.completion_tokens}
        model = "gpt-4o-mini" if made.chosen == "small" else "gpt-4o"
        assert ended.cost_usd == pytest.approx(sum(litellm.cost_per_token(model, **tokens)))
        assert ended.cost_usd > 0
    assert executions[0].completion_tokens == executions[2].completion_tokens == whole.usage.completion_tokens
    assert executions[3].finish_reason == "tool_calls"
    vote = Vote(decision_id=decisions[0].id, kind=FeedbackKind.THUMB, value=1.0, user="ann")
    assert await observer.client.afeedback(vote)


BAD = {status: reply(status, {"error": {"message": "no", "type": "x"}}) for status in (400, 429, 500)}
CUT = {"index": 0, "delta": {"role": "assistant", "content": "half"}, "finish_reason": None}


def cut() -> Reply:
    """A stream that breaks off."""
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [CUT]}
    return sse(event(chunk), end=False)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(
    ("status", "raised", "name", "ended"),
    [
        (400, litellm.BadRequestError, "ProviderRejected", "rejected"),
        (429, litellm.RateLimitError, "RateLimited", "failed"),
        (500, litellm.InternalServerError, "ProviderUnavailable", "failed"),
    ],
)
async def test_failed_calls_are_observed(
    observer: FitrouterObserver, stream: bool, waits: bool, status: int, raised: Any, name: str, ended: str
) -> None:
    """A call that fails is one decision and one execution that says why, whole or streamed, awaited or not."""
    async with FakeOpenAI([BAD[status]] * 9) as server:
        call: dict[str, Any] = {"api_base": server.base_url, "api_key": "k", "messages": HELLO, "max_retries": 0}
        call |= {"model": "openai/gpt-4o", "stream": stream}
        with pytest.raises(raised):
            await (asyncio.to_thread(litellm.completion, **call) if waits else litellm.acompletion(**call))
    (failed,) = await asyncio.to_thread(seen_by, observer, 1)
    (made,) = seen_by(observer, 1, Decision)
    assert (failed.decision_id, failed.status, failed.served_by, failed.cost_usd) == (made.id, ended, None, 0.0)
    assert [(attempt.model, attempt.error) for attempt in failed.attempts] == [("gpt-4o", name)]
    assert made.mode.value == "pinned"


async def test_a_stream_that_breaks_off_is_a_failure(observer: FitrouterObserver) -> None:
    """A partial answer is recorded once, as a failure."""
    async with FakeOpenAI([cut()]) as server:
        call: dict[str, Any] = {"api_base": server.base_url, "api_key": "k", "messages": HELLO, "max_retries": 0}
        with pytest.raises(litellm.ServiceUnavailableError):
            async for _chunk in await litellm.acompletion(model="openai/gpt-4o", stream=True, **call):
                pass
    (failed,) = await asyncio.to_thread(seen_by, observer, 1)
    assert (failed.status, [attempt.error for attempt in failed.attempts]) == ("failed", ["ProviderUnavailable"])


@pytest.mark.parametrize("waits", [False, True])
async def test_each_attempt_of_litellms_router_is_a_call(observer: FitrouterObserver, waits: bool) -> None:
    """Two failures and an answer of another model are three calls in that order, and nothing is written twice."""
    async with FakeOpenAI([BAD[500], BAD[500]]) as server:
        reached = {"api_base": server.base_url, "api_key": "k"}
        listed = [
            {"model_name": "cheap", "litellm_params": {"model": "openai/gpt-4o-mini", **reached}},
            {"model_name": "good", "litellm_params": {"model": "openai/gpt-4o", **reached}},
        ]
        routed = litellm.Router(model_list=listed, num_retries=1, retry_after=0, fallbacks=[{"cheap": ["good"]}])
        if waits:
            answer = await asyncio.to_thread(routed.completion, "cheap", messages=HELLO)
        else:
            answer = await routed.acompletion("cheap", messages=HELLO)
    executions = await asyncio.to_thread(seen_by, observer, 3)
    assert observer.flush()
    assert sorted((ended.attempts[0].model, ended.status) for ended in executions) == [
        ("gpt-4o", "ok"),
        ("small", "failed"),
        ("small", "failed"),
    ]
    assert len(seen_by(observer, 3, Decision)) == len({ended.decision_id for ended in executions}) == 3
    assert observer.decision_of(answer.id) == next(ended.decision_id for ended in executions if ended.status == "ok")


async def test_streams_without_usage_are_counted(observer: FitrouterObserver) -> None:
    """A stream that does not say its tokens has some all the same, and costs what the card says."""
    async with FakeOpenAI() as server:
        call: dict[str, Any] = {"api_base": server.base_url, "api_key": "k", "messages": HELLO}
        stream = await litellm.acompletion(model="openai/gpt-4o", stream=True, **call)
        assert text([chunk async for chunk in stream]) == "gpt-4o answers: hello"
        tools = await litellm.acompletion(model="openai/gpt-4o", stream=True, tools=TOOLS, **call)
        _ = [chunk async for chunk in tools]
    for ended in await asyncio.to_thread(seen_by, observer, 2):
        assert ended.prompt_tokens > 0
        assert ended.completion_tokens > 0
        assert ended.cost_usd == pytest.approx((ended.prompt_tokens + 2 * ended.completion_tokens) / 1e6)


async def test_some_calls_are_not_observed(observer: FitrouterObserver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls without a provider, with no-log, with several answers, or other than chat."""
    call: dict[str, Any] = {"model": "openai/gpt-4o", "messages": HELLO, "mock_response": "x"}
    await litellm.acompletion(**call, **{"no-log": True})
    await litellm.acompletion(**call, n=2)
    with pytest.raises(litellm.BadRequestError):
        await litellm.acompletion(model="nobody/gpt-4o", messages=HELLO)
    with pytest.raises(litellm.UnsupportedParamsError):
        await litellm.acompletion(**{**call, "model": "anthropic/claude-haiku-4-5"}, logit_bias={})
    await litellm.aembedding(model="openai/gpt-4o", input=["x"], mock_response=[0.1])
    await litellm.atext_completion(model="openai/gpt-4o", prompt="x", mock_response="x")
    monkeypatch.setattr(litellm, "turn_off_message_logging", True)
    await litellm.acompletion(**call)
    monkeypatch.setattr(litellm, "turn_off_message_logging", False)
    await litellm.acompletion(**{**call, "messages": [{"role": "user", "content": "the only one"}]})
    await asyncio.to_thread(seen_by, observer, 1)
    await GLOBAL_LOGGING_WORKER.flush()
    assert observer.flush()
    assert len(seen_by(observer, 1, Decision)) == 1
    assert observer.lost == 0


async def test_a_gateway_records_observations(tmp_path: Path) -> None:
    """Answers and failures are in the gateway's journal with their identity, and can be rated."""
    router = agent_router(tmp_path)
    with serving(router) as url, connect(url) as client:
        observer = FitrouterObserver(url, names={"gpt-4o": "beta"})
        litellm.callbacks = [observer]
        async with FakeOpenAI([None, BAD[500]]) as server:
            call: dict[str, Any] = {"api_base": server.base_url, "api_key": "k", "messages": HELLO, "user": "ann"}
            answer = await litellm.acompletion(model="openai/gpt-4o", metadata={"role": "nurse"}, **call)
            await asyncio.to_thread(wait_for, lambda: observer.decision_of(answer.id))
            with pytest.raises(litellm.InternalServerError):
                await litellm.acompletion(model="openai/gpt-4o", max_retries=0, **call)
        await asyncio.to_thread(wait_for, lambda: len(events(router, Execution)) == 2)
        whole, failed = events(router, Execution)
        assert (whole.status, whole.served_by, whole.completion_tokens) == (
            "ok",
            "beta",
            answer.usage.completion_tokens,
        )
        assert (failed.status, failed.attempts[0].error) == ("failed", "ProviderUnavailable")
        made = events(router, Decision)[0]
        assert (made.identity.role, made.identity.user) == ("nurse", router._identities.subject("default", "ann"))
        decision = observer.decision_of(answer.id)
        assert decision == made.id
        assert await client.afeedback(Vote(decision_id=made.id, kind=FeedbackKind.THUMB, value=1.0, user="ann"))
        assert observer.lost == 0


def test_what_is_observed_is_scored(observer: FitrouterObserver) -> None:
    """The scorer reads the answers of others as it reads the router's own."""
    answer = litellm.completion(model="openai/gpt-4o", messages=HELLO, mock_response="Good morning!", user="ann")
    (score,) = seen_by(observer, 1, Score)
    assert (score.served_by, score.status) == ("gpt-4o", "ok")
    assert score.decision_id == observer.decision_of(answer.id)


def test_the_routers_own_calls_are_logged_once(tmp_path: Path) -> None:
    """An observer beside the provider, and a router that itself calls litellm: one decision for each request."""

    class Inner(Agent):
        async def complete(self, call: Any) -> Any:
            await litellm.acompletion(model="openai/alpha", messages=HELLO, mock_response="x", **{"no-log": True})
            return await super().complete(call)

    with connect(router := agent_router(tmp_path, Inner(), names=("alpha",))) as client:
        register(router)
        observer = FitrouterObserver(router)
        litellm.callbacks = [observer]
        for _ in range(3):
            litellm.completion(model=AUTO, messages=HELLO)
            list(litellm.completion(model=AUTO, messages=HELLO, stream=True))
        litellm.completion(model="openai/alpha", messages=HELLO, mock_response="observed")
        wait_for(lambda: len([each for each in events(router) if isinstance(each, Execution)]) == 7)
        modes = [each.mode.value for each in events(router) if isinstance(each, Decision)]
        assert modes.count("pinned") == 1
        assert len(modes) == 7
        assert client.complete(Request(messages=tuple(HELLO))).about.mode != "pinned"


@pytest.mark.parametrize(
    ("target", "words"), [("missing.yaml", "there is no file"), ("http://127.0.0.1:9", "no gateway answers")]
)
async def test_a_failing_observer_does_not_fail_calls(
    target: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A missing configuration costs one warning and no call; losses are counted."""
    observer = FitrouterObserver(target)
    litellm.callbacks = [observer]
    with caplog.at_level("WARNING", "fitrouter"):
        answer = litellm.completion(model="openai/gpt-4o", messages=HELLO, mock_response="fine")
        again = await litellm.acompletion(model="openai/gpt-4o", messages=HELLO, mock_response="fine")
        assert answer.choices[0].message.content == again.choices[0].message.content == "fine"
        await asyncio.to_thread(wait_for, lambda: observer.lost == 2)
    assert caplog.text.count(words) == 1


def test_a_fresh_process_imports_little_and_records_its_last_calls(tmp_path: Path) -> None:
    """Importing loads litellm, no other framework, and uses no network; at exit the last blocking call is recorded.

    litellm reports a call after its answer.
    """
    heavy = ("torch", "crewai", "langchain_core", "sentence_transformers", "sklearn", "duckdb", "starlette")
    code = (
        "import socket, sys\n"
        "real = socket.socket.connect, socket.getaddrinfo\n"
        "def refuse(*a, **k): raise AssertionError('network')\n"
        "socket.socket.connect = socket.getaddrinfo = refuse\n"
        "from fitrouter_integrations.litellm import observer\n"
        f"print([name for name in {heavy!r} if name in sys.modules])\n"
        "socket.socket.connect, socket.getaddrinfo = real\n"
        "import litellm\n"
        "litellm.callbacks = [observer]\n"
        "call = {'messages': [{'role': 'user', 'content': 'hello'}], 'mock_response': 'x'}\n"
        "for _ in range(3): litellm.completion(model='openai/beta', **call)\n"
    )
    router = agent_router(tmp_path)
    with serving(router) as url:
        environ = {name: value for name, value in os.environ.items() if name != "LITELLM_LOCAL_MODEL_COST_MAP"}
        command = [sys.executable, "-c", code]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env={**environ, "FITROUTER": url}, timeout=300
        )
        assert done.stdout.strip() == "[]"
        assert "network" not in done.stderr
        assert [made.chosen for made in events(router, Decision)] == ["beta"] * 3
        wait_for(lambda: len(events(router, Execution)) == 3)


def test_unknown_models_are_warned_about_once(observer: FitrouterObserver, caplog: pytest.LogCaptureFixture) -> None:
    """A model that the configuration lacks is warned about once; an explicit name for it is used."""
    with caplog.at_level("WARNING", "fitrouter"):
        for _ in range(3):
            litellm.completion(model="openai/gpt-4.1", messages=HELLO, mock_response="x")
        litellm.completion(model="openai/gpt-4o", messages=HELLO, mock_response="x")
        seen_by(observer, 1)
    assert caplog.text.count("gpt-4.1 are not observed") == 1
    litellm.logging_callback_manager._reset_all_callbacks()
    renamed = FitrouterObserver(observer.target, names={"gpt-4.1": "small"})
    litellm.callbacks = [renamed]
    litellm.completion(model="openai/gpt-4.1", messages=HELLO, mock_response="x")
    assert [made.chosen for made in seen_by(renamed, 2, Decision)] == ["gpt-4o", "small"]


def test_only_a_named_model_can_be_observed(observer: FitrouterObserver) -> None:
    """Neither `fitrouter/auto` nor an unknown name can be observed."""
    asked = Request(messages=tuple(HELLO))
    for model in (AUTO, "nobody"):
        with pytest.raises(InvalidRequest):
            observer.client.observe(ObservedCall(request=asked, completion=Completion(message={}), model=model))
