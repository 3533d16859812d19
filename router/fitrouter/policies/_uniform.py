"""Uniform choice."""

from __future__ import annotations

import numpy as np

from fitrouter.policies._base import Beliefs, sound
from fitrouter.types import Floats

__all__ = ["Uniform"]


class Uniform:
    """Every eligible arm has probability 1 / K: what a log is best evaluated on, and the dearest to run."""

    name = "uniform"

    def propose(self, beliefs: Beliefs) -> Floats:
        """float64[K], all equal."""
        K = len(sound(beliefs)[0])
        return np.full(K, 1.0 / K)
