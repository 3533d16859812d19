"""Journey: a crew of two roles over one's own models (docs/crewai.md)."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from tests.kits.fake_openai import FakeOpenAI, in_a_thread

from fitrouter.stores.journal import SqliteJournal
from fitrouter.types import Decision, Mode

from .conftest import Create, Journey

MODELS = ("llama-3.1-8b", "qwen3-8b")
CREW = """
import json
from crewai import Agent, Crew, Task

from fitrouter_integrations.crewai import FitrouterLLM

llm = FitrouterLLM(router="http://127.0.0.1:8484")
told = []
agents = [Agent(role=role, goal="help", backstory="You work for a clinic.", llm=llm) for role in ("analyst", "writer")]
tasks = [Task(description=f"Work as {agent.role}.", expected_output="a line", agent=agent) for agent in agents]
Crew(agents=agents, tasks=tasks).kickoff(inputs={"user_id": "ann"})
print(json.dumps([llm.last(agent).decision_id for agent in agents]))
"""


def test_a_crew_of_two_roles_is_routed_by_role(environment: Create, tmp_path: Path) -> None:
    """Each agent's call is a decision of its own, for the crew's user and the agent's role."""
    with (
        in_a_thread(
            FakeOpenAI(models=MODELS, answer=lambda body: "Thought: done.\nFinal Answer: drink water")
        ) as models,
        Journey(environment("gateway", "crewai"), tmp_path) as journey,
    ):
        journey.run(f"fitrouter init --base-url {models.base_url}")
        journey.serve()
        first = journey.block("crewai.md", "python")
        assert first.split("writer = ")[0].splitlines()[2] in CREW  # the page's own import and router
        ids = json.loads(journey.python(CREW).stdout.strip().splitlines()[-1])
        assert len(set(ids)) == 2
        journey.stop()
        journal = SqliteJournal(tmp_path / "fitrouter-data" / "journal.db")
        with contextlib.closing(journal):
            made = [row.event for row in journal.tail(0) if isinstance(row.event, Decision)]
        assert [decision.identity.role for decision in made if decision.id in ids] == ["analyst", "writer"]
        assert {decision.mode for decision in made} == {Mode.ONLINE}
        assert len({decision.identity.user for decision in made}) == 1
        assert "litellm" not in journey.environment.distributions
