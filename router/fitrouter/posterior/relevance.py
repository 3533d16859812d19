"""Relevance of user tastes: how much each text feature of a taste counts, learnt from everybody's labels.

    a_d = clip(b + e_d, 0, 1)        score = hᵀ(w_0 + w_role) + hᵀ(a ⊙ δ_u)

b is a common level and e_d the deviation of feature d; both are Gaussian around a taste that counts in full (around 0
for roles marked sensitive), and each label updates them with the kernel of `posterior.gaussian`, ignoring correlations
between them. The regressor of a_d is h_d m_ud, with the user's taste m as it was before the label. Since m is a
posterior mean, the coefficient is 1 where the taste is relevant (Berkson errors: no attenuation).
"""

from __future__ import annotations

import msgspec
import numpy as np

from fitrouter.posterior.gaussian import gaussian_update
from fitrouter.types import Floats, Projection

LEVEL, FEATURE = 0.1, 0.6
"""Prior variances of b and e_d, chosen on seeds that no results page uses."""


class _Stored(msgspec.Struct, array_like=True):
    levels: list[tuple[float, bytes]]


class Relevance(Projection):
    """Posterior of b and e, one for each prior level: 1, and 0 for sensitive roles."""

    stored_type = _Stored

    def __init__(self, D: int) -> None:
        self.D = D
        self.levels: dict[float, Floats] = {}
        """Prior level → float64[2, 1 + D], means and variances of (b, e)."""

    def _of(self, level: float) -> Floats:
        found = self.levels.get(level)
        if found is None:
            found = np.zeros((2, 1 + self.D))
            found[0, 0] = level
            found[1] = FEATURE
            found[1, 0] = LEVEL
        return found

    def at(self, level: float = 1.0) -> Floats:
        """float64[D] in [0, 1]: the relevance of each feature."""
        mean = self._of(level)[0]
        out: Floats = np.clip(mean[0] + mean[1:], 0.0, 1.0)
        return out

    def see(self, z: Floats, residual: float, noise: float, level: float = 1.0) -> None:
        """Learn that residual ≈ Σ_d a_d z_d.

        Args:
            z: float64[D], h ⊙ m_u: the contribution of each feature of the taste if it were fully relevant.
            residual: the label minus all impersonal terms.
            noise: variance of the label given the relevance.
            level: prior level.
        """
        mean, variance = self._of(level)
        along = np.concatenate([[np.add.reduce(z)], z])
        gain = variance * along
        predicted, spread = float(np.einsum("i,i->", mean, along)), float(np.einsum("i,i->", gain, along))
        moved = gaussian_update(predicted, spread, residual, noise=noise)
        self.levels[level] = np.stack([mean + gain * moved.step, variance - gain * gain * moved.shrink])

    def _store(self) -> _Stored:
        return _Stored([(level, block.tobytes()) for level, block in sorted(self.levels.items())])

    def _restore(self, stored: _Stored) -> bool:
        levels = {level: np.frombuffer(block).reshape(2, 1 + self.D).copy() for level, block in stored.levels}
        if not all(bool(np.isfinite(block).all() and (block[1] >= 0).all()) for block in levels.values()):
            return False
        self.levels = levels
        return True
