"""Simulated logs with a known truth, for `replay_intervals.py`: six arms, a fixed target policy, four loggers.

The first three are those of the prototype: a fixed soft policy with propensities of at least .02, and a Thompson
sampler without contexts whose propensities drift as it learns, with floors of .02 and .005. In the fourth, rewards move
too: the level of every arm swings, in steps of 500 decisions, so that the target's value is another one in each.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

Floats = np.ndarray

K, STEP = 6, 500
_RNG = np.random.default_rng(5)
SLOPES = _RNG.normal(size=(3, 16))[:, :K]
LEVELS = (_RNG.normal(size=16) * 0.6)[:K]
LOGGER = _RNG.normal(size=(3, 16))[:, :K]
REFRESH = 25
"""Decisions between two looks of the Thompson sampler at its labels."""
DRAWS = 400
"""By which it estimates its pmf; what it draws from is the estimate, so logged propensities are exact."""
BLOCK = 50
"""Decisions between two fits of the outcome model."""


class World(NamedTuple):
    """A setting: a logger and a stream of prompts."""

    name: str
    adaptive: bool
    floor: float
    swing: float = 0.0


WORLDS = (
    World("fixed soft logger, floor .02", adaptive=False, floor=0.02),
    World("adaptive Thompson logger, floor .02", adaptive=True, floor=0.02),
    World("adaptive Thompson logger, floor .005", adaptive=True, floor=0.005),
    World("adaptive, floor .02, rewards that drift", adaptive=True, floor=0.02, swing=1.0),
)


class Logs(NamedTuple):
    """R logs of n decisions."""

    target: Floats
    """float64[R, n, K]: the policy to be evaluated."""
    logged: Floats
    """float64[R, n, K]: the pmf that was drawn from."""
    arm: Floats
    """int64[R, n]"""
    reward: Floats
    """float64[R, n], 0 or 1."""
    model: Floats
    """float64[R, n, K]: an outcome model, made of earlier decisions only."""
    success: Floats
    """float64[R, n, K]: the truth."""


def softmax(z: Floats) -> Floats:
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def swings(world: World, n: int) -> Floats:
    """Return what is added to the arms' levels at each decision, float64[n, K]."""
    phase = np.arange(n)[:, None] // STEP / 10.0 + np.arange(K) / K
    return world.swing * np.cos(2.0 * np.pi * phase)


def success(x: Floats, added: Floats) -> Floats:
    return 1.0 / (1.0 + np.exp(-(0.8 * x @ SLOPES + LEVELS + added)))


def target(x: Floats) -> Floats:
    """Return the target policy: a softmax of the success probabilities without swings."""
    return 0.95 * softmax(6.0 * success(x, np.zeros(K))) + 0.05 / K


def truth(world: World, n: int, contexts: int = 1_000_000) -> Floats:
    """Estimate the target's value at each decision, float64[n], from `contexts` contexts drawn for that."""
    x = np.random.default_rng(99).normal(size=(contexts, 3))
    policy, added = target(x), swings(world, n)
    steps = [float((policy * success(x, added[begin])).sum(axis=1).mean()) for begin in range(0, n, STEP)]
    return np.repeat(steps, STEP)[:n] if world.swing else np.full(n, steps[0])


def play(world: World, seed: list[int], repetitions: int, n: int) -> Logs:
    """Simulate logs of a world, all repetitions at once."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(repetitions, n, 3))
    q = success(x, swings(world, n))
    luck = rng.random((2, repetitions, n))
    if world.adaptive:
        logged, arm, reward = _thompson(rng, q, luck, world.floor)
    else:
        logged = (1.0 - K * world.floor) * softmax(x @ LOGGER) + world.floor
        arm = _draw(logged, luck[0])
        reward = (luck[1] < of_arm(q, arm)).astype(float)
    return Logs(target(x), logged, arm, reward, _ridge(x, arm, reward), q)


def of_arm(values: Floats, arm: Floats) -> Floats:
    """Select the values of the drawn arms."""
    return np.take_along_axis(values, arm[..., None], axis=-1)[..., 0]


def _draw(pmf: Floats, luck: Floats) -> Floats:
    return np.minimum((pmf.cumsum(axis=-1) < luck[..., None]).sum(axis=-1), K - 1)


def _thompson(rng: np.random.Generator, q: Floats, luck: Floats, floor: float) -> tuple[Floats, Floats, Floats]:
    """Run a Beta–Bernoulli sampler that ignores contexts; returns (pmfs, arms, rewards)."""
    R, n, _ = q.shape
    won, lost = np.ones((R, K)), np.ones((R, K))
    logged, arm, reward = np.empty((R, n, K)), np.empty((R, n), dtype=np.int64), np.empty((R, n))
    for begin in range(0, n, REFRESH):
        now = slice(begin, min(n, begin + REFRESH))
        best = rng.beta(won, lost, (DRAWS, R, K)).argmax(axis=-1)
        share = (best[..., None] == np.arange(K)).mean(axis=0)
        logged[:, now] = ((1.0 - K * floor) * share + floor)[:, None]
        arm[:, now] = _draw(logged[:, now], luck[0, :, now])
        reward[:, now] = luck[1, :, now] < of_arm(q[:, now], arm[:, now])
        drawn = arm[:, now, None] == np.arange(K)
        won += (drawn * reward[:, now, None]).sum(axis=1)
        lost += (drawn * (1.0 - reward[:, now, None])).sum(axis=1)
    return logged, arm, reward


def _ridge(x: Floats, arm: Floats, reward: Floats) -> Floats:
    """Predict rewards by a ridge regression for each arm, fitted every 50 decisions on those before."""
    R, n, d = x.shape
    f = np.concatenate([x, np.ones((R, n, 1))], axis=-1)
    gram = np.tile(np.eye(d + 1), (R, K, 1, 1))
    moment = np.zeros((R, K, d + 1))
    moment[..., -1] = 0.5
    model = np.empty((R, n, K))
    for begin in range(0, n, BLOCK):
        now = slice(begin, min(n, begin + BLOCK))
        weights = np.linalg.solve(gram, moment[..., None])[..., 0]
        model[:, now] = np.clip(np.einsum("rnd,rkd->rnk", f[:, now], weights), 0.0, 1.0)
        own = (arm[:, now, None] == np.arange(K))[..., None] * f[:, now, None, :]
        gram += np.einsum("rnkd,rne->rkde", own, f[:, now])
        moment += np.einsum("rnkd,rn->rkd", own, reward[:, now])
    return model


# --- outcomes ---


def weights(logs: Logs) -> Floats:
    """Return importance weights, float64[R, n]."""
    return of_arm(logs.target, logs.arm) / of_arm(logs.logged, logs.arm)


def mixed(logs: Logs, share: float) -> Logs:
    """Return logs whose target is the logger, mixed with a share of the former target."""
    return logs._replace(target=(1.0 - share) * logs.logged + share * logs.target)


def paired(logs: Logs, bound: float | None = None, *, flipped: bool = False) -> Floats:
    """Return outcomes of the target minus the logger: u (r − q̃(a)) + Σ p u q̃ with u = π/p − 1; float64[R, n].

    With a bound k no outcome is below −k. Σ p u q̃ is at least −Σ (p − π)⁺ = −d, so q̃ is cut to what leaves
    u (r − q̃) ≥ d − k for r = 0 where u is positive, and for r = 1 where it is negative.
    """
    u = logs.target / logs.logged - 1.0
    q = 1.0 - logs.model if flipped else logs.model
    r = 1.0 - logs.reward if flipped else logs.reward
    if bound is not None:
        room = bound - np.maximum(logs.logged - logs.target, 0.0).sum(axis=-1, keepdims=True)
        edge = room / np.maximum(np.abs(u), 1e-12)
        q = np.where(u > 0.0, np.minimum(q, edge), np.maximum(q, 1.0 - edge))
    return of_arm(u, logs.arm) * (r - of_arm(q, logs.arm)) + (logs.logged * u * q).sum(axis=-1)


def doubly_robust(logs: Logs, bound: float | None = None, *, flipped: bool = False) -> Floats:
    """Return Σ π q̃ + w (r − q̃(a)), float64[R, n]; with a bound k, q̃ is cut so that none is below −k.

    The worst that can follow is r = 0, Σ π q̃ − w q̃(a). A first cut at k / w makes Σ π q̃ known, and q̃ may then be as
    large as (k + Σ π q̃) / w, since more of it makes that sum no less.

    Args:
        logs: R of them.
        bound: k; None for no cut.
        flipped: of 1 − r instead.
    """
    q = 1.0 - logs.model if flipped else logs.model
    r = 1.0 - logs.reward if flipped else logs.reward
    if bound is not None:
        ratio = logs.target / logs.logged
        cut = np.minimum(q, bound / ratio)
        q = np.minimum(q, (bound + (logs.target * cut).sum(axis=-1, keepdims=True)) / ratio)
    return (logs.target * q).sum(axis=-1) + weights(logs) * (r - of_arm(q, logs.arm))
