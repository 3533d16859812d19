"""Reward heads on a pool with simulated users: uninformed, learned, true with noise, and biased.

Tastes are learnt as the product learns them: by the population prior of `training.hierarchy` from users that are not
measured, and a measured user's posterior from their first k votes, all on known prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from benchmarks.research._tasks import cluster_tasks
from benchmarks.research.pool import Head, Reference
from numpy.typing import NDArray

from fitrouter.types import Floats
from fitrouter_evaluators.simulation.pool import Pool
from fitrouter_evaluators.simulation.worlds import Play
from fitrouter_evaluators.training.hierarchy import Observations, Prior, Shrinkage, fit_prior

KS = (2, 5, 10, 20, 50)
"""Votes of a measured user that the personal heads have seen."""

_TRAINING_VOTES = 40


class _Votes(NamedTuple):
    """Votes on random pairs of answers to known prompts, as features of their difference."""

    X: Floats
    y: Floats


def simulated_reference(pool: Pool, play: Play, users: int, tasks: int = 8, seed: int = 0) -> Reference:
    """Return the reference of a play's first `users`; half of the prompts are known, tasks are clusters of prompts."""
    N = len(pool.prompts)
    known = np.zeros(N, dtype=bool)
    known[np.random.default_rng([2026, seed]).permutation(N)[: N // 2]] = True
    utility = _logits(play)[:users]
    return Reference(models=pool.models, utility=utility, known=known, task=cluster_tasks(pool, tasks))


def family(
    pool: Pool,
    names: Sequence[str],
    play: Play,
    reference: Reference,
    *,
    adversary: str,
    ks: Sequence[int] = KS,
    seed: int = 0,
) -> dict[str, Head]:
    """Create the heads to compare, by name.

    Args:
        pool: features and texts' attributes.
        names: names of the response features, in order.
        play: the world's seed that the reference was made of; its other users train the prior.
        reference: what heads are measured on.
        adversary: the model that the biased heads favour.
        ks: numbers of votes.
        seed: of votes and noise.
    """
    rng = np.random.default_rng([2026, seed, 1])
    U = len(reference.utility)
    all_users = _logits(play)
    h = np.nan_to_num(np.transpose(pool.h, (1, 0, 2)))
    style = np.array([i > 1 and not name.startswith("latent") for i, name in enumerate(names)])
    training = [_votes(rng, h, all_users[u], reference.known, _TRAINING_VOTES) for u in range(U, len(all_users))]
    own = [_votes(rng, h, reference.utility[u], reference.known, max(ks)) for u in range(U)]
    heads: dict[str, Head] = {}
    heads |= _simple(h, names, rng)
    heads |= _learnt(h, style, training, own, ks)
    heads |= _informed(reference, all_users[U:].mean(axis=0), adversary, h[:, :, names.index("length")], rng)
    return heads


def _logits(play: Play) -> Floats:
    """Return the play's utilities, float64[U, N, K]."""
    p = np.transpose(play.reward, (0, 2, 1))
    out: Floats = np.log(p) - np.log1p(-p)
    return out


def _votes(rng: np.random.Generator, h: Floats, utility: Floats, known: NDArray[np.bool_], n: int) -> _Votes:
    """Draw votes of one user with utilities float64[N, K]."""
    prompt = rng.choice(np.flatnonzero(known), n)
    a = rng.integers(h.shape[1], size=n)
    b = (a + rng.integers(1, h.shape[1], size=n)) % h.shape[1]
    p = 1.0 / (1.0 + np.exp(utility[prompt, b] - utility[prompt, a]))
    return _Votes(h[prompt, a] - h[prompt, b], (rng.random(n) < p).astype(np.float64))


def _same(scores: Floats) -> Head:
    """Create a head that scores alike for everybody."""
    return lambda _user: scores


def _each(scores: Floats) -> Head:
    """Create a head from each user's scores, float64[U, N, K]."""
    return lambda user: scores[user]


def _simple(h: Floats, names: Sequence[str], rng: np.random.Generator) -> dict[str, Head]:
    """Create heads that learn nothing."""
    length = h[:, :, names.index("length")]
    heads = {
        "random": _same(rng.normal(size=length.shape)),
        "longest": _same(length),
        "shortest": _same(-length),
    }
    g = h[:, :, names.index("g")]
    if g.any():
        heads["g alone"] = _same(g)
    return heads


def _learnt(
    h: Floats, style: NDArray[np.bool_], training: Sequence[_Votes], own: Sequence[_Votes], ks: Sequence[int]
) -> dict[str, Head]:
    """Create heads that learn from votes: of others (global, style), of the user alone, and of both."""
    shrinkage = Shrinkage(nu=10.0, psi=0.02, ridge=5.0)
    prior = fit_prior([Observations(*v) for v in training], link="logistic", shrinkage=shrinkage, iterations=8)
    styled = fit_prior(
        [Observations(v.X[:, style], v.y) for v in training], link="logistic", shrinkage=shrinkage, iterations=8
    )
    flat = Prior(np.zeros(h.shape[2]), np.eye(h.shape[2]), link="logistic")
    heads = {"global": _same(h @ prior.mean), "style only": _same(h[:, :, style] @ styled.mean)}
    for k in ks:
        for name, start in (("personal", prior), ("user only", flat)):
            tastes = [start.posterior(Observations(v.X[:k], v.y[:k])).mean for v in own]
            heads[f"{name}, k = {k}"] = _each(np.einsum("nkd,ud->unk", h, np.array(tastes)))
    return heads


def _informed(
    reference: Reference, crowd: Floats, adversary: str, length: Floats, rng: np.random.Generator
) -> dict[str, Head]:
    """Create heads that know the utilities, except for noise or a bias."""
    utility = reference.utility
    heads = {
        "oracle": _each(utility),
        "anti-oracle": _each(-utility),
        "crowd's mean": _same(crowd),
        "someone else's": _each(np.roll(utility, 1, axis=0)),
    }
    spread = float(utility.std(axis=2).mean())
    noise = rng.normal(size=utility.shape)
    for sd in (0.5, 1.0, 2.0, 4.0):
        heads[f"oracle, noise {sd:g}"] = _each(utility + sd * spread * noise)
    # Right on most pairs and wrong at the top: the bias concerns one answer of each prompt, or the very long ones.
    fooled = np.array([model == adversary for model in reference.models]) * 1.0
    for size in (2.0, 8.0):
        heads[f"oracle, + {size:g} for {adversary}"] = _each(utility + size * spread * fooled)
    heads[f"crowd's mean, + 8 for {adversary}"] = _same(crowd + 8.0 * spread * fooled)
    for size in (1.0, 3.0):
        heads[f"oracle, + {size:g} length"] = _each(utility + size * spread * length)
    heads["oracle, coarse"] = _each(np.round(utility / spread) * spread)
    heads["oracle, heavy noise"] = _each(utility + 0.3 * spread * rng.standard_t(1.5, size=utility.shape))
    return heads
