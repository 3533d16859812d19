"""Worlds: who is there, what they like, and how good each answer really is. Pinned in `benchmarks/worlds/*.yaml`.

A world's utility is V[u, k, n] = quality + topics + taste, in logits; a label is 1 with probability σ(V). Nothing of it
is known to the router, which reads texts and labels only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import yaml

from fitrouter.errors import ConfigError
from fitrouter.types import Floats
from fitrouter_evaluators.pool import Pool

__all__ = ["Play", "World", "draw_play", "load_world"]


class World(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pinned description. All weights are in logits."""

    name: str
    quality: dict[str, float]
    """model → quality on any scale; standardised over the models."""
    quality_weight: float
    """Logits of one standard deviation of quality."""
    prompt_noise: float
    """Standard deviation, in logits, of a model's luck with a prompt: nobody can predict it."""
    topic_sd: float = 0.0
    """How far models differ by topic."""
    taste_weight: float = 0.0
    """Logits of one unit of taste along a standardised attribute."""
    role_sd: float = 0.6
    user_sd: float = 0.6
    """Standard deviations of tastes between roles, and between users of a role."""
    users: int = 100
    roles: int = 4
    zipf: float = 0.7
    """Exponent of the users' activity."""
    rounds: int = 8000
    rounds_per_day: int = 200
    impostor: str | None = None
    """This model answers with the best model's texts, at its own quality."""


def load_world(path: Path) -> World:
    """Read a pinned world.

    Raises:
        ConfigError: the file is missing or is no world.
    """
    try:
        return msgspec.convert(yaml.safe_load(path.read_text(encoding="utf-8")), World)
    except FileNotFoundError:
        raise ConfigError(f"there is no world {str(path)!r}; pinned ones are in benchmarks/worlds/") from None
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise ConfigError(f"{str(path)!r} is no world: {error}") from None


class Play(msgspec.Struct, frozen=True):
    """One seed of a world over a pool: everything that is common to the rows that are compared on it."""

    role: Any
    """int[U]"""
    tastes: Floats
    """float64[U, 8], in logits of an attribute's standard deviation."""
    reward: Floats
    """float64[U, K, N]: P(label = 1)."""
    h: Floats
    """float64[K, N, D]: what the scorer sees of the answers that are given in this world."""
    attributes: Floats
    """float64[K, N, 8] of the answers that are given in this world."""
    user: Any
    """int[T]: who comes."""
    prompt: Any
    """int[T]: with what."""
    label: Floats
    """float64[T] uniforms: label = 1 where below P."""
    rated: Floats
    """float64[T] uniforms: rated where below the feedback rate."""


def draw_play(world: World, pool: Pool, seed: int) -> Play:
    """Draw users, qualities, order and luck of one seed."""
    rng = np.random.default_rng([2026, seed])
    missing = sorted(set(pool.models) - set(world.quality))
    if missing:
        raise ConfigError(f"the world {world.name!r} has no quality for {missing}; the pool has {list(pool.models)}")
    K, N, U, T = len(pool.models), len(pool.prompts), world.users, world.rounds
    quality = np.array([world.quality[model] for model in pool.models])
    quality = (quality - quality.mean()) / quality.std()
    role = rng.integers(0, world.roles, U)
    D = pool.attributes.shape[-1]
    tastes = rng.normal(0, world.role_sd, (world.roles, D))[role] + rng.normal(0, world.user_sd, (U, D))
    tastes = tastes * world.taste_weight
    by_topic = rng.normal(0, world.topic_sd * np.sqrt(pool.topics.shape[1] - 1), (K, pool.topics.shape[1]))
    by_topic[:, 0] = 0.0
    worth = world.quality_weight * quality[:, None] + by_topic @ pool.topics.T
    worth = worth + rng.normal(0, world.prompt_noise, (K, N))
    texts, h = pool.attributes, pool.h
    if world.impostor is not None:
        fake, best = pool.models.index(world.impostor), int(quality.argmax())
        texts, h = texts.copy(), h.copy()
        texts[fake], h[fake] = texts[best], h[best]
    utility = worth[None] + np.einsum("ud,knd->ukn", tastes, texts)
    activity = 1.0 / np.arange(1, U + 1) ** world.zipf
    return Play(
        role=role,
        tastes=tastes,
        reward=1.0 / (1.0 + np.exp(-utility)),
        h=h,
        attributes=texts,
        user=rng.choice(U, T, p=activity / activity.sum()),
        prompt=rng.integers(0, N, T),
        label=rng.random(T),
        rated=rng.random(T),
    )
