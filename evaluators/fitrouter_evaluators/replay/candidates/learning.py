"""Candidates that learn during the replay.

What a learning policy does depends on what its earlier choices returned. There are three ways to evaluate one:

* `SnapshotCandidate`: frozen, evaluated like any fixed policy (the default);
* `RejectionCandidate`: meets the logged draws in order, accepts those that it would have made itself, and learns from
  these alone (Li, Chu, Langford and Wang 2011, "Unbiased offline evaluation of contextual-bandit-based news article
  recommendation algorithms", Algorithm 1);
* `ProgressiveCandidate`: learns from everything that was logged and is evaluated as it goes. It uses all decisions,
  but learns from other data than it would have collected: biased, and marked as such.
"""

from __future__ import annotations

import copy
from bisect import insort
from collections.abc import Callable
from contextlib import AbstractContextManager
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fitrouter.errors import ConfigError
from fitrouter.plain import unpack
from fitrouter.policies import Policy
from fitrouter.state.learner import Learner
from fitrouter.stores.journal import Journal
from fitrouter.types import Decision, Floats, Mode
from fitrouter_evaluators.replay.candidates._journal import fold_selected
from fitrouter_evaluators.replay.candidates._log_columns import drawn, per_entry, row_name
from fitrouter_evaluators.replay.candidates._mixture import Mixture
from fitrouter_evaluators.replay.candidates._recomputed import RecomputedCandidate
from fitrouter_evaluators.replay.candidates._settings import Settings
from fitrouter_evaluators.replay.candidates._utility import UtilityTerms, utility_terms
from fitrouter_evaluators.replay.log.log import MODES, Ints, Log

_UNIFORM = MODES.index(Mode.UNIFORM)


class RejectionResult(NamedTuple):
    """Result of rejection sampling."""

    value: float
    """Mean outcome of the accepted draws; a draw's outcome is the mean over its decisions."""
    se: float
    low: float
    high: float
    """Limits at one look, clustered by draw; NaN with fewer than two draws."""
    matched: int
    """Accepted draws."""
    draws: int
    """Draws met."""
    labels: int
    """Labels learnt."""
    c: float
    """Acceptance constant at the end: a draw is accepted with probability c · π / p."""
    clipped: float
    """Share of the draws met at which c · π / p was above 1 for some arm."""
    kept: Ints
    """Rows of the accepted draws, in order."""
    biased: str
    """Why the value is biased; empty if it is not."""


class _ReplayedLearner:
    """A learner as it is folded during a replay, with its policy at the logged draws."""

    def __init__(self, log: Log, rows: Ints, settings: Settings, policy: Policy, learner: Learner) -> None:
        self.settings, self.policy, self.learner = settings, policy, learner
        self.place = {str(name): i for i, name in enumerate(log.decisions.id[rows])}
        """Decision id → place among the rows."""
        self.utility_terms: UtilityTerms = utility_terms(log, rows, settings, Mixture(log, settings))
        self.begin = np.cumsum(self.utility_terms.counts) - self.utility_terms.counts

    def pmf(self, i: int, event: Decision) -> Floats:
        """Compute the pmf at the i-th row, before anything of that row is learnt, float64[K]."""
        fit, x = self.learner.of(event.identity.tenant).fit, unpack(event.features)
        if len(x) == 0:  # the router failed, and no policy was asked
            found = None
        elif len(x) == fit.d:
            found = fit.estimate(event.identity, x, event.eligible, event.ts)
        else:
            raise ConfigError(
                f"snapshot: its context has {fit.d} features, and that of decision {event.id!r} has {len(x)}; name the "
                "configuration of the gateway that wrote the journal"
            )
        return self.utility_terms.decision_pmf(
            i, int(self.begin[i]), self.policy, found, float(fit.labels), self.settings.personal
        )


class _LearningCandidate(RecomputedCandidate):
    """Base of learning candidates; their learner (blank or trained before the log) is copied for every replay."""

    how = ""

    def __init__(
        self, learner: Learner, journal: Callable[[], AbstractContextManager[Journal]], settings: Settings
    ) -> None:
        start = f"position {learner.seq} of the journal" if learner.seq else "scratch"
        super().__init__(settings, f"{settings.description()}; learning from {start} {self.how}")
        self._begin, self._journal = learner, journal

    def _replay(self, log: Log, rows: Ints, meet: Callable[[_ReplayedLearner, int, Decision], bool | None]) -> Learner:
        """Fold a copy of the learner over the journal, up to the last of these draws (in journal order).

        `meet` is called with each decision (row −1: not among the draws) and returns whether to learn from it, None
        to end.
        """
        learner = copy.deepcopy(self._begin)
        early = rows[log.decisions.seq[rows] <= learner.seq]
        if len(early):
            raise ConfigError(
                f"snapshot: it was trained up to position {learner.seq}, which is not before "
                f"{row_name(log, int(early[0]))} of {log.source}; give an earlier 'until', or choose a later window"
            )
        agent = _ReplayedLearner(log, rows, self.settings, self.policy(log, rows), learner)
        left = set(agent.place)
        ended = False

        def accept(event: Decision) -> bool | None:
            nonlocal ended
            i = agent.place.get(event.id, -1)
            if not left:
                return None
            left.discard(event.id)
            found = meet(agent, i, event)
            ended = found is None
            return found

        with self._journal() as journal:
            fold_selected(journal, learner, accept)
        if left and not ended:
            row = rows[agent.place[min(left, key=lambda name: agent.place[name])]]
            raise ConfigError(f"snapshot: the journal does not hold {row_name(log, int(row))} of {log.source}")
        return learner


class ProgressiveCandidate(_LearningCandidate):
    """Candidate that learns from everything logged; the pmf at each draw uses what was known just before it.

    Doubly robust estimates are valid for the sequence of policies it went through; `biased` says why that sequence
    differs from the candidate's own.
    """

    how = "from every logged decision"
    biased = (
        "the candidate learns from every logged answer, including those it would not have chosen, so it learns from "
        "other data than it would have collected itself"
    )

    def pmf(self, log: Log, rows: Ints) -> Floats:
        """Replay the log and compute the pmf at each draw, float64[m]; NaN in rows that are not draws."""
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
            self._replay(log, rows[order], meet)
        return probs


class RejectionCandidate(_LearningCandidate):
    """Candidate that visits the draws in order, accepts those it could have made, and learns from these only.

    A draw of arm a is accepted with probability c · π(a) / p(a): the accepted history is distributed as the
    candidate's own, as long as that is never above 1. On a uniform log over K arms c = 1 / K accepts what the
    candidate itself would have drawn. c is constant so that no kind of request is over-represented. A redrawn
    session goes on only if all its earlier draws were accepted; sticky turns follow their draw; pinned requests are
    learnt from but not counted.

    It has no pmf for estimators: `replay` computes its value.

    Args:
        learner: blank, or trained on data before the log.
        journal: opens the journal that the log was made from.
        settings: changes; without `personal`, the user and role terms are used.
        slice_only: use only draws of the uniform slice, where p is 1 / K.
        c: acceptance constant; None: the smallest p of all draws met, which is never too large.
        quantile: above 0, c grows to this quantile of p / π over the draws met so far (Dudík, Erhan, Langford and Li
            2012, "Sample-efficient nonstationary policy evaluation for contextual bandits", Algorithm 1): more draws
            are accepted, with a small bias.
        rounds: end after this many accepted draws.
        seed: of the acceptance draws.
    """

    how = "from the draws that it accepts"

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
    ) -> None:
        if c is not None and not 0.0 < c <= 1.0:
            raise ConfigError(f"c: {c!r} is not allowed; give an acceptance above 0, at most 1")
        if not 0.0 <= quantile < 1.0:
            raise ConfigError(f"quantile: {quantile!r} is not allowed; give 0, or a share below 1")
        super().__init__(learner, journal, settings)
        self.slice_only, self.c, self.quantile, self.rounds, self.seed = slice_only, c, quantile, rounds, seed

    def pmf(self, log: Log, rows: Ints) -> Floats:  # noqa: ARG002 - of every candidate
        """Raise ConfigError: this candidate has no pmf."""
        raise ConfigError("learning: 'rejection' has no pmf; set 'progressive', or leave 'learning' out for a snapshot")

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
        """Replay the log and estimate the value of the candidate.

        Args:
            log: made from the journal.
            rows: decisions that count; the draws among them are met.
            y: float64[n], outcome of each decision; NaN if unobserved.
            seen: bool[n], observed; None: where y is a number.
            e: float64[n], probability of observation; None: 1.
            alpha: error probability of the interval.
        """
        met = rows[drawn(log, rows)]
        if self.slice_only:
            met = met[log.decisions.mode[met] == _UNIFORM]
        met = met[np.argsort(log.decisions.seq[met], kind="stable")]
        sampler = _AcceptanceSampler(log, met, self)
        learner = self._replay(log, met, sampler.meet) if len(met) else self._begin
        kept = met[np.array(sampler.kept, dtype=np.int64)]
        seen = np.isfinite(y) if seen is None else seen
        value, se = _mean(log, rows, kept, y, seen, np.ones(len(y)) if e is None else e)
        reach = NormalDist().inv_cdf(1.0 - alpha / 2.0) * se
        return RejectionResult(
            value=value,
            se=se,
            low=value - reach,
            high=value + reach,
            matched=len(kept),
            draws=sampler.met,
            labels=_labels(learner) - _labels(self._begin),
            c=sampler.c,
            clipped=sampler.clipped / max(sampler.met, 1),
            kept=kept,
            biased=sampler.bias(),
        )


def _labels(learner: Learner) -> int:
    return sum(part.fit.labels for part in learner.parts())


class _AcceptanceSampler:
    def __init__(self, log: Log, rows: Ints, by: RejectionCandidate) -> None:
        self.by, self.rng = by, np.random.default_rng(by.seed)
        counts = np.diff(log.decisions.start)[rows]
        if by.slice_only:
            self._p = np.repeat(1.0 / counts, counts)
        else:
            self._p = per_entry(log, log.options.prob, rows, "the full pmf ('probs')", "rejection replay needs it")
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
        """Decide whether to accept a decision and learn from it; None once enough draws are accepted."""
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

    def bias(self) -> str:
        """Reason why the result is biased; empty if it is not."""
        if not self.clipped:
            return ""
        return (
            f"at {self.clipped} of {self.met} draws the acceptance probability c · π / p of some arm was above 1 and "
            "was clipped, so such draws are under-represented"
        )


def _mean(log: Log, rows: Ints, kept: Ints, y: Floats, seen: NDArray[np.bool_], e: Floats) -> tuple[float, float]:
    """Mean outcome of the accepted draws and its standard error, clustered by draw.

    A draw's outcome is the mean over its decisions; those observed with probability e have weight 1 / e, normalised
    (Hájek 1971).
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
