"""Direct method."""

from __future__ import annotations

from fitrouter.types import Floats
from fitrouter_evaluators.replay.estimators._base import Mean
from fitrouter_evaluators.replay.estimators.rounds import Rounds


class DirectMethod(Mean):
    """Mean of V_1 = Σ_a π(a) q(a): what the outcome model says, whatever happened.

    As wrong as its model is, and its interval does not know: for looking beside the others.
    Reference: Beygelzimer and Langford (2009), "The offset tree for learning with partial labels".
    """

    name = "dm"

    def score(self, rounds: Rounds) -> Floats:
        """float64[n]: V_1."""
        return rounds.direct
