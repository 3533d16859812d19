"""Posterior probability that each personal term of the prediction is null.

For each term, two hypotheses (coefficient 0.5 or 1) are compared with coefficient 0 by Bayes factors (Kass and Raftery
1995): their prequential log likelihoods are summed label by label, each predicted before it is learnt. The sums are
clipped on both sides, so that a change is detected within tens of labels. Even a small useless term is detected: its
predictions overshoot, which lowers their likelihood.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fitrouter.types import Projection

COEFFICIENTS = (0.5, 1.0)
"""Coefficients of a term under the hypotheses."""

LEAST, MOST = -7.0, 10.0
"""Bounds of the log Bayes factors, in nats."""


class InclusionTest(Projection):
    """Log Bayes factors of each term, folded over labels.

    Args:
        terms: number of terms.
    """

    stored_type = list[list[float]]

    def __init__(self, terms: int) -> None:
        self.evidence = [[0.0] * len(COEFFICIENTS) for _ in range(terms)]
        """Log Bayes factor of each hypothesis against coefficient 0, in nats."""

    def see(self, terms: Sequence[float], counted: Sequence[float], left: float, noise: float) -> None:
        """Fold one label.

        Args:
            terms: the prediction of each term.
            counted: its weight in the combined prediction.
            left: the label minus the combined prediction.
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
