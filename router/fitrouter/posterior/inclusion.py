"""What the terms of people are worth: the posterior probability that each is worth nothing.

For each term two hypotheses bet against none at all, that it is worth a half, or the whole, of what it says: their
predictive log likelihood of labels is summed as labels come, each predicted before it was learnt (Bayes factors; Kass
and Raftery 1995). The sums are cut on both sides, so that a change is noticed after tens of labels, whatever came
before. A term that says little, in a world that has no use for it, is told from nothing by what it says too much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fitrouter.types import Projection

COEFFICIENTS = (0.5, 1.0)
"""Shares of a term that the hypotheses add."""

LEAST, MOST = -7.0, 10.0
"""Nats between which evidence is remembered."""


class InclusionTest(Projection):
    """The fold over labels.

    Args:
        terms: how many there are.
    """

    stored_type = list[list[float]]

    def __init__(self, terms: int) -> None:
        self.evidence = [[0.0] * len(COEFFICIENTS) for _ in range(terms)]
        """Nats for each hypothesis against nothing."""

    def see(self, terms: Sequence[float], counted: Sequence[float], left: float, noise: float) -> None:
        """Fold one label.

        Args:
            terms: what each says of the label.
            counted: how much of each is in the prediction.
            left: the label minus the prediction.
            noise: variance of the label.
        """
        scale = 0.5 / noise
        for evidence, term, share in zip(self.evidence, terms, counted, strict=True):
            rest = 2.0 * (left + share * term)  # what this term is to explain, twice
            for i, coefficient in enumerate(COEFFICIENTS):
                said = coefficient * term
                nats = evidence[i] + scale * said * (rest - said)
                evidence[i] = min(max(nats, LEAST), MOST)

    def p_null(self) -> list[float]:
        """The probability of each term's being worth nothing; 1/2 before any label."""
        return [1.0 / (1.0 + sum(map(math.exp, nats)) / len(nats)) for nats in self.evidence]

    # --- state ---

    def _store(self) -> list[list[float]]:
        return self.evidence

    def _restore(self, stored: list[list[float]]) -> bool:
        if [len(nats) for nats in stored] != [len(COEFFICIENTS)] * len(self.evidence):
            return False
        if not all(LEAST <= nats <= MOST for row in stored for nats in row):
            return False
        self.evidence = stored
        return True
