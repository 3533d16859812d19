"""Heads of a person: Gaussian posteriors of a taste over text features and an offset per model, at several widths.

Heads over the same coordinates are stacked: E heads of n coordinates. `LowRankHeads` keeps a few kilobytes for a user:
a posterior covariance is S = P − UᵀU with the diagonal prior P and one row of U per label. From `RANK` labels on, the
direction that labels say least about returns to its prior (limited-memory Kalman filter, Lambert et al. 2023,
"The limited-memory recursive variational Gaussian approximation"). `DenseHeads` keeps S itself, for roles, of which
there are few with many labels.

State is rounded after every update, so that it never depends on when it was stored and read again.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fitrouter.posterior.gaussian import Gaussian, GaussianUpdate
from fitrouter.types import Floats

RANK = 7
"""Directions that a user's posteriors remember (docs/results/memory.md)."""
_SQUARINGS = 4
_LEAST = 1e-4
"""Share of the prior's variance that rounding leaves at least."""


HINGES: Mapping[str, float] = {"length_over_short": -1.0, "length_over_average": 0.0, "length_over_long": 1.0}
"""Feature → t of max(length − t, 0), minus its mean for a standard normal length: longer is better up to a point, and
then worse (docs/results/people.md). Only what everybody prefers has these coordinates: people's own slopes beyond t
brought .002 nats ± .001."""


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

    def variances(self, names: Mapping[str, int], D: int) -> Floats:
        """Return the prior variances of D features, of which some have names, float64[D]."""
        variance = evenly(self.taste, names, D)
        variance[0] = self.level
        for name, more in self.named.items():
            if name in names:
                variance[names[name]] += more
        return variance


def evenly(variance: float, names: Mapping[str, int], D: int) -> Floats:
    """Spread a variance of hᵀw evenly over D features of about unit variance, without the first and `HINGES`."""
    hinges = [names[name] for name in HINGES if name in names]
    found = np.full(D, variance / max(D - 1 - len(hinges), 1))
    found[[0, *hinges]] = 0.0
    return found


def length_columns(names: Sequence[str]) -> list[int]:
    """Columns of the length and its `HINGES`, which are one curve: no single weight says what people like of it.

    Empty for features without hinges.
    """
    found = [names.index(name) for name in ("length", *HINGES) if name in names]
    return found if len(found) > 1 else []


class HeadPriors:
    """Prior variances of E heads over the same features.

    Args:
        widths: of the heads.
        variances: float64[E, D], positive in the same columns.
    """

    __slots__ = ("_diagonals", "features", "offset", "variance")

    def __init__(self, widths: Sequence[Width], variances: Floats) -> None:
        self.features: NDArray[np.intp] = np.flatnonzero(variances[0] > 0.0)
        """Features with a coordinate in the heads."""
        self.variance: Floats = variances[:, self.features]
        """float64[E, len(features)]."""
        self.offset = np.array([width.offset for width in widths])
        """float64[E]."""
        self._diagonals: dict[int, Floats] = {}

    @classmethod
    def grouped(cls, widths: Sequence[Width], names: Mapping[str, int], D: int) -> list[HeadPriors]:
        """Build the priors of all widths in order; consecutive widths with the same features form one group."""
        groups: list[tuple[list[Width], list[Floats]]] = []
        for width in widths:
            variance = width.variances(names, D)
            if not groups or ((groups[-1][1][0] > 0.0) != (variance > 0.0)).any():
                groups.append(([], []))
            groups[-1][0].append(width)
            groups[-1][1].append(variance)
        return [cls(members, np.stack(variances)) for members, variances in groups]

    def diagonal(self, models: int) -> Floats:
        """Prior variances of the features and of some models' offsets, float64[E, n]."""
        found = self._diagonals.get(models)
        if found is None:
            found = np.concatenate([self.variance, np.repeat(self.offset[:, None], models, axis=1)], axis=1)
            self._diagonals[models] = found
        return found


class Rows(NamedTuple):
    """Linear combinations of answers that heads predict: one row for a label, K rows for a decision."""

    h: Floats
    """Features, float64[R, D]."""
    models: tuple[str, ...]
    """Base arms."""
    coefficient: Floats
    """How often each model's offset counts, float64[R, len(models)]."""


class Seen(NamedTuple):
    """What E heads predicted for the row of a label before they learnt it."""

    mean: list[float]
    variance: list[float]
    """Of the deviation."""
    gains: Floats
    """S z, float64[E, n], over the coordinates of before the label."""


class _Columns(NamedTuple):
    """Which columns of a row have an offset among a person's coordinates."""

    known: list[int]
    places: list[int]
    """Columns of `Rows.coefficient` with a coordinate, and the places of their models."""
    unknown: list[int]
    """Columns without one."""


@lru_cache(maxsize=4096)
def _columns(own: tuple[str, ...], models: tuple[str, ...]) -> _Columns:
    at = {model: place for place, model in enumerate(own)}
    known = [column for column, model in enumerate(models) if model in at]
    unknown = [column for column, model in enumerate(models) if model not in at]
    return _Columns(known, [at[models[column]] for column in known], unknown)


@lru_cache(maxsize=4096)
def _shared(models: tuple[str, ...]) -> tuple[str, ...]:
    """Return the one tuple object that all people with the same models share."""
    return models


class Heads(abc.ABC):
    """E Gaussian posteriors over [taste δ over `HeadPriors.features`, offsets d of the models that were labelled].

    Updates replace arrays, the mean last: readers in other threads that find the same mean as before have read no part
    of an update.

    Args:
        priors: of all coordinates; models without a label have no coordinate yet.
    """

    __slots__ = ("mean", "models", "priors")
    precision: Any
    """dtype of the mean."""

    def __init__(self, priors: HeadPriors) -> None:
        self.priors = priors
        self.models: tuple[str, ...] = ()
        """Base arms in the order of their coordinates."""
        self.mean: NDArray[Any] = np.zeros(priors.variance.shape, self.precision)
        """[E, n]."""

    def __len__(self) -> int:
        return len(self.mean)

    @property
    @abc.abstractmethod
    def labelled(self) -> bool:
        """Whether a label was learnt."""

    @abc.abstractmethod
    def finite(self) -> bool:
        """Whether every number is finite."""

    @abc.abstractmethod
    def along(self, z: Floats) -> tuple[Floats, list[float]]:
        """Return S z, float64[E, n], and zᵀ S z under each head, for one z."""

    @abc.abstractmethod
    def _offsets(self, places: list[int], coefficient: list[float]) -> list[float]:
        """Variance of a weighted sum of at least one model's offsets under each head."""

    @abc.abstractmethod
    def times(self, z: Floats) -> Floats:
        """Compute S z for one z shared by all heads, or for one row per head, float64[E, n]."""

    @abc.abstractmethod
    def covariance(self, weights: Floats) -> Floats:
        """Weighted sum of the heads' covariances, float64[n, n]."""

    @abc.abstractmethod
    def _reduce(self, gains: Floats, shrink: Floats) -> None:
        """Subtract the outer products of float64[E, n] times float64[E] from the covariances."""

    @abc.abstractmethod
    def _reset(self) -> None:
        """Return the covariances to the prior."""

    @abc.abstractmethod
    def _clear(self, place: int) -> None:
        """Make a coordinate independent, with its prior variance."""

    @abc.abstractmethod
    def _grow(self, models: int) -> None:
        """Append independent coordinates with their prior variances."""

    @abc.abstractmethod
    def _spread(self) -> bytes:
        """The covariances as bytes."""

    @abc.abstractmethod
    def _take_spread(self, payload: bytes) -> None:
        """Restore the covariances from bytes; ValueError if they do not fit the present models."""

    # --- reading ---

    @property
    def _diagonal(self) -> Floats:
        return self.priors.diagonal(len(self.models))

    def _design(self, rows: Rows) -> Floats:
        """Build the coefficients of the coordinates for some rows, float64[R, n]."""
        taste, found = len(self.priors.features), _columns(self.models, rows.models)
        z = np.zeros((len(rows.h), taste + len(self.models)))
        z[:, :taste] = rows.h if taste == rows.h.shape[1] else rows.h[:, self.priors.features]
        for column, place in zip(found.known, found.places, strict=True):
            z[:, taste + place] = rows.coefficient[:, column]
        return z

    def observe(self, rows: Rows) -> Seen:
        """Predict the one row of a label, and return what learning from it needs."""
        z = self._design(rows)[0]
        gains, variance = self.along(z)
        mean: list[float] = np.einsum("en,n->e", self.mean, z).tolist()
        if unknown := _columns(self.models, rows.models).unknown:
            counted = _squares(rows.coefficient[0].tolist(), unknown)
            variance = [v + offset * counted for v, offset in zip(variance, self.priors.offset.tolist(), strict=True)]
        return Seen(mean, variance, gains)

    def novelty(self, rows: Rows) -> list[float]:
        """Posterior variance of the first row's offsets as a share of the prior's, for each head."""
        found, coefficient = _columns(self.models, rows.models), rows.coefficient[0].tolist()
        counted, rest = math.fsum([c * c for c in coefficient]), _squares(coefficient, found.unknown)
        if counted <= 0.0 or not found.known:
            return [1.0] * len(self)
        own, prior = self._offsets(found.places, [coefficient[c] for c in found.known]), self.priors.offset.tolist()
        return [
            min(max((v + p * rest) / (p * counted), 0.0), 1.0) if p > 0.0 else 1.0
            for v, p in zip(own, prior, strict=True)
        ]

    def tastes(self) -> Floats:
        """Posterior means of the taste, float64[E, len(features)]."""
        means: Floats = self.mean[:, : len(self.priors.features)].astype(np.float64)
        return means

    def offsets(self, model: str) -> Floats:
        """Posterior means of a model's offset, float64[E]."""
        if model not in self.models:
            return np.zeros(len(self))
        found: Floats = self.mean[:, len(self.priors.features) + self.models.index(model)].astype(np.float64)
        return found

    # --- learning ---

    def learn(self, rows: Rows, step: Floats, shrink: Floats, gains: Floats | None = None) -> None:
        """Learn a label along one row: mean += S z · step, S −= (S z)(S z)ᵀ · shrink, float64[E] each.

        Args:
            rows: what was observed.
            step: of each head.
            shrink: of each head.
            gains: `Seen.gains` of the row, if it is known.
        """
        if gains is None:
            gains = self.times(self._design(rows)[0])
        new = [c for c in _columns(self.models, rows.models).unknown if rows.coefficient[0, c]]
        if new:
            models = _shared((*self.models, *(rows.models[c] for c in new)))
            self._grow(len(new))
            self.mean = np.concatenate([self.mean, np.zeros((len(self), len(new)), self.precision)], axis=1)
            self.models = models  # last: readers in other threads use as many coordinates as there are models
            gains = np.concatenate([gains, np.multiply.outer(self.priors.offset, rows.coefficient[0, new])], axis=1)
        self.fold(gains, step, shrink)

    def fold(self, gains: Floats, step: Floats, shrink: Floats) -> None:
        """Apply the update of `learn`, given `gains` = S z, float64[E, n]."""
        if np.count_nonzero(shrink):
            self._reduce(gains, shrink)
        self._move(gains * step[:, None])

    def _move(self, by: Floats) -> None:
        self.mean = (self.mean + by).astype(self.precision, copy=False)

    def shift(self, rows: Rows, step: float) -> None:
        """Move the means by S z · step after a past label changed."""
        if self.labelled:
            self._move(self.times(self._design(rows)[0]) * step)

    def unlearn(self, rows: Rows, step: Floats, shrink: Floats) -> None:
        """Undo in the means what one row taught; exact if nothing was learnt since.

        The covariances keep what they know until a refit.

        Args:
            rows: what was observed.
            step: of the present prediction, with the variance of everything else alone; float64[E], as is `shrink`.
            shrink: it is bounded so that no variance along the row becomes larger than the prior's.
        """
        if not self.labelled:
            return
        z = self._design(rows)[0]
        gains = self.times(z)
        own = np.maximum(np.einsum("en,n->e", gains, z), 1e-300)
        prior = np.maximum(np.einsum("n,n,en->e", z, z, self._diagonal), 1e-300)
        counted = np.maximum(np.minimum(shrink, 1.0 / own - 1.0 / prior), 0.0)
        share = np.divide(counted, shrink, out=np.zeros_like(shrink), where=shrink > 0.0)
        self._move(-gains * (step * share / (1.0 - counted * own))[:, None])

    def loosen(self, kept: float) -> None:
        """Keep a share of the means, and return the covariances to the prior: the person may have changed."""
        if self.labelled:
            self._reset()
            self.mean = self.mean * self.precision(kept)

    def forget(self, model: str) -> None:
        """Reset the offset of a model to its prior, independent of everything else."""
        if model in self.models:
            place = len(self.priors.features) + self.models.index(model)
            mean = self.mean.copy()
            mean[:, place] = 0.0
            self._clear(place)
            self.mean = mean

    def rebase(self, shift: Floats) -> None:
        """Keep the sum of a declared mean and this deviation exact when the declared mean moves by `shift`, float64[D].

        The prior of the sum moves by `shift`, its posterior by S Λ shift with the prior precision Λ.
        """
        if not self.labelled:
            return
        at = self.priors.features
        pull = np.zeros(self.mean.shape)
        pull[:, : len(at)] = shift[at] / self.priors.variance
        moved = self.times(pull)
        moved[:, : len(at)] -= shift[at]
        self._move(moved)

    # --- state ---

    def dump(self) -> tuple[tuple[str, ...], bytes, bytes]:
        """Return the models in coordinate order, the means and the covariances; empty bytes before any label."""
        return self.models, self.mean.tobytes() if self.labelled else b"", self._spread() if self.labelled else b""

    def load(self, models: tuple[str, ...], mean: bytes, spread: bytes) -> None:
        """Restore the heads from the output of `dump`.

        Raises:
            ValueError: another dimension, a number that is not finite, or a negative variance.
        """
        if not mean and not models:
            return
        taste = len(self.priors.features)
        found = np.frombuffer(mean, self.precision).reshape(len(self), taste + len(models))
        if not np.isfinite(found).all() or len(set(models)) != len(models):
            raise ValueError("not the posteriors of heads")
        self.models, self.mean = _shared(models), found.copy()
        self._take_spread(spread)


class LowRankHeads(Heads):
    """Heads of a user, with covariances S = P − UᵀU of at most `RANK` rows in U."""

    __slots__ = ("factors",)
    precision = np.float32

    def __init__(self, priors: HeadPriors) -> None:
        super().__init__(priors)
        self.factors: NDArray[np.float16] = np.zeros((len(self), 0, self.mean.shape[1]), np.float16)
        """U, float16[E, k, n]."""

    @property
    def labelled(self) -> bool:
        """Whether a label was learnt."""
        return bool(self.factors.shape[1])

    def finite(self) -> bool:
        """Whether every number is finite."""
        return bool(np.isfinite(self.mean).all() and np.isfinite(self.factors).all())

    def along(self, z: Floats) -> tuple[Floats, list[float]]:
        """Return S z, float64[E, n], and zᵀ S z under each head, for one z."""
        gains = self._diagonal * z
        prior: list[float] = np.einsum("en,n->e", gains, z).tolist()
        if not self.labelled:
            return gains, prior
        factors = self.factors.astype(np.float64)
        along = np.einsum("ekn,n->ek", factors, z)
        gains -= np.einsum("ek,ekn->en", along, factors)
        return gains, _positive(prior, np.einsum("ek,ek->e", along, along).tolist())

    def _offsets(self, places: list[int], coefficient: list[float]) -> list[float]:
        """Variance of a weighted sum of at least one model's offsets under each head."""
        counted, first = math.fsum([c * c for c in coefficient]), len(self.priors.features)
        prior = [offset * counted for offset in self.priors.offset.tolist()]
        along = coefficient[0] * self.factors[:, :, first + places[0]].astype(np.float64)
        for place, c in zip(places[1:], coefficient[1:], strict=True):
            along += c * self.factors[:, :, first + place].astype(np.float64)
        return _positive(prior, np.einsum("ek,ek->e", along, along).tolist())

    def times(self, z: Floats) -> Floats:
        """Compute S z for one z shared by all heads, or for one row per head, float64[E, n]."""
        factors, each = self.factors.astype(np.float64), np.broadcast_to(z, self.mean.shape)
        removed: Floats = np.einsum("ek,ekn->en", np.einsum("ekn,en->ek", factors, each), factors)
        return self._diagonal * each - removed

    def covariance(self, weights: Floats) -> Floats:
        """Weighted sum of the heads' covariances, float64[n, n]."""
        factors = self.factors.astype(np.float64)
        diagonal = self.priors.diagonal(factors.shape[2] - len(self.priors.features))
        cov = np.diag(np.einsum("e,en->n", weights, diagonal))
        if factors.size:
            factors *= np.sqrt(weights)[:, None, None]
            factors = factors.reshape(-1, factors.shape[2])
            cov -= np.einsum("ki,kj->ij", factors, factors)
        return cov

    def _reduce(self, gains: Floats, shrink: Floats) -> None:
        heads, k, n = self.factors.shape
        factors: NDArray[Any] = np.empty((heads, k + 1, n), np.float64 if k >= RANK else np.float16)
        factors[:, :k] = self.factors
        np.multiply(gains, np.sqrt(shrink)[:, None], out=factors[:, k], casting="same_kind")
        self.factors = _without_least(factors, self._diagonal).astype(np.float16) if k >= RANK else factors

    def _reset(self) -> None:
        self.factors = np.zeros_like(self.factors)

    def _clear(self, place: int) -> None:
        factors = self.factors.copy()
        factors[:, :, place] = 0.0
        self.factors = factors

    def _grow(self, models: int) -> None:
        self.factors = np.concatenate([self.factors, np.zeros((*self.factors.shape[:2], models), np.float16)], axis=2)

    def _spread(self) -> bytes:
        return self.factors.tobytes()

    def _take_spread(self, payload: bytes) -> None:
        heads, n = self.mean.shape
        factors = np.frombuffer(payload, np.float16).reshape(heads, -1, n)
        removed = np.add.reduce(factors.astype(np.float64) ** 2, axis=1)
        if not 0 < factors.shape[1] <= RANK or not (removed <= 1.01 * self._diagonal).all():
            raise ValueError("not the covariances of heads")
        self.factors = factors.copy()


def _without_least(factors: Floats, prior: Floats) -> Floats:
    """Drop one of k rows of U: keep UᵀU but for the part that reduces prior variance least, float64[E, k − 1, n].

    The rows are reflected (Householder) so that the last of them lies along the smallest eigenvector of U P⁻¹ Uᵀ, whose
    eigenvalues are in [0, 1). It is found by powers of I − U P⁻¹ Uᵀ, which no BLAS computes: bits are the same on every
    processor.
    """
    k = factors.shape[1]
    whitened = factors / np.sqrt(prior)[:, None]
    power = np.eye(k) - np.einsum("ein,ejn->eij", whitened, whitened)
    power /= np.einsum("eii->e", power)[:, None, None] + 1e-300  # its largest eigenvalue is then 1 / k at least
    for _ in range(_SQUARINGS):
        power = np.einsum("eij,ejk->eik", power, power)
    heads = np.arange(len(power))
    least = power[heads, np.argmax(np.einsum("eii->ei", power), axis=1)]
    least = least / np.sqrt(np.einsum("ek,ek->e", least, least) + 1e-300)[:, None]
    least[:, -1] += np.where(least[:, -1] < 0.0, -1.0, 1.0)
    scale = 2.0 / np.einsum("ek,ek->e", least, least)
    along = np.einsum("ek,ekn->en", least, factors) * scale[:, None]
    reflected: Floats = factors - least[:, :, None] * along[:, None]
    return reflected[:, :-1]


def _positive(prior: list[float], removed: list[float]) -> list[float]:
    """Subtract removed variance from prior variances; rounding cannot make the result negative."""
    return [max(before - less, _LEAST * before) for before, less in zip(prior, removed, strict=True)]


def _squares(coefficient: list[float], columns: list[int]) -> float:
    """Sum the squared coefficients of some columns."""
    return math.fsum([coefficient[column] ** 2 for column in columns])


class CompactTaste:
    """A user's taste in a dimension other than overall, stored in a tenth of the memory of a `Gaussian`.

    Args:
        priors: of a single head, without offsets.
        D: length of the features.
    """

    __slots__ = ("D", "_head")

    def __init__(self, priors: HeadPriors, D: int) -> None:
        self._head, self.D = LowRankHeads(priors), D

    def along(self, h: Floats) -> tuple[Floats, float]:
        """S h and the mean of hᵀw, for an observation along h."""
        z, gain = h[self._head.priors.features], np.zeros(self.D)
        gain[self._head.priors.features] = self._head.times(z)[0]
        return gain, float(np.einsum("n,n->", z, self._head.mean[0]))

    def learn(self, gain: Floats, update: GaussianUpdate) -> None:
        """Apply an update that `gaussian_update` computed over all blocks; `gain` is S h."""
        gains = gain[None, self._head.priors.features]
        if update.shrink or self._head.labelled:
            self._head.fold(gains, np.array([update.step]), np.array([update.shrink]))

    def gaussian(self) -> Gaussian:
        """Return the taste as a `Gaussian` with the full covariance."""
        at, mean, cov = self._head.priors.features, np.zeros(self.D), np.zeros((self.D, self.D))
        mean[at] = self._head.tastes()[0]
        cov[np.ix_(at, at)] = self._head.covariance(np.ones(1))
        return Gaussian(mean, cov)

    def dump(self) -> tuple[bytes, bytes]:
        """Return the mean and the low-rank factors as bytes."""
        return self._head.dump()[1:]

    @classmethod
    def load(cls, stored: tuple[bytes, bytes], priors: HeadPriors, D: int) -> CompactTaste:
        """Restore a taste from the output of `dump`; ValueError if it is damaged."""
        found = cls(priors, D)
        found._head.load((), *stored)
        return found


class DenseHeads(Heads):
    """Heads of a role, with full covariances in double precision."""

    __slots__ = ("cov",)
    precision = np.float64

    def __init__(self, priors: HeadPriors) -> None:
        super().__init__(priors)
        self.cov: Floats | None = None
        """float64[E, n, n]; None before the first label."""

    @property
    def labelled(self) -> bool:
        """Whether a label was learnt."""
        return self.cov is not None

    def finite(self) -> bool:
        """Whether every number is finite."""
        return bool(np.isfinite(self.mean).all() and (self.cov is None or np.isfinite(self.cov).all()))

    def _full(self) -> Floats:
        return self._prior() if self.cov is None else self.cov

    def _prior(self) -> Floats:
        diagonal = self._diagonal
        cov = np.zeros((*diagonal.shape, diagonal.shape[1]))
        np.einsum("eii->ei", cov)[...] = diagonal
        return cov

    def along(self, z: Floats) -> tuple[Floats, list[float]]:
        """Return S z, float64[E, n], and zᵀ S z under each head, for one z."""
        gains: Floats = self._diagonal * z if self.cov is None else np.einsum("enm,m->en", self.cov, z)
        return gains, np.einsum("en,n->e", gains, z).tolist()

    def _offsets(self, places: list[int], coefficient: list[float]) -> list[float]:
        """Variance of a weighted sum of at least one model's offsets under each head."""
        cov, at = self._full(), [len(self.priors.features) + place for place in places]
        found = np.zeros(len(self))
        for i, a in zip(at, coefficient, strict=True):
            for j, b in zip(at, coefficient, strict=True):
                found += a * b * cov[:, i, j]
        return found.tolist()

    def times(self, z: Floats) -> Floats:
        """Compute S z for one z shared by all heads, or for one row per head, float64[E, n]."""
        found: Floats = np.einsum("enm,em->en", self._full(), np.broadcast_to(z, self.mean.shape))
        return found

    def covariance(self, weights: Floats) -> Floats:
        """Weighted sum of the heads' covariances, float64[n, n]."""
        found: Floats = np.einsum("e,eij->ij", weights, self._full())
        return found

    def _reduce(self, gains: Floats, shrink: Floats) -> None:
        removed = gains[:, :, None] * (gains * shrink[:, None])[:, None]
        self.cov = np.subtract(self._full(), removed, out=removed)

    def _reset(self) -> None:
        self.cov = self._prior()

    def _clear(self, place: int) -> None:
        cov = self._full().copy()
        cov[:, :, place] = cov[:, place, :] = 0.0
        cov[:, place, place] = self.priors.offset
        self.cov = cov

    def _grow(self, models: int) -> None:
        if self.cov is not None:
            heads, n, _ = self.cov.shape
            cov = np.zeros((heads, n + models, n + models))
            np.einsum("eii->ei", cov)[...] = self.priors.diagonal(len(self.models) + models)
            cov[:, :n, :n] = self.cov
            self.cov = cov

    def _spread(self) -> bytes:
        return self._full().tobytes()

    def _take_spread(self, payload: bytes) -> None:
        heads, n = self.mean.shape
        cov = np.frombuffer(payload).reshape(heads, n, n)
        if not np.isfinite(cov).all() or (np.einsum("eii->ei", cov) < 0.0).any():
            raise ValueError("not the covariances of heads")
        self.cov = cov.copy()
