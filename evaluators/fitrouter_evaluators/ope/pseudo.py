"""From units, pmfs and outcomes to what estimators and sequences read."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fitrouter.types import Floats
from fitrouter_evaluators.ope.rounds import Rounds
from fitrouter_evaluators.ope.units import Units

__all__ = ["rounds_of", "subset"]


def rounds_of(units: Units, pmf: Floats, q: Floats | None, reward: Floats, *, seed: int | None = None) -> Rounds:
    """What estimators read of one policy.

    Args:
        units: n of them.
        pmf: float64[m], the policy's probabilities in the order of `Units.entries`.
        q: float64[m], the outcome model, likewise; None for none.
        reward: float64[n], outcomes of the units.
        seed: for rejection replay: the policy draws for itself, from this seed; None leaves `match` out.
    """
    weight, product = units.weights(pmf)
    model = np.zeros_like(pmf) if q is None else q
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


def subset(rounds: Rounds, keep: NDArray[np.bool_], factor: Floats | None = None) -> Rounds:
    """The rounds in `keep` (bool[n]).

    Args:
        rounds: n of them.
        keep: which.
        factor: float64[n], weights of the units as a sample; everything that is averaged is multiplied by them.
    """
    f = np.ones(int(keep.sum())) if factor is None else factor[keep]
    return Rounds(
        reward=rounds.reward[keep],
        weight=rounds.weight[keep] * f,
        q=rounds.q[keep],
        base=rounds.base[keep] * f,
        direct=rounds.direct[keep] * f,
        match=None if rounds.match is None else rounds.match[keep],
    )


def running(units: Units, weight: Floats) -> Floats:
    """float64[draws]: products of the weights of a unit's draws up to each."""
    product, first, many = weight.copy(), units.draw_start[:-1], units.draws
    for j in range(1, int(many.max(initial=1))):
        at = first[many > j] + j
        product[at] *= product[at - 1]
    return product


def _matched(units: Units, pmf: Floats, seed: int) -> NDArray[np.bool_]:
    """bool[n]: draws of the policy's own agree with all that were logged; it takes a logged arm with π(a)."""
    own = np.random.default_rng(seed).random(len(units.draw)) < pmf[units.chosen()]
    return np.logical_and.reduceat(own, units.draw_start[:-1]) if len(own) else own
