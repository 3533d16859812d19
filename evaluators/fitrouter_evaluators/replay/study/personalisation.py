"""What personalisation bought: personal − blind, of the two pmfs of every decision, as sequences that never expire.

Overall, for every role, and for every taste group: the users who declared the same thing most strongly, and the rest.
Overall keeps α for itself; roles and groups share another (Bonferroni over those in the report), so that "somewhere"
is said wrongly no more often than "overall". One that is heard of later makes the others' shares smaller from then on.

The two pmfs differ where a taste has something to say, and there the blind one's model was drawn as rarely as the floor
allows: gains of a hundredth take tens of thousands of labels to show. the monitor asks a second question, of
foresight, which is answered sooner; what is here is money in the bank.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fitrouter.types import Floats
from fitrouter_evaluators.replay.inference._bands import asymptotic_band, exact_band
from fitrouter_evaluators.replay.inference.sequences import Bound
from fitrouter_evaluators.replay.log.log import Log
from fitrouter_evaluators.replay.report import Band
from fitrouter_evaluators.replay.study.units import Units

POLICY = "personal − blind"
UNDECLARED = "undeclared"
LEAST = 50
"""Units with which a role or group begins to be reported."""


class BlindPairs(NamedTuple):
    """Units whose draws logged both pmfs."""

    units: Units
    personal: Floats
    """float64[m], in the order of `units.entries()`."""
    blind: Floats
    said: str
    """What is missing, in words; empty where nothing is."""


def with_blind_pmf(units: Units) -> BlindPairs:
    """The units that can be asked, with both pmfs; units of which a draw has no twin are left out, and counted."""
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
            f"{few} have draws without the pmf of a user-blind twin (logs that were imported, or made before it was "
            "logged), so what personalisation bought is not known of them"
        )
    inside = np.repeat(np.repeat(keep, units.draws), np.diff(units.entry_start()))
    return BlindPairs(units.select(keep, "no twin was logged"), personal[inside], blind[inside], said)


def declared_groups(log: Log) -> dict[int, str]:
    """User code → what they declared most strongly, as `brevity +`: what their profile says last in the log.

    Ties go to the first name in the alphabet. Users who declared nothing are not in it.
    """
    found = {}
    for user, declared in log.declared.items():
        strongest = min(((-abs(value), name, value) for name, value in declared.items() if value), default=None)
        if strongest is not None:
            found[user] = f"{strongest[1]} {'+' if strongest[2] > 0 else '−'}"
    return found


def report_slices(units: Units, groups: Mapping[int, str] | None = None) -> list[tuple[str, NDArray[np.bool_]]]:
    """(slice, bool[n]) of everybody, of each role and of each taste group with at least fifty units.

    Args:
        units: n of them.
        groups: user code → group; what users declared where None. Others are `undeclared`.
    """
    named = declared_groups(units.log) if groups is None else groups
    found = [(f"role={name}", units.role == code) for code, name in enumerate(units.log.names.roles)]
    for name in sorted(set(named.values())):
        members = [user for user, own in named.items() if own == name]
        found.append((f"taste={name}", np.isin(units.user, members)))
    if named:
        found.append((f"taste={UNDECLARED}", ~np.isin(units.user, list(named))))
    everybody = [("", np.ones(units.n, dtype=bool))] if units.n else []
    return everybody + [(name, here) for name, here in found if int(here.sum()) >= LEAST]


def correction(count: int, alpha: float = 0.05) -> str:
    """How the slices are paid for, in words.

    Args:
        count: roles and groups in the report.
        alpha: of everybody, and of all slices together.
    """
    if not count:
        return f"α = {alpha:g}"
    share = f"Bonferroni: {alpha / count:.4g} each"
    return f"α = {alpha:g} overall, and as much for {count} roles and taste groups together ({share})"


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
    """Sequences of the paired difference personal − blind: exact and asymptotic, overall, per role and per taste group.

    Args:
        units: n of them, of `twins`.
        x: float64[n], doubly robust differences as they are, for the asymptotic sequence.
        x_low: float64[n] or float64[g, n] ≥ −bound_low, cut for exact lower limits.
        x_high: the same for upper limits, ≤ bound_high.
        bound_low: known before the log.
        bound_high: likewise.
        groups: user code → group of your own; what users declared where None.
        alpha: of everybody, and of all slices together.
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
