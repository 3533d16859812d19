"""A research crew whose roles end up on different models; every round is a whole crew.

    python examples/research_crew.py

A scout finds, an analyst orders what was found, an editor tells it. Each role's readers rate its output; what a task's
guardrail says comes by itself, from `FitrouterSignals`. Models and people are simulated, so that it runs offline; all
that makes a crew is CrewAI's own.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from _people import best, long_and_warm, shares, short, simulated_router, stars, structured, tell
from crewai import Agent, Crew, Task
from crewai.events import crewai_event_bus

from fitrouter import Feedback, Router
from fitrouter_integrations.crewai import FitrouterLLM, FitrouterSignals
from fitrouter_integrations.feedback import rate

ROUNDS = 30
TOPICS = ("northern lights", "rusting bridges", "bird migration", "deep sea vents", "sourdough bread", "coral reefs")
TASTES = {"scout": short, "analyst": structured, "editor": long_and_warm}
JOBS = {
    "scout": "Find what is known about {topic}",
    "analyst": "Order the evidence on {topic}",
    "editor": "Tell our readers about {topic}",
}


def make_crew(llm: FitrouterLLM) -> Crew:
    """Each task builds on the ones before it."""
    tasks: list[Task] = []
    for role, job in JOBS.items():
        agent = Agent(role=role, goal="find out", backstory=f"You are our {role}.", llm=llm)
        told = {"context": list(tasks), "guardrail": says_something}
        tasks.append(Task(name=role, description=job, expected_output="text", agent=agent, **told))
    return Crew(agents=[task.agent for task in tasks], tasks=tasks, name="research")


def says_something(output: Any):  # CrewAI reads a guardrail's return type as an object, and this file's are text
    """A guardrail: an output has words."""
    return (True, output) if len(output.raw.split()) >= 3 else (False, "say something")


def run(crew: Crew, llm: FitrouterLLM, topic: str) -> str:
    """A whole crew, and what its readers say; returns which model each role had."""
    done = crew.kickoff({"topic": topic})
    models = []
    for task, output in zip(crew.tasks, done.tasks_output, strict=True):
        about = llm.last(task.agent)
        models.append(f"{task.name} {about.model}")
        rate(llm, about, stars(TASTES[task.name](output.raw)))
    return ", ".join(models)


def votes(router: Router) -> Counter[str]:
    """How many votes of each kind and dimension are in the journal."""
    rows = (row.event for row in router.journal.tail(0, 1_000_000))
    return Counter(f"{vote.kind.value} ({vote.dimension})" for vote in rows if isinstance(vote, Feedback))


def main() -> None:
    """A month of research."""
    with simulated_router() as router, FitrouterSignals():
        llm = FitrouterLLM(router=router)
        crew = make_crew(llm)
        for i in range(ROUNDS):
            models = run(crew, llm, TOPICS[i % len(TOPICS)])
            if i in {0, 1, 2, ROUNDS - 2, ROUNDS - 1}:
                print(f"  crew {i + 1:2}: {models}")
        crewai_event_bus.flush()
        said = votes(router)
        early, late = shares(router, lambda decision: decision.identity.role, first=4, last=10)
    print("Votes:", ", ".join(f"{count} × {kind}" for kind, count in sorted(said.items())))
    print(f"What was learnt in {ROUNDS} crews, as mean probabilities of the models:")
    tell(early, late)
    assert {role: best(late[role]) for role in JOBS} == {"scout": "terse", "analyst": "orderly", "editor": "warm"}


if __name__ == "__main__":
    main()
