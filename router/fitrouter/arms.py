"""What is believed of each model apart from people: how it writes, how right it is, how fast, whether it answers.

Four posteriors an arm, stacked over arms so that one decision is a few einsums:

* profile     ĥ_k(x) = E[h | x, k], multi-output ridge over every response, labelled or not; one covariance for all;
* correction  c_k(x), what human labels say beyond the reward model, learnt from labels only;
* operations  tokens and seconds of an answer, one covariance for both;
* availability P(answers), a Beta whose evidence fades, so that an outage is forgotten after it.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from fitrouter.types import Floats

__all__ = ["ArmParams", "Arms", "Rows"]

Rows: TypeAlias = NDArray[np.intp] | slice
"""Rows of arms, in the order of the arms they belong to."""


class ArmParams(msgspec.Struct, frozen=True, kw_only=True):
    """Prior scales. Variances are for labels in [0, 1] and ‖x‖ ≈ 1."""

    correction_intercept: float = 0.03
    correction_slope: float = 0.06
    profile_intercept: float = 0.5
    profile_slope: float = 0.05
    operations_precision: float = 0.1
    tokens: float = 400.0
    """Prior mean of an answer's tokens."""
    seconds: float = 2.0
    """Prior mean of an answer's latency."""
    answers: float = 4.75
    fails: float = 0.25
    """Beta prior of availability."""
    half_life_s: float = 600.0
    """Evidence on availability counts half after this time."""


class Arms:
    """Posteriors of K arms over contexts float64[d] and response features float64[D]."""

    def __init__(self, d: int, D: int, params: ArmParams) -> None:
        self.d, self.D, self.params = d, D, params
        self.names: dict[str, int] = {}
        """arm → row; row 0 is the prior, which stands for every unknown arm."""
        self.profile_cov = np.empty((0, d, d))
        self.profile = np.empty((0, d, D))
        self.correction_cov = np.empty((0, d, d))
        self.correction = np.empty((0, d))
        self.operations_cov = np.empty((0, d, d))
        self.operations = np.empty((0, d, 2))
        self.spread = np.empty((0, D))
        """Running mean square of the profile's residuals, for the variance of ĥ."""
        self.beta = np.empty((0, 3))
        """Fading counts of answers and failures, and the time of the last."""
        self.responses = np.empty(0)
        self._append()

    _ARRAYS = (
        "profile_cov",
        "profile",
        "correction_cov",
        "correction",
        "operations_cov",
        "operations",
        "spread",
        "beta",
        "responses",
    )

    def row(self, name: str) -> int:
        """The row of an arm to learn in; an unknown one starts at the prior."""
        if name not in self.names:
            self.names[name] = self._append()
        return self.names[name]

    def rows(self, names: tuple[str, ...]) -> Rows:
        """The rows of arms to read: a slice where they follow each other, which spares a copy of every array."""
        found = [self.names.get(name, 0) for name in names]
        if found == list(range(found[0], found[0] + len(found))):
            return slice(found[0], found[0] + len(found))
        return np.array(found, dtype=np.intp)

    def _append(self) -> int:
        for array, prior in self._prior().items():
            setattr(self, array, np.concatenate([getattr(self, array), prior[None]]))
        return len(self.responses) - 1

    def _prior(self) -> dict[str, Floats]:
        p = self.params
        slopes = np.full(self.d, p.correction_slope)
        slopes[0] = p.correction_intercept
        profile = np.full(self.d, p.profile_slope)
        profile[0] = p.profile_intercept
        mean = np.zeros((self.d, self.D))
        mean[0, 0] = 1.0  # h begins with 1 as x does: that much is known of an arm that was never asked
        operations = np.zeros((self.d, 2))
        operations[0] = p.tokens, p.seconds
        return {
            "profile_cov": np.diag(profile),
            "profile": mean,
            "correction_cov": np.diag(slopes),
            "correction": np.zeros(self.d),
            "operations_cov": np.eye(self.d) / p.operations_precision,
            "operations": operations,
            "spread": np.ones(self.D),
            "beta": np.zeros(3),
            "responses": np.zeros(()),
        }

    def observe_response(self, k: int, x: Floats, h: Floats) -> None:
        """Fold one answer's features into the profile. A missing feature (NaN) counts as predicted."""
        predicted = np.einsum("dh,d->h", self.profile[k], x)
        missing = np.isnan(h)
        if missing.any():
            h = np.where(missing, predicted, h)
        error = h - predicted
        gain = np.einsum("ij,j->i", self.profile_cov[k], x)
        total = 1.0 + np.einsum("i,i->", gain, x)
        self.profile[k] += np.multiply.outer(gain / total, error)
        self.profile_cov[k] -= np.multiply.outer(gain, gain / total)
        self.responses[k] += 1.0
        self.spread[k] += (error * error / total - self.spread[k]) / (self.responses[k] + 2.0)

    def observe_operations(self, k: int, x: Floats, tokens: float, seconds: float) -> None:
        """Fold the size and the latency of one answer."""
        gain = np.einsum("ij,j->i", self.operations_cov[k], x)
        total = 1.0 + np.einsum("i,i->", gain, x)
        error = np.array([tokens, seconds]) - np.einsum("do,d->o", self.operations[k], x)
        self.operations[k] += np.multiply.outer(gain / total, error)
        self.operations_cov[k] -= np.multiply.outer(gain, gain / total)

    def observe_answer(self, k: int, answered: bool, ts: float) -> None:
        """Fold whether a call was answered."""
        a, b, last = self.beta[k]
        fade = 0.5 ** (max(ts - last, 0.0) / self.params.half_life_s)
        self.beta[k] = a * fade + answered, b * fade + (not answered), max(ts, last)

    def availability(self, rows: Rows, now: float) -> Floats:
        """float64[K]: P(answers) at a time."""
        fade = 0.5 ** (np.maximum(now - self.beta[rows, 2], 0.0) / self.params.half_life_s)
        a = self.beta[rows, 0] * fade + self.params.answers
        b = self.beta[rows, 1] * fade + self.params.fails
        result: Floats = a / (a + b)
        return result

    def dump(self, name: str) -> bytes:
        """One arm's rows, exactly."""
        k = self.names[name]
        return b"".join(np.ascontiguousarray(getattr(self, array)[k]).tobytes() for array in self._ARRAYS)

    def load(self, name: str, payload: bytes) -> bool:
        """Restore one arm; False where the bytes cannot be what `dump` made."""
        if len(payload) != 8 * sum(prior.size for prior in self._prior().values()):
            return False
        values = np.frombuffer(payload, dtype=np.float64)
        if not np.isfinite(values).all():
            return False
        k = self.row(name)
        start = 0
        for array in self._ARRAYS:
            target = getattr(self, array)
            size = target[k].size
            target[k] = values[start : start + size].reshape(target[k].shape)
            start += size
        return True
