"""Metrics: an outcome for each decision, its probability of being observed, and its range.

Human labels are rare and selected: only labels requested at random are unbiased. A missing answer is a known outcome.
Cost and latency are known for everything executed.
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

STREAMS = ("asked", "naive")
"""Which labels count: those of users asked at random, or all labels as if they were a random sample."""
UNANSWERED = ("failed", "refused", "rejected", "lost")
"""Statuses without an answer: the worst outcome, known without a label."""


class MetricOutcomes(NamedTuple):
    """Outcomes y = label + known of a log's n decisions; labels are in [0, 1]."""

    metric: str
    label: Floats
    """The part given by a label, float64[n]; 0 if unobserved."""
    known: Floats
    """The part known for every decision that counts, float64[n]."""
    certain: NDArray[np.bool_]
    """Known without a label, bool[n]."""
    asked: NDArray[np.bool_]
    """A label was requested, bool[n]."""
    seen: NDArray[np.bool_]
    """Certain, or requested and given, bool[n]."""
    e: Floats
    """Probability of the request, float64[n]; 1 if certain, 0 if the decision does not count."""
    low: float
    high: float
    """The range of y."""
    scale: float = 1.0
    """Scale of labels in the outcome; 0 for a metric without labels."""
    fixed: bool = True
    """The range was known before the log, as exact sequences require."""

    @property
    def y(self) -> Floats:
        """Outcomes, float64[n]; NaN if unobserved."""
        return np.where(self.seen, self.label + self.known, np.nan)

    @property
    def counts(self) -> NDArray[np.bool_]:
        """Decisions whose outcome could be observed, bool[n]."""
        return self.e > 0.0


def observe_metric(
    log: Log, metric: str = "fit", *, stream: str = "asked", ceiling: float | None = None
) -> MetricOutcomes:
    """The outcomes of a log's decisions.

    * ``fit``: human labels; an answer that never came is 0.
    * ``cost`` in USD and ``latency`` in s of what was executed; a lost answer costs nothing, and does not count for
    latency.
    * ``utility``: fit − cost_weight · cost / unit − latency_weight · latency / unit, with each decision's weights.
      The budget's dual variable is left out: it paces spending and is not a preference.
    * ``outcome``: how the decision's run ended, the same for all of its decisions; a silent run does not count.
    * ``score``: the reward model's mean, for inspection only.

    Args:
        log: with n decisions.
        metric: one of `METRICS`.
        stream: one of `STREAMS`, for fit and utility.
        ceiling: cap on a cost (USD), a latency (s), or the loss of utility to both. None: the largest in the log,
            for which exact sequences are not valid (`MetricOutcomes.fixed`).
    """
    if metric not in _METRICS:
        raise InvalidLog(f"there is no metric {metric!r}; use one of {', '.join(METRICS)}")
    if stream not in STREAMS:
        raise InvalidLog(f"there is no label stream {stream!r}; use one of {', '.join(STREAMS)}")
    if ceiling is not None and not 0.0 < ceiling < np.inf:
        raise InvalidLog(f"ceiling {ceiling!r}: it must be a positive number")
    return _METRICS[metric](log, stream, ceiling)


def with_outcomes(units: Units, observed: MetricOutcomes) -> Units:
    """The units with at least one decision that counts; the others are excluded."""
    counts = observed.counts[units.member]
    if counts.all():
        return units
    return units.select(units.total(counts) > 0.0, f"{observed.metric} not observable")


def logged_expectation(log: Log, metric: str = "fit") -> Floats | None:
    """Logged expectation of a metric at each entry of `Options`, float64[m], NaN where missing; None if not logged.

    The expected fit is the posterior mean times the arm's availability.
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
    asked_label, free_label = outcomes.asked_label, outcomes.free_label
    if stream == "asked":
        e = np.clip(_or(decisions.asked_probability, 0.0), 0.0, 1.0)
        asked, label = decisions.asked & (e > 0.0), asked_label
    else:
        e, asked = np.ones(decisions.n), np.ones(decisions.n, dtype=bool)
        label = np.where(np.isnan(asked_label), free_label, asked_label)
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
    """Build the outcomes of a metric that needs no labels, such as cost; NaN is unobserved."""
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
    if log.outcomes.assumed and not np.nansum(log.outcomes.cost_usd):
        raise InvalidLog(
            f"--metric cost: no cost is known: {log.outcomes.assumed} answers have no price; set `prices` of the models"
        )
    lost = (log.outcomes.status == "lost") & np.isnan(log.outcomes.cost_usd)
    return _amount("cost", np.where(lost, 0.0, log.outcomes.cost_usd), ceiling)


def _latency(log: Log, stream: str, ceiling: float | None) -> MetricOutcomes:  # noqa: ARG001 - nobody is asked
    return _amount("latency", log.outcomes.latency_s, ceiling)


def _outcome(log: Log, stream: str, ceiling: float | None) -> MetricOutcomes:  # noqa: ARG001 - runs are told of
    ended = log.outcomes.ended
    if ended is None or np.isnan(ended).all():
        raise InvalidLog(
            f"--metric outcome: no run of {log.source} has an outcome; report them (POST /v1/runs/ID/outcome)"
        )
    return _amount("outcome", ended, 1.0)


def _score(log: Log, stream: str, ceiling: float | None) -> MetricOutcomes:  # noqa: ARG001 - nobody is asked
    outcomes = log.outcomes
    least, most = float(np.nanmin(outcomes.score, initial=0.0)), float(np.nanmax(outcomes.score, initial=1.0))
    score = np.where(np.isin(outcomes.status, UNANSWERED), least, outcomes.score)
    fixed = least == 0.0 and most == 1.0
    shifted = _amount("score", score - least, most - least)
    return shifted._replace(known=shifted.known + least, low=least, high=most, fixed=fixed)


_METRICS: Mapping[str, Callable[[Log, str, float | None], MetricOutcomes]] = MappingProxyType(
    {"fit": _fit, "cost": _cost, "latency": _latency, "utility": _utility, "outcome": _outcome, "score": _score}
)
METRICS = tuple(_METRICS)
"""Metrics that can be evaluated."""


def _price(weight: Floats | None, unit: Floats | None, n: int) -> Floats:
    """Utility lost per USD, or per second, float64[n]."""
    price = np.zeros(n)
    if weight is not None and unit is not None:
        np.divide(_or(weight, 0.0), unit, out=price, where=unit > 0.0)
    return price


def _or(values: Floats, other: float) -> Floats:
    return np.where(np.isnan(values), other, values)
