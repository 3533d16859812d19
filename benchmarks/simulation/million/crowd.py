"""A million users of a pinned world, drawn when they first ask: `Traffic` has the requests of one seed.

The world is that of `fitrouter_evaluators.simulation.worlds`: V = quality + topics + luck + taste, in logits, on
recorded answers. Its `draw_play` holds every user × model × prompt, which a million users rule out; here only the users
who ask are drawn, each from a seed of their own, so that a user has the same taste in every window of time.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from fitrouter.types import Floats
from fitrouter_evaluators.simulation.pool import Pool
from fitrouter_evaluators.simulation.worlds import World


class Traffic(msgspec.Struct, frozen=True):
    """T requests in the order of their arrival, common to all compared cells of a seed."""

    user: Any
    """int[T]: rank of the user's activity."""
    role: Any
    """int[T]"""
    prompt: Any
    """int[T]"""
    gap: Floats
    """float64[T]: intervals between arrivals, exponential of mean 1."""
    reward: Floats
    """float64[T, K]: P(thumb up)."""
    label: Floats
    """float64[T] uniforms: thumb up below the reward."""
    rated: Floats
    """float64[T] uniforms: labelled below the share."""
    wait: Floats
    """float64[T, 2]: delays of answer and label, exponential of mean 1."""


def draw_traffic(world: World, pool: Pool, seed: int, *, users: int, requests: int, loss: float = 0.0) -> Traffic:
    """Draw the requests of a seed.

    Args:
        world: tastes, qualities, roles, and the exponent of the users' activity.
        pool: recorded answers.
        seed: of everything.
        users: size of the population, instead of the world's.
        requests: T.
        loss: logits that the model that is best on average loses half-way, unannounced.
    """
    rng = np.random.default_rng([2026, 19, seed])
    K, N = len(pool.models), len(pool.prompts)
    quality = np.array([world.quality[model] for model in pool.models])
    quality = world.quality_weight * (quality - quality.mean()) / quality.std()
    by_topic = rng.normal(0, world.topic_sd * np.sqrt(pool.topics.shape[1] - 1), (K, pool.topics.shape[1]))
    by_topic[:, 0] = 0.0
    worth = quality[:, None] + by_topic @ pool.topics.T + rng.normal(0, world.prompt_noise, (K, N))
    of_role = rng.normal(0, world.role_sd, (world.roles, pool.attributes.shape[2]))
    activity = np.cumsum(1.0 / np.arange(1, users + 1) ** world.zipf)
    # Streams of their own, so that a longer window begins with the same requests as a shorter one.
    draws = [np.random.default_rng([2026, 19, seed, part]) for part in range(6)]
    user = np.searchsorted(activity, draws[0].random(requests) * activity[-1], side="right")
    prompt = draws[1].integers(0, N, requests)
    role, taste = np.empty(requests, dtype=np.int64), np.empty((requests, of_role.shape[1]))
    asking, place = np.unique(user, return_inverse=True)
    people = [np.random.default_rng([2026, 20, seed, int(each)]) for each in asking]
    roles = np.array([each.integers(world.roles) for each in people])
    tastes = np.array([each.normal(0, world.user_sd, of_role.shape[1]) for each in people])
    role, taste = roles[place], world.taste_weight * (of_role[roles] + tastes)[place]
    logits = worth.T[prompt] + np.einsum("td,tkd->tk", taste, pool.attributes.transpose(1, 0, 2)[prompt])
    if loss:
        best = int((1.0 / (1.0 + np.exp(-worth))).mean(axis=1).argmax())
        logits[requests // 2 :, best] -= loss
    return Traffic(
        user=user,
        role=role,
        prompt=prompt,
        gap=draws[2].exponential(size=requests),
        reward=1.0 / (1.0 + np.exp(-logits)),
        label=draws[3].random(requests),
        rated=draws[4].random(requests),
        wait=draws[5].exponential(size=(requests, 2)),
    )
