"""What is believed of people: a taste over text, and an offset per model.

The same state serves a user and a role: both are deviations that start at zero and are shrunk towards it.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np

from fitrouter.taste import Gaussian
from fitrouter.types import Floats

__all__ = ["Person", "canonical_role"]

_TEMPLATE = re.compile(r"\{\{.*?\}\}|\{.*?\}|<[^<>]*>")
_SPACE = re.compile(r"[\s_\-]+")


def canonical_role(role: str | None) -> str | None:
    """The id of a role: template fields stripped, casefolded, one space between words; None where nothing is left.

    >>> canonical_role("  Senior_Tax-Analyst {company}")
    'senior tax analyst'
    """
    if role is None:
        return None
    return _SPACE.sub(" ", _TEMPLATE.sub(" ", role)).strip().casefold()[:200] or None


class _Stored(msgspec.Struct, array_like=True):
    mean: bytes
    cov: bytes
    offsets: list[tuple[str, float, float]]
    day: int
    votes: list[tuple[str, int]]
    pooled: list[str]


class Person:
    """A taste δ (Gaussian over float64[D]) and offsets d_k (Gaussian scalars), with today's counted votes."""

    def __init__(self, taste: Gaussian, offset_variance: float) -> None:
        self.taste = taste
        self.offset_variance = offset_variance
        self.offsets: dict[str, tuple[float, float]] = {}
        """arm → (mean, variance)."""
        self.day = 0
        self.votes: dict[str, int] = {}
        """arm → votes that counted for others on `day`."""
        self.pooled: set[str] = set()
        """Votes of `day` that counted for others, as 'decision kind dimension'."""

    def offset(self, arm: str) -> tuple[float, float]:
        """Mean and variance of d_k."""
        return self.offsets.get(arm, (0.0, self.offset_variance))

    def counts(self, arm: str, day: int, cap: int, vote: str) -> bool:
        """Whether a new vote counts for others: the first `cap` on an arm and day do. Remembers those that do."""
        if day != self.day:
            self.day, self.votes, self.pooled = day, {}, set()
        if self.votes.get(arm, 0) >= cap:
            return False
        self.votes[arm] = self.votes.get(arm, 0) + 1
        self.pooled.add(vote)
        return True

    def dump(self) -> bytes:
        """The state, exactly."""
        return msgspec.msgpack.encode(
            _Stored(
                self.taste.mean.tobytes(),
                self.taste.cov.tobytes(),
                [(arm, m, v) for arm, (m, v) in sorted(self.offsets.items())],
                self.day,
                sorted(self.votes.items()),
                sorted(self.pooled),
            )
        )

    def load(self, payload: bytes) -> bool:
        """Restore the state; False, and unchanged, where the bytes cannot be what `dump` made."""
        try:
            stored = msgspec.msgpack.decode(payload, type=_Stored)
            D = len(self.taste.mean)
            taste = Gaussian(_floats(stored.mean, D), _floats(stored.cov, D, D))
        except (msgspec.DecodeError, ValueError):
            return False
        if not taste.valid() or not all(np.isfinite([m, v]).all() and v > 0 for _, m, v in stored.offsets):
            return False
        self.taste = taste
        self.offsets = {arm: (m, v) for arm, m, v in stored.offsets}
        self.day, self.votes, self.pooled = stored.day, dict(stored.votes), set(stored.pooled)
        return True


def _floats(payload: bytes, *shape: Any) -> Floats:
    return np.frombuffer(payload, dtype=np.float64).reshape(shape).copy()
