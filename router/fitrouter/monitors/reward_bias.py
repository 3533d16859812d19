"""Reward-model bias: a sequential test for arms whose answers the reward model overrates.

The residual of a label is the text's predicted rating minus the person's, hᵀw − y, before the label is learnt. The
residuals of all arms share a level, and every model is somewhat better or worse than its text (its correction c_k).
An outlier among the arms is evidence of reward hacking. For each arm k and label, the hypothesis is

    H0: E[residual | past] ≤ b + max(tolerance, reach · √(s² + se²))

b is the mean residual of the other arms before the label, each arm counting once whatever its traffic (a
random-effects mean: DerSimonian and Laird 1986); s is the standard deviation between these arms, with a prior worth a
few arms; se is the standard error of b. H0 is tested by betting (`e_process`), valid at every look. Among arms known
from the start, the probability that any of them is ever flagged although H0 holds for its labels is at most α; an arm
that joins as the K-th adds α/K. A flagged arm stays flagged, and is left out of b and s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul
from typing import NamedTuple

import msgspec

from fitrouter.monitors.e_process import EProcess, Moments
from fitrouter.plain import Projection

ARMS, ROLES, CLUSTERS = 512, 32, 64
"""Arms, roles and clusters with statistics of their own, in order of appearance."""
MEMORY = 200
"""Labels over which an arm's mean residual is averaged: tastes that are still being learnt move all residuals."""
ENOUGH = 10
"""Labels of other arms before an arm is tested."""
NOISE = 0.1
"""Prior variance of a residual."""


class RewardBiasParams(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of the test, chosen so that arms whose c_k has an sd of .1 raise no alarm (docs/results/watch.md)."""

    alpha: float = 0.01
    tolerance: float = 0.03
    """Smallest excess that can raise the alarm."""
    reach: float = 2.25
    """Allowed distance from the mean of the other arms, in standard deviations."""
    ordinary: float = 0.07
    ordinary_arms: float = 4.0
    """Prior value of s, and the number of arms that it stands for."""
    reported_alpha: float = 0.05
    """1 − coverage of the reported intervals, valid at all times."""


class BiasFinding(NamedTuple):
    """Estimated bias of the reward model on an arm, with the half-width of an asymptotic confidence sequence."""

    bias: float
    half_width: float
    labels: int


class _Baseline(NamedTuple):
    """Mean residual of all arms but one, which that arm is compared with."""

    mean: float
    error: float
    """Standard error of `mean` for these arms."""
    ordinary: float
    """Predictive standard deviation of another arm around `mean`."""


class _MeanResidual(msgspec.Struct, array_like=True):
    """An arm's mean residual over its last labels."""

    n: int = 0
    mean: float = 0.0


class _Cell(msgspec.Struct, array_like=True):
    """Excess residual of an arm over the baseline: overall, in one role, or in one cluster."""

    arm: str
    kind: str
    name: str
    excess: Moments


class _StoredBias(msgspec.Struct, array_like=True):
    arms: list[tuple[str, _MeanResidual, bytes]]
    cells: list[_Cell]
    noise: tuple[float, float]
    roles: list[str]
    clusters: list[str]
    raised: list[str]


class RewardBiasMonitor(Projection):
    """Tests all arms for reward-model bias, over labels of the dimension `overall` in sequence order."""

    stored_type = _StoredBias

    def __init__(self, params: RewardBiasParams | None = None) -> None:
        self.params = params or RewardBiasParams()
        self._levels: dict[str, _MeanResidual] = {}
        self._wealth: dict[str, EProcess] = {}
        self._cells: dict[tuple[str, str, str], _Cell] = {}
        self._noise = (0.0, 0.0)
        """Sum of squared residuals around their arm's mean, and their number."""
        self._roles: dict[str, None] = {}
        self._clusters: dict[str, None] = {}
        self._raised: dict[str, None] = {}

    # --- learning ---

    def observe(self, arm: str, role: str | None, cluster: str | None, residual: float) -> bool:
        """Test the residual hᵀw − y of one label. Returns whether it raises the alarm for its arm.

        Args:
            arm: whose answer was labelled.
            role: of the person; None for none.
            cluster: or task of the prompt.
            residual: with w as it was before the label, clipped to [−1, 1]; one that is not finite is skipped.
        """
        if not math.isfinite(residual) or (arm not in self._levels and len(self._levels) >= ARMS):
            return False
        r = min(max(residual, -1.0), 1.0)
        if arm not in self._levels:
            self._levels[arm], self._wealth[arm] = _MeanResidual(), EProcess()
        level, wealth = self._levels[arm], self._wealth[arm]
        baseline = self._baseline(arm)
        if baseline is not None:
            bound = baseline.mean + max(self.params.tolerance, self.params.reach * baseline.ordinary)
            wealth.bet(r - bound, -1.0 - bound)
            for kind, name in (("", ""), ("role", role), ("cluster", cluster)):
                if name is not None and self._has_statistics(kind, name):
                    key = arm, kind, name
                    if key not in self._cells:
                        self._cells[key] = _Cell(arm, kind, name, Moments())
                    self._cells[key].excess.add(r - baseline.mean)
        if level.n:
            self._noise = self._noise[0] + (r - level.mean) ** 2, self._noise[1] + 1.0
        level.n += 1
        level.mean += (r - level.mean) / min(level.n, MEMORY)
        if arm not in self._raised and wealth.value >= len(self._levels) / self.params.alpha:
            self._raised[arm] = None
            return True
        return False

    def _has_statistics(self, kind: str, name: str) -> bool:
        """Whether a role or cluster has statistics of its own; they are created while there is room."""
        if not kind:
            return True
        seen, room = (self._roles, ROLES) if kind == "role" else (self._clusters, CLUSTERS)
        if name not in seen and len(seen) < room:
            seen[name] = None
        return name in seen

    def _baseline(self, arm: str) -> _Baseline | None:
        """Estimate the other arms' mean residual by random effects; None if they have too few labels."""
        others = [level for name, level in self._levels.items() if name != arm and name not in self._raised and level.n]
        if sum(level.n for level in others) < ENOUGH:
            return None
        noise = (5.0 * NOISE + self._noise[0]) / (5.0 + self._noise[1])
        mean, error = [level.mean for level in others], [noise / min(level.n, MEMORY) for level in others]
        prior = self.params.ordinary**2
        centre, _ = _pool(mean, [1.0 / (prior + e) for e in error])
        # The contribution of each arm to s² is clipped: one outlier must not make other outliers look ordinary.
        apart = [min(max((m - centre) ** 2 - e, 0.0), 9.0 * prior) for m, e in zip(mean, error, strict=True)]
        seen = self.params.ordinary_arms + float(len(others) - 1)
        spread = (self.params.ordinary_arms * prior + math.fsum(apart)) / seen
        weights = [1.0 / (spread + e) for e in error]
        centre, precision = _pool(mean, weights)
        own = math.sqrt(math.fsum(w * w * e for w, e in zip(weights, error, strict=True))) / precision
        return _Baseline(centre, own, math.sqrt(spread + 1.0 / precision))

    # --- reading ---

    def excess(self, arm: str, *, role: str | None = None, cluster: str | None = None) -> BiasFinding | None:
        """Estimate the reward model's bias on an arm relative to the other arms; None without labels.

        Args:
            arm: its name.
            role: restricts it to labels of one role.
            cluster: restricts it to one cluster of prompts.
        """
        kind, name = ("role", role) if role is not None else ("cluster", cluster) if cluster is not None else ("", "")
        cell = self._cells.get((arm, kind, name or ""))
        baseline = self._baseline(arm)
        if cell is None or baseline is None:
            return None
        own = cell.excess.half_width(self.params.reported_alpha, prior=(2.0, NOISE))
        return BiasFinding(cell.excess.mean, math.hypot(own, 2.0 * baseline.error), cell.excess.n)

    def cells(self, arm: str) -> list[tuple[str, str, BiasFinding]]:
        """Return the bias of an arm in each role and cluster as (kind, name, bias), the largest first."""
        found = []
        for _, kind, name in (key for key in self._cells if key[0] == arm and key[1]):
            excess = self.excess(arm, role=name) if kind == "role" else self.excess(arm, cluster=name)
            if excess is not None:
                found.append((kind, name, excess))
        return sorted(found, key=lambda cell: (-cell[2].bias, cell[0], cell[1]))

    def flagged(self) -> dict[str, BiasFinding]:
        """Arms whose scores are ignored, with the present estimate of their bias."""
        found = {arm: self.excess(arm) for arm in self._raised}
        return {arm: excess or BiasFinding(math.nan, math.inf, 0) for arm, excess in found.items()}

    def describe(self, arm: str) -> str:
        """Describe the reward model's bias on an arm in a sentence for operators."""
        found = self.excess(arm)
        if found is None or not math.isfinite(found.half_width):
            return f"too few labels to tell whether the reward model overrates model {arm}"
        by = f"{abs(found.bias):.2f} ± {found.half_width:.2f}"
        if arm in self._raised:
            return f"the reward model overrates model {arm} by {by}"
        if found.bias - found.half_width > 0.0:
            return f"the reward model overrates model {arm} by {by}, within the normal range"
        if found.bias + found.half_width < 0.0:
            return f"the reward model underrates model {arm} by {by}"
        return f"the reward model rates model {arm} like the other models (± {found.half_width:.2f})"

    # --- state ---

    def _store(self) -> _StoredBias:
        arms = [(arm, level, self._wealth[arm].dump()) for arm, level in self._levels.items()]
        cells, names = list(self._cells.values()), (self._roles, self._clusters, self._raised)
        return _StoredBias(arms, cells, self._noise, *(list(each) for each in names))

    def _restore(self, stored: _StoredBias) -> bool:
        wealth = {arm: EProcess() for arm, _, _ in stored.arms}
        valid = all(wealth[arm].load(state) for arm, _, state in stored.arms) and len(wealth) == len(stored.arms)
        valid = valid and all(level.n >= 1 and abs(level.mean) <= 1.0 for _, level, _ in stored.arms)
        valid = valid and all(cell.arm in wealth and cell.excess.valid for cell in stored.cells)
        valid = valid and all(math.isfinite(part) and part >= 0.0 for part in stored.noise)
        if not valid or not set(stored.raised) <= set(wealth):
            return False
        self._levels, self._wealth = {arm: level for arm, level, _ in stored.arms}, wealth
        self._cells = {(cell.arm, cell.kind, cell.name): cell for cell in stored.cells}
        self._noise = stored.noise
        self._roles, self._clusters = dict.fromkeys(stored.roles), dict.fromkeys(stored.clusters)
        self._raised = dict.fromkeys(stored.raised)
        return True


def _pool(mean: Sequence[float], weights: Sequence[float]) -> tuple[float, float]:
    """Precision-weighted mean, and the total precision."""
    precision = math.fsum(weights)
    return math.fsum(map(mul, mean, weights)) / precision, precision
