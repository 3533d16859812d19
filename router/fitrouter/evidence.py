"""Evidence that may be looked at after every observation: e-processes by betting, and confidence sequences.

An e-process is the wealth of a gambler who bets against a hypothesis; where the hypothesis holds, it ever reaches 1/α
with probability α at most (Ville 1939), however often it is looked at and whenever one stops.

References: Waudby-Smith and Ramdas (2024), "Estimating means of bounded random variables by betting"; Shin, Ramdas and
Rinaldo (2024), "E-detectors"; Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas (2024), "Time-uniform central limit
theory and asymptotic confidence sequences".
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

__all__ = ["Moments", "Wealth"]

STAKES = np.array([0.06, 0.15, 0.3, 0.55, 0.9])
"""Shares of the largest stake that cannot ruin; the gambler spreads his wealth over them."""
RICH = 1e100
"""Wealth stops growing here: less than it might be, so still an e-process, and never infinite."""
BYTES = 8 * (1 + len(STAKES))


def waiting(n: int) -> float:
    """Share of the wealth that is not staked yet after n observations.

    Half of it enters at the first, and the rest slowly, so that an effect that begins late is found too.
    """
    return 0.5 / math.log2(n + 2) if n else 1.0


class Wealth:
    """An e-process against "given the past, no observation has a mean above 0".

    It is a mixture over stakes and over the times at which betting begins, Σ_s w_s E_{s:t} with Σ w_s = 1, which is an
    e-process as each E is one. The sum over s needs one number a stake (Shiryaev and Roberts' recursion).
    """

    def __init__(self) -> None:
        self.n = 0
        self.staked = np.zeros(len(STAKES))
        """float64[G]: wealth in play at each stake."""

    @property
    def value(self) -> float:
        """The wealth now; 1 at the start."""
        return waiting(self.n) + float(self.staked.sum()) / len(STAKES)

    def bet(self, x: float, low: float) -> None:
        """Fold an observation x.

        Args:
            x: with mean ≤ 0 given the past, if the hypothesis holds.
            low: a bound x ≥ low (negative) that was known before it.
        """
        enters = waiting(self.n) - waiting(self.n + 1)
        self.staked = np.minimum((self.staked + enters) * (1.0 + STAKES * max(x / -low, -1.0)), RICH)
        self.n += 1

    def dump(self) -> bytes:
        """The state, exactly."""
        return np.concatenate([[float(self.n)], self.staked]).tobytes()

    def load(self, payload: bytes) -> bool:
        """Restore the state; False, and unchanged, where the bytes cannot be what `dump` made."""
        if len(payload) != BYTES:
            return False
        values = np.frombuffer(payload, dtype=np.float64)
        sound = bool(np.isfinite(values).all() and (values >= 0).all() and (values[1:] <= RICH).all())
        if not sound or values[0] != math.floor(values[0]):
            return False
        self.n, self.staked = int(values[0]), values[1:].copy()
        return True


class Moments(msgspec.Struct, array_like=True):
    """Count, mean and sum of squared deviations of a stream (Welford 1962)."""

    n: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def see(self, x: float) -> None:
        """Fold one observation."""
        self.n += 1
        step = x - self.mean
        self.mean += step / self.n
        self.squares += step * (x - self.mean)

    def half_width(self, alpha: float, *, at: int = 200, prior: tuple[float, float] = (2.0, 1.0)) -> float:
        """Half the width of a 1 − α asymptotic confidence sequence for the mean; infinite before two observations.

        It covers the running mean at all times at once as n grows, under the same moments as the central limit theorem;
        it is tightest near `at` observations (theorem 2.2 of the reference, with the mixture's scale for that time).
        The variance starts at `prior`: (observations that it stands for, its value).
        """
        if self.n < 2:
            return math.inf
        variance = (self.squares + prior[0] * prior[1]) / (self.n - 1 + prior[0])
        scale = (-2.0 * math.log(alpha) + math.log(1.0 - 2.0 * math.log(alpha))) / at
        grown = self.n * scale + 1.0
        return math.sqrt(variance * 2.0 * grown / (self.n * self.n * scale) * math.log(math.sqrt(grown) / alpha))

    @property
    def sound(self) -> bool:
        """Whether these can be the moments of a stream."""
        return self.n >= 0 and math.isfinite(self.mean) and math.isfinite(self.squares) and self.squares >= 0.0
