"""Rejection sampling estimator ("replay")."""

from __future__ import annotations

import numpy as np

from fitrouter.errors import ConfigError
from fitrouter.types import Floats
from fitrouter_evaluators.replay.estimators._base import RatioEstimator
from fitrouter_evaluators.replay.estimators.rounds import Rounds


class Rejection(RatioEstimator):
    """Mean reward over the units in which the candidate's own draw equals the logged one.

    Unbiased on uniformly logged data (the uniform slice); elsewhere biased towards the logging policy. It uses about
    one unit in K.
    Reference: Li, Chu, Langford and Wang (2011), "Unbiased offline evaluation of contextual-bandit-based news article
    recommendation algorithms", Algorithm 2.
    """

    name = "rejection"

    def moments(self, rounds: Rounds) -> Floats:
        if rounds.match is None:
            raise ConfigError(
                "estimator: 'rejection' needs Rounds.match (whether the candidate drew the logged arm); draw from the "
                "candidate, or leave the estimator out"
            )
        return np.stack((np.where(rounds.match, rounds.reward, 0.0), rounds.match.astype(np.float64)))
