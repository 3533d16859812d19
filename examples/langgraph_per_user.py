"""An agent for everybody, and a model for each: two users of one LangGraph agent end up on different models.

    python examples/langgraph_per_user.py

Ann skims, Ben studies. Both talk to the same agent, which is made once, with one `ChatFitrouter`; who speaks comes with
each run, as LangGraph's runtime context. The stars that they give join their answer by the decision id in the reply's
metadata. Models and people are simulated, so that it runs offline; the agent and its graph are LangGraph's own.
"""

from __future__ import annotations

from dataclasses import dataclass

from _people import best, long_and_warm, shares, short, simulated_router, stars, tell
from langchain.agents import create_agent

from fitrouter import Decision
from fitrouter_integrations.feedback import rate
from fitrouter_integrations.langchain import ChatFitrouter

ROUNDS = 30
TASTES = {"ann": short, "ben": long_and_warm}
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
    with simulated_router() as router:
        llm = ChatFitrouter(router=router, role="tutor", profile={"tool_calling": True})
        agent = create_agent(llm, tools=[], system_prompt="You are a tutor.", context_schema=Who, name="tutor")
        for i in range(ROUNDS):
            for user, taste in TASTES.items():
                question = {"role": "user", "content": QUESTIONS[i % len(QUESTIONS)]}
                state = agent.invoke({"messages": [question]}, context=Who(user, f"{user}-{i}"))
                reply = state["messages"][-1]
                rate(llm, reply, stars(taste(reply.text)))
                if i in {0, ROUNDS - 1}:
                    print(f"  {user}, round {i + 1:2}: {reply.response_metadata['model_name']:10}{reply.text[:60]!r}")
        # The log knows users by tokens that only the router's own register can lead back to them.
        names = {router.identities.subject("default", user): user for user in TASTES}

        def speaker(decision: Decision) -> str | None:
            return names.get(decision.identity.user)

        early, late = shares(router, speaker, first=4, last=10)
    print(f"What was learnt of {ROUNDS} ratings of each user, as mean probabilities of the models:")
    tell(early, late)
    assert {user: best(late[user]) for user in TASTES} == {"ann": "terse", "ben": "warm"}


if __name__ == "__main__":
    main()
