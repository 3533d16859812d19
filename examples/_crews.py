"""The work of a crew without CrewAI: its model calls and ratings."""

from __future__ import annotations

from datetime import UTC, datetime

from _people import Readers
from crewai import Crew

from fitrouter_integrations.crewai import FitrouterLLM
from fitrouter_integrations.feedback import rate


def work(crew: Crew, llm: FitrouterLLM, readers: Readers, **inputs: str) -> None:
    """The calls of a crew, each with its agent and task, and the ratings of their readers; see `Crew.kickoff`."""
    for task in crew.tasks:
        task.start_time = datetime.now(UTC)  # as a crew does: a run of its own is a conversation of its own
        task.interpolate_inputs_and_add_conversation_history(inputs)
        text = llm.call(task.prompt(), from_agent=task.agent, from_task=task)
        rate(llm, llm.last(task.agent), readers.stars(task.name, text))
