"""LinUCB: choice of the highest upper confidence bound."""

from __future__ import annotations

from typing import ClassVar

from pydantic.dataclasses import dataclass

from fitrouter.policies._base import DECLARED, Beliefs, Positive, sound
from fitrouter.types import Floats


@dataclass(frozen=True, config=DECLARED)
class LinUCB:
    """Policy that gives all traffic to the arm with the highest u_k + alpha · sd_k; tied arms share equally.

    Its choices are deterministic, so other policies cannot be evaluated on its log: it can only be a shadow candidate
    (`build_policy`).
    Reference: Li et al. (2010), "A contextual-bandit approach to personalized news article recommendation".

    >>> import numpy as np
    >>> beliefs = Beliefs(arms=("a", "b"), utility=np.array([0.7, 0.5]), sd=np.array([0.0, 0.3]), steps=0.0)
    >>> LinUCB(alpha=1.0).propose(beliefs).tolist()
    [0.0, 1.0]
    """

    alpha: Positive = 1.0
    """Standard deviations above the mean."""

    name: ClassVar[str] = "linucb"
    shadow_only: ClassVar[bool] = True
    """Takes no traffic, since its log would have no randomness to evaluate other policies on."""

    def propose(self, beliefs: Beliefs) -> Floats:
        """Return the pmf over the arms, float64[K]: one-hot except for ties."""
        return self.pmf(*sound(beliefs), beliefs.steps)

    def pmf(self, utility: Floats, sd: Floats, steps: float | Floats) -> Floats:  # noqa: ARG002 - of every policy
        """Return the pmfs of many requests, float64[..., K]."""
        upper = utility + self.alpha * sd
        best = upper == upper.max(axis=-1, keepdims=True)
        pmf: Floats = best / best.sum(axis=-1, keepdims=True)
        return pmf
