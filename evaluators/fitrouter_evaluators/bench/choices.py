"""Benchmark of stated preferences: choose the answer that fits, by the declared prior alone.

Every row states preferences and offers options. An option's utility is Σ_d mean_d · z_d, with the declared means of the
statements (`scoring.statements.declared`) and the option's features z, standardised within the row. The mapping was
trained on other statements, so nothing of the file is needed to choose.

**Fitted strength.** The weight of phrase p on the utility is t_p ~ N(strength, variance), so that `variance` is that of
the declared pseudo-observation in units of the taste. Both maximise the marginal likelihood of the choices,
∫ N(t) Π softmax(t · utility) dt, on one half of the phrases; the NLL is of the other half (two-fold).

**Negated twins** are statements of two users whose names differ in their last part only: `long-more`, `long-less`.
On all rows of both, the options chosen under either must lie on opposite sides of the row's mean of the attribute, the
dimension in which the best options of the two users differ most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fitrouter.context.encoders import Encoder
from fitrouter.types import Floats
from fitrouter_evaluators.datasets import Choice, read_choices
from fitrouter_evaluators.scoring import STYLE, Answer, ResponseFeatures, measure, standardise
from fitrouter_evaluators.scoring.statements.declared import DeclaredTaste, DeclaredValues

_RESAMPLES = 2000
_STYLE = tuple(dimension.name for dimension in STYLE)

Phrase = tuple[str, ...]


class _Rows(NamedTuple):
    """Choices with their features and declared values."""

    rows: list[Choice]
    names: tuple[str, ...]
    z: list[Floats]
    """float64[options, names] a row: features, standardised within the row."""
    means: dict[Phrase, Floats]
    """float64[names] a phrase: its declared values."""
    tastes: dict[Phrase, DeclaredTaste]


def run_choices(path: Path, encoder: Encoder, *, seed: int = 0) -> dict[str, Any]:
    """Run the benchmark: accuracy beside baselines, negated twins, and the fitted strength; ready for JSON.

    Intervals are 95% bootstrap intervals that resample phrases.

    Raises:
        ConfigError: the file is missing, of another type, or has no usable row.
    """
    records = read_choices(path)
    data = _prepare(records.some(path), encoder)
    right = _right(data)
    phrases = [row.declared for row in data.rows]
    clusters = sorted(set(phrases))
    draws = np.random.default_rng([2026, seed]).integers(len(clusters), size=(_RESAMPLES, len(clusters)))
    owner = np.array([clusters.index(phrase) for phrase in phrases])
    rows = {name: _interval(values, owner, draws) for name, values in right.items()}
    better = max(("longest", "shortest"), key=lambda name: rows[name]["mean"])
    return {
        "set": Path(path).stem,
        "encoder": encoder.id,
        "n": len(data.rows),
        "users": len({row.user for row in data.rows}),
        "phrases": len(clusters),
        "understood": float(np.mean([data.tastes[phrase].understood for phrase in clusters])),
        "accuracy": rows,
        "gain": {"over": better, **_interval(right["declared"] - right[better], owner, draws)},
        "by_user": {
            user: float(right["declared"][[i for i, row in enumerate(data.rows) if row.user == user]].mean())
            for user in sorted({row.user for row in data.rows})
        },
        "by_phrase": {" ".join(p): float(right["declared"][owner == k].mean()) for k, p in enumerate(clusters)},
        "twins": _twins(data),
        "strength": _strengths(data),
        "problems": [{"line": problem.line, "reason": problem.reason} for problem in records.problems],
    }


def _prepare(rows: list[Choice], encoder: Encoder) -> _Rows:
    reader = DeclaredValues(encoder)
    tastes = {phrase: reader.read_all(phrase) for phrase in sorted({row.declared for row in rows})}
    spoken = {name for taste in tastes.values() for name in taste.values}
    features = None if spoken <= set(_STYLE) else ResponseFeatures(encoder, 0)
    names = _STYLE if features is None else features.names
    means = {
        phrase: np.array([taste.values[name].mean if name in taste.values else 0.0 for name in names])
        for phrase, taste in tastes.items()
    }
    return _Rows(rows, names, [_standardised(row.options, features) for row in rows], means, tastes)


def _standardised(options: Sequence[str], features: ResponseFeatures | None) -> Floats:
    """Features of the options, standardised within the row, float64[options, names]; 0 if missing or constant."""
    if features is None:
        h = standardise(np.array([measure(option) for option in options]))
    else:
        h = features.encode([Answer(text=option) for option in options])
    known = np.isfinite(h)
    count = np.maximum(known.sum(axis=0), 1)
    centred = np.where(known, h - np.where(known, h, 0.0).sum(axis=0) / count, 0.0)
    spread = np.sqrt((centred**2).sum(axis=0) / count)
    out: Floats = centred / np.where(spread > 1e-9, spread, np.inf)
    return out


def _right(data: _Rows) -> dict[str, Floats]:
    """Score rows from 0 (wrong) to 1 (right) for the declared prior and each baseline, float64[rows]; ties share."""
    out = {name: np.zeros(len(data.rows)) for name in ("declared", "longest", "shortest", "first", "random")}
    for i, (row, z) in enumerate(zip(data.rows, data.z, strict=True)):
        lengths = np.array([float(len(option)) for option in row.options])
        out["declared"][i] = _picks(z @ data.means[row.declared])[row.best]
        out["longest"][i], out["shortest"][i] = _picks(lengths)[row.best], _picks(-lengths)[row.best]
        out["first"][i], out["random"][i] = float(row.best == 0), 1.0 / len(row.options)
    return out


def _picks(utility: Floats) -> Floats:
    """Choice probabilities of a maximiser that breaks ties at random, float64[options]."""
    best = (utility >= utility.max() - 1e-9).astype(np.float64)
    out: Floats = best / best.sum()
    return out


def _interval(values: Floats, owner: np.ndarray, draws: np.ndarray) -> dict[str, float]:
    """Mean of float64[rows] and its 95% cluster bootstrap interval."""
    clusters = draws.shape[1]
    totals, sizes = np.bincount(owner, values, clusters), np.bincount(owner, minlength=clusters)
    low, high = np.quantile(totals[draws].sum(axis=1) / sizes[draws].sum(axis=1), (0.025, 0.975))
    return {"mean": float(values.mean()), "low": float(low), "high": float(high)}


# --- negated twins ---


def _twins(data: _Rows) -> dict[str, Any]:
    """Share of (row, pair of opposite statements) cases whose choices lie on opposite sides; also by pair of users."""
    shares: list[tuple[tuple[Phrase, Phrase], float]] = []
    by_pair: dict[str, dict[str, Any]] = {}
    for more, less in _opposites({row.user for row in data.rows}):
        attribute = _attribute(data, more, less)
        own = [(pair, _reversal(data, i, attribute, pair)) for pair, i in _comparisons(data, more, less)]
        reversed_ = float(np.mean([value for _, value in own]))
        by_pair[f"{more} / {less}"] = {"attribute": data.names[attribute], "reversed": reversed_}
        shares += own
    if not shares:
        return {"mean": None, "low": None, "high": None, "n": 0, "pairs": {}}
    pairs = sorted({pair for pair, _ in shares})
    owner = np.array([pairs.index(pair) for pair, _ in shares])
    draws = np.random.default_rng(2026).integers(len(pairs), size=(_RESAMPLES, len(pairs)))
    return {**_interval(np.array([v for _, v in shares]), owner, draws), "n": len(shares), "pairs": by_pair}


def _opposites(users: set[str]) -> list[tuple[str, str]]:
    """Pairs of users whose names have the same stem before the last '-'."""
    stems: dict[str, list[str]] = {}
    for user in sorted(users):
        if "-" in user:
            stems.setdefault(user.rpartition("-")[0], []).append(user)
    return [(pair[0], pair[1]) for pair in stems.values() if len(pair) == 2]


def _attribute(data: _Rows, more: str, less: str) -> int:
    """Index of the dimension in which the best options of two users differ most on average."""
    best = {
        user: [z[row.best] for row, z in zip(data.rows, data.z, strict=True) if row.user == user]
        for user in (more, less)
    }
    return int(np.abs(np.mean(best[more], axis=0) - np.mean(best[less], axis=0)).argmax())


def _comparisons(data: _Rows, more: str, less: str) -> Iterator[tuple[tuple[Phrase, Phrase], int]]:
    """All pairs of statements of the two users, on every row of both."""
    sides = [sorted({row.declared for row in data.rows if row.user == user}) for user in (more, less)]
    where = [i for i, row in enumerate(data.rows) if row.user in {more, less}]
    return (((one, other), i) for one, other in product(*sides) for i in where)


def _reversal(data: _Rows, i: int, attribute: int, pair: tuple[Phrase, Phrase]) -> float:
    """Return 1 if the two statements' choices lie on opposite sides of the row's mean; 0 if one has no values."""
    sides = []
    for phrase in pair:
        if not data.means[phrase].any():
            return 0.0
        sides.append(float(data.z[i][int((data.z[i] @ data.means[phrase]).argmax()), attribute]))
    return float(sides[0] * sides[1] < 0.0)


# --- strength of declared values ---


def _strengths(data: _Rows) -> dict[str, Any]:
    """Fit the strength of the declared weight on half of the phrases and measure the NLL on the other, both ways."""
    halves = _halves(data.rows)
    if not all(halves):
        return {}
    folds: list[dict[str, float]] = []
    held: list[float] = []
    plain: list[float] = []
    uniform: list[float] = []
    for fit, test in (halves, halves[::-1]):
        strength, variance = _fit_strength([_utilities(data, phrase) for phrase in fit])
        for phrase in test:
            rows = _utilities(data, phrase)
            held.extend(_nll(row, strength, variance) for row in rows)
            plain.extend(_nll(row, 1.0, 0.0) for row in rows)
            uniform.extend(float(np.log(len(u))) for u, _ in rows)
        folds.append({"strength": strength, "variance": variance, "phrases": len(fit)})
    return {
        "folds": folds,
        "nll": float(np.mean(held)),
        "nll_unfitted": float(np.mean(plain)),
        "nll_uniform": float(np.mean(uniform)),
    }


def _halves(rows: Sequence[Choice]) -> tuple[list[Phrase], list[Phrase]]:
    """Split the phrases into two halves, each with every other phrase of a user."""
    halves: tuple[list[Phrase], list[Phrase]] = ([], [])
    seen: set[Phrase] = set()
    for user in sorted({row.user for row in rows}):
        own = sorted({row.declared for row in rows if row.user == user} - seen)
        seen.update(own)
        for k, phrase in enumerate(own):
            halves[k % 2].append(phrase)
    return halves


def _utilities(data: _Rows, phrase: Phrase) -> list[tuple[Floats, int]]:
    """Rows that declare this phrase, each as the utilities of its options and the index of the best one."""
    return [
        (z @ data.means[phrase], row.best) for row, z in zip(data.rows, data.z, strict=True) if row.declared == phrase
    ]


_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(21)
_LOG_WEIGHTS = np.log(_WEIGHTS / _WEIGHTS.sum())


def _log_likelihood(row: tuple[Floats, int], weights: Floats) -> Floats:
    """Log softmax probability of the best option under each weight, float64[nodes]."""
    utility, best = row
    logits = np.outer(weights, utility)
    peak = logits.max(axis=1, keepdims=True)
    out: Floats = logits[:, best] - peak[:, 0] - np.log(np.exp(logits - peak).sum(axis=1))
    return out


def _nll(row: tuple[Floats, int], strength: float, variance: float) -> float:
    """Negative log of E_t softmax(t · utility)[best], t ~ N(strength, variance), by Gauss–Hermite quadrature."""
    weights = strength + np.sqrt(variance) * _NODES
    return -float(np.logaddexp.reduce(_log_likelihood(row, weights) + _LOG_WEIGHTS))


def _fit_strength(groups: Sequence[list[tuple[Floats, int]]]) -> tuple[float, float]:
    """Fit strength and variance by marginal likelihood; all rows of a group share one draw of the weight."""
    from scipy import optimize

    def loss(at: Floats) -> float:
        weights = np.exp(at[0]) + np.exp(0.5 * at[1]) * _NODES
        return -sum(
            float(np.logaddexp.reduce(_LOG_WEIGHTS + np.sum([_log_likelihood(r, weights) for r in group], axis=0)))
            for group in groups
        )

    found = optimize.minimize(loss, np.zeros(2), method="L-BFGS-B", bounds=[(-4.0, 4.0), (-8.0, 4.0)])
    return float(np.exp(found.x[0])), float(np.exp(found.x[1]))
