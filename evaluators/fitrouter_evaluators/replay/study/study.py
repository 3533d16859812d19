"""Study: one metric of two policies on one log, with shared nuisance models for estimates and sequences.

The outcome model and label predictions are trained twice: progressively (on units that had ended before each began),
for sequences and for logs of a learning policy; and cross-fitted, for estimates at one look if the logging policy does
not learn.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fitrouter.errors import InvalidLog
from fitrouter.types import Floats, Mode
from fitrouter_evaluators.replay.estimators.rounds import Rounds
from fitrouter_evaluators.replay.log.log import MODES, Ints, Log
from fitrouter_evaluators.replay.study.outcome_model import predict
from fitrouter_evaluators.replay.study.outcomes import logged_expectation, observe_metric, with_outcomes
from fitrouter_evaluators.replay.study.prediction_powered import (
    Sample,
    label_probabilities,
    labelled_sample,
    observed_means,
    powered_rewards,
    predict_labels,
    tune_predictions,
)
from fitrouter_evaluators.replay.study.pseudo_outcomes import PseudoOutcomes, pseudo_outcomes, rounds_of, subset
from fitrouter_evaluators.replay.study.units import Units

NON_LEARNING = frozenset({"uniform", "fixed"})
"""Algorithms that do not learn."""


class Pmfs(NamedTuple):
    """Two policies' probabilities on every entry of the log's options; NaN where not computed."""

    candidate: Floats
    against: Floats

    def select(self, units: Units) -> Pmfs:
        """Select the probabilities of the units, in the order of `Units.entries`."""
        entries = units.entries()
        return Pmfs(self.candidate[entries], self.against[entries])


class _NuisanceModels(NamedTuple):
    """Outcome model q, label predictions f, label probabilities."""

    q: Floats
    f: Floats
    chance: Floats


class Study:
    """A metric (one of `outcomes.METRICS`) under the candidate, under `against`, and their paired difference.

    The units are closed and mature; those without outcomes of the metric are left out. `pmfs` cover the whole log;
    `ceiling` is that of `outcomes.observe_metric`.
    """

    def __init__(self, units: Units, pmfs: Pmfs, metric: str, *, ceiling: float | None = None) -> None:
        self.observed = observe_metric(units.log, metric, ceiling=ceiling)
        self.metric, self.ceiling = metric, ceiling
        self.units = with_outcomes(units, self.observed)
        if not self.units.n:
            raise InvalidLog(
                f"{metric} is not known for any closed session of {units.log.source}: no rating was asked for"
                f"{_volunteered(units)}; set feedback.ask to 0.05 in the configuration and show the request to people, "
                "or widen the window; --metric cost and latency need no ratings"
            )
        self.pmfs = pmfs.select(self.units)
        self.weight = self.units.weights(self.pmfs.candidate)[1], self.units.weights(self.pmfs.against)[1]
        self.learns = learns(units.log)
        self._streams: dict[str, PseudoOutcomes] = {}

    @cached_property
    def progressive(self) -> _NuisanceModels:
        """Nuisance models for each unit, trained on the units that had ended before it began."""
        return self._learnt(adaptive=True)

    @cached_property
    def cross_fitted(self) -> _NuisanceModels:
        """Nuisance models for a single look: cross-fitted, or progressive if the logging policy learns."""
        return self.progressive if self.learns else self._learnt(adaptive=False)

    def _learnt(self, *, adaptive: bool) -> _NuisanceModels:
        units, observed = self.units, self.observed
        y, heard = observed_means(units, observed)
        q = predict(
            units,
            y,
            heard,
            expected=logged_expectation(units.log, self.metric),
            low=observed.low,
            high=observed.high,
            adaptive=adaptive,
        )
        return _NuisanceModels(
            q,
            predict_labels(units, observed, adaptive=adaptive),
            label_probabilities(units, observed, adaptive=adaptive),
        )

    @property
    def has_labels(self) -> bool:
        """Whether the metric depends on labels."""
        return self.observed.scale > 0.0

    def between(self, pmfs: Pmfs) -> Study:
        """Study two other policies with the same nuisance models."""
        found = Study(self.units, pmfs, self.metric, ceiling=self.ceiling)
        found.__dict__["cross_fitted"] = self.cross_fitted
        return found

    @property
    def complete(self) -> bool:
        """Whether every decision has its outcome, as in most logs of other programs: nobody had to be asked."""
        observed, member = self.observed, self.units.member
        return bool((observed.seen & (observed.e >= 1.0))[member].all())

    @property
    def labels(self) -> str:
        """Kind of outcomes that estimates use, "powered" or "observed"; see `PolicyEstimate.labels`."""
        return "powered" if self.has_labels and not self.complete else "observed"

    @cached_property
    def heard(self) -> int:
        """Number of units with an answer to a label request."""
        given = (self.observed.asked & self.observed.seen)[self.units.member]
        return int((self.units.total(given) > 0.0).sum())

    @cached_property
    def powered(self) -> tuple[Rounds, Rounds]:
        """Rounds of the candidate and of `against`, with prediction-powered or fully known outcomes."""
        learnt = self.cross_fitted
        found = []
        for pmf, weight in zip(self.pmfs, self.weight, strict=True):
            f = self._tuned(learnt, weight, adaptive=self.learns)
            reward = powered_rewards(self.units, self.observed, f, learnt.chance)
            found.append(rounds_of(self.units, pmf, learnt.q, reward))
        return found[0], found[1]

    @cached_property
    def paired(self) -> tuple[Rounds, Rounds]:
        """Rounds of the candidate and of `against` with the same outcomes, tuned for their difference."""
        learnt = self.cross_fitted
        f = self._tuned(learnt, self.weight[0] - self.weight[1], adaptive=self.learns)
        reward = powered_rewards(self.units, self.observed, f, learnt.chance)
        return self._both(reward)

    @cached_property
    def asked(self) -> tuple[tuple[Rounds, Rounds], NDArray[np.bool_]]:
        """Rounds of both policies from requested labels only, and a mask of the units that have one."""
        return self._sampled(labelled_sample(self.units, self.observed, self.cross_fitted.chance))

    @cached_property
    def naive(self) -> tuple[tuple[Rounds, Rounds], NDArray[np.bool_]]:
        """Rounds of both policies from all labels as if these were a random sample (biased), and the units' mask."""
        every = observe_metric(self.units.log, self.metric, stream="naive", ceiling=self.ceiling)
        return self._sampled(labelled_sample(self.units, every, (every.e[self.units.member] > 0.0).astype(np.float64)))

    def _sampled(self, sample: Sample) -> tuple[tuple[Rounds, Rounds], NDArray[np.bool_]]:
        one, other = (subset(each, sample.keep, sample.factor) for each in self._both(sample.reward))
        return (one, other), sample.keep

    def _both(self, reward: Floats) -> tuple[Rounds, Rounds]:
        one, other = (rounds_of(self.units, pmf, self.cross_fitted.q, reward) for pmf in self.pmfs)
        return one, other

    def _tuned(self, learnt: _NuisanceModels, weight: Floats, *, adaptive: bool) -> Floats:
        if not self.has_labels:
            return learnt.f
        return tune_predictions(self.units, self.observed, learnt.f, learnt.chance, weight=weight, adaptive=adaptive)

    def stream(self, policy: str) -> PseudoOutcomes:
        """Pseudo-outcomes of `candidate`, `against` or their `difference`, within bounds that are known beforehand."""
        if policy not in self._streams:
            one, other = self.pmfs
            u, v = self.weight
            terms = {"candidate": (one, None, u), "against": (other, None, v), "difference": (one, other, u - v)}
            self._streams[policy] = self._stream(*terms[policy])
        return self._streams[policy]

    def importance_weight(self, policy: str) -> Floats:
        """Importance weights of a policy, or the two policies' differences, for margins of non-response, float64[n]."""
        u, v = self.weight
        return {"candidate": u, "against": v, "difference": u - v}[policy]

    def _stream(self, pmf: Floats, other: Floats | None, weight: Floats) -> PseudoOutcomes:
        learnt = self.progressive
        f = self._tuned(learnt, weight, adaptive=True)
        return pseudo_outcomes(self.units, pmf, other, learnt.q, self.observed, f, learnt.chance)


def _volunteered(units: Units) -> str:
    """Volunteered labels by model, descriptive only."""
    outcomes, arms = units.log.outcomes, units.log.names.arms
    given = outcomes.free_label[units.member]
    there = ~np.isnan(given) & (outcomes.served[units.member] >= 0)
    if not there.any():
        return ""
    served, labels = outcomes.served[units.member][there], given[there]
    means = [(arms[k], float(labels[served == k].mean()), int((served == k).sum())) for k in np.unique(served)]
    shown = ", ".join(f"{arm} {mean:.2f} in {n}" for arm, mean, n in sorted(means, key=lambda each: -each[2])[:8])
    return (
        f", and the {len(labels):,} volunteered ones do not determine a level, because people rate more often when "
        f"they are annoyed (their means: {shown})"
    )


def learns(log: Log) -> bool:
    """Whether the logging policy may have learnt from the log."""
    decisions = log.decisions
    if decisions.algorithm is not None and set(decisions.algorithm) <= NON_LEARNING:
        return False
    drawn = decisions.draw == np.arange(decisions.n)
    return not bool((decisions.mode[drawn] == MODES.index(Mode.UNIFORM)).all())


def has_full_pmf(units: Units) -> NDArray[np.bool_]:
    """Units whose logged pmfs are known in full, bool[n]; imported logs may have only propensities."""
    known = ~np.isnan(units.log.options.prob[units.entries()])
    if known.all():
        return np.ones(units.n, dtype=bool)
    draws = np.logical_and.reduceat(known, units.entry_start()[:-1])
    return np.asarray(np.logical_and.reduceat(draws, units.draw_start[:-1]))


def in_uniform_slice(units: Units) -> Ints:
    """Units whose draws are all of the uniform slice, for rejection sampling, int64[…]."""
    drawn = units.log.decisions.mode[units.draw] == MODES.index(Mode.UNIFORM)
    return np.flatnonzero(np.logical_and.reduceat(drawn, units.draw_start[:-1])) if units.n else np.zeros(0, np.int64)
