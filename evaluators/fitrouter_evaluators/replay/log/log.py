"""Logged decisions and their outcomes as columns.

Decisions are rows in order of time. Values per eligible arm are ragged, since arms come and go: row i owns the entries
`start[i]` to `start[i + 1]` of the flat arrays in `Options`. A column is None if the source lacks it; missing values
are NaN (numbers) or −1 (codes).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fitrouter.errors import InvalidLog
from fitrouter.types import Floats, Mode

Ints: TypeAlias = NDArray[np.int64]

MODES = tuple(Mode)
"""Decoding of `Decisions.mode`."""
DRAWN = frozenset({Mode.ONLINE, Mode.UNIFORM, Mode.SHADOW})
"""Modes whose arm was drawn from the logged pmf."""
_IS_DRAWN = np.array([mode in DRAWN for mode in MODES])


def is_drawn(modes: Ints) -> NDArray[np.bool_]:
    """Whether the arm was drawn from the logged pmf, for codes of `MODES`, bool[n]."""
    return np.asarray(_IS_DRAWN[modes])


def ragged_positions(begin: Ints, counts: Ints) -> Ints:
    """Concatenate the ranges begin[i], …, begin[i] + counts[i] − 1, int64[Σ counts]."""
    return np.asarray(np.repeat(begin - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum())))


class Names(NamedTuple):
    """Names by code."""

    arms: tuple[str, ...]
    tenants: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()


class Decisions(NamedTuple):
    """n decisions in order of time."""

    id: NDArray[np.object_]
    """Decision ids."""
    seq: Ints
    """Position in the journal or row in the file, for messages."""
    ts: Floats
    """Seconds since the epoch."""
    draw: Ints
    """Row of the decision that drew its arm: its own row for a draw, −1 if that decision is not in the log."""
    mode: Ints
    """Codes of `MODES`."""
    start: Ints
    """int64[n + 1]: where each row's entries in `Options` begin."""
    chosen: Ints
    """Position of the chosen arm in the flat arrays of `Options`."""
    propensity: Floats
    tenant: Ints
    user: Ints
    role: Ints
    task: Ints
    session: Ints
    """Codes of `Names`; −1 for none."""
    begins: NDArray[np.bool_]
    """A draw that begins a session, rather than redrawing a running one."""
    asked: NDArray[np.bool_]
    asked_probability: Floats
    """Whether feedback was requested at random, and with what probability."""
    learnt: Ints
    """Last sequence number folded into the policy; −1 if unknown."""
    x: NDArray[np.float32] | None = None
    """Context features, float32[n, d]."""
    steps: Floats | None = None
    """Labels that the policy had learnt from."""
    floor: Floats | None = None
    share: Floats | None = None
    cost_weight: Floats | None = None
    cost_unit_usd: Floats | None = None
    latency_weight: Floats | None = None
    latency_unit_s: Floats | None = None
    budget_weight: Floats | None = None
    budget_unit_usd: Floats | None = None
    seed: NDArray[np.object_] | None = None
    """Installation seed of the draw (Python ints)."""
    algorithm: NDArray[np.object_] | None = None
    registry: NDArray[np.object_] | None = None
    run: Ints | None = None
    """Codes of runs of agents; −1 for none."""
    tier: NDArray[np.object_] | None = None
    """Cost tier that the request asked for; empty or None for balanced."""

    @property
    def n(self) -> int:
        """Number of decisions."""
        return len(self.ts)


class Options(NamedTuple):
    """m entries: each eligible arm of each decision, in canonical order within a decision; see `fitrouter.Decision`."""

    arm: Ints
    """Codes of `Names.arms`."""
    prob: Floats
    """The logged pmf; NaN where only the chosen arm's propensity is known."""
    mean: Floats | None = None
    sd: Floats | None = None
    cost: Floats | None = None
    latency: Floats | None = None
    availability: Floats | None = None
    switch: Floats | None = None
    """Utility lost by switching the session's arm; 0 if none."""
    rest: Floats | None = None
    """Probability that does not depend on the policy: probs = (1 − Σ rest) · policy's pmf + rest."""
    twin: Floats | None = None
    """pmf of the user-blind policy."""
    personal: Floats | None = None
    """pmf with user and role terms; equals `prob` where they are in use."""
    candidates: Mapping[str, Floats] = {}
    """Shadow candidate → its pmf, NaN in rows without it."""


class Outcomes(NamedTuple):
    """Outcomes of the n decisions."""

    status: NDArray[np.object_]
    """ok, partial, cancelled, failed, lost; empty if unknown."""
    served: Ints
    """Code of the arm that answered; −1 for none."""
    cost_usd: Floats
    latency_s: Floats
    asked_label: Floats
    """Label in [0, 1] given on request; NaN without one."""
    free_label: Floats
    """Volunteered label in [0, 1]; NaN without one."""
    score: Floats
    """Mean score of the reward model, made before the label; NaN without one."""
    h: NDArray[np.float32] | None = None
    """Response features, float32[n, D]; NaN rows where there are none."""
    schema: str = ""
    """Name of the schema of h."""
    left_out: int = 0
    """Number of decisions whose label does not count for others (`state.vouching`), so that they have none."""
    declined: int = 0
    """Number of draws of plans that were looked at and not run; they are no rows."""
    ended: Floats | None = None
    """Outcome of the decision's run in [0, 1]; NaN without one."""
    assumed: int = 0
    """Number of answers whose cost is at an assumed price, since none was configured."""


class Log(NamedTuple):
    """A log from any source."""

    source: str
    """The source in words, for messages and reports."""
    names: Names
    decisions: Decisions
    options: Options
    outcomes: Outcomes
    declared: Mapping[int, Mapping[str, float]] = {}
    """User code → latest declared values."""

    def per_row(self, values: Floats) -> Floats:
        """Sums over each decision's entries, float64[n]. Every decision has at least one."""
        return np.asarray(np.add.reduceat(values, self.decisions.start[:-1]) if len(values) else np.zeros(0))


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
