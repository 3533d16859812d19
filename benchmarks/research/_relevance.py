"""Learners of the context benchmark: the router's reward model, and tastes with given relevance.

    score = hᵀw_0 + hᵀ(a_c ⊙ δ_u)

c is the task. `FoldLearner` is `posterior.model` itself, with its mixture of heads;
`TasteLearner` has the same tastes and priors with an a that is fixed: 0 for everybody alike, 1 for a taste everywhere.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fitrouter.posterior.gaussian import Gaussian, gaussian_update
from fitrouter.posterior.labels import Answered, Label
from fitrouter.posterior.likelihoods import SIGNALS
from fitrouter.posterior.model import Fit
from fitrouter.posterior.tastes import TasteParams, Tastes
from fitrouter.types import FeedbackKind, Floats, Identity

_NOISE = SIGNALS[FeedbackKind.THUMB].noise


class Learner(Protocol):
    """Protocol of the context benchmark: learns from labels and scores answers."""

    def learn(self, user: int, h: Floats, task: int, y: float) -> None:
        """Learn a label y in [0, 1] of a user on an answer, float64[D], to a prompt of a task."""
        ...

    def scores(self, h: Floats, task: NDArray[np.int64], users: int) -> Floats:
        """Score answers float64[N, K, D] to prompts of tasks int64[N] as P(satisfied), float64[users, N, K]."""
        ...


class FoldLearner:
    """Learner by the router's fit model, from thumbs on the answers of one model."""

    def __init__(self, D: int) -> None:
        self.fit = Fit(2, D)
        self._x = np.array([1.0, 0.0])

    def learn(self, user: int, h: Floats, task: int, y: float) -> None:
        """See `Learner`."""
        self.fit.learn(Label(_who(user, task), Answered("model", self._x, h), y, FeedbackKind.THUMB))

    def scores(self, h: Floats, task: NDArray[np.int64], users: int) -> Floats:
        """See `Learner`."""
        out = np.empty((users, *h.shape[:2]))
        for c in np.unique(task):
            rows = task == c
            w = np.array([self.fit.taste(_who(user, int(c))) for user in range(users)])
            out[:, rows] = np.einsum("nkd,ud->unk", h[rows], w)
        return out


def _who(user: int, task: int) -> Identity:
    return Identity(user=str(user), task=str(task))


class TasteLearner:
    """Learner of Gaussian tastes of population and users, the latter scaled by a given relevance.

    Args:
        users: how many.
        relevance: float64[C, D] in [0, 1].
    """

    def __init__(self, users: int, relevance: Floats) -> None:
        plain = Tastes(relevance.shape[1], TasteParams(user=0.08, user_intercept=0.01))  # as these people vary
        self.relevance = relevance
        self.population = plain.population
        self.users: list[Gaussian] = [Gaussian.prior(np.zeros(plain.D), plain.user_variance) for _ in range(users)]

    def learn(self, user: int, h: Floats, task: int, y: float) -> None:
        """See `Learner`."""
        taste = self.users[user]
        relevant = self.relevance[task] * h
        common, own = self.population.gain(h), taste.gain(relevant)
        impersonal = float(np.einsum("i,i->", h, self.population.mean))
        variance = float(np.einsum("i,i->", h, common)) + float(np.einsum("i,i->", relevant, own))
        predicted = impersonal + float(np.einsum("i,i->", relevant, taste.mean))
        moved = gaussian_update(predicted, variance, y, noise=_NOISE)
        self.population.learn(common, moved)
        taste.learn(own, moved)

    def scores(self, h: Floats, task: NDArray[np.int64], users: int) -> Floats:
        """See `Learner`."""
        a = self.relevance[task]
        means = np.array([self.users[u].mean for u in range(users)])
        personal = np.stack([np.einsum("nkd,nd->nk", h, a * mean) for mean in means])
        out: Floats = np.einsum("nkd,d->nk", h, self.population.mean) + personal
        return out
