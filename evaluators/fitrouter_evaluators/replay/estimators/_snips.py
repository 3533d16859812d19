"""Self-normalised inverse propensity scoring."""

from __future__ import annotations

import numpy as np

from fitrouter.types import Floats
from fitrouter_evaluators.replay.estimators._base import Ratio
from fitrouter_evaluators.replay.estimators.rounds import Rounds


class SNIPS(Ratio):
    """Σ w · reward / Σ w: never outside the rewards' range, consistent, biased by O(1/n).

    Reference: Swaminathan and Joachims (2015), "The self-normalized estimator for counterfactual learning".
    """

    name = "snips"

    def moments(self, rounds: Rounds) -> Floats:
        """float64[2, n]: w · reward and w."""
        return np.stack((rounds.weight * rounds.reward, rounds.weight))
