"""Joint posterior draws of a person's taste and of what they think of each model.

Means and standard deviations (`Fit.estimate`) are not enough to say which of several models a person likes best: what
is not known of a taste moves the ratings of all models together. Each draw is one consistent set of parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fitrouter.identity import role_key
from fitrouter.posterior.arms import base_arm
from fitrouter.posterior.gaussian import Gaussian
from fitrouter.posterior.heads import Heads
from fitrouter.posterior.model import Fit
from fitrouter.posterior.people import Person
from fitrouter.types import Floats, Identity


class Draws(NamedTuple):
    """S draws for K arms at P contexts. The rating of arm k's answer h at context p is h·taste + fixed + level."""

    taste: Floats
    """W, float64[S, D]."""
    level: Floats
    """How much more the person likes an arm than its text explains, beyond `fixed`, float64[S, K]."""
    fixed: Floats
    """Mean correction c_k(x), float64[P, K]."""


class Means(NamedTuple):
    """Posterior means behind a person's ratings: that of arm k's text h is h·taste + level[k]."""

    taste: Gaussian
    """Posterior of w."""
    level: Floats
    """What is thought of each arm beyond its text, over the contexts, float64[K]."""
    role_taste: Floats
    role_level: Floats
    """What the role adds to everybody's, float64[D] and float64[K], and a user to that; 0 where the role is rated."""


class RatingDraws(NamedTuple):
    """S joint draws of the mean ratings of K arms over contexts, on a scale from 0 to 1.

    The draws of an arm have exactly the posterior mean. Predictions are linear and know no ends of the scale: where an
    arm's mean is beyond an end, the ratings of all arms move together until it is there, so that every difference of
    two arms stays; only means that lie apart by more than the scale are shrunk to its width. Single draws can lie
    beyond the ends; their quantiles are cut there.
    """

    ratings: Floats
    """float64[S, K]."""
    means: Means
    profile: Floats
    """Expected features of the arms' answers, float64[K, D]."""
    factor: float
    """By which ratings were shrunk to the width of the scale; 1 unless predictions lie apart by more than that."""


def draw_posterior(fit: Fit, identity: Identity, x: Floats, arms: Sequence[str], n: int, seed: Sequence[int]) -> Draws:
    """Draw n joint samples of the parameters for a user in a role.

    Of a correction the mean varies with the context, and its error is drawn at the mean context.

    Args:
        fit: the posterior.
        identity: as events hold it.
        x: contexts, float64[P, d].
        arms: their names.
        n: number of draws.
        seed: of the random numbers.
    """
    rng = np.random.default_rng(list(seed))
    models = [base_arm(arm) for arm in arms]
    taste = sampled(fit.tastes.population, n, rng)
    level, fixed = np.zeros((n, len(arms))), np.zeros((len(x), len(arms)))
    common = x.mean(axis=0)
    for model in dict.fromkeys(models):
        columns = [k for k, each in enumerate(models) if each == model]
        row = fit.arms.shared.get(model, 0)
        width = rng.choice(len(fit.widths.weights), size=n, p=_normalised(fit.widths.weights))
        _, means, variances = fit.arms.along(row, common)
        mean = float(fit.widths.weights @ means)
        drawn = means[width] - mean + rng.standard_normal(n) * np.sqrt(np.maximum(variances, 0.0))[width]
        level[:, columns] = drawn[:, None]
        fixed[:, columns] = (x @ (fit.widths.weights @ fit.arms.correction[row]))[:, None]
    role, user = fit.people(identity)
    counted = np.ones(n)
    if user is not None:
        experts, deviations = _person(user, user.weights_in(fit.context(identity), fit.mixture), models, n, rng)
        taste, level = taste + deviations[0], level + deviations[1]
        counted = (experts > 0).astype(float)
    if role is not None and role_key(identity):
        _, deviations = _person(role, role.weights_in("role", fit.mixture), models, n, rng)
        taste, level = taste + counted[:, None] * deviations[0], level + counted[:, None] * deviations[1]
    return Draws(taste, level, fixed)


def draw_ratings(
    fit: Fit,
    identity: Identity,
    x: Floats,
    arms: Sequence[str],
    n: int,
    seed: Sequence[int],
    written: Floats | None = None,
) -> RatingDraws:
    """Draw n joint samples of the mean ratings of arms over contexts; arguments as `draw_posterior` and `ratings_of`.

    The same seed gives two identities the same draws of what all people share.
    """
    draws = draw_posterior(fit, identity, x, arms, n, seed)
    return ratings_of(fit, draws, _means(fit, identity, x, arms), x, arms, seed, written)


def ratings_of(
    fit: Fit,
    draws: Draws,
    means: Means,
    x: Floats,
    arms: Sequence[str],
    seed: Sequence[int],
    written: Floats | None = None,
) -> RatingDraws:
    """Rate the expected answers of arms with drawn parameters whose posterior means are known.

    Args:
        fit: the posterior.
        draws: of it.
        means: of it.
        x: contexts, float64[P, d].
        arms: their names.
        seed: of the random numbers.
        written: mean features of answers that the arms gave in these contexts, float64[K, D]; a row of NaN for an arm
            of which there are none. Without it they are predicted.
    """
    found, common, widths = fit.arms.find(tuple(arms)), x.mean(axis=0), fit.widths.weights
    profile: Floats = np.mean([fit.arms.read(found, row, widths).profile for row in x], axis=0)
    unknown = fit.arms.read(found, common, widths).spread * (draws.taste**2 @ fit.arms.spread[found.rows].T)
    if written is not None:
        seen = np.isfinite(written).all(axis=1)
        profile[seen], unknown[:, seen] = written[seen], 0.0
    noise = np.random.default_rng([*seed, 1]).standard_normal(unknown.shape) * np.sqrt(np.maximum(unknown, 0.0))
    drawn = draws.taste @ profile.T + draws.level + noise
    mean = profile @ means.taste.mean + means.level
    factor = 1.0 / max(float(np.ptp(mean)), 1.0)
    beyond = max(float(factor * mean.max()) - 1.0, 0.0) + min(float(factor * mean.min()), 0.0)
    ratings: Floats = factor * (drawn - drawn.mean(axis=0) + mean) - beyond
    return RatingDraws(ratings, means, profile, factor)


def _means(fit: Fit, identity: Identity, x: Floats, arms: Sequence[str]) -> Means:
    """Means of what `draw_posterior` draws."""
    models, (role, user) = [base_arm(arm) for arm in arms], fit.people(identity)
    rows = [fit.arms.shared.get(model, 0) for model in models]
    level = np.array([x.mean(axis=0) @ (fit.widths.weights @ fit.arms.correction[row]) for row in rows])
    blocks = fit.heads(identity)
    taste = Gaussian(np.sum([b.mean for b in blocks], axis=0), np.sum([b.cov for b in blocks], axis=0))
    of_role = role_means(fit, role if role_key(identity) else None, models)
    if user is None:
        return Means(taste, level + of_role[1], *role_means(fit, None, models))
    own = user.deviation(user.weights_in(fit.context(identity), fit.mixture))
    return Means(taste, level + own.offsets(models) + (1.0 - own.population) * of_role[1], *of_role)


def role_means(fit: Fit, role: Person | None, models: Sequence[str]) -> tuple[Floats, Floats]:
    """A role's deviations of taste, float64[D], and of the levels of base arms, float64[K]; 0 without a role."""
    if role is None:
        return np.zeros(fit.D), np.zeros(len(models))
    found = role.deviation(role.weights_in("role", fit.mixture))
    return found.mean[: fit.D], found.offsets(models)


def _person(
    person: Person, weights: Floats, models: Sequence[str], n: int, rng: np.random.Generator
) -> tuple[Floats, tuple[Floats, Floats]]:
    """Draw n experts, and a person's deviations of taste, float64[n, D], and of models, float64[n, K]."""
    experts = rng.choice(len(weights), size=n, p=_normalised(weights))
    taste = (experts > 0)[:, None] * person.declared
    level = np.zeros((n, len(models)))
    for at, heads in person.experts():
        for place, e in enumerate(range(at.start, at.stop)):
            rows = np.flatnonzero(experts == e)
            own, offsets = _head(heads, place, models, len(rows), rng)
            taste[np.ix_(rows, heads.priors.features)] += own
            level[rows] += offsets
    return experts.astype(float), (taste, level)


def _head(heads: Heads, place: int, models: Sequence[str], n: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Draw one head's taste, float64[n, features], and its offsets of models, float64[n, K]."""
    size, cov = len(heads.priors.features), heads.covariance(np.eye(len(heads))[place])
    drawn = sampled(Gaussian(heads.mean[place].astype(np.float64), cov), n, rng)
    unknown = {model: rng.standard_normal(n) * np.sqrt(heads.priors.offset[place]) for model in models}
    at = {model: size + i for i, model in enumerate(heads.models)}
    offsets = [drawn[:, at[model]] if model in at else unknown[model] for model in models]
    return drawn[:, :size], np.stack(offsets, axis=1)


def sampled(block: Gaussian, n: int, rng: np.random.Generator) -> Floats:
    """Draw n samples of a Gaussian, whose covariance may be singular, float64[n, D]."""
    values, vectors = np.linalg.eigh(block.cov)
    scaled: Floats = rng.standard_normal((n, len(values))) * np.sqrt(np.maximum(values, 0.0))
    drawn: Floats = block.mean + scaled @ vectors.T
    return drawn


def _normalised(weights: Floats) -> Floats:
    found: Floats = weights / weights.sum()
    return found
