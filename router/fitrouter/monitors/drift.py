"""Drift: a model that became another one in silence.

Each arm has a two-sided cumulative sum of its standardised residuals z = (y − ŷ) / sd (Page 1954, "Continuous
inspection schemes"): up ← max(0, up + z − slack), down ← max(0, down − z − slack). It fires where one of them passes
the threshold, and starts again; what was learnt of the arm is then to be held less firmly (`posterior.model`). It is a
fold like everything learnt, and it sees labels only: a score is never an outcome.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from fitrouter.types import Projection


class DriftParams(msgspec.Struct, frozen=True, kw_only=True):
    """When an arm counts as drifted, in standard deviations of one label.

    A model that gets worse by .2 (labels in [0, 1], sd about .46) shifts z by .44. Half of a shift is the slack with
    the shortest delay (Lorden 1971); a little more of it is taken, because a router chooses a model where it
    overestimates it, so that residuals of chosen arms lean down without any drift. The threshold is then set by false
    alarms: one in about 18,000 labels of an arm where nothing changes, one in 2,000 where residuals lean by .11; it
    fires about 75 labels after a shift of .2 and 25 after one of .4 (docs/results/labs.md).
    """

    threshold: float = 14.0
    slack: float = 0.3
    clip: float = 3.0
    """|z| counts up to this, so that no single label can be an alarm."""
    warmup: int = 30
    """Labels of an arm that are not summed, at first and after an alarm: residuals are large while it is learnt."""


class Sums(NamedTuple):
    """An arm's statistics."""

    labels: int = 0
    """Since the start, or the last alarm."""
    up: float = 0.0
    down: float = 0.0
    """How far its labels were above and below what was predicted, beyond the slack; in [0, threshold]."""


class _Stored(msgspec.Struct, array_like=True):
    arms: list[tuple[str, int, float, float]]


class Drift(Projection):
    """The sums of every arm.

    >>> drift = Drift(DriftParams(threshold=3.0, warmup=0))
    >>> [drift.observe("a", -1.0) for _ in range(5)]
    [False, False, False, False, True]
    >>> drift.statistics("a")
    Sums(labels=0, up=0.0, down=0.0)
    """

    stored_type = _Stored

    def __init__(self, params: DriftParams | None = None) -> None:
        self.params = params or DriftParams()
        self._sums: dict[str, Sums] = {}

    def observe(self, arm: str, z: float) -> bool:
        """Fold one pooled label's standardised residual, taken before the label was learnt. True where it fires.

        A z that is no number says nothing and leaves no trace.
        """
        if math.isnan(z):
            return False
        params, before = self.params, self.statistics(arm)
        labels = before.labels + 1
        if labels <= params.warmup:
            self._sums[arm] = Sums(labels)
            return False
        z = min(max(z, -params.clip), params.clip)
        up = max(0.0, before.up + z - params.slack)
        down = max(0.0, before.down - z - params.slack)
        if max(up, down) > params.threshold:
            self._sums[arm] = Sums()
            return True
        self._sums[arm] = Sums(labels, up, down)
        return False

    def statistics(self, arm: str) -> Sums:
        """The sums of an arm; zeros for one that has no label yet."""
        return self._sums.get(arm, Sums())

    def forget(self, arm: str) -> None:
        """Start an arm again, as one that has no label yet."""
        self._sums.pop(arm, None)

    # --- state ---

    def _store(self) -> _Stored:
        return _Stored([(arm, sums.labels, sums.up, sums.down) for arm, sums in sorted(self._sums.items())])

    def _restore(self, stored: _Stored) -> bool:
        sums = {arm: Sums(labels, up, down) for arm, labels, up, down in stored.arms}
        limit = self.params.threshold
        if len(sums) != len(stored.arms) or not all(
            s.labels >= 0 and 0.0 <= s.up <= limit and 0.0 <= s.down <= limit for s in sums.values()
        ):
            return False
        self._sums = sums
        return True
