"""Exact lower confidence limits for a mean that may drift, by betting with a mixture of bet sizes.

Let x_i ≥ −k with conditional means μ_i = E[x_i | past]. For a bet λ in (0, 1/k), Π (1 + λx_i)/(1 + λμ_i) is a
martingale of mean 1. By concavity Π (1 + λμ_i) ≤ (1 + λμ̄_t)^t with μ̄_t the running mean, so the martingale is at
least exp(Σ log(1 + λx_i) − t log(1 + λμ̄_t)). The same holds for mixtures, so by Ville's inequality

    Σ_λ w_λ exp(Σ_{i≤t} log(1 + λx_i) − t log(1 + λμ̄_t)) < 1/α   at all times t at once, with probability 1 − α.

The left side decreases in μ̄_t: the limit is where it equals 1/α. The gamma-exponential mixture gives away more:
log(1 + λx) ≥ λx + (log(1 − λk) + λk)(x/k)² (Fan, Grama and Liu 2015) and log(1 + λμ) ≤ λμ, so its limit is never
higher. For a constant mean this is betting with fixed bets (Waudby-Smith and Ramdas 2024, §4).

Pseudo-outcomes truncated at different bounds, with the same conditional means, can each be bet on in one mixture: a
tight bound allows large bets for few observations, a loose one keeps the variance low for many.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fitrouter.types import Floats
from fitrouter_evaluators.replay.log.log import Ints

SHARES = {0.15: 1.0, 0.4: 1.0, 0.8: 1.0}
"""Bets as shares of the largest admissible one, and their weights."""
SLOW = {0.04: 0.1, 0.01: 0.1, 0.0025: 0.1}
"""Further bets under the loosest bound, for streams of millions."""
STEPS = 6
"""Newton steps; the first guess is off by at most the log of the number of bets."""
BLOCK = 1 << 16
"""Observations processed at a time."""


class Bets(NamedTuple):
    """A mixture of B bets over g streams, as parallel arrays."""

    stream: Ints
    """int64[B]: row of x."""
    size: Floats
    """float64[B]: λ."""
    weight: Floats
    """float64[B], with sum 1."""


def bets(bounds: Floats) -> Bets:
    """Build the mixture of bets for streams with these bounds, float64[g]; every stream has the same weight."""
    loosest = int(np.argmax(bounds))
    rows = []
    for g, bound in enumerate(bounds):
        shares = SHARES | SLOW if g == loosest else SHARES
        total = sum(shares.values()) * len(bounds)
        rows += [(g, share / bound, weight / total) for share, weight in shares.items()]
    stream, size, weight = zip(*rows, strict=True)
    return Bets(np.array(stream, dtype=np.int64), np.array(size), np.array(weight))


def lower(x: Floats, bounds: Floats, alpha: float, looks: Ints) -> Floats:
    """Lower limits of the running mean at each look (ascending counts of observations), float64[L].

    Row j of x, float64[g, n], is at least −bounds[j]; all rows have the same conditional means. α is of this side.
    """
    on = bets(bounds)
    grown = np.zeros(len(on.size))
    limits = np.empty(len(looks))
    for begin in range(0, int(looks[-1]) if len(looks) else 0, BLOCK):
        block = x[:, begin : begin + BLOCK]
        first, last = np.searchsorted(looks, [begin + 1, begin + block.shape[1] + 1])
        at = looks[first:last]
        gained = grown[:, None] + np.cumsum(_gains(block, on, at - begin), axis=1)
        limits[first:last] = root(gained[:, : len(at)], at.astype(np.float64), on, alpha)
        grown = gained[:, -1]
    return np.asarray(np.maximum(limits, -bounds.min()), dtype=np.float64)


def _gains(block: Floats, on: Bets, ends: Ints) -> Floats:
    """Log gain Σ log(1 + λx) of each bet, float64[B, parts], between consecutive `ends` and after the last."""
    starts = np.append(0, ends[ends < block.shape[1]])
    sums, work = np.empty((len(on.size), len(starts))), np.empty(block.shape[1])
    for b, (row, size) in enumerate(zip(on.stream, on.size, strict=True)):
        np.multiply(block[row], size, out=work)
        np.add.reduceat(np.log1p(work, out=work), starts, out=sums[b])
    return sums


def root(grown: Floats, t: Floats, on: Bets, alpha: float) -> Floats:
    """Solve for the running mean m at which the mixture equals 1/α after t observations, float64[L], from below.

    `grown`, float64[B, L], is Σ log(1 + λx) of each bet. The log of the mixture is convex and decreasing in m, so
    Newton steps from the left of the root stay there and every iterate is a valid limit. The best single bet gives the
    first.
    """
    size = on.size[:, None]
    head = grown + np.log(on.weight)[:, None] + math.log(alpha)
    m: Floats = np.max(np.expm1(head / t) / size, axis=0)
    for _ in range(STEPS):
        part = head - t * np.log1p(size * m)
        top = part.max(axis=0)
        part = np.exp(part - top)
        total = part.sum(axis=0)
        slope = t * (part * (size / (1.0 + size * m))).sum(axis=0) / total
        m = m + np.maximum(top + np.log(total), 0.0) / slope
    return m
