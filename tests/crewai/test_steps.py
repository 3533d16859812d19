"""Agents of many steps: session stickiness, fallbacks, and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("crewai", reason="install the extra `crewai`")

from crewai.events import (
    AgentExecutionErrorEvent,
    ContextWindowSummarizationCompletedEvent,
    ContextWindowSummarizationStartedEvent,
    CrewKickoffFailedEvent,
    LLMCallCompletedEvent,
    LLMCallFailedEvent,
    LLMStreamChunkEvent,
    TaskFailedEvent,
    crewai_event_bus,
)
from crewai.tools import tool
from crewai.utilities.agent_utils import is_context_length_exceeded
from tests.kits.agents import agent_router
from tests.kits.crewai import Place, Sum, adder, agent, crew, nobody_leaves, place, task
from tests.kits.gateway import config, serving

from fitrouter.errors import (
    AllModelsFailed,
    ConfigError,
    ContextOverflow,
    FitrouterError,
    InvalidRequest,
    NoEligibleModel,
    NotAuthorized,
    ProviderRejected,
    ProviderUnavailable,
)
from fitrouter.types import Call
from fitrouter_integrations.client import connect
from fitrouter_integrations.crewai import FitrouterLLM

# CrewAI warns of fields of its own that it still sets on every agent.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
STEPS = 10


@pytest.fixture(scope="module", params=["near", "far"])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(tmp_path_factory.mktemp("router"), far=request.param == "far") as made:
        yield made


@pytest.fixture
def here(shared: Place, tmp_path: Path) -> Iterator[Place]:
    """A clean router in this process, and one over a gateway."""
    shared.clean()
    with nobody_leaves(tmp_path):
        yield shared


def heard(*kinds: type) -> list[Any]:
    """Events of these kinds, from now on; flush before reading."""
    found: list[Any] = []
    for kind in kinds:
        crewai_event_bus.on(kind)(lambda _source, event: found.append(event))
    return found


def steps_done(call: Call) -> int:
    return sum(message["role"] == "tool" for message in call.messages)


def ten_steps(call: Call) -> Any:
    """Calls the tool ten times, each time with other numbers, and then says so."""
    done = steps_done(call)
    return {"a": done, "b": 1} if done < STEPS else f"{call.target} is done"


# --- one model to the end ---


def test_ten_steps_are_one_models(here: Place) -> None:
    """An agent's steps on a task are one session, with one draw; streamed over a gateway, whole in process."""
    stream = isinstance(here.target, str)
    here.models.script = ten_steps
    one = agent(here.llm(stream=stream), tools=[adder])
    done = crew([one], [task(one, "Count to ten")]).kickoff()
    (target,) = {call.target for call in here.models.calls}
    assert done.raw == f"{target} is done"
    assert [steps_done(call) for call in here.models.calls] == list(range(STEPS + 1))
    assert all(call.stream is stream for call in here.models.calls)
    made = here.decisions()
    assert [d.mode.value for d in made] == ["online"] + ["sticky"] * STEPS
    assert len({d.identity.session for d in made}) == 1
    assert len({d.draw_id for d in made}) == 1
    assert done.token_usage.successful_requests == STEPS + 1
    assert done.token_usage.completion_tokens == 11 * (STEPS + 1)


async def test_ten_awaited_steps_are_one_models(here: Place) -> None:
    """The same if the crew is awaited; streamed in process, whole over a gateway."""
    stream = not isinstance(here.target, str)
    here.models.script = ten_steps
    one = agent(here.llm(stream=stream), tools=[adder])
    done = await crew([one], [task(one, "Count to ten")]).akickoff()
    (target,) = {call.target for call in here.models.calls}
    assert done.raw == f"{target} is done"
    assert len(here.models.calls) == STEPS + 1


# --- another one in its place ---


@pytest.mark.parametrize(("stream", "asynchronous"), [(False, True), (True, False)])
def test_a_model_that_fails_before_its_first_byte_is_replaced(here: Place, stream: bool, asynchronous: bool) -> None:
    """Between steps another model makes the tool call; the agent finishes, and CrewAI sees no failure."""
    down: list[str] = []

    def script(call: Call) -> Any:
        if steps_done(call) == 4 and not down:
            down.append(call.target)
        return ProviderUnavailable("down", 503) if call.target in down else ten_steps(call)

    here.models.script = script
    one = agent(here.llm(stream=stream), tools=[adder])
    with crewai_event_bus.scoped_handlers():
        failed, pieces = heard(LLMCallFailedEvent), heard(LLMStreamChunkEvent)
        desk = crew([one], [task(one, "Count to ten")])
        done = asyncio.run(desk.akickoff()) if asynchronous else desk.kickoff()
        crewai_event_bus.flush()
    assert failed == []
    (first,) = down
    answered = [call.target for call in here.models.calls if call.target not in down]
    assert done.raw == f"{answered[-1]} is done"
    assert [steps_done(c) for c in here.models.calls if c.target == first][:5] == [0, 1, 2, 3, 4]
    assert {steps_done(c) for c in here.models.calls if c.target != first} >= set(range(4, STEPS + 1))
    assert done.token_usage.successful_requests == STEPS + 1
    if stream:  # the pieces of each step's call are of one model's
        told = [event.tool_call for event in pieces if event.tool_call is not None]
        assert len({call.id for call in told}) == STEPS


# --- errors that reach people ---


def fails(llm: FitrouterLLM, error: type[Exception], match: str) -> Exception:
    one = agent(llm)
    with crewai_event_bus.scoped_handlers():
        told = heard(LLMCallFailedEvent, AgentExecutionErrorEvent, TaskFailedEvent, CrewKickoffFailedEvent)
        ended = heard(LLMCallCompletedEvent)
        with pytest.raises(error, match=match) as raised:
            crew([one], [task(one)]).kickoff()
        crewai_event_bus.flush()
    assert {event.type for event in told} >= {"llm_call_failed", "task_failed", "crew_kickoff_failed"}
    assert ended == []
    return raised.value


def test_an_unknown_model_is_an_error_of_the_kickoff(here: Place) -> None:
    """The error of the router, with what is allowed or where it is said; and nobody is asked."""
    fails(here.llm(model="nobody"), InvalidRequest, "unknown model 'nobody'")
    assert here.models.calls == []


def test_if_all_models_fail_the_error_lists_them(here: Place) -> None:
    """Who was tried, and what the last one said."""
    here.models.script = lambda call: ProviderUnavailable("the cable is cut", 503)
    fails(here.llm(), AllModelsFailed, "no model answered; tried .*the cable is cut")


def test_a_refusal_is_raised(here: Place) -> None:
    """A provider that refuses the request itself is not replaced: its word reaches the crew."""
    here.models.script = lambda call: ProviderRejected("against the rules", 400)
    fails(here.llm(), ProviderRejected, "against the rules")


def test_no_eligible_model_lists_the_reasons(here: Place) -> None:
    """Each model with its reason."""
    image = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}]
    assert not here.llm().supports_multimodal()
    with pytest.raises(NoEligibleModel, match="alpha: capability: lacks images"):
        here.llm().call([{"role": "user", "content": image}])


def test_max_retry_limit_is_respected(here: Place) -> None:
    """How often an agent tries again is CrewAI's `max_retry_limit`: 0 asks once."""
    here.models.script = lambda call: ProviderRejected("against the rules", 400)
    one = agent(here.llm(), max_retry_limit=0)
    with pytest.raises(ProviderRejected):
        crew([one], [task(one)]).kickoff()
    assert len(here.models.calls) == 1


def test_a_gateway_that_is_down(tmp_path: Path) -> None:
    """Its address and the remedy."""
    with nobody_leaves(tmp_path):
        llm = FitrouterLLM(router="http://127.0.0.1:9")
        with llm.client, pytest.raises(ConfigError, match=r"no gateway answers at http://127\.0\.0\.1:9"):
            crew([one := agent(llm)], [task(one)]).kickoff()


def test_a_wrong_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The crew's kickoff says that the key is not allowed."""
    monkeypatch.setenv("KEY_A", "aaaa-secret-of-tenant-a")
    keys = [{"name": "team-a", "tenant": "a", "key_env": "KEY_A"}]
    with nobody_leaves(tmp_path), serving(agent_router(tmp_path), config(keys=keys)) as url:
        llm = FitrouterLLM(router=url, api_key="wrong")
        with connect(url, "wrong"), pytest.raises(NotAuthorized):
            crew([one := agent(llm)], [task(one)]).kickoff()


def test_an_answer_of_another_type_fails_once(here: Place) -> None:
    """A call either ends or fails, never both; the error says which type was wanted."""
    here.models.script = lambda call: "no JSON at all"
    with crewai_event_bus.scoped_handlers():
        told = heard(LLMCallCompletedEvent, LLMCallFailedEvent)
        with pytest.raises(ValueError, match="Failed to parse response into Sum"):
            here.llm().call("hello", response_model=Sum)
        crewai_event_bus.flush()
    assert [event.type for event in told] == ["llm_call_failed"]
    here.models.script = lambda call: 'Here you are:\n```json\n{"value": 7, "note": "so"}\n```'
    assert here.llm().call("hello", response_model=Sum) == Sum(value=7, note="so")


# --- what does not fit ---

LONG = "word " * 160_000


def test_a_history_that_does_not_fit_is_crewais_error(here: Place) -> None:
    """CrewAI takes it as a history to sum up; it still is the router's error."""
    with pytest.raises(FitrouterError, match=r"context length exceeded.*needs about \d+ tokens, has 128000") as raised:
        here.llm().call(LONG)
    assert isinstance(raised.value, NoEligibleModel)
    assert is_context_length_exceeded(raised.value)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_history_that_does_not_fit_is_summarised(here: Place, asynchronous: bool) -> None:
    """What is too long for every model is asked for in parts, and the agent finishes."""

    @tool("library")
    def library(a: int) -> str:
        """Has what is asked for."""
        return "a book"

    def script(call: Call) -> Any:
        summing = "conversation" in str(call.messages[-1]["content"])[:100]
        return "<summary>all is well</summary>" if summing else "done"

    here.models.script = script
    one = agent(here.llm(), tools=[library])
    with crewai_event_bus.scoped_handlers():
        desk = crew([one], [task(one, LONG)])
        done = asyncio.run(desk.akickoff()) if asynchronous else desk.kickoff()
        crewai_event_bus.flush()
    assert done.raw == "done"
    assert "all is well" in str(here.models.calls[-1].messages)
    assert len(here.models.calls) > 2


def test_a_provider_that_says_it_is_too_long(here: Place) -> None:
    """The words of those that CrewAI does not know itself count as well."""
    here.models.script = lambda call: ContextOverflow("prompt is too long: 210000 tokens", 400)
    with pytest.raises(NoEligibleModel) as raised:
        here.llm().call("hello")
    assert is_context_length_exceeded(raised.value)


def test_long_histories_are_summarised_before_they_are_sent(here: Place) -> None:
    """CrewAI knows the window and how much there is: no model is asked in vain."""
    history = [{"role": "user", "content": "word " * 60_000}, {"role": "assistant", "content": "word " * 60_000}]
    llm = here.llm()
    assert llm.is_context_window_overflowing_threshold([*history, {"role": "user", "content": "so?"}])
    with crewai_event_bus.scoped_handlers():
        told = heard(ContextWindowSummarizationStartedEvent, ContextWindowSummarizationCompletedEvent)
        one = agent(llm)
        done = one.kickoff([*history, {"role": "user", "content": "so?"}])
        crewai_event_bus.flush()
    assert done.raw
    assert sorted(event.type for event in told) == [
        "context_window_summarization_completed",
        "context_window_summarization_started",
    ]


def test_models_are_fetched_once(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """CrewAI wants to know before each call what a model can do; a gateway is asked only the first time."""
    llm = here.llm()
    asked: list[int] = []
    models = type(llm.client).models
    monkeypatch.setattr(type(llm.client), "models", lambda self: asked.append(1) or models(self))
    here.models.script = ten_steps
    one = agent(llm, tools=[adder])
    crew([one], [task(one, "Count to ten")]).kickoff()
    assert len(asked) == 1


def test_a_tool_that_fails_in_a_direct_call_ends_it_once(here: Place) -> None:
    """Where a call runs the tool itself, its failure is the end of the call, told once."""
    schema = {"type": "function", "function": {"name": "adder", "parameters": {"type": "object", "properties": {}}}}
    with crewai_event_bus.scoped_handlers():
        told = heard(LLMCallCompletedEvent, LLMCallFailedEvent)
        assert here.llm().call("2 + 3", tools=[schema], available_functions={"adder": lambda: 1 / 0}) == ""
        crewai_event_bus.flush()
    assert [event.type for event in told] == ["llm_call_failed"]
