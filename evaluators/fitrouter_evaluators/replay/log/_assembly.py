"""Assembles a `Log` from fetched columns, in order of time."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fitrouter.types import Floats
from fitrouter_evaluators.replay.log._columns import Arrays, Coded, Columns
from fitrouter_evaluators.replay.log._connection import words
from fitrouter_evaluators.replay.log.log import (
    MODES,
    Decisions,
    Ints,
    Log,
    Names,
    Options,
    Outcomes,
    is_drawn,
    ragged_positions,
    refuse,
    refuse_rows,
)

_PLAIN = words("floor share cost_weight cost_unit_usd latency_weight latency_unit_s budget_weight budget_unit_usd")


def assemble(columns: Columns, source: str) -> Log:
    """Build a log.

    If rows have features of several kinds (other encoders or schemas), only the most frequent kind is kept, since
    features of different kinds cannot share a column.
    """
    if not len(columns.ids):
        refuse(source, "it holds no decision", "give a log, or a window, in which decisions were made")
    order = _Order.of(columns)
    users = columns.names["user"].names
    code = {name: k for k, name in enumerate(users)}
    return Log(
        source=source,
        names=Names(
            arms=columns.arms,
            tenants=columns.names["tenant"].names,
            users=users,
            roles=columns.names["role"].names,
            tasks=columns.names["task"].names,
            sessions=columns.names["session"].names,
        ),
        decisions=_decisions(columns, order, source),
        options=_options(columns, order),
        outcomes=_outcomes(columns, order, source),
        declared={code[user]: dict(values) for user, values in sorted(columns.declared) if user in code},
    )


class _Order(NamedTuple):
    """Permutation of the table's rows into order of time: `rows[i]` comes i-th; `rank` is the inverse."""

    rows: Ints
    rank: Ints
    sorted: bool

    @staticmethod
    def of(columns: Columns) -> _Order:
        rows = np.lexsort((columns.numbers["seq"], columns.numbers["ts"])).astype(np.int64)
        rank = np.empty_like(rows)
        rank[rows] = np.arange(len(rows))
        return _Order(rows, rank, bool((rows == rank).all() and (rows == np.arange(len(rows))).all()))

    def column(self, values: NDArray[Any]) -> NDArray[Any]:
        """Reorder a column by time."""
        return values if self.sorted else values[self.rows]

    def place(self, rows: Ints) -> Ints:
        """Map row numbers of the table to positions in order of time; −1 stays −1."""
        return rows if self.sorted else np.where(rows < 0, -1, self.rank[rows])

    def arrays(self, given: Arrays) -> Arrays:
        """Reorder a list column by time."""
        if self.sorted:
            return given
        lengths = given.lengths[self.rows]
        begin = (np.cumsum(given.lengths) - given.lengths)[self.rows]
        return Arrays(lengths, given.values[ragged_positions(begin, lengths)])


def _decisions(columns: Columns, order: _Order, source: str) -> Decisions:
    numbers = {name: order.column(values) for name, values in columns.numbers.items()}
    names = {name: order.column(coded.codes) for name, coded in columns.names.items()}
    modes = np.array([MODES.index(mode) for mode in columns.names["mode"].names], dtype=np.int64)
    mode = modes[names["mode"]] if len(modes) else names["mode"]
    drawn = is_drawn(mode)
    eligible = order.arrays(columns.eligible)
    steps = numbers["steps"].astype(np.float64)
    steps[drawn & (order.column(columns.arrays["rest"].lengths) == 0)] = np.nan  # they came together
    return Decisions(
        id=order.column(columns.ids),
        seq=numbers["seq"],
        ts=numbers["ts"],
        draw=order.place(order.column(columns.draw)),
        mode=mode,
        start=np.concatenate([[0], np.cumsum(eligible.lengths)]),
        chosen=np.flatnonzero(eligible.values == np.repeat(order.column(columns.chosen), eligible.lengths)),
        propensity=numbers["propensity"],
        tenant=names["tenant"],
        user=names["user"],
        role=names["role"],
        task=names["task"],
        session=names["session"],
        begins=drawn & numbers["fresh"].astype(bool),
        asked=numbers["asked"].astype(bool),
        asked_probability=numbers["asked_probability"],
        learnt=numbers["policy_seq"],
        x=_features(columns, order, source),
        steps=None if np.isnan(steps[drawn]).all() else steps,
        seed=_shared(*np.unique(numbers["seed"], return_inverse=True)),
        algorithm=_shared(columns.names["policy_algorithm"].names, names["policy_algorithm"]),
        run=names["run"],
        registry=_shared(columns.names["registry"].names, names["registry"]),
        tier=_shared(columns.names["tier"].names, names["tier"]),
        **{name: numbers[name] for name in _PLAIN},
    )


def _options(columns: Columns, order: _Order) -> Options:
    eligible = order.arrays(columns.eligible)
    found = {
        name: _spread(order.arrays(arrays), eligible.lengths, 0.0 if name == "switch" else np.nan)
        for name, arrays in columns.arrays.items()
    }
    prob = found.pop("probs")
    prob = np.full(len(eligible.values), np.nan) if prob is None else prob
    personal = found.pop("personal")
    switch = found.pop("switch")
    candidates = {
        name: _spread(order.arrays(arrays), eligible.lengths, np.nan) for name, arrays in columns.candidates.items()
    }
    return Options(
        arm=eligible.values,
        prob=prob,
        personal=prob if personal is None else np.where(np.isnan(personal), prob, personal),
        switch=np.zeros(len(prob)) if switch is None else switch,
        candidates={name: pmf for name, pmf in candidates.items() if pmf is not None},
        **found,
    )


def _outcomes(columns: Columns, order: _Order, source: str) -> Outcomes:
    n, done, votes, scores = len(columns.ids), columns.executions, columns.votes, columns.scores
    at = order.place(done["row"].astype(np.int64))
    status, served = np.full(n, -1, dtype=np.int64), np.full(n, -1, dtype=np.int64)
    status[at], served[at] = done["status"], done["served"]
    asked = votes["asked"].astype(bool)
    judged = order.place(votes["row"].astype(np.int64))
    known = scores.row >= 0
    scored = order.place(scores.row[known])
    h, schema = None, ""
    if scores.h is not None and len(scores.h.values):
        keep, kind = _kind(scores.schema, scores.h.lengths)
        h, _ = _dense(n, order.place(scores.row), scores.h, keep & known)
        # Features that an answer does not have (style of one that calls tools) are missing, which is NaN.
        _refuse_infinite(np.flatnonzero(np.isinf(h).any(axis=1)), columns, order, source, "h of its score", "or NaN")
        schema = scores.schema.names[kind]
    return Outcomes(
        status=np.array(["", *columns.statuses], dtype=object)[status + 1],
        served=served,
        cost_usd=_filled(n, at, done["cost_usd"]),
        latency_s=_filled(n, at, done["latency_ms"] / 1000.0),
        asked_label=_filled(n, judged[asked], votes["y"][asked]),
        free_label=_filled(n, judged[~asked], votes["y"][~asked]),
        score=_filled(n, scored, scores.mean[known]),
        h=h,
        schema=schema,
        ended=_filled(n, order.place(columns.ended["row"].astype(np.int64)), columns.ended["y"]),
        left_out=columns.left_out,
        declined=columns.declined,
        assumed=int(np.count_nonzero(done["cost_assumed"])),
    )


def _features(columns: Columns, order: _Order, source: str) -> NDArray[np.float32] | None:
    given = columns.features
    if given is None or not len(given.values):
        return None
    keep, _ = _kind(columns.names["encoder"], given.lengths)
    x, broken = _dense(len(keep), order.place(np.arange(len(keep))), given, keep)
    _refuse_infinite(broken, columns, order, source, "features")
    return x


def _refuse_infinite(broken: Ints, columns: Columns, order: _Order, source: str, name: str, more: str = "") -> None:
    if len(broken):
        row = int(order.rows[broken.min()])
        refuse_rows(
            source,
            int(columns.numbers["seq"][row]),
            str(columns.ids[row]),
            f"{name} holds {'an infinity' if more else 'NaN or an infinity'}",
            f"allowed are finite numbers{more and ' ' + more}: correct the row, or leave its session out",
            count=len(broken),
        )


def _kind(names: Coded, lengths: Ints) -> tuple[NDArray[np.bool_], int]:
    """Find the most frequent kind of features (name and length): a mask of its rows, and the code of its name."""
    full = lengths > 0
    kinds, counts = np.unique(np.stack([names.codes[full], lengths[full]]), axis=1, return_counts=True)
    name, length = kinds[:, int(np.argmax(counts))]
    return full & (names.codes == name) & (lengths == length), int(name)


def _dense(n: int, places: Ints, given: Arrays, keep: NDArray[np.bool_]) -> tuple[NDArray[np.float32], Ints]:
    """Stack the kept arrays as float32[n, d], NaN in other rows; also return the rows with non-finite features."""
    d = int(given.lengths[keep][0]) if keep.any() else 0
    dense = np.full((n, d), np.nan, dtype=np.float32)
    at = places[keep]
    dense[at] = given.values[np.repeat(keep, given.lengths)].reshape(-1, d)
    with np.errstate(invalid="ignore"):
        sums = dense.sum(axis=1, dtype=np.float64)
    return dense, at[~np.isfinite(sums[at])]


def _spread(given: Arrays, sizes: Ints, fill: float) -> Floats | None:
    """Flatten a list column, with `fill` for the entries of empty rows, float64[m]; None if all rows are empty."""
    if not len(given.values):
        return None
    if len(given.values) == int(sizes.sum()):
        return given.values
    spread = np.full(int(sizes.sum()), fill)
    spread[np.repeat(given.lengths > 0, sizes)] = given.values
    return spread


def _filled(n: int, places: Ints, values: Floats) -> Floats:
    filled = np.full(n, np.nan)
    filled[places] = values
    return filled


def _shared(values: Any, codes: Ints) -> NDArray[np.object_]:
    """Decode values by code, sharing one Python object per distinct value, object[n]; None for code −1."""
    table = np.empty(len(values) + 1, dtype=object)
    table[:-1] = [value.item() if isinstance(value, np.generic) else value for value in values]
    return table[codes]
