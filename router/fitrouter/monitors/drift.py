"""Drift detection: a CUSUM test for changes of a model behind an unchanged name.

Each arm has a two-sided cumulative sum of the standardised residuals z = (y − ŷ) / sd of its labels (Page 1954,
"Continuous inspection schemes"): up ← max(0, up + z − slack), down ← max(0, down − z − slack). If one of them exceeds
the threshold, the alarm is raised and both restart at 0; `posterior.model` then inflates the arm's variances. Scores
of a reward model are never used as outcomes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from fitrouter.plain import Projection


class DriftParams(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of the CUSUM test, in standard deviations of one label.

    A model that gets worse by .2 (labels in [0, 1], sd about .46) shifts z by .44. A slack of half the shift has the
    shortest detection delay (Lorden 1971). We take a little more, because a router chooses arms that it overestimates,
    which biases the residuals of chosen arms downwards without any drift. The threshold follows from the rate of false
    alarms: one in about 18,000 labels of an unchanged arm, one in 2,000 with residuals biased by .11. The median delay
    is about 75 labels for a shift of .2 and 25 for one of .4 (docs/results/labs.md).
    """

    threshold: float = 14.0
    slack: float = 0.3
    clip: float = 3.0
    """Bound of |z|, so that no single label can raise the alarm."""
    warmup: int = 30
    """Labels that are not summed at first and after an alarm: residuals are large while an arm is being learnt."""


class CusumStatistics(NamedTuple):
    """The two cumulative sums (CUSUM) of one arm, and the labels they cover."""

    labels: int = 0
    """Labels since the start or the last alarm."""
    up: float = 0.0
    down: float = 0.0
    """Cumulative sums of labels above and below their predictions, beyond the slack; in [0, threshold]."""


class _StoredDrift(msgspec.Struct, array_like=True):
    arms: list[tuple[str, int, float, float]]


class Drift(Projection):
    """Two-sided CUSUM tests, one for each arm.

    >>> drift = Drift(DriftParams(threshold=3.0, warmup=0))
    >>> [drift.observe("a", -1.0) for _ in range(5)]
    [False, False, False, False, True]
    >>> drift.statistics("a")
    CusumStatistics(labels=0, up=0.0, down=0.0)
    """

    stored_type = _StoredDrift

    def __init__(self, params: DriftParams | None = None) -> None:
        self.params = params or DriftParams()
        self._sums: dict[str, CusumStatistics] = {}
        self._raised: set[str] = set()
        """Arms of which this process has seen an alarm; for `ratio` only, not part of the state."""

    def observe(self, arm: str, z: float) -> bool:
        """Add the standardised residual of one pooled label. Returns whether the alarm is raised.

        Args:
            arm: whose answer was labelled.
            z: residual of the prediction made before the label was learnt; NaN is skipped.
        """
        if math.isnan(z):
            return False
        params, before = self.params, self.statistics(arm)
        labels = before.labels + 1
        if labels <= params.warmup:
            self._sums[arm] = CusumStatistics(labels)
            return False
        z = min(max(z, -params.clip), params.clip)
        up = max(0.0, before.up + z - params.slack)
        down = max(0.0, before.down - z - params.slack)
        if max(up, down) > params.threshold:
            self._sums[arm] = CusumStatistics()
            self._raised.add(arm)
            return True
        self._sums[arm] = CusumStatistics(labels, up, down)
        return False

    def statistics(self, arm: str) -> CusumStatistics:
        """The statistics of an arm; zeros before its first label."""
        return self._sums.get(arm, CusumStatistics())

    def ratio(self, arm: str) -> float:
        """Return an arm's larger sum as a share of the threshold; 1 in the warm-up after an alarm, to show it."""
        sums = self.statistics(arm)
        if arm in self._raised and sums.labels < self.params.warmup:
            return 1.0
        return max(sums.up, sums.down) / self.params.threshold

    # --- state ---

    def _store(self) -> _StoredDrift:
        # Sorted by name, so that the same state has the same bytes whatever the order in which arms appeared.
        return _StoredDrift([(arm, sums.labels, sums.up, sums.down) for arm, sums in sorted(self._sums.items())])

    def _restore(self, stored: _StoredDrift) -> bool:
        sums = {arm: CusumStatistics(labels, up, down) for arm, labels, up, down in stored.arms}
        limit = self.params.threshold
        if len(sums) != len(stored.arms) or not all(
            s.labels >= 0 and 0.0 <= s.up <= limit and 0.0 <= s.down <= limit for s in sums.values()
        ):
            return False
        self._sums = sums
        return True
