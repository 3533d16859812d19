"""Identity of CrewAI's model: each channel and each way to start a crew, an agent or a call, near and far.

The rule itself, in all its combinations, is tested in `tests/client/test_identity_rule.py`.
"""

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
from fitrouter.identity import canonical_role
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
class Asked:
    """A crew, and the values in the channels of its model's identity."""

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


# --- channels, the most explicit first -------------------------------------------------------------------------------

CHANNELS: dict[str, Callable[[Asked, Any], object]] = {
    "the task's fingerprint": lambda asked, who: asked.task.update(who),
    "the agent's fingerprint": lambda asked, who: asked.agent.update(who),
    "the crew's fingerprint": lambda asked, who: asked.crew.update(who),
    "inputs": lambda asked, who: asked.inputs.update(who),
    "constructor": lambda asked, who: asked.settings.update(who),
}
CARRIES = {**dict.fromkeys(CHANNELS, FIELDS), "inputs": ("user", "session")}
"""Channel → the fields it can carry; a crew's own variables are often called role or task."""
OWN = {"role": "Researcher", "task": "look"}
"""The defaults that the crew provides."""


# --- entry points: each returns its number of model calls, None for one ----------------------------------------------


def _flow(asked: Asked) -> int:
    class Work(Flow[Any]):
        @start()
        def work(self) -> Any:
            return asked.team().kickoff(asked.inputs)

    Work(suppress_flow_events=True).kickoff()
    return 1


def _side_by_side(asked: Asked) -> int:
    agents = [asked.one() for _ in range(3)]
    tasks = [asked.job(one, async_execution=one is not agents[-1]) for one in agents]
    Crew(agents=agents, tasks=tasks, verbose=False, **_secured(asked.crew)).kickoff(asked.inputs)
    return 3


ENTRIES: dict[str, Callable[[Asked], int | None]] = {
    "kickoff": lambda a: a.team().kickoff(a.inputs) and None,
    "kickoff_async": lambda a: asyncio.run(a.team().kickoff_async(a.inputs)) and None,
    "akickoff": lambda a: asyncio.run(a.team().akickoff(a.inputs)) and None,
    "kickoff_for_each": lambda a: len(a.team().kickoff_for_each([a.inputs, a.inputs])),
    "kickoff_for_each_async": lambda a: len(asyncio.run(a.team().kickoff_for_each_async([a.inputs, a.inputs]))),
    "akickoff_for_each": lambda a: len(asyncio.run(a.team().akickoff_for_each([a.inputs, a.inputs]))),
    "streaming": lambda a: a.team({"llm": a.llm(stream=True)}).kickoff(a.inputs) and None,
    "tools": lambda a: a.team({"tools": [adder]}).kickoff(a.inputs) and 2,
    "last words": lambda a: a.team({"tools": [adder], "max_iter": 1}).kickoff(a.inputs) and 2,
    "output_pydantic": lambda a: a.team(job={"output_pydantic": Sum}).kickoff(a.inputs) and None,
    "async_execution": _side_by_side,
    "in a flow": _flow,
}


@pytest.fixture(scope="module", params=["near", "far"])
def desk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A router in this process, and a gateway; its models delegate to the worker `Writer`."""
    delegating = agents_kit.Agent({"coworker": "Writer"})
    with deployed(tmp_path_factory.mktemp("desk"), request.param, delegating) as made:
        yield made


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CREWAI_STORAGE_DIR", str(tmp_path / "crew"))
    monkeypatch.chdir(tmp_path)


def asked_by(desk: Deployment, **channels: Any) -> Asked:
    """A crew with values in some channels."""
    asked = Asked(desk.target)
    for name, who in channels.items():
        CHANNELS[name](asked, who)
    return asked


def values(channel: str, who: Identity, *names: str) -> dict[str, str]:
    """An identity, as far as a channel can carry it, by the names that are usual there."""
    known = [name for name in names or FIELDS if name in CARRIES[channel]]
    return fields(who, *known) if channel in {"inputs", "constructor"} else ids(who, *known)


# --- each channel at each kickoff ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("desk", "entry"), [*(("near", entry) for entry in ENTRIES), ("far", "akickoff")], indirect=["desk"]
)
def test_each_kickoff_reads_every_channel(desk: Deployment, entry: str) -> None:
    """Fields given in different channels are in the decision of every step; each channel occurs in a run."""
    for mixture in mixtures(CARRIES, list(ENTRIES).index(entry)):
        asked = asked_by(desk, **{channel: values(channel, ANN, name) for channel, name in mixture.items()})
        steps = ENTRIES[entry](asked) or 1
        names = mixture.values()
        desk.check(Identity(**fields(ANN, *names)), *names, steps=steps, cell=(entry, mixture))


def test_each_channel_carries_its_fields(desk: Deployment) -> None:
    """All that a channel can carry is in the decision log; the crew provides role and task where it cannot."""
    for channel in CHANNELS:
        asked = asked_by(desk, **{channel: values(channel, ANN)})
        asked.team().kickoff(asked.inputs)
        desk.check(Identity(**{**OWN, **fields(ANN, *CARRIES[channel])}), cell=channel)


@pytest.mark.parametrize("desk", ["near"], indirect=True)
def test_documented_order_of_channels(desk: Deployment) -> None:
    """The channel further up in the table counts, field by field; those below fill in what it leaves out."""
    for first, second in itertools.combinations(CHANNELS, 2):
        asked = asked_by(desk, **{first: {"user": "ann"}, second: values(second, BOB)})
        asked.team().kickoff(asked.inputs)
        expected = Identity(**{**OWN, **fields(BOB, *CARRIES[second]), "user": "ann"})
        desk.check(expected, cell=(first, second))


# --- roles of a crew -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channel", ["the crew's fingerprint", "inputs", "constructor"])
def test_managers_planners_and_guardrails_share_the_user(desk: Deployment, channel: str) -> None:
    """A manager, its worker, a planner and a guardrail are roles of the same user."""
    asked = asked_by(desk, **{channel: {"user": "ann"}})
    workers = [asked.one(), asked.one(role="Writer")]
    crew = Crew(
        agents=workers,
        tasks=[asked.job()],
        process=Process.hierarchical,
        manager_llm=asked.llm(),
        verbose=False,
        **_secured(asked.crew),
    )
    crew.kickoff(asked.inputs)
    guarded = asked.team(job={"guardrail": "It is polite."}, planning=True, planning_llm=asked.llm())
    guarded.kickoff(asked.inputs)
    found, ann = desk.identities(), desk.logged(ANN).user
    assert {identity.user for identity in found} == {ann}
    roles = {identity.role for identity in found}
    assert roles == {"Crew Manager", "Writer", "Task Execution Planner", "Researcher", "Guardrail Agent"}


def test_defaults_of_a_crew(desk: Deployment) -> None:
    """The agent's role and the task's name, each on one short line; one session for each run of a task."""
    asked = asked_by(desk)
    one = asked.one(role="Senior\n  researcher\n" + "x" * 600, tools=[adder])
    tasks = [asked.job(one), Task(description="Write\nit " + "y" * 600, expected_output="text", agent=one)]
    Crew(agents=[one], tasks=tasks, verbose=False).kickoff()
    found = desk.identities()
    assert len(found) == 4
    assert {identity.user for identity in found} == {None}
    (role,) = {identity.role for identity in found}
    assert str(role).startswith("Senior researcher xxx")
    first, second = dict.fromkeys(identity.task for identity in found)
    assert (first, second) == ("look", None)
    assert len({(identity.task, identity.session) for identity in found}) == 2


def test_words_of_users_are_no_names(desk: Deployment) -> None:
    """Neither a description nor what a kickoff puts into a role or a task is a name in the log."""
    one = asked_by(desk).one(role="{topic} researcher")
    tasks = [
        Task(description="Look up {topic}", expected_output="text", agent=one),
        Task(name="summary", description="Sum up {topic}", expected_output="text", agent=one),
    ]
    Crew(agents=[one], tasks=tasks, verbose=False).kickoff({"topic": "my divorce"})
    found = desk.identities()
    assert [identity.task for identity in found] == [None, "summary"]
    assert "divorce" not in repr(found)
    assert {canonical_role(identity.role) for identity in found} == {"researcher"}


def test_agent_without_a_crew(desk: Deployment) -> None:
    """`Agent.kickoff` and `kickoff_async` with a tool and a typed answer: the identity is in every step."""
    for channel, awaited in itertools.product(("the agent's fingerprint", "constructor"), (False, True)):
        one = asked_by(desk, **{channel: values(channel, ANN)}).one(tools=[adder])
        question = {"messages": "2 + 3?", "response_format": Sum}
        result = asyncio.run(one.kickoff_async(**question)) if awaited else one.kickoff(**question)
        assert result.pydantic == Sum(value=3, note="hello")
        found = desk.identities()
        assert len(found) > 2
        assert set(found) == {desk.logged(ANN)}, (channel, awaited)


def test_bare_calls(desk: Deployment) -> None:
    """`call` and `acall`, whole and streamed: identities of the constructor and of the agent and the task beside it."""
    for awaited, stream in itertools.product((False, True), repeat=2):
        for channel in ("the task's fingerprint", "the agent's fingerprint", "constructor"):
            asked = asked_by(desk, **{channel: values(channel, ANN)})
            llm = asked.llm(stream=stream)
            one = asked.one(llm)
            beside = {"from_agent": one, "from_task": asked.job(one)}
            _ = asyncio.run(llm.acall("hi", **beside)) if awaited else llm.call("hi", **beside)
            desk.check(ANN, cell=(channel, awaited, stream))


def test_the_tier_of_a_call(desk: Deployment) -> None:
    """The cost tier comes from a fingerprint, else from the constructor; without either it is balanced."""
    desk.identities()
    for settings, fingerprint, tier in (({}, {}, ""), ({"tier": "quality"}, {}, "quality")):
        asked = Asked(desk.target, settings=settings)
        asked.llm().call("hi")
        assert desk.tiers() == [tier]
        CHANNELS["the agent's fingerprint"](asked, {"tier": "economy"} | fingerprint)
        one = asked.one(asked.llm())
        one.llm.call("hi", from_agent=one, from_task=asked.job(one))
        assert desk.tiers() == ["economy"]


# --- valid and invalid names -----------------------------------------------------------------------------------------


def call(asked: Asked) -> None:
    """A call as a crew makes it."""
    one = asked.one()
    job = asked.job(one)
    one.crew = Crew(agents=[one], tasks=[job], verbose=False, **_secured(asked.crew))
    one.crew._inputs = asked.inputs
    one.llm.call("hi", from_agent=one, from_task=job)


def test_invalid_names_are_refused(desk: Deployment) -> None:
    """No model is called, and the error names the place: pydantic's for settings, `InvalidRequest` elsewhere."""
    for channel, value in itertools.product(CHANNELS, INVALID.values()):
        error: Any = ValidationError if channel == "constructor" else InvalidRequest
        with pytest.raises(error, match=r"user: (\w+ was given; give text|has )"):
            call(asked_by(desk, **{channel: {"user": value}}))
    desk.check_none()


def test_valid_names_are_accepted(desk: Deployment) -> None:
    """Text of any script, and whole numbers as text; None and empty text leave the field to the next channel."""
    for channel in CHANNELS:
        for value, text in VALID.values():
            call(asked_by(desk, **{channel: {"user": value}}))
            desk.check(Identity(user=text), "user", cell=(channel, value))
        for unset in UNSET.values():
            call(asked_by(desk, **{"constructor": {"user": "bob"}, channel: {"user": unset}}))
            expected = None if channel == "constructor" else "bob"
            desk.check(Identity(user=expected), "user", cell=(channel, unset))


def test_invalid_names_end_the_kickoff(desk: Deployment) -> None:
    """A crew fails with the error of the call."""
    asked = asked_by(desk, inputs={"user_id": 0.5})
    with pytest.raises(InvalidRequest, match=r"inputs\.user_id: float was given"):
        asked.team().kickoff(asked.inputs)
    desk.check_none()


def test_tenant(desk: Deployment) -> None:
    """Any channel but inputs can name a tenant of a router in this process; a gateway takes it from the key."""
    for channel in CHANNELS:
        if channel == "inputs":
            continue
        asked = asked_by(desk, **{channel: {"tenant": "acme", **fields(ANN)}})
        if desk.far:
            with pytest.raises(NotAuthorized, match="from the key"):
                call(asked)
            desk.check_none()
        else:
            call(asked)
            desk.check(Identity(tenant="acme", **fields(ANN)), cell=channel)


def test_documented_channels() -> None:
    """The table of the documentation lists these channels, in this order."""
    assert list(documented_channels("crewai.md")) == [*CHANNELS, "the crew itself"]
