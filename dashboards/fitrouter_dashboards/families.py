"""Metric families with a bounded number of series."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Generic, Literal, TypeAlias, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary

M = TypeVar("M", Counter, Gauge, Histogram, Summary)
Merge: TypeAlias = Literal["livemax", "livemin", "livesum"]

OTHER = "other"
CHILDREN = 64
"""Combinations of labels that a family keeps apart."""
HISTOGRAMS = 12
"""The same for histograms, each of which has a series for every bucket."""
FREE = frozenset({"model", "role", "dimension", "name", "tenant"})
"""Labels whose values come from configurations or callers."""


class Family(Generic[M]):
    """A metric with at most `most` separate combinations of labels.

    Later ones are added up under `other`: first for their role, then for all that configurations or callers name.
    """

    def __init__(self, metric: M, names: Sequence[str], most: int) -> None:
        self.metric: M = metric
        self._names, self._most = tuple(names), most
        self._known: set[tuple[str, ...]] = set()
        self._mutex = threading.Lock()

    def labels(self, *values: str) -> M:
        """Return the child with these labels, or one that collects the labels that are not kept apart."""
        if values in self._known:
            found: M = self.metric.labels(*values)
            return found
        folded = tuple(OTHER if name == "role" else value for name, value in zip(self._names, values, strict=True))
        with self._mutex:
            for candidate in (values, folded):
                if candidate in self._known or len(self._known) < self._most:
                    self._known.add(candidate)
                    return self._child(candidate)
        return self._child(
            tuple(OTHER if name in FREE else value for name, value in zip(self._names, values, strict=True))
        )

    def _child(self, values: tuple[str, ...]) -> M:
        found: M = self.metric.labels(*values)
        return found


class Families:
    """Makes the families `fitrouter_*` of a registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry

    def counter(self, name: str, text: str, *labels: str) -> Family[Counter]:
        """Create a counter."""
        return Family(Counter(f"fitrouter_{name}", text, labels, registry=self.registry), labels, CHILDREN)

    def summary(self, name: str, text: str, *labels: str) -> Family[Summary]:
        """Create a summary: a sum and a count, without quantiles."""
        return Family(Summary(f"fitrouter_{name}", text, labels, registry=self.registry), labels, CHILDREN)

    def histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Family[Histogram]:
        """Create a histogram."""
        made = Histogram(f"fitrouter_{name}", text, labels, registry=self.registry, buckets=buckets)
        return Family(made, labels, HISTOGRAMS)

    def gauge(self, name: str, text: str, merge: Merge, *labels: str) -> Family[Gauge]:
        """Create a gauge; `merge` is how the values of several processes are combined."""
        made = Gauge(f"fitrouter_{name}", text, labels, registry=self.registry, multiprocess_mode=merge)
        return Family(made, labels, CHILDREN)
