"""k-shot evaluation on unseen users and items: splits, metrics with intervals, and harm to users.

A split draws users and items that training never sees. Of an unseen user, the first k of a random order of their labels
on *seen* items are shown (nested: the 5 are among the 10), and predictions of their labels on *unseen* items are
compared. Intervals resample users: all seeds of a user stay together, and all rows use the same resamples.

**Harm.** z of a user is the mean over held-out items of the difference in loss, personal − global, over its standard
error: z > 1 means worse. Noise alone puts 16% of users above 1. With n held-out labels the ratio is Student's t with
n − 1 degrees of freedom; it is mapped to the normal with the same tail, so that 16% holds for few labels too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fitrouter.types import Floats
from fitrouter_evaluators.bench._metrics import Metric

Ints = NDArray[np.int64]

KS = (0, 2, 5, 10, 20)
"""Labels shown of an unseen user."""
MATERIAL = 0.1
"""Mean difference from the global predictions, in standard deviations of y, from which a user's predictions differ."""

_RESAMPLES = 1000
_RESAMPLES_SLOW = 200


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """A metric of a result-table row at k labels, with its 95% user-clustered bootstrap interval."""

    set: str
    metric: str
    k: int
    row: str
    """global, bias-only, user-only, hierarchical, …"""
    mean: float
    low: float
    high: float
    n_users: int
    n_items: int
    """Held-out labels that were predicted, over all seeds."""
    seeds: int


class Paired(msgspec.Struct, frozen=True, kw_only=True):
    """Paired difference of two result rows, row − base, on the same users and items."""

    set: str
    metric: str
    k: int
    row: str
    base: str
    mean: float
    low: float
    high: float
    relative: float
    """mean / base's value: −.09 is 9% less."""


class NoHarm(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of users that a row helps and harms, compared with a base row that ignores users."""

    set: str
    row: str
    k: int
    gain: float
    """Relative reduction of the mean loss over users."""
    harmed: float
    """Share of users with z > 1: worse off by more than a standard error."""
    helped: float
    """Share of users with z < −1."""
    worst_decile: float
    """Relative loss of the most harmed tenth, picked on one half of the held-out items and measured on the other.
    +.01 is 1% worse."""
    differ: float
    """Share of users whose predictions differ by `MATERIAL` or more."""
    cvar10: float
    """Mean loss of the worst tenth of users."""
    cvar10_base: float
    """The baseline's value."""
    users: int
    """Users × seeds."""

    def misses(self) -> list[str]:
        """Violations of the no-harm criteria, which apply from k = 5.

        Where the gain is above 5%: harmed ≤ helped / 8 at k ≥ 20 (helped / 3 below) and at least 30% differ;
        elsewhere harmed ≤ 18%. At k ≥ 20 the worst decile is at most 1% worse.
        """
        out: list[str] = []
        if 0 <= self.k < 5:
            return out
        if self.gain > 0.05:
            share = 8.0 if self.k >= 20 else 3.0
            if self.harmed > self.helped / share:
                out.append(f"harmed {self.harmed:.3f} > helped {self.helped:.3f} / {share:.0f}")
            if self.differ < 0.3:
                out.append(f"differ {self.differ:.2f} < .30")
        elif self.harmed > 0.18:
            out.append(f"harmed {self.harmed:.3f} > .18")
        if self.k >= 20 and self.worst_decile > 0.01:
            out.append(f"worst decile {self.worst_decile:+.3f} > +.01")
        return out


# --- splits ---


class UnseenUser(NamedTuple):
    """An unseen user in one split; both arrays are row numbers of the data."""

    user: int
    order: Ints
    """Labels to show, in order: order[:k]."""
    held_out: Ints


class Fold(NamedTuple):
    """One split; `train` holds rows of seen users on seen items (on all items where `known_items`)."""

    seed: int
    train: Ints
    people: tuple[UnseenUser, ...]


def folds(
    user: Ints,
    item: Ints,
    seeds: Sequence[int],
    *,
    users: float = 0.3,
    items: float = 1 / 3,
    known_items: bool = False,
    shown: int = 0,
) -> Iterator[Fold]:
    """Split the labels of user[n] on item[n], once per seed.

    Args:
        user: of each label, int64[n].
        item: of each label, int64[n].
        seeds: one split each.
        users: share of unseen users, in (0, 1).
        items: share of items unseen in training and in the k labels, in (0, 1).
        known_items: training sees all items, rated by seen users only: a new user of a known catalogue.
        shown: labels on seen items that an unseen user needs, besides one held-out; others are dropped.

    Raises:
        ValueError: a share outside (0, 1), or no user or no item is left on either side.
    """
    names, things = np.unique(user), np.unique(item)
    for what, share, count in (("users", users, len(names)), ("items", items, len(things))):
        if not 0.0 < share < 1.0:
            raise ValueError(f"{what} is {share!r}; allowed are shares between 0 and 1")
        if not 0 < round(share * count) < count:
            raise ValueError(f"{count} {what} cannot be split {share:.2f} to {1 - share:.2f}; give more data")
    for seed in seeds:
        rng = np.random.default_rng([2026, seed])
        new_users = np.sort(rng.permutation(names)[: round(users * len(names))])
        new_items = np.sort(rng.permutation(things)[: round(items * len(things))])
        held_user, held_item = np.isin(user, new_users), np.isin(item, new_items)
        train = np.flatnonzero(~held_user if known_items else ~held_user & ~held_item)
        people = []
        for name in new_users:
            mine = user == name
            order, held_out = rng.permutation(np.flatnonzero(mine & ~held_item)), np.flatnonzero(mine & held_item)
            if len(order) >= shown and len(held_out):
                people.append(UnseenUser(int(name), order, held_out))
        yield Fold(seed, train, tuple(people))


# --- predictions and results ---


class _Cell(NamedTuple):
    seed: int
    user: int
    y: Floats
    p: Floats


class Ledger:
    """Predictions of several rows at several k for the same users and held-out labels."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._cells: dict[tuple[str, int], list[_Cell]] = {}

    def add(self, row: str, k: int, seed: int, user: int, y: Floats, p: Floats) -> None:
        """Add a row's predictions p float64[n] of a user's held-out labels y float64[n] in a split.

        Raises:
            ValueError: shapes differ, or a prediction is no finite number.
        """
        y, p = np.asarray(y, dtype=np.float64), np.asarray(p, dtype=np.float64)
        if y.shape != p.shape or y.ndim != 1 or not np.isfinite(p).all():
            raise ValueError(f"row {row!r} gave {p.shape} predictions for {y.shape} labels, or one that is not finite")
        self._cells.setdefault((row, k), []).append(_Cell(seed, user, y, p))

    def rows(self) -> list[tuple[str, int]]:
        """Keys (row, k) with predictions, in the order in which they were added."""
        return list(self._cells)

    def results(self, metrics: Sequence[Metric]) -> list[Result]:
        """Results of every metric for every row and k."""
        return [self.result(row, k, metric) for row, k in self._cells for metric in metrics]

    def result(self, row: str, k: int, metric: Metric) -> Result:
        """Compute a metric of a row at k, with its interval."""
        cells = self._of(row, k)
        users = sorted({cell.user for cell in cells})
        value, low, high = _interval(_resampled(cells, metric, users))
        return Result(
            set=self.name,
            metric=metric.name,
            k=k,
            row=row,
            mean=value,
            low=low,
            high=high,
            n_users=len(users),
            n_items=sum(len(cell.y) for cell in cells),
            seeds=len({cell.seed for cell in cells}),
        )

    def paired(self, row: str, k: int, metric: Metric, *, base: str = "global", base_k: int | None = None) -> Paired:
        """Paired difference row − base on the same resamples of users; the base is taken at base_k, else k, else 0."""
        cells, other = self._pair(row, k, base, base_k)
        users = sorted({cell.user for cell in cells})
        theirs = _resampled(other, metric, users)
        value, low, high = _interval(_resampled(cells, metric, users) - theirs)
        return Paired(
            set=self.name,
            metric=metric.name,
            k=k,
            row=row,
            base=base,
            mean=value,
            low=low,
            high=high,
            relative=value / abs(float(theirs[0])) if theirs[0] else float("nan"),
        )

    def no_harm(
        self,
        row: str,
        k: int,
        loss: Callable[[Floats, Floats], Floats],
        *,
        root: Callable[[Floats], Floats] | None = None,
        base: str = "global",
        spread: float | None = None,
    ) -> NoHarm:
        """Measure a row's harm to users; z is of the loss; gain, worst decile and CVaR are of root(a user's mean loss).

        `spread` is the standard deviation of y if y is not coded by its value.
        """
        cells, other = self._pair(row, k, base, None)
        root = root or (lambda value: value)
        spread = spread or float(np.std(np.concatenate([cell.y for cell in other]))) or 1.0
        mine, theirs = [loss(c.y, c.p) for c in cells], [loss(c.y, c.p) for c in other]
        z = _z([a - b for a, b in zip(mine, theirs, strict=True) if len(a) >= 2])
        a, b = root(np.array([v.mean() for v in mine])), root(np.array([v.mean() for v in theirs]))
        apart = np.array([np.abs(c.p - o.p).mean() / spread for c, o in zip(cells, other, strict=True)])
        tenth = max(1, round(0.1 * len(a)))
        return NoHarm(
            set=self.name,
            row=row,
            k=k,
            gain=float(1.0 - a.mean() / b.mean()),
            harmed=float((z > 1.0).mean()) if len(z) else float("nan"),
            helped=float((z < -1.0).mean()) if len(z) else float("nan"),
            worst_decile=_worst_decile(cells, mine, theirs, root),
            differ=float((apart >= MATERIAL).mean()),
            cvar10=float(np.sort(a)[-tenth:].mean()),
            cvar10_base=float(np.sort(b)[-tenth:].mean()),
            users=len(a),
        )

    def _of(self, row: str, k: int) -> list[_Cell]:
        if (row, k) not in self._cells:
            raise ValueError(f"there is no row {row!r} at k = {k}; there are {sorted(self._cells)}")
        return self._cells[row, k]

    def _pair(self, row: str, k: int, base: str, base_k: int | None) -> tuple[list[_Cell], list[_Cell]]:
        """Return the cells of a row and of its base in the same order; they must have the same users and labels."""
        if base_k is None:
            base_k = k if (base, k) in self._cells else 0
        cells = self._of(row, k)
        at = {(cell.seed, cell.user): cell for cell in self._of(base, base_k)}
        if len(at) != len(cells) or any((cell.seed, cell.user) not in at for cell in cells):
            raise ValueError(f"rows {row!r} and {base!r} were not measured on the same users; add both for each user")
        other = [at[cell.seed, cell.user] for cell in cells]
        if any(not np.array_equal(one.y, two.y) for one, two in zip(cells, other, strict=True)):
            raise ValueError(f"rows {row!r} and {base!r} were not measured on the same labels in the same order")
        return cells, other


def _z(differences: list[Floats]) -> Floats:
    """Z-score of each user's mean difference, from Student's t, float64[users]; 0 where nothing differs."""
    from scipy import stats

    n = np.array([len(d) for d in differences])
    mean = np.array([d.mean() for d in differences])
    error = np.array([d.std(ddof=1) for d in differences]) / np.sqrt(n)
    t = np.where(np.abs(mean) > 1e-12, mean / np.maximum(error, 1e-15), 0.0)
    out: Floats = -np.sign(t) * stats.norm.ppf(stats.t.sf(np.abs(t), n - 1))
    return out


def _worst_decile(
    cells: list[_Cell], mine: list[Floats], theirs: list[Floats], root: Callable[[Floats], Floats]
) -> float:
    """Relative loss of the most harmed tenth: picked on one half of the labels, measured on the other, both ways."""
    halves = []
    for cell, a, b in zip(cells, mine, theirs, strict=True):
        if len(a) < 2:
            continue
        order = np.random.default_rng([2026, cell.seed, cell.user]).permutation(len(a))
        first, second = order[: len(a) // 2], order[len(a) // 2 :]
        halves.append([[a[first].mean(), b[first].mean()], [a[second].mean(), b[second].mean()]])
    if not halves:
        return float("nan")
    loss = root(np.array(halves))  # [users, half, (row, base)]
    tenth = max(1, round(0.1 * len(loss)))
    measured = np.zeros(2)
    for half in (0, 1):
        picked = np.argsort(loss[:, half, 1] - loss[:, half, 0], kind="stable")[:tenth]
        measured += loss[picked, 1 - half].sum(axis=0)
    return float(measured[0] / measured[1] - 1.0) if measured[1] else 0.0


def _resampled(cells: list[_Cell], metric: Metric, users: list[int]) -> Floats:
    """Metric over all users, then over B resamples of users shared by all rows, float64[1 + B]."""
    at = {user: i for i, user in enumerate(users)}
    quick = metric.loss is not None or metric.per_user
    draws = np.random.default_rng(2026).integers(
        len(users), size=(_RESAMPLES if quick else _RESAMPLES_SLOW, len(users))
    )
    times = [np.bincount(draw, minlength=len(users)) for draw in draws]
    counts = np.vstack([np.ones(len(users)), times]).astype(np.float64)
    owner = np.array([at[cell.user] for cell in cells])
    if metric.per_user:
        values = np.array([metric.of(cell.y, cell.p) for cell in cells])
        known = np.isfinite(values)
        total = np.bincount(owner[known], values[known], len(users))
        return _ratio(counts, total.astype(np.float64), np.bincount(owner[known], minlength=len(users)))
    if metric.loss is not None:
        loss = [metric.loss(cell.y, cell.p) for cell in cells]
        total = np.bincount(owner, [float(v.sum()) for v in loss], len(users))
        rows = np.bincount(owner, [float(len(v)) for v in loss], len(users))
        mean = (counts @ total) / np.maximum(counts @ rows, 1e-12)
        return metric.root(mean) if metric.root else mean
    return np.array([_pooled(cells, metric, owner, count.astype(np.int64)) for count in counts])


def _ratio(counts: Floats, total: Floats, n: NDArray[np.integer]) -> Floats:
    weight = counts @ n.astype(np.float64)
    return np.where(weight > 0, (counts @ total) / np.maximum(weight, 1e-12), np.nan)


def _pooled(cells: list[_Cell], metric: Metric, owner: Ints, count: Ints) -> float:
    """Metric of all predictions of a seed, averaged over seeds; a user that was drawn twice counts twice."""
    values = []
    for seed in sorted({cell.seed for cell in cells}):
        drawn = [i for i, cell in enumerate(cells) if cell.seed == seed for _ in range(count[owner[i]])]
        if drawn:
            y, p = np.concatenate([cells[i].y for i in drawn]), np.concatenate([cells[i].p for i in drawn])
            values.append(metric.of(y, p))
    kept = [value for value in values if np.isfinite(value)]
    return float(np.mean(kept)) if kept else float("nan")


def _interval(values: Floats) -> tuple[float, float, float]:
    drawn = values[1:][np.isfinite(values[1:])]
    low, high = np.quantile(drawn, [0.025, 0.975]) if len(drawn) else (np.nan, np.nan)
    return float(values[0]), float(low), float(high)
