"""Learners of tastes with a relevance, the smallest that the context benchmark can compare.

    score = hᵀw_0 + hᵀ(a_c ⊙ δ_u),   a_cd = clip(b_c + f_d + e_cd, 0, 1)

c is the task, d the feature; w_0, δ_u, b, f and e are Gaussian, and one label moves all of them by the same kernel. b_c
is a level that tasks share plus the task's own, f_d a feature's own in all tasks, e_cd the rest. The regressor of a_cd
is h_d m_ud, the user's taste before the label; it is a posterior mean, so its coefficient is 1 where the taste is
relevant (Berkson's errors: no attenuation). Correlations between b, f and e that labels make are left out.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fitrouter.taste import Gaussian, innovate
from fitrouter.types import Floats

__all__ = ["Fixed", "Learner", "Learnt", "Relevance", "TasteLearner"]

LEVEL, POPULATION, USER, INTERCEPT, NOISE = 0.6, 0.024, 0.08, 0.01, 0.25
"""Prior mean of a label; prior variances of hᵀw_0, hᵀδ and intercepts, and a thumb's: as in the product's fold."""


class Learner(Protocol):
    """The seam of the context benchmark: anything that learns from labels and scores answers."""

    def learn(self, user: int, h: Floats, task: int, y: float) -> None:
        """One label y in [0, 1] of a user on an answer, float64[D], to a prompt of a task."""
        ...

    def scores(self, h: Floats, task: NDArray[np.int64], users: int) -> Floats:
        """float64[users, N, K]: scores of answers float64[N, K, D] to prompts of tasks int64[N], as P(satisfied)."""
        ...


class Relevance(Protocol):
    """How far each feature of a taste matters in a task."""

    def at(self, task: int) -> Floats:
        """float64[D] in [0, 1]."""
        ...

    def see(self, task: int, z: Floats, residual: float, variance: float) -> None:
        """One label, before the tastes learn it.

        Args:
            task: of the prompt.
            z: float64[D], h ⊙ m_u: what each feature of the taste would add where it is relevant.
            residual: the label minus everything impersonal.
            variance: of the label given the relevance.
        """
        ...


class Fixed:
    """A relevance that is given, float64[C, D]; all 1 for a taste everywhere, all 0 for none."""

    def __init__(self, relevance: Floats) -> None:
        self._relevance = relevance

    def at(self, task: int) -> Floats:
        """float64[D]."""
        row: Floats = self._relevance[task]
        return row

    def see(self, task: int, z: Floats, residual: float, variance: float) -> None:
        """Nothing is learnt."""


class Learnt:
    """The relevance a of the module, learnt from everybody's labels.

    Args:
        C: tasks.
        D: features.
        level: prior mean of b.
        shared: prior variance of what the tasks' b have in common.
        own: of a task's own b.
        feature: of f.
        rest: of e.
    """

    def __init__(
        self,
        C: int,
        D: int,
        level: float = 0.5,
        shared: float = 0.25,
        own: float = 0.1,
        feature: float = 0.3,
        rest: float = 0.3,
    ) -> None:
        self.b = Gaussian(np.full(C, level), shared * np.ones((C, C)) + own * np.eye(C))
        self.f, self.f_variance = np.zeros(D), np.full(D, feature)
        self.e, self.e_variance = np.zeros((C, D)), np.full((C, D), rest)

    def at(self, task: int) -> Floats:
        """float64[D]: only what is read is cut to [0, 1], not what is known."""
        out: Floats = np.clip(self.b.mean[task] + self.f + self.e[task], 0.0, 1.0)
        return out

    def see(self, task: int, z: Floats, residual: float, variance: float) -> None:
        """All blocks learn that residual ≈ Σ_d a_cd z_d."""
        total = float(np.einsum("i->", z))
        b_gain = self.b.cov[:, task] * total
        f_gain, e_gain = self.f_variance * z, self.e_variance[task] * z
        spread = float(b_gain[task] * total + np.einsum("i,i->", f_gain + e_gain, z))
        predicted = float(self.b.mean[task] * total + np.einsum("i,i->", self.f + self.e[task], z))
        moved = innovate(predicted, spread, residual, noise=variance)
        self.b.learn(b_gain, moved)
        self.f = self.f + f_gain * moved.step
        self.f_variance = self.f_variance - f_gain * f_gain * moved.shrink
        self.e[task] += e_gain * moved.step
        self.e_variance[task] -= e_gain * e_gain * moved.shrink


class TasteLearner:
    """Population and users, each with a Gaussian taste; users' count as far as the relevance says."""

    def __init__(self, users: int, D: int, relevance: Relevance) -> None:
        level = np.zeros(D)
        level[0] = LEVEL
        self.relevance = relevance
        self.population = Gaussian.prior(level, _spread(D, POPULATION))
        self.users = [Gaussian.prior(np.zeros(D), _spread(D, USER)) for _ in range(users)]

    def learn(self, user: int, h: Floats, task: int, y: float) -> None:
        """See `Learner`."""
        taste = self.users[user]
        relevant = self.relevance.at(task) * h
        common, own = self.population.gain(h), taste.gain(relevant)
        impersonal = float(np.einsum("i,i->", h, self.population.mean))
        common_variance = float(np.einsum("i,i->", h, common))
        variance = common_variance + float(np.einsum("i,i->", relevant, own))
        predicted = impersonal + float(np.einsum("i,i->", relevant, taste.mean))
        self.relevance.see(task, h * taste.mean, y - impersonal, NOISE + variance)
        moved = innovate(predicted, variance, y, noise=NOISE)
        self.population.learn(common, moved)
        taste.learn(own, moved)

    def scores(self, h: Floats, task: NDArray[np.int64], users: int) -> Floats:
        """See `Learner`."""
        a = np.array([self.relevance.at(c) for c in range(int(task.max()) + 1)])[task]
        means = np.array([self.users[u].mean for u in range(users)])
        personal = np.stack([np.einsum("nkd,nd->nk", h, a * mean) for mean in means])
        out: Floats = np.einsum("nkd,d->nk", h, self.population.mean) + personal
        return out


def _spread(D: int, variance: float) -> Floats:
    out = np.full(D, variance / max(D - 1, 1))
    out[0] = INTERCEPT
    return out
