"""Why a log is refused: always the place, what was found there, and what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from fitrouter.errors import InvalidLog
from fitrouter_evaluators.replay.log.log import Log


def refuse(place: str, found: str, allowed: str) -> NoReturn:
    """Raise for a log, or a part of it, as a whole.

    Args:
        place: the file or the table.
        found: what is there.
        allowed: what may be there, and what to do.

    Raises:
        InvalidLog: always.
    """
    raise InvalidLog(f"{place}: {found}; {allowed}")


def refuse_rows(
    place: str, seq: int, decision_id: str, found: str, allowed: str, *, count: int = 1, table: str = "decisions"
) -> NoReturn:
    """Raise for a row; `count` says how many are like it.

    Raises:
        InvalidLog: always.
    """
    others = f" ({count - 1} more rows are like it)" if count > 1 else ""
    refuse(f"{place}, table {table}, row {seq} (decision {decision_id!r})", f"{found}{others}", allowed)


def refuse_where(log: Log, broken: NDArray[np.bool_], found: str | Callable[[int], str], allowed: str) -> None:
    """Raise for the first decision at which `broken`, bool[n], holds; nothing where there is none.

    Raises:
        InvalidLog: there is one.
    """
    if not broken.any():
        return
    row = int(np.argmax(broken))
    decisions = log.decisions
    what = found if isinstance(found, str) else found(row)
    count = int(np.count_nonzero(broken))
    refuse_rows(log.source, int(decisions.seq[row]), str(decisions.id[row]), what, allowed, count=count)
