"""Fixed choice of one arm."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fitrouter.policies._base import Beliefs, sound
from fitrouter.types import Floats


class Fixed:
    """Policy that gives one arm all traffic; uniform over the eligible arms if it is not eligible."""

    name: ClassVar[str] = "fixed"

    def __init__(self, arm: str) -> None:
        self.arm = arm

    def propose(self, beliefs: Beliefs) -> Floats:
        """Return the pmf over the arms, float64[K]: one-hot if the fixed arm is eligible, else uniform."""
        K = len(sound(beliefs)[0])
        pmf = np.zeros(K)
        if self.arm in beliefs.arms:
            pmf[beliefs.arms.index(self.arm)] = 1.0
        else:
            pmf += 1.0 / K
        return pmf
