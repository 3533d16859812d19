"""Scorer for Inspect: the predicted rating of a sample's answer by a person.

Use `Task(dataset=..., solver=..., scorer=personal_fit("http://127.0.0.1:8484", user="ada"))`.
"""

from __future__ import annotations

import asyncio

import msgspec
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr  # pyright: ignore[reportMissingImports]
from inspect_ai.solver import TaskState  # pyright: ignore[reportMissingImports]

from fitrouter_integrations.evaluation._ratings import Ratings


@scorer(metrics=[mean(), stderr()])  # type: ignore[untyped-decorator, unused-ignore]
def personal_fit(url: str, *, user: str | None = None, role: str | None = None, dimension: str = "overall") -> Scorer:
    """Score answers from 0 to 1 as a person would rate them; the explanation has the interval and the reasons.

    Args:
        url: of a running gateway; its key comes from the environment variable `FITROUTER_API_KEY`.
        user: whose taste; without user and role the population's.
        role: role of the user.
        dimension: of the ratings.
    """
    ratings = Ratings(url=url, user=user, role=role, dimension=dimension)

    async def score(state: TaskState, target: Target) -> Score:  # noqa: ARG001 - there is no right answer
        answer = state.output.completion
        found = await asyncio.to_thread(ratings.of, state.input_text, answer)
        numbers = msgspec.to_builtins(found)
        return Score(value=numbers.pop("mean"), answer=answer, explanation=numbers.pop("words"), metadata=numbers)

    return score
