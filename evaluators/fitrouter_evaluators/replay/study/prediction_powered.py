"""Prediction-powered outcomes: randomly requested labels combined with predictions for every decision.

Let A_t = 1 if decision t's label was requested (with probability e_t) and given, and f_t a prediction of the label
y_t made without it. R̃ = mean over the unit of f_t + (A_t / e_t) (y_t − f_t) has the mean of the outcomes for any f
(Angelopoulos, Bates, Fannjiang, Jordan and Zrnic 2023). Volunteered labels may train f; only requested ones correct
it. The weight of f is tuned (Angelopoulos, Duchi and Zrnic 2023, PPI++): with u the unit's importance weight, the part
of the variance that depends on λ is E[(u/T)² Σ_t (1 − e_t)/e_t (y_t − c − λ (f_t − f̄))²]. So λ and c are a weighted
regression of labels on predictions; with a learning logging policy, of earlier units only.

Some requests are not answered. Labels are then weighted by 1/(e r), with r the response rate: unbiased if responding
is independent of the label. `sensitivity` bounds the error if it is not.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fitrouter.types import Floats
from fitrouter_evaluators.replay.log.log import Ints, Log
from fitrouter_evaluators.replay.study._ridge import (
    Examples,
    fold_split,
    past_sums,
    progressive_split,
    projected,
    ridges,
)
from fitrouter_evaluators.replay.study.outcomes import MetricOutcomes
from fitrouter_evaluators.replay.study.units import Units

CHUNK = 16_384
BLOCKS = ((1, 5.0), (1, 30.0), (1, 5.0), (1, 10.0), (1, 5.0))
"""Intercept, slopes of logged expectation and score, offsets for missing scores and for volunteered labels."""
FEATURES = 15.0
PRIOR = 20.0
"""Prior weight, in labels, of the untuned prediction (λ = 1, no shift)."""


class Sample(NamedTuple):
    """The labelled units as a sample of all n."""

    keep: NDArray[np.bool_]
    """Units with at least one label, bool[n]."""
    reward: Floats
    """Outcomes by their labels, float64[n]; 0 for the others."""
    factor: Floats
    """Sampling weights with mean 1 over the sample, float64[n]; see `pseudo_outcomes.subset`."""


def label_probabilities(units: Units, observed: MetricOutcomes, *, adaptive: bool = True) -> Floats:
    """Probability of observing a label, e times the response rate, float64[members].

    0 where the decision does not count, 1 where the outcome is known without a label. If `adaptive`, the response
    rate is that of earlier units, starting at 1: sequences are exact if everyone responds.
    """
    e, certain = observed.e[units.member], observed.certain[units.member]
    asked = units.total(observed.asked[units.member])
    answered = units.total((observed.asked & observed.seen)[units.member])
    if adaptive:
        share = (past_sums(units, answered) + 2.0) / (past_sums(units, asked) + 2.0)
    else:
        share = np.full(units.n, answered.sum() / asked.sum() if answered.any() else 1.0)
    return np.where(certain, 1.0, e * np.repeat(share, units.turns))


def predict_labels(units: Units, observed: MetricOutcomes, *, adaptive: bool = True) -> Floats:
    """Predict each decision's label in [0, 1] from other decisions, float64[members].

    A ridge per arm, shrunk to a shared one, on the logged expectation, the reward model's score, and the features of
    context and answer. Trained on requested and volunteered labels, these with an offset: of units that had ended
    before each began if `adaptive`, else of other folds of whole clusters.
    """
    member = units.member
    open_ = (observed.e[member] > 0.0) & ~observed.certain[member]
    if (
        observed.scale == 0.0
        or not open_.any()
        or ((observed.e[member][open_] >= 1.0).all() and observed.seen[member].all())
    ):
        return np.zeros(len(member))
    free = units.log.outcomes.free_label
    heard = (observed.asked & observed.seen)[member]
    volunteered = open_ & ~heard & ~np.isnan(free[member])
    rows = np.flatnonzero(heard | volunteered)
    unit = units.of_member()
    examples_in = np.bincount(unit[rows], minlength=units.n)
    split = progressive_split(units, examples_in) if adaptive else fold_split(units)
    teach = rows[(split.piece < split.parts)[unit[rows]]]
    reads = _Reads(units.log)
    label = np.where(volunteered[teach], free[member[teach]], observed.label[member[teach]])
    phi, base = reads.features(member[teach], volunteered[teach])
    arm = reads.arm(member[teach])
    weight = np.ones(len(teach))
    examples = Examples(unit[teach], arm, phi, label - base, weight, reads.arms, reads.blocks)
    part = split.part[unit]
    wanted = np.flatnonzero(open_)
    order = wanted[np.argsort(part[wanted], kind="stable")]
    edges = np.searchsorted(part[order], np.arange(split.parts + 1))
    f = np.zeros(len(member))
    for theta, (a, b) in zip(ridges(examples, split), pairwise(edges), strict=True):
        for at in range(a, b, CHUNK):
            some = order[at : min(at + CHUNK, b)]
            phi, base = reads.features(member[some], np.zeros(len(some), dtype=bool))
            found = np.einsum("ij,ij->i", phi, theta[reads.arm(member[some])])
            f[some] = np.clip(base + found, 0.0, 1.0)
    return f


def tune_predictions(
    units: Units,
    observed: MetricOutcomes,
    f: Floats,
    chance: Floats,
    *,
    weight: Floats | None = None,
    adaptive: bool = True,
) -> Floats:
    """Tune predictions to c + λ (f − f̄) in [0, 1], with the λ and c of least variance, float64[members].

    `chance` is that of `label_probabilities`, `weight` (float64[n]) the units' importance weights or differences of
    them, None for 1. Tuned on units that had ended before each began if `adaptive`, else on all.
    """
    turns = np.maximum(units.total(chance > 0.0), 1.0)
    u = (np.ones(units.n) if weight is None else weight) / turns
    at = np.flatnonzero(observed.asked[units.member] & observed.seen[units.member] & (chance < 1.0))
    unit = units.of_member()[at]
    label, guess = observed.label[units.member[at]], f[at]
    omega = u[unit] ** 2 * (1.0 - chance[at]) / chance[at] ** 2
    columns = (omega, omega * label, omega * guess, omega * guess * guess, omega * guess * label, omega * omega)
    sums: list[Floats] = [np.bincount(unit, weights=column, minlength=units.n).astype(np.float64) for column in columns]
    if adaptive:
        past = [past_sums(units, column) for column in sums]
    else:
        past = [np.full(units.n, column.sum()) for column in sums]
    total, y1, f1, f2, fy, squares = past
    some = total > 0.0
    safe = np.where(some, total, 1.0)
    heard = np.where(some, total**2 / np.where(squares > 0.0, squares, 1.0), 0.0)
    y_mean, f_mean = y1 / safe, f1 / safe
    spread = np.maximum(f2 / safe - f_mean**2, 0.0)
    tied = spread > 1e-9
    slope = np.where(tied, (fy / safe - f_mean * y_mean) / np.where(tied, spread, 1.0), 1.0)
    trust = heard / (heard + PRIOR)
    power = np.clip(1.0 + trust * (slope - 1.0), 0.0, 1.0)
    shift = trust * (y_mean - f_mean)
    spell = units.turns
    tuned = np.repeat(f_mean + shift, spell) + np.repeat(power, spell) * (f - np.repeat(f_mean, spell))
    return np.clip(np.where(np.repeat(some, spell), tuned, f), 0.0, 1.0)


def powered_rewards(units: Units, observed: MetricOutcomes, f: Floats, chance: Floats) -> Floats:
    """Prediction-powered outcomes R̃ from predictions f and label probabilities, float64[n]; every unit must count."""
    counts, seen = chance > 0.0, observed.seen[units.member]
    rectified = np.where(seen & counts, (observed.label[units.member] - f) / np.where(counts, chance, 1.0), 0.0)
    outcome = observed.known[units.member] + observed.scale * (f + rectified)
    return units.total(np.where(counts, outcome, 0.0)) / units.total(counts)


def labelled_sample(units: Units, observed: MetricOutcomes, chance: Floats) -> Sample:
    """The labelled units, weighted by inverse label probability: estimates without predictions."""
    seen = observed.seen[units.member] & (chance > 0.0)
    heard = np.where(seen, 1.0 / np.where(seen, chance, 1.0), 0.0)
    total = units.total(heard)
    keep = total > 0.0
    outcome = (observed.known + observed.scale * observed.label)[units.member]
    reward = np.divide(units.total(heard * outcome), total, out=np.zeros(units.n), where=keep)
    factor = total / np.maximum(units.total(chance > 0.0), 1.0)
    return Sample(keep, reward, factor / factor[keep].mean() if keep.any() else factor)


def observed_means(units: Units, observed: MetricOutcomes) -> tuple[Floats, Floats]:
    """Mean observed outcome and number of observations of each unit, float64[n] each; NaN and 0 if it has none."""
    seen = observed.seen[units.member] & (observed.e[units.member] > 0.0)
    count = units.total(seen)
    outcome = np.where(seen, (observed.known + observed.scale * observed.label)[units.member], 0.0)
    mean = np.divide(units.total(outcome), count, out=np.full(units.n, np.nan), where=count > 0.0)
    return mean, count


class _Reads:
    """Builds features of decisions from which labels are predicted."""

    def __init__(self, log: Log) -> None:
        self.log, self.arms = log, len(log.names.arms)
        wide = [log.decisions.x, log.outcomes.h]
        self.wide = [columns for columns in wide if columns is not None and columns.shape[1]]
        sizes = [projected(columns[:1]).shape[1] for columns in self.wide]
        self.blocks = (*BLOCKS, *((size, FEATURES) for size in sizes))

    def arm(self, rows: Ints) -> Ints:
        """Codes of the arms chosen at these rows; 0 where the chosen arm was not eligible."""
        chosen = self.log.decisions.chosen[rows]
        return np.where(chosen >= 0, self.log.options.arm[chosen], 0)

    def features(self, rows: Ints, volunteered: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Features float64[rows, p] of these rows, and their logged expectation float64[rows]."""
        chosen, score = self.log.decisions.chosen[rows], self.log.outcomes.score[rows]
        base = np.full(len(rows), 0.5)
        if self.log.options.mean is not None:
            mean = self.log.options.mean[chosen]
            base = np.where((chosen >= 0) & ~np.isnan(mean), np.clip(mean, 0.0, 1.0), 0.5)
        missing = np.isnan(score)
        phi = np.empty((len(rows), sum(columns for columns, _ in self.blocks)))
        phi[:, 0], phi[:, 1], phi[:, 2] = 1.0, base - 0.5, np.where(missing, 0.0, score)
        phi[:, 3], phi[:, 4] = missing, volunteered
        at = len(BLOCKS)
        for columns in self.wide:
            found = projected(columns[rows])
            phi[:, at : at + found.shape[1]] = found
            at += found.shape[1]
        return phi, base
