"""Heads of a person: Gaussian posteriors of a taste over text features and an offset per model, at one prior width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fitrouter.posterior.gaussian import Gaussian, GaussianUpdate
from fitrouter.types import Floats


class Width(msgspec.Struct, frozen=True, kw_only=True):
    """Prior variances of a head, for labels in [0, 1] and features of about unit variance."""

    level: float
    """Of the coordinate "one": how much more or less a person likes everything."""
    offset: float
    """Of each model's offset."""
    taste: float = 0.0
    """Of hᵀδ, spread evenly over the features."""
    named: dict[str, float] = {}
    """Feature → variance of its coordinate, in addition to its share of `taste`."""
    forget: float = 0.0
    """ρ of an AR(1) process with the prior as stationary distribution: share of the prior that returns per label."""


class HeadPrior(NamedTuple):
    """A `Width` over the features of an installation."""

    features: NDArray[np.intp]
    """Features with a coordinate in the head."""
    variance: Floats
    """Of these."""
    offset: float
    forget: float

    @classmethod
    def of(cls, width: Width, names: Mapping[str, int], D: int) -> HeadPrior:
        """The prior over D features, of which some have names."""
        variance = np.full(D, width.taste / max(D - 1, 1))
        variance[0] = width.level
        for name, more in width.named.items():
            if name in names:
                variance[names[name]] += more
        features = np.flatnonzero(variance > 0.0)
        return cls(features, variance[features], width.offset, width.forget)


class Rows(NamedTuple):
    """Linear combinations of answers that heads predict: one for a label, K for a decision."""

    h: Floats
    """float64[R, D]: features."""
    models: tuple[str, ...]
    """Base arms."""
    coefficient: Floats
    """float64[R, len(models)]: how often each model's offset counts."""


class _Columns(NamedTuple):
    """Where the offsets of some models are."""

    models: tuple[str, ...]
    known: list[int]
    places: list[int]
    """Columns of `Rows.coefficient` with a coordinate, and their coordinates."""
    unknown: list[int]
    """Columns without one."""


class Head:
    """N(mean, cov) over [taste δ over `HeadPrior.features`, offsets d of the models that were labelled].

    Args:
        prior: of all coordinates; models without a label have no coordinate yet.
    """

    __slots__ = ("_columns", "models", "posterior", "prior")

    def __init__(self, prior: HeadPrior) -> None:
        self.prior = prior
        self.models: dict[str, int] = {}
        """Base arm → its coordinate."""
        self.posterior: Gaussian | None = None
        """None before the first label."""
        self._columns: _Columns | None = None

    def _find(self, models: tuple[str, ...]) -> _Columns:
        """Columns of the models; most requests have the same as the last."""
        if self._columns is None or self._columns.models is not models:
            places = [self.models.get(model, -1) for model in models]
            known = [column for column, place in enumerate(places) if place >= 0]
            unknown = [column for column, place in enumerate(places) if place < 0]
            self._columns = _Columns(models, known, [places[column] for column in known], unknown)
        return self._columns

    def _design(self, rows: Rows) -> Floats:
        """float64[R, n]: coefficients of the coordinates."""
        taste, found = len(self.prior.features), self._find(rows.models)
        z = np.zeros((len(rows.h), taste + len(self.models)))
        z[:, :taste] = rows.h[:, self.prior.features]
        if found.known:
            z[:, found.places] = rows.coefficient[:, found.known]
        return z

    def predict(self, rows: Rows, *, centred: bool = False) -> tuple[Floats, Floats]:
        """Mean and variance of the deviation, float64[R] each.

        Args:
            rows: what is predicted.
            centred: the variance is that of each row minus the mean row.
        """
        z, block = self._design(rows), self.posterior
        mean: Floats = np.zeros(len(z)) if block is None else np.einsum("rn,n->r", z, block.mean)
        unknown = self._find(rows.models).unknown
        rest = rows.coefficient[:, unknown]
        if centred:
            z, rest = z - np.add.reduce(z) / len(z), rest - np.add.reduce(rest) / len(z)
        if block is None:
            variance: Floats = np.einsum("rn,rn,n->r", z, z, self.prior.variance)
        else:
            variance = np.einsum("rn,rn->r", np.einsum("rn,nm->rm", z, block.cov), z)
        if unknown:
            variance = variance + self.prior.offset * np.einsum("rn,rn->r", rest, rest)
        return mean, variance

    def novelty(self, rows: Rows) -> float:
        """Posterior variance of the offsets in the first row, as a share of the prior's."""
        offsets = rows._replace(h=np.zeros_like(rows.h))
        prior = self.prior.offset * float(np.einsum("rm,rm->", rows.coefficient, rows.coefficient))
        return min(max(float(self.predict(offsets)[1][0]) / prior, 0.0), 1.0) if prior > 0.0 else 1.0

    def mean_taste(self, D: int) -> Floats:
        """float64[D]."""
        mean = np.zeros(D)
        if self.posterior is not None:
            mean[self.prior.features] = self.posterior.mean[: len(self.prior.features)]
        return mean

    def taste(self, D: int) -> tuple[Floats, Floats]:
        """Mean float64[D] and covariance float64[D, D] of the taste."""
        cov, at = np.zeros((D, D)), self.prior.features
        if self.posterior is None:
            cov[at, at] = self.prior.variance
        else:
            cov[at[:, None], at] = self.posterior.cov[: len(at), : len(at)]
        return self.mean_taste(D), cov

    def offset(self, model: str) -> float:
        """Expected offset of a model."""
        place = self.models.get(model)
        return 0.0 if place is None or self.posterior is None else float(self.posterior.mean[place])

    def learn(self, rows: Rows, update: GaussianUpdate) -> None:
        """Fold a label along one row."""
        block = self._extended([model for model, used in zip(rows.models, rows.coefficient[0], strict=True) if used])
        block.learn(block.gain(self._design(rows)[0]), update)

    def shift(self, rows: Rows, step: float) -> None:
        """Move the mean by S z · step: a label of the past that was changed; of unknown age where the head forgets."""
        if self.posterior is not None and not self.prior.forget:
            self.posterior.learn(self.posterior.gain(self._design(rows)[0]), GaussianUpdate(step, 0.0))

    def age(self) -> None:
        """One step of the AR(1) process before a label."""
        if self.posterior is None or not self.prior.forget:
            return
        rho, block = self.prior.forget, self.posterior
        diagonal = np.concatenate([self.prior.variance, np.full(len(self.models), self.prior.offset)])
        self.posterior = Gaussian(block.mean * np.sqrt(1.0 - rho), block.cov * (1.0 - rho) + np.diag(rho * diagonal))

    def forget(self, model: str) -> None:
        """Reset the offset of a model to its prior, independent of everything else."""
        place, block = self.models.get(model), self.posterior
        if place is None or block is None:
            return
        state = block.state.copy()
        state[:, place] = 0.0
        state[place, :] = 0.0
        state[place, place] = self.prior.offset
        block.state = state

    def rebase(self, shift: Floats) -> None:
        """Keep the sum of a declared mean and this deviation exact when the declared mean moves by `shift`, float64[D].

        The prior of the sum moves by `shift`, its posterior by S Λ shift with the prior precision Λ.
        """
        if self.posterior is None:
            return
        at = self.prior.features
        pull = np.zeros(len(self.posterior.mean))
        pull[: len(at)] = shift[at] / self.prior.variance
        moved = np.einsum("nm,m->n", self.posterior.cov, pull)
        moved[: len(at)] -= shift[at]
        self.posterior.mean = self.posterior.mean + moved

    def _extended(self, models: Sequence[str]) -> Gaussian:
        """The posterior with a coordinate for each of these models."""
        block = self.posterior or Gaussian.prior(np.zeros(len(self.prior.variance)), self.prior.variance)
        for model in models:
            if model not in self.models:
                n = len(block.mean)
                self.models[model] = n
                cov = np.zeros((n + 1, n + 1))
                cov[:n, :n], cov[n, n] = block.cov, self.prior.offset
                block = Gaussian(np.append(block.mean, 0.0), cov)
                self._columns = None
        self.posterior = block
        return block

    # --- state ---

    def dump(self) -> tuple[list[str], bytes]:
        """The models in the order of their coordinates, and the posterior; no bytes before the first label."""
        return list(self.models), b"" if self.posterior is None else self.posterior.state.tobytes()

    @classmethod
    def load(cls, stored: tuple[list[str], bytes], prior: HeadPrior) -> Head:
        """The head that `dump` stored.

        Raises:
            ValueError: another dimension, a number that is not finite, or a negative variance.
        """
        head, (models, payload) = cls(prior), stored
        taste = len(prior.features)
        n = taste + len(models)
        head.models = {model: taste + place for place, model in enumerate(models)}
        if payload or models:
            state = np.frombuffer(payload).reshape(n + 1, n)
            head.posterior = Gaussian(state[-1].copy(), state[:-1].copy())
            if not head.posterior.valid() or len(head.models) != len(models):
                raise ValueError("not the posterior of a head")
        return head
