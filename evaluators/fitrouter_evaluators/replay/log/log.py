"""What was decided and what came of it, as columns: the form in which every source of a log is evaluated.

Decisions are rows in the order in which they were made. What a decision says of each arm that could have been chosen is
ragged, since arms come and go: row i owns the entries `start[i]` to `start[i + 1]` of the flat arrays in `Options`.
A column is None where the source does not have it, and NaN (numbers) or −1 (codes) where a row does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fitrouter.types import Floats, Mode

Ints: TypeAlias = NDArray[np.int64]

MODES = tuple(Mode)
"""Codes of `Decisions.mode` are positions in here."""
DRAWN = frozenset({Mode.ONLINE, Mode.UNIFORM, Mode.SHADOW})
"""Modes whose arm was drawn from the logged pmf."""


class Names(NamedTuple):
    """What codes stand for: code c of a column is the name at position c."""

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
    """Position in the journal, or the number of the row in its file: what a message names."""
    ts: Floats
    """Seconds since the epoch."""
    draw: Ints
    """Row of the decision whose draw it lives on: its own row where it is a draw, −1 where that is not in the log."""
    mode: Ints
    """Codes of `MODES`."""
    start: Ints
    """int64[n + 1]: where each row's entries in `Options` begin."""
    chosen: Ints
    """Position of the chosen arm in the flat arrays of `Options`, −1 where it is not among the eligible."""
    propensity: Floats
    tenant: Ints
    user: Ints
    role: Ints
    task: Ints
    session: Ints
    """Codes of `Names`; −1 for none."""
    begins: NDArray[np.bool_]
    """A draw that begins a session: not one by which a session that goes on was drawn again."""
    asked: NDArray[np.bool_]
    asked_probability: Floats
    """Whether feedback was solicited at random, and with what probability."""
    learnt: Ints
    """Last sequence number that the policy had folded; −1 where it is not known."""
    x: NDArray[np.float32] | None = None
    """float32[n, d]: what the policy read."""
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

    @property
    def n(self) -> int:
        """How many there are."""
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
    """0 where leaving costs nothing."""
    rest: Floats | None = None
    """Part of each probability that no policy has a say in: probs = (1 − Σ rest) · policy's pmf + rest."""
    twin: Floats | None = None
    """pmf of the user-blind twin."""
    personal: Floats | None = None
    """pmf with people's terms; equals `prob` where they count."""
    candidates: Mapping[str, Floats] = {}
    """Shadow candidate → its pmf, NaN in the rows that do not have it."""


class Outcomes(NamedTuple):
    """What came of each of the n decisions."""

    status: NDArray[np.object_]
    """ok, partial, cancelled, failed, lost; empty where nothing is known."""
    served: Ints
    """Code of the arm that answered, −1 for none."""
    cost_usd: Floats
    latency_s: Floats
    asked_label: Floats
    """The verdict in [0, 1] of somebody who was asked at random; NaN without one."""
    free_label: Floats
    """The verdict in [0, 1] that somebody volunteered; NaN without one."""
    score: Floats
    """Mean of the reward model, made before the label was heard; NaN without one."""
    h: NDArray[np.float32] | None = None
    """float32[n, D]: response features; NaN rows where there are none."""
    schema: str = ""
    """Name of the features in h."""


class Log(NamedTuple):
    """A log, whatever it was read from."""

    source: str
    """What it was read from, for messages and reports."""
    names: Names
    decisions: Decisions
    options: Options
    outcomes: Outcomes
    declared: Mapping[int, Mapping[str, float]] = {}
    """User code → declared values, the last ones in the log."""

    def rows(self) -> Ints:
        """int64[m]: the decision that each entry of `Options` belongs to."""
        return np.repeat(np.arange(self.decisions.n), np.diff(self.decisions.start))

    def per_row(self, values: Floats) -> Floats:
        """float64[n]: sums over each decision's entries. Every decision has at least one."""
        sums: Floats = np.add.reduceat(values, self.decisions.start[:-1]) if len(values) else np.zeros(0)
        return sums
