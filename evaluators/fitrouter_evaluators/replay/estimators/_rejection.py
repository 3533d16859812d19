"""Rejection replay."""

from __future__ import annotations

import numpy as np

from fitrouter.errors import ConfigError
from fitrouter.types import Floats
from fitrouter_evaluators.replay.estimators._base import Ratio
from fitrouter_evaluators.replay.estimators.rounds import Rounds


class Rejection(Ratio):
    """Mean reward over the units in which the candidate, drawing for itself, took what was logged.

    Right where the log was drawn uniformly (the uniform slice); elsewhere it favours what the log favoured. It uses
    about one unit in K.
    Reference: Li, Chu, Langford and Wang (2011), "Unbiased offline evaluation of contextual-bandit-based news article
    recommendation algorithms", Algorithm 2.
    """

    name = "rejection"

    def moments(self, rounds: Rounds) -> Floats:
        """float64[2, n]: the reward where there was a match, and whether there was.

        Raises:
            ConfigError: the rounds do not say what matched.
        """
        if rounds.match is None:
            raise ConfigError(
                "estimator: 'rejection' needs Rounds.match, whether the candidate drew what was logged; these rounds "
                "have none: draw from the candidate, or leave the estimator out"
            )
        return np.stack((np.where(rounds.match, rounds.reward, 0.0), rounds.match.astype(np.float64)))
