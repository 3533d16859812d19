"""Bandits that anybody would write first, with the interface of `_peers`: no budget, no users, no propensities."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from benchmarks.policies._peers import Floats, Peer

_NEIGHBOURS = 40
_EPSILON = 0.05
_RIDGE = 1.0
"""Penalty of a ridge regression over contexts of about unit length."""


class BetaThompson:
    """Thompson sampling of each model's mean, whatever the prompt; rewards in [0, 1] count in part."""

    def __init__(self, _d: int, K: int, seed: int) -> None:
        self.rng, self.good, self.bad = np.random.default_rng(seed), np.ones(K), np.ones(K)

    def decide(self, _x: Floats) -> int:
        return int(self.rng.beta(self.good, self.bad).argmax())

    def update(self, _x: Floats, arm: int, reward: float) -> None:
        self.good[arm] += reward
        self.bad[arm] += 1.0 - reward


class EpsilonMean:
    """The model with the best mean so far, with ε-greedy exploration."""

    def __init__(self, _d: int, K: int, seed: int) -> None:
        self.rng, self.n, self.sum = np.random.default_rng(seed), np.zeros(K), np.zeros(K)

    def decide(self, x: Floats) -> int:
        if self.rng.random() < _EPSILON:
            return int(self.rng.integers(len(self.n)))
        return int(self.predicted(x).argmax())

    def predicted(self, _x: Floats) -> Floats:
        """Expected rewards, float64[K]; 1 for a model that was never asked."""
        return (self.sum + 1.0) / (self.n + 1.0)

    def update(self, _x: Floats, arm: int, reward: float) -> None:
        self.n[arm] += 1.0
        self.sum[arm] += reward


class Neighbours(EpsilonMean):
    """Each model's mean over the nearest prompts, shrunk to its mean over all, with ε-greedy exploration."""

    def __init__(self, d: int, K: int, seed: int) -> None:
        super().__init__(d, K, seed)
        self.seen: list[tuple[list[Floats], list[float]]] = [([], []) for _ in range(K)]

    def predicted(self, x: Floats) -> Floats:
        found = super().predicted(x)
        for k, (contexts, rewards) in enumerate(self.seen):
            if contexts:
                near = np.argsort(((np.array(contexts) - x) ** 2).sum(axis=1))[:_NEIGHBOURS]
                found[k] = (np.array(rewards)[near].sum() + 10.0 * found[k]) / (len(near) + 10.0)
        return found

    def update(self, x: Floats, arm: int, reward: float) -> None:
        super().update(x, arm, reward)
        self.seen[arm][0].append(x)
        self.seen[arm][1].append(reward)


class Ridge(EpsilonMean):
    """A ridge regression of each model's rewards on the context, with ε-greedy exploration."""

    def __init__(self, d: int, K: int, seed: int) -> None:
        super().__init__(d, K, seed)
        self.inverse, self.right = np.tile(np.eye(d) / _RIDGE, (K, 1, 1)), np.zeros((K, d))

    def predicted(self, x: Floats) -> Floats:
        weights = np.einsum("kij,kj->ki", self.inverse, self.right)
        return np.where(self.n > 0.0, weights @ x, 1.0)

    def update(self, x: Floats, arm: int, reward: float) -> None:
        super().update(x, arm, reward)
        gain = self.inverse[arm] @ x
        self.inverse[arm] -= np.outer(gain, gain) / (1.0 + x @ gain)
        self.right[arm] += reward * x


SIMPLE: dict[str, Callable[[int, int, int], Peer]] = {
    "Beta-Thompson, no context": BetaThompson,
    "mean, ε-greedy": EpsilonMean,
    "nearest neighbours, ε-greedy": Neighbours,
    "ridge, ε-greedy": Ridge,
}
