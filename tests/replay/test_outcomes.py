"""What a replay is about: one number a decision, how likely it was to be seen, and the range that it keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.kits.replay_logs import STICKY, make_log

from fitrouter.errors import InvalidLog
from fitrouter_evaluators.replay.log.log import Log
from fitrouter_evaluators.replay.study.outcomes import (
    METRICS,
    STREAMS,
    logged_expectation,
    observe_metric,
    with_outcomes,
)
from fitrouter_evaluators.replay.study.units import closed_units

nan = np.nan


def log_of(n: int = 6, **outcomes: Any) -> Log:
    """Six decisions over two arms; the second half was not asked, the last could not have been."""
    decisions = {
        "asked": np.array([True, True, True, False, False, False]),
        "asked_probability": np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.0]),
        "cost_weight": np.array([0.5, 0.5, 0.5, 0.0, nan, 0.5]),
        "cost_unit_usd": np.array([0.01, 0.01, 0.02, 0.01, 0.01, 0.0]),
        "latency_weight": np.full(n, 0.1),
        "latency_unit_s": np.full(n, 10.0),
    }
    columns = {
        "asked_label": np.array([1.0, 0.5, nan, nan, nan, nan]),
        "free_label": np.array([0.0, nan, 0.25, nan, 1.0, nan]),
        "cost_usd": np.array([0.01, 0.02, 0.03, nan, 0.5, 0.0]),
        "latency_s": np.array([1.0, 2.0, 30.0, nan, 5.0, 0.5]),
        **{name: np.array(values, dtype=object if name == "status" else float) for name, values in outcomes.items()},
    }
    options = {"mean": np.full((n, 2), 0.6), "availability": np.full((n, 2), 0.5), "cost": np.full((n, 2), 0.02)}
    return make_log(
        np.full((n, 2), 0.5), np.zeros(n, dtype=int), decisions=decisions, options=options, outcomes=columns
    )


def test_fit_is_what_people_said_who_were_asked_at_random() -> None:
    """Each with the probability of being asked; volunteers do not count, nor do decisions that could not be asked."""
    found = observe_metric(log_of())
    assert found.asked.tolist() == [True, True, True, False, False, False]
    assert found.seen.tolist() == [True, True, False, False, False, False]
    assert found.e.tolist() == [0.1, 0.2, 0.3, 0.4, 0.5, 0.0]
    assert found.counts.tolist() == [True] * 5 + [False]
    np.testing.assert_array_equal(found.y, [1.0, 0.5, nan, nan, nan, nan])
    assert (found.low, found.high, found.fixed) == (0.0, 1.0, True)


def test_an_answer_that_never_came_is_the_worst_outcome_and_known() -> None:
    """Failed and lost: 0, seen with probability 1, asked or not; partial and cancelled answers are answers."""
    found = observe_metric(log_of(status=["failed", "ok", "partial", "lost", "cancelled", "failed"]))
    assert found.certain.tolist() == [True, False, False, True, False, True]
    assert found.seen.tolist() == [True, True, False, True, False, True]
    assert found.e.tolist() == [1.0, 0.2, 0.3, 1.0, 0.5, 1.0]
    assert found.asked.tolist() == [False, True, True, False, False, False]
    np.testing.assert_array_equal(found.y, [0.0, 0.5, nan, 0.0, nan, 0.0])


def test_the_naive_stream_takes_all_labels() -> None:
    """The naive stream takes any label, asked ones first."""
    naive = observe_metric(log_of(), stream="naive")
    np.testing.assert_array_equal(naive.y, [1.0, 0.5, 0.25, nan, 1.0, nan])
    assert (naive.e == 1.0).all()
    assert naive.asked.all()


def test_cost_and_latency_are_known_of_what_was_executed() -> None:
    """A lost answer cost nothing, and its latency is not known; a ceiling cuts, and fixes the range beforehand."""
    log = log_of(status=["ok", "ok", "ok", "lost", "ok", "ok"])
    cost = observe_metric(log, "cost")
    np.testing.assert_array_equal(cost.y, [0.01, 0.02, 0.03, 0.0, 0.5, 0.0])
    assert cost.counts.all()
    assert (cost.low, cost.high, cost.fixed) == (0.0, 0.5, False)
    cut = observe_metric(log, "cost", ceiling=0.025)
    np.testing.assert_array_equal(cut.y, [0.01, 0.02, 0.025, 0.0, 0.025, 0.0])
    assert (cut.high, cut.fixed) == (0.025, True)
    latency = observe_metric(log, "latency", ceiling=20.0)
    np.testing.assert_array_equal(latency.y, [1.0, 2.0, 20.0, nan, 5.0, 0.5])
    assert latency.counts.tolist() == [True, True, True, False, True, True]


def test_utility_is_fit_less_what_the_answer_cost() -> None:
    """With each decision's own weights and units; what is known of it is known of all, labels of those who answered."""
    found = observe_metric(log_of(), "utility")
    lost = [0.5 + 0.01, 1.0 + 0.02, 0.75 + 0.3, 0.0, 0.05, 0.005]
    np.testing.assert_allclose(found.known, -np.array(lost), rtol=1e-12)
    np.testing.assert_allclose(found.y[:2], [1.0 - lost[0], 0.5 - lost[1]], rtol=1e-12)
    assert found.high == 1.0
    np.testing.assert_allclose(found.low, -1.05, rtol=1e-12)
    assert not found.fixed
    cut = observe_metric(log_of(), "utility", ceiling=0.5)
    np.testing.assert_allclose(cut.known[:3], -0.5, rtol=1e-12)
    assert (cut.low, cut.fixed) == (-0.5, True)


def test_the_score_is_for_looking() -> None:
    """What the reward model said; the least where no answer came."""
    status = ["ok", "ok", "failed", "ok", "ok", "ok"]
    found = observe_metric(log_of(score=[0.5, 1.5, nan, nan, 0.2, 0.3], status=status), "score")
    np.testing.assert_allclose(found.y, [0.5, 1.5, 0.0, nan, 0.2, 0.3])
    assert (found.low, found.high, found.fixed) == (0.0, 1.5, False)


def test_what_was_expected_is_in_the_units_of_the_metric() -> None:
    """The fit times the probability of an answer; less the expected burden for utility; USD for cost."""
    log = log_of()
    fit, utility, cost = logged_expectation(log), logged_expectation(log, "utility"), logged_expectation(log, "cost")
    assert fit is not None
    assert utility is not None
    assert cost is not None
    assert (fit == 0.3).all()
    np.testing.assert_allclose(utility[::2], 0.3 - np.array([1.0, 1.0, 0.5, 0.0, 0.0, 0.0]), rtol=1e-12)
    assert (cost == 0.02).all()
    assert logged_expectation(log, "score") is None
    assert logged_expectation(log._replace(options=log.options._replace(mean=None))) is None


def test_units_of_which_nothing_could_be_known_are_out() -> None:
    """And with_outcomes; one decision that counts keeps its unit."""
    sessions = {
        "session": np.array([0, 0, 1, 1, 2, 3]),
        "draw": np.array([0, 0, 2, 2, 4, 5]),
        "mode": np.where(np.array([0, 1, 0, 1, 0, 0]) == 1, STICKY, 0),
        "begins": np.array([True, False, True, False, True, True]),
        "asked_probability": np.array([0.0, 0.1, 0.0, 0.0, 0.3, 0.0]),
    }
    log = make_log(np.full((6, 2), 0.5), np.zeros(6, dtype=int), decisions=sessions)
    units = with_outcomes(closed_units(log, idle_s=-1.0), observe_metric(log))
    assert units.member.tolist() == [0, 1, 4]
    assert units.excluded == {"fit not observable": 3}


def test_what_cannot_be_used_is_said() -> None:
    """Unknown metrics and streams and ceilings that are not positive are refused."""
    with pytest.raises(InvalidLog, match="use one of fit, cost, latency, utility, outcome, score"):
        observe_metric(log_of(), "quality")
    with pytest.raises(InvalidLog, match="use one of asked, naive"):
        observe_metric(log_of(), stream="all")
    with pytest.raises(InvalidLog, match="positive number"):
        observe_metric(log_of(), "cost", ceiling=0.0)
    assert METRICS == ("fit", "cost", "latency", "utility", "outcome", "score")
    assert STREAMS == ("asked", "naive")
