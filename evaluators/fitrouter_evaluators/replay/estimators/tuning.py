"""Data-driven choice of the shrinkage parameter λ: the bias-variance trade-off."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

import numpy as np

from fitrouter.errors import ConfigError, InvalidLog
from fitrouter_evaluators.replay.estimators import ClippedDR, ClippedIPS, DRos, SwitchDR, WeightedEstimator
from fitrouter_evaluators.replay.estimators._quantiles import student
from fitrouter_evaluators.replay.estimators.rounds import Rounds

Tunable: TypeAlias = ClippedDR | ClippedIPS | DRos | SwitchDR
LAMBDAS = (1.0, 5.0, 10.0, 50.0, 100.0, 500.0, math.inf)
"""From hard shrinkage to none."""

_KINDS: dict[str, Callable[[float], Tunable]] = {kind.name: kind for kind in (ClippedDR, ClippedIPS, DRos, SwitchDR)}


def tuned(
    name: str,
    rounds: Rounds,
    lambdas: Iterable[float] = LAMBDAS,
    method: Literal["slope", "mse"] = "slope",
    delta: float = 0.1,
) -> tuple[Tunable, float]:
    """An estimator with λ chosen from the data, and that λ; the same choices as Open Bandit Pipeline 0.5.7.

    The method is SLOPE++, or the least bound on the mean squared error (`mse_bound`); `delta` is the failure
    probability of the bounds used inside. Intervals made with the chosen λ account neither for the choice nor for the
    remaining bias.
    """
    if name not in _KINDS:
        raise ConfigError(f"tuning: {name!r} has no λ to tune; choose one of {', '.join(sorted(_KINDS))}")
    if method not in ("slope", "mse"):
        raise ConfigError(f"tuning: there is no method {method!r}; choose 'slope' or 'mse'")
    if not 0.0 < delta <= 0.5:
        raise ConfigError(f"tuning: delta is {delta!r}; give a probability above 0, up to ½")
    candidates = [_KINDS[name](lam) for lam in sorted(lambdas)]
    if not candidates:
        raise ConfigError("tuning: there is no λ to choose from: give at least one")
    if len(rounds.reward) < 2:
        raise InvalidLog(f"tuning: {len(rounds.reward)} units; two or more are needed: widen the window")
    best = candidates[(_slope if method == "slope" else _least_mse)(candidates, rounds, delta)]
    return best, best.lam


def _slope(candidates: list[Tunable], rounds: Rounds, delta: float) -> int:
    """Choose by SLOPE++ the index of the narrowest estimate that is consistent with all wider ones.

    From the widest on: the last one before the first i with |θ_i − θ_j| > c_i + (√6 − 1) c_j for some wider j. Wide
    estimates have little bias, so bias shows as disagreement. Su, Srinath and Krishnamurthy (2020), "Adaptive
    estimator selection for off-policy evaluation"; sorted by width as in Tucker and Lee (2021), "Improved estimator
    selection for off-policy evaluation". The width c is Student's, one-sided at delta; ties go to the smaller λ.
    """
    n = len(rounds.reward)
    columns = [candidate.score(rounds) for candidate in candidates]
    values = np.array([column.mean() for column in columns])
    widths = np.array([column.std(ddof=1) for column in columns]) / math.sqrt(n)
    widths *= student(1.0 - delta, np.array(n - 1.0))
    order = np.argsort(-widths, kind="stable")
    for i in range(1, len(order)):
        one, wider = order[i], order[:i]
        if np.any(np.abs(values[wider] - values[one]) > widths[one] + (math.sqrt(6.0) - 1.0) * widths[wider]):
            return int(order[i - 1])
    return int(order[-1])


def _least_mse(candidates: list[Tunable], rounds: Rounds, delta: float) -> int:
    """Index of the smallest bound on the mean squared error; ties go to the largest λ."""
    bounds = np.array([mse_bound(candidate, rounds, delta) for candidate in candidates])
    return int(np.flatnonzero(bounds == bounds.min())[-1])


def mse_bound(estimator: WeightedEstimator, rounds: Rounds, delta: float = 0.1) -> float:
    """Upper bound on the mean squared error for rewards in [0, 1]: variance plus squared bias bound.

    bias ≤ |mean of (w − ŵ) · residual| + √(2 mean(w²) ln(2/δ) / n) + 2 max(w) ln(2/δ) / 3n (Bernstein). Wang, Agarwal
    and Dudík (2017), "Optimal and adaptive off-policy evaluation in contextual bandits"; Su, Dimakopoulou,
    Krishnamurthy and Dudík (2020), "Doubly robust off-policy evaluation with shrinkage".
    """
    weight, n = rounds.weight, len(rounds.weight)
    rare = math.log(2.0 / delta)
    bias = abs(((weight - estimator.shrink(weight)) * estimator.residual(rounds)).mean())
    bias += math.sqrt(2.0 * (weight * weight).mean() * rare / n) + 2.0 * weight.max() * rare / (3.0 * n)
    return float(estimator.score(rounds).var() / n + bias * bias)
