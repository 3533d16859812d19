"""Bayesian mixture of nested heads: how far a person's own terms count.

Each person has a weight for every head of `EXPERTS`, multiplied by the likelihood of each of their labels under the
head's prediction from before it. A fixed share then goes back to the prior, so that people may change (Herbster and
Warmuth 1998, "Tracking the best expert"). For any sequence of n labels and any head e,

    loss(mixture) ≤ loss(e) + ln(1 / π(e)) + n ln(1 / (1 − share))

with losses in nats and π the weights before the first label. The prior is common to all people and learnt by
exponentiated gradient steps on their weights (Kivinen and Warmuth 1997); its fixed point is the maximum-likelihood
estimate of the mixture proportions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np

from fitrouter.plain import Projection
from fitrouter.types import Floats

EXPERTS = ("population", "declared", "narrow", "length", "form", "medium", "wide")
"""Heads of a person: without any own term; with declared values; and with a taste and offsets of five priors."""

TEMPERATURES: Floats = 2.0 ** np.arange(-2.5, 1.5, 0.5)
"""Factors of the temperature of people's choices: how decisively somebody judges. They have weights as heads have."""

Context: TypeAlias = Literal["user", "role", "sensitive", "temperature"]
"""Whose weights: a user's, a role's, a user's in the service of a sensitive role, or a user's of `TEMPERATURES`."""

SHARE = 0.003
"""Weight that goes back to the prior with each label."""
RATE = 1.0
"""Step size of the common prior (docs/results/people.md)."""
FLOOR = 0.03
"""Share of the start in the common prior, so that no head is ever out of reach for a new person."""
START: dict[Context, tuple[float, ...]] = {
    "user": (0.06, 0.06, 0.12, 0.12, 0.29, 0.12, 0.23),
    "role": (0.05, 0.05, 0.05, 0.05, 0.11, 0.32, 0.37),
    "sensitive": (0.95, 0.01, 0.01, 0.01, 0.01, 0.005, 0.005),
    "temperature": (0.02, 0.03, 0.05, 0.1, 0.2, 0.4, 0.15, 0.05),
}
"""Prior weights before any label of this installation (docs/results/people.md)."""


_LEAST: dict[Context, Floats] = {context: FLOOR * np.array(start) for context, start in START.items()}


def updated(weights: Floats, log_likelihood: Floats, prior: Floats) -> tuple[Floats, Floats]:
    """Update the weights of heads by a label, float64[E] each.

    Args:
        weights: before the label.
        log_likelihood: of the label under each head's prediction from before it.
        prior: receives the fixed share.

    Returns:
        The posterior weights, and the same with the fixed share: those that predict the next label.
    """
    moved = weights * np.exp(log_likelihood - np.maximum.reduce(log_likelihood))
    moved /= np.add.reduce(moved)
    return moved, (1.0 - SHARE) * moved + SHARE * prior


class MixturePrior(Projection):
    """Prior weights of `EXPERTS` for each context, learnt from everybody's labels."""

    stored_type = list[tuple[Context, bytes]]

    def __init__(self) -> None:
        self._logits: dict[Context, Floats] = {context: np.log(np.array(start)) for context, start in START.items()}
        self._weights = {context: _prior(context, logits) for context, logits in self._logits.items()}

    def weights(self, context: Context) -> Floats:
        """Return the prior weights of a context, float64[E], positive with sum 1.

        The array is replaced, never changed.
        """
        return self._weights[context]

    def learn(self, context: Context, change: Floats) -> None:
        """Move the logits by the change of a person's posterior weights after one label, float64[E]."""
        self._logits[context] = np.maximum(self._logits[context] + RATE * change, -12.0)
        self._weights[context] = _prior(context, self._logits[context])

    def _store(self) -> list[tuple[Context, bytes]]:
        return [(context, logits.tobytes()) for context, logits in sorted(self._logits.items())]

    def _restore(self, stored: list[tuple[Context, bytes]]) -> bool:
        logits: dict[Context, Floats] = {context: np.frombuffer(payload).copy() for context, payload in stored}
        if logits.keys() != START.keys():
            return False
        if not all(len(row) == len(START[c]) and np.isfinite(row).all() for c, row in logits.items()):
            return False
        self._logits = logits
        self._weights = {context: _prior(context, row) for context, row in logits.items()}
        return True


def _prior(context: Context, logits: Floats) -> Floats:
    """Compute weights from logits by a softmax with a floor, float64[E]."""
    learnt = np.exp(logits - np.maximum.reduce(logits))
    weights: Floats = (1.0 - FLOOR) * learnt / np.add.reduce(learnt) + _LEAST[context]
    return weights


class ModelAverage(Projection):
    """Bayesian model average: weights of C posteriors of one quantity by how well each has predicted all labels so far.

    Args:
        start: prior weights of the C posteriors.
    """

    stored_type = bytes
    share = 1e-6
    """Weight that returns to the prior's with each label: so little that evidence adds up, and none is lost."""

    def __init__(self, start: Sequence[float]) -> None:
        self.start: Floats = np.array(start) / math.fsum(start)
        self.weights: Floats = self.start
        """float64[C], replaced with each label."""

    def learn(self, log_likelihood: Floats) -> None:
        """Update the weights by the log likelihoods of one label, float64[C]."""
        moved = self.weights * np.exp(log_likelihood - np.maximum.reduce(log_likelihood))
        self.weights = (1.0 - self.share) * moved / np.add.reduce(moved) + self.share * self.start

    def _store(self) -> bytes:
        return self.weights.tobytes()

    def _restore(self, stored: bytes) -> bool:
        weights = np.frombuffer(stored)
        if len(weights) != len(self.weights) or not (weights > 0).all() or not abs(weights.sum() - 1.0) < 1e-9:
            return False
        self.weights = weights.copy()
        return True
