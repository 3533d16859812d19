"""Units of replay are closed sessions; their weights are those of their draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kits.replay_logs import ONLINE, STICKY, make_log

from fitrouter.types import Mode
from fitrouter_evaluators.replay.log.log import MODES, Log
from fitrouter_evaluators.replay.study.pseudo_outcomes import rounds_of, running, subset
from fitrouter_evaluators.replay.study.units import Units, closed_units

PINNED = MODES.index(Mode.PINNED)
FORCED = MODES.index(Mode.FORCED)


def log_of(*turns: tuple[str, int, str], ts: list[float] | None = None, **columns: Any) -> Log:
    """A log of turns (session, or "" for none; the row that it lives on, −1 for one that is gone; kind).

    Kinds: begin, again (drawn again), sticky, pinned, forced. Two arms, half and half; the first is drawn.
    """
    kinds = {"begin": ONLINE, "again": ONLINE, "sticky": STICKY, "pinned": PINNED, "forced": FORCED}
    names = sorted({session for session, _, _ in turns} - {""})
    n = len(turns)
    decisions = {
        "session": np.array([names.index(s) if s else -1 for s, _, _ in turns], dtype=int),
        "draw": np.array([row for _, row, _ in turns], dtype=int),
        "mode": np.array([kinds[kind] for _, _, kind in turns], dtype=int),
        "begins": np.array([kind == "begin" for _, _, kind in turns], dtype=bool),
    }
    if ts is not None:
        decisions["ts"] = np.array(ts)
    return make_log(np.full((n, 2), 0.5), np.zeros(n, dtype=int), decisions={**decisions, **columns})


def rows(units: Units) -> list[list[int]]:
    return [units.member[a:b].tolist() for a, b in zip(units.start[:-1], units.start[1:], strict=True)]


def draws(units: Units) -> list[list[int]]:
    return [units.draw[a:b].tolist() for a, b in zip(units.draw_start[:-1], units.draw_start[1:], strict=True)]


def test_a_unit_runs_from_a_beginning_to_the_next_of_the_same_session() -> None:
    """Sticky turns, and draws of a session that goes on, are its own; after a silence it is a new unit, one cluster."""
    turns = [("a", 0, "begin"), ("b", 1, "begin"), ("a", 0, "sticky"), ("a", 3, "again"), ("", 4, "begin")]
    turns += [("b", 1, "sticky"), ("a", 3, "sticky"), ("a", 7, "begin"), ("a", 7, "sticky")]
    units = closed_units(log_of(*turns), idle_s=-1.0)
    assert rows(units) == [[0, 2, 3, 6], [1, 5], [4], [7, 8]]
    assert draws(units) == [[0, 3], [1], [4], [7]]
    assert units.cluster[0] == units.cluster[3]
    assert len(set(units.cluster.tolist())) == 3
    assert units.excluded == {}


def test_pinned_and_forced_decisions_are_out_and_break_nothing() -> None:
    """They are counted; the session around them is one unit, also where one of them came first."""
    turns = [("a", 0, "pinned"), ("a", 1, "begin"), ("a", 2, "pinned"), ("a", 3, "forced"), ("a", 1, "sticky")]
    units = closed_units(log_of(*turns), idle_s=-1.0)
    assert rows(units) == [[1, 4]]
    assert units.excluded == {"pinned": 2, "forced": 1}


def test_a_sticky_turn_belongs_to_the_draw_that_it_lives_on() -> None:
    """Also where, of two requests at once, one still lives on the draw before."""
    turns = [("a", 0, "begin"), ("a", 1, "begin"), ("a", 0, "sticky"), ("a", 1, "sticky")]
    assert rows(closed_units(log_of(*turns), idle_s=-1.0)) == [[0, 2], [1, 3]]


def test_units_whose_draws_are_not_all_in_the_log_are_out() -> None:
    """A log that begins amid a session, and a draw that was lost: all turns of the unit are out, and no others."""
    turns = [("a", -1, "sticky"), ("a", 1, "again"), ("a", 2, "begin"), ("a", 2, "sticky")]
    turns += [("b", 4, "begin"), ("b", -1, "sticky"), ("b", 6, "begin"), ("c", 7, "again"), ("c", -1, "sticky")]
    units = closed_units(log_of(*turns), idle_s=-1.0)
    assert rows(units) == [[2, 3], [6]]
    assert units.excluded == {"began before the log": 4, "a draw is not in the log": 2}


def test_a_draw_of_an_arm_that_was_not_eligible_is_none() -> None:
    """What cannot be weighted takes its unit with it."""
    log = log_of(("a", 0, "begin"), ("a", 0, "sticky"), ("b", 2, "begin"))
    chosen = log.decisions.chosen.copy()
    chosen[0] = -1
    units = closed_units(log._replace(decisions=log.decisions._replace(chosen=chosen)), idle_s=-1.0)
    assert rows(units) == [[2]]
    assert units.excluded == {"a draw is not in the log": 2}


def test_entries_follow_the_draws_of_units_that_overlap() -> None:
    """Unit by unit, not in order of time."""
    units = closed_units(
        log_of(("a", 0, "begin"), ("b", 1, "begin"), ("a", 2, "again"), ("c", 3, "begin")), idle_s=-1.0
    )
    assert units.draw.tolist() == [0, 2, 1, 3]
    assert units.entries().tolist() == [0, 1, 4, 5, 2, 3, 6, 7]


def test_open_and_young_units_and_those_outside_the_window_are_out() -> None:
    """Silent for longer than idle_s: closed. A decision younger than the horizon: out. Begun inside [since, until)."""
    turns = [("a", 0, "begin"), ("b", 1, "begin"), ("a", 0, "sticky"), ("c", 3, "begin"), ("d", 4, "begin")]
    log = log_of(*turns, ts=[0.0, 10.0, 30.0, 40.0, 100.0])
    assert rows(closed_units(log, idle_s=65.0)) == [[0, 2], [1]]
    assert closed_units(log, idle_s=65.0).excluded == {"open session": 2}
    assert rows(closed_units(log, idle_s=65.0, now=200.0)) == [[0, 2], [1], [3], [4]]
    young = closed_units(log, idle_s=0.0, horizon_s=75.0)
    assert rows(young) == [[1]]
    assert young.excluded == {"younger than the horizon": 3, "open session": 1}
    window = closed_units(log, idle_s=0.0, since=5.0, until=40.0)
    assert rows(window) == [[1]]
    assert window.excluded == {"began before the window": 2, "began after the window": 2}


def test_a_decision_without_a_session_is_closed_at_once() -> None:
    """Nothing can follow it, so silence is not waited for; a session that began anew is closed as well."""
    turns = [("a", 0, "begin"), ("", 1, "begin"), ("a", 2, "begin")]
    units = closed_units(log_of(*turns), idle_s=1e9)
    assert rows(units) == [[0], [1]]
    assert units.excluded == {"open session": 1}


def test_sessions_of_two_tenants_are_two() -> None:
    """Whatever a source calls them."""
    turns = [("a", 0, "begin"), ("a", 1, "begin"), ("a", 0, "sticky"), ("a", 1, "sticky")]
    units = closed_units(log_of(*turns, tenant=np.array([0, 1, 0, 1])), idle_s=-1.0)
    assert rows(units) == [[0, 2], [1, 3]]
    assert units.cluster.tolist() == [0, 1]


def test_an_answer_that_takes_long_keeps_its_session_open() -> None:
    """Silence begins with the end of the last answer, as the router counts it."""
    log = log_of(("a", 0, "begin"), ("", 1, "begin"), ts=[0.0, 100.0])
    assert closed_units(log, idle_s=90.0).n == 2
    slow = log._replace(outcomes=log.outcomes._replace(latency_s=np.array([50.0, 1.0])))
    assert closed_units(slow, idle_s=90.0).n == 1


def test_an_empty_log_has_no_units() -> None:
    """And everything that is asked of none is empty."""
    units = closed_units(log_of())
    assert units.n == len(units.entries()) == len(units.draw) == 0
    assert rounds_of(units, np.zeros(0), None, np.zeros(0)).weight.shape == (0,)


@st.composite
def traffic(draw: st.DrawFn) -> Log:
    """Requests of three sessions and of none, in any order, as the router would log them."""
    turns: list[tuple[str, int, str]] = []
    live: dict[str, int] = {}
    for i in range(draw(st.integers(0, 25))):
        session = draw(st.sampled_from(["", "a", "b", "c"]))
        kinds = ["begin", "again", "sticky", "pinned"] if session in live else ["begin", "pinned"]
        kind = draw(st.sampled_from(kinds if session else ["begin", "pinned"]))
        on = live[session] if kind == "sticky" else i
        if session and kind in {"begin", "again"}:
            live[session] = i
        turns.append((session, on, kind))
    return log_of(*turns)


@given(traffic(), st.floats(-1.0, 30.0), st.floats(0.0, 30.0))
def test_every_decision_is_in_one_unit_or_counted_as_out(log: Log, idle: float, horizon: float) -> None:
    """And a unit's first decision is the draw that began it, and units are in the order of their beginnings."""
    units = closed_units(log, idle_s=idle, horizon_s=horizon)
    assert len(set(units.member.tolist())) == len(units.member)
    assert len(units.member) + sum(units.excluded.values()) == log.decisions.n
    assert (units.member[units.start[:-1]] == units.draw[units.draw_start[:-1]]).all()
    assert log.decisions.begins[units.draw[units.draw_start[:-1]]].all()
    assert (np.diff(units.ts) > 0).all()
    assert set(units.draw.tolist()) <= set(units.member.tolist())
    for members, drawn in zip(rows(units), draws(units), strict=True):
        assert {log.decisions.draw[row] for row in members} == set(drawn)


@given(traffic(), st.randoms(use_true_random=False))
def test_selected_units_are_what_they_were(log: Log, random: Any) -> None:
    """Their rows, draws and codes; the others' decisions are counted under the reason."""
    units = closed_units(log, idle_s=-1.0)
    keep = np.array([random.random() < 0.5 for _ in range(units.n)], dtype=bool)
    some = units.select(keep, "a reason")
    assert rows(some) == [row for row, kept in zip(rows(units), keep, strict=True) if kept]
    assert draws(some) == [row for row, kept in zip(draws(units), keep, strict=True) if kept]
    assert (some.cluster == units.cluster[keep]).all()
    assert len(some.member) + sum(some.excluded.values()) == log.decisions.n


def drawn_twice() -> tuple[Units, np.ndarray]:
    """Three units with 2, 1 and 3 draws over three arms, and a pmf over their entries."""
    rng = np.random.default_rng(3)
    session = np.array([0, 1, 0, 2, 2, 0, 2])
    begins = np.array([True, True, False, True, False, True, False])
    p = rng.dirichlet(np.ones(3), 7)
    chosen = rng.integers(0, 3, 7)
    log = make_log(p, chosen, decisions={"session": session, "begins": begins})
    units = closed_units(log, idle_s=-1.0)
    return units, rng.dirichlet(np.ones(3), len(units.draw)).ravel()


def test_weights_multiply_over_the_draws_of_a_unit() -> None:
    """ρ = Π π(a)/p(a); the entries are the draws' rows of the options, one after the other."""
    units, pmf = drawn_twice()
    options, decisions = units.log.options, units.log.decisions
    assert draws(units) == [[0, 2], [1], [3, 4, 6], [5]]
    flat = np.concatenate([np.arange(decisions.start[row], decisions.start[row + 1]) for row in units.draw])
    assert (units.entries() == flat).all()
    by_hand = np.array(
        [pmf[np.flatnonzero(flat == decisions.chosen[r])[0]] / options.prob[decisions.chosen[r]] for r in units.draw]
    )
    weight, product = units.weights(pmf)
    np.testing.assert_allclose(weight, by_hand, rtol=1e-14)
    np.testing.assert_allclose(product, [by_hand[:2].prod(), by_hand[2], by_hand[3:6].prod(), by_hand[6]], rtol=1e-14)
    with pytest.raises(ValueError, match="pmf of 2 entries"):
        units.weights(np.ones(2))


def test_the_logging_policy_has_weight_one() -> None:
    """Whatever was drawn; where only the drawn arm's propensity is known, that one counts."""
    units, _ = drawn_twice()
    logged = units.log.options.prob[units.entries()]
    assert (units.weights(logged)[1] == 1.0).all()
    unknown = units.log.options._replace(prob=np.full_like(units.log.options.prob, np.nan))
    assert (units._replace(log=units.log._replace(options=unknown)).weights(logged)[1] == 1.0).all()


def test_rounds_are_the_sequential_doubly_robust_value() -> None:
    """The value base + weight (R − q) is V_1 + Σ_{j<m} ρ_j (V_{j+1} − Q_j) + ρ_m (R − Q_m), by hand."""
    units, pmf = drawn_twice()
    rng = np.random.default_rng(4)
    q, reward = rng.random(len(pmf)), rng.random(units.n)
    weight, _ = units.weights(pmf)
    rho, taken = running(units, weight), q[units.chosen()]
    value = (pmf * q).reshape(-1, 3).sum(axis=1)
    rounds = rounds_of(units, pmf, q, reward)
    for u in range(units.n):
        a, b = units.draw_start[u], units.draw_start[u + 1]
        total = value[a]
        for j in range(a, b):
            total += rho[j] * ((value[j + 1] if j + 1 < b else reward[u]) - taken[j])
        made = rounds.base[u] + rounds.weight[u] * (reward[u] - rounds.q[u])
        np.testing.assert_allclose(made, total, rtol=1e-13)
        assert rounds.direct[u] == value[a]


def test_rounds_of_a_subset_carry_its_sampling_weights() -> None:
    """Means over a sample, weighted as it was drawn, are means of factor × what each unit says."""
    units, pmf = drawn_twice()
    rng = np.random.default_rng(5)
    whole = rounds_of(units, pmf, rng.random(len(pmf)), rng.random(units.n), seed=1)
    keep, factor = np.array([True, False, True, True]), np.array([2.0, 9.0, 0.5, 1.0])
    some = subset(whole, keep, factor)
    said = whole.base + whole.weight * (whole.reward - whole.q)
    np.testing.assert_allclose(some.base + some.weight * (some.reward - some.q), (said * factor)[keep], rtol=1e-14)
    assert whole.match is not None
    assert some.match is not None
    assert (some.match == whole.match[keep]).all()


def test_a_policy_that_draws_for_itself_agrees_as_often_as_its_pmf_says() -> None:
    """For rejection replay: with π(a) at each draw, never where π(a) = 0 and always where it is 1."""
    n = 20_000
    log = make_log(np.full((n, 2), 0.5), np.arange(n) % 2)
    units = closed_units(log)
    found = rounds_of(units, np.tile([0.3, 0.7], n), None, np.zeros(n), seed=7).match
    assert found is not None
    assert abs(found[::2].mean() - 0.3) < 0.02
    assert abs(found[1::2].mean() - 0.7) < 0.02
    sure = rounds_of(units, np.tile([1.0, 0.0], n), None, np.zeros(n), seed=7).match
    assert sure is not None
    assert sure[::2].all()
    assert not sure[1::2].any()


def soft(z: np.ndarray, b: float) -> np.ndarray:
    e = np.exp(b * (z - z.max(axis=1, keepdims=True)))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def sticky_world(rng: np.random.Generator, n: int, stick: float) -> tuple[Log, np.ndarray, np.ndarray]:
    """(log, pmf that each turn would have had, its outcomes' means): n sessions of six turns, with drifting contexts.

    The target is sharper than the logger (stick: how much), and both are drawn once a session. Each turn also has the
    pmf that a fresh draw would have had.
    """
    L, K, d = 6, 4, 3
    W = np.random.default_rng(5).normal(0.0, 1.0, (d, K))
    x = rng.normal(size=(n, d))
    contexts = [x]
    for _ in range(L - 1):
        contexts.append(0.7 * contexts[-1] + 0.71 * rng.normal(size=(n, d)))
    X = np.stack(contexts, axis=1)
    q = 1.0 / (1.0 + np.exp(-(X @ W)))
    p = 0.95 * soft((X @ W).reshape(-1, K), stick).reshape(n, L, K) + 0.05 / K
    a = (p[:, 0].cumsum(axis=1) < rng.random(n)[:, None]).sum(axis=1)
    mean = q[np.arange(n), :, a]
    first = np.repeat(np.arange(n) * L, L)
    decisions = {
        "session": np.repeat(np.arange(n), L),
        "draw": first,
        "mode": np.where(np.arange(n * L) == first, ONLINE, STICKY),
        "begins": np.arange(n * L) == first,
    }
    log = make_log(p.reshape(-1, K), np.repeat(a, L), decisions=decisions)
    return log, p.reshape(-1, K), (rng.random((n, L)) < mean).astype(float).ravel()


def test_sessions_are_weighted_by_their_draws_and_not_turn_by_turn() -> None:
    """Sticky turns: the session's weight is unbiased; weights of each row's own pmf, had it been drawn, are not."""
    n = 30_000
    truth = float(np.mean(sticky_world(np.random.default_rng(1), n, 4.0)[2]))
    log, fresh, y = sticky_world(np.random.default_rng(2), n, 1.0)
    z = np.log(np.maximum(fresh - 0.05 / 4, 1e-12) / 0.95)
    target = 0.95 * soft(z, 4.0) + 0.05 / 4
    units = closed_units(log, idle_s=-1.0)
    reward = units.total(y[units.member]) / units.turns
    rounds = rounds_of(units, target[units.draw].ravel(), None, reward)
    said = rounds.weight * rounds.reward
    se = said.std() / np.sqrt(n)
    assert abs(said.mean() - truth) < 4.0 * np.hypot(se, 0.5 / np.sqrt(6 * n))
    arm = log.decisions.chosen - log.decisions.start[:-1]
    row = np.arange(len(y))
    by_row = (target[row, arm] / fresh[row, arm] * y).mean()
    assert abs(by_row - truth) > 8.0 * se
