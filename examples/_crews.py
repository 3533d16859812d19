"""The work of a crew without CrewAI: its model calls, and what their readers say of them or of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from _people import Readers
from crewai import Crew

from fitrouter import Router
from fitrouter_integrations.crewai import FitrouterLLM
from fitrouter_integrations.feedback import outcome, rate


def work(crew: Crew, llm: FitrouterLLM, router: Router, readers: Readers, outcomes: bool, **inputs: str) -> None:
    """The calls of a crew, each with its agent and task, and what their readers say; see `Crew.kickoff`."""
    texts = []
    with router.run():  # as a kickoff is one
        for task in crew.tasks:
            task.start_time = datetime.now(UTC)  # as a crew does: a run of its own is a conversation of its own
            task.interpolate_inputs_and_add_conversation_history(inputs)
            texts.append(llm.call(task.prompt(), from_agent=task.agent, from_task=task))
    judge(crew, llm, readers, outcomes, texts)


def judge(crew: Crew, llm: FitrouterLLM, readers: Readers, outcomes: bool, texts: Sequence[str]) -> None:
    """Let the readers rate each task's text, or the whole run by the mean of their stars."""
    stars = [readers.stars(task.name, text) for task, text in zip(crew.tasks, texts, strict=True)]
    if outcomes:  # a run is named by any of its answers
        outcome(llm, llm.last(crew.tasks[-1].agent), sum(stars) / len(stars), kind="rating", scale=(1, 5))
        return
    for task, given in zip(crew.tasks, stars, strict=True):
        rate(llm, llm.last(task.agent), given)
