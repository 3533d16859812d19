"""Number of scorers: Ray's autoscaler asks this policy, and applies bounds and delays itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

METRIC = "lag_s"
"""Custom metric of a scorer: age of the oldest answer without a score, in seconds."""
_STEP = 2.0
"""Largest factor of one decision."""


class Context(Protocol):
    """Fields that the policy reads from `ray.serve.config.AutoscalingContext`."""

    @property
    def aggregated_metrics(self) -> Mapping[str, Mapping[Any, float]] | None:
        """Metric → replica → the metric's mean over the look-back period."""
        ...

    @property
    def target_num_replicas(self) -> int:
        """Replicas that are running or starting."""
        ...


class ByLag:
    """Autoscaling policy: scale in proportion to the lag over its target, at most twofold at a time.

    All scorers report the same lag; the largest counts, so that a replica that has just started cannot hide it.

    >>> class Seen:
    ...     target_num_replicas = 2
    ...     aggregated_metrics = {"lag_s": {"a": 0.0, "b": 7.5}}
    >>> ByLag(target_s=5.0)(Seen())
    (3, {})

    Args:
        target_s: lag that is aimed at.
    """

    def __init__(self, target_s: float) -> None:
        self._target_s = target_s

    def __call__(self, context: Context) -> tuple[int, dict[str, Any]]:
        """The number of replicas, before bounds and delays, and no state. Without a report nothing changes."""
        lags = (context.aggregated_metrics or {}).get(METRIC, {}).values()
        known = [lag for lag in lags if math.isfinite(lag)]
        if not known:
            return context.target_num_replicas, {}
        ratio = min(max(max(known) / self._target_s, 1.0 / _STEP), _STEP)
        return max(1, math.ceil(context.target_num_replicas * ratio - 1e-9)), {}
