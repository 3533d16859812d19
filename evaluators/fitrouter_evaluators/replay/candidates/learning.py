"""Candidates that learn while they are replayed.

A policy that learns is not one pmf: what it does depends on what came of what it did. Three ways to replay one:

* as it stands: a `SnapshotCandidate` is a fixed policy, evaluated like any other (the default);
* `RejectionCandidate`: it meets the logged requests one after another and keeps those at which it would have drawn what was
  drawn; the kept ones are a history of its own, and it learns from them alone (Li, Chu, Langford and Wang 2011,
  "Unbiased offline evaluation of contextual-bandit-based news article recommendation algorithms", Algorithm 1);
* `ProgressiveCandidate`: it learns from everything that was logged and is evaluated as it goes. All decisions count, but it
  learns from what others drew, which it would not have seen: biased, and said so.
"""

from __future__ import annotations

import copy
from bisect import insort
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fitrouter.errors import ConfigError
from fitrouter.policies import Policy
from fitrouter.state.learner import Learner
from fitrouter.stores.journal import Journal
from fitrouter.types import Decision, Floats, Mode, unpack
from fitrouter_evaluators.replay.candidates._log_columns import drawn, per_entry, row_name
from fitrouter_evaluators.replay.candidates._mixture import Mixture
from fitrouter_evaluators.replay.candidates._recomputed import RecomputedCandidate
from fitrouter_evaluators.replay.candidates._selective_fold import fold_selected
from fitrouter_evaluators.replay.candidates._settings import Settings
from fitrouter_evaluators.replay.candidates._utility import UtilityTerms, utility_terms
from fitrouter_evaluators.replay.log.log import MODES, Ints, Log

_UNIFORM = MODES.index(Mode.UNIFORM)


class RejectionResult(NamedTuple):
    """What rejection replay found."""

    value: float
    """Mean outcome of the kept draws, each as the mean of the decisions that live on it."""
    se: float
    low: float
    high: float
    """At one look, clustered by draw; NaN with fewer than two draws."""
    matched: int
    """Draws that were kept: what the candidate would have lived through."""
    draws: int
    """Draws that it met."""
    labels: int
    """Labels that it learnt from."""
    c: float
    """Acceptance at the end: a draw is kept with probability c · π / p."""
    clipped: float
    """Share of the draws met at which c · π / p was above 1 for some arm."""
    kept: Ints
    """Rows of the kept draws, in their order."""
    biased: str
    """Why the value is not quite the candidate's; empty where it is."""


class _ReplayedLearner:
    """What a learner would do at logged draws, with a ground that was logged."""

    def __init__(self, log: Log, rows: Ints, settings: Settings, policy: Policy, learner: Learner) -> None:
        self.settings, self.policy, self.learner = settings, policy, learner
        self.place = {str(name): i for i, name in enumerate(log.decisions.id[rows])}
        """Decision id → place among the rows."""
        self.utility_terms: UtilityTerms = utility_terms(log, rows, settings, Mixture(log, settings))
        self.begin = np.cumsum(self.utility_terms.counts) - self.utility_terms.counts

    def pmf(self, i: int, event: Decision) -> Floats:
        """float64[K]: its pmf at the i-th row, of which nothing is learnt yet."""
        fit, x = self.learner.fit, unpack(event.features)
        if len(x) == 0:  # the router failed, and no policy was asked
            found = None
        elif len(x) == fit.d:
            found = fit.estimate(event.identity, x, event.eligible, event.ts)
        else:
            raise ConfigError(
                f"snapshot: it reads contexts of {fit.d} numbers, and decision {event.id!r} has {len(x)}; the "
                "configuration must be that of the gateway that wrote the journal"
            )
        return self.utility_terms.one(
            i, int(self.begin[i]), self.policy, found, float(fit.labels), self.settings.personal
        )


class _LearningCandidate(RecomputedCandidate):
    """A learner at the start of its walk; it is copied for every one.

    Args:
        learner: fresh, or one that has learnt from what was before the log.
        journal: opens the journal that the log was made of.
        settings: what differs from the logged policy; without `personal`, the terms of role and user count.
        name: for reports.
        trained_until: the last moment that the learner has learnt from.
        config: whose learner it is, for JSON.
    """

    how = ""

    def __init__(
        self,
        learner: Learner,
        journal: Callable[[], AbstractContextManager[Journal]],
        settings: Settings,
        *,
        name: str = "",
        trained_until: float | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        start = f"from position {learner.seq}" if learner.seq else "from nothing"
        super().__init__(
            settings,
            name=name,
            trained_until=trained_until,
            words=f"{settings.words()}; learning {start} {self.how}",
            config={"learning": {**(config or {}), "digest": learner.digest()}},
        )
        self._begin, self._journal = learner, journal

    def _walk(self, log: Log, rows: Ints, meet: Callable[[_ReplayedLearner, int, Decision], bool | None]) -> Learner:
        """Let a copy of the learner walk through the journal, up to the last of these rows.

        Args:
            log: made of the journal.
            rows: draws, in the journal's order.
            meet: told of each; whether what becomes of it is learnt from, None to end.

        Raises:
            ConfigError: it has learnt from a row already, or the journal does not have one.
        """
        learner = copy.deepcopy(self._begin)
        early = rows[log.decisions.seq[rows] <= learner.seq]
        if len(early):
            raise ConfigError(
                f"snapshot: it has learnt up to position {learner.seq}, and {row_name(log, int(early[0]))} of "
                f"{log.source} is not after it; say an earlier 'until', or choose a later window"
            )
        agent = _ReplayedLearner(log, rows, self.settings, self.policy(log, rows), learner)
        left = set(agent.place)
        ended = False

        def told(event: Decision) -> bool | None:
            nonlocal ended
            i = agent.place.get(event.id, -1)
            if not left:
                return None
            left.discard(event.id)
            found = meet(agent, i, event)
            ended = found is None
            return found

        with self._journal() as journal:
            fold_selected(journal, learner, told)
        if left and not ended:
            row = rows[agent.place[min(left, key=lambda name: agent.place[name])]]
            raise ConfigError(f"snapshot: the journal does not hold {row_name(log, int(row))} of {log.source}")
        return learner


class ProgressiveCandidate(_LearningCandidate):
    """It learns from all that was logged, as it goes; a pmf at each draw, of what was known just before it.

    Doubly robust estimates are right for the policies that it was on its way; `biased` says what they are not.
    """

    how = "from all that was logged, as it goes"
    biased = (
        "the candidate learnt from every logged answer, also from those that it would not have chosen: what it would "
        "have learnt by itself is something else"
    )

    def pmf(self, log: Log, rows: Ints) -> Floats:
        """float64[m], flat over the entries of these rows; NaN in rows that are no draws.

        Raises:
            InvalidLog: the log does not say what is needed.
            ConfigError: the settings do not, or the journal is another one.
        """
        counts = np.diff(log.decisions.start)[rows]
        ends = np.cumsum(counts)
        probs = np.full(int(counts.sum()), np.nan)
        places = np.flatnonzero(drawn(log, rows))
        order = places[np.argsort(log.decisions.seq[rows[places]], kind="stable")]

        def meet(agent: _ReplayedLearner, i: int, event: Decision) -> bool:
            if i >= 0:
                at = order[i]
                probs[ends[at] - counts[at] : ends[at]] = agent.pmf(i, event)
            return True

        if len(order):
            self._walk(log, rows[order], meet)
        return probs


class RejectionCandidate(_LearningCandidate):
    """It meets the logged draws in their order and keeps those that could be its own; from these alone it learns.

    A draw of arm a is kept with probability c · π(a) / p(a): exactly what the candidate itself would have lived
    through, as long as that is never above 1. On a uniform log over K arms and c = 1 / K this is keeping what it would
    have drawn itself. c is a constant, so that no kind of request is kept more often than another. A session that was
    drawn again goes on only where all its earlier draws were kept; sticky turns live and go with their draw; what
    callers pinned is learnt from and does not count.

    It has no pmf for estimators: `replay` finds its value.

    Args:
        learner: fresh, or one that has learnt from what was before the log.
        journal: opens the journal that the log was made of.
        settings: what differs from the logged policy; without `personal`, the terms of role and user count.
        slice_only: meet the uniform slice's draws alone, whose p is 1 / K.
        c: acceptance; None for the smallest p of all draws met, which is never too large.
        quantile: above 0, c grows to this quantile of p / π over the draws met so far, where that is more (Dudík,
            Erhan, Langford and Li 2012, "Sample-efficient nonstationary policy evaluation for contextual bandits",
            Algorithm 1): it keeps more, and is a little biased.
        rounds: end after so many kept draws.
        seed: of its own draws.
        name: for reports.
        trained_until: the last moment that the learner has learnt from.
        config: whose learner it is, for JSON.

    Raises:
        ConfigError: c or quantile is out of range.
    """

    how = "from what it would have drawn itself"

    def __init__(
        self,
        learner: Learner,
        journal: Callable[[], AbstractContextManager[Journal]],
        settings: Settings,
        *,
        slice_only: bool = False,
        c: float | None = None,
        quantile: float = 0.0,
        rounds: int | None = None,
        seed: int = 0,
        name: str = "",
        trained_until: float | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        if c is not None and not 0.0 < c <= 1.0:
            raise ConfigError(f"c: {c!r} is not allowed; give an acceptance above 0, at most 1")
        if not 0.0 <= quantile < 1.0:
            raise ConfigError(f"quantile: {quantile!r} is not allowed; give 0, or a share below 1")
        how = {"slice_only": slice_only, "c": c, "quantile": quantile, "rounds": rounds, "seed": seed}
        own = {**(config or {}), **how}
        super().__init__(learner, journal, settings, name=name, trained_until=trained_until, config=own)
        self.slice_only, self.c, self.quantile, self.rounds, self.seed = slice_only, c, quantile, rounds, seed

    def pmf(self, log: Log, rows: Ints) -> Floats:  # noqa: ARG002 - of every candidate
        """It has none.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("learning: 'rejection' is replayed, it has no pmf; say 'progressive', or leave it a snapshot")

    def replay(
        self,
        log: Log,
        rows: Ints,
        y: Floats,
        *,
        seen: NDArray[np.bool_] | None = None,
        e: Floats | None = None,
        alpha: float = 0.05,
    ) -> RejectionResult:
        """Its value.

        Args:
            log: made of the journal.
            rows: decisions that count; of these, the draws are met.
            y: float64[n], outcome of each of the log's decisions; NaN where it was not seen.
            seen: bool[n]; None where y is a number.
            e: float64[n]: with what probability it was seen; None for 1.
            alpha: of the interval.

        Raises:
            InvalidLog: the log does not say what is needed.
            ConfigError: the settings do not, or the journal is another one.
        """
        met = rows[drawn(log, rows)]
        if self.slice_only:
            met = met[log.decisions.mode[met] == _UNIFORM]
        met = met[np.argsort(log.decisions.seq[met], kind="stable")]
        door = _AcceptanceSampler(log, met, self)
        learner = self._walk(log, met, door.meet) if len(met) else self._begin
        kept = met[np.array(door.kept, dtype=np.int64)]
        seen = np.isfinite(y) if seen is None else seen
        value, se = _mean(log, rows, kept, y, seen, np.ones(len(y)) if e is None else e)
        reach = NormalDist().inv_cdf(1.0 - alpha / 2.0) * se
        return RejectionResult(
            value=value,
            se=se,
            low=value - reach,
            high=value + reach,
            matched=len(kept),
            draws=door.met,
            labels=learner.fit.labels - self._begin.fit.labels,
            c=door.c,
            clipped=door.clipped / max(door.met, 1),
            kept=kept,
            biased=door.words(),
        )


class _AcceptanceSampler:
    """Lets draws in, with the probability at which they are the candidate's own."""

    def __init__(self, log: Log, rows: Ints, by: RejectionCandidate) -> None:
        self.by, self.rng = by, np.random.default_rng(by.seed)
        counts = np.diff(log.decisions.start)[rows]
        if by.slice_only:
            self._p = np.repeat(1.0 / counts, counts)
        else:
            self._p = per_entry(log, log.options.prob, rows, "the whole pmf ('probs')", "rejection replay needs it")
        self._begin = np.cumsum(counts) - counts
        self._chosen = log.decisions.chosen[rows] - log.decisions.start[rows]
        self._session, self._first = log.decisions.session[rows], log.decisions.begins[rows]
        self.c = float(by.c if by.c is not None else self._p.min(initial=1.0))
        self._least = self.c
        self._alive: dict[int, bool] = {}
        self._ratios: list[float] = []
        self._draws: set[str] = set()
        self.kept: list[int] = []
        self.met = self.clipped = 0

    def meet(self, agent: _ReplayedLearner, i: int, event: Decision) -> bool | None:
        """Whether what becomes of a decision is learnt from; None once there are enough."""
        if i < 0:
            return event.mode in {Mode.PINNED, Mode.FORCED} or event.draw_id in self._draws
        if self.by.rounds is not None and len(self.kept) >= self.by.rounds:
            return None
        session = int(self._session[i])
        if not self._first[i] and not self._alive.get(session, False):
            return False
        pmf = agent.pmf(i, event)
        p = self._p[self._begin[i] : self._begin[i] + len(pmf)]
        accepted = self.c * pmf / p
        chosen = int(self._chosen[i])
        keep = bool(self.rng.random() < accepted[chosen])
        self.met += 1
        self.clipped += bool(accepted.max() > 1.0 + 1e-9)
        self._alive[session] = keep
        if keep:
            self.kept.append(i)
            self._draws.add(event.id)
        if self.by.quantile and pmf[chosen] > 0.0:
            insort(self._ratios, float(p[chosen] / pmf[chosen]))
            self.c = min(max(self._least, self._ratios[int(self.by.quantile * len(self._ratios))]), 1.0)
        return keep

    def words(self) -> str:
        """Why the result is biased."""
        if not self.clipped:
            return ""
        return (
            f"at {self.clipped} of {self.met} draws the candidate wanted an arm more often than c lets in: it lived "
            "through somewhat fewer of those than it would have"
        )


def _mean(log: Log, rows: Ints, kept: Ints, y: Floats, seen: NDArray[np.bool_], e: Floats) -> tuple[float, float]:
    """Mean outcome of the kept draws, and its standard error, clustered by draw.

    A draw's outcome is the mean of the decisions on it. Of those that are seen with probability e only, each stands for
    1 / e, and the weights are normalised (Hájek 1971).
    """
    among = rows[np.isin(log.decisions.draw[rows], kept) & (e[rows] > 0.0)]
    draw = np.searchsorted(np.sort(kept), log.decisions.draw[among])
    size = np.bincount(draw, minlength=len(kept))
    weight = seen[among] / (e[among] * np.maximum(size[draw], 1))
    total = float(weight.sum())
    if total <= 0.0:
        return float("nan"), float("nan")
    outcome = np.where(seen[among], y[among], 0.0)
    value = float((weight * outcome).sum() / total)
    apart = np.bincount(draw, weights=weight * (outcome - value), minlength=len(kept))
    n = len(kept)
    se = float(np.sqrt(n / (n - 1) * (apart**2).sum()) / total) if n > 1 else float("nan")
    return value, se
