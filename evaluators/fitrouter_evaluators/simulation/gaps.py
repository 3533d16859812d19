"""Gaps between users' rewards and the feasible oracle's, and their spread over users.

A user's gap is the mean, over their rounds, of the reward of the feasible oracle's model minus the reward of the chosen
one. Users have 30 to 700 rounds, so that the raw variance of their means is mostly noise; reported is the variance
component between users of a one-way random-effects model, by the method of moments (Searle, Casella and
McCulloch 1992, §3.6), and users' gaps shrunken by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fitrouter.types import Floats


class Gaps(NamedTuple):
    """Summary of the gaps between the feasible oracle's rewards and the users' rewards."""

    mean: float
    """Over rounds."""
    between_sd: float
    """Square root of the variance component between users; 0 where rounds explain all differences."""
    worst_decile: float
    """Mean gap of the tenth of the users with the largest, each shrunken towards the mean of all."""
    worst_role: float
    """Mean gap over the rounds of the role with the largest."""


def gaps(user: Any, gap: Floats, role: Any) -> Gaps:
    """Summarise the gaps of one run.

    Args:
        user: int[T], of each round.
        gap: float64[T], reward of the feasible best minus reward.
        role: int[U] of the users.
    """
    U = len(role)
    n = np.bincount(user, minlength=U).astype(np.float64)
    here = n > 0
    n, total = n[here], np.bincount(user, gap, U)[here]
    squares = np.bincount(user, gap * gap, U)[here]
    mean, own = float(gap.mean()), total / n
    T, groups = float(n.sum()), len(n)
    within = max(float((squares - n * own * own).sum()), 0.0) / max(T - groups, 1.0)
    between = 0.0
    if groups > 1:
        typical = (T - float((n * n).sum()) / T) / (groups - 1)
        between = max(float((n * (own - mean) ** 2).sum()) / (groups - 1) - within, 0.0) / typical
    shrunken = mean + (own - mean) * (between / (between + within / n) if between > 0.0 else 0.0)
    worst = np.sort(shrunken)[-max(1, groups // 10) :]
    of_role = role[user]
    roles = [float(gap[of_role == r].mean()) for r in np.unique(of_role)]
    return Gaps(mean, float(np.sqrt(between)), float(worst.mean()), max(roles))


def benefit(saved: Sequence[float], rounds: Sequence[float]) -> int | None:
    """Number of labels of a user from which on personalisation pays, by an isotonic fit of the savings; None if never.

    Args:
        saved: by number of a user's earlier labels, regret without minus regret with the user's terms.
        rounds: number of rounds of each sum.
    """
    from sklearn.isotonic import isotonic_regression

    n = np.asarray(rounds, dtype=np.float64)
    seen = n > 0
    if not seen.any():
        return None
    fitted = np.zeros(len(n))
    fitted[seen] = isotonic_regression(np.asarray(saved)[seen] / n[seen], sample_weight=n[seen])
    above = np.flatnonzero(seen & (fitted > 0.0))
    return int(above[0]) if len(above) else None
