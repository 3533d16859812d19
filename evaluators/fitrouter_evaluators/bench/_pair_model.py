"""Pairwise reward heads: a shared Bradley–Terry score, and users' deviations from it.

The shared score is Bradley–Terry with a ridge per block: models' names if allowed, and the design of the global scalar
(`scoring.scalar`). Users' heads have few features: position, that score, models' names and named style dimensions,
under a population prior by EM. The prior is learned from out-of-fold shared scores, so that it learns how far to trust
them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fitrouter.context.encoders import Encoder
from fitrouter.posterior.gaussian import Gaussian
from fitrouter.types import Floats
from fitrouter_evaluators.datasets import Pair
from fitrouter_evaluators.scoring import Answer
from fitrouter_evaluators.scoring.features import readable
from fitrouter_evaluators.scoring.scalar import Constants, View, design, global_scalar, look
from fitrouter_evaluators.scoring.text.reading import Reading
from fitrouter_evaluators.scoring.text.style import STYLE, measure, standardise
from fitrouter_evaluators.training.hierarchy import Observations, Prior, Shrinkage, evidence, fit_prior, sigmoid

Ints = NDArray[np.int64]

RIDGE = {
    "model": 3.0,
    "model_asked": 50.0,
    "sound": 60.0,
    "style": 500.0,
    "asked": 500.0,
    "relevance": 100.0,
    "vector": 3000.0,
    "g": 10.0,
}
"""Ridge of each block of the shared score; chosen on seeds that are not reported."""
NAMES = ("model", "model_asked")
"""Blocks with the names of models."""
TASTES = ("length", "structure", "emphasis", "hedging", "warmth", "formality", "code", "evidence")
"""Style dimensions of users' heads."""

EVIDENT = 3.0
"""Bayes factor from which a user has a head of their own (Jeffreys 1961)."""

_FOLDS = 5
_LEAST_SCALE = 0.02
_POSITION, _SCORE = 0, 1


class Pairs(NamedTuple):
    """Votes on pairs of answers as arrays; each block holds differences of features a − b, float64[n, ·]."""

    y: Floats
    user: Ints
    item: Ints
    models: tuple[str, ...]
    blocks: dict[str, Floats]
    """`model`: +1 for a's model, −1 for b's; the others as in `scoring.scalar.design`."""
    tastes: Floats
    """float64[n, len(TASTES)]"""
    key: Ints
    """Of the unordered pair of texts; the same for every judge of it."""
    turned: NDArray[np.bool_]
    """Whether a is the second of its unordered pair."""


def observe(rows: Sequence[Pair], items: Sequence[object], encoder: Encoder, *, shipped: bool) -> Pairs:
    """Measure the answers of all pairs; `shipped` adds the shipped global scalar, which was trained on MT-bench."""
    at: dict[tuple[str, str], int] = {}
    for row in rows:
        for text in (row.a, row.b):
            at.setdefault((row.prompt, text.text), len(at))
    answers = [Answer(prompt=prompt, text=text) for prompt, text in at]
    view = view_of(answers, encoder)
    each = design(scales(view, encoder.id), view)
    if shipped:
        readings = [Reading(answer.text) for answer in answers]
        each["g"] = global_scalar(encoder).of(answers, readings, view.vectors, view.style)[:, None]
    a = np.array([at[row.prompt, row.a.text] for row in rows])
    b = np.array([at[row.prompt, row.b.text] for row in rows])
    models = tuple(sorted({name for row in rows for name in (row.a.model, row.b.model) if name}))
    model = np.zeros((len(rows), len(models)))
    for i, row in enumerate(rows):
        for text, sign in ((row.a, 1.0), (row.b, -1.0)):
            if text.model:
                model[i, models.index(text.model)] += sign
    blocks = {name: block[a] - block[b] for name, block in each.items()}
    wants = np.array([[ask.code, ask.maths, ask.prose] for ask in view.asks]).reshape(len(at), 3)[a]
    blocks["model"], blocks["model_asked"] = model, (wants[:, :, None] * model[:, None, :]).reshape(len(rows), -1)
    named = [[dimension.name for dimension in STYLE].index(name) for name in TASTES]
    return Pairs(
        y=np.array([row.label for row in rows]),
        user=np.unique([row.user for row in rows], return_inverse=True)[1],
        item=np.unique([repr(item) for item in items], return_inverse=True)[1],
        models=models,
        blocks=blocks,
        tastes=view.style[a][:, named] - view.style[b][:, named],
        key=np.unique(np.sort(np.column_stack([a, b]), axis=1), axis=0, return_inverse=True)[1].ravel(),
        turned=a > b,
    )


def view_of(items: Sequence[Answer], encoder: Encoder) -> View:
    """Measure answers for the global scalar's design, encoding each text once."""
    readings = [Reading(item.text) for item in items]
    style = standardise(np.array([measure(reading) for reading in readings]))
    texts = list(dict.fromkeys(readable(text) for item in items for text in (item.prompt, item.text)))
    at = dict(zip(texts, encoder.encode(texts), strict=True))
    prompts, vectors = (
        np.array([at[readable(text)] for text in texts])
        for texts in zip(*((i.prompt, i.text) for i in items), strict=True)
    )
    return look(items, readings, prompts, vectors, style, encoder)


def scales(view: View, encoder: str) -> Constants:
    """Estimate centres and scales of the answers' measures, without weights; the scale is 1 for a missing measure."""
    seen = np.hstack([view.sound, view.near])
    there = np.isfinite(seen)
    count = np.maximum(there.sum(axis=0), 1)
    centre = np.where(there, seen, 0.0).sum(axis=0) / count
    spread = np.sqrt((np.where(there, seen - centre, 0.0) ** 2).sum(axis=0) / count)
    spread = np.where(there.any(axis=0), np.maximum(spread, _LEAST_SCALE), 1.0)
    return Constants(
        encoder=encoder, centre=rounded(centre), scale=rounded(spread), mean=rounded(view.vectors.mean(axis=0))
    )


def rounded(values: Floats) -> tuple[float, ...]:
    return tuple(float(f"{value:.5g}") for value in values)


def logistic(X: Floats, y: Floats, weight: Floats, ridge: Floats) -> Floats:
    """Fit a ridge-penalised logistic regression by Newton steps and return its weights, float64[D]; y may be soft."""
    w = np.zeros(X.shape[1])
    for _ in range(30):
        p = sigmoid(X @ w)
        gradient = X.T @ (weight * (y - p)) - ridge * w
        hessian = (X * (weight * np.maximum(p * (1.0 - p), 1e-6))[:, None]).T @ X + np.diag(ridge)
        step = np.linalg.solve(hessian, gradient)
        w = w + step
        if np.abs(step).max() < 1e-7:
            break
    return w


class PairHeads(NamedTuple):
    """Trained heads: shared scores of all pairs, and priors over a user's head."""

    X: Floats
    """Position, shared score, models, tastes, float64[n, D]."""
    named: Floats
    """Shared score from models' names and the prompt, without answers, float64[n]; 0 without names."""
    prior: Prior
    own: Prior
    """Prior without a population: N(0, I) in all features but the shared score."""
    bias: NDArray[np.bool_]
    """Position and models, bool[D]."""
    tie: float
    """Davidson's ν."""

    def posterior(self, row: str, shown: Ints, y: Floats) -> Gaussian:
        """Posterior of a user's head under a row's rules, after the labels `shown`."""
        labels = Observations(self.X[shown], y[shown])
        if row == "user-only":
            return self.own.posterior(labels)
        if row == "global":
            return Gaussian(self.prior.mean, np.zeros_like(self.prior.cov))
        prior = self.prior
        if row == "bias-only":
            free = prior.cov * np.outer(self.bias, self.bias)
            prior = prior._replace(cov=free + 1e-9 * np.eye(len(free)))
        return prior.posterior(labels) if _evident(prior, labels) else prior.at()


def _evident(prior: Prior, labels: Observations) -> bool:
    """Whether the Bayes factor of a user's own head against the shared one exceeds `EVIDENT`."""
    a = labels.X @ prior.mean
    shared = float((labels.y * a - np.logaddexp(0.0, a)).sum())
    return evidence(prior, [labels]) - shared > math.log(EVIDENT)


def probability(head: Gaussian, X: Floats) -> Floats:
    """Probability that a is better, at the head's mean, float64[n].

    The population mean is fitted to predict alone; averaging over the spread of users would shrink every prediction
    towards ½.
    """
    return sigmoid(X @ head.mean)


def fit_shared(pairs: Pairs, train: Ints, ridge: dict[str, float], *, ties: float = 0.3) -> Floats:
    """Fit the shared score to the rows `train`; return it for all pairs, float64[n]. A tie is ½ with weight `ties`."""
    blocks = pairs.blocks
    used = [name for name in ridge if name in blocks and blocks[name].shape[1]]
    X = np.hstack([blocks[name] for name in used])
    penalty = np.concatenate([np.full(blocks[name].shape[1], ridge[name]) for name in used])
    y = pairs.y[train]
    score: Floats = X @ logistic(X[train], y, np.where(y == 0.5, ties, 1.0), penalty)
    return score


def fit_heads(pairs: Pairs, train: Ints, *, identity: bool, seed: int = 0) -> PairHeads:
    """Fit all heads to the rows `train`; `identity` allows models' names."""
    ridge = {name: value for name, value in RIDGE.items() if identity or name not in NAMES}
    score = fit_shared(pairs, train, ridge)
    fold = np.random.default_rng([seed, 7]).integers(_FOLDS, size=int(pairs.item.max()) + 1)[pairs.item[train]]
    honest = np.zeros(len(pairs.y))
    for k in range(_FOLDS):
        if (fold == k).any():
            honest[train[fold == k]] = fit_shared(pairs, train[fold != k], ridge)[train[fold == k]]
    model = pairs.blocks["model"][:, : len(pairs.models) if identity else 0]
    X = np.column_stack([np.ones(len(score)), score, model, pairs.tastes])
    known = X.copy()
    known[:, _SCORE] = honest
    clear = train[pairs.y[train] != 0.5]
    users = [
        Observations(known[mine], pairs.y[mine])
        for user in np.unique(pairs.user[clear])
        if len(mine := clear[pairs.user[clear] == user])
    ]
    D, bias = X.shape[1], np.arange(X.shape[1]) >= 2
    bias[2 + model.shape[1] :] = False
    bias[_POSITION] = True
    prior = cautious(users, shrinkages(D, model.shape[1]))
    own = Prior(np.zeros(D), np.diag(np.where(np.arange(D) == _SCORE, 1e-9, 0.5)), link="logistic")
    named = fit_shared(pairs, train, {name: RIDGE[name] for name in NAMES}) if identity else np.zeros(len(score))
    return PairHeads(X, named, prior, own, bias, _davidson(pairs, train, honest))


def shrinkages(D: int, models: int) -> tuple[Shrinkage, ...]:
    """Candidate hyperpriors, cautious first: variances of position, models and tastes between users."""
    ridge = np.full(D, 50.0)
    ridge[_SCORE] = 1.0
    out = []
    for taste in (1e-4, 0.01, 0.05, 0.2):
        psi = np.full(D, taste)
        psi[_POSITION], psi[_SCORE] = 0.1, 3e-4
        psi[2 : 2 + models] = min(taste, 0.05)
        out.append(Shrinkage(nu=100.0 if taste < 0.01 else 30.0, psi=psi, ridge=ridge))
    return tuple(out)


def cautious(users: Sequence[Observations], candidates: Sequence[Shrinkage], folds: int = 3) -> Prior:
    """Fit a prior with the first candidate hyperprior within a standard error of the best on left-out users.

    The standard error is of the difference, over users (the one-standard-error rule of Breiman et al. 1984). Votes on
    one question are correlated for other reasons than taste, which evidence would overrate.
    """
    worth = np.zeros((len(candidates), len(users)))
    for i, shrinkage in enumerate(candidates):
        for fold in range(folds):
            prior = fit_prior(
                [user for j, user in enumerate(users) if j % folds != fold],
                link="logistic",
                shrinkage=shrinkage,
                iterations=6,
            )
            for j in range(fold, len(users), folds):
                worth[i, j] = evidence(prior, [users[j]])
    behind = worth[worth.sum(axis=1).argmax()] - worth
    error = behind.std(axis=1, ddof=1) * np.sqrt(len(users)) if len(users) > 1 else np.zeros(len(worth))
    chosen = int(np.argmax(behind.sum(axis=1) <= error))
    return fit_prior(users, link="logistic", shrinkage=candidates[chosen], iterations=12)


def _davidson(pairs: Pairs, train: Ints, score: Floats) -> float:
    """Fit ν of P(tie) ∝ ν √(p q) (Davidson 1970) by a grid search."""
    y, s = pairs.y[train], score[train]
    grid = np.exp(np.linspace(-4.0, 2.0, 61))
    return float(grid[np.argmin([three_way_loss(y, s, nu) for nu in grid])])


def three_way(score: Floats, nu: float) -> Floats:
    """Probabilities of a, tie and b from log odds and the tie parameter ν, float64[n, 3]."""
    weight = np.stack([score / 2.0, np.full(len(score), np.log(nu)), -score / 2.0], axis=1)
    weight = np.exp(weight - weight.max(axis=1, keepdims=True))
    out: Floats = weight / weight.sum(axis=1, keepdims=True)
    return out


def three_way_loss(y: Floats, score: Floats, nu: float) -> float:
    """Mean negative log probability of the verdicts a, tie or b."""
    said = np.where(y == 1.0, 0, np.where(y == 0.5, 1, 2))
    return float(-np.log(three_way(score, nu)[np.arange(len(y)), said]).mean())
