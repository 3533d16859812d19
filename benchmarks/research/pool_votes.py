"""Pool with human votes as reference: utilities of all answers from pairwise votes, and heads to measure.

Votes on a prompt say how its answers compare: a Bradley and Terry model a prompt, u ~ N(μ, Σ) over the models with μ
and Σ learnt from all prompts by EM (`training.hierarchy`), so that few votes move an answer little from what its model
is worth elsewhere. The utilities are estimates: the oracle of such a pool knows the estimate, not the truth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from benchmarks.research.pool import Head, Reference

from fitrouter.context.encoders import Encoder
from fitrouter.errors import ConfigError
from fitrouter.types import Floats
from fitrouter_evaluators.datasets import Pair
from fitrouter_evaluators.scoring import Answer, ResponseFeatures
from fitrouter_evaluators.training.hierarchy import Observations, Prior, Shrinkage, fit_prior


class VotePool(NamedTuple):
    """A pool of one crowd's votes on K models' answers to N prompts."""

    reference: Reference
    prompts: tuple[str, ...]
    answers: tuple[tuple[str, ...], ...]
    """N × K texts."""
    votes: tuple[tuple[int, int, int, float], ...]
    """(prompt, a, b, label)."""


def vote_pool(rows: Sequence[Pair], seed: int = 0) -> VotePool:
    """Build the pool of votes on pairs whose answers name their models; prompts without all answers are left out.

    Half of the prompts are known; the task is `extra["category"]`. Seed: of which half.

    Raises:
        ConfigError: fewer than four prompts have an answer of every model.
    """
    texts: dict[str, dict[str, str]] = {}
    category: dict[str, str] = {}
    named = [row for row in rows if row.a.model and row.b.model]
    for row in named:
        category[row.prompt] = str(row.extra.get("category", ""))
        for side in (row.a, row.b):
            texts.setdefault(row.prompt, {})[str(side.model)] = side.text
    models = sorted({model for answers in texts.values() for model in answers})
    prompts = [prompt for prompt, answers in texts.items() if len(answers) == len(models)]
    if len(prompts) < 4:
        raise ConfigError(f"{len(prompts)} prompts have an answer of each of {models}; at least 4 are needed")
    at, k = {prompt: n for n, prompt in enumerate(prompts)}, {model: i for i, model in enumerate(models)}
    votes = tuple(
        (at[row.prompt], k[str(row.a.model)], k[str(row.b.model)], row.label) for row in named if row.prompt in at
    )
    known = np.zeros(len(prompts), dtype=bool)
    known[np.random.default_rng([2026, seed]).permutation(len(prompts))[: len(prompts) // 2]] = True
    task = np.unique([category[prompt] for prompt in prompts], return_inverse=True)[1]
    utility = _utilities(votes, len(prompts), len(models))
    return VotePool(
        Reference(tuple(models), utility[None], known, task.astype(np.int64)),
        tuple(prompts),
        tuple(tuple(texts[prompt][model] for model in models) for prompt in prompts),
        votes,
    )


def _utilities(votes: Sequence[tuple[int, int, int, float]], N: int, K: int) -> Floats:
    """Fit each prompt's Bradley–Terry model; returns the posterior means, float64[N, K]."""
    by_prompt = [[vote for vote in votes if vote[0] == n] for n in range(N)]
    seen = []
    for mine in by_prompt:
        X = np.zeros((len(mine), K))
        for row, (_, a, b, _) in zip(X, mine, strict=True):
            row[a], row[b] = 1.0, -1.0
        seen.append(Observations(X, np.array([label for *_, label in mine])))
    shrinkage = Shrinkage(nu=10.0, psi=0.5, ridge=0.1)
    prior = fit_prior([one for one in seen if len(one.y)], link="logistic", shrinkage=shrinkage)
    return np.array([prior.posterior(one).mean for one in seen])


def vote_family(pool: VotePool, features: ResponseFeatures, encoder: Encoder, seed: int = 0) -> dict[str, Head]:
    """Create heads on a pool of votes: uninformed, learnt from votes on known prompts, and the reference with errors.

    Args:
        pool: the pool.
        features: of the answers; learnt heads are linear in them.
        encoder: for the head that measures nearness of answer and prompt.
        seed: of noise and of which votes are few.
    """
    rng = np.random.default_rng([2026, seed, 2])
    utility, known = pool.reference.utility[0], pool.reference.known
    N, K = utility.shape
    flat = [Answer(prompt=p, text=text) for p, row in zip(pool.prompts, pool.answers, strict=True) for text in row]
    h = np.nan_to_num(features.encode(flat)).reshape(N, K, -1)
    length = h[:, :, features.names.index("length")]
    vectors = encoder.encode([answer.text for answer in flat]).reshape(N, K, -1)
    scores = {
        "random": rng.normal(size=(N, K)),
        "longest": length,
        "shortest": -length,
        "near the prompt": np.einsum("nkd,nd->nk", vectors, encoder.encode(list(pool.prompts))),
    }
    for name in ("structure", "hedging", "warmth", "evidence"):
        scores[name] = h[:, :, features.names.index(name)]
    g = h[:, :, features.names.index("g")]
    if g.any():
        scores["g alone"] = g
    mine = [vote for vote in pool.votes if known[vote[0]]]
    for count in (30, 100, 300, len(mine)):
        some = [mine[i] for i in rng.permutation(len(mine))[:count]]
        scores[f"text, {count} votes"] = h @ _learn(np.array([h[n, a] - h[n, b] for n, a, b, _ in some]), some)
        one = np.eye(K)
        scores[f"model's name, {count} votes"] = np.tile(
            _learn(np.array([one[a] - one[b] for _, a, b, _ in some]), some), (N, 1)
        )
    spread, noise = float(utility.std(axis=1).mean()), rng.normal(size=(N, K))
    scores |= {f"reference, noise {sd:g}": utility + sd * spread * noise for sd in (0.5, 1.0, 2.0)}
    worst = np.arange(K) == int(utility.mean(axis=0).argmin())
    scores["reference, + 8 for the worst"] = utility + 8.0 * spread * worst
    scores["reference, + 2 length"] = utility + 2.0 * spread * length
    scores |= {"reference": utility, "reversed": -utility}
    return {name: _constant(values) for name, values in scores.items()}


def _learn(X: Floats, votes: Sequence[tuple[int, int, int, float]]) -> Floats:
    """Fit weights under a ridge prior, float64[D]."""
    prior = Prior(np.zeros(X.shape[1]), 0.1 * np.eye(X.shape[1]), link="logistic")
    return prior.posterior(Observations(X, np.array([label for *_, label in votes]))).mean


def _constant(scores: Floats) -> Head:
    return lambda _user: scores
