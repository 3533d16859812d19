"""k-shot evaluation on pairwise preferences.

Rows: *global*, the shared head; *bias-only*, a user's preferences for positions and models; *user-only*, a user's
labels alone; *hierarchical*, all of it under the population prior. Ties train the shared score with a small weight, and
are predicted in `with_ties` only (Davidson 1970).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import Any

import msgspec
import numpy as np

from fitrouter.context.encoders import Encoder, get_encoder
from fitrouter_evaluators.bench._metrics import ACCURACY, ECE, NLL, log_loss, wrong
from fitrouter_evaluators.bench._pair_model import (
    PairHeads,
    Pairs,
    fit_heads,
    observe,
    probability,
    three_way,
    three_way_loss,
)
from fitrouter_evaluators.bench._protocol import KS, Fold, Ledger, folds
from fitrouter_evaluators.datasets import Pair, read_pairs

ROWS = ("global", "bias-only", "user-only", "hierarchical")


def run_pairs(
    source: str | os.PathLike[str] | Sequence[Pair],
    encoder: str | Encoder = "static",
    *,
    name: str = "pairs",
    ks: Sequence[int] = KS,
    seeds: Sequence[int] = tuple(range(5)),
    identity: bool = True,
    shipped: bool = True,
    item: Callable[[Pair], object] = lambda pair: pair.prompt,
    users: float = 1 / 3,
    items: float = 0.35,
) -> dict[str, Any]:
    """Evaluate reward heads on pairs.

    Args:
        source: a file of pairs, or its rows.
        encoder: reads prompts and answers; a name or an encoder.
        name: of the set in the results.
        ks: numbers of labels shown of an unseen user; the first is 0.
        seeds: one split each.
        identity: whether heads use models' names.
        shipped: whether the shipped global scalar is used; not on MT-bench, on which it was trained.
        item: key of pairs that are unseen together, such as those of one conversation.
        users: share of unseen users.
        items: share of unseen items.

    Returns:
        JSON: `results` (ECE of all splits together), `paired` (hierarchical − global), `no_harm`, `with_ties`,
        `agreement`, `routing` (if models are named), and `problems`, the number of unreadable lines.

    Raises:
        ConfigError: there is no such file.
        ValueError: too few users or items for a split.
    """
    rows, problems = _rows(source)
    read = get_encoder(encoder) if isinstance(encoder, str) else encoder
    pairs = observe(rows, [item(row) for row in rows], read, shipped=shipped)
    identity = identity and len(pairs.models) > 1
    splits = folds(pairs.user, pairs.item, seeds, users=users, items=items)
    return {
        "set": name,
        "encoder": read.id,
        "identity": identity,
        "pairs": len(rows),
        "users": int(pairs.user.max()) + 1,
        "problems": problems,
        "agreement": agreement_of_pairs(pairs),
        **_run(name, pairs, splits, ks, identity=identity),
    }


def _run(name: str, pairs: Pairs, splits: Iterable[Fold], ks: Sequence[int], *, identity: bool) -> dict[str, Any]:
    ledger, pooled = Ledger(name), Ledger(name)
    ties, routed = [], []
    for fold in splits:
        heads = fit_heads(pairs, fold.train, identity=identity, seed=fold.seed)
        _predict((ledger, pooled), pairs, heads, fold, ks)
        ties.append(_with_ties(pairs, heads, fold))
        if identity:
            routed.append(_route(pairs, heads, fold, max(ks)))
    out: dict[str, Any] = {**_measured(ledger, pooled, ks), "with_ties": _mean(ties)}
    return {**out, "routing": _mean(routed)} if routed else out


def _measured(ledger: Ledger, pooled: Ledger, ks: Sequence[int]) -> dict[str, Any]:
    """Results, paired differences and harm as JSON."""
    results = (*ledger.results((ACCURACY, NLL)), *pooled.results((ECE,)))
    pairs = [(k, metric) for k in ks for metric in (ACCURACY, NLL)]
    return {
        "results": [msgspec.to_builtins(result) for result in results],
        "paired": [msgspec.to_builtins(ledger.paired("hierarchical", k, metric, base_k=0)) for k, metric in pairs],
        "no_harm": [msgspec.to_builtins(ledger.no_harm("hierarchical", k, log_loss)) for k in ks if k],
    }


def _mean(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    return {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}


def _rows(source: str | os.PathLike[str] | Sequence[Pair]) -> tuple[Sequence[Pair], int]:
    if isinstance(source, (str, os.PathLike)):
        records = read_pairs(source)
        return records.some(source), len(records.problems)
    return source, 0


def _predict(ledgers: tuple[Ledger, Ledger], pairs: Pairs, heads: PairHeads, fold: Fold, ks: Sequence[int]) -> None:
    """Predict all rows at all k for the unseen users of a split, without ties.

    The second ledger pools all splits: with the few labels of one split, ECE in ten bins is mostly noise.
    """
    for person in fold.people:
        shown = person.order[pairs.y[person.order] != 0.5]
        unseen = person.held_out[pairs.y[person.held_out] != 0.5]
        if not len(unseen):
            continue
        X, y = heads.X[unseen], pairs.y[unseen]
        for row in ROWS:
            for k in ks if row != "global" else (0,):
                p = probability(heads.posterior(row, shown[:k], pairs.y), X)
                ledgers[0].add(row, k, fold.seed, person.user, y, p)
                ledgers[1].add(row, k, 0, person.user, y, p)


def _with_ties(pairs: Pairs, heads: PairHeads, fold: Fold) -> dict[str, float]:
    """Accuracy and loss of predicting a, tie or b by the global head."""
    unseen = np.concatenate([person.held_out for person in fold.people])
    y, score = pairs.y[unseen], heads.X[unseen] @ heads.prior.mean
    return {
        "accuracy": float((three_way(score, heads.tie).argmax(axis=1) == 2.0 - 2.0 * y).mean()),
        "nll": three_way_loss(y, score, heads.tie),
        "davidson": heads.tie,
    }


def _route(pairs: Pairs, heads: PairHeads, fold: Fold, k: int) -> dict[str, float]:
    """Win rate of the model that names and prompt alone pick, globally and with a user's offsets."""
    columns = slice(2, 2 + len(pairs.models))
    won: dict[str, list[float]] = {"global": [], "hierarchical": []}
    for person in fold.people:
        shown = person.order[pairs.y[person.order] != 0.5][:k]
        unseen = person.held_out[pairs.y[person.held_out] != 0.5]
        own = heads.posterior("hierarchical", shown, pairs.y).mean - heads.prior.mean
        shift = pairs.blocks["model"][unseen] @ own[columns]
        for row, score in (("global", heads.named[unseen]), ("hierarchical", heads.named[unseen] + shift)):
            won[row] += (1.0 - wrong(pairs.y[unseen], 0.5 + score)).tolist()
    return {row: float(np.mean(wins)) if wins else float("nan") for row, wins in won.items()}


def agreement_of_pairs(pairs: Pairs) -> dict[str, float]:
    """Agreement of two judges on the same two answers: among those who decide, and with ties as a verdict."""
    y = np.where(pairs.turned, 1.0 - pairs.y, pairs.y)
    groups = (np.flatnonzero(pairs.key == key) for key in np.unique(pairs.key))
    both = [(y[i], y[j]) for rows in groups for i, j in combinations(rows, 2) if pairs.user[i] != pairs.user[j]]
    one, other = np.array(both).reshape(-1, 2).T
    alike, clear = one == other, (one != 0.5) & (other != 0.5)
    return {
        "decided": float(alike[clear].mean()) if clear.any() else float("nan"),
        "decided_pairs": int(clear.sum()),
        "with_ties": float(alike.mean()) if len(alike) else float("nan"),
        "pairs": len(alike),
    }
