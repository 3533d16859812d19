"""litellm's special cases: failing streams, Router fallbacks, callbacks and caches."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import litellm
import pytest
from litellm.integrations.custom_logger import CustomLogger
from tests.kits.agents import Agent, agent_router
from tests.kits.gateway import make_router, wait_for
from tests.kits.litellm import AUTO, HELLO, TOOLS, Fails, at_home, called_back, events, standing, text

from fitrouter.errors import ProviderError, ProviderRejected, ProviderUnavailable
from fitrouter.types import Decision, ModelCard
from fitrouter_integrations.client import connect
from fitrouter_integrations.litellm import register

pytestmark = pytest.mark.filterwarnings("ignore")  # litellm's own
DOWN = ProviderUnavailable("down", 503)


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with at_home(monkeypatch):
        yield


@pytest.fixture(autouse=True)
async def worker() -> AsyncIterator[None]:
    async with called_back():
        yield


class Recovers(Agent):
    """Fails so many times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    async def complete(self, call: Any) -> Any:
        self.times -= 1
        if self.times >= 0:
            raise DOWN
        return await super().complete(call)


class Listener(CustomLogger):
    """What a logger such as Langfuse's is told."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[dict[str, Any]] = []

    def log_success_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        self.heard.append(kwargs)

    async def async_log_success_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        self.heard.append(kwargs)


@pytest.mark.parametrize("far", [False, True])
async def test_an_awaited_stream_fails_at_its_first_piece(tmp_path: Path, far: bool) -> None:
    """Litellm awaits no custom provider's stream: an error comes with the first piece, a blocking stream's at once."""
    with standing(agent_router(tmp_path, Fails(ProviderRejected("no such thing", 400))), far) as target:
        register(target)
        stream = await litellm.acompletion(model=AUTO, messages=HELLO, stream=True)
        with pytest.raises(litellm.BadRequestError, match="no such thing"):
            await anext(stream)
        with pytest.raises(litellm.BadRequestError, match="no such thing"):
            litellm.completion(model=AUTO, messages=HELLO, stream=True)


@pytest.mark.parametrize("error", [DOWN, ProviderError("slow down", 429)])
@pytest.mark.parametrize("kind", ["completion", "stream", "acompletion", "astream"])
async def test_litellms_router_falls_back_from_it_and_to_it(tmp_path: Path, kind: str, error: Exception) -> None:
    """A model of the router that fails is replaced by one of litellm's, and the other way round."""
    other = {"model": "openai/gpt-4o", "api_key": "k"}
    listed = [
        {"model_name": "ours", "litellm_params": {"model": AUTO}},
        {"model_name": "theirs", "litellm_params": {**other, "mock_response": "from theirs"}},
        {"model_name": "broken", "litellm_params": {**other, "mock_response": "litellm.RateLimitError"}},
        {"model_name": "good", "litellm_params": {"model": "fitrouter/beta"}},
    ]
    fallbacks = [{"ours": ["theirs"]}, {"broken": ["good"]}]
    routed = litellm.Router(model_list=listed, fallbacks=fallbacks, num_retries=0)

    async def said(name: str) -> str:
        if kind == "completion":
            return str((await asyncio.to_thread(routed.completion, name, HELLO)).choices[0].message.content)
        if kind == "stream":
            return await asyncio.to_thread(lambda: text(list(routed.completion(name, HELLO, stream=True))))
        if kind == "acompletion":
            return str((await routed.acompletion(name, HELLO)).choices[0].message.content)
        return text([chunk async for chunk in await routed.acompletion(name, HELLO, stream=True)])

    with connect(router := agent_router(tmp_path, Fails(error))):
        register(router)
        assert await said("ours") == "from theirs"
    with connect(router := agent_router(tmp_path / "again", Agent())):
        register(router)
        assert await said("broken") == "beta heard hello"


async def test_retries_are_requests_of_their_own(tmp_path: Path) -> None:
    """Each retry of litellm's Router is decided anew, with two calls of the only model, until one works."""
    with connect(router := agent_router(tmp_path, Recovers(4), names=("alpha",))):
        register(router)
        routed = litellm.Router(
            model_list=[{"model_name": "ours", "litellm_params": {"model": AUTO}}], num_retries=3, retry_after=0
        )
        answer = await routed.acompletion("ours", HELLO)
        made = events(router, Decision)
        assert len(made) == 3
        assert answer.fitrouter["decision_id"] == made[-1].id


@pytest.mark.parametrize("far", [False, True])
def test_unsupported_requests_are_bad_requests(tmp_path: Path, far: bool) -> None:
    """Several answers and embeddings are refused before a decision."""
    with standing(router := agent_router(tmp_path), far) as target:
        register(target)
        for more in ({"n": 2}, {"n": 2, "drop_params": True}):
            with pytest.raises(litellm.BadRequestError, match="n: got 2; allowed is 1"):
                litellm.completion(model=AUTO, messages=HELLO, **more)
        with pytest.raises(litellm.BadRequestError, match="fitrouter routes chat completions"):
            litellm.embedding(model=AUTO, input=["x"])
        with pytest.raises(litellm.BadRequestError, match="fitrouter routes chat completions"):
            asyncio.run(litellm.aembedding(model=AUTO, input=["x"]))
        assert events(router, Decision) == []
        assert litellm.completion(model=AUTO, messages=HELLO, n=1).choices


def test_parameters_that_litellm_does_not_know_of_it(tmp_path: Path) -> None:
    """They are refused, dropped where the caller says so, and passed on where the caller allows them."""
    agent = Agent()
    with connect(router := agent_router(tmp_path, agent)):
        register(router)
        with pytest.raises(litellm.UnsupportedParamsError, match="reasoning_effort"):
            litellm.completion(model=AUTO, messages=HELLO, reasoning_effort="low")
        litellm.completion(model=AUTO, messages=HELLO, reasoning_effort="low", drop_params=True)
        assert dict(agent.calls[-1].params) == {}
        litellm.completion(
            model=AUTO, messages=HELLO, reasoning_effort="low", allowed_openai_params=["reasoning_effort"]
        )
        assert dict(agent.calls[-1].params) == {"reasoning_effort": "low"}


@pytest.mark.parametrize(
    ("choice", "called"),
    [("none", False), ("auto", True), ("required", True), ({"type": "function", "function": {"name": "add"}}, True)],
)
def test_tool_choices_and_images_reach_the_model(tmp_path: Path, choice: Any, called: bool) -> None:
    """As they were given."""
    able = ModelCard(
        name="alpha",
        provider="agent",
        target="alpha",
        parameters=None,
        capabilities=("streaming", "tools", "json", "images"),
    )
    agent = Agent()
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "what is it"}, picture]}]
    with connect(router := make_router(tmp_path, {"agent": agent}, models=[able])):
        register(router)
        answer = litellm.completion(model=AUTO, messages=messages, tools=TOOLS, tool_choice=choice)
    assert bool(answer.choices[0].message.tool_calls) is called
    assert agent.calls[-1].params["tool_choice"] == choice
    assert agent.calls[-1].messages[0]["content"][1] == picture


async def test_callbacks_get_the_decision(tmp_path: Path) -> None:
    """In `kwargs["fitrouter"]`, whole or streamed, awaited or not, with the cost that litellm counts."""
    with connect(router := agent_router(tmp_path)):
        register(router)
        litellm.callbacks = [listener := Listener()]
        call: dict[str, Any] = {"model": AUTO, "messages": HELLO}
        await asyncio.to_thread(litellm.completion, **call)
        await asyncio.to_thread(lambda: list(litellm.completion(stream=True, **call)))
        await litellm.acompletion(**call)
        _ = [chunk async for chunk in await litellm.acompletion(stream=True, **call)]
        await asyncio.to_thread(wait_for, lambda: len(listener.heard) == 4)
        made = {each.id: each for each in events(router, Decision)}
    assert {heard["fitrouter"]["decision_id"] for heard in listener.heard} == set(made)
    for heard in listener.heard:
        told = heard["fitrouter"]
        assert told["propensity"] == made[told["decision_id"]].propensity
        assert told["cost_usd"] == heard["response_cost"] == heard["standard_logging_object"]["response_cost"] > 0


def test_a_cached_answer_is_the_first_ones_decision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Litellm's cache answers without asking, so nothing is decided; each user has answers of their own."""
    pytest.importorskip("soundfile", reason="litellm's cache needs it: pip install 'litellm[proxy]'")
    with connect(router := agent_router(tmp_path)):
        register(router)
        monkeypatch.setattr(litellm, "cache", litellm.Cache())
        call: dict[str, Any] = {"model": AUTO, "messages": HELLO, "caching": True}
        told = [litellm.completion(user=user, **call).fitrouter["decision_id"] for user in ("ann", "ann", "bob")]
        assert told[0] == told[1] != told[2]
        assert len(events(router, Decision)) == 2


def test_threads_share_the_provider(tmp_path: Path) -> None:
    """Twenty threads, whole and streamed: no answer is lost or crossed."""
    with connect(router := agent_router(tmp_path)):
        register(router)
        wrong: list[str] = []

        def ask(i: int) -> None:
            messages = [{"role": "user", "content": f"task {i}"}]
            whole = litellm.completion(model=AUTO, messages=messages).choices[0].message.content
            streamed = text(list(litellm.completion(model=AUTO, messages=messages, stream=True)))
            wrong.extend(said for said in (whole, streamed) if not said.endswith(f" heard task {i}"))

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert len(events(router, Decision)) == 40
