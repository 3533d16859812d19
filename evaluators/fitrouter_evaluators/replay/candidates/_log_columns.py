"""Columns of a log as a candidate needs them: entries of some rows, and refusals that say what is missing where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from fitrouter.errors import InvalidLog
from fitrouter.types import Floats
from fitrouter_evaluators.replay.log.log import DRAWN, MODES, Ints, Log

_DRAWN = np.array([mode in DRAWN for mode in MODES])
_CHUNK = 1 << 16


def entries(log: Log, rows: Ints) -> Ints:
    """int64[m]: where the entries of these rows are in `Options`, row after row."""
    start = log.decisions.start
    counts = start[rows + 1] - start[rows]
    shift = np.repeat(start[rows] - (np.cumsum(counts) - counts), counts)
    found: Ints = shift + np.arange(len(shift))
    return found


def chunks(rows: Ints) -> Iterator[Ints]:
    """The rows in pieces, so that a long log needs no more memory than a short one."""
    for at in range(0, len(rows), _CHUNK):
        yield rows[at : at + _CHUNK]


def drawn(log: Log, rows: Ints) -> NDArray[np.bool_]:
    """bool[n]: which of the rows are draws; what the others hold is nobody's concern."""
    found: NDArray[np.bool_] = _DRAWN[log.decisions.mode[rows]]
    return found


def by_size(counts: Ints) -> Iterator[tuple[Ints, Ints]]:
    """For rows with equally many entries: their places among the rows, and int64[r, K], those of their entries."""
    begin = np.cumsum(counts) - counts
    for K in np.unique(counts).tolist():
        rows = np.flatnonzero(counts == K)
        yield rows, begin[rows][:, None] + np.arange(K)


def sums(values: Floats, counts: Ints) -> Floats:
    """float64[n]: sums over each row's entries; every row has at least one."""
    found: Floats = np.add.reduceat(values, np.cumsum(counts) - counts) if len(values) else np.zeros(0)
    return found


def row_name(log: Log, row: int) -> str:
    """What a message calls a row."""
    return f"row {int(log.decisions.seq[row])} (decision {log.decisions.id[row]!r})"


def refuse(log: Log, row: int, what: str) -> NoReturn:
    """Raise.

    Raises:
        InvalidLog: naming the log and the row.
    """
    raise InvalidLog(f"{log.source}: {row_name(log, row)} {what}")


def per_row(log: Log, column: Floats | None, rows: Ints, what: str, remedy: str) -> Floats:
    """float64[n]: a column of `Decisions` at these rows; it must hold a number at every draw.

    Args:
        log: whose it is.
        column: float64, one value a decision.
        rows: int64[n].
        what: it holds, for the message.
        remedy: what to do without it.

    Raises:
        InvalidLog: the log does not have it, or a draw among the rows does not.
    """
    if column is None:
        raise InvalidLog(f"{log.source}: {what} is not logged; {remedy}")
    values: Floats = column[rows]
    missing = np.isnan(values) & drawn(log, rows)
    if missing.any():
        refuse(log, int(rows[missing.argmax()]), f"does not say {what}; {remedy}")
    return values


def per_entry(log: Log, column: Floats | None, rows: Ints, what: str, remedy: str) -> Floats:
    """float64[m]: a column of `Options` at the entries of these rows; as `per_row`."""
    if column is None:
        raise InvalidLog(f"{log.source}: {what} is not logged; {remedy}")
    values: Floats = column[entries(log, rows)]
    missing = np.isnan(values)
    if missing.any():
        start = log.decisions.start
        owner = np.repeat(rows, start[rows + 1] - start[rows])
        missing &= drawn(log, owner)
        if missing.any():
            refuse(log, int(owner[missing.argmax()]), f"does not say {what}; {remedy}")
    return values


def called(arms: Sequence[str], name: str) -> Ints:
    """int64[m]: codes of the arms of that name, which is an arm's own or, for all its revisions, the part before @."""
    exact = [code for code, arm in enumerate(arms) if arm == name]
    found = exact or [code for code, arm in enumerate(arms) if arm.partition("@")[0] == name]
    return np.array(found, dtype=np.int64)
