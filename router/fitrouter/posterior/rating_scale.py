"""A person's use of the rating scale: level and spread of their ratings, learnt with shrinkage.

    rating = level + c_u + s_u · (fit − level) + ε

(c_u, s_u) is one Gaussian a person around (0, 1), so that it is shrunk towards the scale of everybody as long as there
are few ratings: the posterior mean is the James–Stein estimate ω·own + (1 − ω)·everybody's with ω = τ² / (τ² + V_u).
Ratings of different people never meet on their raw scales.
"""

from __future__ import annotations

import numpy as np

from fitrouter.posterior.gaussian import Gaussian, gaussian_update

OFFSET_VARIANCE = 0.02
GAIN_VARIANCE = 0.05
"""Variances of c_u and s_u between people, in labels in [0, 1]."""
GAINS = (0.5, 2.0)
"""Allowed gains: a flat rater must not become a loud one."""


_PRIOR = Gaussian.prior(np.array([0.0, 1.0]), np.array([OFFSET_VARIANCE, GAIN_VARIANCE]))
"""Of all people without ratings."""


class RatingScale:
    """Posterior of one person's rating scale: offset c and gain s."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state = _PRIOR

    @property
    def offset(self) -> float:
        """Posterior mean of the person's offset c_u."""
        return float(self.state.mean[0])

    @property
    def gain(self) -> float:
        """Posterior mean of the person's gain s_u, clipped to `GAINS`."""
        return float(np.clip(self.state.mean[1], *GAINS))

    def common(self, rating: float, level: float) -> tuple[float, float]:
        """Convert a rating to everybody's scale; also return the factor of its noise there, 1 / s_u²."""
        return level + (rating - level - self.offset) / self.gain, 1.0 / self.gain**2

    def learn(self, rating: float, predicted: float, level: float, noise: float) -> None:
        """Learn from a rating, given the predicted rating of its answer and the variance of both as noise."""
        if self.state is _PRIOR:
            self.state = Gaussian(_PRIOR.mean, _PRIOR.cov)
        h = np.array([1.0, predicted - level])
        gain = self.state.gain(h)
        variance = float(np.einsum("i,i->", h, gain))
        expected = level + float(np.einsum("i,i->", h, self.state.mean))
        self.state.learn(gain, gaussian_update(expected, variance, rating, noise=noise))

    def dump(self) -> tuple[bytes, bytes] | None:
        """Mean and covariance as bytes; None before the first rating."""
        return None if self.state is _PRIOR else self.state.dump()

    def load(self, stored: tuple[bytes, bytes] | None) -> None:
        """Restore the output of `dump`; ValueError if it is damaged."""
        self.state = _PRIOR if stored is None else Gaussian.load(*stored, 2)
