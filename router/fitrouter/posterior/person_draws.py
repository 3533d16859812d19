"""Exact posterior draws of what one person thinks of each model, from that person's own votes.

The fold updates blocks one by one and one label at a time (`posterior.model`); its means route well, but it forgets how
a taste, a model's offset and a rating scale explain one another, and its weights of heads follow one-step predictions,
which favour narrow heads where people have few labels each. Here all votes of a person are one regression per head:

    y_i = h_iᵀw + c_k(x_i) + level_k + scale·[i is a rating] + ε_i

with w, level and scale jointly Gaussian, votes with a logistic likelihood by expectation propagation (Rasmussen and
Williams 2006, section 3.6, all sites at once), and heads weighted by their marginal likelihood times prior weights: the
geometric mean of those of a new installation and of those that this one has learnt (docs/results/judgements.md). The
prior is what all people share. Where a person gave much of the votes, it is the one before any vote, so that no vote
counts twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fitrouter.identity import role_key
from fitrouter.posterior.arms import base_arm
from fitrouter.posterior.draws import Draws, Means, RatingDraws, ratings_of, role_means, sampled
from fitrouter.posterior.gaussian import Gaussian
from fitrouter.posterior.labels import Label
from fitrouter.posterior.likelihoods import Observation, observation_of
from fitrouter.posterior.mixture import EXPERTS, START
from fitrouter.posterior.model import Fit
from fitrouter.posterior.rating_scale import OFFSET_VARIANCE
from fitrouter.posterior.tastes import Tastes
from fitrouter.types import FeedbackKind, Floats, Identity

MOST_VOTES = 300
"""Latest votes of a person that are read."""
MUCH = 0.2
"""Share of all votes from which a person's are not taken to be in the common prior."""
FORM = 1.6
"""Factor of the start of the head for length and lists: quizzes are short (docs/results/ablation.md)."""
OFFSETS = (0.001, 0.01, 0.05)
"""Prior variances of a person's offset of a model; votes weigh them, each with every width of the taste."""
_STEPS, _CLOSE, _DAMPING = 100, 1e-6, 0.8
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(48)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


class PersonPosterior:
    """Posterior of one person's taste and level of each model, given their votes.

    Args:
        fit: what all people share, and the prior widths of a person's heads.
        identity: as events hold it, with a user.
        votes: of the person, on answers whose features are known, the latest last.
        arms: the models that are drawn.
        common: context at which the error of a model's correction counts, float64[d].
    """

    def __init__(
        self, fit: Fit, identity: Identity, votes: Sequence[Label], arms: Sequence[str], common: Floats
    ) -> None:
        self._fit, self._common = fit, common
        votes = [vote for vote in votes if vote.has_features and math.isfinite(vote.y)][-MOST_VOTES:]
        self._fresh = len(votes) > MUCH * fit.labels
        named = [base_arm(arm) for arm in arms]
        answered = [base_arm(side.arm) for vote in votes for side in (vote.answer, vote.against) if side is not None]
        self._models = tuple(dict.fromkeys([*named, *answered]))
        self._columns = [self._models.index(name) for name in named]
        rows, known = self._design(votes)
        told = np.flatnonzero(rows.any(axis=1))
        # Two answers that are alike say nothing, and their difference has no variance.
        self._seen = [_observation(votes[i]) for i in told]
        self._rows, self._known = rows[told], known[told]
        prior = Tastes(fit.D, fit.tastes.params, tuple(fit.tastes.names), fit.tastes.prior).population
        population = prior if self._fresh else fit.tastes.population
        start = np.array(START[context := fit.context(identity)])
        if not self._fresh:
            start = np.sqrt(start * fit.mixture.weights(context))
        start[EXPERTS.index("form")] *= FORM
        start = np.repeat(start / len(OFFSETS), len(OFFSETS))
        heads = range(len(EXPERTS))
        self._heads = [self._prior(e, offset, population, identity) for e in heads for offset in OFFSETS]
        nats = []
        self._posteriors: list[Gaussian] = []
        for head in self._heads:
            posterior, evidence = self._condition(head)
            self._posteriors.append(posterior)
            nats.append(evidence)
        moved = start * np.exp(np.array(nats) - max(nats))
        self.weights: Floats = moved / moved.sum()
        """Posterior weights of the heads, float64[E]."""

    def draw(self, n: int, seed: Sequence[int]) -> tuple[Floats, Floats]:
        """Draw n joint samples: tastes, float64[n, D], and levels of the arms, float64[n, K]."""
        rng, D = np.random.default_rng(list(seed)), self._fit.D
        head = rng.choice(len(self.weights), size=n, p=self.weights)
        out = np.empty((n, D + len(self._models) + 1))
        for e, posterior in enumerate(self._posteriors):
            rows = np.flatnonzero(head == e)
            if len(rows):
                out[rows] = sampled(posterior, len(rows), rng)
        return out[:, :D], out[:, [D + column for column in self._columns]]

    def means(self, identity: Identity, arms: Sequence[str], x: Floats) -> Means:
        """Means of what is drawn, of the arms over contexts, float64[P, d]."""
        D = self._fit.D
        apart = np.array([posterior.mean for posterior in self._posteriors])
        mean = self.weights @ apart
        apart = apart[:, :D] - mean[:D]
        cov = np.sum([w * each.cov[:D, :D] for w, each in zip(self.weights, self._posteriors, strict=True)], axis=0)
        taste = Gaussian(mean[:D], cov + (apart.T * self.weights) @ apart)
        fixed = np.array([np.mean([self.correction(arm, row) for row in x]) for arm in arms])
        role, user = self._fit.people(identity)
        known = role if user is not None and role_key(identity) else None
        of_role = role_means(self._fit, known, [base_arm(arm) for arm in arms])
        return Means(taste, mean[[D + column for column in self._columns]] + fixed, *of_role)

    def correction(self, arm: str, x: Floats) -> float:
        """Mean of the correction c of an arm at a context, as the prior has it."""
        if self._fresh:
            return 0.0
        fit = self._fit
        return float(fit.widths.weights @ fit.arms.along(fit.arms.shared.get(base_arm(arm), 0), x)[1])

    def _design(self, votes: Sequence[Label]) -> tuple[Floats, Floats]:
        """Build the rows of the regression, float64[n, D + models + 1], and the known part of each prediction."""
        D, rows, known = self._fit.D, np.zeros((len(votes), self._fit.D + len(self._models) + 1)), np.zeros(len(votes))
        for i, vote in enumerate(votes):
            for sign, side in ((1.0, vote.answer), (-1.0, vote.against)):
                if side is not None and side.h is not None:
                    rows[i, :D] += sign * np.nan_to_num(side.h)
                    rows[i, D + self._models.index(base_arm(side.arm))] += sign
                    known[i] += sign * self.correction(side.arm, side.x)
            rows[i, -1] = vote.kind is FeedbackKind.RATING
        return rows, known

    def _prior(self, e: int, offset: float, population: Gaussian, identity: Identity) -> Gaussian:
        """Build the prior of taste, levels and rating scale under one head."""
        fit, D = self._fit, self._fit.D
        size = D + len(self._models) + 1
        mean, cov = np.zeros(size), np.zeros((size, size))
        mean[:D], cov[:D, :D] = population.mean, population.cov
        for place, model in enumerate(self._models, D):
            cov[place, place] = self._unknown(model)
        cov[-1, -1] = OFFSET_VARIANCE
        role, user = fit.people(identity)
        if user is None:
            return Gaussian(mean, cov)
        cov[range(D, size - 1), range(D, size - 1)] += offset
        if e == 0:
            return Gaussian(mean, cov)
        mean[:D] += user.declared
        if role is not None and role_key(identity):
            of_role = role.deviation(role.weights_in("role", fit.mixture))
            mean[:D], cov[:D, :D] = mean[:D] + of_role.mean[:D], cov[:D, :D] + of_role.cov[:D, :D]
            mean[D : size - 1] += of_role.offsets(self._models)
        for at, heads in fit.tastes.nobody.experts():
            if at.start <= e < at.stop:
                features, k = heads.priors.features, e - at.start
                cov[features, features] += heads.priors.variance[k]
        return Gaussian(mean, cov)

    def _unknown(self, model: str) -> float:
        """Prior variance of a model's correction."""
        arms, average = self._fit.arms, self._fit.widths
        widths = average.start if self._fresh else average.weights
        _, means, variances = arms.along(0 if self._fresh else arms.shared.get(model, 0), self._common)
        return float(widths @ (variances + (means - widths @ means) ** 2))

    def _condition(self, prior: Gaussian) -> tuple[Gaussian, float]:
        """Condition a head's prior on the votes; also return its log marginal likelihood (up to a constant)."""
        if not self._seen:
            return prior, 0.0
        values, vectors = np.linalg.eigh(prior.cov)
        factor = vectors * np.sqrt(np.maximum(values, 0.0))  # prior.cov = factor · factorᵀ, which may be singular
        rows, expected, sites = self._rows @ factor, self._rows @ prior.mean + self._known, Sites(self._seen)
        small, gain, apart, mean, variance = _moments(rows, expected, sites)
        for _ in range(_STEPS):
            if sites.update(mean, variance) < _CLOSE:
                break
            small, gain, apart, mean, variance = _moments(rows, expected, sites)
        nats = sites.normalisation(mean, variance) + 0.5 * float(apart @ (mean - expected))
        nats += float(((sites.shift - 0.5 * sites.precision * expected) * expected).sum())
        nats += 0.5 * float(np.linalg.slogdet(small)[1])
        return Gaussian(prior.mean + factor @ (gain @ apart), factor @ small @ factor.T), nats


def _moments(rows: Floats, expected: Floats, sites: Sites) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Posterior covariance, gain and residual under the sites; and the mean and variance of each observation."""
    small: Floats = np.asarray(
        np.linalg.inv(np.eye(rows.shape[1]) + (rows.T * sites.precision) @ rows), dtype=np.float64
    )
    gain, apart = small @ rows.T, sites.shift - sites.precision * expected
    return small, gain, apart, expected + rows @ (gain @ apart), np.einsum("ij,ji->i", rows, gain)


class Sites:
    """Gaussian approximations exp(−½ precision f² + shift f) of the votes' likelihoods; those of ratings are exact."""

    def __init__(self, seen: Sequence[Observation]) -> None:
        gaussian = np.array([each.signal.link == "gaussian" for each in seen])
        known = [
            each.signal.weight / each.signal.noise if exact else 0.0 for each, exact in zip(seen, gaussian, strict=True)
        ]
        self.precision: Floats = np.array(known)
        self.shift: Floats = self.precision * np.array([each.y for each in seen])
        self._rest = np.flatnonzero(~gaussian)
        signals = [(seen[i].y, seen[i].signal) for i in self._rest.tolist()]
        self._y = np.array([y for y, _ in signals])
        self._level, self._temperature, self._weight = (
            np.array([getattr(signal, name) for _, signal in signals]) for name in ("level", "temperature", "weight")
        )

    def update(self, mean: Floats, variance: Floats) -> float:
        """Match the moments of each tilted distribution, given the posterior of f; returns the largest change."""
        if not len(self._rest):
            return 0.0
        at, (without, spread) = self._rest, self._cavity(mean, variance)
        _, first, second = self._tilted(without, spread)
        precision = np.maximum(1.0 / second - 1.0 / spread, 0.0)
        shift = first / second - without / spread
        moved = np.abs(second - variance[at]) / variance[at] + np.abs(first - mean[at]) / np.sqrt(variance[at])
        self.precision[at] += _DAMPING * (precision - self.precision[at])
        self.shift[at] += _DAMPING * (shift - self.shift[at])
        return float(moved.max())

    def normalisation(self, mean: Floats, variance: Floats) -> float:
        """Log of the product of the approximations' scale factors."""
        if not len(self._rest):
            return 0.0
        without, spread = self._cavity(mean, variance)
        tau, nu = self.precision[self._rest], self.shift[self._rest]
        plain = (nu**2 * spread + 2.0 * nu * without - tau * without**2) / (1.0 + tau * spread)
        return float((self._tilted(without, spread)[0] - 0.5 * plain + 0.5 * np.log1p(tau * spread)).sum())

    def _cavity(self, mean: Floats, variance: Floats) -> tuple[Floats, Floats]:
        """Mean and variance of f without each vote in turn."""
        at = self._rest
        spread = 1.0 / np.maximum(1.0 / variance[at] - self.precision[at], 1e-9)
        return spread * (mean[at] / variance[at] - self.shift[at]), spread

    def _tilted(self, mean: Floats, variance: Floats) -> tuple[Floats, Floats, Floats]:
        """Logarithm of the mass, mean and variance of N(mean, variance) times the likelihood, by quadrature."""
        f = mean[:, None] + np.sqrt(variance)[:, None] * _NODES
        a = (f - self._level[:, None]) / self._temperature[:, None]
        nats = self._weight[:, None] * (self._y[:, None] * a - np.logaddexp(0.0, a))
        top = nats.max(axis=1, keepdims=True)
        p = _WEIGHTS * np.exp(nats - top)
        mass = p.sum(axis=1)
        first = (p * f).sum(axis=1) / mass
        second = (p * (f - first[:, None]) ** 2).sum(axis=1) / mass
        return np.log(mass) + top[:, 0], first, np.maximum(second, 1e-12)


def _observation(vote: Label) -> Observation:
    return observation_of(vote.kind, vote.y, vote.tokens)


def draw_person(
    fit: Fit, identity: Identity, votes: Sequence[Label], x: Floats, arms: Sequence[str], n: int, seed: Sequence[int]
) -> Draws:
    """Draw n joint samples of a person's parameters; arguments as `draw_person_ratings`."""
    posterior = PersonPosterior(fit, identity, votes, arms, x.mean(axis=0))
    fixed = np.array([[posterior.correction(arm, row) for arm in arms] for row in x])
    return Draws(*posterior.draw(n, seed), fixed)


def draw_person_ratings(
    fit: Fit,
    identity: Identity,
    votes: Sequence[Label],
    x: Floats,
    arms: Sequence[str],
    n: int,
    seed: Sequence[int],
    written: Floats | None = None,
) -> RatingDraws:
    """Draw n joint samples of a person's mean ratings of arms over contexts.

    Args:
        fit: what all people share.
        identity: as events hold it, with a user.
        votes: of the person.
        x: contexts, float64[P, d].
        arms: their names.
        n: number of draws.
        seed: of the random numbers.
        written: see `ratings_of`.
    """
    posterior = PersonPosterior(fit, identity, votes, arms, x.mean(axis=0))
    draws = Draws(*posterior.draw(n, seed), np.zeros((len(x), len(arms))))  # the mean correction is in the means
    return ratings_of(fit, draws, posterior.means(identity, arms, x), x, arms, seed, written)
