"""The patterns of crewAI's own tests of LLMs, put to `FitrouterLLM`.

They follow test_custom_llm.py, llms/test_tool_call_streaming.py, events/test_llm_usage_event.py,
events/test_llm_finish_reason_response_id.py, hooks/test_llm_hooks.py and agents/test_{,async_}agent_executor.py of
crewAI's repository; what tests/crewai/test_crewai.py has already is not here again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("crewai", reason="install the extra `crewai`")

import crewai.llms.retry
from crewai import Agent, Crew, Task
from crewai.events import (
    LLMCallCompletedEvent,
    LLMCallFailedEvent,
    LLMCallStartedEvent,
    LLMStreamChunkEvent,
    crewai_event_bus,
)
from crewai.events.types.llm_events import LLMCallType
from crewai.hooks import (
    HookAborted,
    LLMCallHookContext,
    clear_all_llm_call_hooks,
    register_after_llm_call_hook,
    register_before_llm_call_hook,
)
from crewai.llms.base_llm import LLMCallBlockedError
from crewai.utilities.llm_utils import create_llm
from pydantic import ValidationError
from tests.kits import agents as agents_kit
from tests.kits.agents import agent_router
from tests.kits.gateway import PATIENCE_S, config, serving

from fitrouter.errors import AllModelsFailed, AllRateLimited, FitrouterError, NotAuthorized, ProviderUnavailable
from fitrouter.serving.attempts import Timers
from fitrouter.stores.journal import MemoryJournal
from fitrouter.types import Call, Chunk, Completion, Decision
from fitrouter_integrations.client import connect
from fitrouter_integrations.crewai import FitrouterLLM

# CrewAI warns of fields of its own that it still sets on every agent.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

ADDER = {
    "type": "function",
    "function": {
        "name": "adder",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
Made = Callable[..., FitrouterLLM]


class Models(agents_kit.Agent):
    """Answer as agents' models do, unless `trouble` has something for the call."""

    def __init__(self) -> None:
        super().__init__()
        self.trouble: Callable[[Call], Any] = lambda call: None

    async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
        if (trouble := self.trouble(call)) is not None:
            self.calls.append(call)
            await trouble
        return await super().complete(call)


@pytest.fixture
def models() -> Models:
    """What is behind the router."""
    return Models()


@pytest.fixture
def timers() -> Timers:
    """Of the router; those whose subject they are have their own."""
    return Timers(deadline_s=PATIENCE_S, first_token_s=PATIENCE_S, chunk_gap_s=PATIENCE_S)


@pytest.fixture
def make(tmp_path: Path, models: Models, timers: Timers, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    """Makes models of crews over one router in this process."""
    monkeypatch.setenv("CREWAI_STORAGE_DIR", str(tmp_path / "crew"))
    monkeypatch.chdir(tmp_path)
    router = agent_router(tmp_path, models, timers=timers)
    with connect(router):
        yield lambda **more: FitrouterLLM(router=router, **more)


@pytest.fixture(autouse=True)
def _no_hooks() -> Iterator[None]:
    clear_all_llm_call_hooks()
    yield
    clear_all_llm_call_hooks()


def say_hello(llm: FitrouterLLM) -> Any:
    one = Agent(role="Greeter", goal="greet", backstory="a person", llm=llm)
    task = Task(description="Say hello to the world", expected_output="a greeting", agent=one)
    return Crew(agents=[one], tasks=[task]).kickoff()


def heard(kind: type) -> list[Any]:
    """Events of a kind, from now on; flush before reading."""
    found: list[Any] = []
    crewai_event_bus.on(kind)(lambda _source, event: found.append(event))
    return found


# --- test_custom_llm.py ---


def test_custom_llm_implementation(make: Made, models: Models) -> None:
    """`create_llm` gives back the object itself, and a call answers."""
    made = make(model="beta")
    assert create_llm(made) is made
    assert made.call("What is the capital of France?") == "beta heard What is the capital of France?"
    assert [call.target for call in models.calls] == ["beta"]


def test_custom_llm_within_crew(make: Made, models: Models) -> None:
    """The task's words reach the model, and its answer is the crew's."""
    done = say_hello(make())
    (call,) = models.calls
    assert call.messages[0]["role"] == "system"
    assert "Say hello to the world" in call.messages[-1]["content"]
    assert done.raw.startswith(f"{call.target} heard")


def test_custom_llm_message_formatting(make: Made, models: Models) -> None:
    """A string is one user message; a list goes as it is, without CrewAI's own marks, and is not changed."""
    made = make()
    made.call("Test message")
    history: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief.", "cache_breakpoint": True},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "And now?"},
    ]
    made.call(history)
    assert list(models.calls[0].messages) == [{"role": "user", "content": "Test message"}]
    assert list(models.calls[1].messages) == [{"role": "system", "content": "Be brief."}, *history[1:]]
    assert history[0]["cache_breakpoint"] is True


@pytest.mark.parametrize("messages", [["Hello"], [{"role": "user"}], [{"content": "Hello"}]])
def test_messages_that_are_none_are_refused(make: Made, models: Models, messages: Any) -> None:
    """As CrewAI's own models refuse them; nobody is asked."""
    with pytest.raises(ValueError, match=r"index 0 must|valid dictionary"):
        make().call(messages)
    assert models.calls == []


def test_custom_llm_with_a_key(tmp_path: Path, models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key goes as a bearer token; the gateway knows the tenant by it, and refuses another one."""
    monkeypatch.setenv("KEY_A", "aaaa-secret-of-tenant-a")
    keys = [{"name": "team-a", "tenant": "a", "key_env": "KEY_A"}]
    router = agent_router(tmp_path, models)
    with serving(router, config(keys=keys)) as url:
        made = FitrouterLLM(router=url, api_key="aaaa-secret-of-tenant-a")
        with made.client:
            assert "heard Hello" in made.call("Hello")
        wrong = FitrouterLLM(router=url, api_key="wrong")
        with wrong.client, pytest.raises(NotAuthorized):
            wrong.call("Hello")
    assert isinstance(router._journal, MemoryJournal)
    decisions = [row.event for row in router._journal.tail(0, 100) if isinstance(row.event, Decision)]
    assert [decision.identity.tenant for decision in decisions] == ["a"]


def test_custom_llm_validation(make: Made) -> None:
    """What cannot be a setting is refused when the object is made; a name that is no model when it is asked."""
    for wrong in ({"api_key": 7}, {"temperature": "hot"}, {"user": ["ann"]}, {"timeout": "soon"}):
        with pytest.raises(ValidationError):
            make(**wrong)
    with pytest.raises(ValueError, match="Model name is required"):
        make(model="")
    with pytest.raises(FitrouterError, match="nobody"):
        make(model="nobody").call("Hello")


@pytest.mark.parametrize("timers", [Timers(deadline_s=10.0, first_token_s=2.0, chunk_gap_s=2.0)])
def test_a_model_that_stands_still_is_replaced(make: Made, models: Models) -> None:
    """The retry is the router's: another model answers, and CrewAI sees one call."""
    models.trouble = lambda call: asyncio.sleep(60) if len(models.calls) == 0 else None
    made = make()
    assert "heard Hello" in made.call("Hello")
    first, second = (call.target for call in models.calls)
    assert first != second
    about = made.last()
    assert about is not None
    assert (about.chosen, about.model) == (first, second)


def test_a_request_ends_at_its_timeout(make: Made, models: Models) -> None:
    """When everybody stands still the call fails, and CrewAI's events say so."""
    models.trouble = lambda call: asyncio.sleep(60)
    with crewai_event_bus.scoped_handlers():
        failed = heard(LLMCallFailedEvent)
        with pytest.raises(AllModelsFailed):
            make(timeout=0.3).call("Hello")
        crewai_event_bus.flush()
    assert len(failed) == 1


async def _busy() -> None:
    raise ProviderUnavailable("too many requests", 429)


def test_a_rate_limit_is_met_inside_the_router(make: Made, models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """One busy model is replaced at once; only when all are busy CrewAI waits and asks again."""
    waited: list[float] = []
    monkeypatch.setattr(crewai.llms.retry.run_with_rate_limit_retry, "__kwdefaults__", {"sleep": waited.append})
    models.trouble = lambda call: _busy() if len(models.calls) == 0 else None
    assert "heard Hello" in make().call("Hello")
    assert len(models.calls) == 2
    assert waited == []
    models.trouble = lambda call: _busy()
    with pytest.raises(AllRateLimited):
        make().call("Hello")
    assert len(waited) == 2


# --- llms/test_tool_call_streaming.py, events/test_llm_usage_event.py ---


@pytest.mark.parametrize("entry", ["call", "acall"])
def test_streamed_tool_calls_are_told_piece_by_piece(make: Made, entry: str) -> None:
    """Each piece is an event with the call as far as it is there; the last has all arguments."""
    made = make(stream=True)
    with crewai_event_bus.scoped_handlers():
        pieces, done = heard(LLMStreamChunkEvent), heard(LLMCallCompletedEvent)
        answer = getattr(made, entry)("2 + 3", tools=[ADDER])
        (call,) = asyncio.run(answer) if entry == "acall" else answer
        crewai_event_bus.flush()
    assert {event.call_type for event in pieces} == {LLMCallType.TOOL_CALL}
    assert {event.tool_call.function.name for event in pieces} == {"adder"}
    assert {event.tool_call.id for event in pieces} == {call.id}
    told = [event.tool_call.function.arguments for event in pieces]
    assert told == sorted(told, key=len)
    assert told[-1] == call.function.arguments == "".join(event.chunk for event in pieces)
    about = made.last()
    assert about is not None
    assert {event.response_id for event in [*pieces, *done]} == {about.decision_id}
    assert len({event.call_id for event in [*pieces, *done]}) == 1


def test_streamed_text_is_told_piece_by_piece(make: Made) -> None:
    """The pieces join to the answer."""
    with crewai_event_bus.scoped_handlers():
        pieces = heard(LLMStreamChunkEvent)
        answer = make(stream=True).call("Hello")
        crewai_event_bus.flush()
    assert "".join(event.chunk for event in pieces) == answer
    assert all(event.tool_call is None for event in pieces)


def test_events_of_a_call_belong_together(make: Made) -> None:
    """Started and completed share the call's id; they name the model, the agent and the task."""
    with crewai_event_bus.scoped_handlers():
        began, ended = heard(LLMCallStartedEvent), heard(LLMCallCompletedEvent)
        done = say_hello(make())
        crewai_event_bus.flush()
    (start,), (end,) = began, ended
    assert start.call_id == end.call_id
    assert start.model == "fitrouter/auto"
    assert (end.agent_role, end.task_name) == ("Greeter", "Say hello to the world")
    assert end.call_type is LLMCallType.LLM_CALL
    assert end.usage["total_tokens"] == done.token_usage.total_tokens


# --- hooks/test_llm_hooks.py ---


def test_hooks_see_and_change_a_direct_call(make: Made, models: Models) -> None:
    """What a hook writes before reaches the model, what it returns after reaches the caller."""
    seen: list[LLMCallHookContext] = []

    def before(context: LLMCallHookContext) -> None:
        seen.append(context)
        context.messages.append({"role": "user", "content": "in French"})

    register_before_llm_call_hook(before)
    register_after_llm_call_hook(lambda context: f"<{context.response}>")
    made = make(model="alpha")
    assert made.call("Hello") == "<alpha heard in French>"
    assert seen[0].llm is made
    assert [message["content"] for message in models.calls[0].messages] == ["Hello", "in French"]


async def test_hooks_see_and_change_an_awaited_call(make: Made) -> None:
    """The same where the caller awaits."""
    register_before_llm_call_hook(lambda context: context.messages.append({"role": "user", "content": "now"}))
    register_after_llm_call_hook(lambda context: f"<{context.response}>")
    assert await make(model="alpha").acall("Hello") == "<alpha heard now>"


def test_a_hook_can_block(make: Made, models: Models) -> None:
    """Nobody is asked, nothing is decided, and the failure is told."""
    register_before_llm_call_hook(lambda context: False)
    made = make()
    with crewai_event_bus.scoped_handlers():
        failed = heard(LLMCallFailedEvent)
        with pytest.raises(LLMCallBlockedError):
            made.call("Hello")
        crewai_event_bus.flush()
    assert models.calls == []
    assert made.last() is None
    assert len(failed) == 1


def test_a_hook_that_aborts_is_heard(make: Made, models: Models) -> None:
    """Its error reaches the caller as it is."""

    def abort(context: LLMCallHookContext) -> None:
        raise HookAborted("over the budget")

    register_before_llm_call_hook(abort)
    with pytest.raises(HookAborted, match="over the budget"):
        make().call("Hello")
    assert models.calls == []


def test_hooks_run_once_for_an_agents_call(make: Made, models: Models) -> None:
    """The executor runs them itself: ours must not run them again."""
    seen: list[str] = []
    register_before_llm_call_hook(lambda context: seen.append(f"before {context.agent.role}"))
    register_after_llm_call_hook(lambda context: seen.append(f"after {context.agent.role}"))
    say_hello(make())
    assert len(models.calls) == 1
    assert seen == ["before Greeter", "after Greeter"]


# --- agents/test_async_agent_executor.py, agents/test_agent_executor.py ---


async def test_awaited_agents_go_on_side_by_side(tmp_path: Path, models: Models) -> None:
    """Three crews on one object and one loop: each waits for its own answer only."""
    meeting = asyncio.Barrier(3)
    models.trouble = lambda call: meeting.wait()  # nobody is answered before all three have asked
    router = agent_router(tmp_path, models, timers=Timers())
    with connect(router):
        llm = FitrouterLLM(router=router)
        people = [Agent(role=f"Nr {i}", goal="greet", backstory="a person", llm=llm) for i in range(3)]
        tasks = [Task(description=f"Say {one.role}", expected_output="a word", agent=one) for one in people]
        crews = [Crew(agents=[one], tasks=[task]) for one, task in zip(people, tasks, strict=True)]
        done = await asyncio.gather(*(crew.akickoff() for crew in crews))
    assert all(f"Say {one.role}" in each.raw for one, each in zip(people, done, strict=True))


@pytest.mark.parametrize("entry", ["kickoff", "akickoff"])
def test_an_empty_answer_is_an_error(make: Made, models: Models, entry: str) -> None:
    """CrewAI says so, after as many tries as its agent has."""
    models._answer = lambda call: ({"role": "assistant", "content": ""}, "stop")  # type: ignore[method-assign]
    one = Agent(role="Greeter", goal="greet", backstory="a person", llm=make(), max_retry_limit=0)
    crew = Crew(agents=[one], tasks=[Task(description="Say hello", expected_output="a greeting", agent=one)])
    with pytest.raises(ValueError, match="None or empty"):
        asyncio.run(crew.akickoff()) if entry == "akickoff" else crew.kickoff()
    assert len(models.calls) == 1


def test_an_agents_next_task_begins_anew(make: Made, models: Models) -> None:
    """Nothing of the first task's conversation is in the second one's, but what CrewAI tells of its result."""
    one = Agent(role="Greeter", goal="greet", backstory="a person", llm=make())
    tasks = [Task(description=f"Say {word}", expected_output="a word", agent=one) for word in ("aye", "bye")]
    tasks[1].context = []
    Crew(agents=[one], tasks=tasks).kickoff()
    first, second = models.calls
    assert "Say aye" in str(first.messages)
    assert "Say aye" not in str(second.messages)


# --- events/test_llm_finish_reason_response_id.py ---


def test_a_started_call_tells_its_settings(make: Made) -> None:
    """All that was set, and what is not set is not there."""
    settings = {
        "temperature": 0.4,
        "top_p": 0.8,
        "max_tokens": 256,
        "stream": True,
        "seed": 7,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.6,
    }
    with crewai_event_bus.scoped_handlers():
        began = heard(LLMCallStartedEvent)
        make(stop=["STOP"], **settings).call("Hello")
        make().call("Hello")
        crewai_event_bus.flush()
    full, bare = began
    assert {name: getattr(full, name) for name in settings} == settings
    assert full.stop_sequences == ["STOP"]
    assert {getattr(bare, name) for name in settings} == {None}
