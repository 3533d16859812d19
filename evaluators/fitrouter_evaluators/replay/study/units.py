"""Units of replay: closed sessions, from a draw that begins one to the next such draw of the same session.

Candidates are evaluated as session policies (DESIGN §3): later turns of a session keep its draw until the session is
redrawn, by rules that all candidates share. So importance weights belong to draws, multiply over the draws of a unit,
and apply to the mean outcome of its decisions. Weights of single rows, with the pmf that each turn *would* have had,
are biased: sticky turns were not drawn from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fitrouter.types import Floats, Mode
from fitrouter_evaluators.replay.log.log import MODES, Decisions, Ints, Log, is_drawn, ragged_positions


class Units(NamedTuple):
    """n units in order of their first draws, as ragged rows of a log. Every unit has a draw and a decision."""

    log: Log
    member: Ints
    """Rows of decisions, grouped by unit, in order of time within each."""
    start: Ints
    """Unit u owns `member[start[u]:start[u + 1]]`, int64[n + 1]."""
    draw: Ints
    """Rows of the draws among them, likewise."""
    draw_start: Ints
    """Unit u owns `draw[draw_start[u]:draw_start[u + 1]]`, int64[n + 1]."""
    cluster: Ints
    """Session code, from 0; a session that resumed after silence is two units of one cluster."""
    user: Ints
    role: Ints
    task: Ints
    """Codes of `Names`, from the first decision."""
    ts: Floats
    """Time of the first draw."""
    excluded: Mapping[str, int]
    """Reason → number of decisions in no unit."""

    @property
    def n(self) -> int:
        """Number of units."""
        return len(self.start) - 1

    @property
    def turns(self) -> Ints:
        """Decisions in each unit, int64[n]."""
        return np.diff(self.start)

    @property
    def draws(self) -> Ints:
        """Draws in each unit, int64[n]."""
        return np.diff(self.draw_start)

    def of_member(self) -> Ints:
        """The unit of each member, int64[members]."""
        return np.repeat(np.arange(self.n), self.turns)

    def of_draw(self) -> Ints:
        """The unit of each draw, int64[draws]."""
        return np.repeat(np.arange(self.n), self.draws)

    def entry_start(self) -> Ints:
        """Position in `entries` at which each draw begins, int64[draws + 1]."""
        start = self.log.decisions.start
        return np.concatenate([[0], np.cumsum(start[self.draw + 1] - start[self.draw])])

    def entries(self) -> Ints:
        """Positions in `Options` of the arms of all draws, int64[m]; the order of flat pmfs and models."""
        start = self.log.decisions.start
        return ragged_positions(start[self.draw], start[self.draw + 1] - start[self.draw])

    def chosen(self) -> Ints:
        """Position of each drawn arm in `entries`, int64[draws]."""
        decisions = self.log.decisions
        return self.entry_start()[:-1] + decisions.chosen[self.draw] - decisions.start[self.draw]

    def propensity(self) -> Floats:
        """Probability of each drawn arm, float64[draws]."""
        decisions = self.log.decisions
        p: Floats = self.log.options.prob[decisions.chosen[self.draw]]
        return np.where(np.isnan(p), decisions.propensity[self.draw], p)

    def weights(self, pmf: Floats) -> tuple[Floats, Floats]:
        """Importance weights π(a)/p(a) of draws, float64[draws], and their product over each unit, float64[n]."""
        if len(pmf) != self.entry_start()[-1]:
            raise ValueError(f"a pmf of {len(pmf)} entries, but the units' draws have {self.entry_start()[-1]}")
        weight = pmf[self.chosen()] / self.propensity()
        if len(weight) == self.n:
            return weight, weight
        return weight, np.multiply.reduceat(weight, self.draw_start[:-1])

    def total(self, values: NDArray[Any]) -> Floats:
        """Sums of member values over each unit, float64[n]."""
        if len(values) == self.n:
            return values.astype(np.float64)
        return np.asarray(np.add.reduceat(values.astype(np.float64), self.start[:-1]))

    def select(self, keep: NDArray[np.bool_], reason: str = "") -> Units:
        """Select the units in `keep` (bool[n]); with a reason, the decisions of the others count as excluded for it."""
        if keep.all():
            return self
        excluded = dict(self.excluded)
        if reason:
            excluded[reason] = excluded.get(reason, 0) + int(self.turns[~keep].sum())
        return self._replace(
            member=self.member[np.repeat(keep, self.turns)],
            start=_starts(self.turns[keep]),
            draw=self.draw[np.repeat(keep, self.draws)],
            draw_start=_starts(self.draws[keep]),
            cluster=self.cluster[keep],
            user=self.user[keep],
            role=self.role[keep],
            task=self.task[keep],
            ts=self.ts[keep],
            excluded=excluded,
        )


class _Sorted(NamedTuple):
    """Assignment of decisions to units."""

    first: Ints
    """int64[n]: row of the draw that began the unit; −1 if in none."""
    ended: NDArray[np.bool_]
    """bool[n], at such rows: the session began anew later."""
    lost: NDArray[np.bool_]
    """bool[n], at such rows: a draw of the unit is not in the log."""


def closed_units(
    log: Log,
    *,
    since: float | None = None,
    until: float | None = None,
    horizon_s: float = 0.0,
    idle_s: float = 3600.0,
    now: float | None = None,
) -> Units:
    """The closed and mature units of a log that began in [since, until), with all their draws in the log.

    Pinned and forced decisions are in no unit, and break none. A decision without a session is a unit, closed at once.
    A session is closed after `idle_s` of silence; units with a decision younger than `horizon_s` are excluded, labelled
    or not. Excluded decisions are counted by reason. `now` is by default the time of the last decision.
    """
    decisions = log.decisions
    drawn = is_drawn(decisions.mode)
    excluded = {mode.value: int((decisions.mode == MODES.index(mode)).sum()) for mode in (Mode.PINNED, Mode.FORCED)}
    found = _assigned(decisions, drawn)
    inside = np.flatnonzero(found.first >= 0)
    excluded["began before the log"] = decisions.n - len(inside) - sum(excluded.values())
    member = inside[np.argsort(found.first[inside], kind="stable")]
    begin = np.flatnonzero(np.diff(found.first[member], prepend=-1))
    turns, head = np.diff(np.append(begin, len(member))), found.first[member[begin]]
    now = float(decisions.ts.max(initial=-np.inf)) if now is None else now
    limits = _Limits(-np.inf if since is None else since, np.inf if until is None else until, horizon_s, idle_s, now)
    reason = np.zeros(len(head), dtype=np.int64)
    for code, (words, out) in enumerate(_refused(log, found, member, begin, limits).items(), start=1):
        reason[(reason == 0) & out] = code
        excluded[words] = int(turns[reason == code].sum())
    keep = reason == 0
    member = member[np.repeat(keep, turns)]
    is_draw = drawn[member]
    start, head = _starts(turns[keep]), head[keep]
    counted = np.concatenate([[0], np.cumsum(is_draw)])
    return Units(
        log=log,
        member=member,
        start=start,
        draw=member[is_draw],
        draw_start=counted[start],
        cluster=_clusters(decisions, head),
        user=decisions.user[head],
        role=decisions.role[head],
        task=decisions.task[head],
        ts=decisions.ts[head],
        excluded={words: count for words, count in excluded.items() if count},
    )


def runs_of(log: Log, **limits: float | None) -> Units:
    """The closed runs of a log, as `closed_units` selects sessions: units whose draws may be of several sessions.

    A run's weights multiply over all of its draws. One with a call that keeps a model which was drawn outside of the
    run has no weight, and is excluded; so are decisions of no run.
    """
    decisions = log.decisions
    run = np.full(decisions.n, -1) if decisions.run is None else decisions.run
    drawn, rows = is_drawn(decisions.mode), np.arange(decisions.n)
    mine = drawn & (run >= 0)
    first = np.full(int(run.max(initial=-1)) + 1, decisions.n)
    np.minimum.at(first, run[mine], rows[mine])
    begins = mine & (first[run] == rows) if len(first) else np.zeros(decisions.n, dtype=bool)
    stays = (decisions.mode == MODES.index(Mode.STICKY)) & (run >= 0)
    apart = stays & ((decisions.draw < 0) | (run[decisions.draw] != run))
    gone = {"session": np.where(apart, -1, run), "draw": np.where(apart, -1, decisions.draw)}
    found = closed_units(log._replace(decisions=decisions._replace(begins=begins, **gone)), **limits)  # type: ignore[arg-type]
    found = found.select(run[found.member[found.start[:-1]]] >= 0, "no run")
    return found.select(
        ~np.isin(run[found.member[found.start[:-1]]], run[apart]), "a model was drawn outside of the run"
    )


class _Limits(NamedTuple):
    since: float
    until: float
    horizon_s: float
    idle_s: float
    now: float


def _refused(log: Log, found: _Sorted, member: Ints, begin: Ints, limits: _Limits) -> dict[str, NDArray[np.bool_]]:
    """Mask of the units that each reason excludes; units are the runs of `member` that start at `begin`."""
    decisions, head = log.decisions, found.first[member[begin]]
    ts = decisions.ts[member]
    # A session is silent from the end of its last answer on.
    ends = ts + np.nan_to_num(log.outcomes.latency_s[member], nan=0.0)
    last, end = (np.maximum.reduceat(t, begin) if len(t) else t for t in (ts, ends))
    alone = (decisions.session[head] < 0) | found.ended[head]
    return {
        "a draw is not in the log": found.lost[head],
        "began before the window": decisions.ts[head] < limits.since,
        "began after the window": decisions.ts[head] >= limits.until,
        "open session": ~alone & (limits.now - end <= limits.idle_s),
        "younger than the horizon": last > limits.now - limits.horizon_s,
    }


def _assigned(decisions: Decisions, drawn: NDArray[np.bool_]) -> _Sorted:
    n = decisions.n
    sticky = decisions.mode == MODES.index(Mode.STICKY)
    first = np.full(n, -1)
    alone = drawn & (decisions.session < 0)
    first[alone] = np.flatnonzero(alone)
    # Rows of sessions, session by session: the last beginning at or before a row is the row's unit.
    rows = np.flatnonzero((drawn | sticky) & (decisions.session >= 0))
    key = _session_key(decisions)[rows]
    order = np.argsort(key, kind="stable")
    rows, key = rows[order], key[order]
    begins = drawn[rows] & decisions.begins[rows]
    heads, own = rows[begins], key[begins]
    last = np.cumsum(begins) - 1
    known = last >= 0
    known[known] = own[last[known]] == key[known]
    first[rows[known]] = heads[last[known]]
    ended, lost = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
    ended[heads[:-1][own[1:] == own[:-1]]] = True
    # Sticky turns belong to the draw that they live on, and take their unit with them where it cannot be known.
    turns = np.flatnonzero(sticky)
    on = decisions.draw[turns]
    known = (on >= 0) & drawn[on]
    first[turns[known]] = first[on[known]]
    unknown = np.concatenate([turns[~known], np.flatnonzero(drawn & (decisions.chosen < 0))])
    lost[first[unknown][first[unknown] >= 0]] = True
    return _Sorted(first, ended, lost)


def _session_key(decisions: Decisions) -> Ints:
    return decisions.session * (int(decisions.tenant.max(initial=-1)) + 2) + decisions.tenant + 1


def _clusters(decisions: Decisions, head: Ints) -> Ints:
    key = _session_key(decisions)[head]
    alone = decisions.session[head] < 0
    key[alone] = int(key.max(initial=-1)) + 1 + np.arange(alone.sum())
    seen = np.zeros(int(key.max(initial=-1)) + 1, dtype=bool)
    seen[key] = True
    return np.asarray(np.cumsum(seen)[key] - 1)


def _starts(counts: Ints) -> Ints:
    return np.concatenate([[0], np.cumsum(counts)])
