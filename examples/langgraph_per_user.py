"""An agent for everybody, and a model for each: two users of one LangGraph agent end up on different models.

    python examples/langgraph_per_user.py [--recorded PATH | --simulated]

Ann skims, Ben studies. Both talk to the same agent, which is made once, with one `ChatFitrouter`; who speaks comes with
each run, as LangGraph's runtime context. The stars that they give join their answer by the decision id in the reply's
metadata. Answers are recorded ones of eleven models, or of simulated models where the recording is not there; people
are simulated. The agent and its graph are LangGraph's own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from _learnt import tell
from _people import Readers
from _pools import chosen_pool, routed
from langchain.agents import create_agent

from fitrouter import Decision
from fitrouter_integrations.feedback import rate
from fitrouter_integrations.langchain import ChatFitrouter

TASTES = {"ann": "few words", "ben": "at length"}
QUESTIONS = (
    "How do vaccines work?",
    "Why is the sky blue?",
    "What is compound interest?",
    "How do I repot an orchid?",
    "What does a notary do?",
)


@dataclass
class Who:
    """Who speaks, and in which conversation."""

    user_id: str
    thread_id: str


def main() -> None:
    """Two users, one agent."""
    pool = chosen_pool(__doc__, QUESTIONS)
    readers = Readers({user: pool.tastes[taste] for user, taste in TASTES.items()})
    with routed(pool) as router:
        llm = ChatFitrouter(router=router, role="tutor", profile={"tool_calling": True})
        agent = create_agent(llm, tools=[], system_prompt="You are a tutor.", context_schema=Who, name="tutor")
        for i, question in enumerate(np.random.default_rng(0).choice(pool.cases, pool.rounds).tolist()):
            for user in TASTES:
                asked = {"role": "user", "content": question}
                state = agent.invoke({"messages": [asked]}, context=Who(user, f"{user}-{i}"))
                reply = state["messages"][-1]
                rate(llm, reply, readers.stars(user, reply.text))
                if i in {0, pool.rounds - 1}:
                    print(f"  {user}  {reply.response_metadata['model_name']:28}{reply.text[:60]!r}")
        # The log knows users by tokens that only the router's own register can lead back to them.
        names = {router._identities.subject("default", user): user for user in TASTES}

        def speaker(decision: Decision) -> str | None:
            return names.get(decision.identity.user)

        tell(router, speaker, pool, readers)


if __name__ == "__main__":
    main()
