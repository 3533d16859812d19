"""Everything that crews do, over one shared model, near and far; and nothing leaves the machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("crewai", reason="install the extra `crewai`")

from crewai import Agent, Crew, Process, Task
from crewai.agent.planning_config import PlanningConfig
from crewai.events import LLMCallFailedEvent, crewai_event_bus
from crewai.flow.flow import Flow, listen, start
from crewai.hooks import HookAborted, clear_all_llm_call_hooks, register_before_llm_call_hook
from crewai.llms.base_llm import LLMCallBlockedError
from crewai.memory.unified_memory import Memory
from crewai.project import CrewBase
from crewai.project import agent as agent_of
from crewai.project import crew as crew_of
from crewai.project import llm as llm_of
from crewai.project import task as task_of
from crewai.tools import BaseTool
from pydantic import BaseModel, ValidationError
from tests.kits.crewai import Place, Sum, adder, agent, crew, nobody_leaves, place, task

from fitrouter.types import Call

# CrewAI warns of fields of its own that it still sets on every agent, and of callbacks that no checkpoint can hold.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:function callbacks cannot be serialized:UserWarning"),
]
SAID = 11
"""Tokens of every answer."""
WAYS: dict[str, Callable[[Crew], Any]] = {
    "kickoff": lambda desk: desk.kickoff(),
    "akickoff": lambda desk: asyncio.run(desk.akickoff()),
}


@pytest.fixture(scope="module", params=["near", "far"])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(tmp_path_factory.mktemp("router"), far=request.param == "far") as made:
        yield made


@pytest.fixture
def here(shared: Place, tmp_path: Path) -> Iterator[Place]:
    """A clean router in this process, and one over a gateway."""
    shared.clean()
    clear_all_llm_call_hooks()
    with nobody_leaves(tmp_path):
        yield shared
    clear_all_llm_call_hooks()


@pytest.fixture
def run(here: Place) -> Callable[[Crew], Any]:
    """How a crew is started: awaited in process, blocking over a gateway."""
    return WAYS["kickoff" if isinstance(here.target, str) else "akickoff"]


def roles(here: Place) -> list[str | None]:
    return [decision.identity.role for decision in here.decisions()]


def delegating(call: Call) -> Any:
    """The boss gives its work to the writer, and tells what came of it."""
    if not str(call.messages[0]["content"]).startswith("You are Boss"):
        return "a fine line"
    told = call.messages[-1]
    if told["role"] == "tool":
        return f"the writer said: {told['content']}"
    return {"task": "Write a line", "context": "none", "coworker": "Writer"}


def managed(call: Call) -> Any:
    """As `delegating`, with CrewAI's own manager as the boss."""
    if "Crew Manager" in str(call.messages[0]):
        call = msgspec.structs.replace(call, messages=({"content": "You are Boss"}, *call.messages[1:]))
    return delegating(call)


# --- who works with whom ---


@pytest.mark.parametrize("kind", ["delegation", "manager_agent", "manager_llm"])
def test_work_is_given_to_others(here: Place, run: Callable[[Crew], Any], kind: str) -> None:
    """Each answer is its own agent's decision, and all tokens of the crew are counted once."""
    llm = here.llm()
    here.models.script = delegating
    writer = agent(llm, "Writer")
    boss = agent(llm, "Boss", allow_delegation=True)
    if kind == "delegation":
        desk = crew([boss, writer], [task(boss, "Have a line written")])
    elif kind == "manager_agent":
        more = {"process": Process.hierarchical, "manager_agent": boss}
        desk = crew([writer], [task(None, "Have a line written")], **more)
    else:
        here.models.script = managed
        desk = crew([writer], [task(None, "Have a line written")], process=Process.hierarchical, manager_llm=llm)
    done = run(desk)
    assert done.raw == "the writer said: a fine line"
    boss_role = "Crew Manager" if kind == "manager_llm" else "Boss"
    assert roles(here) == [boss_role, "Writer", boss_role]
    assert done.token_usage.completion_tokens == 3 * SAID


def test_tasks_at_once(here: Place, run: Callable[[Crew], Any]) -> None:
    """Asynchronous tasks run side by side; each has its own conversation, and no token is lost."""
    llm = here.llm()
    people = [agent(llm, f"Nr {i}") for i in range(3)]
    side = [task(one, f"Do {i}", name=f"task {i}", async_execution=True) for i, one in enumerate(people)]
    done = run(crew(people, [*side, task(people[0], "Do the last", name="the last", context=side)]))
    assert done.token_usage.completion_tokens == 4 * SAID
    made = here.decisions()
    found = sorted((d.identity.role, d.identity.task) for d in made)
    assert found == [("Nr 0", "task 0"), ("Nr 0", "the last"), ("Nr 1", "task 1"), ("Nr 2", "task 2")]
    assert len({d.identity.session for d in made}) == 4


def test_an_agent_that_plans_first(here: Place, run: Callable[[Crew], Any]) -> None:
    """A plan is made by the agent's model, and by another of ours where the plan has one."""
    one = agent(here.llm(), planning_config=PlanningConfig(llm=here.llm(), max_attempts=1))
    assert run(crew([one], [task(one)])).raw
    assert len(here.models.calls) >= 2
    assert set(roles(here)) <= {"Researcher", None}


# --- tools ---


class Numbers(BaseModel):
    """Arguments."""

    a: int
    b: int


class Tool(BaseTool):
    """Adds, and counts how often."""

    name: str = "sum"
    description: str = "adds"
    args_schema: type[BaseModel] = Numbers
    ran: int = 0

    def _run(self, a: int, b: int) -> str:
        self.ran += 1
        return f"the sum is {a + b}"


class Broken(Tool):
    """Does not work."""

    def _run(self, a: int, b: int) -> str:
        raise RuntimeError("out of numbers")


def test_a_tool_that_fails_is_told_to_the_model(here: Place, run: Callable[[Crew], Any]) -> None:
    """The agent goes on with the error as what the tool said."""
    one = agent(here.llm(), tools=[Broken()])
    assert "out of numbers" in run(crew([one], [task(one)])).raw
    assert len(here.models.calls) == 2


def test_what_a_tool_says_may_be_the_answer(here: Place, run: Callable[[Crew], Any]) -> None:
    """No model is asked for more."""
    one = agent(here.llm(), tools=[Tool(result_as_answer=True)])
    assert run(crew([one], [task(one)])).raw == "the sum is 6"
    assert len(here.models.calls) == 1


def test_tools_that_may_be_used_once(here: Place, run: Callable[[Crew], Any]) -> None:
    """The second call is told that it is over; the agent ends by its number of steps."""
    here.models.script = lambda call: {"a": 1, "b": 1} if call.params.get("tools") else "enough"
    what = Tool(max_usage_count=1)
    one = agent(here.llm(), tools=[what], max_iter=3)
    assert run(crew([one], [task(one)])).raw == "enough"
    assert what.ran == 1
    assert len({call.target for call in here.models.calls}) == 1


def test_a_tool_caller_of_its_own(here: Place, run: Callable[[Crew], Any]) -> None:
    """An agent takes one of ours to call tools; a crew takes CrewAI's own class only, and says so."""
    one = agent(here.llm(), tools=[adder], function_calling_llm=here.llm())
    assert run(crew([one], [task(one)])).raw.endswith("heard 6")
    with pytest.raises(ValidationError, match="function_calling_llm"):
        crew([one], [task(one)], function_calling_llm=here.llm())


# --- typed answers ---


@pytest.mark.parametrize("how", ["output_pydantic", "output_json", "response_model"])
def test_typed_outputs_of_tasks(here: Place, run: Callable[[Crew], Any], how: str) -> None:
    """The model is given the schema and is asked once."""
    one = agent(here.llm())
    done = run(crew([one], [task(one, **{how: Sum})]))
    assert Sum.model_validate_json(done.raw) == Sum(value=3, note="hello")
    assert (done.pydantic, done.json_dict) == {
        "output_pydantic": (Sum(value=3, note="hello"), None),
        "output_json": (None, {"value": 3, "note": "hello"}),
        "response_model": (None, None),
    }[how]
    assert len(here.models.calls) == 1


@pytest.mark.parametrize("asynchronous", [False, True])
def test_typed_answers_of_an_agent_by_itself(here: Place, asynchronous: bool) -> None:
    """Tools first, then the type; the usage is of this kickoff."""
    one = agent(here.llm(), tools=[adder])
    done: Any = (
        asyncio.run(one.kickoff_async("hi", response_format=Sum))
        if asynchronous
        else one.kickoff("hi", response_format=Sum)
    )
    assert done.pydantic == Sum(value=3, note="hello")
    assert done.token_usage.completion_tokens == len(here.models.calls) * SAID


# --- streams ---


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_crew_that_streams(here: Place, asynchronous: bool) -> None:
    """Pieces of calls and of text, and whose they are; then the crew's result with its usage."""
    one = agent(here.llm(), tools=[adder])
    desk = crew([one], [task(one)], stream=True)

    async def awaited() -> tuple[list[Any], Any]:
        streaming: Any = await desk.akickoff()
        return [chunk async for chunk in streaming], streaming.result

    if asynchronous:
        chunks, result = asyncio.run(awaited())
    else:
        streaming: Any = desk.kickoff()
        chunks, result = list(streaming), streaming.result
    text = "".join(chunk.content for chunk in chunks if chunk.chunk_type.value == "text")
    assert text == result.raw
    assert result.raw.endswith("heard 6")
    assert {chunk.agent_role for chunk in chunks} == {"Researcher"}
    assert [c.tool_call.arguments for c in chunks if c.tool_call][-1] == '{"a": 3, "b": 3}'
    assert result.token_usage.completion_tokens == 2 * SAID


def test_a_call_that_streams_its_events(here: Place) -> None:
    """`stream_events` asks for pieces, whatever the model was made with."""
    session = here.llm().stream_events("hello")
    frames = list(session)
    assert "".join(frame.content for frame in frames if frame.type == "llm_stream_chunk") == session.result
    assert [frames[0].type, frames[-1].type] == ["llm_call_started", "llm_call_completed"]


# --- the rest of a crew's life ---


def test_a_crew_in_a_thread(here: Place) -> None:
    """`kickoff_async` leaves the loop free: crews go on side by side."""
    llm = here.llm()

    async def both() -> list[Any]:
        desks = [crew([one], [task(one)]) for one in (agent(llm), agent(llm, "Writer"))]
        return await asyncio.gather(*(desk.kickoff_async() for desk in desks))

    assert [done.token_usage.completion_tokens for done in asyncio.run(both())] == [SAID, SAID]
    assert sorted(map(str, roles(here))) == ["Researcher", "Writer"]


def test_callbacks_are_called(here: Place, run: Callable[[Crew], Any]) -> None:
    """Of steps and of tasks, of agents and of crews."""
    heard: list[str] = []
    one = agent(here.llm(), tools=[adder], step_callback=lambda step: heard.append(type(step).__name__))
    mine = task(one, callback=lambda output: heard.append("task"))
    run(crew([one], [mine], task_callback=lambda output: heard.append("crew")))
    assert heard == ["AgentFinish", "task", "crew"]


def test_limits_of_requests_are_kept(here: Place) -> None:
    """`max_rpm` of agents and crews counts our calls as any others."""
    one = agent(here.llm(), max_rpm=60)
    assert crew([one], [task(one)], max_rpm=60).kickoff().raw


def test_crews_are_trained_and_tested(here: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Both ask the agent's model, and a model that judges, for typed answers."""
    monkeypatch.setattr("builtins.input", lambda *_: "shorter")
    one = agent(here.llm())
    desk = crew([one], [task(one)])
    desk.train(1, "trained.pkl")
    assert (tmp_path / "trained.pkl").exists()
    asked = len(here.models.calls)
    desk.test(1, eval_llm=here.llm())
    assert roles(here)[asked:] == ["Researcher", "Task Execution Evaluator"]


def test_flows_count_crews_and_agents(here: Place) -> None:
    """A flow adds up what its crews, agents and direct calls have used over one shared object."""
    llm = here.llm()

    class Desk(Flow):  # type: ignore[type-arg]
        @start()
        def write(self) -> str:
            one = agent(llm)
            return str(crew([one], [task(one)]).kickoff().raw)

        @listen(write)
        async def read(self, line: str) -> str:
            return str((await agent(llm, "Reader").kickoff_async(f"Read {line[:10]}")).raw)

        @listen(read)
        def judge(self, line: str) -> str:
            return str(llm.call("Judge it"))

    desk = Desk(suppress_flow_events=True)
    assert "heard Judge it" in desk.kickoff()
    assert desk.usage_metrics.completion_tokens == 3 * SAID
    assert roles(here) == ["Researcher", "Reader", None]


def test_crews_from_yaml(here: Place, tmp_path: Path) -> None:
    """The name of a method that gives one of ours is what agents.yaml says."""
    (tmp_path / "agents.yaml").write_text("writer:\n  role: Writer\n  goal: write\n  backstory: b\n  llm: ours\n")
    (tmp_path / "tasks.yaml").write_text("write:\n  description: Say hello\n  expected_output: text\n  agent: writer\n")

    @CrewBase
    class Desk:
        agents_config = str(tmp_path / "agents.yaml")
        tasks_config = str(tmp_path / "tasks.yaml")

        @llm_of
        def ours(self) -> Any:
            return here.llm(user="ann")

        @agent_of
        def writer(self) -> Agent:
            return Agent(config=self.agents_config["writer"])  # type: ignore[index,call-arg]

        @task_of
        def write(self) -> Task:
            return Task(config=self.tasks_config["write"])  # type: ignore[index,call-arg]

        @crew_of
        def crew(self) -> Crew:
            return Crew(agents=self.agents, tasks=self.tasks)  # type: ignore[attr-defined]

    assert "Say hello" in Desk().crew().kickoff().raw
    (made,) = here.decisions()
    assert (made.identity.role, made.identity.task) == ("Writer", "write")
    assert made.identity.user == here.router._identities.subject("default", "ann")


def test_a_memory_with_an_embedder_of_its_own(here: Place, run: Callable[[Crew], Any]) -> None:
    """What is remembered is found by the embedder, and read by one of ours."""
    memory = Memory(llm=here.llm(), embedder=lambda texts: [[float(len(text)), 1.0] for text in texts])
    one = agent(here.llm())
    assert run(crew([one], [task(one)], memory=memory)).raw
    assert "Researcher" in roles(here)


# --- hooks ---


def test_a_blocked_call_ends_the_crew(here: Place, run: Callable[[Crew], Any]) -> None:
    """Nobody is asked; who kicked off is told."""
    register_before_llm_call_hook(lambda context: False)
    one = agent(here.llm())
    with pytest.raises(LLMCallBlockedError, match="blocked by before_llm_call hook"):
        run(crew([one], [task(one)]))
    assert here.models.calls == []


def test_a_denial_is_told_as_one(here: Place) -> None:
    """A hook that forbids a call is no failure of a provider: events name the decision."""

    def deny(context: Any) -> None:
        raise HookAborted("over the budget")

    register_before_llm_call_hook(deny)
    with crewai_event_bus.scoped_handlers():
        told: list[Any] = []
        crewai_event_bus.on(LLMCallFailedEvent)(lambda _source, event: told.append(event.error))
        with pytest.raises(HookAborted):
            here.llm().call("hello")
        crewai_event_bus.flush()
    (error,) = told
    assert error.startswith("LLM call denied by ")
    assert error.endswith("over the budget")
