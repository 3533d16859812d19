"""Arm posteriors: expected features, correction, answer length and latency, and availability of each model.

Four posteriors per arm, stacked over arms so that one decision is a few matrix products:

* profile      ĥ_k(x) = E[h | x, k]: multi-output ridge regression on all responses, with a shared covariance;
* correction   c_k(x): residual of human labels beyond the taste model, learnt from labels only, at several widths;
* operations   tokens and seconds of an answer, with a shared covariance;
* availability P(answers): Beta posterior with decaying counts, so that outages are forgotten.

The variants of a model (`name#variant@revision`) have separate profiles and share the other three. Two kinds of them
share less. An effort (`#effort-LEVEL`) has operations of its own, since thinking is billed, and a shrunken deviation
from c by task, whose prior mean rises with the level. A host (`#host-NAME`) of the same model has operations and
availability of its own, and shares the rest. Updates use einsum and ufuncs only, for bit-identical folds; reads, whose
results are logged and never recomputed, use BLAS.
"""

from __future__ import annotations

import functools
import math
import re
import zlib
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from fitrouter.types import Floats

Rows: TypeAlias = NDArray[np.intp] | slice
"""Rows of arms, in the order of the arms they belong to."""

UNKNOWN = 0.25
"""Variance of an unknown level of labels in [0, 1]."""

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Levels of effort, from the least."""
_EFFORT_GAIN, _EFFORT_LEVEL, _EFFORT_TASK = 0.01, 0.0025, 0.03
"""Prior of an effort's deviation from its model's c: what a level adds, and variances of its level and of a task's."""
_IMPASSE = 0.03
"""Prior variances of what a model adds to c where another is stuck: of its level, and of a role's or task's."""
_KIND = re.compile(r"#(effort|host|impasse)-([A-Za-z0-9._-]+?)(?=@|$)")
_VARIANT = re.compile(r"#[A-Za-z0-9][A-Za-z0-9._-]{0,39}(?=@|$)")


@functools.lru_cache(maxsize=4096)
def base_arm(arm: str) -> str:
    """Name of the arm of a model without its variant.

    >>> base_arm("gpt#brief@2"), base_arm("gpt@2"), base_arm("gpt#brief")
    ('gpt@2', 'gpt@2', 'gpt')
    """
    return _VARIANT.sub("", arm, count=1)


@functools.lru_cache(maxsize=4096)
def kind_of(arm: str) -> tuple[str, str]:
    """Return what of its model an arm is, `effort` or `host`, and which; empty for the model and other variants.

    >>> kind_of("gpt#effort-low@2"), kind_of("gpt#brief")
    (('effort', 'low'), ('', ''))
    """
    found = _KIND.search(arm)
    return (found[1], found[2]) if found else ("", "")


@functools.lru_cache(maxsize=1024)
def context_of(task: str, d: int) -> Floats:
    """What an effort's deviation depends on, float64[d]: 1, and 1 at the place of the task."""
    found = np.zeros(d)
    found[0] = 1.0
    if d > 1:
        found[1 + zlib.crc32(task.encode("utf-8", "replace")) % (d - 1)] = 1.0
    return found


@functools.lru_cache(maxsize=4096)
def impasse_of(arm: str) -> str:
    """Name under which is kept what a model adds where another one is stuck.

    >>> impasse_of("gpt#brief@2")
    'gpt#impasse-any@2'
    """
    name, at, revision = base_arm(arm).partition("@")
    return f"{name}#impasse-any{at}{revision}"


def _unrevised(arm: str) -> str:
    """Name of an arm without its revision."""
    return arm.partition("@")[0]


class CorrectionPrior(msgspec.Struct, frozen=True, kw_only=True):
    """Prior of the corrections c of all models."""

    level: float
    slopes: float
    """Variances of the level of c, and of its slopes."""
    weight: float = 1.0
    """Before any label, relative to those of the others."""


class ArmParams(msgspec.Struct, frozen=True, kw_only=True):
    """Prior scales. Variances are for labels in [0, 1] and ‖x‖ ≈ 1."""

    corrections: tuple[CorrectionPrior, ...] = (
        CorrectionPrior(level=0.01, slopes=0.003, weight=0.1),
        CorrectionPrior(level=0.01, slopes=0.03, weight=0.9),
    )
    """One posterior of c each, averaged by how well each predicts (docs/results/people.md)."""
    profile_intercept: float = 0.5
    profile_slope: float = 0.05
    operations_level: float = 10.0
    operations_slope: float = 0.3
    """Prior variances of an answer's tokens and seconds, in variances of one answer: of the level, and of the context's
    weights (DESIGN §4: wide and tight; a wide weight makes answers look free after a few)."""
    tokens: float = 400.0
    """Prior mean of an answer's tokens."""
    seconds: float = 2.0
    """Prior mean of an answer's latency."""
    answers: float = 4.75
    fails: float = 0.25
    """Beta prior of availability."""
    half_life_s: float = 600.0
    """Evidence on availability counts half after this time."""


class Found(NamedTuple):
    """Names of some arms, with their rows in `Arms`."""

    names: tuple[str, ...]
    rows: Rows
    """Of their profiles."""
    models: Rows
    """Of what they share with the variants of their model."""
    operating: Rows
    """Of their tokens and seconds."""
    answering: Rows
    """Of their availability."""
    efforts: tuple[Rows, Rows] | None = None
    """Which of them are efforts, and the rows of their deviations; None if none is."""


_NOTHING = Found((), slice(0), slice(0), slice(0), slice(0))


class Reading(NamedTuple):
    """Posterior of K arms at one context x; arrays are float64."""

    profile: Floats
    """[K, D]: ĥ."""
    spread: Floats
    """[K]: xᵀPx, the variance of ĥ where a feature's residual has variance 1."""
    correction: Floats
    variance: Floats
    """[K]: mean and variance of c."""
    tokens: Floats
    seconds: Floats
    """[K]"""


class Arms:
    """Posteriors of K arms over contexts float64[d] and response features float64[D]."""

    def __init__(self, d: int, D: int, params: ArmParams) -> None:
        self.d, self.D, self.params = d, D, params
        self.names: dict[str, int] = {}
        """arm → row; row 0 is the prior, which stands for every unknown arm."""
        self.shared: dict[str, int] = {}
        """arm → row of its model's base arm, where everything but the profile is kept."""
        self._own: dict[str, int] = {}
        """Effort or host → row of what it has of its own."""
        self.profile_cov = np.empty((0, d, d))
        self.profile = np.empty((0, d, D))
        self.corrections = np.empty((0, len(params.corrections), d + 1, d))
        """`Gaussian.state` of each c at each width."""
        self.operations_cov = np.empty((0, d, d))
        self.operations = np.empty((0, 2, d))
        self.spread = np.empty((0, D))
        """Running mean square of the profile's residuals, for the variance of ĥ."""
        self.beta = np.empty((0, 3))
        """Fading counts of answers and failures, and the time of the last."""
        self.responses = np.empty(0)
        self.suspect = np.empty(0)
        """1 for a model whose scores are ignored."""
        self.distrusted: frozenset[int] = frozenset()
        """Rows of such models."""
        self._found = _NOTHING
        self._priors, self._room = self._prior(), dict[str, Floats]()
        self._append()

    _PROFILE = ("profile_cov", "profile", "spread", "responses")
    _OPERATIONS = ("operations_cov", "operations")
    _ARRAYS = (*_PROFILE, "corrections", "operations_cov", "operations", "beta", "suspect")

    @property
    def correction(self) -> Floats:
        """Posterior means of the corrections c, float64[rows, C, d], as a view."""
        return self.corrections[:, :, -1]

    @property
    def correction_cov(self) -> Floats:
        """Posterior covariances of the corrections c, float64[rows, C, d, d], as a view."""
        return self.corrections[:, :, :-1]

    def row(self, name: str) -> int:
        """The row of an arm, for learning. A new arm starts at the prior, a variant at its model's profile."""
        found = self.names.get(name)
        return self._add(name) if found is None else found

    def _add(self, name: str) -> int:
        base = base_arm(name)
        if base == name:
            self.names[name] = self.shared[name] = row = self._append()
            return row
        # A variant starts with the model's mean profile and the prior's covariance.
        like, (kind, level) = self.row(base), kind_of(name)
        row = self._append()
        self.names[name], self.shared[name] = row if kind in ("", "effort") else like, like
        self.profile[row], self.spread[row] = self.profile[like], self.spread[like]
        if kind:
            self._own[name] = row
            self.operations[row] = self.operations[like]
        if kind in ("effort", "impasse"):
            state = self.corrections[row]
            state[:] = 0.0
            for i in range(self.d):
                state[:, i, i] = _IMPASSE if kind == "impasse" else _EFFORT_TASK if i else _EFFORT_LEVEL
        if kind == "effort":
            state[:, -1, 0] = _EFFORT_GAIN * (EFFORTS.index(level) - EFFORTS.index("medium") if level in EFFORTS else 0)
        return self.names[name]

    def join(self, name: str) -> int:
        """The row of an arm that joined the registry; a new revision starts at the last one's means.

        Means are the last revision's; covariances lie half-way between its own and the prior's.
        """
        if name in self.names:
            return self.names[name]
        if (base := base_arm(name)) != name:
            self.join(base)
        like = next((known for known in reversed(self.names) if _unrevised(known) == _unrevised(name)), None)
        row = self.row(name)
        if like is None:
            return row
        for array in self._arrays(name):
            values = getattr(self, array)
            values[self._place(name, array)] = values[self._place(like, array)]
        if "responses" in self._arrays(name):
            self.responses[row] = 0.0
        self.beta[self._own.get(name, row)] = 0.0
        loosened = [self.profile_cov] if kind_of(name)[0] != "host" else []
        if base == name:
            loosened += [self.correction_cov]
        if base == name or name in self._own:
            loosened += [self.operations_cov]
        for covs in loosened:
            at = self._own.get(name, row)
            covs[at] += 0.5 * (covs[0] - covs[at])
        self._remember_distrusted()
        return row

    def model(self, name: str) -> int:
        """The row of the posteriors that an arm shares with its model, for learning."""
        self.row(name)
        return self.shared[name]

    def operating(self, name: str) -> int:
        """The row of an arm's tokens and seconds, for learning."""
        return self._own.get(name, self.model(name))

    def answering(self, name: str) -> int:
        """The row of an arm's availability, for learning."""
        model = self.model(name)
        return self._own[name] if kind_of(name)[0] == "host" else model

    def corrected(self, name: str, *, stuck: bool = False) -> tuple[int, ...]:
        """The rows whose corrections add up to that of an arm, for learning: its model's, an effort's, an impasse's."""
        model = self.model(name)
        rows = (model, self._own[name]) if kind_of(name)[0] == "effort" else (model,)
        if not stuck:
            return rows
        self.row(impasse_of(name))
        return (*rows, self._own[impasse_of(name)])

    def find(self, names: tuple[str, ...]) -> Found:
        """Look up both kinds of rows of some arms, cached for the last names: most requests have the same."""
        if self._found.names != names:
            rows, models = _rows(self.names, names), _rows(self.shared, names)
            self._found = Found(names, rows, models, models, models)
            if own := {name: self._own[name] for name in names if name in self._own}:
                hosts = {name: row for name, row in own.items() if kind_of(name)[0] == "host"}
                at = [k for k, name in enumerate(names) if name in own and name not in hosts]
                self._found = self._found._replace(
                    operating=_rows(self.shared | own, names),
                    answering=_rows(self.shared | hosts, names),
                    efforts=(np.array(at), np.array([own[names[k]] for k in at])) if at else None,
                )
        return self._found

    def _append(self) -> int:
        row = len(self.responses)
        for array, prior in self._priors.items():
            room = self._room.get(array)
            if room is None or row == len(room):
                # Half as many rows again, so that a new row rarely copies the others.
                room = np.empty((row + row // 2 + 1, *prior.shape))
                room[:row] = getattr(self, array)
                self._room[array] = room
            room[row] = prior
            setattr(self, array, room[: row + 1])
        self._found = _NOTHING
        return row

    def _prior(self) -> dict[str, Floats]:
        p = self.params
        corrections = np.zeros((len(p.corrections), self.d + 1, self.d))
        for state, prior in zip(corrections, p.corrections, strict=True):
            np.fill_diagonal(state, prior.slopes)
            state[0, 0] = prior.level
        profile = np.full(self.d, p.profile_slope)
        profile[0] = p.profile_intercept
        mean = np.zeros((self.d, self.D))
        mean[0, 0] = 1.0  # h begins with 1 as x does: that much is known of an arm that was never asked
        sizes = np.full(self.d, p.operations_slope)
        sizes[0] = p.operations_level
        operations = np.zeros((2, self.d))
        operations[:, 0] = p.tokens, p.seconds
        return {
            "profile_cov": np.diag(profile),
            "profile": mean,
            "spread": np.ones(self.D),
            "responses": np.zeros(()),
            "corrections": corrections,
            "operations_cov": np.diag(sizes),
            "operations": operations,
            "beta": np.zeros(3),
            "suspect": np.zeros(()),
        }

    # --- reading ---

    def read(self, found: Found, x: Floats, widths: Floats, task: str = "", stuck: str = "") -> Reading:
        """Compute the posterior at x of arms from `find`; `widths` are the weights of c's posteriors, float64[C].

        `task` is read by efforts; `stuck` is the role or task that is stuck, empty for none.
        """
        rows, models = found.rows, found.models
        squares, d = np.multiply.outer(x, x).ravel(), self.d
        seen = self.corrections[models] @ x
        means, variances = seen[..., -1], seen[..., :-1] @ x
        mean = means @ widths
        operations = self.operations[found.operating] @ x
        variance = (variances + (means - mean[:, None]) ** 2) @ widths
        if found.efforts is not None:
            at, own = found.efforts
            by_task = context_of(task, self.d)
            deviating = self.corrections[own] @ by_task
            mean[at] += deviating[..., -1] @ widths
            variance[at] += deviating[..., :-1] @ by_task @ widths
        for k, name in enumerate(found.names if stuck else ()):
            row = self._own.get(impasse_of(name))
            if row is None:
                variance[k] += 2.0 * _IMPASSE
                continue
            where = context_of(stuck, self.d)
            mean[k] += self.corrections[row][:, -1] @ where @ widths
            variance[k] += self.corrections[row][:, :-1] @ where @ where @ widths
        profile = x @ self.profile[rows]
        if self.distrusted:
            doubted = self.suspect[models] > 0.0
            profile[doubted] = self._mean_profile(x)
        return Reading(
            profile=profile,
            spread=self.profile_cov.reshape(-1, d * d)[rows] @ squares,
            correction=mean,
            variance=variance,
            tokens=operations[:, 0],
            seconds=operations[:, 1],
        )

    def availability(self, models: Rows, now: float) -> Floats:
        """Probability at a time that each model answers a call, float64[K]."""
        answers, fails, last = self.beta[models].T
        fade = np.exp2(np.maximum(now - last, 0.0) / -self.params.half_life_s)
        a = answers * fade + self.params.answers
        result: Floats = a / (a + (fails * fade + self.params.fails))
        return result

    def distrusts(self, name: str) -> bool:
        """Whether the reward-model scores of an arm are ignored."""
        return bool(self.distrusted) and self.shared.get(name) in self.distrusted

    def expected(self, name: str, x: Floats) -> Floats:
        """Expected features of an arm's answer, float64[D]; unlike those of `read`, the same bits on every machine."""
        if self.distrusts(name):
            return self._mean_profile(x)
        row = self.row(name)
        profile: Floats = np.einsum("dh,d->h", self.profile[row], x)
        return profile

    def _mean_profile(self, x: Floats) -> Floats:
        """Mean expected features of the trusted arms that have answered, float64[D]; the prior's if there are none."""
        trusted = [row for name, row in self.names.items() if self.responses[row] and not self.distrusts(name)]
        rows = list(dict.fromkeys(trusted)) or [0]
        mean: Floats = np.einsum("kdh,d->h", self.profile[rows], x) / len(rows)
        return mean

    # --- learning ---

    def observe_response(self, k: int, x: Floats, h: Floats) -> None:
        """Update an arm's profile by one answer's features; a missing feature (not finite) counts as predicted."""
        if not math.isfinite(float(np.add.reduce(x))):
            return
        predicted = np.einsum("dh,d->h", self.profile[k], x)
        error = h - predicted
        known = np.isfinite(error)
        if not known.all():
            error[~known] = 0.0
        gain = np.einsum("ij,j->i", self.profile_cov[k], x)
        total = 1.0 + np.einsum("i,i->", gain, x)
        share = gain / total
        self.profile[k] += share[:, None] * error
        self.profile_cov[k] -= share[:, None] * gain
        self.responses[k] += 1.0
        self.spread[k] += (error * error / total - self.spread[k]) / (self.responses[k] + 2.0)

    def along(self, k: int, x: Floats) -> tuple[Floats, Floats, Floats]:
        """Return S x, float64[C, d], and mean and variance of c at x, float64[C] each, for every prior width."""
        seen = np.einsum("cij,j->ci", self.corrections[k], x)
        return seen[:, :-1], seen[:, -1], np.einsum("ci,i->c", seen[:, :-1], x)

    def correct(self, k: int, gains: Floats, step: Floats, shrink: Floats) -> None:
        """Update c at every width by the steps and shrinkages of `GaussianUpdate`, float64[C] each; `gains` is S x."""
        by = np.empty((len(gains), self.d + 1))
        np.multiply(gains, shrink[:, None], out=by[:, :-1])
        np.negative(step, out=by[:, -1])
        self.corrections[k] -= by[:, :, None] * gains[:, None]

    def observe_operations(self, k: int, x: Floats, tokens: float, seconds: float) -> None:
        """Update the answer length and latency of a model with one answer."""
        if not math.isfinite(float(np.add.reduce(x)) + tokens + seconds):
            return
        gain = np.einsum("ij,j->i", self.operations_cov[k], x)
        share = gain / (1.0 + np.einsum("i,i->", gain, x))
        error = np.array([tokens, seconds]) - np.einsum("od,d->o", self.operations[k], x)
        self.operations[k] += error[:, None] * share
        self.operations_cov[k] -= share[:, None] * gain

    def observe_answer(self, k: int, answered: bool, ts: float) -> None:
        """Update the availability of a model with one call."""
        if not math.isfinite(ts):
            return
        a, b, last = self.beta[k]
        fade = 0.5 ** (max(ts - last, 0.0) / self.params.half_life_s)
        self.beta[k] = a * fade + answered, b * fade + (not answered), max(ts, last)

    def loosen(self, name: str, factor: float) -> None:
        """Multiply the variances of an arm by a factor, up to the prior's; means stay.

        S ← S + ρ (S_prior − S), with the ρ for which the mean variance, in units of the prior's, is `factor` times
        what it was.
        """
        priors = self._priors["corrections"][:, :-1]
        covs = [*zip(self.correction_cov[self.model(name)], priors, strict=True)]
        for cov, prior in (*covs, (self.profile_cov[self.row(name)], self._priors["profile_cov"])):
            known = float((cov.diagonal() / prior.diagonal()).mean())
            share = min((factor - 1.0) * known / max(1.0 - known, 1e-12), 1.0)
            cov += share * (prior - cov)

    def distrust(self, name: str) -> None:
        """Predict an arm's features by the mean of the other arms from now on, and reset its level to the prior's."""
        k = self.model(name)
        if self.suspect[k]:
            return
        self.suspect[k] = 1.0
        self._remember_distrusted()
        state = self.corrections[k]
        state[:, 0], state[:, :, 0] = 0.0, 0.0
        state[:, 0, 0] = UNKNOWN

    def _remember_distrusted(self) -> None:
        self.distrusted = frozenset(np.flatnonzero(self.suspect).tolist())

    # --- state ---

    def finite(self) -> bool:
        """Whether every number of the posteriors is finite."""
        return all(np.isfinite(getattr(self, array)).all() for array in self._ARRAYS)

    def dump(self, name: str) -> bytes:
        """Return one arm's rows as bytes, exactly; for a variant, only what it does not share."""
        rows = ((array, self._place(name, array)) for array in self._arrays(name))
        return b"".join(np.ascontiguousarray(getattr(self, array)[k]).tobytes() for array, k in rows)

    def load(self, name: str, payload: bytes) -> bool:
        """Restore one arm from `dump`; False if the bytes cannot be its output."""
        arrays = self._arrays(name)
        if len(payload) != 8 * sum(self._priors[array].size for array in arrays):
            return False
        values = np.frombuffer(payload, dtype=np.float64)
        if not np.isfinite(values).all():
            return False
        self.row(name)
        start = 0
        for array in arrays:
            target, k = getattr(self, array), self._place(name, array)
            size = target[k].size
            target[k] = values[start : start + size].reshape(target[k].shape)
            start += size
        self._remember_distrusted()
        return True

    def _arrays(self, name: str) -> tuple[str, ...]:
        if base_arm(name) == name:
            return self._ARRAYS
        kind = kind_of(name)[0]
        if kind == "impasse":
            return ("corrections",)
        if kind == "host":
            return (*self._OPERATIONS, "beta")
        return (*self._PROFILE, "corrections", *self._OPERATIONS) if kind else self._PROFILE

    def _place(self, name: str, array: str) -> int:
        """The row of an arm in one of its arrays."""
        return self.names[name] if array in self._PROFILE else self._own.get(name, self.names[name])


def _rows(index: dict[str, int], names: tuple[str, ...]) -> Rows:
    """Return the rows of names: a slice if they are contiguous, which spares copies of the arrays."""
    found = [index.get(name, 0) for name in names]
    if found == list(range(found[0], found[0] + len(found))):
        return slice(found[0], found[0] + len(found))
    return np.array(found, dtype=np.intp)
