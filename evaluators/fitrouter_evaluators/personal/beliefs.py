"""Weighted posterior draws of one person: which model and style fit best, and the information in a question.

The beliefs are draws from the joint posterior before the quiz, weighted by the likelihood of the person's answers
(importance sampling). The product's own update keeps blocks apart (assumed-density filtering), which forgets how the
taste of all people, a person's deviation and a model's level explain one another; which model is best depends on that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fitrouter.posterior.draws import Draws
from fitrouter.posterior.likelihoods import SIGNALS, TIE
from fitrouter.types import FeedbackKind, Floats
from fitrouter_evaluators.personal.scores import within_scale

PAIR = SIGNALS[FeedbackKind.PAIR]


class Questions(NamedTuple):
    """Pairs of answers to the same prompt, as index arrays int[Q]."""

    prompt: NDArray[np.intp]
    first: NDArray[np.intp]
    second: NDArray[np.intp]
    """Models of the two answers."""


class ModelFit(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted fit of a model for a person."""

    model: str
    best: float
    """Probability that no model fits better."""
    fit: float
    """Expected rating, from 0 to 1."""
    low: float
    high: float
    """80% interval of the rating minus the mean of the models' ratings."""


class Liking(msgspec.Struct, frozen=True, kw_only=True):
    """A feature of answers that a person likes or dislikes."""

    feature: str
    likes: bool
    sure: float


class Beliefs:
    """Weighted posterior draws of one person's ratings.

    Args:
        draws: of the parameters.
        h: features of the pool's answers, float64[P, K, D], NaN where missing.
        typical: prompts that models are ranked on, bool[P]; all if None.
    """

    def __init__(self, draws: Draws, h: Floats, typical: NDArray[np.bool_] | None = None) -> None:
        self.draws, self.h = draws, np.where(np.isfinite(h), h, 0.0)
        at = slice(None) if typical is None else typical
        self.ratings: Floats = draws.taste @ self.h[at].mean(axis=0).T + draws.fixed[at].mean(axis=0) + draws.level
        """Mean rating of each model's answers, float64[S, K]."""
        self.winner = self.ratings.argmax(axis=1)
        """The best model, int[S]."""
        self.weights: Floats = np.full(len(self.ratings), 1.0 / len(self.ratings))
        """Posterior probabilities of the draws, float64[S]."""

    @property
    def best(self) -> Floats:
        """Probability that a model is the best, float64[K]."""
        found = np.bincount(self.winner, weights=self.weights, minlength=self.ratings.shape[1])
        return np.minimum(found, 1.0)

    @property
    def favourite(self) -> int:
        """The model with the highest expected rating."""
        return int((self.weights @ self.ratings).argmax())

    @property
    def regret(self) -> float:
        """Expected loss in rating from choosing the favourite instead of the model that is truly best."""
        return float(self.weights @ self.ratings.max(axis=1) - (self.weights @ self.ratings).max())

    def preferred(self, questions: Questions) -> Floats:
        """Probability that the first answer is preferred, float64[S, Q]."""
        prompt, first, second = questions
        draws = self.draws
        gap = draws.taste @ (self.h[prompt, first] - self.h[prompt, second]).T
        gap += draws.fixed[prompt, first] - draws.fixed[prompt, second]
        gap += draws.level[:, first] - draws.level[:, second]
        p: Floats = 1.0 / (1.0 + np.exp(-np.clip(gap / PAIR.temperature, -30.0, 30.0)))
        return p

    def learn(self, questions: Questions, first: Sequence[float]) -> None:
        """Reweigh the draws by answers; `first`: 1 where the first was preferred, 0 the second, 0.5 neither."""
        if not len(first):
            return
        p, y = self.preferred(questions), np.array(first)
        nats = y * np.log(p) + (1.0 - y) * np.log1p(-p)
        nats = nats @ np.where(y == 0.5, TIE.weight, PAIR.weight)
        weights = self.weights * np.exp(nats - nats.max())
        self.weights = weights / weights.sum()

    def information(self, questions: Questions) -> Floats:
        """Mutual information of a question's answer and the best model, in nats, float64[Q]; from 0 to ln 2."""
        p = self.preferred(questions)
        found = _entropy(self.weights @ p)
        for k, share in enumerate(self.best.tolist()):
            if share > 0.0:
                rows = self.winner == k
                found = found - share * _entropy(self.weights[rows] @ p[rows] / share)
        return np.maximum(found, 0.0)

    def gain(self, questions: Questions) -> Floats:
        """Expected reduction of the regret by an answer (knowledge gradient), float64[Q]; never negative."""
        p, weighted = self.preferred(questions), self.weights[:, None] * self.ratings
        expected = (p.T @ weighted).max(axis=1) + ((1.0 - p).T @ weighted).max(axis=1)
        found: Floats = np.maximum(expected - float(weighted.sum(axis=0).max()), 0.0)
        return found

    def models(self, names: Sequence[str]) -> list[ModelFit]:
        """Fit of each model, the highest expected rating first."""
        mean = self.weights @ self.ratings
        apart, shown = self.ratings - self.ratings.mean(axis=1, keepdims=True), np.clip(mean, 0.0, 1.0).mean()
        found = []
        for k in np.argsort(-mean, kind="stable").tolist():
            ends = (mean.mean() + end for end in _quantiles(apart[:, k], self.weights))
            fit, low, high = map(float, within_scale(float(mean[k]), *ends))
            low, high = low - float(shown), high - float(shown)
            found.append(ModelFit(model=str(names[k]), best=float(self.best[k]), fit=fit, low=low, high=high))
        return found

    def likings(self, names: Sequence[str], told: Sequence[str], least: float = 0.8, most: int = 3) -> list[Liking]:
        """Features whose taste has a sure enough sign, ordered by how much they move ratings in this pool.

        Args:
            names: of the features.
            told: names that may be told.
            least: smallest probability of a sign.
            most: how many.
        """
        mean, spread = self.weights @ self.draws.taste, self.h.reshape(-1, self.h.shape[-1]).std(axis=0)
        found = []
        for j in np.argsort(-np.abs(mean[: len(spread)]) * spread, kind="stable").tolist():
            likes = bool(mean[j] > 0.0)
            sure = float(self.weights @ ((self.draws.taste[:, j] > 0.0) == likes))
            if sure >= least and names[j] in told and spread[j] > 0.0:
                found.append(Liking(feature=str(names[j]), likes=likes, sure=sure))
        return found[:most]


def _entropy(p: Floats) -> Floats:
    """Entropy of Bernoulli variables with probabilities p, in nats."""
    q = np.clip(p, 1e-12, 1.0 - 1e-12)
    found: Floats = -q * np.log(q) - (1.0 - q) * np.log1p(-q)
    return found


def _quantiles(values: Floats, weights: Floats) -> tuple[float, float]:
    """The weighted 10% and 90% quantiles."""
    order = np.argsort(values)
    at = np.searchsorted(np.cumsum(weights[order]), (0.1, 0.9)).clip(max=len(values) - 1)
    low, high = values[order][at].tolist()
    return low, high
