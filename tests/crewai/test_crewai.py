"""Crews over a router: tools, delegation, typed output, async, events, hooks, usage; and nothing leaves the machine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("crewai", reason="install the extra `crewai`")

from crewai import Agent, Crew, Process, Task
from crewai.events import LLMCallCompletedEvent, LLMCallFailedEvent, LLMStreamChunkEvent, crewai_event_bus
from crewai.llm import LLM
from crewai.security import Fingerprint, SecurityConfig
from crewai.utilities.llm_utils import create_llm
from tests.kits.agents import agent_router
from tests.kits.crewai import Sum, adder, nobody_leaves
from tests.kits.gateway import serving

from fitrouter.errors import FitrouterError, InvalidRequest
from fitrouter.stores.journal import MemoryJournal
from fitrouter.types import Decision, FeedbackKind
from fitrouter_integrations.client import Vote, connect
from fitrouter_integrations.crewai import FitrouterLLM

# CrewAI warns of fields of its own that it still sets on every agent.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def home(tmp_path: Path) -> Iterator[None]:
    with nobody_leaves(tmp_path):
        yield


@pytest.fixture(params=["near", "far"])
def llm(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FitrouterLLM]:
    """A crew's model over a router in this process, and over a gateway."""
    router = agent_router(tmp_path)
    if request.param == "near":
        with connect(router):
            made = FitrouterLLM(router=router)
            made._router = router
            yield made
    else:
        with serving(router) as url, connect(url):
            made = FitrouterLLM(router=url)
            made._router = router
            yield made


def decisions(llm: FitrouterLLM) -> list[Decision]:
    router = llm._router
    assert isinstance(router._journal, MemoryJournal)
    router._recorder  # noqa: B018
    return [row.event for row in router._journal.tail(0, 1000) if isinstance(row.event, Decision)]


def agent(llm: Any, role: str = "Researcher", **more: Any) -> Agent:
    return Agent(role=role, goal="find out", backstory="a person", llm=llm, verbose=False, **more)


def crew(agents: list[Agent], tasks: list[Task], **more: Any) -> Crew:
    return Crew(agents=agents, tasks=tasks, verbose=False, **more)


def test_a_sequential_crew_with_a_tool_and_a_typed_output(llm: FitrouterLLM) -> None:
    """An agent calls a tool, the next one fills in a schema; roles and tasks are in the decision log."""
    first, second = agent(llm, tools=[adder]), agent(llm, "Writer")
    tasks = [
        Task(description="Add 2 and 3", expected_output="a number", agent=first, name="add"),
        Task(description="Write it down", expected_output="JSON", agent=second, output_pydantic=Sum, name="write"),
    ]
    result = crew([first, second], tasks, name="desk").kickoff()
    assert result.pydantic == Sum(value=3, note="hello")
    made = decisions(llm)
    assert {(d.identity.role, d.identity.task) for d in made} == {("Researcher", "add"), ("Writer", "write")}
    sessions = {d.identity.role: set() for d in made}
    for d in made:
        sessions[d.identity.role].add(d.identity.session)
    assert all(len(found) == 1 for found in sessions.values())


def test_usage_is_right_when_agents_share_one_object(llm: FitrouterLLM) -> None:
    """Each token counts once in the crew's usage, however many agents share the model."""
    agents = [agent(llm, role) for role in ("Researcher", "Writer", "Editor")]
    tasks = [Task(description=f"Do {a.role}", expected_output="text", agent=a) for a in agents]
    found = crew(agents, tasks).kickoff()
    events = 3 * 11
    assert found.token_usage.completion_tokens == events
    assert found.token_usage.successful_requests == 3


def test_an_async_kickoff(llm: FitrouterLLM) -> None:
    """`akickoff` awaits."""
    one = agent(llm)
    made = crew([one], [Task(description="Say hello", expected_output="text", agent=one)])
    assert asyncio.run(made.akickoff()).raw


def test_a_hierarchical_crew(llm: FitrouterLLM) -> None:
    """A manager model delegates."""
    workers = [agent(llm), agent(llm, "Writer")]
    task = Task(description="Write a line", expected_output="text")
    made = crew(workers, [task], process=Process.hierarchical, manager_llm=llm)
    assert made.kickoff().raw


def test_fingerprints_and_inputs_say_who_asks(llm: FitrouterLLM) -> None:
    """A fingerprint's metadata goes before inputs, and these before what the model was made with."""
    identities = llm._router._identities
    given = SecurityConfig(fingerprint=Fingerprint(metadata={"user_id": "ann", "role": "analyst"}))
    named = agent(llm, security_config=given)
    crew([named], [Task(description="Say hello", expected_output="text", agent=named)]).kickoff({"user_id": "bob"})
    assert decisions(llm)[-1].identity.user == identities.subject("default", "ann")
    assert decisions(llm)[-1].identity.role == "analyst"
    plain = agent(llm)
    crew([plain], [Task(description="Say {word}", expected_output="text", agent=plain)]).kickoff(
        {"user_id": "bob", "word": "hello"}
    )
    assert decisions(llm)[-1].identity.user == identities.subject("default", "bob")
    assert decisions(llm)[-1].identity.role == "Researcher"


def test_an_identity_that_is_no_text_is_refused(llm: FitrouterLLM) -> None:
    """A user must be text or a number."""
    given = SecurityConfig(fingerprint=Fingerprint(metadata={"user_id": ["ann"]}))
    with pytest.raises(InvalidRequest, match="user_id: list"):
        llm.call("hello", from_agent=agent(llm, security_config=given))


def test_events_say_what_was_used_and_decided(llm: FitrouterLLM) -> None:
    """A completed call tells its usage, why it ended and its decision id; a failed one says so."""
    seen: list[Any] = []
    with crewai_event_bus.scoped_handlers():
        for kind in (LLMCallCompletedEvent, LLMCallFailedEvent, LLMStreamChunkEvent):
            crewai_event_bus.on(kind)(lambda _source, event: seen.append(event))
        llm.call("hello")
        streaming = llm.model_copy(update={"stream": True})
        streaming._client = llm.client
        assert streaming.call("hello")
        broken = llm.model_copy(update={"model": "nobody"})
        broken._client = llm.client
        with pytest.raises(FitrouterError):
            broken.call("hello")
        crewai_event_bus.flush()
    whole, streamed = [event for event in seen if isinstance(event, LLMCallCompletedEvent)]
    for event in (whole, streamed):
        assert event.usage["completion_tokens"] == 11
        assert event.finish_reason == "stop"
        assert event.response_id
    assert sum(isinstance(event, LLMStreamChunkEvent) for event in seen) >= 2
    assert sum(isinstance(event, LLMCallFailedEvent) for event in seen) == 1


def test_feedback_joins_the_call(llm: FitrouterLLM) -> None:
    """The decision of an agent's latest call can be judged."""
    assert llm.last() is None
    one = agent(llm)
    crew([one], [Task(description="Say hello", expected_output="text", agent=one)]).kickoff()
    about = llm.last(one)
    assert about is not None
    assert about.cost_usd
    assert llm.feedback(Vote(decision_id=about.decision_id, kind=FeedbackKind.THUMB, value=1.0))


def test_feedback_of_another_tenant(tmp_path: Path) -> None:
    """A verdict on an answer for a tenant is one of that tenant."""
    router = agent_router(tmp_path)
    with connect(router):
        llm = FitrouterLLM(router=router, tenant="acme", user="ann")
        llm.call("hello")
        about = llm.last()
        assert about is not None
        assert llm.feedback(Vote(decision_id=about.decision_id, kind=FeedbackKind.THUMB, value=1.0, user="ann"))


# --- the patterns of crewAI's own tests for custom models ---


def test_create_llm_keeps_it(llm: FitrouterLLM) -> None:
    """CrewAI takes the object as it is."""
    assert create_llm(llm) is llm
    assert not isinstance(llm, LLM)
    assert agent(llm).llm is llm


def test_messages_of_every_kind(llm: FitrouterLLM) -> None:
    """A string, and lists of messages."""
    assert "heard hello" in llm.call("hello")
    history = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    assert "heard hi" in llm.call(history)


def test_stop_words_cut(llm: FitrouterLLM) -> None:
    """What comes after a stop word is not in the answer."""
    stopping = llm.model_copy(update={"stop": ["hello"]})
    stopping._client = llm.client
    assert "hello" not in stopping.call("hello there")


def test_functions_are_run_where_they_are_given(llm: FitrouterLLM) -> None:
    """With `available_functions` the tool's result is the answer, without them its call is."""
    schema = {
        "type": "function",
        "function": {
            "name": "adder",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
        },
    }
    ran = llm.call("2 + 3", tools=[schema], available_functions={"adder": lambda a, b: a + b})
    assert ran == "6"
    (called,) = llm.call("2 + 3", tools=[schema])
    assert called.function.name == "adder"


def test_a_model_need_not_be_named_and_defaults_are_said(llm: FitrouterLLM) -> None:
    """It routes by itself, and says what it can do."""
    assert llm.model == "fitrouter/auto"
    assert llm.supports_function_calling()
    assert llm.get_context_window_size() == int(0.85 * 128_000)
    assert llm.get_input_tokens_count("four score and seven") > 0


def test_keys_are_masked() -> None:
    """A key is in no text of the model."""
    made = FitrouterLLM(router="http://127.0.0.1:9", api_key="sk-secret")
    assert "sk-secret" not in repr(made) + str(made) + str(made.to_config_dict())
