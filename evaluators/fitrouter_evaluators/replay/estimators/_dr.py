"""Doubly robust estimator."""

from __future__ import annotations

from fitrouter_evaluators.replay.estimators._base import DoublyRobustEstimator


class DR(DoublyRobustEstimator):
    """Mean of base + w · (reward − q). Unbiased under full support whatever the model; precise if the model is good.

    Reference: Dudík, Langford and Li (2011), "Doubly robust policy evaluation and learning"; over several draws
    Jiang and Li (2016), "Doubly robust off-policy value evaluation for reinforcement learning", eq. 10.
    """

    name = "dr"
