"""Reads the log columns that candidates need; raises errors that name the missing column and row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from fitrouter.errors import InvalidLog
from fitrouter.types import Floats
from fitrouter_evaluators.replay.log.log import Ints, Log, is_drawn, ragged_positions

_CHUNK = 1 << 16


def entries(log: Log, rows: Ints) -> Ints:
    """Positions in `Options` of the entries of these rows, concatenated, int64[m]."""
    start = log.decisions.start
    return ragged_positions(start[rows], start[rows + 1] - start[rows])


def chunks(rows: Ints) -> Iterator[Ints]:
    """Split rows into chunks of bounded size, so that memory does not grow with the log."""
    for at in range(0, len(rows), _CHUNK):
        yield rows[at : at + _CHUNK]


def drawn(log: Log, rows: Ints) -> NDArray[np.bool_]:
    """Whether each of these rows is a draw, bool[n]; other rows need no valid pmf."""
    return is_drawn(log.decisions.mode[rows])


def by_size(counts: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Group rows by their number K of entries; yield (rows as positions, positions of their entries int64[r, K])."""
    begin = np.cumsum(counts) - counts
    for K in np.unique(counts).tolist():
        rows = np.flatnonzero(counts == K)
        yield rows, begin[rows][:, None] + np.arange(K)


def sums(values: Floats, counts: Ints) -> Floats:
    """Sum values over each row's entries, float64[n]; every row has at least one entry."""
    return np.asarray(np.add.reduceat(values, np.cumsum(counts) - counts) if len(values) else np.zeros(0))


def number(these: NDArray[np.bool_], counts: Ints) -> Ints:
    """Count each row's entries that are true, int64[n]."""
    return np.asarray(sums(these.astype(np.float64), counts), dtype=np.int64)


def row_name(log: Log, row: int) -> str:
    return f"row {int(log.decisions.seq[row])} (decision {log.decisions.id[row]!r})"


def refuse(log: Log, row: int, problem: str) -> NoReturn:
    raise InvalidLog(f"{log.source}: {row_name(log, row)} {problem}")


def per_row(log: Log, column: Floats | None, rows: Ints, what: str, remedy: str) -> Floats:
    """Read a column of `Decisions` at these rows, float64[n]; raises InvalidLog if it is missing at a draw."""
    if column is None:
        raise InvalidLog(f"{log.source}: {what} is not logged; {remedy}")
    values: Floats = column[rows]
    missing = np.isnan(values) & drawn(log, rows)
    if missing.any():
        refuse(log, int(rows[missing.argmax()]), f"does not log {what}; {remedy}")
    return values


def per_entry(log: Log, column: Floats | None, rows: Ints, what: str, remedy: str) -> Floats:
    """Read a column of `Options` at the entries of these rows, float64[m]; raises as `per_row` does."""
    if column is None:
        raise InvalidLog(f"{log.source}: {what} is not logged; {remedy}")
    values: Floats = column[entries(log, rows)]
    missing = np.isnan(values)
    if missing.any():
        start = log.decisions.start
        owner = np.repeat(rows, start[rows + 1] - start[rows])
        missing &= drawn(log, owner)
        if missing.any():
            refuse(log, int(owner[missing.argmax()]), f"does not log {what}; {remedy}")
    return values


def arm_codes(arms: Sequence[str], name: str) -> Ints:
    """Codes of the arms that a name means, int64[m]: that arm, else all revisions of a model (the part before @)."""
    exact = [code for code, arm in enumerate(arms) if arm == name]
    found = exact or [code for code, arm in enumerate(arms) if arm.partition("@")[0] == name]
    return np.array(found, dtype=np.int64)
