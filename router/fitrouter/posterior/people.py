"""What is believed of people: a taste over text, an offset per model, a way to use scales.

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
    tasks: list[tuple[str, bytes]]
    offsets: list[tuple[str, bytes]]
    scale: tuple[bytes, bytes]
    seen: float
    surprises: int
    day: int
    votes: list[tuple[str, int]]
    pooled: list[str]


class Sums(NamedTuple):
    """What labels say of the offsets of K arms; see `fitrouter.posterior.offsets`."""

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
        self.tasks: dict[str, Floats] = {}
        """Task → mean and variance, float64[2, D], of what the taste has of its own there."""
        self.offset_variance = offset_variance
        self.offsets: dict[str, Floats] = {}
        """Model → float64[d + 2]: b, s and n of `offsets`, the sum of what labels say of d; see `record`."""
        self._read: Sums | None = None
        self.scale = RatingScale()
        self.seen = 0.0
        """Time of the last label."""
        self.surprises = 0
        """Labels in a row that everybody's taste predicted much better."""
        self.day = 0
        self.votes: dict[str, int] = {}
        """arm → votes that counted for others on `day`."""
        self.pooled: set[str] = set()
        """Votes of `day` that counted for others, by their names."""

    def record(self, model: str, d: int) -> Floats:
        """What labels say of d_k, to be written to."""
        self._read = None
        found = self.offsets.get(model)
        if found is None:
            found = self.offsets[model] = np.zeros(d + 2)
        return found

    def sums(self, arms: tuple[str, ...], d: int) -> Sums:
        """The records of arms side by side, kept until the next label."""
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
        """Keep this share of what labels said of d_k."""
        if model in self.offsets:
            self.record(model, 0)[:] *= share

    def learnt(self) -> Floats:
        """float64[D]: how far labels have moved the taste from its base."""
        return self.taste.mean - self.base_mean

    def task(self, task: str, share: float) -> Floats:
        """float64[2, D]: mean and variance of δ_{u,task}, at first 0 and a share of the taste's own variance."""
        found = self.tasks.get(task)
        return np.stack([np.zeros_like(self.base_mean), share * self.base_variance]) if found is None else found

    def counts(self, arm: str, day: int, cap: int, vote: str) -> bool:
        """Whether a new vote counts for others: the first `cap` on an arm and day do. Remembers those that do."""
        if day != self.day:
            self.day, self.votes, self.pooled = day, {}, set()
        if self.votes.get(arm, 0) >= cap:
            return False
        self.votes[arm] = self.votes.get(arm, 0) + 1
        self.pooled.add(vote)
        return True

    # --- time ---

    def age(self, ts: float, memory: float) -> None:
        """Tastes drift: what is known fades towards the base, by the factor `memory` a day since the last label.

        S ← γS + (1 − γ)S_base, which adds the variance of an Ornstein–Uhlenbeck step and never exceeds the base; the
        mean stays. Times that run backwards change nothing.
        """
        if self.seen and ts > self.seen and memory < 1.0:
            self._loosen(1.0 - memory ** ((ts - self.seen) / DAY_S))
        self.seen = max(self.seen, ts)

    def surprise(self, excess: float, *, limit: float, row: int) -> bool:
        """Note by how many nats everybody's taste predicted a label better; `row` times running is a change of mind.

        True where it is one; half of the taste's covariance is forgotten then.
        """
        self.surprises = self.surprises + 1 if excess > limit else 0
        if self.surprises < row:
            return False
        self._loosen(0.5)
        self.surprises = 0
        return True

    def _loosen(self, share: float) -> None:
        """Move every covariance this share of the way to the base."""
        for block in (self.taste, *self.others.values()):
            state = block.state.copy()
            state[:-1] *= 1.0 - share
            state[:-1].reshape(-1)[:: len(self.base_variance) + 1] += self.base_variance * share
            block.state = state

    # --- what people say of themselves ---

    def declare(self, mean: Floats, variance: Floats) -> None:
        """Change the base to N(mean, diag(variance)) under labels that were learnt already, exactly.

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
            [(name, part.tobytes()) for name, part in sorted(self.tasks.items())],
            [(model, record.tobytes()) for model, record in sorted(self.offsets.items())],
            self.scale.state.dump(),
            self.seen,
            self.surprises,
            self.day,
            sorted(self.votes.items()),
            sorted(self.pooled),
        )

    def _restore(self, stored: _Stored) -> bool:
        D = len(self.taste.mean)
        taste, scale = Gaussian.load(stored.mean, stored.cov, D), Gaussian.load(*stored.scale, 2)
        others = {name: Gaussian.load(mean, cov, D) for name, mean, cov in stored.others}
        base_mean, base_variance = _floats(stored.base_mean, D), _floats(stored.base_variance, D)
        tasks = {name: _floats(part, 2, D) for name, part in stored.tasks}
        offsets = {model: _floats(record, -1) for model, record in stored.offsets}
        valid = all(bool(np.isfinite(part).all() and (part[1] >= 0).all()) for part in tasks.values())
        valid = valid and bool(np.isfinite(base_mean).all() and np.isfinite(stored.seen) and (base_variance >= 0).all())
        valid = valid and len({len(record) for record in offsets.values()}) <= 1
        valid = valid and all(len(record) > 2 and record[-1] >= 0 for record in offsets.values())
        if not valid or not all(np.isfinite(record).all() for record in offsets.values()):
            return False
        self.taste, self.others, self.tasks, self.scale.state = taste, others, tasks, scale
        self.base_mean, self.base_variance = base_mean, base_variance
        self.offsets, self._read = offsets, None
        self.seen, self.surprises = stored.seen, stored.surprises
        self.day, self.votes, self.pooled = stored.day, dict(stored.votes), set(stored.pooled)
        return True


def _floats(payload: bytes, *shape: Any) -> Floats:
    return np.frombuffer(payload, dtype=np.float64).reshape(shape).copy()
