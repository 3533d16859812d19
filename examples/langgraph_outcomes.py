"""An agent that learns from how its runs end: nobody rates any of its twelve steps.

    python examples/langgraph_outcomes.py [--recorded PATH | --simulated]

A LangGraph agent plans, looks things up and writes: three roles, four model calls each, in turns. One `ChatFitrouter`
answers all of them; the thread is the run. At its end a reviewer gives the whole work stars, the mean of what each
role's texts deserve, and the router finds out which model suits which role. Answers are recorded ones of eleven models,
or of simulated models where the recording is not there; the reviewer is simulated. The graph is LangGraph's own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import numpy as np
from _learnt import tell
from _people import Readers
from _pools import chosen_pool, routed
from langgraph.graph import END, START, StateGraph

from fitrouter_integrations.feedback import outcome
from fitrouter_integrations.langchain import ChatFitrouter

TASTES = {"planner": "in points", "researcher": "few words", "writer": "at length"}
TOPICS = ("a heat pump", "a school garden", "a night train", "a food bank", "a repair shop", "a city library")
ROUNDS = 4
"""Times that the agent goes through its roles in a run."""


class Work(TypedDict):
    """State of the graph."""

    topic: str
    steps: Annotated[list[tuple[str, str]], operator.add]
    """Role and text of each step so far."""


def step(llm: ChatFitrouter, role: str) -> Callable[[Work], dict[str, Any]]:
    """A node of the graph: one call of a role."""

    def node(work: Work) -> dict[str, Any]:
        part = len(work["steps"]) // len(TASTES) + 1
        text = llm.invoke(f"Part {part}. As our {role}, take on: {work['topic']}", role=role).text
        return {"steps": [(role, text)]}

    return node


def make_agent(llm: ChatFitrouter) -> Any:
    """Planner, researcher and writer in turns, twelve steps in all."""
    graph = StateGraph(Work)
    roles = list(TASTES)
    for role in roles:
        graph.add_node(role, step(llm, role))
    graph.add_edge(START, roles[0])
    graph.add_edge(roles[0], roles[1])
    graph.add_edge(roles[1], roles[2])
    graph.add_conditional_edges(roles[2], lambda work: END if len(work["steps"]) == 3 * ROUNDS else roles[0])
    return graph.compile()


def main() -> None:
    """A season of projects."""
    pool = chosen_pool(__doc__, TOPICS, outcomes=True)
    readers = Readers({role: pool.tastes[taste] for role, taste in TASTES.items()})
    with routed(pool) as router:
        llm = ChatFitrouter(router=router)
        agent = make_agent(llm)
        for number, topic in enumerate(np.random.default_rng(0).choice(pool.cases, pool.rounds).tolist()):
            thread = f"project {number}"
            done = agent.invoke({"topic": topic, "steps": []}, {"configurable": {"thread_id": thread}})
            stars = [readers.stars(role, text) for role, text in done["steps"]]
            outcome(llm, thread, sum(stars) / len(stars), kind="rating", scale=(1, 5), source="person")
        tell(router, lambda decision: decision.identity.role, pool, readers)


if __name__ == "__main__":
    main()
