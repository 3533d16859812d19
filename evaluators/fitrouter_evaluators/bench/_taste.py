"""Rating model: crowd mean of an item plus a user's offset, gain and taste.

    y_ui = crowd_i + b_u + s_u · (crowd_i − mean) + t_uᵀ f(x_i) + ε

crowd_i is the mean rating of item i, shrunk to the prediction from its features (ridge); for an unseen item it is the
prediction. b_u and s_u are a user's offset and gain, and t_u the taste over leading directions of the items' features.
Together they are one Gaussian per user under a prior by EM (`training.hierarchy`), so that each is shrunk by its
uncertainty: for b alone the factor is ω = τ² / (τ² + V), V being its sampling variance.

The prior's scale ψ is learned by block (offset, gain, taste): EM under a loose ψ, then ψ = the mean variance of the
block. A taste is learned from deviations from the *known* crowd mean of the shown items, which exclude effects common
to all users; it is applied to unseen items by features alone.

Users differ in the size of their deviations and in noise, which `_scales` models; this keeps harm rare.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fitrouter.posterior.gaussian import Gaussian
from fitrouter.types import Floats
from fitrouter_evaluators.bench._censored import clipped_mean, heaped, latent
from fitrouter_evaluators.bench._scales import Scales
from fitrouter_evaluators.training.hierarchy import Observations, Prior, Shrinkage, e_step, evidence, m_step

Ints = NDArray[np.int64]

_NU = 40.0
"""Pseudo-users of the prior's scale."""
_RIDGE_DECLARED = 40.0
"""Precision of the weights of declared values, in units of a taste's."""
_LIKELIHOOD_RATIO = float(np.log(2.0)) + 3.0
"""Log evidence by which a prior with user differences must win, for its three variances; else users count as alike."""
_ROUNDS = 4
_STEPS = 6
_ALPHAS = np.logspace(-2, 5, 22)


class Labels(NamedTuple):
    """Ratings of items by users as parallel arrays: y float64[n] in [0, 1], item and user int64[n]."""

    user: Ints
    item: Ints
    y: Floats


class PersonalTaste(NamedTuple):
    """Posterior of a user: deviation of their taste from the crowd's, and their noise variance."""

    taste: Gaussian
    noise: float


class ItemPredictions(NamedTuple):
    """Predictions of items, float64[n] each: ratings, and sd of the user's deviation."""

    mean: Floats
    sd: Floats


def directions(features: Floats, rows: Ints, count: int) -> Floats:
    """Leading principal components of `rows`, float64[items, ≤ count]; their variances sum to at most 1."""
    from sklearn.decomposition import PCA

    count = min(count, len(rows) - 1, features.shape[1])
    if count < 1 or not features[rows].var(axis=0).sum() > 0:
        return np.zeros((len(features), 0))
    found = PCA(count, random_state=0).fit(features[rows])
    out: Floats = found.transform(features) / np.sqrt(features[rows].var(axis=0).sum())
    return out


class RatingHead:
    """Rating model fitted to training labels.

    Args:
        features: float64[items, F], of about unit variance.
        train: the labels of seen users.
        tastes: number of taste directions; 0 for the rating scale only.
        gain: whether users have a gain besides the offset.
        declared: float64[users, P], declared values of about unit variance; None for none.
    """

    def __init__(
        self,
        features: Floats,
        train: Labels,
        *,
        tastes: int = 50,
        gain: bool = True,
        declared: Floats | None = None,
    ) -> None:
        self._gain, self._features, self._train = gain, features, train
        users, rows = np.unique(train.user, return_inverse=True)
        self._rows, self._known = _rows_by_user(rows), None if declared is None else declared[users]
        self.items = np.unique(train.item)
        self._F = directions(features, self.items, tastes)
        self.censored = heaped(train.y)
        self.base = self._crowd(train.y)
        y = train.y.copy()
        prior: Prior | None = None
        for turn in range(_ROUNDS if self.censored else 2):
            self.crowd = self._crowd(y) if turn else self.base
            self.X = self._design()
            prior = self._fit(y, prior)
            if self.censored:
                y = self._opinions(prior)
        assert prior is not None
        self.prior = prior
        known, away, people = self._known, y - self.crowd[train.item], self._people(y)
        alike = prior._replace(cov=1e-12 * np.eye(len(prior.mean)), noise=float(np.mean(away**2)))
        self.differ = evidence(prior, people, known) - evidence(alike, people, known) >= _LIKELIHOOD_RATIO
        self.scales = Scales.fit(self.prior, people, known)

    def posterior(self, item: Ints, y: Floats, declared: Floats | None = None) -> PersonalTaste:
        """Posterior of a user with these ratings."""
        if not len(item):
            return PersonalTaste(self.prior.at(declared), self.prior.noise)
        X, crowd, opinion = self.X[item], self.crowd[item], y
        found = self.scales.posterior(self.prior, Observations(X, opinion - crowd), declared)
        for _ in range(4 if self.censored else 0):
            opinion = latent(y, crowd + X @ found[0].mean, float(np.sqrt(found[1])))
            found = self.scales.posterior(self.prior, Observations(X, opinion - crowd), declared)
        return PersonalTaste(*found)

    def predict(self, item: Ints, person: PersonalTaste | None = None) -> ItemPredictions:
        """Predict a user's ratings of items; the crowd's without a user, or if users do not differ.

        The user's deviation from the population, on the censored scale, is added to the crowd mean.
        """
        if person is None or not self.differ:
            return ItemPredictions(np.clip(self.base[item], 0.0, 1.0), np.zeros(len(item)))
        X, crowd, taste = self.X[item], self.crowd[item], person.taste
        a, a0 = crowd + X @ taste.mean, crowd + X @ self.prior.mean
        v = np.maximum(np.einsum("ni,ij,nj->n", X, taste.cov, X), 0.0)
        if self.censored:
            v0 = np.maximum(np.einsum("ni,ij,nj->n", X, self.prior.cov, X), 0.0)
            away = clipped_mean(a, v + person.noise) - clipped_mean(a0, v0 + self.prior.noise)
        else:
            away = a - a0
        return ItemPredictions(np.clip(self.base[item] + away, 0.0, 1.0), np.sqrt(v))

    # --- fitting ---

    def _crowd(self, y: Floats) -> Floats:
        """Mean rating of each item, shrunk towards the prediction from its features, float64[items]."""
        from sklearn.linear_model import RidgeCV

        count = np.bincount(self._train.item, minlength=len(self._features)).astype(np.float64)
        y = y - _offsets(self._train.user, self._train.item, y)
        mean = np.bincount(self._train.item, y, len(self._features)) / np.maximum(count, 1.0)
        known = self.items
        if self._features.shape[1] and len(known) > 3:
            ridge = RidgeCV(_ALPHAS).fit(self._features[known], mean[known], sample_weight=count[known])
            predicted, left = ridge.predict(self._features), -float(np.asarray(ridge.best_score_))
        else:
            predicted = np.full(len(self._features), float(np.average(mean[known], weights=count[known])))
            left = float(np.average((mean - predicted)[known] ** 2, weights=count[known]))
        within = float(np.var(y - mean[self._train.item])) * len(y) / max(len(y) - len(known), 1)
        special = max(left - within * len(known) / count.sum(), 1e-6)
        trust = count * special / (count * special + within + 1e-12)
        out: Floats = predicted + trust * (mean - predicted)
        return out

    def _design(self) -> Floats:
        spread = float(self.crowd[self.items].std()) or 1.0
        gain = ((self.crowd - self.crowd[self.items].mean()) / spread)[:, None]
        parts = [np.ones((len(self._features), 1)), *([gain] if self._gain else []), self._F]
        return np.hstack(parts)

    def _people(self, y: Floats) -> list[Observations]:
        """Each user's ratings as deviations from the crowd's means."""
        item, away = self._train.item, y - self.crowd[self._train.item]
        return [Observations(self.X[item[mine]], away[mine]) for mine in self._rows]

    def _fit(self, y: Floats, prior: Prior | None) -> Prior:
        people, known, D = self._people(y), self._known, self.X.shape[1]
        blocks = [np.arange(1), *([np.arange(1, 2)] if self._gain else []), np.arange(1 + self._gain, D)]
        variance = float(np.var(y - self.crowd[self._train.item]))
        if prior is None:
            gamma = None if known is None else np.zeros((D, known.shape[1]))
            prior = Prior(np.zeros(D), 0.2 * variance * np.eye(D), 0.6 * variance, "gaussian", gamma)
        for _ in range(2):
            psi = np.empty(D)
            for block in blocks:
                psi[block] = np.diag(prior.cov)[block].mean() if len(block) else 0.0
            ridge = _RIDGE_DECLARED / max(float(psi.mean()), 1e-6)
            shrinkage = Shrinkage(_NU, np.maximum(psi, 1e-6), 1e3, ridge)
            for _ in range(_STEPS // 2):
                prior = m_step(prior, e_step(prior, people, known), shrinkage)
        return prior

    def _opinions(self, prior: Prior) -> Floats:
        """Training ratings with those at the ends of the scale replaced by expected latent opinions."""
        y, out, sd = self._train.y, self._train.y.copy(), float(np.sqrt(prior.noise))
        for n, mine in enumerate(self._rows):
            item = self._train.item[mine]
            X, crowd, opinion = self.X[item], self.crowd[item], y[mine]
            for _ in range(2):
                found = prior.posterior(
                    Observations(X, opinion - crowd), None if self._known is None else self._known[n]
                )
                opinion = latent(y[mine], crowd + X @ found.mean, sd)
            out[mine] = opinion
        return out


def _rows_by_user(rows: NDArray[np.integer]) -> list[Ints]:
    """Row numbers of each user, as one array per user."""
    order = np.argsort(rows, kind="stable")
    return np.split(order, np.cumsum(np.bincount(rows))[:-1])


def _offsets(user: Ints, item: Ints, y: Floats) -> Floats:
    """Offset of each label's user from the means of their items, shrunk, float64[n]; 0 on average."""
    _, who, count = np.unique(user, return_inverse=True, return_counts=True)
    seen = np.bincount(item).astype(np.float64)
    mean = np.bincount(item, y) / np.maximum(seen, 1.0)
    away = np.zeros(len(count))
    for _ in range(3):
        away = np.bincount(who, y - mean[item]) / (count + 2.0)
        away -= np.average(away, weights=count)
        mean = np.bincount(item, y - away[who]) / np.maximum(seen, 1.0)
    out: Floats = away[who]
    return out
