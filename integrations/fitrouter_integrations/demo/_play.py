"""One seed of the demo's world: users, their tastes and opinions, and the values of the oracles."""

from __future__ import annotations

from typing import Any

import numpy as np

from fitrouter.types import FeedbackKind, Floats
from fitrouter_evaluators.simulation.simulate import Vote
from fitrouter_evaluators.simulation.worlds import Play
from fitrouter_integrations.demo._stage import Stage
from fitrouter_integrations.demo._world import DemoWorld


class People:
    """The users of one seed, and the rounds in which they make requests.

    `play` has what the router cannot know; `worth` is the quality of an answer before taste, in logits, float64[K, N];
    `value` is float64[U, K, topics]: mean P(satisfied) of a user with a model on a topic.
    """

    def __init__(self, world: DemoWorld, stage: Stage, seed: int) -> None:
        rng = np.random.default_rng([2611, seed])
        pool, topics = stage.pool, len(world.prompts)
        K, N, U, T = len(pool.models), len(pool.prompts), world.users, world.rounds
        self.world, self.stage, self.seed = world, stage, seed
        role = rng.permutation(np.arange(U) % world.roles)
        tastes = world.taste_weight * _tastes(world, role, rng)
        quality = _quality(world, pool.models) + rng.normal(0, world.quality_sd, K)
        strength = _strength(world, pool.models) + rng.normal(0, world.topic_sd, (K, topics))
        self.worth: Floats = (
            world.level + quality[:, None] + strength[:, stage.topic] + rng.normal(0, world.prompt_noise, (K, N))
        )
        utility = self.worth[None] + np.einsum("ud,knd->ukn", tastes, pool.attributes)
        activity = 1.0 / np.arange(1, U + 1) ** world.zipf
        self.activity: Floats = activity / activity.sum()
        self.stars = rng.random(U) < world.raters.stars
        self.play = Play(
            role=role,
            tastes=tastes,
            reward=1.0 / (1.0 + np.exp(-utility)),
            h=pool.h,
            attributes=pool.attributes,
            user=rng.choice(U, T, p=self.activity),
            prompt=rng.integers(0, N, T),
            label=rng.random(T),
            rated=rng.random(T),
        )
        self._star = rng.random(T)
        means = np.array([self.play.reward[:, :, np.equal(stage.topic, i)].mean(axis=2) for i in range(topics)])
        self.value: Floats = np.moveaxis(means, 0, 2)

    # --- feedback ---

    def satisfaction(self, user: int, model: str, prompt: int, text: str) -> float:
        """Return the probability that a user who reads a text of a model is satisfied."""
        noticed = self.stage.noticed(self.world, text)
        worth = self.worth[self.stage.pool.models.index(model), prompt]
        return float(1.0 / (1.0 + np.exp(-worth - np.einsum("d,d->", self.play.tastes[user], noticed))))

    def opinion(self, t: int, satisfaction: float, asked: bool) -> Vote | None:
        """Return the feedback that the user of round t gives, None for none.

        Unsatisfied users volunteer more often, and users who are asked mostly answer. Stars are drawn so that their
        mean is the satisfaction: 5 or 4 from satisfied users, 1 or 2 from the others.
        """
        raters, satisfied = self.world.raters, bool(self.play.label[t] < satisfaction)
        chance = raters.answers if asked else raters.rate * (1.0 if satisfied else raters.anger)
        if not self.play.rated[t] < chance:
            return None
        if not self.stars[self.play.user[t]]:
            return Vote(FeedbackKind.THUMB, float(satisfied), (0.0, 1.0))
        strong = bool(self._star[t] < (satisfaction if satisfied else 1.0 - satisfaction))
        return Vote(FeedbackKind.RATING, (4.0 + strong) if satisfied else (2.0 - strong), (1.0, 5.0))

    # --- oracles ---

    def rounds(self) -> Floats:
        """Return the expected satisfaction of each round's user with each model, float64[T, K]."""
        topic = np.array(self.stage.topic)[self.play.prompt]
        result: Floats = self.value[self.play.user, :, topic]
        return result

    def best_for_all(self) -> Any:
        """Return the best model of each round for its topic and an average user, int[T]."""
        best: Any = np.einsum("u,uki->ki", self.activity, self.value).argmax(axis=0)
        return best[np.array(self.stage.topic)[self.play.prompt]]

    def best_for_user(self) -> Any:
        """Return the best model of each round for its topic and user, int[T]; the luck of a prompt stays unknown."""
        return self.rounds().argmax(axis=1)


def _tastes(world: DemoWorld, role: Any, rng: np.random.Generator) -> Floats:
    """Draw the users' tastes, float64[U, attributes], before weighting; in the uniform role all have the role's."""
    D = len(world.tastes) + len(world.hidden_tastes)
    by_role, own = rng.normal(0, world.role_sd, (world.roles, D)), rng.normal(0, world.user_sd, (world.users, D))
    own[role == world.role_names.index(world.uniform_role)] = 0.0
    result: Floats = by_role[role] + own
    return result


def _quality(world: DemoWorld, models: tuple[str, ...]) -> Floats:
    quality = np.array([world.quality[model] for model in models])
    result: Floats = world.quality_weight * (quality - quality.mean()) / quality.std()
    return result


def _strength(world: DemoWorld, models: tuple[str, ...]) -> Floats:
    """Return each model's skill relative to the mean of all models, float64[K, topics]."""
    skill = np.array([[world.models[model].persona.strength(topic) for topic in world.prompts] for model in models])
    result: Floats = world.strength_weight * (skill - skill.mean(axis=0))
    return result
