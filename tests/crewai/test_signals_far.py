"""FitrouterSignals in process and through a gateway, blocking and async, with concurrent crews."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("crewai", reason="install the extra `crewai`")

from crewai import Crew
from crewai.core.providers.human_input import reset_provider, set_provider
from crewai.events import crewai_event_bus
from crewai.tools import tool
from tests.kits.crewai import Place, adder, agent, crew, nobody_leaves, place, task

from fitrouter.errors import ProviderRejected
from fitrouter.types import Feedback
from fitrouter_integrations.crewai import FitrouterSignals
from fitrouter_integrations.crewai._llm import watchers

# CrewAI warns of fields of its own that it still sets on every agent.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

WAYS: dict[str, Callable[[Crew], Any]] = {
    "kickoff": lambda desk: desk.kickoff(),
    "akickoff": lambda desk: asyncio.run(desk.akickoff()),
}
Run = Callable[[Crew], Any]


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


@pytest.fixture
def run(here: Place) -> Run:
    """How a crew is started: awaited in process, blocking over a gateway."""
    return WAYS["kickoff" if isinstance(here.target, str) else "akickoff"]


@pytest.fixture
def signals(here: Place) -> Iterator[FitrouterSignals]:
    """Switched on."""
    with FitrouterSignals() as made:
        yield made
    assert watchers == []


def votes(here: Place) -> list[Feedback]:
    """Of this test, once all that CrewAI reported is heard."""
    crewai_event_bus.flush()
    mine = {decision.id for decision in here.decisions()}
    journal = here.router._journal
    found = [row.event for row in journal.tail(0, 100_000) if isinstance(row.event, Feedback)]  # type: ignore[attr-defined]
    return [vote for vote in found if vote.decision_id in mine]


def said(here: Place) -> set[tuple[int, str, str, float]]:
    """(number of the decision, kind, dimension, value)."""
    numbers = {decision.id: i for i, decision in enumerate(here.decisions())}
    return {(numbers[vote.decision_id], vote.kind.value, vote.dimension, vote.value) for vote in votes(here)}


def after(rejected: int) -> Any:
    """A guardrail that rejects the first answers. CrewAI reads its annotations, as objects only: it has none."""
    left = iter(range(rejected))
    return lambda output: (True, output) if next(left, None) is None else (False, "say it again")


@tool("broken")
def broken(a: int) -> str:
    """Does not work."""
    raise RuntimeError("no")


# --- row by row of the table in docs/crewai.md ---


@pytest.mark.usefixtures("signals")
def test_a_guardrail_rejects_and_passes(here: Place, run: Run) -> None:
    """The rejected answer is left, the one that passes is taken; both are votes on the base layer, too."""
    one = agent(here.llm())
    run(crew([one], [task(one, guardrail=after(1))]))
    assert said(here) == {
        (0, "accept", "overall", 0.0),
        (0, "thumb", "base", 0.0),
        (1, "accept", "overall", 1.0),
        (1, "thumb", "base", 1.0),
    }


@pytest.mark.usefixtures("signals")
def test_an_llm_guardrail_rates_the_answer_and_not_itself(here: Place, run: Run) -> None:
    """The agent's model judges, too; the verdict is on what it judged."""
    one = agent(here.llm())
    run(crew([one], [task(one, guardrail="must be polite")]))
    assert [d.identity.role for d in here.decisions()] == ["Researcher", "Guardrail Agent"]
    assert said(here) == {(0, "accept", "overall", 1.0), (0, "thumb", "base", 1.0)}


@pytest.mark.usefixtures("signals")
def test_a_task_fails(here: Place, run: Run) -> None:
    """Its last answer is what did not do."""
    here.models.script = lambda call: ProviderRejected("no", 400) if len(here.models.calls) >= 1 else None
    one = agent(here.llm(), tools=[adder], max_retry_limit=0)
    with pytest.raises(ProviderRejected):
        run(crew([one], [task(one)]))
    answered = [vote for vote in said(here) if vote[2] != "tools"]
    assert sorted(answered) == [(0, "accept", "overall", 0.0), (0, "thumb", "base", 0.0)]


@pytest.mark.usefixtures("signals")
def test_a_task_is_completed(here: Place, run: Run) -> None:
    """That is a label of the base layer, and nothing on taste."""
    one = agent(here.llm())
    run(crew([one], [task(one)]))
    assert said(here) == {(0, "thumb", "base", 1.0)}


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize(("what", "worth"), [(adder, 1.0), (broken, 0.0)])
def test_a_tool_works_or_fails(here: Place, run: Run, what: Any, worth: float) -> None:
    """The vote is on the answer that called it, in `tools`."""
    one = agent(here.llm(), tools=[what])
    run(crew([one], [task(one)]))
    assert said(here) == {(0, "thumb", "tools", worth), (1, "thumb", "base", 1.0)}


class Person:
    """Wants something changed once, then is content."""

    def setup_messages(self, context: Any) -> bool:
        return False

    def post_setup_messages(self, context: Any) -> None:
        """Nothing to say."""

    def handle_feedback(self, formatted_answer: Any, context: Any) -> Any:
        context.messages.append(context._format_feedback_message("shorter"))
        return context._invoke_loop()

    async def handle_feedback_async(self, formatted_answer: Any, context: Any) -> Any:
        context.messages.append(context._format_feedback_message("shorter"))
        return await context._ainvoke_loop()


def test_a_person_wants_changes_and_is_content(here: Place, run: Run) -> None:
    """The first answer is asked for again, the second one is taken."""
    token = set_provider(Person())
    try:
        with FitrouterSignals():
            one = agent(here.llm())
            run(crew([one], [task(one, human_input=True)]))
    finally:
        reset_provider(token)
    assert {vote for vote in said(here) if vote[2] == "overall"} == {
        (0, "regenerate", "overall", 1.0),
        (1, "accept", "overall", 1.0),
    }


# --- off, and crowds ---


def test_nothing_is_sent_when_off(here: Place, run: Run) -> None:
    """If it was never created, or is closed, nothing is sent or kept."""
    with FitrouterSignals() as signals:
        pass
    one = agent(here.llm(), tools=[adder])
    run(crew([one], [task(one, guardrail=after(1))]))
    assert votes(here) == []
    assert signals._trail == {}
    assert watchers == []


@pytest.mark.usefixtures("signals")
def test_concurrent_crews_do_not_mix(here: Place) -> None:
    """Crews in many threads over one object: each verdict is on its own crew's answers, none is lost."""
    llm = here.llm()

    def work(i: int) -> None:
        one = agent(llm, f"Nr {i}")
        crew([one], [task(one, f"Say {i}", guardrail=after(i % 2))]).kickoff()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(16)))
    by_role: dict[str, list[str]] = {}
    for decision in here.decisions():
        by_role.setdefault(decision.identity.role or "", []).append(decision.id)
    heard = {(v.decision_id, v.value) for v in votes(here) if v.kind.value == "accept"}
    expected: set[tuple[str, float]] = set()
    for i in range(16):
        *rejected, taken = by_role[f"Nr {i}"]
        assert len(rejected) == i % 2
        expected |= {(each, 0.0) for each in rejected} | {(taken, 1.0)}
    assert heard == expected
