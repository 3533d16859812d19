"""What a replay is about: one number a decision, how likely it was to be seen, and the range that it keeps.

Human labels are rare, and who is heard matters more than how many are: only those who were asked at random set a level.
An answer that never came is an outcome, and a known one. Cost and latency are known of everything that was executed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fitrouter.errors import InvalidLog
from fitrouter.types import Floats
from fitrouter_evaluators.replay.log.log import Log
from fitrouter_evaluators.replay.study.units import Units

STREAMS = ("asked", "volunteered", "naive")
"""Whose labels count: of people asked at random; of volunteers; of all alike, as if they were a random sample."""
UNANSWERED = ("failed", "lost")
"""Statuses of answers that never came: the worst outcome, known without asking."""


class MetricOutcomes(NamedTuple):
    """What is known of the n decisions of a log. Outcomes are y = label + known; labels are in [0, 1]."""

    metric: str
    label: Floats
    """float64[n]: the part that somebody has to be asked for; 0 where not seen."""
    known: Floats
    """float64[n]: the part that is known of every decision that counts."""
    certain: NDArray[np.bool_]
    """bool[n]: nobody has to be asked."""
    asked: NDArray[np.bool_]
    """bool[n]: somebody was."""
    seen: NDArray[np.bool_]
    """bool[n]: certain, or asked and answered."""
    e: Floats
    """float64[n]: probability of being asked; 1 where nobody has to be, 0 where the decision does not count."""
    low: float
    high: float
    """The range of y."""
    scale: float = 1.0
    """Of the labels: 0 for a metric that has none."""
    fixed: bool = True
    """The range was known before the log; exact sequences need that."""

    @property
    def y(self) -> Floats:
        """float64[n]: outcomes; NaN where not seen."""
        return np.where(self.seen, self.label + self.known, np.nan)

    @property
    def counts(self) -> NDArray[np.bool_]:
        """bool[n]: decisions that could be seen."""
        return self.e > 0.0


def observe_metric(
    log: Log, metric: str = "fit", *, stream: str = "asked", ceiling: float | None = None
) -> MetricOutcomes:
    """The outcomes of a log's decisions.

    * ``fit``: people's verdicts. An answer that never came is 0.
    * ``cost`` in USD and ``latency`` in s of what was executed; a lost answer cost nothing, and how long it took is not
      known: it does not count for latency.
    * ``utility``: fit − cost_weight · cost / unit − latency_weight · latency / unit, with the weights of each decision.
      What the budget's dual variable adds is left out: it is a means of pacing, and no preference.
    * ``score``: the reward model's mean. For looking: it is no outcome.

    Args:
        log: with n decisions.
        metric: one of `METRICS`.
        stream: one of `STREAMS`, for fit and utility.
        ceiling: the most that counts of a cost (USD), a latency (s), or of what a utility loses by both; more is cut.
            None: the largest in the log, for which exact sequences do not hold (`MetricOutcomes.fixed`).

    Raises:
        InvalidLog: no such metric or stream, or a label outside [0, 1].
    """
    if metric not in _METRICS:
        raise InvalidLog(f"metric {metric!r}: there is none of this name; use one of {', '.join(METRICS)}")
    if stream not in STREAMS:
        raise InvalidLog(f"labels {stream!r}: there is no such stream; use one of {', '.join(STREAMS)}")
    if ceiling is not None and not 0.0 < ceiling < np.inf:
        raise InvalidLog(f"ceiling {ceiling!r}: it has to be a positive number")
    return _METRICS[metric](log, stream, ceiling)


def with_outcomes(units: Units, observed: MetricOutcomes) -> Units:
    """The units with at least one decision that counts; the others are counted as excluded."""
    counts = observed.counts[units.member]
    if counts.all():
        return units
    return units.select(units.total(counts) > 0.0, f"nothing could be known of their {observed.metric}")


def logged_expectation(log: Log, metric: str = "fit") -> Floats | None:
    """float64[m]: what was expected of a metric at the time, for each entry of `Options`; None where nothing is logged.

    The fit is that of an arm times the probability that it answers. NaN where a row has none.
    """
    options, decisions = log.options, log.decisions
    if metric in {"cost", "latency"}:
        return options.cost if metric == "cost" else options.latency
    if metric == "score" or options.mean is None:
        return None
    mean = options.mean if options.availability is None else options.mean * _or(options.availability, 1.0)
    if metric == "fit":
        return mean
    burden = np.zeros(len(mean))
    terms = (
        (options.cost, decisions.cost_weight, decisions.cost_unit_usd),
        (options.latency, decisions.latency_weight, decisions.latency_unit_s),
    )
    for amount, weight, unit in terms:
        if amount is not None:
            burden += np.repeat(_price(weight, unit, decisions.n), np.diff(decisions.start)) * _or(amount, 0.0)
    return mean - burden


def _fit(log: Log, stream: str, ceiling: float | None) -> MetricOutcomes:  # noqa: ARG001 - fit has its range
    decisions, outcomes = log.decisions, log.outcomes
    asked_label, free_label = _verdicts(log, outcomes.asked_label), _verdicts(log, outcomes.free_label)
    if stream == "asked":
        e = np.clip(_or(decisions.asked_probability, 0.0), 0.0, 1.0)
        asked, label = decisions.asked & (e > 0.0), asked_label
    else:
        e, asked = np.ones(decisions.n), np.ones(decisions.n, dtype=bool)
        label = free_label if stream == "volunteered" else np.where(np.isnan(asked_label), free_label, asked_label)
    never = np.isin(outcomes.status, UNANSWERED)
    return MetricOutcomes(
        metric="fit",
        label=np.where(never | ~asked, 0.0, _or(label, 0.0)),
        known=np.zeros(decisions.n),
        certain=never,
        asked=asked & ~never,
        seen=(asked & ~np.isnan(label)) | never,
        e=np.where(never, 1.0, e),
        low=0.0,
        high=1.0,
    )


def _utility(log: Log, stream: str, ceiling: float | None) -> MetricOutcomes:
    decisions, outcomes = log.decisions, log.outcomes
    cost = _price(decisions.cost_weight, decisions.cost_unit_usd, decisions.n) * _or(outcomes.cost_usd, 0.0)
    wait = _price(decisions.latency_weight, decisions.latency_unit_s, decisions.n) * _or(outcomes.latency_s, 0.0)
    most = float((cost + wait).max(initial=0.0)) if ceiling is None else ceiling
    # Where nothing has a price, the range is that of fit.
    fixed = ceiling is not None or not (cost + wait).any()
    fit = _fit(log, stream, None)
    return fit._replace(metric="utility", known=-np.minimum(cost + wait, most), low=-most, fixed=fixed)


def _amount(name: str, values: Floats, ceiling: float | None) -> MetricOutcomes:
    """An amount that is known where it is not NaN."""
    most = float(np.nanmax(values, initial=0.0)) if ceiling is None else ceiling
    there = ~np.isnan(values)
    return MetricOutcomes(
        metric=name,
        label=np.zeros(len(values)),
        known=np.clip(_or(values, 0.0), 0.0, most),
        certain=there,
        asked=np.zeros(len(values), dtype=bool),
        seen=there,
        e=there.astype(np.float64),
        low=0.0,
        high=most if most > 0.0 else 1.0,
        scale=0.0,
        fixed=ceiling is not None,
    )


def _cost(log: Log, stream: str, ceiling: float | None) -> MetricOutcomes:  # noqa: ARG001 - nobody is asked
    lost = (log.outcomes.status == "lost") & np.isnan(log.outcomes.cost_usd)
    return _amount("cost", np.where(lost, 0.0, log.outcomes.cost_usd), ceiling)


def _latency(log: Log, stream: str, ceiling: float | None) -> MetricOutcomes:  # noqa: ARG001 - nobody is asked
    return _amount("latency", log.outcomes.latency_s, ceiling)


def _score(log: Log, stream: str, ceiling: float | None) -> MetricOutcomes:  # noqa: ARG001 - nobody is asked
    outcomes = log.outcomes
    least, most = float(np.nanmin(outcomes.score, initial=0.0)), float(np.nanmax(outcomes.score, initial=1.0))
    score = np.where(np.isin(outcomes.status, UNANSWERED), least, outcomes.score)
    fixed = least == 0.0 and most == 1.0
    shifted = _amount("score", score - least, most - least)
    return shifted._replace(known=shifted.known + least, low=least, high=most, fixed=fixed)


_METRICS: Mapping[str, Callable[[Log, str, float | None], MetricOutcomes]] = MappingProxyType(
    {"fit": _fit, "cost": _cost, "latency": _latency, "utility": _utility, "score": _score}
)
METRICS = tuple(_METRICS)
"""What a replay can be about."""


def _verdicts(log: Log, values: Floats) -> Floats:
    wrong = np.flatnonzero((values < 0.0) | (values > 1.0))
    if len(wrong):
        row = int(log.decisions.seq[wrong[0]])
        raise InvalidLog(f"{log.source}, row {row}: a label of {values[wrong[0]]}; labels have to be in [0, 1]")
    return values


def _price(weight: Floats | None, unit: Floats | None, n: int) -> Floats:
    """float64[n]: fit that one USD, or one second, takes away; 0 where it has no price."""
    price = np.zeros(n)
    if weight is not None and unit is not None:
        np.divide(_or(weight, 0.0), unit, out=price, where=unit > 0.0)
    return price


def _or(values: Floats, other: float) -> Floats:
    return np.where(np.isnan(values), other, values)
