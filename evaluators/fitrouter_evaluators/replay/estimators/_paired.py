"""Paired difference of two policies."""

from __future__ import annotations

import numpy as np

from fitrouter.errors import ConfigError
from fitrouter.types import Floats
from fitrouter_evaluators.replay.estimators._base import Estimator
from fitrouter_evaluators.replay.estimators.rounds import Rounds


class Paired:
    """The estimate of one policy minus that of another on the same units, in the same order.

    Noise common to both policies cancels unit by unit, so the interval is that of the difference.
    """

    def __init__(self, estimator: Estimator, against: Rounds) -> None:
        self.name = estimator.name
        self._estimator = estimator
        self._against = estimator.moments(against)

    def moments(self, rounds: Rounds) -> Floats:
        columns = self._estimator.moments(rounds)
        if columns.shape != self._against.shape:
            raise ConfigError(
                f"paired difference of {columns.shape[1]} and {self._against.shape[1]} units: give both policies the "
                "same units in the same order"
            )
        return np.concatenate((columns, self._against))

    def value(self, means: Floats) -> Floats:
        one, other = np.split(means, 2, axis=-1)
        return self._estimator.value(one) - self._estimator.value(other)

    def gradient(self, means: Floats) -> Floats:
        one, other = np.split(means, 2, axis=-1)
        return np.concatenate((self._estimator.gradient(one), -self._estimator.gradient(other)), axis=-1)
