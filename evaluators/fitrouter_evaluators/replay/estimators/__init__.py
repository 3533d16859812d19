"""Off-policy estimators of a policy's value, all behind the `Estimator` protocol."""

from __future__ import annotations

from fitrouter.errors import InvalidLog
from fitrouter_evaluators.replay.estimators._base import Estimator, WeightedEstimator
from fitrouter_evaluators.replay.estimators._clipped import ClippedDR, ClippedIPS
from fitrouter_evaluators.replay.estimators._dm import DirectMethod
from fitrouter_evaluators.replay.estimators._dr import DR
from fitrouter_evaluators.replay.estimators._dr_os import DRos
from fitrouter_evaluators.replay.estimators._ips import IPS
from fitrouter_evaluators.replay.estimators._paired import Paired
from fitrouter_evaluators.replay.estimators._rejection import Rejection
from fitrouter_evaluators.replay.estimators._sndr import SNDR
from fitrouter_evaluators.replay.estimators._snips import SNIPS
from fitrouter_evaluators.replay.estimators._subgaussian import SubgaussianDR, SubgaussianIPS
from fitrouter_evaluators.replay.estimators._switch_dr import SwitchDR
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

_EACH: tuple[Estimator, ...] = (
    DirectMethod(),
    IPS(),
    ClippedIPS(),
    SNIPS(),
    DR(),
    ClippedDR(),
    SNDR(),
    SwitchDR(),
    DRos(),
    SubgaussianIPS(),
    SubgaussianDR(),
    Rejection(),
)
ESTIMATORS: dict[str, Estimator] = {estimator.name: estimator for estimator in _EACH}
"""Name → estimator with its default λ."""


def estimate(estimator: Estimator, rounds: Rounds) -> float:
    """The estimate over all units; NaN if the weights sum to zero.

    Raises:
        InvalidLog: there are no units.
    """
    columns = estimator.moments(rounds)
    if not columns.shape[1]:
        raise InvalidLog(f"{estimator.name}: there are no units: widen the window, or shorten the horizon")
    return float(estimator.value(columns.mean(axis=1)))
