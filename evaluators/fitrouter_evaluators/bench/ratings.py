"""k-shot evaluation on ratings of unseen users and items; compares methods and counts users made worse off.

Rows: `global` (crowd mean, by features for unseen items), `bias-only` (an offset per user), `user-only` (ridge on the
user's own labels), `hierarchical` (offset, gain and taste under the population prior, see `_taste`) and, if users
declared values, `declared` (the same with a prior mean from them). Binary ratings are predicted as probabilities by the
same linear model, clipped to [.02, .98].
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fitrouter.context.encoders import Encoder, get_encoder
from fitrouter.types import Floats
from fitrouter_evaluators.bench._metrics import (
    ACCURACY,
    AUC,
    ECE,
    KENDALL,
    NLL,
    PEARSON,
    RMSE,
    SPEARMAN,
    USER_RMSE,
    Metric,
    agreement,
    log_loss,
    squared,
)
from fitrouter_evaluators.bench._protocol import KS, Fold, Ledger, folds
from fitrouter_evaluators.bench._taste import Labels, RatingHead, directions
from fitrouter_evaluators.datasets import Rating, read_ratings
from fitrouter_evaluators.scoring.features import readable
from fitrouter_evaluators.scoring.text.style import measure, standardise
from fitrouter_evaluators.training.hierarchy import Observations, Prior

Ints = NDArray[np.int64]

_VERDICT = (ACCURACY, AUC, NLL, ECE, RMSE)
_GRADED = (USER_RMSE, RMSE, PEARSON, SPEARMAN, KENDALL)


class RatingSet(NamedTuple):
    """Ratings of one dimension, with numbered users and items."""

    name: str
    labels: Labels
    features: Floats
    """float64[items, F]"""
    declared: Floats | None
    """Standardised, float64[users, P]; None without declared values."""
    verdicts: bool
    """Whether ratings are binary."""


def run_ratings(
    data: str | os.PathLike[str] | Sequence[Rating],
    *,
    encoder: str | Encoder = "static",
    features: Mapping[str, Mapping[str, float]] | None = None,
    seeds: int = 5,
    ks: Sequence[int] = KS,
    known_items: bool = False,
) -> dict[str, Any]:
    """Evaluate each dimension of a file of ratings.

    Args:
        data: a file in the open format `ratings`, or its rows.
        encoder: reads responses and prompts; a name or an encoder.
        features: further columns of items, item → name → number.
        seeds: number of splits.
        ks: numbers of labels shown of an unseen user; users with fewer on seen items are dropped.
        known_items: evaluate unseen users on items with known raters.

    Returns:
        problems: unreadable lines; skipped: dimensions that were too small, with reasons;
        dimensions: name → results, paired (against global), no_harm, agreement.

    Raises:
        ConfigError: the file has no usable rating.
        ValueError: there is no rating, or no dimension is large enough.
    """
    if isinstance(data, str | os.PathLike):
        records = read_ratings(data)
        rows, problems = list(records.some(data)), [msgspec.to_builtins(problem) for problem in records.problems]
    else:
        rows, problems = list(data), []
    if not rows:
        raise ValueError("no ratings were given")
    if seeds < 1 or not ks or min(ks) < 0:
        raise ValueError(f"seeds is {seeds!r} and ks {tuple(ks)!r}; give one seed or more, and ks of 0 and more")
    reader = get_encoder(encoder) if isinstance(encoder, str) else encoder
    out: dict[str, Any] = {"problems": problems, "skipped": {}, "dimensions": {}, "encoder": reader.id}
    for dimension in dict.fromkeys(row.dimension for row in rows):
        one = rating_set([row for row in rows if row.dimension == dimension], reader, features, name=dimension)
        try:
            found = measure_set(one, range(seeds), ks=ks, known_items=known_items)
            out["dimensions"][dimension] = {key: value for key, value in found.items() if key != "ledger"}
        except ValueError as error:
            out["skipped"][dimension] = str(error)
    if not out["dimensions"]:
        raise ValueError(f"no dimension is large enough for the protocol: {out['skipped']!r}")
    return out


def rating_set(
    rows: Sequence[Rating], encoder: Encoder, features: Mapping[str, Mapping[str, float]] | None, *, name: str
) -> RatingSet:
    """Number the ratings of one dimension; an item without a name is identified by prompt and response."""
    users, user = np.unique([row.user for row in rows], return_inverse=True)
    keys = [row.item or f"{row.prompt}\x1f{row.response or ''}" for row in rows]
    names, first, item = np.unique(keys, return_index=True, return_inverse=True)
    y = np.array([row.y for row in rows])
    values = sorted({value for row in rows for value in row.declared})
    declared = np.zeros((len(users), len(values)))
    for row, u in zip(rows, user, strict=True):
        declared[u] = [row.declared.get(value, 0.0) for value in values]
    return RatingSet(
        name,
        Labels(user.astype(np.int64), item.astype(np.int64), y),
        item_features([rows[i] for i in first], [str(key) for key in names], encoder, features),
        _standard(declared) if values else None,
        bool(np.isin(y, (0.0, 1.0)).all()),
    )


def item_features(
    rows: Sequence[Rating], names: Sequence[str], encoder: Encoder, given: Mapping[str, Mapping[str, float]] | None
) -> Floats:
    """Build item features float64[items, F]: vectors of response and prompt, style of the response, given columns.

    Each of these blocks has a total variance of 1.
    """
    answers = [row.response or row.prompt or "" for row in rows]
    blocks = [encoder.encode([readable(text) for text in answers])]
    if any(row.response for row in rows):
        blocks.append(encoder.encode([readable(row.prompt) for row in rows]))
        blocks.append(np.nan_to_num(np.array([standardise(measure(row.response or "")) for row in rows])))
    if given:
        columns = sorted({column for values in given.values() for column in values})
        blocks.append(_standard(np.array([[given.get(key, {}).get(c, 0.0) for c in columns] for key in names])))
    return np.hstack([_unit(block) for block in blocks])


def measure_set(
    data: RatingSet,
    seeds: Sequence[int],
    *,
    ks: Sequence[int] = KS,
    known_items: bool = False,
    splits: Iterable[Fold] | None = None,
) -> dict[str, Any]:
    """Evaluate one dimension: results, paired differences, harm and human agreement.

    `splits` replace those of the seeds.

    Raises:
        ValueError: too few users or items to split, or no user has enough labels.
    """
    ledger = Ledger(data.name)
    labels = data.labels
    for fold in splits or folds(labels.user, labels.item, seeds, known_items=known_items, shown=max(ks)):
        _one_split(ledger, data, fold, ks)
    if not ledger.rows():
        raise ValueError(f"no unseen user of {data.name!r} has {max(ks)} labels on seen items; give smaller ks")
    best = "declared" if data.declared is not None else "hierarchical"
    loss, root = (log_loss, None) if data.verdicts else (squared, np.sqrt)
    metrics = metrics_of(data)
    return {
        "results": ledger.results(metrics),
        "paired": [ledger.paired(best, k, metrics[0]) for k in ks],
        "no_harm": [ledger.no_harm(best, k, loss, root=root) for k in ks if k],
        "agreement": agreement(labels.item, labels.y)._asdict(),
        "ledger": ledger,
    }


def metrics_of(data: RatingSet) -> tuple[Metric, ...]:
    """Metrics of binary or graded ratings."""
    return _VERDICT if data.verdicts else _GRADED


def _one_split(ledger: Ledger, data: RatingSet, fold: Fold, ks: Sequence[int]) -> None:
    """Predict the held-out labels of a split's unseen users by every method, and add the predictions to the ledger."""
    labels = data.labels
    train = Labels(labels.user[fold.train], labels.item[fold.train], labels.y[fold.train])
    heads = {
        "bias-only": RatingHead(data.features, train, tastes=0, gain=False),
        "hierarchical": RatingHead(data.features, train),
    }
    if data.declared is not None:
        heads["declared"] = RatingHead(data.features, train, declared=data.declared)
    X = np.hstack([np.ones((len(data.features), 1)), directions(data.features, np.unique(train.item), 20)])
    alone = Prior(np.concatenate([[0.5], np.zeros(X.shape[1] - 1)]), 0.1 * np.eye(X.shape[1]), 0.06)
    for person in fold.people:
        y, held = labels.y[person.held_out], labels.item[person.held_out]
        crowd = heads["hierarchical"].predict(held).mean
        ledger.add("global", 0, fold.seed, person.user, y, _clipped(data, crowd))
        for k in ks:
            shown = person.order[:k]
            item, seen = labels.item[shown], labels.y[shown]
            own = alone.posterior(Observations(X[item], seen)).mean
            predicted = np.clip(X[held] @ own, 0.0, 1.0)
            ledger.add("user-only", k, fold.seed, person.user, y, _clipped(data, predicted))
            for row, head in heads.items():
                known = None if row != "declared" or data.declared is None else data.declared[person.user]
                found = head.predict(held, head.posterior(item, seen, known))
                ledger.add(row, k, fold.seed, person.user, y, _clipped(data, found.mean))


def _clipped(data: RatingSet, p: Floats) -> Floats:
    return np.clip(p, 0.02, 0.98) if data.verdicts else p


def _standard(columns: Floats) -> Floats:
    out: Floats = (columns - columns.mean(axis=0)) / np.maximum(columns.std(axis=0), 1e-9)
    return out


def _unit(block: Floats) -> Floats:
    block = block - block.mean(axis=0)
    out: Floats = block / max(float(np.sqrt(block.var(axis=0).sum())), 1e-9)
    return out
