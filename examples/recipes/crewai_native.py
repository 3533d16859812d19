"""CrewAI's own LLM on a gateway; `FitrouterLLM` does more (roles and tasks become the identity, signals).

FITROUTER=http://127.0.0.1:8484 python examples/recipes/crewai_native.py
"""

from __future__ import annotations

import os

from crewai import LLM, Agent, Crew, Task

GATEWAY = os.environ["FITROUTER"]


def llm_for(role: str) -> LLM:
    """A model that says who asks: CrewAI's own does not, so each role has one."""
    return LLM(
        model="openai/fitrouter/auto",
        base_url=f"{GATEWAY}/v1",
        api_key=os.environ.get("FITROUTER_API_KEY", "unused"),
        default_headers={"X-Fitrouter-Role": role, "X-Fitrouter-User": "ann"},
    )


tasks = []
for role in ("researcher", "writer"):
    agent = Agent(role=role, goal="help", backstory=f"You are a {role}.", llm=llm_for(role))
    tasks.append(Task(description=f"Do what a {role} does", expected_output="text", agent=agent))
done = Crew(agents=[task.agent for task in tasks], tasks=tasks).kickoff()
for output in done.tasks_output:
    print(f"{output.agent}: {output.raw}")
