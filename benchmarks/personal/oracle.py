"""Best possible reading of a simulated person's answers: Bayes' rule with the true prior and likelihood of the world.

It bounds what any reader of the same comparisons and ratings can reach on average, as it knows which of the worlds of
`benchmarks.personal.served` the person comes from and how noisy their answers are. Importance sampling from the prior.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from benchmarks.personal.served import ATTRIBUTES, FORMS, RANDOM, Answers
from scipy.special import expit, ndtr

from fitrouter.types import Floats
from fitrouter_evaluators.personal.beliefs import PAIR

PRIOR_DRAWS, POSTERIOR_DRAWS = 100_000, 400


class Seen:
    """The observations of one person: pairs and ratings."""

    def __init__(self) -> None:
        self.pairs: list[tuple[int, int, int, bool]] = []
        """(prompt, place of the first model, of the second, whether the first was preferred)."""
        self.stars: list[tuple[int, int, int]] = []
        """(prompt, place of the model, 1 to 5)."""

    def log_likelihood(self, first: Floats, second: Floats, rated: Floats, noise: float) -> Floats:
        """Return log likelihoods of N people, float64[N], by their ratings of answers, float64[N, observations]."""
        preferred = np.array([y for *_, y in self.pairs])
        p = (1.0 - RANDOM) * expit((first - second) / PAIR.temperature) + 0.5 * RANDOM
        nats: Floats = np.log(np.where(preferred, p, 1.0 - p)).sum(axis=1)
        stars = np.array([s for *_, s in self.stars])
        low = np.where(stars == 1, -np.inf, (stars - 1.5) / 4.0)
        high = np.where(stars == 5, np.inf, (stars - 0.5) / 4.0)
        mass = ndtr((high - rated) / noise) - ndtr((low - rated) / noise)
        return nats + np.log(np.maximum(mass, 1e-12)).sum(axis=1)

    def cells(self) -> tuple[np.ndarray, np.ndarray]:
        """Return prompts and models of all observations: first the pairs' first, then their second, then the rated."""
        found = [(p, a) for p, a, _, _ in self.pairs] + [(p, b) for p, _, b, _ in self.pairs]
        found += [(p, k) for p, k, _ in self.stars]
        return np.array([p for p, _ in found]), np.array([k for _, k in found])


def oracle(
    answers: Answers, models: Sequence[int], world: str, seen: Seen, noise: float, rng: np.random.Generator
) -> tuple[Floats, float]:
    """Return the posterior mean of each model's mean rating, float64[K], and the effective number of draws."""
    prompts, places = seen.cells()
    n, about = len(seen.pairs), answers.attributes[:, list(models)]

    def weigh(ratings: Floats) -> Floats:
        """Return posterior weights, float64[N], of people who rate the observed answers float64[N, cells]."""
        nats = seen.log_likelihood(ratings[:, :n], ratings[:, n : 2 * n], ratings[:, 2 * n :], noise)
        q: Floats = np.exp(nats - nats.max())
        return q / q.sum()

    if world == "form":
        n_chars, items = answers.n[:, list(models)], answers.b[:, list(models)]
        people = np.stack([form(n_chars, items) for form in FORMS.values()])
        q = weigh(people[:, prompts, places])
        return q @ people.mean(axis=1), float(1.0 / (q**2).sum())
    common = np.random.default_rng(5).normal(0.0, 1.0, len(ATTRIBUTES))
    sd = {"linear": (1.0, 0.0), "models": (0.0, 1.0), "mixed": (0.7, 0.7), "shared": (0.1, 0.0)}[world]
    weights = rng.normal(0.0, sd[0], (PRIOR_DRAWS, len(ATTRIBUTES))) + (common if world == "shared" else 0.0)
    offsets = rng.normal(0.0, 1.0, (PRIOR_DRAWS, len(models))) * sd[1]
    logits = weights @ about[prompts, places].T + offsets[:, places]
    if world == "models":  # each answer has a deviation of its own; one that was seen twice has the same
        cells, which = np.unique(np.stack([prompts, places]), axis=1, return_inverse=True)
        logits = logits + rng.normal(0.0, 0.5, (PRIOR_DRAWS, cells.shape[1]))[:, which.ravel()]
    q = weigh(expit(logits))
    kept = rng.choice(PRIOR_DRAWS, POSTERIOR_DRAWS, p=q)
    worth = np.stack([expit(about @ weights[i] + offsets[i]).mean(axis=0) for i in kept])
    return worth.mean(axis=0), float(1.0 / (q**2).sum())
