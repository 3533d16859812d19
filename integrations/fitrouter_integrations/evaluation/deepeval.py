"""Metric for DeepEval: the predicted rating of a test case's answer by a person.

Use `assert_test(LLMTestCase(input=..., actual_output=...), [PersonalFit("http://127.0.0.1:8484", user="ada")])`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from deepeval.metrics import BaseMetric  # pyright: ignore[reportMissingImports]
from deepeval.test_case import LLMTestCase  # pyright: ignore[reportMissingImports]

from fitrouter_integrations.evaluation._ratings import Ratings


class PersonalFit(BaseMetric):  # type: ignore[misc, unused-ignore]
    """Scores answers from 0 to 1 as a person would rate them; `reason` has the interval and the reasons.

    Args:
        url: of a running gateway; its key comes from the environment variable `FITROUTER_API_KEY`.
        user: whose taste; without user and role the population's.
        role: role of the user.
        dimension: of the ratings.
        threshold: lowest predicted rating that passes.
    """

    def __init__(
        self,
        url: str,
        *,
        user: str | None = None,
        role: str | None = None,
        dimension: str = "overall",
        threshold: float = 0.5,
    ) -> None:
        super().__init__()
        # DeepEval copies a metric by its constructor, with the attributes that have the arguments' names.
        self.url, self.user, self.role, self.dimension, self.threshold = url, user, role, dimension, threshold
        self.evaluation_model = "fitrouter"

    @property
    def __name__(self) -> str:
        """Name in DeepEval's reports."""
        return "Personal fit"

    def measure(self, test_case: LLMTestCase, *_args: Any, **_options: Any) -> float:
        """Score a test case."""
        ratings = Ratings(url=self.url, user=self.user, role=self.role, dimension=self.dimension)
        found = ratings.of(test_case.input or "", test_case.actual_output or "")
        self.score, self.reason = found.mean, found.words
        self.score_breakdown = {"low": found.low, "high": found.high, "population": found.population}
        self.success = found.mean >= self.threshold
        return found.mean

    async def a_measure(self, test_case: LLMTestCase, *_args: Any, **_options: Any) -> float:
        """Score a test case without blocking the event loop."""
        return await asyncio.to_thread(self.measure, test_case)
