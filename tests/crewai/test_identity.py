"""Who asks, by CrewAI's model: each channel × each way to start a crew, an agent or a call, near and far."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("crewai", reason="install the extra `crewai`")

from crewai import Agent, Crew, Process, Task
from crewai.flow.flow import Flow, start
from crewai.security import Fingerprint, SecurityConfig
from crewai.tools import tool
from pydantic import BaseModel, ValidationError
from tests.kits import agents as agents_kit
from tests.kits.identity import ANN, BOB, NOTHING, REFUSED, TAKEN, Desk, fields, ids, standing, told

from fitrouter.errors import InvalidRequest, NotAuthorized
from fitrouter.types import Identity
from fitrouter_integrations.crewai import FitrouterLLM

# CrewAI warns of fields of its own that it still sets on every agent.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Sum(BaseModel):
    """A typed output."""

    value: int
    note: str


@tool("adder")
def adder(a: int, b: int) -> str:
    """Adds two numbers."""
    return f"{a + b}"


@dataclass
class Said:
    """A crew that somebody kicks off, and what is said on the way to its model."""

    target: Any
    task: dict[str, Any] = field(default_factory=dict)
    agent: dict[str, Any] = field(default_factory=dict)
    crew: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    def llm(self, **more: Any) -> FitrouterLLM:
        return FitrouterLLM(router=self.target, **self.settings, **more)

    def one(self, llm: Any = None, role: str = "Researcher", **more: Any) -> Agent:
        return Agent(
            role=role, goal="g", backstory="b", llm=llm or self.llm(), verbose=False, **_secured(self.agent), **more
        )

    def job(self, agent: Agent | None = None, **more: Any) -> Task:
        return Task(name="look", description="Look", expected_output="text", agent=agent, **_secured(self.task), **more)

    def team(self, agent: dict[str, Any] | None = None, job: dict[str, Any] | None = None, **more: Any) -> Crew:
        one = self.one(**(agent or {}))
        return Crew(agents=[one], tasks=[self.job(one, **(job or {}))], verbose=False, **_secured(self.crew), **more)


def _secured(metadata: dict[str, Any]) -> dict[str, Any]:
    return {"security_config": SecurityConfig(fingerprint=Fingerprint(metadata=metadata))} if metadata else {}


# --- how it is said: the more explicit first -------------------------------------------------------------------------

CHANNELS: dict[str, Callable[[Said, Any], object]] = {
    "the task's fingerprint": lambda said, who: said.task.update(who),
    "the agent's fingerprint": lambda said, who: said.agent.update(who),
    "the crew's fingerprint": lambda said, who: said.crew.update(who),
    "inputs": lambda said, who: said.inputs.update(who),
    "constructor": lambda said, who: said.settings.update(who),
}
SAYS = {"inputs": ("user", "session")}
"""What a channel can say, where that is not all: a crew's own variables are often called role or task."""
ITSELF = {"role": "Researcher", "task": "look"}
"""What a crew says by itself."""


# --- where: each says how often it asks ------------------------------------------------------------------------------


def _flow(said: Said) -> int:
    class Work(Flow[Any]):
        @start()
        def work(self) -> Any:
            return said.team().kickoff(said.inputs)

    Work(suppress_flow_events=True).kickoff()
    return 1


def _side_by_side(said: Said) -> int:
    agents = [said.one() for _ in range(3)]
    tasks = [said.job(one, async_execution=one is not agents[-1]) for one in agents]
    Crew(agents=agents, tasks=tasks, verbose=False, **_secured(said.crew)).kickoff(said.inputs)
    return 3


CREWS: dict[str, Callable[[Said], int | None]] = {
    "kickoff": lambda s: s.team().kickoff(s.inputs) and None,
    "kickoff_async": lambda s: asyncio.run(s.team().kickoff_async(s.inputs)) and None,
    "akickoff": lambda s: asyncio.run(s.team().akickoff(s.inputs)) and None,
    "kickoff_for_each": lambda s: len(s.team().kickoff_for_each([s.inputs, s.inputs])),
    "kickoff_for_each_async": lambda s: len(asyncio.run(s.team().kickoff_for_each_async([s.inputs, s.inputs]))),
    "akickoff_for_each": lambda s: len(asyncio.run(s.team().akickoff_for_each([s.inputs, s.inputs]))),
    "streaming": lambda s: s.team({"llm": s.llm(stream=True)}).kickoff(s.inputs) and None,
    "tools": lambda s: s.team({"tools": [adder]}).kickoff(s.inputs) and 2,
    "last words": lambda s: s.team({"tools": [adder], "max_iter": 1}).kickoff(s.inputs) and 2,
    "output_pydantic": lambda s: s.team(job={"output_pydantic": Sum}).kickoff(s.inputs) and None,
    "async_execution": _side_by_side,
    "in a flow": _flow,
}
CELLS = [(channel, entry) for channel in CHANNELS for entry in CREWS]
FAR = [(channel, "akickoff") for channel in CHANNELS]


@pytest.fixture(scope="module", params=["near", "far"])
def desk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A router in this process, and a gateway; its models hand work on to the worker `Writer`."""
    hands_on = agents_kit.Agent({"coworker": "Writer"})
    with standing(tmp_path_factory.mktemp("desk"), request.param, hands_on) as made:
        yield made


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CREWAI_STORAGE_DIR", str(tmp_path / "crew"))
    monkeypatch.chdir(tmp_path)


def said_by(desk: Desk, **channels: Any) -> Said:
    """A crew in which each channel says something."""
    said = Said(desk.target)
    for name, who in channels.items():
        CHANNELS[name](said, who)
    return said


def says(channel: str, who: Identity) -> dict[str, str]:
    """An identity as a channel can say it."""
    return fields(who, *SAYS.get(channel, ())) if channel in {"inputs", "constructor"} else ids(who)


@pytest.mark.parametrize(
    ("desk", "channel", "entry"),
    [("near", *cell) for cell in CELLS] + [("far", *cell) for cell in FAR],
    indirect=["desk"],
)
def test_each_channel_at_each_kickoff(desk: Desk, channel: str, entry: str) -> None:
    """What a channel says is in the decision of every step; what it cannot say the crew says by itself."""
    steps = CREWS[entry](said_by(desk, **{channel: says(channel, ANN)})) or 1
    who = Identity(**{**fields(ANN), **({} if channel not in SAYS else ITSELF)})
    desk.check(who, steps=steps)


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(CHANNELS, 2)))
@pytest.mark.parametrize("desk", ["near"], indirect=True)
def test_the_more_explicit_channel_counts(desk: Desk, first: str, second: str) -> None:
    """Of two channels the one further up counts, field by field; the other fills in what it leaves out."""
    said = said_by(desk, **{first: {"user": "ann"}, second: says(second, BOB)})
    said.team().kickoff(said.inputs)
    desk.check(Identity(**{**fields(BOB), **(ITSELF if second in SAYS else {}), "user": "ann"}))


# --- whose words are not a crew's own --------------------------------------------------------------------------------


@pytest.mark.parametrize("channel", ["the crew's fingerprint", "inputs", "constructor"])
def test_managers_planners_and_guardrails_ask_for_the_same_user(desk: Desk, channel: str) -> None:
    """A manager, a worker that it hands work on to, a planner and a guardrail: each a role, and all the user's."""
    said = said_by(desk, **{channel: {"user": "ann"}})
    workers = [said.one(), said.one(role="Writer")]
    crew = Crew(
        agents=workers,
        tasks=[said.job()],
        process=Process.hierarchical,
        manager_llm=said.llm(),
        verbose=False,
        **_secured(said.crew),
    )
    crew.kickoff(said.inputs)
    said.team(job={"guardrail": "It is polite."}, planning=True, planning_llm=said.llm()).kickoff(said.inputs)
    found, ann = desk.seen(), desk.expected(ANN).user
    assert {identity.user for identity in found} == {ann}
    roles = {identity.role for identity in found}
    assert roles == {"Crew Manager", "Writer", "Task Execution Planner", "Researcher", "Guardrail Agent"}


def test_a_crew_says_roles_tasks_and_sessions_by_itself(desk: Desk) -> None:
    """The agent's role and the task's name, on one line and not too long; one session for each run of a task."""
    said = said_by(desk)
    one = said.one(role="Senior\n  researcher\n" + "x" * 600, tools=[adder])
    tasks = [said.job(one), Task(description="Write\nit " + "y" * 600, expected_output="text", agent=one)]
    Crew(agents=[one], tasks=tasks, verbose=False).kickoff()
    found = desk.seen()
    assert len(found) == 4
    assert {identity.user for identity in found} == {None}
    (role,) = {identity.role for identity in found}
    assert str(role).startswith("Senior researcher xxx")
    first, second = dict.fromkeys(identity.task for identity in found)
    assert (first, str(second)[:12]) == ("look", "Write it yyy")
    assert len({(identity.task, identity.session) for identity in found}) == 2


@pytest.mark.parametrize("channel", ["the agent's fingerprint", "constructor"])
@pytest.mark.parametrize("awaited", [False, True])
def test_an_agent_alone(desk: Desk, channel: str, awaited: bool) -> None:
    """`Agent.kickoff` without a crew, with a tool, typed at its end: an agent's fingerprint counts for every step."""
    said = said_by(desk, **{channel: says(channel, ANN)})

    one = said.one(tools=[adder])
    asked = {"messages": "2 + 3?", "response_format": Sum}
    result = asyncio.run(one.kickoff_async(**asked)) if awaited else one.kickoff(**asked)
    assert result.pydantic == Sum(value=3, note="hello")
    found = desk.seen()
    assert len(found) > 2
    assert set(found) == {desk.expected(ANN)}


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_a_bare_call(desk: Desk, awaited: bool, stream: bool) -> None:
    """`call` and `acall`, whole and streamed: what the model was made with, and who is named beside the messages."""
    for channel in ("the task's fingerprint", "the agent's fingerprint", "constructor"):
        said = said_by(desk, **{channel: says(channel, ANN)})
        llm = said.llm(stream=stream)
        one = said.one(llm)
        beside = {"from_agent": one, "from_task": said.job(one)}
        _ = asyncio.run(llm.acall("hi", **beside)) if awaited else llm.call("hi", **beside)
        desk.check(ANN)


# --- what is a name --------------------------------------------------------------------------------------------------


def call(said: Said) -> None:
    """A call as a crew makes it."""
    one = said.one()
    job = said.job(one)
    one.crew = Crew(agents=[one], tasks=[job], verbose=False, **_secured(said.crew))
    one.crew._inputs = said.inputs
    one.llm.call("hi", from_agent=one, from_task=job)


@pytest.mark.parametrize("channel", CHANNELS)
def test_what_is_a_name(desk: Desk, channel: str) -> None:
    """Text and whole numbers are; anything else is refused where it was given, before anybody is asked.

    What says nothing leaves it to the next channel; pydantic says what is wrong with a setting.
    """
    for value in REFUSED.values():
        error: Any = ValidationError if channel == "constructor" else InvalidRequest
        with pytest.raises(error, match=r"user: (\w+ was given; give text|has )"):
            call(said_by(desk, **{channel: {"user": value}}))
    desk.nobody()
    for value, read in TAKEN.values():
        call(said_by(desk, **{channel: {"user": value}}))
        desk.check(Identity(user=read), "user")
    for nothing in NOTHING.values():
        call(said_by(desk, **{"constructor": {"user": "bob"}, channel: {"user": nothing}}))
        desk.check(Identity(user=None if channel == "constructor" else "bob"), "user")


def test_a_crew_fails_with_the_words(desk: Desk) -> None:
    """What is no name ends the kickoff, with the error of the call."""
    said = said_by(desk, inputs={"user_id": 0.5})
    with pytest.raises(InvalidRequest, match=r"inputs\.user_id: float was given"):
        said.team().kickoff(said.inputs)
    desk.nobody()


@pytest.mark.parametrize("channel", [name for name in CHANNELS if name not in SAYS])
def test_a_tenant_near_and_far(desk: Desk, channel: str) -> None:
    """Any channel may name a tenant of a router in this process; a gateway knows it by the key, and this is said."""
    said = said_by(desk, **{channel: {"tenant": "acme", **fields(ANN)}})
    if desk.far:
        with pytest.raises(NotAuthorized, match="by the key"):
            call(said)
        desk.nobody()
    else:
        call(said)
        desk.check(Identity(tenant="acme", **fields(ANN)))


def test_the_documentation_says_the_same() -> None:
    """Its table has these channels, in this order."""
    assert list(told("crewai.md")) == [*CHANNELS, "the crew itself"]
