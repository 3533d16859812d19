"""Simulated worlds: users, their tastes, and the true quality of each answer; see `benchmarks/simulation/worlds`.

A world's utility is V[u, k, n] = quality + topics + luck + taste, in logits; a label is 1 with probability σ(V).
The router sees texts and labels only. The world's kind is the object of tastes: attributes of the text that the scorer
has features for (mixed), attributes without features (hidden-features), or the model itself (model-offset). Role-only
and user-only worlds are mixed ones with one of the two spreads at 0.

There are two oracles. The first knows everything, including the luck of model and prompt and the texts; no learner can
reach it. The feasible one knows every parameter, but only the topics and the context of a prompt (`Play.feasible`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np
import yaml

from fitrouter.errors import ConfigError
from fitrouter.types import Floats
from fitrouter_evaluators.simulation.pool import Pool

Kind: TypeAlias = Literal["mixed", "hidden-features", "model-offset"]
"""Object of the users' tastes."""

RIDGE = 1.0
"""Ridge penalty of the regression of attributes on contexts."""


class World(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Pinned description of a simulated world; all weights are in logits."""

    name: str
    quality: dict[str, float]
    """model → quality on any scale; standardised over the models."""
    quality_weight: float
    """Logits of one standard deviation of quality."""
    prompt_noise: float
    """Standard deviation, in logits, of a model's unpredictable luck with a prompt."""
    topic_sd: float = 0.0
    """How far models differ by topic."""
    kind: Kind = "mixed"
    taste_weight: float = 0.0
    """Logits of one unit of taste along a standardised attribute, or towards a model."""
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
    """Model that answers with the best model's texts, at its own quality."""
    flip_every: int = 0
    """Labels between sign changes of all tastes; 0 for never."""


def load_world(path: Path) -> World:
    """Read a pinned world.

    Raises:
        ConfigError: the file is missing or not a world.
    """
    try:
        return msgspec.convert(yaml.safe_load(path.read_text(encoding="utf-8")), World)
    except FileNotFoundError:
        raise ConfigError(
            f"there is no world {str(path)!r}; pinned ones are in benchmarks/simulation/worlds/"
        ) from None
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise ConfigError(f"{str(path)!r} is not a world: {error}") from None


class SignRewards(NamedTuple):
    """Rewards of every answer, and the feasible oracle's choice, for one sign of the tastes."""

    reward: Floats
    """P(label = 1), float64[U, K, N]."""
    feasible: Any
    """The feasible oracle's model, int[U, N]."""


class Rounds(NamedTuple):
    """Rewards in every round: of each model, of the feasible oracle's model and of the best one."""

    reward: Floats
    """P(label = 1) of each model's answer, float64[T, K]."""
    feasible: Floats
    """That of the feasible oracle's model, or the best one's if unknown, float64[T]."""
    best: Floats
    """That of the best model, luck included, float64[T]."""


class Play(msgspec.Struct, frozen=True):
    """One seed of a world over a pool, common to all compared rows."""

    role: Any
    """int[U]"""
    tastes: Floats
    """float64[U, D], in logits of an attribute's standard deviation."""
    reward: Floats
    """P(label = 1), float64[U, K, N]."""
    h: Floats
    """Response features of the answers in this world, float64[K, N, D]."""
    attributes: Floats
    """Attributes that tastes weigh, float64[K, N, D]."""
    user: Any
    """User of each round, int[T]."""
    prompt: Any
    """Prompt of each round, int[T]."""
    label: Floats
    """float64[T] uniforms: label = 1 where below P."""
    rated: Floats
    """float64[T] uniforms: rated where below the feedback rate."""
    feasible: Any = None
    """Model of the feasible oracle, which knows every parameter, the prompt's topics and the attributes
    expected for such prompts; None if unknown, int[U, N]."""
    turned: SignRewards | None = None
    """Rewards for the other sign of the tastes, in a world where it changes."""
    flip_every: int = 0
    """Labels between two changes of sign."""

    def rounds(self, feedback: float = 0.0) -> Rounds:
        """Rewards of the rounds at a feedback rate, as labels change tastes in some worlds."""
        T = np.arange(len(self.user))
        reward = self.reward[self.user, :, self.prompt]
        best = None if self.feasible is None else self.feasible[self.user, self.prompt]
        if self.turned is not None:
            rated: Any = self.rated < feedback
            before: Any = np.cumsum(rated) - rated
            turned: Any = before // self.flip_every % 2 == 1
            reward = np.where(turned[:, None], self.turned.reward[self.user, :, self.prompt], reward)
            best = np.where(turned, self.turned.feasible[self.user, self.prompt], best)
        top = reward.max(axis=1)
        return Rounds(reward, top if best is None else reward[T, best], top)


def draw_play(world: World, pool: Pool, seed: int) -> Play:
    """Draw users, qualities, order and luck of one seed.

    Raises:
        ConfigError: the world lacks a model of the pool, or the pool lacks the attributes of its tastes.
    """
    rng = np.random.default_rng([2026, seed])
    missing = sorted(set(pool.models) - set(world.quality))
    if missing:
        raise ConfigError(f"the world {world.name!r} has no quality for {missing}; the pool has {list(pool.models)}")
    K, N, U, T = len(pool.models), len(pool.prompts), world.users, world.rounds
    quality = np.array([world.quality[model] for model in pool.models])
    quality = (quality - quality.mean()) / quality.std()
    role = rng.integers(0, world.roles, U)
    texts, h = _about(world, pool), pool.h
    D = texts.shape[-1]
    tastes = rng.normal(0, world.role_sd, (world.roles, D))[role] + rng.normal(0, world.user_sd, (U, D))
    tastes = tastes * world.taste_weight
    by_topic = rng.normal(0, world.topic_sd * np.sqrt(pool.topics.shape[1] - 1), (K, pool.topics.shape[1]))
    by_topic[:, 0] = 0.0
    known = world.quality_weight * quality[:, None] + by_topic @ pool.topics.T
    worth = known + rng.normal(0, world.prompt_noise, (K, N))
    if world.impostor is not None:
        fake, best = pool.models.index(world.impostor), int(quality.argmax())
        texts, h = texts.copy(), h.copy()
        texts[fake], h[fake] = texts[best], h[best]
    usual = _expected(pool.x, texts)
    by_sign = [
        SignRewards(
            reward=1.0 / (1.0 + np.exp(-worth[None] - sign * np.einsum("ud,knd->ukn", tastes, texts))),
            # σ of a Gaussian rises with its mean, so that the best by expectation is the best without luck.
            feasible=(known[None] + sign * np.einsum("ud,knd->ukn", tastes, usual)).argmax(axis=1),
        )
        for sign in ((1.0, -1.0) if world.flip_every else (1.0,))
    ]
    activity = 1.0 / np.arange(1, U + 1) ** world.zipf
    return Play(
        role=role,
        tastes=tastes,
        reward=by_sign[0].reward,
        h=h,
        attributes=texts,
        user=rng.choice(U, T, p=activity / activity.sum()),
        prompt=rng.integers(0, N, T),
        label=rng.random(T),
        rated=rng.random(T),
        feasible=by_sign[0].feasible,
        turned=by_sign[1] if world.flip_every else None,
        flip_every=world.flip_every,
    )


def _about(world: World, pool: Pool) -> Floats:
    """Attributes of answers that tastes weigh, float64[K, N, D]."""
    if world.kind == "model-offset":
        K, N = len(pool.models), len(pool.prompts)
        return np.broadcast_to(np.eye(K)[:, None, :], (K, N, K))
    if world.kind == "mixed":
        return pool.attributes
    if pool.unseen is None:
        raise ConfigError(
            f"the world {world.name!r} needs attributes that the scorer has no feature for; this pool lacks them"
        )
    return pool.unseen


def _expected(x: Floats, texts: Floats) -> Floats:
    """Predict each model's attributes for such prompts by ridge regression on x, float64[K, N, D]."""
    solved = np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T)
    expected: Floats = np.einsum("nj,kjd->knd", x, np.einsum("jn,knd->kjd", solved, texts))
    return expected
