"""A support crew whose roles end up on different models.

    python examples/support_crew.py

Three agents share one `FitrouterLLM`: triage, a writer, an analyst. Each has readers of its own, who rate what they
read: the desk wants few words, customers want to be spoken to, managers want lists. Nobody tells the router. Models
and people are simulated, so that it runs offline; the crew, its agents and its tasks are CrewAI's own.

A whole crew runs at the beginning and at the end. The working day in between is as many calls of the agents' model,
each for its agent and its task as a crew would make it, without the crew's own machinery around it.
"""

from __future__ import annotations

from datetime import UTC, datetime

from _people import best, long_and_warm, shares, short, simulated_router, stars, structured, tell
from crewai import Agent, Crew, Task

from fitrouter_integrations.crewai import FitrouterLLM
from fitrouter_integrations.feedback import rate

ROUNDS = 40
CASES = ("a late parcel", "a broken kettle", "a double charge", "a lost password", "a noisy fan", "a missing invoice")
TASTES = {"triage": short, "writer": long_and_warm, "analyst": structured}
JOBS = {
    "triage": "Sort the customer's message about {case}",
    "writer": "Write an answer to the customer about {case}",
    "analyst": "Sum up for the managers what happens with {case}",
}


def make_crew(llm: FitrouterLLM) -> Crew:
    """One agent and one task for each role."""
    agents = {role: Agent(role=role, goal="help customers", backstory=f"You are our {role}.", llm=llm) for role in JOBS}
    tasks = [Task(name=role, description=job, expected_output="text", agent=agents[role]) for role, job in JOBS.items()]
    return Crew(agents=list(agents.values()), tasks=tasks, name="support")


def run(crew: Crew, llm: FitrouterLLM, case: str) -> None:
    """A whole crew; its readers rate each task's output."""
    done = crew.kickoff({"case": case})
    for task, output in zip(crew.tasks, done.tasks_output, strict=True):
        about = llm.last(task.agent)
        print(f"  {task.name:12}{about.model:10}{output.raw[:60]!r}")
        rate(llm, about, stars(TASTES[task.name](output.raw)))


def work(crew: Crew, llm: FitrouterLLM, case: str) -> None:
    """The calls that a crew makes, without the crew."""
    for task in crew.tasks:
        task.start_time = datetime.now(UTC)  # as a crew does: a run of its own is a conversation of its own
        text = llm.call(JOBS[task.name].format(case=case), from_agent=task.agent, from_task=task)
        about = llm.last(task.agent)
        rate(llm, about, stars(TASTES[task.name](text)))


def main() -> None:
    """A day at the desk."""
    with simulated_router() as router:
        llm = FitrouterLLM(router=router)
        crew = make_crew(llm)
        print("The first crew:")
        run(crew, llm, CASES[0])
        for i in range(ROUNDS):
            work(crew, llm, CASES[i % len(CASES)])
        print("The last crew:")
        run(crew, llm, CASES[-1])
        early, late = shares(router, lambda decision: decision.identity.role, first=4, last=12)
    print(f"What was learnt of {ROUNDS + 2} ratings for each role, as mean probabilities of the models:")
    tell(early, late)
    assert len({best(late[role]) for role in JOBS}) == len(JOBS), "each role was to find a model of its own"
    assert {role: best(late[role]) for role in JOBS} == {"triage": "terse", "writer": "warm", "analyst": "orderly"}


if __name__ == "__main__":
    main()
