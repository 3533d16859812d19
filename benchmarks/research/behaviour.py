"""Prequential prediction of users' behaviour (copies, acceptances, edits) on public sets.

People whom training never saw are followed event by event; each is predicted, then learnt from. The shared model is a
ridge logistic regression of everything that is known before (`_behaviour_features`); a person's head stands on its log
odds g and a few named features, h = [1, g, own], with the population's prior by EM and the kind's weight ρ from the
table of signals.

Rows: *floor features* (model, style and TF-IDF-SVD of the answer, as in the notes), *global* (g), *population* (the
mean head: h says what the person did just before, but nothing is learnt of them), *bias-only* (a person's intercept on
g), *user-only* (h without g, and no population), *hierarchical*. k: of the events after a person's first k.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from benchmarks.research._behaviour_features import Events, accepts, copies, edits
from benchmarks.research.signals import load_signals
from numpy.typing import NDArray

from fitrouter.context.encoders import get_encoder
from fitrouter.posterior.gaussian import Gaussian, gaussian_update
from fitrouter.types import Floats
from fitrouter_evaluators.bench._metrics import AUC, ECE, NLL, Metric, log_loss
from fitrouter_evaluators.bench._protocol import Ledger, NoHarm, Paired, Result
from fitrouter_evaluators.training.hierarchy import Link, Observations, Prior, Shrinkage, evidence, fit_prior, sigmoid

KS = (0, 5, 10)
_PARTS = 3
_INNER = 5
_DIRECTIONS = 8
_WORDS = 24
_PSI = (0.02, 0.1, 0.3, 1.0)
_C = (0.0003, 0.001, 0.003, 0.01)
_LOOSE = 1.0
Mask = NDArray[np.bool_]


class Outcome(NamedTuple):
    """The results of one set."""

    results: list[Result]
    paired: list[Paired]
    no_harm: list[NoHarm]


def choose_prior(
    users: Sequence[Observations],
    candidates: Sequence[Shrinkage],
    *,
    link: Link = "gaussian",
    declared: Floats | None = None,
    folds: int = 4,
    iterations: int = 12,
) -> Prior:
    """Fit the prior of all users under the shrinkage that predicts left-out users best (evidence, folds over users)."""

    def worth(shrinkage: Shrinkage) -> float:
        total = 0.0
        for fold in range(folds):
            kept = [i for i in range(len(users)) if i % folds != fold]
            left = [i for i in range(len(users)) if i % folds == fold]
            known = None if declared is None else declared[kept]
            prior = fit_prior(
                [users[i] for i in kept], link=link, shrinkage=shrinkage, declared=known, iterations=iterations
            )
            total += evidence(prior, [users[i] for i in left], None if declared is None else declared[left])
        return total

    if not candidates:
        raise ValueError("candidates is empty; give at least one Shrinkage")
    best = candidates[0] if len(candidates) == 1 else max(candidates, key=worth)
    return fit_prior(users, link=link, shrinkage=best, declared=declared, iterations=iterations + 8)


def development(data: Path, seeds: int, encoder: str) -> list[Result]:
    """Compute the rows of the result table from the folder of public sets, without missing sets."""
    return [result for outcome in run(data, seeds, encoder) for result in outcome.results]


def run(data: Path, seeds: int, encoder: str) -> list[Outcome]:
    """Evaluate copies, acceptances and edits, as far as their sets are there."""
    known = get_encoder(encoder)
    programmers, writers = data / "realhumaneval", data / "halie" / "metaphor"
    streams: list[Events] = []
    if programmers.is_dir():
        streams.append(copies(programmers, known))
    if writers.is_dir():
        streams += [accepts(writers), edits(writers, known)]
    return [measure_events(events, seeds) for events in streams]


def measure_events(events: Events, seeds: int) -> Outcome:
    """Evaluate one set; in `seeds` random splits, each third of its people is predicted by a model of the others."""
    ledger = Ledger(events.name)
    for seed in range(seeds):
        for row, p in _predictions(events, seed).items():
            for user in range(int(events.user.max()) + 1):
                mine = np.flatnonzero(events.user == user)
                for k in KS:
                    if len(mine) > k:
                        ledger.add(row, k, seed, user, events.y[mine[k:]], p[mine[k:]])
    metrics: list[Metric] = [NLL, ECE] if events.kind == "edit" else [AUC, NLL, ECE]
    shown = [metric for metric in metrics if metric is not ECE]
    return Outcome(
        ledger.results(metrics),
        [ledger.paired(row, k, metric) for row in ("bias-only", "hierarchical") for k in KS for metric in shown],
        [ledger.no_harm("hierarchical", k, log_loss) for k in KS],
    )


def _predictions(events: Events, seed: int) -> dict[str, Floats]:
    """Predict each event by each row's method: row → float64[n]."""
    people = int(events.user.max()) + 1
    rng = np.random.default_rng([2026, seed])
    third, inner = rng.permutation(people) % _PARTS, rng.permutation(people) % _INNER
    out: dict[str, Floats] = {}
    for part in range(_PARTS):
        seen, left = third[events.user] != part, third[events.user] == part
        for row, p in _part(events, seen, inner[events.user]).items():
            out.setdefault(row, np.zeros(len(p)))[left] = p[left]
    return out


def _part(events: Events, seen: Mask, inner: NDArray[np.int64]) -> dict[str, Floats]:
    """Predict events by models of the seen people: row → float64[n], valid where `seen` is False."""
    X = np.hstack([events.X, *(_directions(vectors, seen) for vectors in events.vectors)])
    g = _log_odds(X, events.y, seen, inner)
    rows = {"global": sigmoid(g)}
    if events.texts and len(events.vectors) == 2:
        words = np.hstack([events.models, events.style, _word_directions(events.texts, seen)])
        rows["floor features"] = sigmoid(_log_odds(words, events.y, seen, inner))
    one = np.ones((len(g), 1))
    signal = load_signals()[events.kind]
    rho = signal.weight if signal.predicts == events.kind else 1.0  # ρ is about what it says of another kind
    heads: dict[str, tuple[Floats, list[Shrinkage]]] = {
        "bias-only": (np.hstack([one, g[:, None]]), [_shrinkage(np.array([psi, 1e-6])) for psi in _PSI]),
        "hierarchical": (np.hstack([one, g[:, None], events.own]), [_shrinkage(psi) for psi in _PSI]),
    }
    for row, (H, candidates) in heads.items():
        labels = [Observations(H[mine], events.y[mine]) for mine in _people(events.user, seen)]
        prior = choose_prior(labels, candidates, link="logistic", folds=2, iterations=5)
        rows[row] = _followed(prior.at(), H, events, ~seen, rho)
        if row == "hierarchical":
            rows["population"] = _followed(prior.at(), H, events, ~seen, 0.0)
    H = np.hstack([one, events.own])
    rows["user-only"] = _followed(Gaussian(np.zeros(H.shape[1]), _LOOSE * np.eye(H.shape[1])), H, events, ~seen, 1.0)
    return rows


def _shrinkage(psi: float | Floats) -> Shrinkage:
    # g is calibrated already: its slope is near 1, which a strong ridge would draw to 0.
    return Shrinkage(psi=psi, ridge=0.5)


def _followed(start: Gaussian, H: Floats, events: Events, left: Mask, rho: float) -> Floats:
    out = np.full(len(H), 0.5)
    for mine in _people(events.user, left):
        out[mine] = follow(start, H[mine], events.y[mine], rho)
    return out


def follow(start: Gaussian, H: Floats, y: Floats, rho: float) -> Floats:
    """Predict one person's events prequentially, float64[n]."""
    taste, out = Gaussian(start.mean, start.cov), np.zeros(len(y))
    for i, h in enumerate(H):
        gain = taste.gain(h)
        predicted, variance = float(h @ taste.mean), float(h @ gain)
        out[i] = predicted / np.sqrt(1.0 + np.pi * variance / 8.0)
        if rho > 0.0:
            taste.learn(gain, gaussian_update(predicted, variance, float(y[i]), weight=rho))
    return sigmoid(out)


# --- the shared model ---


def _log_odds(X: Floats, y: Floats, seen: Mask, inner: NDArray[np.int64]) -> Floats:
    """Predict log odds, float64[n]: of unseen people by a model of all seen, of seen ones by one of other inner parts.

    So the heads' prior is learnt on log odds that are as good, and no better, than those of new people. How strongly
    the weights are drawn in is chosen by the loss on the inner parts.
    """
    best, least = np.zeros(len(y)), np.inf
    for C in _C:
        out = np.zeros(len(y))
        for part in range(_INNER):
            of_part, others = seen & (inner == part), seen & (inner != part)
            out[of_part] = _logistic(X[others], y[others], C)(X[of_part])
        loss = float(log_loss(y[seen], sigmoid(out[seen])).mean())
        if loss < least:
            out[~seen] = _logistic(X[seen], y[seen], C)(X[~seen])
            best, least = out, loss
    return best


def _logistic(X: Floats, y: Floats, C: float) -> Callable[[Floats], Floats]:
    """Fit a ridge logistic regression; a label between 0 and 1 counts as a yes and a no in proportion."""
    from sklearn.linear_model import LogisticRegression  # slow to import

    soft = bool(((y > 0.0) & (y < 1.0)).any())
    rows, truth = (np.vstack([X, X]), np.repeat([1, 0], len(y))) if soft else (X, y.astype(np.int64))
    weight = np.concatenate([y, 1.0 - y]) if soft else np.ones(len(y))
    model = LogisticRegression(C=C, max_iter=500).fit(rows, truth, sample_weight=weight)
    return lambda new: np.asarray(model.decision_function(new), dtype=np.float64)


def _directions(vectors: Floats, seen: Mask) -> Floats:
    """Project on the leading directions of the seen people's vectors, with unit variance; float64[n, 8]."""
    from sklearn.decomposition import PCA

    return _unit(PCA(_DIRECTIONS, random_state=0).fit(vectors[seen]).transform(vectors), seen)


def _word_directions(texts: Sequence[str], seen: Mask) -> Floats:
    """Compute TF-IDF-SVD features of the texts, learnt from the seen people; float64[n, 24]."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = TfidfVectorizer(min_df=3, sublinear_tf=True, max_features=4000)
    words.fit([text for text, known in zip(texts, seen, strict=True) if known])
    counts = words.transform(texts)
    return _unit(TruncatedSVD(_WORDS, random_state=0).fit(counts[seen]).transform(counts), seen)


def _unit(X: Floats, seen: Mask) -> Floats:
    out: Floats = (X - X[seen].mean(axis=0)) / np.maximum(X[seen].std(axis=0), 1e-9)
    return out


def _people(user: NDArray[np.int64], mask: Mask) -> Iterator[NDArray[np.int64]]:
    """Yield the row numbers of each person among the masked rows."""
    for name in np.unique(user[mask]):
        yield np.flatnonzero(user == name)
