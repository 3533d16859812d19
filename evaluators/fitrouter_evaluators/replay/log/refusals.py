"""Errors for invalid logs: they name the place, the value found, and what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from fitrouter.errors import InvalidLog
from fitrouter_evaluators.replay.log.log import Log


def refuse(place: str, found: str, allowed: str) -> NoReturn:
    """Raise InvalidLog for a place (a file or table), what was found there, and what is allowed."""
    raise InvalidLog(f"{place}: {found}; {allowed}")


def refuse_rows(
    place: str, seq: int, decision_id: str, found: str, allowed: str, *, count: int = 1, table: str = "decisions"
) -> NoReturn:
    """Raise InvalidLog for a row; `count` rows have the same problem."""
    others = f" ({count - 1} more rows are like it)" if count > 1 else ""
    refuse(f"{place}, table {table}, row {seq} (decision {decision_id!r})", f"{found}{others}", allowed)


def refuse_where(log: Log, broken: NDArray[np.bool_], found: str | Callable[[int], str], allowed: str) -> None:
    """Raise InvalidLog for the first decision at which `broken`, bool[n], is true, if there is one."""
    if not broken.any():
        return
    row = int(np.argmax(broken))
    decisions = log.decisions
    what = found if isinstance(found, str) else found(row)
    count = int(np.count_nonzero(broken))
    refuse_rows(log.source, int(decisions.seq[row]), str(decisions.id[row]), what, allowed, count=count)
