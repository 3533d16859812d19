"""Fit of the likelihood of each kind of feedback; see `signals` for the parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from benchmarks.training._evidence import Evidence, Track
from benchmarks.training._signal import LEVEL, Signal

from fitrouter.posterior.gaussian import Gaussian
from fitrouter.types import Floats
from fitrouter_evaluators.training.hierarchy import Link, Observations, Prior, Shrinkage, evidence, fit_prior

_GRID = (0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
VERDICTS = ("pair", "tie", "thumb")
"""Kinds that are meant as a judgement: nothing is doubted of them beforehand."""

_FOLDS = 4
_ITERATIONS = 8
_PSI = {"gaussian": (0.001, 0.003, 0.01), "logistic": (0.03, 0.1, 0.3)}
"""Variances of a slope between people that are tried, in the link's units …"""
_LEVELS = 5.0
"""… and how much more a level varies."""
_KEEP = ((0.0, 1.0), (1.0, 0.0))
"""The closed form of an edit: what share of the text was kept."""

_NOTES = {
    "rating": "noise of a rating on [0, 1] around hᵀw; the unit of utility",
    "pair": "votes between two answers, ties apart",
    "tie": "y = ½ along the difference; ρ is what ties say of a judge's other votes",
    "thumb": "ρ is what verdicts on turns say of the session's rating; noise is that of y read as utility itself",
    "accept": "share of suggestions taken; ρ is what it says of the session's rated helpfulness",
    "edit": "y = share of the text that was kept, never ranked within a user; ρ is what it says of rated helpfulness",
    "copy": "something of the answer was copied; ρ is what it says of the next copies",
    "dwell": "seconds to the next request of the task, less what length explains; ρ is what it adds to copies",
    "regenerate": "no public data: link of accept, half of the lesser weight of accept and copy; measured 1 → y = 0",
    "interrupt": "no public data: link of accept, half of the lesser weight of accept and copy; measured 1 → y = 0",
}


class _Scale(NamedTuple):
    """Spread of a set's labels in the link's units: sd and mean of xᵀw over events and people, and the noise."""

    spread: float
    mean: float
    noise: float
    prior: Prior
    shrinkage: Shrinkage


class _Fold(NamedTuple):
    """Left-out people, and the prior of them before their first event, in units of u."""

    start: Gaussian
    signal: Signal
    primary: Signal | None
    tracks: Sequence[Track]


def fit_signals(sets: Sequence[Evidence]) -> dict[str, Signal]:
    """Fit every kind's signal from the sets that show it; a kind that helps to predict another follows that one.

    Raises:
        ValueError: there are no ratings, which set the unit, or a primary kind does not come before.
    """
    ratings = [one for one in sets if one.kind == "rating"]
    if not ratings:
        raise ValueError("there are no ratings; they set the unit of utility: add at least one set of ratings")
    scales = [_scale(one.tracks, "gaussian") for one in ratings]
    spread = _geometric(scale.spread for scale in scales)
    rating = Signal(kind="rating", link="gaussian", weight=1.0, noise=_geometric(scale.noise for scale in scales))
    pairs = zip(ratings, scales, strict=True)
    folds = [fold for one, scale in pairs for fold in _folds(one, rating, {}, spread, scale.shrinkage)]
    found = {"rating": _measured(rating, ratings, folds)}
    for kind in dict.fromkeys(one.kind for one in sets if one.kind != "rating"):
        own = [one for one in sets if one.kind == kind]
        missing = [one.primary for one in own if one.primary and one.primary not in found]
        if missing:
            raise ValueError(f"{kind!r} should predict {missing[0]!r}, which is not fitted yet; give that one first")
        found[kind] = _fit_kind(own, found, spread)
    if "accept" in found and "copy" in found:
        found |= {kind: _derived(kind, found["accept"], found["copy"]) for kind in ("regenerate", "interrupt")}
    return {kind: msgspec.structs.replace(signal, note=_NOTES.get(kind, "")) for kind, signal in found.items()}


def _derived(kind: str, accept: Signal, copy: Signal) -> Signal:
    """Derive regenerations and interruptions, which no set shows, as answers not taken, at half of the lesser weight.

    Half, because an acceptance can correct an acceptance, and nothing corrects an event whose only label is 0.
    """
    lesser = min(accept, copy, key=lambda signal: signal.weight)
    shape = Signal(kind=kind, link="logistic", weight=lesser.weight / 2.0, temperature=1.0)
    return msgspec.structs.replace(
        shape, temperature=accept.temperature, level=accept.level, knots=((0.0, 1.0), (1.0, 0.0))
    )


def _fit_kind(sets: Sequence[Evidence], found: Mapping[str, Signal], spread: float) -> Signal:
    """Fit one kind's signal from all of its sets."""
    signal = shape = _shape(sets[0].kind, [track for one in sets for track in one.tracks])
    drawn: list[Shrinkage | None] = [None] * len(sets)
    if shape.kind == "tie":
        signal = msgspec.structs.replace(shape, temperature=found["pair"].temperature)
    else:
        scales = [_scale(_labelled(one.tracks, shape), "logistic") for one in sets]
        drawn = [scale.shrinkage for scale in scales]
        signal = _placed(shape, _geometric(scale.spread for scale in scales), _mean(s.mean for s in scales), spread)
        if shape.kind == "thumb":
            noise = _geometric(_scale(one.tracks, "gaussian").noise for one in sets)
            signal = msgspec.structs.replace(signal, noise=noise)
    telling = any(one.primary for one in sets)
    judged = [(one, own) for one, own in zip(sets, drawn, strict=True) if one.primary or not telling]
    folds = [fold for one, own in judged for fold in _folds(one, shape, found, spread, own)]
    weight, sd = _weight(folds, doubt=0.0 if shape.kind in VERDICTS else 2.0)
    return _measured(msgspec.structs.replace(signal, weight=weight, weight_sd=sd), sets, folds)


# --- what is measured → y ---


def _shape(kind: str, tracks: Sequence[Track]) -> Signal:
    """Create the kind's signal with only its map from what is measured to y."""
    shape = Signal(kind=kind, link="logistic", weight=1.0, temperature=1.0)
    if kind == "edit":
        return msgspec.structs.replace(shape, knots=fit_edit(tracks))
    if kind == "dwell":
        return msgspec.structs.replace(shape, length=fit_length(tracks))
    return shape


def fit_length(tracks: Sequence[Track]) -> tuple[float, float, float]:
    """Regress log(1 + seconds) on log(1 + tokens): (intercept, slope, residual sd), what length explains of dwell."""
    seconds = np.concatenate([track.y for track in tracks])
    tokens = np.concatenate([track.tokens for track in tracks])
    seen = ~np.isnan(seconds)
    x, z = np.log1p(tokens[seen]), np.log1p(seconds[seen])
    slope, intercept = np.polyfit(x, z, 1)
    return float(intercept), float(slope), max(float((z - intercept - slope * x).std()), 1e-6)


def fit_edit(tracks: Sequence[Track]) -> tuple[tuple[float, float], ...]:
    """Fit knots from an edit's relative distance to y: 1 − ε, unless an isotonic map is surely better.

    Both are judged by how a person's mean y predicts what that person said later (the primary label), squared errors
    of left-out people; better by two standard errors is sure.
    """
    from sklearn.isotonic import IsotonicRegression  # slow to import

    told = [(i, d, p) for i, track in enumerate(tracks) for d, p in _before(track)]
    if len({i for i, _, _ in told}) < 2 * _FOLDS:
        return _KEEP
    person, distance, outcome = (np.array(column) for column in zip(*told, strict=True))
    gains = []
    for fold in range(_FOLDS):
        held = person % _FOLDS == fold
        isotonic = IsotonicRegression(increasing=False, out_of_bounds="clip").fit(distance[~held], outcome[~held])
        line = np.polyfit(distance[~held], outcome[~held], 1)
        line[0] = min(line[0], 0.0)
        errors = [
            (outcome[held] - isotonic.predict(distance[held])) ** 2,
            (outcome[held] - np.polyval(line, distance[held])) ** 2,
        ]
        gains += [float((errors[1] - errors[0])[person[held] == who].mean()) for who in np.unique(person[held])]
    if float(np.mean(gains)) <= 2.0 * float(np.std(gains, ddof=1)) / math.sqrt(len(gains)):
        return _KEEP
    full = IsotonicRegression(increasing=False).fit(distance, outcome)
    at = np.linspace(0.0, 1.0, 6)
    y = np.clip(full.predict(np.clip(at, distance.min(), distance.max())), 0.0, 1.0)
    return tuple((float(a), float(b)) for a, b in zip(at, y, strict=True))


def _before(track: Track) -> Iterable[tuple[float, float]]:
    """Yield (edit's distance, next primary label after it)."""
    waiting: list[float] = []
    for distance, outcome in zip(track.y, track.primary, strict=True):
        if not math.isnan(distance):
            waiting.append(float(distance))
        if not math.isnan(outcome):
            yield from ((d, float(outcome)) for d in waiting)
            waiting = []


def _labelled(tracks: Sequence[Track], signal: Signal) -> list[Track]:
    """Convert the tracks' measurements to labels y on [0, 1]."""

    def label(track: Track) -> Floats:
        measured = zip(track.y, track.tokens, strict=True)
        return np.array([math.nan if math.isnan(y) else signal.label(y, n) for y, n in measured])

    return [track._replace(y=label(track)) for track in tracks]


# --- temperature and level ---


def _scale(tracks: Sequence[Track], link: Link, shrinkage: Shrinkage | None = None) -> _Scale:
    """Fit a hierarchical model of one set's labels; its shrinkage is chosen where it is not given."""
    users = [Observations(t.X[~np.isnan(t.y)], t.y[~np.isnan(t.y)]) for t in tracks if not np.isnan(t.y).all()]
    shrinkage = shrinkage or _shrinkage(users, link)
    prior = fit_prior(users, link=link, shrinkage=shrinkage, iterations=_ITERATIONS)
    X = np.vstack([user.X for user in users])
    a = X @ prior.mean
    variance = float(a.var() + np.einsum("ni,ij,nj->n", X, prior.cov, X).mean())
    return _Scale(math.sqrt(variance), float(a.mean()), prior.noise, prior, shrinkage)


def _shrinkage(users: Sequence[Observations], link: Link) -> Shrinkage:
    """Choose the shrinkage that predicts every other person best from the rest."""
    halves = (users[::2], users[1::2])

    def worth(shrinkage: Shrinkage) -> float:
        return sum(
            evidence(fit_prior(one, link=link, shrinkage=shrinkage, iterations=_ITERATIONS // 2), other)
            for one, other in (halves, halves[::-1])
        )

    ratio = np.ones(users[0].X.shape[1])
    ratio[0] = _LEVELS
    candidates = [Shrinkage(nu=3.0, psi=psi * ratio, ridge=1.0) for psi in _PSI[link]]
    return max(candidates, key=worth) if len(users) > 1 else candidates[0]


def _placed(shape: Signal, spread: float, mean: float, unit: float, level: float = LEVEL) -> Signal:
    """Set the kind's temperature and level, for utility of this sd (`unit`) and mean (`level`)."""
    if shape.link == "gaussian":  # it is the unit, whatever its level in a set
        return shape
    if shape.kind == "pair":  # a difference has twice the variance of each side, and no level
        return msgspec.structs.replace(shape, temperature=math.sqrt(2.0) * unit / spread)
    temperature = unit / spread
    return msgspec.structs.replace(shape, temperature=temperature, level=level - temperature * mean)


def _belief(scale: _Scale, signal: Signal) -> Gaussian:
    """Convert the prior of people to units of u, for an X whose first column is 1 (or 0, in pairs)."""
    T = signal.temperature or 1.0
    mean = scale.prior.mean * T
    mean[0] += signal.level
    return Gaussian(mean, scale.prior.cov * T * T)


# --- weight ---


def _folds(
    one: Evidence, shape: Signal, found: Mapping[str, Signal], unit: float, own: Shrinkage | None
) -> list[_Fold]:
    """Make folds of a quarter of the people each, all but the shrinkage (`own`) fitted on the other three."""
    tracks = _labelled(one.tracks, shape)
    primary = found[one.primary] if one.primary else None
    outer = None if primary is None else _scale(_outcomes(tracks), primary.link).shrinkage
    out = []
    for fold in range(_FOLDS):
        known = [track for i, track in enumerate(tracks) if i % _FOLDS != fold]
        left = [track for i, track in enumerate(tracks) if i % _FOLDS == fold]
        if primary is None:
            scale = _scale(known, shape.link, own)
            signal = _placed(shape, scale.spread, scale.mean, unit)
            out.append(_Fold(_belief(scale, signal), signal, None, left))
            continue
        outcome = _scale(_outcomes(known), primary.link, outer)
        shown, level = _primary(primary, outcome, unit)
        if shape.kind == "tie":
            signal = msgspec.structs.replace(shape, temperature=shown.temperature)
        else:
            scale = _scale(known, shape.link, own)
            signal = _placed(shape, scale.spread, scale.mean, unit, level)
        out.append(_Fold(_belief(outcome, shown), signal, shown, left))
    return out


def _outcomes(tracks: Sequence[Track]) -> list[Track]:
    return [track._replace(y=track.primary) for track in tracks]


def _primary(primary: Signal, outcome: _Scale, unit: float) -> tuple[Signal, float]:
    """Return the primary kind as this set shows it, and the set's mean utility."""
    if primary.link == "gaussian":
        return msgspec.structs.replace(primary, noise=outcome.noise), outcome.mean
    return _placed(primary, outcome.spread, outcome.mean, unit), LEVEL


def _weight(folds: Sequence[_Fold], doubt: float) -> tuple[float, float]:
    """Return mean and sd of the posterior of ρ on a grid, under Beta(1, 1 + doubt) and the predictions' likelihood."""
    loss = np.array([sum(nll for fold in folds for nll, _ in _follow(fold, rho)) for rho in _GRID])
    grid = np.linspace(0.0, 1.0, 201)
    density = (1.0 - grid) ** doubt * np.exp(loss.min() - np.interp(grid, _GRID, loss))
    density /= density.sum()
    mean = float(density @ grid)
    return mean, math.sqrt(float(density @ (grid - mean) ** 2))


def _follow(fold: _Fold, rho: float) -> list[tuple[float, int]]:
    """Predict each person's labels, learning each event after it; returns (sum of −log p, number) a person."""
    out = []
    for track in fold.tracks:
        taste = Gaussian(fold.start.mean, fold.start.cov)
        total, count = 0.0, 0
        for x, y, outcome in zip(track.X, track.y, track.primary, strict=True):
            for signal, label, weight in ((fold.primary, outcome, 1.0), (fold.signal, y, rho)):
                if signal is None or math.isnan(label):
                    continue
                gain = taste.gain(x)
                predicted, variance = float(x @ taste.mean), float(x @ gain)
                if signal is (fold.primary or fold.signal):
                    total += signal.nll_of(predicted, variance, label)
                    count += 1
                taste.learn(gain, signal.gaussian_update(predicted, variance, label, weight))
        out.append((total, count))
    return out


def _measured(signal: Signal, sets: Sequence[Evidence], folds: Sequence[_Fold]) -> Signal:
    """Add to the signal what was measured of its use."""
    with_it = [row for fold in folds for row in _follow(fold, signal.weight)]
    without = [row for fold in folds for row in _follow(fold, 0.0)]
    n = np.array([count for _, count in with_it])
    gain = np.array([a - b for (a, _), (b, _) in zip(without, with_it, strict=True)])
    spread = gain - n * (gain.sum() / n.sum())
    events = sum(int((~np.isnan(track.y)).sum()) for one in sets for track in one.tracks)
    return msgspec.structs.replace(
        signal,
        source=", ".join(one.source for one in sets),
        predicts=sets[0].primary or signal.kind,
        events=events,
        people=sum(not np.isnan(track.y).all() for one in sets for track in one.tracks),
        nll=float(sum(total for total, _ in with_it) / n.sum()),
        nll_without=float(sum(total for total, _ in without) / n.sum()),
        gain_se=float(np.sqrt((spread**2).sum()) / n.sum()),
    )


def _geometric(values: Iterable[float]) -> float:
    return math.exp(_mean(math.log(value) for value in values))


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)
