"""Distribution of users' true mean outcomes under a candidate.

A user's mean over n units is their true mean plus noise of variance σ²/n; with few labels per user the noise exceeds
the true differences, and the worst tenth of raw means is mostly noise. So it is deconvolved:

1. σ² is pooled over users.
2. The variance between users τ² and the mean are those of a random-effects model by the method of moments (Paule and
   Mandel 1982), floored at 0.
3. From that normal the distribution G of the true means is roughened by a few EM steps, each the mean of the users'
   posteriors under the last (Laird and Louis 1991, "Smoothing the nonparametric estimate of a prior distribution by
   roughening"; the first step is the estimate of Shen and Louis 1998). Skewed and bimodal truths show, noise does not.

Intervals are percentiles of a bootstrap over users, valid at one look. The worst tenth depends on the smoothness of G,
so its interval covers those of light and of full roughening. If no difference between users shows (τ² = 0) all users
have the mean: the share of users worse off is then 0 or 1 by its sign, and its interval reaches to both if the sign is
uncertain. Users whom both policies treat alike in every unit are not worse off.

Assumptions: visit frequency is independent of satisfaction; averaged noise is about normal. With four labels a user
and heavy weights the second fails: nominal 95% intervals covered 80 to 90%.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fitrouter.types import Floats
from fitrouter_evaluators.replay.log.log import Ints
from fitrouter_evaluators.replay.report import UserSatisfaction

LEAST = 10
"""Minimum users for a worst tenth, and minimum units beyond the first of each user for σ²."""
LIGHT, FULL = 2, 20
"""EM steps: few keep the normal's tails, many turn noise into groups."""
SAME = 1e-12
"""Outcomes that differ by less count as equal."""
WORK = 3_000_000
"""Users × replicates above which replicates are reduced, to at least 100."""
GRID = 161
REACH = 6.0
"""Extent of the grid around the mean, in units of τ."""


def satisfaction(
    x: Floats,
    x0: Floats,
    user: Ints,
    role: Ints,
    roles: Sequence[str],
    *,
    low: float = 0.0,
    high: float = 1.0,
    alpha: float = 0.05,
    replicates: int = 300,
    seed: int = 0,
) -> list[UserSatisfaction]:
    """Distribution of true user means under a candidate, and beside `against`.

    All users first, then each role with at least ten users and ten units beyond the first of each.

    Args:
        x: float64[n], unbiased (doubly robust) outcome of each unit under the candidate.
        x0: float64[n], the same under `against`.
        user: int[n] codes; units without a user (−1) are left out.
        role: int[n] codes of `roles`; units without a role count in the total only.
        roles: names.
        low: lower end of the range of true means.
        high: upper end.
        alpha: of each interval.
        replicates: of the bootstrap.
        seed: of the bootstrap.
    """
    known = user >= 0
    scopes = [("", known), *((name, known & (role == code)) for code, name in enumerate(roles))]
    found = []
    for name, here in scopes:
        _, who = np.unique(user[here], return_inverse=True)
        U = int(who.max()) + 1 if len(who) else 0
        if min(U, len(who) - U) < LEAST:
            continue
        multiplicity = _resampled(U, replicates, seed)
        candidate = _Distribution.summarise(_People.of(x[here], who, U), multiplicity, low, high)
        against = _Distribution.summarise(_People.of(x0[here], who, U), multiplicity[:1], low, high)
        worse, worse_low, worse_high = _worse_off(x[here] - x0[here], who, U, multiplicity, high - low, alpha)
        worst_low, worst_high = candidate.worst_ends(alpha)
        sd_low, sd_high = _percentiles(candidate.sd, alpha)
        found.append(
            UserSatisfaction(
                role=name,
                users=U,
                mean=float(candidate.mean[0]),
                sd=float(candidate.sd[0]),
                sd_low=sd_low,
                sd_high=sd_high,
                worst_decile=float(candidate.worst_decile[0]),
                worst_decile_low=worst_low,
                worst_decile_high=worst_high,
                worse_off=worse,
                worse_off_low=worse_low,
                worse_off_high=worse_high,
                sd_against=float(against.sd[0]),
                worst_decile_against=float(against.worst_decile[0]),
            )
        )
    return found


def _resampled(U: int, replicates: int, seed: int) -> Floats:
    """Bootstrap multiplicities of users, float64[1 + replicates, U]; the first row is the original sample."""
    rng = np.random.default_rng([seed, U])
    drawn = rng.multinomial(U, np.full(U, 1.0 / U), size=int(np.clip(WORK // U, min(100, replicates), replicates)))
    return np.concatenate([np.ones((1, U)), drawn.astype(np.float64)])


def _percentiles(values: Floats, alpha: float) -> tuple[float, float]:
    """Percentile interval of the replicates, extended to contain the estimate."""
    low, high = np.quantile(values[1:], (alpha / 2.0, 1.0 - alpha / 2.0)) if len(values) > 1 else (values[0], values[0])
    return float(min(low, values[0])), float(max(high, values[0]))


def _worse_off(
    difference: Floats, who: NDArray[Any], U: int, multiplicity: Floats, span: float, alpha: float
) -> tuple[float, float, float]:
    """Share of users with a negative true difference, and its interval."""
    apart = np.bincount(who, np.abs(difference) > SAME, U) > 0
    kept, U_apart = apart[who], int(apart.sum())
    if min(U_apart, int(kept.sum()) - U_apart) < LEAST:  # nearly all are treated alike, and little is known of the rest
        return float((np.bincount(who, difference, U)[apart] < 0.0).sum()) / U, 0.0, U_apart / U
    _, among = np.unique(who[kept], return_inverse=True)
    people = _People.of(difference[kept], among, U_apart)
    counts = multiplicity[:, apart]
    found = _Distribution.summarise(people, counts, -span, span)
    return found.below(counts.sum(axis=1) / multiplicity.sum(axis=1), alpha)


class _People(NamedTuple):
    """Sufficient statistics of U users."""

    n: Floats
    """Units, float64[U]."""
    mean: Floats
    squares: Floats
    """Sum of squared deviations from the user's mean."""

    @classmethod
    def of(cls, x: Floats, who: NDArray[Any], U: int) -> _People:
        n = np.bincount(who, minlength=U).astype(np.float64)
        mean = np.bincount(who, x, U) / n
        return cls(n, mean, np.bincount(who, (x - mean[who]) ** 2, U).astype(np.float64))

    def sampling_variance(self, multiplicity: Floats) -> Floats:
        """Sampling variance of each user's mean, float64[R, U]."""
        freedom = np.maximum((multiplicity * (self.n - 1.0)).sum(axis=1), 1.0)
        pooled = (multiplicity * self.squares).sum(axis=1) / freedom
        return np.asarray(np.maximum(pooled, 1e-18)[:, None] / self.n)


class _Distribution(NamedTuple):
    """Summaries of the distribution of true means; float64[R], one for each row of multiplicities."""

    mean: Floats
    sd: Floats
    worst_decile: Floats
    light_decile: Floats
    """The worst decile after `LIGHT` steps."""
    below_zero: Floats
    """Share of users below 0."""

    @classmethod
    def summarise(cls, people: _People, multiplicity: Floats, low: float, high: float) -> _Distribution:
        """Summarise the distribution for each row of multiplicities; the first row does not depend on the others."""
        parts = [cls._summarise(people, rows, low, high) for rows in (multiplicity[:1], multiplicity[1:]) if len(rows)]
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    @classmethod
    def _summarise(cls, people: _People, multiplicity: Floats, low: float, high: float) -> _Distribution:
        variance = people.sampling_variance(multiplicity)
        mean, between = _moments(people, variance, multiplicity)
        sd, mean = np.sqrt(between), np.clip(mean, low, high)
        worst, light, below = mean.copy(), mean.copy(), (mean < 0.0).astype(np.float64)
        differ = between > 0.0
        if differ.any():
            ends = mean[differ] - REACH * sd[differ], mean[differ] + REACH * sd[differ]
            grid = np.linspace(max(float(ends[0].min()), low), min(float(ends[1].max()), high), GRID)
            start = np.exp(-0.5 * ((grid - mean[differ, None]) / np.maximum(sd[differ, None], grid[1] - grid[0])) ** 2)
            # Users with equal means and numbers of units count as one, that often.
            cells = np.stack([people.mean, variance[0]], axis=1)
            alike, kind = np.unique(cells, axis=0, return_inverse=True)
            few, mass = _roughened(start, grid, alike[:, 0], alike[:, 1], _summed(multiplicity[differ], kind))
            light[differ], worst[differ] = _worst_decile(grid, few), _worst_decile(grid, mass)
            below[differ] = _below(grid, mass, 0.0)
        return cls(mean, sd, worst, light, below)

    def worst_ends(self, alpha: float) -> tuple[float, float]:
        full, light = _percentiles(self.worst_decile, alpha), _percentiles(self.light_decile, alpha)
        return min(full[0], light[0]), max(full[1], light[1])

    def below(self, part: Floats, alpha: float) -> tuple[float, float, float]:
        """Share of values below 0, with its interval; these users are the share `part` of all."""
        share = self.below_zero * part
        low, high = _percentiles(share, alpha)
        if np.quantile(self.sd, alpha / 2.0) == 0.0:  # all of them may have the mean
            least, most = np.quantile(self.mean, (alpha / 2.0, 1.0 - alpha / 2.0))
            low, high = (0.0 if most >= 0.0 else low), (float(part.max()) if least < 0.0 else high)
        return float(share[0]), low, high


def _moments(people: _People, variance: Floats, multiplicity: Floats) -> tuple[Floats, Floats]:
    """Mean and variance of true means, float64[R] each, solving Σ (raw − mean)² / (τ² + noise) = its expectation."""
    _, first, kind = np.unique(people.n, return_index=True, return_inverse=True)
    noise, middle = variance[:, first], people.mean.mean()  # noise depends on the number of units
    powers = [_summed(multiplicity * (people.mean - middle) ** k, kind) for k in range(3)]

    def spread(between: Floats) -> tuple[Floats, Floats]:
        n, total, squares = ((power / (between[:, None] + noise)).sum(axis=1) for power in powers)
        return squares - total**2 / n, middle + total / n

    chance = multiplicity.sum(axis=1) - 1.0
    low, high = np.zeros(len(variance)), np.full(len(variance), 2.0 * float(np.ptp(people.mean)) ** 2 + 1e-18)
    for _ in range(50):
        half = 0.5 * (low + high)
        more = spread(half)[0] > chance
        low, high = np.where(more, half, low), np.where(more, high, half)
    between = np.where(spread(np.zeros(len(variance)))[0] > chance, high, 0.0)
    return spread(between)[1], between


def _summed(rows: Floats, kind: NDArray[Any]) -> Floats:
    """Sum of each row's values of a kind, float64[R, kinds]; kinds are from 0 on without gaps."""
    order = np.argsort(kind, kind="stable")
    return np.asarray(np.add.reduceat(rows[:, order], np.flatnonzero(np.diff(kind[order], prepend=-1)), axis=1))


def _roughened(
    start: Floats, grid: Floats, raw: Floats, variance: Floats, multiplicity: Floats
) -> tuple[Floats, Floats]:
    """Mass of the true means on `grid` after `LIGHT` and after `FULL` EM steps from `start`, float64[R, GRID] each."""
    distance = (raw[:, None] - grid) ** 2 / variance[:, None]
    likelihood = np.exp(-0.5 * (distance - distance.min(axis=1, keepdims=True)))
    light = mass = start / start.sum(axis=1, keepdims=True)
    for step in range(FULL):
        evidence = np.maximum(mass @ likelihood.T, 1e-300)
        mass = mass * ((multiplicity / evidence) @ likelihood)
        mass /= mass.sum(axis=1, keepdims=True)
        light = mass if step < LIGHT else light
    return light, mass


def _worst_decile(grid: Floats, mass: Floats) -> Floats:
    left = np.clip(0.1 - (np.cumsum(mass, axis=1) - mass), 0.0, mass)
    return np.asarray((left @ grid) / left.sum(axis=1))


def _below(grid: Floats, mass: Floats, at: float) -> Floats:
    """Mass below a point, each grid point's mass spread over its cell."""
    width = grid[1] - grid[0]
    return np.asarray(mass @ np.clip((at - grid) / width + 0.5, 0.0, 1.0))
