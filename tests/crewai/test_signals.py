"""FitrouterSignals: events of a crew become feedback on the right decisions, and never fail a crew."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("crewai", reason="install the extra `crewai`")

from crewai import Agent, Crew, Task
from crewai.core.providers.human_input import get_provider, reset_provider, set_provider
from crewai.events import crewai_event_bus
from crewai.flow.flow import Flow, start
from crewai.flow.human_feedback import human_feedback
from crewai.tools import tool
from tests.kits.agents import agent_router

from fitrouter.errors import ConfigError
from fitrouter.stores.journal import MemoryJournal
from fitrouter.types import Decision, Feedback, FeedbackKind, RunOutcome
from fitrouter_integrations.client import connect
from fitrouter_integrations.crewai import FitrouterLLM, FitrouterSignals
from fitrouter_integrations.crewai._llm import watchers

# CrewAI warns of fields of its own that it still sets on every agent.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def llm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FitrouterLLM]:
    """A crew's model over a router in this process."""
    monkeypatch.setenv("CREWAI_STORAGE_DIR", str(tmp_path / "crew"))
    monkeypatch.chdir(tmp_path)
    router = agent_router(tmp_path)
    with connect(router):
        yield FitrouterLLM(router=router)


@pytest.fixture
def signals() -> Iterator[FitrouterSignals]:
    """Switched on."""
    with FitrouterSignals({"approved": 1.0, "rejected": 0.0}) as made:
        yield made
    assert watchers == []


def events(llm: FitrouterLLM, kind: type) -> list[Any]:
    """Of the journal, once all that CrewAI reported is heard."""
    crewai_event_bus.flush()
    journal = llm.router._journal
    assert isinstance(journal, MemoryJournal)
    return [row.event for row in journal.tail(0, 1000) if isinstance(row.event, kind)]


def said(llm: FitrouterLLM) -> list[tuple[int, str, str, float]]:
    """(number of the decision, kind, dimension, value) of every vote, sorted."""
    numbers = {decision.id: i for i, decision in enumerate(events(llm, Decision))}
    return sorted(
        (numbers[vote.decision_id], vote.kind.value, vote.dimension, vote.value) for vote in events(llm, Feedback)
    )


def agent(llm: Any, role: str = "Researcher", **more: Any) -> Agent:
    return Agent(role=role, goal="find out", backstory="a person", llm=llm, verbose=False, **more)


def run(one: Agent, **more: Any) -> Any:
    task = Task(description="Say hello", expected_output="text", agent=one, **more)
    return Crew(agents=[one], tasks=[task], verbose=False).kickoff()


def after(rejected: int) -> Any:
    """A guardrail that rejects the first answers. CrewAI reads its annotations, as objects only: it has none."""
    left = iter(range(rejected))
    return lambda output: (True, output) if next(left, None) is None else (False, "say it again")


def test_it_is_off_by_default(llm: FitrouterLLM) -> None:
    """Without it no crew sends feedback."""
    run(agent(llm), guardrail=lambda output: (True, output))
    assert said(llm) == []
    assert watchers == []


def test_guardrails_rate_the_answer_that_they_checked(llm: FitrouterLLM, signals: FitrouterSignals) -> None:
    """The rejected answer gets `accept` 0, the passing one 1, each on its own decision."""
    run(agent(llm), guardrail=after(1))
    assert said(llm) == [
        (0, "accept", "overall", 0.0),
        (0, "thumb", "base", 0.0),
        (1, "accept", "overall", 1.0),
        (1, "thumb", "base", 1.0),
        (1, "thumb", "base", 1.0),  # the task is completed: the same vote again
    ]


def test_a_late_listener_still_finds_the_right_decision(llm: FitrouterLLM, signals: FitrouterSignals) -> None:
    """An event that is delivered after the agent asked again is about the answer before it."""
    late: list[Any] = []
    note, before = signals._before, []
    signals._before = lambda event, who=None: late.append((event, who)) or None  # type: ignore[method-assign]
    run(agent(llm), guardrail=after(2))
    crewai_event_bus.flush()
    numbers = {decision.id: i for i, decision in enumerate(events(llm, Decision))}
    for event, who in late:
        if event.type == "llm_guardrail_completed":
            made = note(event, who)
            assert made is not None
            before.append((event.success, numbers[made.decision_id]))
    assert sorted(before) == [(False, 0), (False, 1), (True, 2)]


def test_a_task_that_fails(llm: FitrouterLLM, signals: FitrouterSignals) -> None:
    """Its last answer gets `accept` 0; the crew fails as it would have."""
    with pytest.raises(Exception, match="validation after 1 retries"):
        run(agent(llm), guardrail=lambda output: (False, "never"), guardrail_max_retries=1)
    votes = set(said(llm))
    assert votes == {(i, *vote, 0.0) for i in (0, 1) for vote in (("accept", "overall"), ("thumb", "base"))}


def test_a_completed_task_is_not_a_taste_label(llm: FitrouterLLM, signals: FitrouterSignals) -> None:
    """Almost every task is completed: a label of the quality floor, not of taste."""
    run(agent(llm))
    assert said(llm) == [(0, "thumb", "base", 1.0)]


def test_tools_have_their_own_dimension(llm: FitrouterLLM, signals: FitrouterSignals) -> None:
    """Working and failing tool calls are votes in `tools`."""

    @tool("adder")
    def adder(a: int, b: int) -> str:
        """Adds two numbers."""
        return f"{a + b}"

    @tool("broken")
    def broken(a: int) -> str:
        """Does not work."""
        raise RuntimeError("no")

    run(agent(llm, tools=[adder]))
    run(agent(llm, tools=[broken]))
    votes = [vote for vote in said(llm) if vote[2] == "tools"]
    first, second = (d.id for d in events(llm, Decision) if d.user_turn)
    assert votes[0][3] == 1.0
    assert {vote[3] for vote in votes[1:]} == {0.0}
    assert {v.decision_id for v in events(llm, Feedback) if v.dimension == "tools"} == {first, second}


class Person:
    """Wants changes as often as it has words, then is content."""

    def __init__(self, *words: str) -> None:
        self.words = list(words)

    def setup_messages(self, context: Any) -> bool:
        return False

    def post_setup_messages(self, context: Any) -> None:
        """Nothing to say."""

    def handle_feedback(self, formatted_answer: Any, context: Any) -> Any:
        while self.words:
            context.messages.append(context._format_feedback_message(self.words.pop()))
            formatted_answer = context._invoke_loop()
        context.ask_for_human_input = False
        return formatted_answer

    async def handle_feedback_async(self, formatted_answer: Any, context: Any) -> Any:
        while self.words:
            context.messages.append(context._format_feedback_message(self.words.pop()))
            formatted_answer = await context._ainvoke_loop()
        return formatted_answer


def test_human_input(llm: FitrouterLLM) -> None:
    """Requested changes are `regenerate`, acceptance is `accept`; CrewAI's own prompts are unchanged."""
    person = Person("shorter", "warmer")
    token = set_provider(person)
    try:
        with FitrouterSignals():
            run(agent(llm), human_input=True)
        assert get_provider() is person
    finally:
        reset_provider(token)
    heard = [vote for vote in said(llm) if vote[2] == "overall"]
    assert heard == [
        (0, "regenerate", "overall", 1.0),
        (1, "regenerate", "overall", 1.0),
        (2, "accept", "overall", 1.0),
    ]


async def test_human_input_in_an_async_crew(llm: FitrouterLLM) -> None:
    """The same in an async crew."""
    token = set_provider(Person("shorter"))
    try:
        with FitrouterSignals():
            one = agent(llm)
            task = Task(description="Say hello", expected_output="text", agent=one, human_input=True)
            await Crew(agents=[one], tasks=[task], verbose=False).akickoff()
    finally:
        reset_provider(token)
    heard = [vote for vote in said(llm) if vote[2] == "overall"]
    assert heard == [(0, "regenerate", "overall", 1.0), (1, "accept", "overall", 1.0)]


@pytest.mark.parametrize(
    ("words", "outcomes", "expected"),
    [
        ("I like it", ["approved", "rejected"], [(0, "thumb", "overall", 1.0)]),
        ("no!", ["rejected", "approved"], [(0, "thumb", "overall", 0.0)]),
        ("", ["rejected", "approved"], [(0, "thumb", "overall", 0.0)]),
        ("hm", ["perhaps", "never"], []),
    ],
)
def test_human_feedback_in_a_flow(
    llm: FitrouterLLM,
    signals: FitrouterSignals,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    outcomes: list[str],
    expected: list[Any],
) -> None:
    """An outcome with a value is a thumb on the reviewed answer, not on the call that classifies the words."""
    writer = agent(llm, "Writer")

    class Desk(Flow):  # type: ignore[type-arg]
        @start()
        @human_feedback(message="Good?", emit=outcomes, llm=llm)  # the models take the first of the outcomes
        def write(self) -> str:
            return str(llm.call("Write a line", from_agent=writer))

    monkeypatch.setattr("builtins.input", lambda *_: words)
    Desk().kickoff()
    assert said(llm) == expected
    assert len(events(llm, Decision)) == (2 if words else 1)


def test_an_outcome_is_up_or_down() -> None:
    """Other values are an error, and nothing is switched on."""
    with pytest.raises(ConfigError, match=r"outcomes: .*'maybe': 0.5"):
        FitrouterSignals({"approved": 1.0, "maybe": 0.5})
    assert watchers == []


def test_failing_feedback_does_not_fail_a_crew(
    llm: FitrouterLLM, signals: FitrouterSignals, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Feedback that cannot be recorded is logged and counted."""

    def down(self: FitrouterLLM, vote: Any) -> str:
        raise ConnectionError("no gateway")

    monkeypatch.setattr(FitrouterLLM, "feedback", down)
    with caplog.at_level(logging.WARNING):
        assert run(agent(llm), guardrail=lambda output: (True, output)).raw
        crewai_event_bus.flush()
    assert "was not recorded: ConnectionError: no gateway" in caplog.text
    assert signals.lost == caplog.text.count("was not recorded") > 0
    assert said(llm) == []


def test_agents_that_share_one_object_are_told_apart(llm: FitrouterLLM, signals: FitrouterSignals) -> None:
    """Each guardrail's verdict is on its own agent's answer."""
    first, second = agent(llm), agent(llm, "Writer")
    tasks = [
        Task(description="Find it", expected_output="text", agent=first, guardrail=lambda output: (True, output)),
        Task(
            description="Write it",
            expected_output="text",
            agent=second,
            guardrail=lambda output: (False, "no"),
            guardrail_max_retries=0,
        ),
    ]
    with pytest.raises(Exception, match="validation"):
        Crew(agents=[first, second], tasks=tasks, verbose=False).kickoff()
    roles = {decision.id: decision.identity.role for decision in events(llm, Decision)}
    heard = {(roles[v.decision_id], v.value) for v in events(llm, Feedback) if v.kind is FeedbackKind.ACCEPT}
    assert heard == {("Researcher", 1.0), ("Writer", 0.0)}


def test_a_kickoff_is_a_run_whose_outcome_the_check_tells(llm: FitrouterLLM) -> None:
    """All calls of a kickoff are one run; a check judges its output, and a crew that fails is an adapter's failure.

    A check's number is from 0 to 1, whatever scale people rate on.
    """
    llm.router.runs._scale = (1.0, 5.0)
    said = iter((0.5, True))
    with FitrouterSignals(check=lambda output: next(said)):
        run(agent(llm))
        run(agent(llm))
        with pytest.raises(Exception, match="guardrail"):
            run(agent(llm), guardrail=after(9), guardrail_max_retries=1)
        runs = [decision.identity.run for decision in events(llm, Decision)]
        ended = events(llm, RunOutcome)
    assert len(set(runs)) == 3
    assert [one.identity.run for one in ended] == list(dict.fromkeys(runs))
    assert [one.source for one in ended] == ["check", "check", "adapter"]
    assert [one.y for one in ended] == [0.5, 1.0, 0.0]
    assert len(ended[2].decisions) == runs.count(runs[-1])
