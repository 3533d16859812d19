"""Overlap diagnostics: importance weights, effective sample size, unsupported probability mass."""

from __future__ import annotations

import numpy as np

from fitrouter.types import Floats
from fitrouter_evaluators.replay.estimators import DR, DirectMethod, estimate
from fitrouter_evaluators.replay.estimators.rounds import Rounds
from fitrouter_evaluators.replay.report import ArmShare, Diagnostics, WeightHistogram
from fitrouter_evaluators.replay.study.study import Pmfs
from fitrouter_evaluators.replay.study.units import Units

BINS = 40
SMALLEST = 1e-4
"""Smaller weights are counted in the first bin."""


def diagnose(policy: str, units: Units, pmf: Floats, rounds: Rounds, low: float, high: float) -> Diagnostics:
    """Diagnostics of a policy whose `pmf` is in the order of `Units.entries`; a unit's outcome is in [low, high]."""
    weight, n = rounds.weight, units.n
    squares = float(np.square(weight).sum())
    lost = unsupported(units, pmf)
    value, direct = estimate(DR(), rounds), estimate(DirectMethod(), rounds)
    # Where the log has nothing, the estimate stands on the outcome model: the worst and the best are put there instead.
    mass = float(lost.mean())
    there = value - float((lost * rounds.direct).mean())
    return Diagnostics(
        policy=policy,
        n=n,
        ess=float(weight.sum()) ** 2 / squares if squares else 0.0,
        max_weight=float(weight.max(initial=0.0)),
        mean_weight=float(weight.mean()),
        mean_weight_se=float(weight.std(ddof=1) / np.sqrt(n)) if n > 1 else float("nan"),
        unsupported=mass,
        manski_low=there + mass * low,
        manski_high=there + mass * high,
        dm_dr_gap=direct - value,
    )


def unsupported(units: Units, pmf: Floats) -> Floats:
    """Probability in each unit that the policy draws an arm logged with probability 0, float64[n]; unknown pmfs: 0."""
    p = units.log.options.prob[units.entries()]
    there = np.where(p == 0.0, pmf, 0.0)
    each = np.add.reduceat(there, units.entry_start()[:-1]) if len(there) else np.zeros(0)
    if len(each) == units.n:
        return each
    kept: Floats = np.multiply.reduceat(1.0 - each, units.draw_start[:-1])
    return 1.0 - kept


def weight_histogram(policy: str, weight: Floats) -> WeightHistogram:
    """Histogram of importance weights over log10 w."""
    logs = np.log10(np.maximum(weight, SMALLEST))
    counts, edges = np.histogram(logs, bins=BINS, range=(np.log10(SMALLEST), max(float(logs.max(initial=0.0)), 1.0)))
    return WeightHistogram(policy=policy, edges=edges.tolist(), counts=counts.tolist())


def arm_shares(units: Units, pmfs: Pmfs) -> list[ArmShare]:
    """Mean logged and target probability of each arm over the draws at which it was eligible."""
    entries = units.entries()
    code, names = units.log.options.arm[entries], units.log.names.arms
    p = units.log.options.prob[entries]
    draws = np.bincount(code, minlength=len(names))

    def mean(values: Floats) -> Floats:
        sums = np.bincount(code, weights=np.nan_to_num(values), minlength=len(names))
        return np.divide(sums, draws, out=np.zeros(len(names)), where=draws > 0)

    if np.isnan(p).any():  # propensities alone: how often it was drawn stands in for how likely it was
        drawn = np.zeros(len(entries))
        drawn[units.chosen()] = 1.0
        p = drawn
        pmfs = Pmfs(*(np.where(np.isnan(pmf), drawn, pmf) for pmf in pmfs))
    logged, candidate, against = mean(p), mean(pmfs.candidate), mean(pmfs.against)
    found = [
        ArmShare(
            arm=name,
            logged=float(logged[k]),
            against=float(against[k]),
            candidate=float(candidate[k]),
            draws=int(draws[k]),
        )
        for k, name in enumerate(names)
        if draws[k]
    ]
    return sorted(found, key=lambda arm: -arm.candidate * arm.draws)
