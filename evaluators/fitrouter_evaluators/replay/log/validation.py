"""Checks the values of a log, whatever it was read from: probabilities, sticky turns and label requests.

`_constraints` has checked the tables before; `fitrouter_evaluators.replay.log.audit` tests whether the logged
probabilities are those of the draws.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fitrouter_evaluators.replay.log.log import MODES, Log, is_drawn, refuse_where

TOLERANCE = 1e-9
"""Allowed difference between a propensity and the logged probability, and between a sum of probabilities and 1."""

_STICKY = MODES.index("sticky")


def validate(log: Log) -> None:
    """Check every row of a log with at least one decision."""
    _check_probabilities(log)
    _check_sessions(log)
    _check_labels(log)


def _check_probabilities(log: Log) -> None:
    decisions, prob, start = log.decisions, log.options.prob, log.decisions.start
    drawn = is_drawn(decisions.mode)
    unknown = log.per_row(np.isnan(prob).astype(np.float64))
    missing = unknown == np.diff(start)  # imported logs may have only the propensity of the chosen arm
    inside = np.where(np.isnan(prob), True, (prob >= 0.0) & (prob <= 1.0))

    def pmf(row: int) -> str:
        return f"probs are {prob[start[row] : start[row + 1]].tolist()}"

    refuse_where(log, (unknown > 0) & ~missing, pmf, "log either the full vector of probabilities or none")
    refuse_where(
        log,
        log.per_row((~inside).astype(np.float64)) > 0,
        pmf,
        "each must be between 0 and 1: log probabilities unrounded",
    )
    sums = log.per_row(prob)
    refuse_where(
        log,
        ~missing & ~(np.abs(sums - 1.0) <= TOLERANCE),
        lambda row: f"{pmf(row)}, and their sum is {float(sums[row])!r}",
        f"the sum must be 1 within {TOLERANCE:g}: log the probabilities unrounded, over all eligible arms",
    )
    propensity = decisions.propensity
    refuse_where(
        log,
        drawn & ~((propensity > 0.0) & (propensity <= 1.0)),
        lambda row: f"the propensity of its draw is {float(propensity[row])!r}",
        "it must be above 0, up to 1: log the probability with which the arm was drawn",
    )
    logged = prob[np.maximum(decisions.chosen, 0)]
    refuse_where(
        log,
        drawn & ~missing & ~(np.abs(propensity - logged) <= TOLERANCE),
        lambda row: f"the propensity is {float(propensity[row])!r}, and probs has {float(logged[row])!r} for the arm",
        f"they must be equal within {TOLERANCE:g}: log the pmf that the arm was drawn from",
    )


def _check_sessions(log: Log) -> None:
    """Check that sticky turns keep the arm of their session's draw; another arm would have no known probability."""
    decisions, arm = log.decisions, log.options.arm
    turns = np.flatnonzero((decisions.mode == _STICKY) & (decisions.draw >= 0))
    on = decisions.draw[turns]

    def each(broken: NDArray[np.bool_]) -> NDArray[np.bool_]:
        rows = np.zeros(decisions.n, dtype=np.bool_)
        rows[turns[broken]] = True
        return rows

    def draw_of(row: int) -> str:
        return f"its draw {decisions.id[decisions.draw[row]]!r}"

    refuse_where(
        log,
        each(~is_drawn(decisions.mode)[on]),
        lambda row: f"it is sticky, and {draw_of(row)} is not a draw",
        "a sticky turn must name the decision that drew its session's arm",
    )
    refuse_where(
        log,
        each((decisions.session[on] != decisions.session[turns]) | (decisions.tenant[on] != decisions.tenant[turns])),
        lambda row: f"it is sticky, and {draw_of(row)} belongs to another session",
        "a sticky turn must name a draw of its own session",
    )

    def chosen(row: int) -> str:
        return repr(log.names.arms[int(arm[decisions.chosen[row]])])

    refuse_where(
        log,
        each(arm[decisions.chosen[turns]] != arm[decisions.chosen[on]]),
        lambda row: f"it is sticky with the arm {chosen(row)}, and {draw_of(row)} chose {chosen(decisions.draw[row])}",
        "a session keeps the arm of its draw; log a change of arm as a draw with its own pmf, or replay is biased",
    )


def _check_labels(log: Log) -> None:
    asked, rate = log.decisions.asked, log.decisions.asked_probability
    refuse_where(
        log,
        ~((rate >= 0.0) & (rate <= 1.0)) | (asked & ~(rate > 0.0)),
        lambda row: f"asked is {bool(asked[row])} and asked_probability is {float(rate[row])!r}",
        "it must be between 0 and 1, and above 0 where feedback was requested: log the probability of the request",
    )
    refuse_where(
        log,
        ~np.isnan(log.outcomes.asked_label) & ~asked,
        "its vote is marked as asked, and its decision did not request feedback",
        "only votes on decisions that requested feedback are asked; log the vote as volunteered",
    )
