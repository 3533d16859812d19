"""Value of personalisation: confidence sequences of personal − user-blind, from the two logged pmfs.

Overall, for every role, and for every declared group (users who declared the same value most strongly, and the rest).
The overall sequence has level α; roles and groups share another α (Bonferroni over those in the report).

The pmfs differ only where the user terms matter, and there the blind policy's arm was drawn as rarely as the floor
allows: gains of .01 take tens of thousands of labels to detect. The personalisation monitor compares predictions
instead, which needs fewer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fitrouter.types import Floats
from fitrouter_evaluators.replay.inference.sequences import Bound, asymptotic_band, exact_band
from fitrouter_evaluators.replay.log.log import Log
from fitrouter_evaluators.replay.report import Band
from fitrouter_evaluators.replay.study.units import Units

POLICY = "personal − blind"
UNDECLARED = "undeclared"
LEAST = 50
"""Minimum units of a reported role or group."""


class BlindPairs(NamedTuple):
    """Units whose draws logged both pmfs."""

    units: Units
    personal: Floats
    """float64[m], in the order of `units.entries()`."""
    blind: Floats
    said: str
    """A warning about units without the user-blind pmf; empty if there are none."""


def with_blind_pmf(units: Units) -> BlindPairs:
    """The units with both pmfs at every draw; others are excluded."""
    options, entries = units.log.options, units.entries()
    prob = options.prob[entries]
    personal = prob if options.personal is None else options.personal[entries]
    personal = np.where(np.isnan(personal), prob, personal)
    blind = np.full(len(prob), np.nan) if options.twin is None else options.twin[entries]
    begin = units.entry_start()[:-1]
    known = np.isfinite(personal) & np.isfinite(blind)
    has_full_pmf = np.logical_and.reduceat(known, begin) if len(begin) else np.zeros(0, dtype=bool)
    keep = np.logical_and.reduceat(has_full_pmf, units.draw_start[:-1]) if units.n else np.zeros(0, dtype=bool)
    said = ""
    if not keep.all() or not units.n:
        few = f"{units.n - int(keep.sum())} of {units.n} units"
        said = (
            f"{few} have draws without a user-blind pmf (imported, or logged by an earlier version); they are "
            f"left out of "
            "the value of personalisation"
        )
    inside = np.repeat(np.repeat(keep, units.draws), np.diff(units.entry_start()))
    return BlindPairs(units.select(keep, "no user-blind pmf logged"), personal[inside], blind[inside], said)


def declared_groups(log: Log) -> dict[int, str]:
    """User code → the value they declared most strongly, such as `brevity +`.

    Ties go to the alphabetically first name; users who declared nothing are left out.
    """
    found = {}
    for user, declared in log.declared.items():
        strongest = min(((-abs(value), name, value) for name, value in declared.items() if value), default=None)
        if strongest is not None:
            found[user] = f"{strongest[1]} {'+' if strongest[2] > 0 else '−'}"
    return found


def report_slices(units: Units, groups: Mapping[int, str] | None = None) -> list[tuple[str, NDArray[np.bool_]]]:
    """Slices as (name, bool[n]): all units, roles and groups of at least `LEAST`; `groups` replaces declared groups."""
    named = declared_groups(units.log) if groups is None else groups
    found = [(f"role={name}", units.role == code) for code, name in enumerate(units.log.names.roles)]
    for name in sorted(set(named.values())):
        members = [user for user, own in named.items() if own == name]
        found.append((f"taste={name}", np.isin(units.user, members)))
    if named:
        found.append((f"taste={UNDECLARED}", ~np.isin(units.user, list(named))))
    everybody = [("", np.ones(units.n, dtype=bool))] if units.n else []
    return everybody + [(name, here) for name, here in found if int(here.sum()) >= LEAST]


def personalisation_bands(
    units: Units,
    x: Floats,
    x_low: Floats,
    x_high: Floats,
    bound_low: Bound,
    bound_high: Bound,
    *,
    groups: Mapping[int, str] | None = None,
    alpha: float = 0.05,
) -> list[Band]:
    """Exact and asymptotic sequences of the paired difference personal − blind, overall, per role and per group.

    `units` are those of `with_blind_pmf`, x (float64[n]) doubly robust differences for the asymptotic sequence, the
    others the stream of `Study.stream`. `alpha` is that of the overall sequence, and of all slices together.
    """
    found, places = [], report_slices(units, groups)
    share = alpha / max(len(places) - 1, 1)
    below, above = np.atleast_2d(x_low), np.atleast_2d(x_high)
    for where, here in places:
        level = share if where else alpha
        ends, rows = (0.5 * level, 0.5 * level), (below[:, here], above[:, here])
        bounds, shown = (bound_low, bound_high), x[here]
        found.append(exact_band(*rows, *bounds, alpha=ends, policy=POLICY, where=where, centre=shown))
        found.append(asymptotic_band(shown, alpha=level, policy=POLICY, where=where))
    return found
