"""Inverse propensity scoring."""

from __future__ import annotations

from fitrouter_evaluators.replay.estimators._base import WeightedEstimator


class IPS(WeightedEstimator):
    """Mean of w · reward. Unbiased under full support.

    Reference: Horvitz and Thompson (1952), "A generalization of sampling without replacement from a finite universe".
    """

    name = "ips"
