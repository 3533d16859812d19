"""A research crew whose roles end up on different models; what guardrails say is feedback too.

    python examples/research_crew.py [--recorded PATH | --simulated] [--outcomes]

A scout finds, an analyst orders what was found, an editor tells it. Each role's readers rate its output; what a task's
guardrail says comes by itself, from `FitrouterSignals`. Answers are recorded ones of eleven models, or of simulated
models where the recording is not there; people are simulated. All that makes a crew is CrewAI's own.

One in ten topics is worked on by a whole crew, the others by the calls that it would make.
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from typing import Any

import numpy as np
from _crews import judge, work
from _learnt import tell
from _people import Readers
from _pools import chosen_pool, routed
from crewai import Agent, Crew, Task
from crewai.events import crewai_event_bus

from fitrouter import Feedback, Router
from fitrouter_integrations.crewai import FitrouterLLM, FitrouterSignals

TOPICS = ("northern lights", "rusting bridges", "bird migration", "deep sea vents", "sourdough bread", "coral reefs")
TASTES = {"scout": "few words", "analyst": "in points", "editor": "at length"}
JOBS = {
    "scout": "Find what is known about this: {topic}",
    "analyst": "Order the evidence on this: {topic}",
    "editor": "Tell our readers about this: {topic}",
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


def run(crew: Crew, llm: FitrouterLLM, readers: Readers, outcomes: bool, topic: str) -> None:
    """A whole crew, and what its readers say."""
    done = crew.kickoff({"topic": topic})
    print("", *[f"{task.name} {llm.last(task.agent).model}" for task in crew.tasks])
    judge(crew, llm, readers, outcomes, [output.raw for output in done.tasks_output])


def votes(router: Router) -> Counter[str]:
    """How many votes of each kind and dimension are in the journal."""
    rows = (row.event for row in router._journal.tail(0, 1_000_000))
    return Counter(f"{vote.kind.value} ({vote.dimension})" for vote in rows if isinstance(vote, Feedback))


def main() -> None:
    """A month of research."""
    pool = chosen_pool(__doc__, TOPICS)
    readers = Readers({role: pool.tastes[taste] for role, taste in TASTES.items()})
    month = np.random.default_rng(0).choice(pool.cases, pool.rounds).tolist()
    signals = nullcontext() if pool.outcomes else FitrouterSignals()
    with routed(pool) as router, signals:
        llm = FitrouterLLM(router=router)
        crew = make_crew(llm)
        for day, topic in enumerate(month):
            if day % 10:
                work(crew, llm, router, readers, pool.outcomes, topic=topic)
            else:
                run(crew, llm, readers, pool.outcomes, topic)
        crewai_event_bus.flush()
        if not pool.outcomes:
            print("Votes:", ", ".join(f"{count} × {kind}" for kind, count in sorted(votes(router).items())))
        tell(router, lambda decision: decision.identity.role, pool, readers)


if __name__ == "__main__":
    main()
