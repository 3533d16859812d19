"""Direct method."""

from __future__ import annotations

from fitrouter.types import Floats
from fitrouter_evaluators.replay.estimators._base import MeanEstimator
from fitrouter_evaluators.replay.estimators.rounds import Rounds


class DirectMethod(MeanEstimator):
    """Mean of V_1 = Σ_a π(a) q(a): the outcome model's prediction, with no correction.

    As biased as the model, and its interval does not show it: for comparison only.
    Reference: Beygelzimer and Langford (2009), "The offset tree for learning with partial labels".
    """

    name = "dm"

    def score(self, rounds: Rounds) -> Floats:
        """float64[n]: V_1."""
        return rounds.direct
