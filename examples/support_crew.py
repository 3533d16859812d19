"""A support crew whose roles end up on different models.

    python examples/support_crew.py [--recorded PATH | --simulated] [--outcomes]

Three agents share one `FitrouterLLM`: triage, a writer, an analyst. Each has readers of its own, who rate what they
read: the desk wants few words, customers want to be told at length, managers want plain points. Nobody tells the
router. Answers are recorded ones of eleven models, or of simulated models where the recording is not there; people are
simulated. The crew, its agents and its tasks are CrewAI's own.

A whole crew runs at the beginning and at the end. The working day in between is as many calls of the agents' model,
each for its agent and its task as a crew would make it, without the crew's own machinery around it.
"""

from __future__ import annotations

import numpy as np
from _crews import judge, work
from _learnt import tell
from _people import Readers
from _pools import chosen_pool, routed
from crewai import Agent, Crew, Task

from fitrouter_integrations.crewai import FitrouterLLM

CASES = ("a late parcel", "a broken kettle", "a double charge", "a lost password", "a noisy fan", "a missing invoice")
TASTES = {"triage": "few words", "writer": "at length", "analyst": "in points"}
JOBS = {
    "triage": "Sort the customer's message: {case}",
    "writer": "Write an answer to the customer: {case}",
    "analyst": "Sum up for the managers what happens with this: {case}",
}


def make_crew(llm: FitrouterLLM) -> Crew:
    """One agent and one task for each role."""
    agents = {role: Agent(role=role, goal="help customers", backstory=f"You are our {role}.", llm=llm) for role in JOBS}
    tasks = [Task(name=role, description=job, expected_output="text", agent=agents[role]) for role, job in JOBS.items()]
    return Crew(agents=list(agents.values()), tasks=tasks, name="support")


def run(crew: Crew, llm: FitrouterLLM, readers: Readers, outcomes: bool, case: str) -> None:
    """A whole crew, and what its readers say."""
    done = crew.kickoff({"case": case})
    for task, output in zip(crew.tasks, done.tasks_output, strict=True):
        print(f"  {task.name:12}{llm.last(task.agent).model:28}{output.raw[:60]!r}")
    judge(crew, llm, readers, outcomes, [output.raw for output in done.tasks_output])


def main() -> None:
    """A day at the desk."""
    pool = chosen_pool(__doc__, CASES)
    readers = Readers({role: pool.tastes[taste] for role, taste in TASTES.items()})
    day = np.random.default_rng(0).choice(pool.cases, pool.rounds).tolist()
    with routed(pool) as router:
        llm = FitrouterLLM(router=router)
        crew = make_crew(llm)
        print("The first crew:")
        run(crew, llm, readers, pool.outcomes, day[0])
        for case in day[1:-1]:
            work(crew, llm, router, readers, pool.outcomes, case=case)
        print("The last crew:")
        run(crew, llm, readers, pool.outcomes, day[-1])
        tell(router, lambda decision: decision.identity.role, pool, readers)


if __name__ == "__main__":
    main()
