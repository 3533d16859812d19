"""Posteriors of a person, a user or a role: heads of several prior widths, their weights, and a rating scale."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from operator import mul
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fitrouter.plain import Projection
from fitrouter.posterior.gaussian import Gaussian
from fitrouter.posterior.heads import CompactTaste, HeadPriors, Heads, Rows, Seen
from fitrouter.posterior.likelihoods import Observation
from fitrouter.posterior.mixture import EXPERTS, START, Context, MixturePrior, updated
from fitrouter.posterior.rating_scale import RatingScale
from fitrouter.types import Floats

DAY_S = 86_400.0
"""Seconds of a day."""
SHARED_LABELS = 22.0
"""Labels of a person from which on mostly their own terms learn (`Person.known`)."""
SURPRISE, MOST, KEPT, FIRST = 2.0, 0.65, 0.5, 10
"""Nats at which a person is held to have changed (each time that many more), most of them from one label, share of
their means that is kept then, and labels that are learnt before any are summed (docs/results/people.md)."""
MOST_COUNTED = 4096
"""Votes of a person and day that count for others, at most."""


class _StoredPeople(msgspec.Struct, array_like=True):
    heads: list[tuple[tuple[str, ...], bytes, bytes]]
    weights: list[tuple[Context, bytes]]
    declared: bytes
    others: list[tuple[str, bytes, bytes]]
    scale: tuple[bytes, bytes] | None
    day: int
    votes: bytes
    alarms: int
    days: int
    labels: int
    surprise: float
    changes: int
    usual: float | None


@lru_cache
def _nothing(D: int) -> Floats:
    """Return the zeros, float64[D], that all people without declared preferences share."""
    return np.zeros(D)


class Deviation(NamedTuple):
    """First two moments of a person's deviation from the population: of the taste, and of the offsets of M models.

    Without what every expert but the first adds to a user: the role's deviation.
    """

    mean: Floats
    cov: Floats
    """float64[D + M + 1] and float64[D + M + 1, D + M + 1]; the last coordinate is 0, for models without one."""
    models: tuple[str, ...]
    """Base arms with an offset of their own."""
    unknown: float
    """Variance of any other model's offset."""
    population: float
    """Weight of the expert without any own term."""

    def offsets(self, models: Sequence[str]) -> Floats:
        """Expected offsets of base arms, float64[K]."""
        size = len(self.models) + 1
        found: Floats = self.mean[-size:][_places_of(self.models, tuple(models)).at]
        return found

    def along(self, profile: Floats, bases: tuple[str, ...]) -> tuple[Floats, Floats]:
        """Predict the deviation for K answers: its means, and its variances, float64[K] each; uses BLAS.

        The variance is that of an answer's deviation minus the average of all K; of the only answer's for K = 1.

        Args:
            profile: features of the answers, float64[K, D].
            bases: their base arms.
        """
        (K, D), places = profile.shape, _places_of(self.models, bases)
        at = places.at + D
        mean: Floats = profile @ self.mean[:D] + self.mean[at]
        through = profile @ self.cov[:D, :D] + 2.0 * self.cov[at, :D]
        variance: Floats = np.vecdot(through, profile) + self.cov[at, at]
        if K > 1:
            average = np.concatenate([np.add.reduce(profile) / K, places.share])
            pull = self.cov @ average
            variance += average @ pull - 2.0 * (profile @ pull[:D] + pull[at])
        return mean, variance + self.unknown * places.apart


class _Places(NamedTuple):
    """Where the answers of a decision have their models among a person's offsets."""

    at: NDArray[np.intp]
    """Coordinate of each answer's offset, intp[K]; M for a model without one."""
    share: Floats
    """Share of the answers that have each coordinate, float64[M + 1]."""
    apart: Floats
    """Variance of each answer's deviation in offsets without a coordinate, in units of one offset's, float64[K]."""


@lru_cache(maxsize=4096)
def _places_of(models: tuple[str, ...], bases: tuple[str, ...]) -> _Places:
    place = {model: i for i, model in enumerate(models)}
    at = np.array([place.get(base, len(models)) for base in bases], dtype=np.intp)
    K, count = len(bases), Counter(base for base in bases if base not in place)
    apart = (at == len(models)).astype(np.float64)
    if K > 1:
        apart += sum(n * n for n in count.values()) / K**2 - 2.0 * np.array([count[base] for base in bases]) / K
    return _Places(at, np.bincount(at, minlength=len(models) + 1) / K, apart)


@lru_cache
def _places(*sizes: int) -> tuple[slice, ...]:
    """Return the slices that groups of heads of these sizes have at the end of `EXPERTS`."""
    ends = [len(EXPERTS) - sum(sizes[i + 1 :]) for i in range(len(sizes))]
    return tuple(slice(end - size, end) for end, size in zip(ends, sizes, strict=True))


@lru_cache(maxsize=4096)
def _coordinates(priors: HeadPriors, own: tuple[str, ...], models: tuple[str, ...], D: int) -> NDArray[np.intp]:
    """Return the places of heads' coordinates, features and offsets, among those of a `Deviation`."""
    return np.array([*priors.features.tolist(), *(D + models.index(model) for model in own)], dtype=np.intp)


class Observed(NamedTuple):
    """Predicted deviation of a person for the one row of a label, with what learning from it needs."""

    weights: list[float]
    means: list[float]
    variances: list[float]
    """Of each of `EXPERTS`."""
    mean: float
    variance: float
    """Of the mixture."""
    seen: list[Seen]
    """By each group of heads."""


class Person(Projection):
    """Posterior of a user or a role: heads, their weights, declared values and rating scale.

    Args:
        D: length of the response features.
        heads: without labels, the last of `EXPERTS`.
        alarms: number of models whose offsets all people have forgotten so far.
        compact: prior of tastes in dimensions other than overall, which then are compact.
    """

    __slots__ = (
        *("D", "_places", "alarms", "changes", "compact", "day", "days", "declared"),
        *("heads", "labels", "others", "scale", "surprise", "usual", "votes", "weights"),
    )
    stored_type = _StoredPeople

    def __init__(self, D: int, heads: Sequence[Heads], alarms: int = 0, compact: HeadPriors | None = None) -> None:
        self.D, self.compact = D, compact
        self.heads = tuple(heads)
        self._places = _places(*map(len, heads))
        self.weights: dict[Context, Floats] = {}
        """Weights of `EXPERTS`; empty before the first label."""
        self.declared = _nothing(D)
        """Prior mean of the taste that was declared. The array is replaced, never changed."""
        self.others = _NO_OTHERS
        """Dimension other than overall → the taste in it. The dictionary is replaced, never changed."""
        self.scale = RatingScale()
        self.labels = self.day = self.days = 0
        self.surprise, self.changes = 0.0, 0
        self.usual: float | None = None
        """Nats of `watch`, how often they were too many, and the mean of the person's thumbs and ratings."""
        self.votes = b""
        """Hashes of arm and name of each vote that counted for others on `day`, the last of `days` such days."""
        self.alarms = alarms
        """Number of `Tastes.forgotten` models that this person has forgotten."""

    # --- reading ---

    def experts(self) -> Iterator[tuple[slice, Heads]]:
        """Iterate over the groups of heads, each with its slice of `EXPERTS`."""
        return zip(self._places, self.heads, strict=True)

    def deviation(self, weights: Floats) -> Deviation:
        """Return the first two moments of the mixture: its mean and, by the law of total variance, its covariance.

        Args:
            weights: of the experts, float64[E].
        """
        owns = [heads.models for heads in self.heads]  # first: another thread may append to the coordinates
        models = tuple(dict.fromkeys(model for own in owns for model in own))
        size, unknown = self.D + len(models) + 1, 0.0
        means, cov = np.zeros((len(EXPERTS), size)), np.zeros((size, size))
        means[1:, : self.D] = self.declared
        for (at, heads), own in zip(self.experts(), owns, strict=True):
            columns, offset = _coordinates(heads.priors, own, models, self.D), heads.priors.offset
            n, of_unknown = len(columns), float(np.einsum("e,e->", weights[at], offset))
            means[at, columns] += heads.mean[:, :n]
            cov[columns[:, None], columns] += heads.covariance(weights[at])[:n, :n]
            for place in [place for place, model in enumerate(models, self.D) if model not in own]:
                cov[place, place] += of_unknown
            unknown += of_unknown
        mean = np.einsum("e,ed->d", weights, means)
        apart = means - mean
        cov += np.einsum("ei,ej->ij", weights[:, None] * apart, apart)
        return Deviation(mean, cov, models, unknown, float(weights[0]))

    def observe(self, rows: Rows, weights: Floats, base: Observed | None = None) -> Observed:
        """Predict the deviation for the one row of a label, and keep what learning from it needs."""
        declared = 0.0
        if self.declared is not _nothing(self.D):
            declared = float(np.einsum("d,d->", rows.h[0], self.declared))
        seen = [heads.observe(rows) for heads in self.heads]
        means, variances = (
            [m + declared for each in seen for m in each.mean],
            [v for each in seen for v in each.variance],
        )
        for _ in range(len(EXPERTS) - 1 - len(means)):
            means.insert(0, declared)
            variances.insert(0, 0.0)
        if base is not None:
            means = [m + base.mean for m in means]
            variances = [v + base.variance for v in variances]
        means.insert(0, 0.0)
        variances.insert(0, 0.0)
        w: list[float] = weights.tolist()
        mean = math.fsum(map(mul, w, means))
        variance = math.fsum([a * (v + (m - mean) ** 2) for a, m, v in zip(w, means, variances, strict=True)])
        return Observed(w, means, variances, mean, variance, seen)

    def weights_in(self, context: Context, prior: MixturePrior) -> Floats:
        """Weights of the experts in a context, the common prior's before the first label there, float64[E]."""
        found = self.weights.get(context)
        return prior.weights(context) if found is None else found

    @property
    def known(self) -> float:
        """Share of the known deviation that is subtracted from a label before what everybody shares learns from it.

        All of it books what a small team agrees on as one person's taste; none lets a person with many labels dominate.
        """
        return 1.0 - (SHARED_LABELS / (SHARED_LABELS + self.labels)) ** 2

    def novelty(self, rows: Rows, weights: Floats) -> float:
        """Information in a label about a model's correction, as a share of that in a new person's label.

        n labels with noise R of a person whose offset has variance τ² tell 1 / (τ² + R / n) about the model: the n-th
        adds about (v / τ²)² / R, with v = τ² R / (R + n τ²) the posterior variance of the offset.
        """
        shares = [share for heads in self.heads for share in heads.novelty(rows)]
        w: list[float] = weights.tolist()
        shares = [1.0] * (len(w) - len(shares)) + shares
        return math.fsum([a * share * share for a, share in zip(w, shares, strict=True)])

    # --- learning ---

    def reweigh(self, context: Context, log_likelihood: Floats, prior: MixturePrior, *, pooled: bool) -> None:
        """Update the weights of the experts with a label's log likelihoods, float64[E], and the common prior."""
        before, common = self.weights_in(context, prior), prior.weights(context)
        posterior, self.weights[context] = updated(before, log_likelihood, common)
        if pooled:
            prior.learn(context, posterior - before)

    def watch(self, seen: Observation, mean: float, variance: float) -> None:
        """Forget half of a person whose last labels, this one predicted by N(mean, variance), say that they changed.

        A CUSUM test (Page 1954) of what follows a change: a rating half a standard deviation of its noise below the
        person's mean, and a choice as likely as its opposite was. Noisy labels are as surprising under either.
        """
        signal, other, spread = seen.signal, 2.0 * seen.signal.level - mean, variance
        if signal.link == "gaussian":
            usual = mean if self.usual is None else self.usual
            other, spread = usual - 0.5 * math.sqrt(signal.noise / signal.weight), 0.0
            self.usual = usual + (seen.y - usual) / (self.labels + 5.0)
        told = seen.log_likelihood(other, spread) - seen.log_likelihood(mean, spread)
        self.surprise = max(self.surprise + min(told, MOST), 0.0) if self.labels > FIRST else 0.0
        if self.surprise > SURPRISE * (1.0 + self.changes):
            self.surprise, self.changes = 0.0, self.changes + 1
            for heads in self.heads:
                heads.loosen(KEPT)

    def declare(self, mean: Floats) -> None:
        """Replace the declared mean of the taste; labels that the heads have learnt keep their evidence."""
        for heads in self.heads:
            heads.rebase(mean - self.declared)
        self.declared = mean.copy()

    def forget(self, models: Sequence[str]) -> None:
        """Drop the evidence on the offsets of models, as far as this person has not done so yet.

        Args:
            models: all that were ever forgotten, in order.
        """
        for model in models[self.alarms :]:
            for heads in self.heads:
                heads.forget(model)
        self.alarms = len(models)

    def count_vote(self, arm: str, day: int, cap: int, vote: str, *others: str) -> bool:
        """Whether a new vote updates shared terms, as the first `cap` on an arm and day do; records it if so.

        One that is about several arms counts on each, and must be among the first on each.
        """
        if day != self.day:
            self.day, self.votes = day, b""
        arms, counted = [_short(each) for each in (arm, *others)], Counter(arm for arm, _ in self._counted())
        if any(counted[each] >= cap for each in arms) or len(self.votes) >= 2 * _HASH * MOST_COUNTED:
            return False
        self.days += not self.votes
        for each in arms:
            self.votes += each + _short(vote)
        return True

    def has_counted(self, vote: str) -> bool:
        """Whether a vote of `day` updated shared terms."""
        name = _short(vote)
        return any(counted == name for _, counted in self._counted())

    def _counted(self) -> Iterator[tuple[bytes, bytes]]:
        for at in range(0, len(self.votes), 2 * _HASH):
            yield self.votes[at : at + _HASH], self.votes[at + _HASH : at + 2 * _HASH]

    # --- state ---

    def finite(self) -> bool:
        """Whether every number of the heads and their weights is finite."""
        return all(heads.finite() for heads in self.heads) and all(np.isfinite(w).all() for w in self.weights.values())

    def _store(self) -> _StoredPeople:
        alarms = self.alarms  # first: another thread may be forgetting
        return _StoredPeople(
            [heads.dump() for heads in self.heads],
            [(context, weights.tobytes()) for context, weights in sorted(self.weights.items())],
            self.declared.tobytes() if self.declared.any() else b"",
            [(name, *block.dump()) for name, block in sorted(self.others.items())],
            self.scale.dump(),
            self.day,
            self.votes,
            alarms,
            self.days,
            self.labels,
            self.surprise,
            self.changes,
            self.usual,
        )

    def _restore(self, stored: _StoredPeople) -> bool:
        groups = tuple(type(heads)(heads.priors) for heads in self.heads)
        for heads, each in zip(groups, stored.heads, strict=True):
            heads.load(*each)
        weights: dict[Context, Floats] = {
            context: _floats(payload, len(START[context])) for context, payload in stored.weights
        }
        declared = _floats(stored.declared, self.D) if stored.declared else _nothing(self.D)
        others = {name: self._other(mean, cov) for name, mean, cov in stored.others} or _NO_OTHERS
        if not np.isfinite(declared).all() or not all(np.isfinite(row).all() for row in weights.values()):
            return False
        if any((row < 0).any() or not 0.999 < row.sum() < 1.001 for row in weights.values()):
            return False
        if not 0.0 <= stored.surprise <= SURPRISE * (1.0 + stored.changes) or not math.isfinite(stored.usual or 0.0):
            return False
        self.scale.load(stored.scale)
        self.heads, self.weights, self.declared, self.others = groups, weights, declared, others
        self.surprise, self.changes, self.usual = stored.surprise, stored.changes, stored.usual
        self.labels = stored.labels
        self.day, self.votes, self.alarms, self.days = stored.day, stored.votes, stored.alarms, stored.days
        return True

    def _other(self, mean: bytes, spread: bytes) -> Gaussian | CompactTaste:
        if self.compact is None:
            return Gaussian.load(mean, spread, self.D)
        return CompactTaste.load((mean, spread), self.compact, self.D)


def _floats(payload: bytes, *shape: Any) -> Floats:
    return np.frombuffer(payload, dtype=np.float64).reshape(shape).copy()


_HASH = 8
_NO_OTHERS: dict[str, Gaussian | CompactTaste] = {}


def _short(name: str) -> bytes:
    return blake2b(name.encode(), digest_size=_HASH).digest()
