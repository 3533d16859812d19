"""Uniform choice."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fitrouter.policies._base import Beliefs, sound
from fitrouter.types import Floats


class Uniform:
    """Policy that gives each eligible arm 1 / K: the best log for offline evaluation, at the highest cost."""

    name: ClassVar[str] = "uniform"

    def propose(self, beliefs: Beliefs) -> Floats:
        """Return the uniform pmf over the arms, float64[K]."""
        return self.pmf(*sound(beliefs), beliefs.steps)

    def pmf(self, utility: Floats, sd: Floats, steps: float | Floats) -> Floats:  # noqa: ARG002 - of every policy
        """Return the uniform pmfs of many requests, float64[..., K]."""
        return np.full(utility.shape, 1.0 / utility.shape[-1])
