"""What estimators read: one unit of replay a row."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fitrouter.types import Floats


class Rounds(NamedTuple):
    """n units (closed sessions; a decision without a session is one of its own) under one target policy.

    With draws 1 … m in a unit, ρ_j the product of the first j importance weights π(a)/p(a), Q_j the outcome model at
    draw j and V_j = Σ_a π_j(a) Q_j(a), the doubly robust value of a unit is (Jiang and Li 2016, eq. 10, the reward at
    the end) V_1 + Σ_{j<m} ρ_j (V_{j+1} − Q_j) + ρ_m (reward − Q_m) = base + weight · (reward − q).
    """

    reward: Floats
    """float64[n]"""
    weight: Floats
    """float64[n]: ρ_m."""
    q: Floats
    """float64[n]: Q_m(a_m), the model's outcome of what was drawn last."""
    base: Floats
    """float64[n]: V_1 + Σ_{j<m} ρ_j (V_{j+1} − Q_j)."""
    direct: Floats
    """float64[n]: V_1; equal to `base` where a unit has one draw."""
    match: NDArray[np.bool_] | None = None
    """bool[n]: the candidate, drawing for itself, took what was logged; for rejection replay."""
