"""Posteriors of a person, a user or a role: heads of several prior widths, their weights, and a rating scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from fitrouter.posterior.gaussian import Gaussian
from fitrouter.posterior.heads import Head, HeadPrior, Rows
from fitrouter.posterior.mixture import EXPERTS, Context, MixturePrior, updated
from fitrouter.posterior.rating_scale import RatingScale
from fitrouter.types import Floats, Projection

DAY_S = 86_400.0
"""Seconds of a day."""


class _Stored(msgspec.Struct, array_like=True):
    heads: list[tuple[list[str], bytes]]
    weights: list[tuple[Context, bytes]]
    declared: bytes
    others: list[tuple[str, bytes, bytes]]
    scale: tuple[bytes, bytes]
    day: int
    votes: list[tuple[str, int]]
    pooled: list[str]


class Deviation(NamedTuple):
    """A person's deviation from the population under each of `EXPERTS`, for R rows, and their weights."""

    weights: Floats
    """float64[E]."""
    means: Floats
    variances: Floats
    """float64[E, R] each. If they are centred, variances are those of each row minus the mean row."""
    centred: bool = False

    @property
    def mean(self) -> Floats:
        """float64[R]: of the mixture."""
        out: Floats = np.einsum("e,er->r", self.weights, self.means)
        return out

    @property
    def variance(self) -> Floats:
        """float64[R]: of the mixture, by the law of total variance."""
        apart = self.means - self.mean
        if self.centred:
            apart = apart - np.add.reduce(apart, axis=1, keepdims=True) / apart.shape[1]
        out: Floats = np.einsum("e,er->r", self.weights, self.variances + apart * apart)
        return out


class Person(Projection):
    """Heads of a user or a role.

    Args:
        D: length of the response features.
        priors: of the heads, the last of `EXPERTS`.
    """

    stored_type = _Stored

    def __init__(self, D: int, priors: Sequence[HeadPrior]) -> None:
        self.D = D
        self.heads = [Head(prior) for prior in priors]
        self.weights: dict[Context, Floats] = {}
        """Weights of `EXPERTS`; empty before the first label."""
        self.declared = np.zeros(D)
        """Prior mean of the taste that was declared."""
        self.others: dict[str, Gaussian] = {}
        """Dimension other than overall → the taste in it."""
        self.scale = RatingScale()
        self.day = 0
        self.votes: dict[str, int] = {}
        """arm → votes that counted for others on `day`."""
        self.pooled: set[str] = set()
        """Votes of `day` that counted for others, by their names."""

    # --- reading ---

    def deviation(
        self, rows: Rows, weights: Floats, base: tuple[Floats, Floats] | None = None, *, centred: bool = False
    ) -> Deviation:
        """Predictions of `EXPERTS`.

        Args:
            rows: what is predicted.
            weights: of the experts, float64[E].
            base: mean and variance of what every expert but the first adds: the role's deviation, float64[R] each.
            centred: variances are those of each row minus the mean row.
        """
        means, variances = np.zeros((2, len(EXPERTS), len(rows.h)))
        if self.declared.any():
            means[1:] = np.einsum("rd,d->r", rows.h, self.declared)
        for e, head in enumerate(self.heads, start=len(EXPERTS) - len(self.heads)):
            mean, variances[e] = head.predict(rows, centred=centred)
            means[e] += mean
        if base is not None:
            means[1:] += base[0]
            variances[1:] += base[1]
        return Deviation(weights, means, variances, centred)

    def weights_in(self, context: Context, prior: MixturePrior) -> Floats:
        """float64[E]: weights of the experts in a context, the common prior's before the first label there."""
        found = self.weights.get(context)
        return prior.weights(context) if found is None else found

    def novelty(self, rows: Rows, weights: Floats) -> float:
        """Information of a label on a model's correction, as a share of what a new person's label would have.

        n labels with noise R of a person whose offset has variance τ² tell 1 / (τ² + R / n) about the model: the n-th
        adds about (v / τ²)² / R, with v = τ² R / (R + n τ²) the posterior variance of the offset.
        """
        own = sum(w * head.novelty(rows) ** 2 for w, head in zip(weights[2:].tolist(), self.heads, strict=True))
        return float(weights[0] + weights[1] + own)

    def mean_taste(self, weights: Floats) -> Floats:
        """float64[D]: mean of the mixture's taste."""
        mean: Floats = (1.0 - float(weights[0])) * self.declared
        for weight, head in zip(weights[2:].tolist(), self.heads, strict=True):
            mean = mean + weight * head.mean_taste(self.D)
        return mean

    def taste(self, weights: Floats) -> tuple[Floats, Floats]:
        """Mean float64[D] and covariance float64[D, D] of the mixture's taste."""
        found = [head.taste(self.D) for head in self.heads]
        means = [np.zeros(self.D), self.declared, *(self.declared + mean for mean, _ in found)]
        mean = np.einsum("e,ed->d", weights, np.stack(means))
        cov = np.einsum("e,eij->ij", weights[2:], np.stack([cov for _, cov in found]))
        apart = np.stack(means) - mean
        cov += np.einsum("e,ei,ej->ij", weights, apart, apart)
        return mean, cov

    def offset(self, model: str, weights: Floats) -> float:
        """The mixture's expected offset of a model."""
        return float(sum(w * head.offset(model) for w, head in zip(weights[2:].tolist(), self.heads, strict=True)))

    # --- learning ---

    def reweigh(self, context: Context, log_likelihood: Floats, prior: MixturePrior, *, pooled: bool) -> None:
        """Update the weights of the experts with a label's log likelihoods, float64[E], and the common prior."""
        before, common = self.weights_in(context, prior), prior.weights(context)
        posterior, self.weights[context] = updated(before, log_likelihood, common)
        if pooled:
            prior.learn(context, posterior - before)

    def declare(self, mean: Floats) -> None:
        """Replace the declared mean of the taste; labels that the heads have learnt keep their evidence."""
        for head in self.heads:
            head.rebase(mean - self.declared)
        self.declared = mean.copy()

    def forget(self, model: str) -> None:
        """Drop the evidence on a model's offset."""
        for head in self.heads:
            head.forget(model)

    def counts(self, arm: str, day: int, cap: int, vote: str) -> bool:
        """Whether a new vote updates shared terms: the first `cap` on an arm and day do. Records those that do."""
        if day != self.day:
            self.day, self.votes, self.pooled = day, {}, set()
        if self.votes.get(arm, 0) >= cap:
            return False
        self.votes[arm] = self.votes.get(arm, 0) + 1
        self.pooled.add(vote)
        return True

    # --- state ---

    def _store(self) -> _Stored:
        return _Stored(
            [head.dump() for head in self.heads],
            [(context, weights.tobytes()) for context, weights in sorted(self.weights.items())],
            self.declared.tobytes(),
            [(name, *block.dump()) for name, block in sorted(self.others.items())],
            self.scale.state.dump(),
            self.day,
            sorted(self.votes.items()),
            sorted(self.pooled),
        )

    def _restore(self, stored: _Stored) -> bool:
        heads = [Head.load(each, head.prior) for each, head in zip(stored.heads, self.heads, strict=True)]
        weights: dict[Context, Floats] = {
            context: _floats(payload, len(EXPERTS)) for context, payload in stored.weights
        }
        declared, scale = _floats(stored.declared, self.D), Gaussian.load(*stored.scale, 2)
        others = {name: Gaussian.load(mean, cov, self.D) for name, mean, cov in stored.others}
        if not np.isfinite(declared).all() or not all(np.isfinite(row).all() for row in weights.values()):
            return False
        if any((row < 0).any() or not 0.999 < row.sum() < 1.001 for row in weights.values()):
            return False
        self.heads, self.weights, self.declared, self.others = heads, weights, declared, others
        self.scale.state = scale
        self.day, self.votes, self.pooled = stored.day, dict(stored.votes), set(stored.pooled)
        return True


def _floats(payload: bytes, *shape: Any) -> Floats:
    return np.frombuffer(payload, dtype=np.float64).reshape(shape).copy()
