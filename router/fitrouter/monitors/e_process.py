"""E-processes by betting, and asymptotic confidence sequences: valid at every look and under optional stopping.

An e-process is the wealth of a bettor who starts with 1 and bets against a hypothesis. If the hypothesis holds, the
wealth ever reaches 1/α with probability at most α (Ville 1939), however often it is looked at.

References: Waudby-Smith and Ramdas (2024), "Estimating means of bounded random variables by betting"; Shin, Ramdas and
Rinaldo (2024), "E-detectors"; Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas (2024), "Time-uniform central limit
theory and asymptotic confidence sequences".
"""

from __future__ import annotations

import math
from functools import lru_cache

import msgspec
import numpy as np

from fitrouter.types import Floats

STAKES = (0.06, 0.15, 0.3, 0.55, 0.9)
"""Bets as shares of the largest one that cannot lead to a loss of everything; the wealth is spread over them."""
WEALTH_CAP = 1e100
"""Upper bound of the wealth. A capped e-process is still an e-process, and it stays finite."""


@lru_cache(maxsize=4096)
def unstaked(n: int) -> float:
    """Share of the initial wealth that is not staked yet after n observations.

    Two thirds of it enter at the first observation and the rest slowly, so that effects that begin late are found too.
    """
    return 0.5 / math.log2(n + 2) if n else 1.0


class MixtureEProcess:
    """Mixture of e-processes over G betting strategies and over the times at which betting begins.

    Σ_s w_s E_{s:t} with Σ w_s = 1 is an e-process because each E is one. The sum over the starting times s needs one
    number per strategy (the Shiryaev–Roberts recursion).

    Args:
        weights: float64[G] of the strategies, with sum at most 1; the remainder is never staked.
    """

    def __init__(self, weights: Floats) -> None:
        self.weights = weights
        self.idle = 1.0 - float(weights.sum())
        self.n = 0
        self.staked = np.zeros(len(weights))
        """Staked wealth of each strategy, in units of its weight, float64[G]."""

    @property
    def value(self) -> float:
        """The e-value; 1 at the start."""
        left = self.idle + (1.0 - self.idle) * unstaked(self.n)
        return left + float((self.weights * self.staked).sum())

    def multiply(self, factors: Floats) -> None:
        """Multiply the staked wealth by the pay-off of one observation.

        Args:
            factors: float64[G] ≥ 0, each with mean ≤ 1 given the past under the hypothesis.
        """
        enters = unstaked(self.n) - unstaked(self.n + 1)
        self.staked = np.minimum((self.staked + enters) * factors, WEALTH_CAP)
        self.n += 1

    def dump(self) -> bytes:
        """The state as float64 bytes."""
        return np.concatenate([[float(self.n)], self.staked]).tobytes()

    def load(self, payload: bytes) -> bool:
        """Restore a state from `dump`; if the bytes are damaged or inconsistent, return False and change nothing."""
        if len(payload) != 8 * (1 + len(self.weights)):
            return False
        values = np.frombuffer(payload, dtype=np.float64)
        valid = bool(np.isfinite(values).all() and (values >= 0).all() and (values[1:] <= WEALTH_CAP).all())
        if not valid or values[0] != math.floor(values[0]):
            return False
        self.n, self.staked = int(values[0]), values[1:].copy()
        return True


class EProcess:
    """An e-process against the hypothesis that no observation has a mean above 0 given the past.

    `MixtureEProcess` over `STAKES`, in plain numbers: arrays of five cost more than they spare.
    """

    def __init__(self) -> None:
        self.n = 0
        self.staked = [0.0] * len(STAKES)
        """Staked wealth of each stake, in units of its share."""

    @property
    def value(self) -> float:
        """The e-value; 1 at the start."""
        return unstaked(self.n) + math.fsum(self.staked) / len(STAKES)

    def bet(self, x: float, low: float) -> None:
        """Bet on one observation.

        Args:
            x: the observation; its mean given the past is ≤ 0 under the hypothesis.
            low: a lower bound of x (negative) that was known before it.
        """
        enters, payoff = unstaked(self.n) - unstaked(self.n + 1), max(x / -low, -1.0)
        wealth = [(one + enters) * (1.0 + stake * payoff) for one, stake in zip(self.staked, STAKES, strict=True)]
        self.staked = wealth if max(wealth) <= WEALTH_CAP else [min(one, WEALTH_CAP) for one in wealth]
        self.n += 1

    def dump(self) -> bytes:
        """The state as float64 bytes."""
        return np.array([float(self.n), *self.staked]).tobytes()

    def load(self, payload: bytes) -> bool:
        """Restore a state from `dump`; if the bytes are damaged or inconsistent, return False and change nothing."""
        found = MixtureEProcess(np.full(len(STAKES), 1.0 / len(STAKES)))
        if not found.load(payload):
            return False
        self.n, self.staked = found.n, found.staked.tolist()
        return True


class Moments(msgspec.Struct, array_like=True):
    """Count, mean and sum of squared deviations of a stream (Welford 1962)."""

    n: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, x: float) -> None:
        """Add one observation."""
        self.n += 1
        step = x - self.mean
        self.mean += step / self.n
        self.squares += step * (x - self.mean)

    def half_width(self, alpha: float, *, at: int = 200, prior: tuple[float, float] = (2.0, 1.0)) -> float:
        """Half the width of a 1 − α asymptotic confidence sequence for the mean; infinite for n < 2.

        It covers the running mean at all times at once as n grows, under the moment conditions of the central limit
        theorem (Waudby-Smith, Arbour et al. 2024, theorem 2.2).

        Args:
            alpha: probability that it ever misses.
            at: number of observations at which it is tightest; it fixes the scale of the Gaussian mixture.
            prior: observations that the prior variance stands for, and that variance.
        """
        if self.n < 2:
            return math.inf
        variance = (self.squares + prior[0] * prior[1]) / (self.n - 1 + prior[0])
        scale = (-2.0 * math.log(alpha) + math.log(1.0 - 2.0 * math.log(alpha))) / at
        grown = self.n * scale + 1.0
        return math.sqrt(variance * 2.0 * grown / (self.n * self.n * scale) * math.log(math.sqrt(grown) / alpha))

    @property
    def valid(self) -> bool:
        """Whether these numbers can be the moments of a stream."""
        return self.n >= 0 and math.isfinite(self.mean) and math.isfinite(self.squares) and self.squares >= 0.0
