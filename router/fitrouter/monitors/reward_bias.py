"""The alarm that a reward model cannot be hacked in silence: it tells whose answers the score flatters.

The residual of a label is what the text was thought to be worth minus what the person said, hᵀw − y, before the label
was learnt. Everybody's text may be misjudged a little, and every model is somewhat better or worse than its text (c_k
says so); an arm that *stands out* of the others flatters the score. Per arm k and label, the hypothesis is

    H0: E[residual | past] ≤ b + max(tolerance, reach · √(s² + se²))

b is the other arms' mean residual as it was known before the label, each arm counting once however much traffic it has
(a random-effects mean, DerSimonian and Laird 1986); s is how far those arms lie from each other, with a prior of a few
imagined arms; se is the error of b. It is tested by betting (`e_process`): among arms known from the start the
chance that any of them is ever flagged although H0 holds for all its labels is at most α, looked at continuously (an
arm that joins as the K-th adds α/K). An arm that is flagged stays so until `clear`, and counts in no b or s.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec
import numpy as np

from fitrouter.monitors.e_process import Moments, Wealth
from fitrouter.types import Floats, Projection

ARMS, ROLES, CLUSTERS = 512, 32, 64
"""How many are told apart, in order of appearance."""
MEMORY = 200
"""An arm's level is a mean over about this many of its last labels, as tastes that are being learnt move all levels."""
ENOUGH = 10
"""Labels of other arms before anything is staked."""
NOISE = 0.1
"""Prior variance of a residual."""


class RewardBiasParams(msgspec.Struct, frozen=True, kw_only=True):
    """What is ordinary. Chosen so that models whose c_k has an sd of .1 raise no alarm: docs/results/watch.md."""

    alpha: float = 0.01
    tolerance: float = 0.03
    """An excess up to this is never an alarm."""
    reach: float = 2.25
    """Standard deviations of the other arms that are ordinary."""
    ordinary: float = 0.07
    ordinary_arms: float = 4.0
    """Prior of s, and the number of arms that it stands for."""
    reported_alpha: float = 0.05
    """Intervals that are reported cover with 1 − this, at all times."""


class BiasFinding(NamedTuple):
    """By how much the score flatters, with half the width of an anytime-valid (asymptotic) interval."""

    bias: float
    half_width: float
    labels: int


class _Baseline(NamedTuple):
    """What the other arms are like."""

    mean: float
    error: float
    """Standard error of `mean`, as the mean of these arms."""
    ordinary: float
    """Standard deviation with which one more arm would lie around `mean`."""


class _Level(msgspec.Struct, array_like=True):
    """An arm's mean residual over its last labels."""

    n: int = 0
    mean: float = 0.0


class _Cell(msgspec.Struct, array_like=True):
    """Excess over the baseline of one arm, or of one arm for one role or in one cluster."""

    arm: str
    kind: str
    name: str
    excess: Moments


class _Stored(msgspec.Struct, array_like=True):
    arms: list[tuple[str, _Level, bytes]]
    cells: list[_Cell]
    noise: tuple[float, float]
    roles: list[str]
    clusters: list[str]
    raised: list[str]


class RewardBiasMonitor(Projection):
    """The fold; see the module. Rows are labels of the dimension `overall`, in sequence order."""

    stored_type = _Stored

    def __init__(self, params: RewardBiasParams | None = None) -> None:
        self.params = params or RewardBiasParams()
        self._levels: dict[str, _Level] = {}
        self._wealth: dict[str, Wealth] = {}
        self._cells: dict[tuple[str, str, str], _Cell] = {}
        self._noise = (0.0, 0.0)
        """Squared residuals around their arm's level, and their number."""
        self._roles: dict[str, None] = {}
        self._clusters: dict[str, None] = {}
        self._raised: dict[str, None] = {}

    # --- the fold ---

    def observe(self, arm: str, role: str | None, cluster: str | None, residual: float) -> bool:
        """Fold one label's residual hᵀw − y, cut to [−1, 1]; True where it raises the alarm on its arm.

        Args:
            arm: whose answer was judged.
            role: of the person, None for none.
            cluster: or task of the prompt.
            residual: with w as it was before the label; NaN is skipped.
        """
        if not math.isfinite(residual) or (arm not in self._levels and len(self._levels) >= ARMS):
            return False
        r = min(max(residual, -1.0), 1.0)
        if arm not in self._levels:
            self._levels[arm], self._wealth[arm] = _Level(), Wealth()
        level, wealth = self._levels[arm], self._wealth[arm]
        baseline = self._baseline(arm)
        if baseline is not None:
            bound = baseline.mean + max(self.params.tolerance, self.params.reach * baseline.ordinary)
            wealth.bet(r - bound, -1.0 - bound)
            for kind, name in (("", ""), ("role", role), ("cluster", cluster)):
                if name is not None and self._known(kind, name):
                    key = arm, kind, name
                    if key not in self._cells:
                        self._cells[key] = _Cell(arm, kind, name, Moments())
                    self._cells[key].excess.see(r - baseline.mean)
        if level.n:
            self._noise = self._noise[0] + (r - level.mean) ** 2, self._noise[1] + 1.0
        level.n += 1
        level.mean += (r - level.mean) / min(level.n, MEMORY)
        if arm not in self._raised and wealth.value >= len(self._levels) / self.params.alpha:
            self._raised[arm] = None
            return True
        return False

    def clear(self, arm: str) -> None:
        """Forget the alarm on an arm, and what led to it: somebody has looked into it."""
        self._raised.pop(arm, None)
        if arm in self._wealth:
            self._wealth[arm] = Wealth()
        for key in [key for key in self._cells if key[0] == arm]:
            del self._cells[key]

    def _known(self, kind: str, name: str) -> bool:
        """Whether there is room for this role or cluster."""
        if not kind:
            return True
        seen, room = (self._roles, ROLES) if kind == "role" else (self._clusters, CLUSTERS)
        if name not in seen and len(seen) < room:
            seen[name] = None
        return name in seen

    def _baseline(self, arm: str) -> _Baseline | None:
        """What the arms beside this one are like; None where too little is known of them."""
        others = [level for name, level in self._levels.items() if name != arm and name not in self._raised and level.n]
        n = np.array([level.n for level in others], dtype=np.float64)
        if n.sum() < ENOUGH:
            return None
        noise = (5.0 * NOISE + self._noise[0]) / (5.0 + self._noise[1])
        mean = np.array([level.mean for level in others])
        error = noise / np.minimum(n, MEMORY)
        prior = self.params.ordinary**2
        centre, _ = _pool(mean, prior + error)
        # One arm far out tells little of the spread of ordinary ones: what it adds is cut.
        apart = np.minimum(np.maximum((mean - centre) ** 2 - error, 0.0), 9.0 * prior)
        seen = self.params.ordinary_arms + float(len(others) - 1)
        spread = (self.params.ordinary_arms * prior + float(apart.sum())) / seen
        centre, precision = _pool(mean, spread + error)
        weights = 1.0 / (spread + error)
        own = math.sqrt(float((weights * weights * error).sum())) / precision
        return _Baseline(centre, own, math.sqrt(spread + 1.0 / precision))

    # --- reading ---

    def excess(self, arm: str, *, role: str | None = None, cluster: str | None = None) -> BiasFinding | None:
        """By how much the arm's answers are flattered more than the others' (negative: less); None without labels.

        Give `role` or `cluster` for that cell alone.
        """
        kind, name = ("role", role) if role is not None else ("cluster", cluster) if cluster is not None else ("", "")
        cell = self._cells.get((arm, kind, name or ""))
        baseline = self._baseline(arm)
        if cell is None or baseline is None:
            return None
        own = cell.excess.half_width(self.params.reported_alpha, prior=(2.0, NOISE))
        return BiasFinding(cell.excess.mean, math.hypot(own, 2.0 * baseline.error), cell.excess.n)

    def cells(self, arm: str) -> list[tuple[str, str, BiasFinding]]:
        """("role" or "cluster", its name, excess) of an arm, the largest excess first."""
        found = []
        for _, kind, name in (key for key in self._cells if key[0] == arm and key[1]):
            excess = self.excess(arm, role=name) if kind == "role" else self.excess(arm, cluster=name)
            if excess is not None:
                found.append((kind, name, excess))
        return sorted(found, key=lambda cell: (-cell[2].bias, cell[0], cell[1]))

    def evidence(self, arm: str) -> float:
        """The e-value against "this arm is ordinary"."""
        return self._wealth[arm].value if arm in self._wealth else 1.0

    def flagged(self) -> dict[str, BiasFinding]:
        """The arms whose scores are not to be counted, with what is known of them now."""
        found = {arm: self.excess(arm) for arm in self._raised}
        return {arm: excess or BiasFinding(math.nan, math.inf, 0) for arm, excess in found.items()}

    def describe(self, arm: str) -> str:
        """One sentence on an arm."""
        found = self.excess(arm)
        if found is None or not math.isfinite(found.half_width):
            return f"too few labels to say whether the score flatters model {arm}"
        by = f"{abs(found.bias):.2f} ± {found.half_width:.2f}"
        if arm in self._raised:
            return f"the score flatters model {arm} by {by}"
        if found.bias - found.half_width > 0.0:
            return f"the score favours model {arm} by {by}, which may still be ordinary"
        if found.bias + found.half_width < 0.0:
            return f"the score underrates model {arm} by {by}"
        return f"the score judges model {arm} like the others (± {found.half_width:.2f})"

    # --- state ---

    def _store(self) -> _Stored:
        arms = [(arm, level, self._wealth[arm].dump()) for arm, level in self._levels.items()]
        cells, names = list(self._cells.values()), (self._roles, self._clusters, self._raised)
        return _Stored(arms, cells, self._noise, *(list(each) for each in names))

    def _restore(self, stored: _Stored) -> bool:
        wealth = {arm: Wealth() for arm, _, _ in stored.arms}
        sound = all(wealth[arm].load(state) for arm, _, state in stored.arms) and len(wealth) == len(stored.arms)
        sound = sound and all(level.n >= 1 and abs(level.mean) <= 1.0 for _, level, _ in stored.arms)
        sound = sound and all(cell.arm in wealth and cell.excess.sound for cell in stored.cells)
        sound = sound and all(math.isfinite(part) and part >= 0.0 for part in stored.noise)
        if not sound or not set(stored.raised) <= set(wealth):
            return False
        self._levels, self._wealth = {arm: level for arm, level, _ in stored.arms}, wealth
        self._cells = {(cell.arm, cell.kind, cell.name): cell for cell in stored.cells}
        self._noise = stored.noise
        self._roles, self._clusters = dict.fromkeys(stored.roles), dict.fromkeys(stored.clusters)
        self._raised = dict.fromkeys(stored.raised)
        return True


def _pool(mean: Floats, variance: Floats) -> tuple[float, float]:
    """Mean weighted by precision, and the total precision."""
    weights = 1.0 / variance
    precision = float(weights.sum())
    return float((mean * weights).sum()) / precision, precision
