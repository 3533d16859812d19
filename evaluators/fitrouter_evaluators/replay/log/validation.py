"""Would this log give right numbers? What its rows say of themselves, in whatever form they came.

`fitrouter_evaluators.replay.log.audit` asks the other question: whether the probabilities are those of the draws.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fitrouter_evaluators.replay.log.log import DRAWN, MODES, Log
from fitrouter_evaluators.replay.log.refusals import refuse, refuse_where

TOLERANCE = 1e-9
"""How far a propensity may be from the logged probability, and a sum from 1."""

_STICKY = MODES.index("sticky")


def validate(log: Log) -> None:
    """Look at every row.

    A log that knows only the propensities of what was chosen has NaN for the whole of a decision's pmf; a pmf that is
    there must be one.

    Raises:
        InvalidLog: the first row that breaks a rule: its number and decision id, what it holds, what is allowed.
    """
    decisions = log.decisions
    if not decisions.n:
        refuse(log.source, "it holds no decision", "give a log, or a window, in which decisions were made")
    _identities(log)
    _probabilities(log)
    _sessions(log)
    _outcomes(log)


def drawn(log: Log) -> NDArray[np.bool_]:
    """bool[n]: the decisions whose arm was drawn."""
    return np.isin(log.decisions.mode, [MODES.index(mode) for mode in DRAWN])


def _identities(log: Log) -> None:
    decisions = log.decisions
    if len(set(decisions.id.tolist())) < decisions.n:
        first = {name: row for row, name in reversed(list(enumerate(decisions.id.tolist())))}
        again = np.array([first[name] < row for row, name in enumerate(decisions.id.tolist())])
        refuse_where(log, again, "the decision is there already", "leave the copy out: it would count twice")
    refuse_where(
        log,
        np.diff(decisions.start) < 1,
        "no arm is eligible",
        "a decision is among at least one arm",
    )
    refuse_where(
        log, ~np.isfinite(decisions.ts), lambda row: f"ts is {decisions.ts[row]}", "allowed are finite seconds"
    )


def _probabilities(log: Log) -> None:
    decisions, prob, start = log.decisions, log.options.prob, log.decisions.start
    was_drawn = drawn(log)
    refuse_where(
        log,
        was_drawn & (decisions.chosen < 0),
        "the chosen arm is not among the eligible",
        "an arm is drawn among the eligible: log all arms that could have been drawn",
    )
    unknown = log.per_row(np.isnan(prob).astype(np.float64))
    missing = unknown == np.diff(start)
    inside = np.where(np.isnan(prob), True, (prob >= 0.0) & (prob <= 1.0))

    def pmf(row: int) -> str:
        return f"probs are {prob[start[row] : start[row + 1]].tolist()}"

    refuse_where(
        log,
        (unknown > 0) & ~missing,
        pmf,
        "a pmf is there as a whole or not at all: log the whole vector",
    )
    refuse_where(
        log, log.per_row((~inside).astype(np.float64)) > 0, pmf, "allowed are numbers from 0 to 1: log them unrounded"
    )
    sums = log.per_row(prob)
    refuse_where(
        log,
        ~missing & ~(np.abs(sums - 1.0) <= TOLERANCE),
        lambda row: f"{pmf(row)}, and their sum is {float(sums[row])!r}",
        f"it must be 1 within {TOLERANCE:g}: log the probabilities unrounded, over all eligible arms",
    )
    propensity = decisions.propensity
    refuse_where(
        log,
        was_drawn & ~((propensity > 0.0) & (propensity <= 1.0)),
        lambda row: f"it was drawn, and its propensity is {float(propensity[row])!r}",
        "what was drawn had a probability above 0 and up to 1: log the one that it was drawn with",
    )
    logged = prob[np.maximum(decisions.chosen, 0)]
    refuse_where(
        log,
        was_drawn & ~missing & ~(np.abs(propensity - logged) <= TOLERANCE),
        lambda row: f"the propensity is {float(propensity[row])!r}, and probs has {float(logged[row])!r} for the arm",
        f"they are one number, within {TOLERANCE:g}: the pmf that is logged must be the one that was drawn from",
    )


def _sessions(log: Log) -> None:
    """Turns that kept their session's model: any other would be a switch without a probability."""
    decisions, arm = log.decisions, log.options.arm
    lives = np.flatnonzero((decisions.mode == _STICKY) & (decisions.draw >= 0))
    on = decisions.draw[lives]
    was_drawn = drawn(log)

    def each(broken: NDArray[np.bool_]) -> NDArray[np.bool_]:
        rows = np.zeros(decisions.n, dtype=np.bool_)
        rows[lives[broken]] = True
        return rows

    refuse_where(
        log,
        was_drawn & (decisions.draw != np.arange(decisions.n)),
        "it was drawn, and lives on another decision's draw",
        "a draw lives on itself: a turn that kept its session's model has the mode sticky",
    )
    refuse_where(
        log,
        each(~was_drawn[on]),
        lambda row: f"it is sticky, and its draw {decisions.id[decisions.draw[row]]!r} was none",
        "a sticky turn names the decision that drew its session's model",
    )
    refuse_where(
        log,
        each((decisions.session[on] != decisions.session[lives]) | (decisions.tenant[on] != decisions.tenant[lives])),
        lambda row: f"it is sticky, and its draw {decisions.id[decisions.draw[row]]!r} belongs to another session",
        "a sticky turn lives on its own session's draw",
    )

    def named(row: int) -> str:
        at = int(decisions.chosen[row])
        return repr(log.names.arms[int(arm[at])]) if at >= 0 else "none of the eligible"

    refuse_where(
        log,
        each(_chosen(log, lives) != _chosen(log, on)),
        lambda row: (
            f"it is sticky with the arm {named(row)}, and its draw {decisions.id[decisions.draw[row]]!r} chose "
            f"{named(int(decisions.draw[row]))}"
        ),
        "a session keeps the model of its draw: a switch is a draw, with a pmf of its own, or replay is biased",
    )


def _chosen(log: Log, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64: codes of the arms chosen in these rows, −1 where it is not among the eligible."""
    at = log.decisions.chosen[rows]
    codes: NDArray[np.int64] = np.where(at >= 0, log.options.arm[np.maximum(at, 0)], -1)
    return codes


def _outcomes(log: Log) -> None:
    decisions, outcomes = log.decisions, log.outcomes
    asked, rate = decisions.asked, decisions.asked_probability
    refuse_where(
        log,
        ~((rate >= 0.0) & (rate <= 1.0)) | (asked & ~(rate > 0.0)),
        lambda row: f"asked is {bool(asked[row])} and asked_probability is {float(rate[row])!r}",
        "it lies on [0, 1], and above 0 where somebody was asked: log the probability that was drawn with",
    )
    for name, label in (("asked", outcomes.asked_label), ("volunteered", outcomes.free_label)):
        refuse_where(
            log,
            ~(np.isnan(label) | ((label >= 0.0) & (label <= 1.0))),
            lambda row, name=name, label=label: f"the {name} label is {float(label[row])!r}",  # type: ignore[misc]
            "a verdict lies on [0, 1]: put it onto its scale",
        )
    refuse_where(
        log,
        ~np.isnan(outcomes.asked_label) & ~asked,
        "its vote says that it was asked for, and the decision did not ask",
        "a vote is asked for where its decision was, at random: else it is volunteered",
    )
    for name, column in (("cost_usd", outcomes.cost_usd), ("latency_s", outcomes.latency_s), ("score", outcomes.score)):
        refuse_where(
            log,
            np.isinf(column),
            lambda row, name=name, column=column: f"{name} is {float(column[row])!r}",  # type: ignore[misc]
            "allowed are finite numbers: correct the row, or leave its session out",
        )
