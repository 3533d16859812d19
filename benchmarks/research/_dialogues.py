"""k-shot and prequential evaluation on dialogues: LLM-Rubric's judges and the turns of HALIE.

**Judges** (D3). Train on synthetic dialogues, test on real ones by the same judges. Offline: hierarchical Bayes over
the answers that an LLM expects to nine questions; the scale of taste is the one that predicts a left-out system's
dialogues best. Test-then-learn: the same features in a Gaussian process with effects of judges, dialogues, systems, and
of judges on systems (`_mixed`); variances come from the synthetic dialogues only.

**Turns** (D4). A logistic regression on the answer, its model and its place in the dialogue says what the crowd thinks;
what a user says of six dimensions departs from it by a lasting and a fading part,

    r_t = b + d_t + ε_t,   b ~ N(0, B),  cov(d_s, d_t) = D exp(−|s − t| / 2.5),  ε_t ~ N(0, N),

with 6 × 6 covariances by moments of training users' residuals at lags 0, 1 and 4 or more. How far users depart and how
noisy they are differs between them (`_scales`). A turn is predicted from the verdicts on earlier turns only.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from benchmarks.research._mixed import covariance, fit_variances, same, test_then_learn
from benchmarks.research.public import answer_probabilities
from numpy.typing import NDArray

from fitrouter.context.encoders import Encoder
from fitrouter.types import Floats
from fitrouter_evaluators.bench import _scales
from fitrouter_evaluators.bench._metrics import AUC, KENDALL, PEARSON, RMSE, SPEARMAN, Metric, squared
from fitrouter_evaluators.bench._protocol import Ledger, NoHarm, Result
from fitrouter_evaluators.bench._scales import Scales
from fitrouter_evaluators.bench._taste import directions
from fitrouter_evaluators.datasets import halie, llm_rubric
from fitrouter_evaluators.scoring.features import readable
from fitrouter_evaluators.scoring.text.style import measure, standardise
from fitrouter_evaluators.training.hierarchy import Observations, Prior, Shrinkage, fit_prior

Ints = NDArray[np.int64]

_TASTES = (0.0005, 0.002, 0.01, 0.05)
_DIMENSIONS = ("preference", "interestingness", "boringness", "sensibility", "specificity", "humanness")
_FADING = 2.5
_SHOWN = 5


# --- LLM-Rubric ---


class _Judged(NamedTuple):
    judge: NDArray[np.str_]
    dialogue: NDArray[np.str_]
    system: NDArray[np.str_]
    real: NDArray[np.bool_]
    E: Floats
    """float64[n, 9]: the answers that the LLM expects, standardised on synthetic dialogues."""
    y: Floats


def judges(folder: Path) -> list[Result]:
    """Evaluate Q0 of real dialogues: k = 0 offline, k = −1 test-then-learn."""
    data = _judged(folder)
    train, test = np.flatnonzero(~data.real), np.flatnonzero(data.real)
    ledger = Ledger("D3 overall satisfaction")
    offline, crowd, bias = _offline(data, train, test)
    learnt = _sequence(data, train)[len(train) :]
    for judge in np.unique(data.judge[test]):
        mine = data.judge[test] == judge
        y = data.y[test][mine]
        for row, k, p in (
            ("global", 0, crowd),
            ("bias-only", 0, bias),
            ("hierarchical", 0, offline),
            ("hierarchical", -1, learnt),
        ):
            ledger.add(row, k, 0, int(judge), y, p[mine])
    return ledger.results((PEARSON, SPEARMAN, KENDALL, RMSE))


def _judged(folder: Path) -> _Judged:
    probabilities = answer_probabilities(folder)
    rows = [row for row in llm_rubric.convert(folder) if row.dimension == "Q0" and row.item in probabilities]
    expected = {
        item: [float(np.dot(answers.get(q, (0.25,) * 4), (1, 2, 3, 4))) for q in llm_rubric.QUESTIONS]
        for item, answers in probabilities.items()
    }
    real = np.array([row.extra["split"] == "real" for row in rows])
    E = np.array([expected[row.item or ""] for row in rows])
    E = (E - E[~real].mean(axis=0)) / E[~real].std(axis=0)
    names = [(row.user, row.item or "", row.model or "") for row in rows]
    judge, dialogue, system = (np.array(column) for column in zip(*names, strict=True))
    return _Judged(judge, dialogue, system, real, E, np.array([row.rating for row in rows]))


def _offline(data: _Judged, train: Ints, test: Ints) -> tuple[Floats, Floats, Floats]:
    """Predict `test` offline by the hierarchical, global and bias-only models."""
    X = np.hstack([np.ones((len(data.y), 1)), 0.3 * data.E])

    def worth(taste: float) -> float:
        total = np.zeros(len(train))
        for system in np.unique(data.system[train]):
            left = data.system[train] == system
            total[left] = _judge_heads(data, X, train[~left], train[left], taste)[0]
        return PEARSON.of(data.y[train], total)

    best = max(_TASTES, key=worth)
    hierarchical, prior = _judge_heads(data, X, train, test, best)
    bias, _ = _judge_heads(data, X[:, :1], train, test, best)
    return hierarchical, X[test] @ prior.mean, bias


def _judge_heads(data: _Judged, X: Floats, train: Ints, test: Ints, taste: float) -> tuple[Floats, Prior]:
    rows = {judge: train[data.judge[train] == judge] for judge in np.unique(data.judge[train])}
    psi = np.full(X.shape[1], taste)
    psi[0] = 0.2
    people = {judge: Observations(X[mine], data.y[mine]) for judge, mine in rows.items()}
    prior = fit_prior(list(people.values()), shrinkage=Shrinkage(10.0, psi, 5.0), iterations=12)
    heads = {judge: prior.posterior(labels).mean for judge, labels in people.items()}
    return np.array([X[i] @ heads.get(data.judge[i], prior.mean) for i in test]), prior


def _sequence(data: _Judged, train: Ints) -> Floats:
    """Predict synthetic, then real dialogues in their files' order, each before it is learnt from."""
    linear = data.E @ data.E.T / data.E.shape[1]
    distance = ((data.E[:, None] - data.E) ** 2).sum(axis=-1)
    judge, system = same(data.judge), same(data.system)
    kernels = [
        linear,
        np.exp(-distance / (2 * data.E.shape[1])),
        judge,
        judge * linear,
        same(data.dialogue),
        judge * system,
        system,
    ]
    mean = float(data.y[train].mean())
    known = np.ix_(train, train)
    variances = fit_variances([kernel[known] for kernel in kernels], data.y[train] - mean, 40)
    return mean + test_then_learn(covariance(kernels, variances), data.y - mean)


# --- HALIE ---


class _Turns(NamedTuple):
    user: Ints
    turn: Ints
    X: Floats
    """Answer's model, place in the dialogue, style, closeness to what the user said and to earlier answers."""
    V: Floats
    """Vectors of the answer and of what the user said."""
    Y: Floats
    """float64[n, 6] verdicts; NaN where there is none."""


def _mean_auc(y: Floats, p: Floats) -> float:
    """Return the mean AUC over dimensions; y is 2 · dimension + verdict."""
    dimension = y // 2
    return float(np.nanmean([AUC.of(y[m] % 2, p[m]) for d in np.unique(dimension) for m in [dimension == d]]))


MEAN_AUC = Metric("mean auc", _mean_auc, higher=True)


def turns(folder: Path, seeds: Sequence[int], encoder: Encoder) -> tuple[list[Result], list[NoHarm]]:
    """Evaluate turns in five folds of users a seed. k = −1: test-then-learn; k ≤ 5: turns after the fifth."""
    data = _turns(folder, encoder)
    running, fixed = Ledger("D4 test-then-learn"), Ledger("D4 turns after the fifth")
    users = np.unique(data.user)
    for seed in seeds:
        fold_of = dict(zip(users, np.random.default_rng([2026, seed]).permutation(len(users)) % 5, strict=True))
        fold = np.array([fold_of[user] for user in data.user])
        for left in range(5):
            _fold_of_turns(data, seed, fold == left, running, fixed)
    results = running.results((MEAN_AUC,)) + fixed.results((MEAN_AUC,))
    spread = float(np.nanmean(np.nanstd(data.Y, axis=0)))
    harm = [running.no_harm("hierarchical", -1, _verdict_loss, spread=spread)]
    harm += [fixed.no_harm("hierarchical", k, _verdict_loss, spread=spread) for k in (2, _SHOWN)]
    return results, harm


def _verdict_loss(y: Floats, p: Floats) -> Floats:
    """Return Brier's score of coded verdicts."""
    return squared(y % 2, p)


def _turns(folder: Path, encoder: Encoder) -> _Turns:
    table: dict[tuple[str, int], dict[str, float]] = {}
    about = {}
    for row in halie.convert_dialogue(folder):
        key = (row.user, row.extra["turn"])
        table.setdefault(key, {})[row.dimension] = row.rating
        about[key] = row
    rows = list(about.values())
    answers = encoder.encode([readable(row.response or "") for row in rows])
    said = encoder.encode([readable(row.prompt[-600:]) for row in rows])
    user = np.unique([row.user for row in rows], return_inverse=True)[1].astype(np.int64)
    turn = np.array([row.extra["turn"] for row in rows])
    repeat = np.zeros(len(rows))
    for i in range(len(rows)):
        before = np.flatnonzero((user == user[i]) & (turn < turn[i]))
        if len(before):
            repeat[i] = float((answers[before] @ answers[i]).max())
    models = np.array([row.model for row in rows])
    style = np.nan_to_num(np.array([standardise(measure(row.response or "")) for row in rows]))
    parts = [models[:, None] == np.unique(models), turn == 1, np.log(turn), style / 2]
    closeness = [3 * (answers * said).sum(axis=1), 3 * repeat]
    X = np.column_stack([np.asarray(part, dtype=np.float64) for part in (*parts, *closeness)])
    Y = np.array([[table[key].get(name, np.nan) for name in _DIMENSIONS] for key in about])
    return _Turns(user, turn, X, np.hstack([answers, said]), Y)


def _fold_of_turns(data: _Turns, seed: int, test: NDArray[np.bool_], running: Ledger, fixed: Ledger) -> None:
    P = _crowd(data, ~test)
    B, D, N = _moments(data, P, ~test)
    lasting, rest = np.diag(np.diag(B)), np.diag(np.diag(N + D))
    models = {
        "bias-only": _spread(data, P, ~test, lasting, np.zeros_like(D), rest),
        "hierarchical": _spread(data, P, ~test, B, D, N),
    }
    for user in np.unique(data.user[test]):
        rows = _in_order(data, int(user))
        _add(running, "global", -1, seed, data, rows, P[rows])
        for row, parts in models.items():
            _add(running, row, -1, seed, data, rows, _follow(data, P, rows, parts, shown=len(rows)))
        if len(rows) <= _SHOWN + 1:
            continue
        held = rows[_SHOWN:]
        _add(fixed, "global", 0, seed, data, held, P[held])
        for row, parts in models.items():
            for k in (0, 2, _SHOWN):
                _add(fixed, row, k, seed, data, held, _follow(data, P, rows, parts, shown=k)[_SHOWN:])


def _add(ledger: Ledger, row: str, k: int, seed: int, data: _Turns, rows: Ints, p: Floats) -> None:
    Y = data.Y[rows]
    known = np.isfinite(Y)
    coded = Y + 2 * np.arange(Y.shape[1])
    ledger.add(row, k, seed, int(data.user[rows[0]]), coded[known], np.clip(p, 0.01, 0.99)[known])


def _crowd(data: _Turns, train: NDArray[np.bool_]) -> Floats:
    from sklearn.linear_model import LogisticRegression

    V = directions(data.V, np.flatnonzero(train), 20)
    X = np.hstack([data.X, V / V[train].std(axis=0)[0]])
    P = np.empty_like(data.Y)
    for d in range(P.shape[1]):
        known = train & np.isfinite(data.Y[:, d])
        P[:, d] = LogisticRegression(C=0.1, max_iter=300).fit(X[known], data.Y[known, d]).predict_proba(X)[:, 1]
    return P


def _moments(data: _Turns, P: Floats, train: NDArray[np.bool_]) -> tuple[Floats, Floats, Floats]:
    """Estimate the covariances of the lasting part, the fading part and the noise of users' departures."""
    R = np.nan_to_num(data.Y - P)
    sums = {lag: np.zeros((R.shape[1],) * 2) for lag in (0, 1, 4)}
    counts = dict.fromkeys(sums, 0)
    for user in np.unique(data.user[train]):
        r = R[_in_order(data, int(user))]
        for lag in sums:
            sums[lag] += r[lag:].T @ r[: len(r) - lag]
            counts[lag] += max(len(r) - lag, 0)
    total, near, far = ((sums[lag] + sums[lag].T) / (2 * counts[lag]) for lag in (0, 1, 4))
    B, D = _positive(far), _positive(near - far) * np.exp(1 / _FADING)
    return B, D, _positive(total - B - D)


def _positive(matrix: Floats) -> Floats:
    values, vectors = np.linalg.eigh(matrix)
    out: Floats = (vectors * np.maximum(values, 1e-4)) @ vectors.T
    return out


class _Parts(NamedTuple):
    """Covariances of a row's departures from the crowd, and their spread over users."""

    B: Floats
    D: Floats
    N: Floats
    scales: Scales

    def signal(self, turn: Ints) -> Floats:
        """Return the covariance of the signals of n turns in units of the noise, float64[6 n, 6 n]."""
        n = len(turn)
        fading = np.exp(-np.abs(turn[:, None] - turn) / _FADING)
        W = np.kron(np.eye(n), np.linalg.inv(np.linalg.cholesky(self.N)))
        out: Floats = W @ (np.kron(np.ones((n, n)), self.B) + np.kron(fading, self.D)) @ W.T
        return (out + out.T) / 2.0


def _spread(data: _Turns, P: Floats, train: NDArray[np.bool_], B: Floats, D: Floats, N: Floats) -> _Parts:
    """Combine the covariances with scales learnt from training users."""
    parts = _Parts(B, D, N, Scales(np.ones(1)))
    known = []
    for user in np.unique(data.user[train]):
        rows = _in_order(data, int(user))
        values, vectors = np.linalg.eigh(parts.signal(data.turn[rows]))
        known.append((np.maximum(values, 0.0), vectors.T @ _whitened(data, P, rows, N)))
    return parts._replace(scales=Scales.fit_parts(known, 1.0))


def _in_order(data: _Turns, user: int) -> Ints:
    rows = np.flatnonzero(data.user == user)
    return rows[np.argsort(data.turn[rows], kind="stable")]


def _whitened(data: _Turns, P: Floats, rows: Ints, N: Floats) -> Floats:
    """Return the residuals from the crowd, turn by turn, in units of the noise."""
    R = np.nan_to_num(data.Y[rows] - P[rows])
    return np.linalg.solve(np.linalg.cholesky(N), R.T).T.ravel().astype(np.float64)


def _follow(data: _Turns, P: Floats, rows: Ints, parts: _Parts, *, shown: int) -> Floats:
    """Predict each turn of a user by the verdicts on earlier turns (at most the first `shown`), float64[turns, 6]."""
    K, r, width = parts.signal(data.turn[rows]), _whitened(data, P, rows, parts.N), P.shape[1]
    root = np.linalg.cholesky(parts.N)
    out = P[rows].copy()
    for i in range(len(rows)):
        seen = min(i, shown) * width
        if seen:
            here = slice(i * width, (i + 1) * width)
            out[i] += root @ _ahead(parts.scales, K[:seen, :seen], r[:seen], K[here, :seen])
    return out


def _ahead(scales: Scales, K: Floats, y: Floats, ahead: Floats, noise: float = 1.0) -> Floats:
    """Predict the means of further signals, float64[m], given labels y float64[n].

    Args:
        scales: of the users.
        K: covariance of the signals behind y, float64[n, n].
        y: labels.
        ahead: covariance of the further signals with those behind y, float64[m, n].
        noise: variance of the labels' noise.
    """
    values, z, vectors = _scales._basis(K, y)
    share = _scales._normal(_scales._evidence(values, z, noise) + np.log(scales.weight))
    shrink = share @ (_scales._S[:, None] / (_scales._S[:, None] * values + _scales._R[:, None] * noise))
    out: Floats = (ahead @ vectors) @ (shrink * z)
    return out
