"""Input of the estimators: one row for each unit of replay."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fitrouter.types import Floats


class Rounds(NamedTuple):
    """Estimator inputs of n units (closed sessions, or decisions without a session) under one target policy.

    For draws 1 … m of a unit, let ρ_j be the product of the first j importance weights π(a)/p(a), Q_j the outcome
    model at draw j and V_j = Σ_a π_j(a) Q_j(a). The doubly robust value of a unit whose reward comes at its end
    (Jiang and Li 2016, eq. 10) is V_1 + Σ_{j<m} ρ_j (V_{j+1} − Q_j) + ρ_m (reward − Q_m), which is
    base + weight · (reward − q).
    """

    reward: Floats
    """float64[n]"""
    weight: Floats
    """float64[n]: ρ_m."""
    q: Floats
    """Q_m(a_m), the outcome model at the last drawn arm, float64[n]."""
    base: Floats
    """V_1 + Σ_{j<m} ρ_j (V_{j+1} − Q_j), float64[n]."""
    direct: Floats
    """V_1, float64[n]; equal to `base` for units of one draw."""
    match: NDArray[np.bool_] | None = None
    """The candidate's own draw equals the logged one, bool[n]; for rejection sampling."""
