"""Self-normalised inverse propensity scoring."""

from __future__ import annotations

import numpy as np

from fitrouter.types import Floats
from fitrouter_evaluators.replay.estimators._base import RatioEstimator
from fitrouter_evaluators.replay.estimators.rounds import Rounds


class SNIPS(RatioEstimator):
    """Σ w · reward / Σ w: stays inside the range of rewards; consistent, with bias O(1/n).

    Reference: Swaminathan and Joachims (2015), "The self-normalized estimator for counterfactual learning".
    """

    name = "snips"

    def moments(self, rounds: Rounds) -> Floats:
        """float64[2, n]: w · reward and w."""
        return np.stack((rounds.weight * rounds.reward, rounds.weight))
