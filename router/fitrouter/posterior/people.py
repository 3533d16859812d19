"""Posteriors of a person: a taste over text features, an offset per model, and a rating scale.

The same state serves a user and a role: both are deviations that start at their base, zero or what was declared, and
are shrunk towards it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import numpy as np

from fitrouter.posterior.arms import base_arm
from fitrouter.posterior.gaussian import Gaussian
from fitrouter.posterior.rating_scale import RatingScale
from fitrouter.types import Floats, Projection

DAY_S = 86_400.0
"""Seconds of a day."""


class _Stored(msgspec.Struct, array_like=True):
    mean: bytes
    cov: bytes
    base_mean: bytes
    base_variance: bytes
    others: list[tuple[str, bytes, bytes]]
    offsets: list[tuple[str, bytes]]
    scale: tuple[bytes, bytes]
    day: int
    votes: list[tuple[str, int]]
    pooled: list[str]


class Sums(NamedTuple):
    """Sufficient statistics of the offsets of K arms (`fitrouter.posterior.offsets`)."""

    arms: tuple[str, ...]
    b: Floats
    """float64[K, d]"""
    s: Floats
    n: Floats
    v: Floats
    """float64[K]; v is the variance of d_k given c."""


class Person(Projection):
    """A taste δ (Gaussian over float64[D]), offsets d_k (Gaussian scalars) and a rating scale, with today's votes.

    Args:
        variance: float64[D], prior variances of the taste's coordinates.
        offset_variance: prior variance of each d_k.
    """

    stored_type = _Stored

    def __init__(self, variance: Floats, offset_variance: float) -> None:
        self.base_mean = np.zeros(len(variance))
        self.base_variance = variance.copy()
        """The taste before any label: independent coordinates, moved by what was declared (`declare`)."""
        self.taste = Gaussian.prior(self.base_mean, variance)
        self.others: dict[str, Gaussian] = {}
        """Dimension → the taste in it; `taste` is that of the dimension overall."""
        self.offset_variance = offset_variance
        self.offsets: dict[str, Floats] = {}
        """Model → float64[d + 2]: b, s and n of `offsets`, the sum of what labels say of d; see `record`."""
        self._read: Sums | None = None
        self.scale = RatingScale()
        self.day = 0
        self.votes: dict[str, int] = {}
        """arm → votes that counted for others on `day`."""
        self.pooled: set[str] = set()
        """Votes of `day` that counted for others, by their names."""

    def record(self, model: str, d: int) -> Floats:
        """The sufficient statistics of d_k, for writing."""
        self._read = None
        found = self.offsets.get(model)
        if found is None:
            found = self.offsets[model] = np.zeros(d + 2)
        return found

    def sums(self, arms: tuple[str, ...], d: int) -> Sums:
        """Sufficient statistics of several arms, cached until the next label."""
        if self._read is None or self._read.arms != arms:
            rows = np.zeros((len(arms), d + 2))
            for k, arm in enumerate(arms):
                found = self.offsets.get(base_arm(arm))
                if found is not None:
                    rows[k] = found
            tau = self.offset_variance
            n = rows[:, -1].copy()
            self._read = Sums(arms, rows[:, :d].copy(), rows[:, -2].copy(), n, tau / (1.0 + n * tau))
        return self._read

    def forget(self, model: str, share: float) -> None:
        """Scale the evidence on d_k by `share`."""
        if model in self.offsets:
            self.record(model, 0)[:] *= share

    def learnt(self) -> Floats:
        """Posterior mean of the taste minus its prior mean: float64[D]."""
        return self.taste.mean - self.base_mean

    def counts(self, arm: str, day: int, cap: int, vote: str) -> bool:
        """Whether a new vote updates shared terms: the first `cap` on an arm and day do. Records those that do."""
        if day != self.day:
            self.day, self.votes, self.pooled = day, {}, set()
        if self.votes.get(arm, 0) >= cap:
            return False
        self.votes[arm] = self.votes.get(arm, 0) + 1
        self.pooled.add(vote)
        return True

    # --- declared values ---

    def declare(self, mean: Floats, variance: Floats) -> None:
        """Replace the prior by N(mean, diag(variance)), exactly, also after labels.

        Each changed coordinate is a rank-1 change of the precision (Sherman and Morrison 1950).
        """
        changed = np.flatnonzero((mean != self.base_mean) | (variance != self.base_variance))
        block = self.taste
        for j in changed:
            more = 1.0 / variance[j] - 1.0 / self.base_variance[j]
            pull = mean[j] / variance[j] - self.base_mean[j] / self.base_variance[j]
            column = block.cov[:, j]
            cov = block.cov - np.multiply.outer(column, column) * (more / (1.0 + more * column[j]))
            block.mean = block.mean + cov[:, j] * (pull - more * block.mean[j])
            block.cov = cov
        self.base_mean, self.base_variance = mean.copy(), variance.copy()

    # --- state ---

    def _store(self) -> _Stored:
        return _Stored(
            *self.taste.dump(),
            self.base_mean.tobytes(),
            self.base_variance.tobytes(),
            [(name, *block.dump()) for name, block in sorted(self.others.items())],
            [(model, record.tobytes()) for model, record in sorted(self.offsets.items())],
            self.scale.state.dump(),
            self.day,
            sorted(self.votes.items()),
            sorted(self.pooled),
        )

    def _restore(self, stored: _Stored) -> bool:
        D = len(self.taste.mean)
        taste, scale = Gaussian.load(stored.mean, stored.cov, D), Gaussian.load(*stored.scale, 2)
        others = {name: Gaussian.load(mean, cov, D) for name, mean, cov in stored.others}
        base_mean, base_variance = _floats(stored.base_mean, D), _floats(stored.base_variance, D)
        offsets = {model: _floats(record, -1) for model, record in stored.offsets}
        valid = bool(np.isfinite(base_mean).all() and (base_variance >= 0).all())
        valid = valid and len({len(record) for record in offsets.values()}) <= 1
        valid = valid and all(len(record) > 2 and record[-1] >= 0 for record in offsets.values())
        if not valid or not all(np.isfinite(record).all() for record in offsets.values()):
            return False
        self.taste, self.others, self.scale.state = taste, others, scale
        self.base_mean, self.base_variance = base_mean, base_variance
        self.offsets, self._read = offsets, None
        self.day, self.votes, self.pooled = stored.day, dict(stored.votes), set(stored.pooled)
        return True


def _floats(payload: bytes, *shape: Any) -> Floats:
    return np.frombuffer(payload, dtype=np.float64).reshape(shape).copy()
