"""Quality floor: excludes arms whose answers are too often wrong, unsafe or incomplete, whatever users prefer.

P(ok | arm, cluster) is a Beta posterior per arm and cluster of prompts. Its prior mean is the arm's rate, whose prior
mean is the overall rate; each prior counts as a few labels. Only labels of the dimension `base` are used. An arm is
eligible if P(ok) ≥ 1 − δ, or if it has few such labels. Counts decay, so that an excluded arm is tried again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from fitrouter.plain import Projection
from fitrouter.types import Floats

BASE = "base"
"""Dimension of its labels; y ≥ ½ is ok."""
ARMS, CLUSTERS = 512, 64
"""Arms and clusters with counts of their own, in order of appearance."""


class QualityFloorParams(msgspec.Struct, frozen=True, kw_only=True):
    """Prior and decay of the quality floor."""

    ok: float = 19.0
    bad: float = 1.0
    """Beta prior of the overall rate."""
    arm_labels: float = 10.0
    cluster_labels: float = 10.0
    """Labels that the overall rate counts for in an arm's prior, and the arm's rate in a cluster's."""
    judged: float = 3.0
    """Decayed number of labels before an arm can be excluded."""
    half_life_s: float = 30 * 86_400.0


class _Count(msgspec.Struct, array_like=True):
    """Decaying counts of ok and bad answers, and the time of their last change."""

    ok: float = 0.0
    bad: float = 0.0
    ts: float = 0.0


class _StoredRatings(msgspec.Struct, array_like=True):
    overall: _Count
    arms: list[tuple[str, _Count]]
    cells: list[tuple[str, str, _Count]]


class QualityFloor(Projection):
    """Quality floor by hierarchical Beta posteriors of P(ok), the probability that an answer is acceptable."""

    stored_type = _StoredRatings

    def __init__(self, params: QualityFloorParams | None = None) -> None:
        self.params = params or QualityFloorParams()
        self._overall = _Count()
        self._arms: dict[str, _Count] = {}
        self._cells: dict[tuple[str, str], _Count] = {}
        self._clusters: set[str] = set()

    def observe(self, arm: str, cluster: str, y: float, ts: float = 0.0) -> None:
        """Add one label of the dimension `base`.

        Args:
            arm: whose answer was labelled.
            cluster: or task of the prompt.
            y: in [0, 1]; ok from ½ on.
            ts: seconds since the epoch; a time before the last label's causes no decay.
        """
        if not (math.isfinite(y) and math.isfinite(ts)) or (arm not in self._arms and len(self._arms) >= ARMS):
            return
        counts = [self._overall, self._arms.setdefault(arm, _Count())]
        if cluster in self._clusters or len(self._clusters) < CLUSTERS:
            self._clusters.add(cluster)
            counts.append(self._cells.setdefault((arm, cluster), _Count()))
        for count in counts:
            left = self._remaining(count, ts)
            count.ok, count.bad = count.ok * left + (y >= 0.5), count.bad * left + (y < 0.5)
            count.ts = max(count.ts, ts)

    def _remaining(self, count: _Count, now: float) -> float:
        """Share of the counts that remains after decay."""
        return math.exp2(-max(now - count.ts, 0.0) / self.params.half_life_s)

    def _read(self, count: _Count | None, now: float) -> tuple[float, float]:
        """Return the decayed counts of ok answers, and of all."""
        if count is None:
            return 0.0, 0.0
        left = self._remaining(count, now)
        return count.ok * left, (count.ok + count.bad) * left

    def ok(self, arms: Sequence[str], cluster: str, now: float = 0.0) -> Floats:
        """Return P(ok) of each arm's next answer in a cluster, float64[K]."""
        p = self.params
        ok, n = self._read(self._overall, now)
        overall = (p.ok + ok) / (p.ok + p.bad + n)
        found = []
        for arm in arms:
            ok, n = self._read(self._arms.get(arm), now)
            level = (p.arm_labels * overall + ok) / (p.arm_labels + n)
            ok, n = self._read(self._cells.get((arm, cluster)), now)
            found.append((p.cluster_labels * level + ok) / (p.cluster_labels + n))
        return np.array(found)

    def excluded(self, arms: Sequence[str], cluster: str, delta: float, now: float = 0.0) -> list[tuple[str, str]]:
        """Return (arm, reason) for the arms whose P(ok) is below 1 − δ, except the best one if all are.

        Args:
            arms: otherwise eligible arms.
            cluster: or task of the prompt.
            delta: tolerated share of answers that are not ok; 1 or more excludes no arm.
            now: seconds since the epoch.
        """
        known = [arm for arm in arms if arm in self._arms]
        judged = [arm for arm in known if self._read(self._arms[arm], now)[1] >= self.params.judged]
        chances = dict(zip(judged, self.ok(judged, cluster, now).tolist(), strict=True))
        below = [arm for arm in judged if chances[arm] < 1.0 - delta]
        stays = ""
        if below and len(below) == len(arms):
            best = max(below, key=lambda arm: (chances[arm], arm))
            below.remove(best)
            stays = f"; {best} stays, the best with {chances[best]:.3f}"
        limit = f"below {1.0 - delta:.3f} in {cluster}"
        return [(arm, f"quality floor: P(ok) {chances[arm]:.3f} is {limit}{stays}") for arm in below]

    def _store(self) -> _StoredRatings:
        cells = [(arm, cluster, count) for (arm, cluster), count in self._cells.items()]
        return _StoredRatings(self._overall, list(self._arms.items()), cells)

    def _restore(self, stored: _StoredRatings) -> bool:
        arms = dict(stored.arms)
        cells = {(arm, cluster): count for arm, cluster, count in stored.cells}
        counts = [stored.overall, *arms.values(), *cells.values()]
        valid = all(math.isfinite(c.ok + c.bad + c.ts) and min(c.ok, c.bad) >= 0.0 for c in counts)
        unique = len(arms) == len(stored.arms) and len(cells) == len(stored.cells)
        if not valid or not unique or not all(arm in arms for arm, _ in cells):
            return False
        self._overall, self._arms, self._cells = stored.overall, arms, cells
        self._clusters = {cluster for _, cluster in cells}
        return True
