"""k-shot evaluation on PluriHarms: unseen prompts, prompts that others rated, and safety."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from benchmarks.research.public import harm_annotations
from numpy.typing import NDArray

from fitrouter.context.encoders import Encoder
from fitrouter.types import Floats
from fitrouter_evaluators.bench._metrics import USER_RMSE, squared
from fitrouter_evaluators.bench._protocol import Fold, Ledger, NoHarm, Result, UnseenUser
from fitrouter_evaluators.bench._taste import Labels, RatingHead
from fitrouter_evaluators.bench.ratings import RatingSet, measure_set, rating_set
from fitrouter_evaluators.datasets import pluriharms
from fitrouter_evaluators.training.hierarchy import Observations, Shrinkage, fit_prior

Ints = NDArray[np.int64]

_SAFE = 0.8
_SAFETY_SEEDS = 5


class Side(NamedTuple):
    """The results of one protocol at k = 20 (declared: at k = 0)."""

    hierarchical: Result
    declared: Result
    gain: tuple[float, float, float]
    """Percent of the global row's RMSE, with its interval."""
    results: list[Result]
    no_harm: list[NoHarm]


class Harms(NamedTuple):
    """The results of both protocols, and the number of safety violations."""

    unseen: Side
    known: Side
    lowered: int
    """Raters × prompts that all others rate at 80 or more and that a personal head lowers by more than 2 SE."""
    notes: dict[str, Any]


def measure(folder: Path, seeds: Sequence[int], encoder: Encoder) -> Harms:
    """Evaluate 100 raters × 150 prompts; 30 raters and 50 prompts are held out in each split."""
    rows, given = pluriharms.convert(folder), harm_annotations(folder)
    data = rating_set(rows, encoder, given, name="D2")
    people, keys = np.unique([row.user for row in rows]), np.unique([row.item or "" for row in rows])
    table = np.array([list(given[key].values()) for key in keys])
    level = table[:, list(given[keys[0]]).index("Harm_Level")]
    data = data._replace(features=np.hstack([data.features, ((level - level.mean()) / level.std())[:, None]]))
    at_user = {name: i for i, name in enumerate(people)}
    at_item = {name: i for i, name in enumerate(keys)}
    order = Orders(
        np.array([at_user[name] for name in pluriharms.demographics(folder)]),
        np.array([at_item[name] for name in given]),
    )
    sides = [
        _side(
            data._replace(name=f"D2 {'known' if known else 'unseen'} prompts"),
            list(_splits(data.labels, order, seeds, known=known)),
            table,
            known=known,
        )
        for known in (False, True)
    ]
    notes = {"unseen": sides[0][1], "known": sides[1][1]}
    return Harms(sides[0][0], sides[1][0], sum(int(part["lowered"]) for part in notes.values()), notes)


class Orders(NamedTuple):
    """Numbers of raters and prompts in the order of the files, by which the first splits count."""

    users: Ints
    items: Ints


def _splits(labels: Labels, order: Orders, seeds: Sequence[int], *, known: bool) -> Iterator[Fold]:
    """Yield the splits of the first experiments, by seed, so that their floors are comparable."""
    row_of = {(int(u), int(i)): n for n, (u, i) in enumerate(zip(labels.user, labels.item, strict=True))}
    for seed in seeds:
        rng = np.random.default_rng(seed)
        users, items = rng.permutation(len(order.users)), rng.permutation(len(order.items))
        seen, held, shown = users[30:], items[:50], items[50:]
        kept = np.isin(labels.user, order.users[seen])
        if not known:
            kept &= np.isin(labels.item, order.items[shown])
        people = []
        for u in users[:30]:
            user = int(order.users[u])

            def rows(of: Ints, user: int = user) -> Ints:
                found = [row_of.get((user, int(order.items[i]))) for i in of]
                return np.array([row for row in found if row is not None], dtype=np.int64)

            drawn = np.random.default_rng(seed * 100 + u).permutation(shown)
            people.append(UnseenUser(user, rows(drawn), rows(held)))
        yield Fold(seed, np.flatnonzero(kept), tuple(people))


def _side(data: RatingSet, splits: list[Fold], table: Floats, *, known: bool) -> tuple[Side, dict[str, Any]]:
    found = measure_set(data, (), splits=splits)
    ledger: Ledger = found["ledger"]
    for fold in splits:
        _floor(ledger, data.labels, fold, table, known=known)
    notes = _safety(data, splits[:_SAFETY_SEEDS]) | {"agreement": found["agreement"]}
    notes["against the floor"] = ledger.paired("hierarchical", 20, USER_RMSE, base="floor")
    paired, base = ledger.paired("hierarchical", 20, USER_RMSE), ledger.result("global", 0, USER_RMSE).mean
    harm = [ledger.no_harm("hierarchical", k, squared, root=np.sqrt) for k in (2, 5, 10, 20)]
    side = Side(
        ledger.result("hierarchical", 20, USER_RMSE),
        ledger.result("declared", 0, USER_RMSE),
        (100 * paired.mean / base, 100 * paired.low / base, 100 * paired.high / base),
        found["results"] + [ledger.result("floor", k, USER_RMSE) for k in (0, 20)],
        harm,
    )
    return side, notes


def _safety(data: RatingSet, splits: list[Fold]) -> dict[str, Any]:
    """Count how often a personal head lowers a prompt that all (or four of five) others rate at 80 or more."""
    labels = data.labels
    lowered = asked = nearly = nearly_asked = 0
    for fold in splits:
        train = Labels(labels.user[fold.train], labels.item[fold.train], labels.y[fold.train])
        head = RatingHead(data.features, train)
        for person in fold.people:
            shown, held = person.order[:20], labels.item[person.held_out]
            own = head.predict(held, head.posterior(labels.item[shown], labels.y[shown]))
            fallen = head.predict(held).mean - own.mean > 2.0 * own.sd
            for item, fell in zip(held, fallen, strict=True):
                others = labels.y[(labels.item == item) & (labels.user != person.user)]
                share = float((others >= _SAFE).mean())
                asked, lowered = asked + (share == 1.0), lowered + (share == 1.0 and bool(fell))
                nearly, nearly_asked = nearly + (share >= 0.8 and bool(fell)), nearly_asked + (share >= 0.8)
    return {"lowered": lowered, "all agree": asked, "four of five agree": nearly_asked, "of them lowered": nearly}


def _floor(ledger: Ledger, labels: Labels, fold: Fold, table: Floats, *, known: bool) -> None:
    """Evaluate the models of the first experiments, on directions of annotations or seen raters' ratings."""
    people = [fold.train[labels.user[fold.train] == user] for user in np.unique(labels.user[fold.train])]
    X = _others(labels, people) if known else _annotations(table)
    users = [Observations(X[labels.item[rows]], labels.y[rows]) for rows in people]
    prior = fit_prior(users, shrinkage=Shrinkage(10.0, 0.01, 1.0), iterations=12)
    for person in fold.people:
        y, held = labels.y[person.held_out], X[labels.item[person.held_out]]
        for k in (0, 20):
            shown = person.order[:k]
            w = prior.posterior(Observations(X[labels.item[shown]], labels.y[shown])).mean
            ledger.add("floor", k, fold.seed, person.user, y, held @ w)


def _annotations(table: Floats) -> Floats:
    z = (table - table.mean(axis=0)) / (table.std(axis=0) + 1e-9)
    U, S, _ = np.linalg.svd(z, full_matrices=False)
    F = U[:, :20] * S[:20]
    return np.hstack([np.ones((len(F), 1)), F / F.std(axis=0).max()])


def _others(labels: Labels, people: list[Ints]) -> Floats:
    M = np.full((len(people), int(labels.item.max()) + 1), np.nan)
    for u, rows in enumerate(people):
        M[u, labels.item[rows]] = labels.y[rows]
    mean = float(np.nanmean(M))
    item = np.nanmean(M, axis=0)
    R = np.nan_to_num(M - item - np.nanmean(M, axis=1)[:, None] + mean)
    _, S, V = np.linalg.svd(R, full_matrices=False)
    return np.column_stack([np.ones(len(item)), item - mean, V[:5].T * S[:5] / np.sqrt(len(people))])
