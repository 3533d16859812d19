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

from fitrouter.types import Floats

STAKES = np.array([0.06, 0.15, 0.3, 0.55, 0.9])
"""Shares of the largest stake that cannot ruin; the gambler spreads his wealth over them."""
RICH = 1e100
"""Wealth stops growing here: less than it might be, so still an e-process, and never infinite."""


def waiting(n: int) -> float:
    """Share of the wealth that is not staked yet after n observations.

    Two thirds of it enter at the first, and the rest slowly, so that an effect that begins late is found too.
    """
    return 0.5 / math.log2(n + 2) if n else 1.0


class Mixture:
    """Wealth that is spread over G strategies and over the times at which betting begins.

    Σ_s w_s E_{s:t} with Σ w_s = 1 is an e-process as each E is one. The sum over s needs one number a strategy
    (Shiryaev and Roberts' recursion).

    Args:
        weights: float64[G] of the strategies, with sum at most 1; what they leave is never staked.
    """

    def __init__(self, weights: Floats) -> None:
        self.weights = weights
        self.idle = 1.0 - float(weights.sum())
        self.n = 0
        self.staked = np.zeros(len(weights))
        """float64[G]: wealth in play under each strategy, in shares of its own."""

    @property
    def value(self) -> float:
        """The wealth now; 1 at the start."""
        left = self.idle + (1.0 - self.idle) * waiting(self.n)
        return left + float((self.weights * self.staked).sum())

    def grow(self, factors: Floats) -> None:
        """Fold what an observation makes of the stakes: float64[G] ≥ 0, each of mean ≤ 1 given the past."""
        enters = waiting(self.n) - waiting(self.n + 1)
        self.staked = np.minimum((self.staked + enters) * factors, RICH)
        self.n += 1

    def dump(self) -> bytes:
        """The state, exactly."""
        return np.concatenate([[float(self.n)], self.staked]).tobytes()

    def load(self, payload: bytes) -> bool:
        """Restore the state; False, and unchanged, where the bytes cannot be what `dump` made."""
        if len(payload) != 8 * (1 + len(self.weights)):
            return False
        values = np.frombuffer(payload, dtype=np.float64)
        sound = bool(np.isfinite(values).all() and (values >= 0).all() and (values[1:] <= RICH).all())
        if not sound or values[0] != math.floor(values[0]):
            return False
        self.n, self.staked = int(values[0]), values[1:].copy()
        return True


class Wealth(Mixture):
    """An e-process against "given the past, no observation has a mean above 0"."""

    def __init__(self) -> None:
        super().__init__(np.full(len(STAKES), 1.0 / len(STAKES)))

    def bet(self, x: float, low: float) -> None:
        """Fold an observation x.

        Args:
            x: with mean ≤ 0 given the past, if the hypothesis holds.
            low: a bound x ≥ low (negative) that was known before it.
        """
        self.grow(1.0 + STAKES * max(x / -low, -1.0))


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
