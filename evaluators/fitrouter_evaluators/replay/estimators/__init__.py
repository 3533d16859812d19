"""Off-policy estimators of a policy's value, all behind the `Estimator` protocol."""

from __future__ import annotations

from fitrouter.errors import InvalidLog
from fitrouter_evaluators.replay.estimators._base import Estimator, WeightedEstimator
from fitrouter_evaluators.replay.estimators._doubly_robust import (
    DR,
    SNDR,
    ClippedDR,
    DirectMethod,
    DRos,
    SubgaussianDR,
    SwitchDR,
)
from fitrouter_evaluators.replay.estimators._paired import Paired
from fitrouter_evaluators.replay.estimators._weighting import IPS, SNIPS, ClippedIPS, Rejection, SubgaussianIPS
from fitrouter_evaluators.replay.estimators.rounds import Rounds

__all__ = [
    "DR",
    "ESTIMATORS",
    "IPS",
    "SNDR",
    "SNIPS",
    "ClippedDR",
    "ClippedIPS",
    "DRos",
    "DirectMethod",
    "Estimator",
    "Paired",
    "Rejection",
    "SubgaussianDR",
    "SubgaussianIPS",
    "SwitchDR",
    "WeightedEstimator",
    "estimate",
]

_KINDS = (
    DirectMethod,
    IPS,
    ClippedIPS,
    SNIPS,
    DR,
    ClippedDR,
    SNDR,
    SwitchDR,
    DRos,
    SubgaussianIPS,
    SubgaussianDR,
    Rejection,
)
ESTIMATORS: dict[str, Estimator] = {kind.name: kind() for kind in _KINDS}
"""Name → estimator with its default λ."""


def estimate(estimator: Estimator, rounds: Rounds) -> float:
    """Compute the estimate over all units; NaN if the weights sum to zero."""
    columns = estimator.moments(rounds)
    if not columns.shape[1]:
        raise InvalidLog(f"{estimator.name}: there are no units: widen the window, or shorten the horizon")
    return float(estimator.value(columns.mean(axis=1)))
