"""Estimators without an outcome model: IPS, its shrunk forms, SNIPS, and rejection sampling."""

from __future__ import annotations

import numpy as np

from fitrouter.errors import ConfigError
from fitrouter.types import Floats
from fitrouter_evaluators.replay.estimators._base import (
    Clipping,
    RatioEstimator,
    SubgaussianShrinkage,
    WeightedEstimator,
)
from fitrouter_evaluators.replay.estimators.rounds import Rounds


class IPS(WeightedEstimator):
    """Inverse propensity scoring: mean of w · reward; unbiased under full support.

    Reference: Horvitz and Thompson (1952), "A generalization of sampling without replacement from a finite universe".
    """

    name = "ips"


class ClippedIPS(Clipping, WeightedEstimator):
    """IPS with clipped weights: mean of min(w, λ) · reward; biased downwards for positive rewards.

    Reference: Ionides (2008), "Truncated importance sampling"; Bottou et al. (2013), "Counterfactual reasoning and
    learning systems", §4.
    """

    name = "clipped_ips"


class SubgaussianIPS(SubgaussianShrinkage, WeightedEstimator):
    """IPS with subgaussian weights: mean of w / (1 − λ + λw) · reward.

    Reference: Metelli, Russo and Restelli (2021), "Subgaussian and differentiable importance sampling for off-policy
    evaluation and learning" (power mean at s = −1).
    """

    name = "subgaussian_ips"


class SNIPS(RatioEstimator):
    """Self-normalised IPS, Σ w · reward / Σ w: within the range of rewards; consistent, with bias O(1/n).

    Reference: Swaminathan and Joachims (2015), "The self-normalized estimator for counterfactual learning".
    """

    name = "snips"

    def moments(self, rounds: Rounds) -> Floats:
        return np.stack((rounds.weight * rounds.reward, rounds.weight))


class Rejection(RatioEstimator):
    """Rejection sampling: mean reward of the units in which the candidate's own draw equals the logged one.

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
