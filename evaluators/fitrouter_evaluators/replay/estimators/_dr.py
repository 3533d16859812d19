"""Doubly robust."""

from __future__ import annotations

from fitrouter_evaluators.replay.estimators._base import Corrected


class DR(Corrected):
    """Mean of base + w · (reward − q). Unbiased where the log has support, whatever the model; tight where it is good.

    Reference: Dudík, Langford and Li (2011), "Doubly robust policy evaluation and learning"; over several draws
    Jiang and Li (2016), "Doubly robust off-policy value evaluation for reinforcement learning", eq. 10.
    """

    name = "dr"
