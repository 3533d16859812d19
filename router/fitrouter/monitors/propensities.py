"""Propensity audit: a sequential test that draws come from the logged pmfs, on which replay and reports rely.

The test bets against the log. For any pmf q' that is known before the draw, q'(chosen) / q(chosen) has mean 1 if the
draw came from the logged pmf q. The product of these factors is therefore an e-process, and an alarm at 1/α is ever
false with probability at most α (Ville 1939). Three families of alternatives q' are mixed:

* `uniform`: (1 − ε) q + ε/K, with the factor 1 − ε + ε / (K q(chosen)): a bet that the mean of 1/(K·p) is above 1
  (ε > 0) or below 1 (ε < 0);
* `sharp`: q^β / Σ q^β, for draws from a sharper or flatter pmf than the logged one;
* `arm`: q with the odds of one arm changed by 5% or 20%, for every arm.

`Propensities` runs the test continuously. `audit` checks a whole log once: the test, the invariants of each decision,
the replay of each draw, and a χ² test of the choices.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import numpy as np

from fitrouter.draw import replay
from fitrouter.monitors.e_process import MixtureEProcess
from fitrouter.plain import Projection
from fitrouter.types import Decision, Floats

ALPHA = 1e-3
"""Level of the alarm."""
FIRST, ARMS = 8, 40
"""Half of the `arm` wealth is for the first `FIRST` arms that appear, half for the others up to `ARMS`."""
EPSILON = np.array([-0.9, -0.5, 0.005, 0.03, 0.2])
"""ε of the `uniform` family; negative ones in units of the largest |ε| with q' ≥ 0."""
BETA = np.array([0.8, 0.95, 1.05, 1.25])
"""Exponents β of the `sharp` family."""
TILT = np.exp(np.array([-0.2, -0.05, 0.05, 0.2]))
"""Factors of an arm's odds in the `arm` family."""


class _StoredCounts(msgspec.Struct, array_like=True):
    uniform: bytes
    sharp: bytes
    arm: bytes
    arms: list[str]
    n: int
    inverse: float


class Propensities(Projection):
    """Sequential test of whether drawn decisions follow their logged propensities."""

    stored_type = _StoredCounts

    def __init__(self) -> None:
        self._uniform = MixtureEProcess(np.full(len(EPSILON), 1.0 / len(EPSILON)))
        self._sharp = MixtureEProcess(np.full(len(BETA), 1.0 / len(BETA)))
        shares = np.where(np.arange(ARMS) < FIRST, 0.5 / FIRST, 0.5 / (ARMS - FIRST))
        self._arm = MixtureEProcess(np.repeat(shares / len(TILT), len(TILT)))
        self._arms: dict[str, int] = {}
        self.n = 0
        self._inverse = 0.0
        """Σ 1/(K·p)."""

    def observe(self, decision: Decision) -> None:
        """Test one drawn decision; others are skipped, and so is an invalid pmf, which `audit` reports."""
        q = decision.probs
        if not decision.mode.drawn or len(q) != len(decision.eligible) or decision.chosen not in decision.eligible:
            return
        chosen = decision.eligible.index(decision.chosen)
        total = math.fsum(q) if all(map(math.isfinite, q)) else math.nan
        if not (min(q) >= 0.0 and q[chosen] > 0.0 and abs(total - 1.0) < 1e-6):
            return
        possible = [each for each in q if each > 0.0]
        p, K = q[chosen], len(possible)
        self.n += 1
        self._inverse += 1.0 / (K * p)
        # q' = (1 − ε) q + ε/K is ≥ 0 for ε ≥ −r / (1 − r), with r = K min q ≤ 1.
        least = min(min(possible) * K, 0.5)
        epsilon = np.where(EPSILON < 0.0, EPSILON * least / (1.0 - least), EPSILON)
        self._uniform.multiply(1.0 + epsilon * (1.0 / (K * p) - 1.0))
        logs = np.log(possible)
        sums = np.add.reduce(np.exp(np.multiply.outer(BETA, logs)), axis=1)
        self._sharp.multiply(np.exp((BETA - 1.0) * math.log(p)) / sums)
        self._arm.multiply(self._tilted(decision.eligible, np.array(q), chosen))

    def _tilted(self, eligible: tuple[str, ...], q: Floats, chosen: int) -> Floats:
        """Likelihood ratios q'(chosen) / q(chosen) of the `arm` family, float64[ARMS · G]; 1 for ineligible arms."""
        for arm in eligible:
            if arm not in self._arms and len(self._arms) < ARMS:
                self._arms[arm] = len(self._arms)
        rows = np.array([self._arms.get(arm, ARMS) for arm in eligible])
        factors = np.ones((ARMS + 1, len(TILT)))
        factors[rows] = 1.0 / (1.0 + np.multiply.outer(q, TILT - 1.0))
        factors[rows[chosen]] *= TILT
        return factors[:ARMS].ravel()

    @property
    def evidence(self) -> dict[str, float]:
        """Return each family's e-value against the logged pmfs, and their mean as `all`."""
        found = {"uniform": self._uniform.value, "sharp": self._sharp.value, "arm": self._arm.value}
        return {**found, "all": sum(found.values()) / len(found)}

    @property
    def mean_inverse(self) -> float:
        """Mean of 1/(K·p), which is 1 in expectation if the log is right; NaN before any decision."""
        return self._inverse / self.n if self.n else math.nan

    def _store(self) -> _StoredCounts:
        wealth = self._uniform.dump(), self._sharp.dump(), self._arm.dump()
        return _StoredCounts(*wealth, list(self._arms), self.n, self._inverse)

    def _restore(self, stored: _StoredCounts) -> bool:
        fresh = Propensities()
        valid = fresh._uniform.load(stored.uniform) and fresh._sharp.load(stored.sharp) and fresh._arm.load(stored.arm)
        valid = valid and stored.n >= fresh._uniform.n and math.isfinite(stored.inverse) and stored.inverse >= 0.0
        arms = {arm: k for k, arm in enumerate(stored.arms)}
        if not valid or len(arms) != len(stored.arms) or len(arms) > ARMS:
            return False
        fresh._arms, fresh.n, fresh._inverse = arms, stored.n, stored.inverse
        vars(self).update(vars(fresh))
        return True


class Audit(NamedTuple):
    """Result of `audit`, a check of a log's propensities."""

    decisions: int
    drawn: int
    violations: dict[str, int]
    """Broken invariant → number of decisions."""
    first: dict[str, str]
    """Broken invariant → id of the first decision."""
    chi2: float
    chi2_dof: int
    chi2_p: float
    """χ² test of the choices against the logged pmfs; unlike the e-values valid for a single look only."""
    mean_inverse: float
    """Mean of 1/(K·p)."""
    peak: dict[str, float]
    """Family → its largest e-value; `all` raises the alarm."""
    fired_at: int | None
    """Number of drawn decisions at which the alarm was raised; None if it was not."""

    @property
    def ok(self) -> bool:
        """Whether no invariant is violated, no alarm was raised, and χ² is not significant at `ALPHA`."""
        return not self.violations and self.fired_at is None and not self.chi2_p < ALPHA


def audit(decisions: Iterable[Decision], *, replays: bool = True) -> Audit:
    """Check the propensities of a log.

    Args:
        decisions: of the log, in order.
        replays: repeat each draw from its seed; False if the seeds are not known.
    """
    test, counts = Propensities(), _ChoiceCounts()
    violations: dict[str, int] = {}
    first: dict[str, str] = {}
    peak: dict[str, float] = {}
    seen = drawn = 0
    fired: int | None = None
    for decision in decisions:
        seen += 1
        if not decision.mode.drawn:
            continue
        drawn += 1
        broken = _broken(decision, replays)
        for name in broken:
            violations[name] = violations.get(name, 0) + 1
            first.setdefault(name, decision.id)
        test.observe(decision)
        if "pmf" not in broken and "chosen" not in broken:
            counts.add(decision)
        evidence = test.evidence
        peak = {name: max(value, peak.get(name, 1.0)) for name, value in evidence.items()}
        if fired is None and evidence["all"] >= 1.0 / ALPHA:
            fired = drawn
    chi2, dof = counts.statistic()
    return Audit(seen, drawn, violations, first, chi2, dof, chi2_tail(chi2, dof), test.mean_inverse, peak, fired)


def _broken(decision: Decision, replays: bool) -> list[str]:
    """Names of the invariants that a drawn decision violates."""
    q, K = np.array(decision.probs), len(decision.eligible)
    if len(q) != K or not np.isfinite(q).all() or not abs(float(q.sum()) - 1.0) < 1e-12:
        return ["pmf"]
    if decision.chosen not in decision.eligible:
        return ["chosen"]
    broken = []
    if q.min() < decision.floor / K:
        broken.append("floor")
    if decision.propensity != decision.probs[decision.eligible.index(decision.chosen)]:
        broken.append("propensity")
    if replays and replay(decision) != decision.chosen:
        broken.append("replay")
    return broken


class _ChoiceCounts:
    """Sums of choices minus logged probabilities per arm, with their covariance."""

    def __init__(self) -> None:
        self.arms: dict[str, int] = {}
        self.excess = np.zeros(0)
        self.cov = np.zeros((0, 0))

    def add(self, decision: Decision) -> None:
        for arm in decision.eligible:
            self.arms.setdefault(arm, len(self.arms))
        grown = len(self.arms) - len(self.excess)
        if grown:
            self.excess, self.cov = np.pad(self.excess, (0, grown)), np.pad(self.cov, ((0, grown), (0, grown)))
        q = np.array(decision.probs)
        rows = np.array([self.arms[arm] for arm in decision.eligible])
        self.excess[rows] -= q
        self.excess[self.arms[decision.chosen]] += 1.0
        self.cov[np.ix_(rows, rows)] += np.diag(q) - np.multiply.outer(q, q)

    def statistic(self) -> tuple[float, int]:
        """Return χ² = DᵀC⁺D and the rank of C: Pearson's statistic for pmfs that vary between draws."""
        if not len(self.excess) or not self.cov.any():
            return 0.0, 0
        values, vectors = np.linalg.eigh(self.cov)
        use = values > 1e-9 * values.max()
        along = np.einsum("ij,i->j", vectors[:, use], self.excess)
        return float((along * along / values[use]).sum()), int(use.sum())


def chi2_tail(x: float, dof: int) -> float:
    """Survival function P(χ² ≥ x), in closed form for integer degrees of freedom.

    >>> round(chi2_tail(14.067140449, 7), 6), round(chi2_tail(5.991464547, 2), 6)
    (0.05, 0.05)
    """
    if dof < 1:
        return 1.0
    half = x / 2.0
    if dof % 2:
        tail, term, k = math.erfc(math.sqrt(half)), math.sqrt(half / math.pi) * 2.0 * math.exp(-half), 1
    else:
        tail, term, k = math.exp(-half), half * math.exp(-half), 2
    while k < dof:
        tail += term
        k += 2
        term *= x / k
    return min(tail, 1.0)
