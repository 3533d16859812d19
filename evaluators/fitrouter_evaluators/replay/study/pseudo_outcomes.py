"""Inputs of estimators and sequences from units, pmfs and outcomes.

`rounds_of` is for estimators at one look. `pseudo_outcomes` is for sequences: outcomes within bounds that were known
beforehand, see `_truncation`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fitrouter.errors import InvalidLog
from fitrouter.types import Floats
from fitrouter_evaluators.replay.estimators.rounds import Rounds
from fitrouter_evaluators.replay.inference.sequences import BOUNDS, PAIRED_BOUNDS
from fitrouter_evaluators.replay.study._truncation import UnitBatch, truncated_outcomes
from fitrouter_evaluators.replay.study.outcomes import MetricOutcomes
from fitrouter_evaluators.replay.study.units import Units

CHUNK = 4096
"""Units processed at a time."""


class PseudoOutcomes(NamedTuple):
    """g pseudo-outcomes of each of n units with equal conditional means; one row for each bound."""

    low: Floats
    """float64[g, n], at least −bound_low."""
    high: Floats
    """float64[g, n], at most bound_high."""
    bound_low: Floats
    bound_high: Floats
    """float64[g]"""


def rounds_of(units: Units, pmf: Floats, q: Floats | None, reward: Floats, *, seed: int | None = None) -> Rounds:
    """Inputs of the estimators for one policy.

    `pmf` and the outcome model q (None: 0) are float64[m] in the order of `Units.entries`. `seed` is that of the
    policy's own draws, for rejection sampling; None leaves `match` out.
    """
    weight, product = units.weights(pmf)
    model = np.zeros_like(pmf) if q is None else q
    pmf = _complete_pmf(units, pmf)
    at, last = units.entry_start()[:-1], units.draw_start[1:] - 1
    values: Floats = np.add.reduceat(pmf * model, at) if len(at) else np.zeros(0)
    taken = model[units.chosen()]
    direct = values[units.draw_start[:-1]]
    base = direct.copy()
    if len(weight) > units.n:
        # Σ_{j<m} ρ_j (V_{j+1} − Q_j): nothing follows a unit's last draw.
        steps = running(units, weight) * (np.append(values[1:], 0.0) - taken)
        steps[last] = 0.0
        base += np.add.reduceat(steps, units.draw_start[:-1])
    return Rounds(
        reward=reward,
        weight=product,
        q=taken[last],
        base=base,
        direct=direct,
        match=None if seed is None else _matched(units, pmf, seed),
    )


def _complete_pmf(units: Units, pmf: Floats) -> Floats:
    """Complete the pmf for predictions: where only the drawn arm's probability is known, that arm gets all of it.

    There the policy is the logged one (weight 1), and its doubly robust outcome is the outcome, whatever is predicted.
    """
    if not np.isnan(pmf).any():
        return pmf
    drawn = np.zeros(len(pmf))
    drawn[units.chosen()] = 1.0
    size = np.diff(units.entry_start())
    unknown = np.repeat(np.logical_or.reduceat(np.isnan(pmf), units.entry_start()[:-1]), size)
    return np.where(unknown, drawn, pmf)


def subset(rounds: Rounds, keep: NDArray[np.bool_], factor: Floats | None = None) -> Rounds:
    """The rounds in `keep` (bool[n]), with averaged columns multiplied by sampling weights `factor` (float64[n])."""
    f = np.ones(int(keep.sum())) if factor is None else factor[keep]
    return Rounds(
        reward=rounds.reward[keep],
        weight=rounds.weight[keep] * f,
        q=rounds.q[keep],
        base=rounds.base[keep] * f,
        direct=rounds.direct[keep] * f,
        match=None if rounds.match is None else rounds.match[keep],
    )


def bounds_for(observed: MetricOutcomes, *, paired: bool = False) -> tuple[float, ...]:
    """Choose bounds for pseudo-outcomes of some hundred units or more, given the probability e of a label request.

    A label prediction may lose (1 − e)/e of itself, so rare labels need larger bounds: 1/e and 4/e. With e = .1 and
    20,000 units these detected 68% of improvements by .03, the bounds for fully observed outcomes 38%, an
    asymptotic sequence 78%.
    """
    rare = observed.e[(observed.e > 0.0) & (observed.e < 1.0)]
    if not len(rare) or observed.scale == 0.0:
        return PAIRED_BOUNDS if paired else BOUNDS
    e = float(np.median(rare))
    return 1.0 / e, 4.0 / e


def pseudo_outcomes(
    units: Units,
    pmf: Floats,
    against: Floats | None,
    q: Floats | None,
    observed: MetricOutcomes,
    f: Floats,
    chance: Floats,
    *,
    bounds: tuple[float, ...] | None = None,
    again: NDArray[np.bool_] | None = None,
) -> PseudoOutcomes:
    """Outcomes with the mean V(pmf), or V(pmf) − V(against), within bounds known before each unit.

    The means are exact for any q made before a unit began and any f made without its labels, if label requests change
    nothing else of a session. Unsupported mass counts as the worst outcome in `low` and the best in `high` (Manski
    bounds).

    Args:
        units: n of them, each with a decision that counts.
        pmf: float64[m], a policy's probabilities in the order of `Units.entries`.
        against: the same of another policy; None: the value of one policy.
        q: float64[m], the outcome model (`outcome_model.predict`); None: 0.
        observed: outcomes of the decisions.
        f: float64[members], label predictions (`prediction_powered.tune_predictions`).
        chance: float64[members], see `prediction_powered.label_probabilities`.
        bounds: k of each row, on outcomes scaled to [0, 1]; above 0, and at least 1 for a difference. Small ones
            suit few units, large ones many units or rare labels. None: `bounds_for`.
        again: bool[n], the unit might have been redrawn later; None: units of sessions might.
    """
    least = 0.0 if against is None else 1.0
    bounds = bounds_for(observed, paired=against is not None) if bounds is None else bounds
    if not bounds or not all(np.isfinite(k) and k > 0.0 and k >= least for k in bounds):
        raise InvalidLog(f"bounds {bounds}: each must be above 0, and at least 1 for a difference")
    rows, n = len(bounds), units.n
    low, high = np.empty((rows, n)), np.empty((rows, n))
    further = bounds if against is not None else tuple(1.0 + k for k in bounds)
    k, K = np.array(bounds), np.array(further)
    parts = _Batches(units, q, observed, f, chance, again)
    for at in range(0, n, CHUNK):
        some = slice(at, min(at + CHUNK, n))
        part, entries = parts.batch(some)
        plus, minus = pmf[entries], None if against is None else against[entries]
        # Products of many large weights are only as exact as their rounding: no more than that is taken off here.
        low[:, some] = np.maximum(truncated_outcomes(part, plus, minus, bounds), -k[:, None])
        high[:, some] = np.minimum(-truncated_outcomes(part, minus, plus, further), K[:, None])
    span, shift = observed.high - observed.low, observed.low if against is None else 0.0
    return PseudoOutcomes(shift + span * low, shift + span * high, span * k - shift, span * K + shift)


class _Batches:
    """Cuts the units into batches with outcomes scaled to [0, 1]."""

    def __init__(
        self,
        units: Units,
        q: Floats | None,
        observed: MetricOutcomes,
        f: Floats,
        chance: Floats,
        again: NDArray[np.bool_] | None,
    ) -> None:
        self.units, self.observed, self.f, self.chance, self.q = units, observed, f, chance, q
        self.entry, self.entries, self.chosen = units.entry_start(), units.entries(), units.chosen()
        first = units.draw[units.draw_start[:-1]]
        self.again = units.log.decisions.session[first] >= 0 if again is None else again
        if (units.draws > 1)[~self.again].any():
            raise InvalidLog("some units marked as never redrawn (again) have several draws")
        self.span = observed.high - observed.low
        counts = chance > 0.0
        known = np.where(counts, (observed.known[units.member] - observed.low) / self.span, 0.0)
        turns = units.total(counts)
        if not turns.all():
            raise InvalidLog(
                f"{int((turns == 0.0).sum())} units have no observable outcome; leave them out (`with_outcomes`)"
            )
        self.known = units.total(known) / turns

    def batch(self, some: slice) -> tuple[UnitBatch, slice]:
        """Build the batch of these units, and return it with the positions of its entries."""
        units, observed = self.units, self.observed
        a, b = units.draw_start[some.start], units.draw_start[some.stop]
        s, t = units.start[some.start], units.start[some.stop]
        entries, member = slice(self.entry[a], self.entry[b]), units.member[s:t]
        p = units.log.options.prob[self.entries[entries]]
        unknown = np.flatnonzero(np.isnan(p))
        if len(unknown):
            draw = np.searchsorted(self.entry, self.entry[a] + unknown[0], side="right") - 1
            row = int(units.log.decisions.seq[units.draw[draw]])
            raise InvalidLog(
                f"{units.log.source}, row {row}: the full pmf is not logged, which gates and exact sequences need; "
                "give a column for each model (p_MODEL), or compare without --gate"
            )
        q = np.zeros(len(p)) if self.q is None else (self.q[entries] - observed.low) / self.span
        part = UnitBatch(
            p=p,
            q=np.clip(q, 0.0, 1.0),
            entry=self.entry[a : b + 1] - self.entry[a],
            chosen=self.chosen[a:b] - self.entry[a],
            draw=units.draw_start[some.start : some.stop + 1] - a,
            again=self.again[some],
            known=self.known[some],
            scale=observed.scale / self.span,
            turn=units.start[some.start : some.stop + 1] - s,
            label=observed.label[member],
            seen=observed.seen[member],
            f=self.f[s:t],
            chance=self.chance[s:t],
        )
        return part, entries


def running(units: Units, weight: Floats) -> Floats:
    """Cumulative products of the weights within each unit, float64[draws]."""
    product, first, many = weight.copy(), units.draw_start[:-1], units.draws
    for j in range(1, int(many.max(initial=1))):
        at = first[many > j] + j
        product[at] *= product[at - 1]
    return product


def _matched(units: Units, pmf: Floats, seed: int) -> NDArray[np.bool_]:
    """Whether draws simulated from the policy equal all the logged ones of a unit, bool[n]."""
    own = np.random.default_rng(seed).random(len(units.draw)) < pmf[units.chosen()]
    return np.logical_and.reduceat(own, units.draw_start[:-1]) if len(own) else own
