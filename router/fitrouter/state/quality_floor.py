"""The base layer: whether an answer is right, safe and complete enough for anybody, before taste has a say.

P(ok | arm, cluster) is a Beta per arm and task cluster, shrunk to the arm's own level, and that to everybody's: each
level stands for a few labels of the next. It is learnt from labels of the dimension `base` alone. An arm is eligible
where P(ok) ≥ 1 − δ; one that was hardly judged is, and evidence fades, so that an arm that was excluded is tried again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from fitrouter.types import Floats, Projection

BASE = "base"
"""Dimension of the labels that teach it: y ≥ ½ is ok."""
ARMS, CLUSTERS = 512, 64


class QualityFloorParams(msgspec.Struct, frozen=True, kw_only=True):
    """Prior and memory."""

    ok: float = 19.0
    bad: float = 1.0
    """Beta prior of everybody's level."""
    arm_labels: float = 10.0
    cluster_labels: float = 10.0
    """Labels that everybody's level stands for in an arm's, and the arm's in a cluster's."""
    judged: float = 3.0
    """Labels of its own, faded, before an arm can be excluded."""
    half_life_s: float = 30 * 86_400.0


class _Count(msgspec.Struct, array_like=True):
    """Fading counts, and the time that they are of."""

    ok: float = 0.0
    bad: float = 0.0
    ts: float = 0.0


class _Stored(msgspec.Struct, array_like=True):
    everybody: _Count
    arms: list[tuple[str, _Count]]
    cells: list[tuple[str, str, _Count]]


class QualityFloor(Projection):
    """The fold over base labels; see the module."""

    stored_type = _Stored

    def __init__(self, params: QualityFloorParams | None = None) -> None:
        self.params = params or QualityFloorParams()
        self._everybody = _Count()
        self._arms: dict[str, _Count] = {}
        self._cells: dict[tuple[str, str], _Count] = {}
        self._clusters: set[str] = set()

    def observe(self, arm: str, cluster: str, y: float, ts: float = 0.0) -> None:
        """Fold one label of the dimension `base`.

        Args:
            arm: whose answer it was.
            cluster: or task of the prompt.
            y: in [0, 1]; ok from ½ on.
            ts: seconds since the epoch; times that run backwards do not fade anything.
        """
        if not (math.isfinite(y) and math.isfinite(ts)) or (arm not in self._arms and len(self._arms) >= ARMS):
            return
        counts = [self._everybody, self._arms.setdefault(arm, _Count())]
        if cluster in self._clusters or len(self._clusters) < CLUSTERS:
            self._clusters.add(cluster)
            counts.append(self._cells.setdefault((arm, cluster), _Count()))
        for count in counts:
            left = self._left(count, ts)
            count.ok, count.bad = count.ok * left + (y >= 0.5), count.bad * left + (y < 0.5)
            count.ts = max(count.ts, ts)

    def _left(self, count: _Count, now: float) -> float:
        """Share of the evidence that is left."""
        return math.exp2(-max(now - count.ts, 0.0) / self.params.half_life_s)

    def _read(self, count: _Count | None, now: float) -> tuple[float, float]:
        """(ok, all) as far as they are left."""
        if count is None:
            return 0.0, 0.0
        left = self._left(count, now)
        return count.ok * left, (count.ok + count.bad) * left

    def ok(self, arms: Sequence[str], cluster: str, now: float = 0.0) -> Floats:
        """float64[K]: P(ok) of each arm's next answer in a cluster."""
        p = self.params
        ok, n = self._read(self._everybody, now)
        everybody = (p.ok + ok) / (p.ok + p.bad + n)
        found = []
        for arm in arms:
            ok, n = self._read(self._arms.get(arm), now)
            level = (p.arm_labels * everybody + ok) / (p.arm_labels + n)
            ok, n = self._read(self._cells.get((arm, cluster)), now)
            found.append((p.cluster_labels * level + ok) / (p.cluster_labels + n))
        return np.array(found)

    def excluded(self, arms: Sequence[str], cluster: str, delta: float, now: float = 0.0) -> list[tuple[str, str]]:
        """(arm, reason) of the arms whose P(ok) is below 1 − δ. Never all of them: the best one stays.

        Args:
            arms: that are eligible otherwise.
            cluster: or task of the prompt.
            delta: share of answers that need not be ok; 1 or more excludes nobody.
            now: seconds since the epoch.
        """
        known = [arm for arm in arms if arm in self._arms]
        judged = [arm for arm in known if self._read(self._arms[arm], now)[1] >= self.params.judged]
        if not judged:
            return []
        chances = dict(zip(judged, self.ok(judged, cluster, now).tolist(), strict=True))
        below = [arm for arm in judged if chances[arm] < 1.0 - delta]
        stays = ""
        if below and len(below) == len(arms):
            best = max(below, key=lambda arm: (chances[arm], arm))
            below.remove(best)
            stays = f"; {best} stays, the best with {chances[best]:.3f}"
        limit = f"below {1.0 - delta:.3f} in {cluster}"
        return [(arm, f"base layer: P(ok) {chances[arm]:.3f} is {limit}{stays}") for arm in below]

    def _store(self) -> _Stored:
        cells = [(arm, cluster, count) for (arm, cluster), count in self._cells.items()]
        return _Stored(self._everybody, list(self._arms.items()), cells)

    def _restore(self, stored: _Stored) -> bool:
        arms = dict(stored.arms)
        cells = {(arm, cluster): count for arm, cluster, count in stored.cells}
        counts = [stored.everybody, *arms.values(), *cells.values()]
        sound = all(math.isfinite(c.ok + c.bad + c.ts) and min(c.ok, c.bad) >= 0.0 for c in counts)
        whole = len(arms) == len(stored.arms) and len(cells) == len(stored.cells)
        if not sound or not whole or not all(arm in arms for arm, _ in cells):
            return False
        self._everybody, self._arms, self._cells = stored.everybody, arms, cells
        self._clusters = {cluster for _, cluster in cells}
        return True
