"""What sequences read has the right mean, whatever the predictions are, and keeps the bounds that it says."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kits.replay_logs import ONLINE, STICKY, make_log

from fitrouter.errors import InvalidLog
from fitrouter_evaluators.replay.inference.sequences import BOUNDS, PAIRED_BOUNDS
from fitrouter_evaluators.replay.study.outcomes import MetricOutcomes, observe_metric
from fitrouter_evaluators.replay.study.prediction_powered import powered_rewards
from fitrouter_evaluators.replay.study.pseudo_outcomes import bounds_for, pseudo_outcomes, rounds_of
from fitrouter_evaluators.replay.study.units import Units, closed_units

K = 3


class World(NamedTuple):
    """A session of one or two draws over three arms; which, hangs on the first arm. Every draw has two decisions."""

    pmf: dict[str, np.ndarray]
    """Policy → float64[1 + K, K]: at the first draw, and at the second after each first arm."""
    again: np.ndarray
    """bool[K]: the session is drawn again."""
    content: np.ndarray
    """float64[K, K, 4]: P(label = 1) by both arms and decision; the second arm is 0 where there is none."""
    known: np.ndarray
    """float64[K, K, 4]: what is known of it."""
    e: np.ndarray
    """float64[K, K, 4]: the probability of being asked."""
    q: np.ndarray
    """float64[1 + K, K]: an outcome model, good or bad."""
    f: np.ndarray
    """float64[K, K, 4]: predictions, good or bad."""
    scale: float

    def turns(self, a: int) -> int:
        return 4 if self.again[a] else 2

    def value(self, policy: str, unknown: float | None = None) -> float:
        """By going through all draws; with `unknown` as the outcome wherever the logger never goes."""
        total, outcome = 0.0, self.known + self.scale * self.content
        pmf, logged = self.pmf[policy], self.pmf["logged"]
        for a, b in product(range(K), range(K)):
            p, known = pmf[0, a], logged[0, a] > 0.0
            if self.again[a]:
                p, known = p * pmf[1 + a, b], known and logged[1 + a, b] > 0.0
            elif b > 0:
                continue
            mean = outcome[a, b, : self.turns(a)].mean()
            total += p * (mean if known or unknown is None else unknown)
        return float(total)


def make_world(
    rng: np.random.Generator, *, sharp: float = 1.0, labels: bool = True, draws: int = 2, gaps: bool = False
) -> World:
    scale = float(rng.choice([1.0, 0.6])) if labels else 0.0
    extreme = rng.random() < 0.3
    pmf = {name: rng.dirichlet(np.full(K, sharp), 1 + K) + 1e-3 for name in ("logged", "new", "old")}
    if gaps:
        pmf["logged"][np.arange(1 + K), rng.integers(0, K, 1 + K)] = 0.0
    return World(
        pmf={name: table / table.sum(axis=1, keepdims=True) for name, table in pmf.items()},
        again=rng.random(K) < (0.6 if draws == 2 else 0.0),
        content=rng.random((K, K, 4)).round() if extreme else rng.random((K, K, 4)),
        known=rng.random((K, K, 4)) * (1.0 - scale),
        e=np.where(rng.random((K, K, 4)) < 0.2, 1.0, rng.uniform(0.02, 1.0, (K, K, 4))),
        q=rng.random((1 + K, K)),
        f=rng.random((K, K, 4)),
        scale=scale,
    )


class Leaves(NamedTuple):
    """Everything that can happen, each a unit of its own."""

    probability: np.ndarray
    units: Units
    observed: MetricOutcomes
    f: np.ndarray
    chance: np.ndarray
    pmf: dict[str, np.ndarray]
    q: np.ndarray


def leaves(world: World) -> Leaves:
    """All draws, all who are asked, all that they may say."""
    rows: list[dict[str, Any]] = []
    probability: list[float] = []
    drawn: list[int] = []
    for a, b in product(range(K), range(K)):
        if not world.again[a] and b > 0:
            continue
        T, arms = world.turns(a), (a, a, b, b)
        p = world.pmf["logged"][0, a] * (world.pmf["logged"][1 + a, b] if world.again[a] else 1.0)
        # A turn is not asked, or asked and says 0 or 1.
        for what in product((None, 0.0, 1.0) if world.scale else (1.0,), repeat=T):
            chance = p
            for t, said in enumerate(what):
                e, y = world.e[a, b, t], world.content[a, b, t]
                if world.scale:
                    chance *= 1.0 - e if said is None else e * (y if said else 1.0 - y)
            if chance == 0.0:
                continue
            unit, first = len(probability), len(rows)
            for t, said in enumerate(what):
                on = first + (t // 2) * 2
                kind = {"session": unit, "draw": on, "begins": t == 0, "mode": STICKY if t % 2 else ONLINE}
                outcome = {"said": said, "known": world.known[a, b, t], "f": world.f[a, b, t], "e": world.e[a, b, t]}
                rows.append({**kind, **outcome, "arm": arms[t], "where": 0 if t < 2 else 1 + a})
                if t % 2 == 0:
                    drawn.append(0 if t < 2 else 1 + a)
            probability.append(chance)
    column = {name: np.array([row[name] for row in rows]) for name in rows[0] if name != "said"}
    seen = np.array([row["said"] is not None for row in rows])
    decisions = {name: column[name] for name in ("session", "draw", "begins", "mode")}
    log = make_log(world.pmf["logged"][column["where"]], column["arm"], decisions=decisions)
    units = closed_units(log, idle_s=-1.0)
    certain = np.full(len(rows), world.scale == 0.0)
    e = np.where(certain, 1.0, column["e"])
    label = np.array([row["said"] or 0.0 for row in rows])
    observed = MetricOutcomes("fit", label, column["known"], certain, ~certain & seen, seen, e, 0.0, 1.0, world.scale)
    flat = {name: pmf[drawn].ravel() for name, pmf in world.pmf.items()}
    return Leaves(np.array(probability), units, observed, column["f"], e, flat, world.q[drawn].ravel())


CASES = ("one", "two", "against the logger")


@settings(max_examples=30)
@given(
    st.integers(0, 10**9),
    st.sampled_from(CASES),
    st.sampled_from([0.3, 1.0, 10.0]),
    st.booleans(),
    st.sampled_from([1, 2]),
    st.floats(1.0, 60.0),
)
def test_means_are_exact_and_bounds_are_kept(
    seed: int, case: str, sharp: float, labels: bool, draws: int, k: float
) -> None:
    """Over all draws, all who are asked and all labels: whatever Q and f are, with one draw or two.

    The mean of each row is the value of the policy, or the difference of two, to rounding; nothing that can happen is
    beyond the bounds.
    """
    world = make_world(np.random.default_rng(seed), sharp=sharp, labels=labels, draws=draws)
    all_ = leaves(world)
    np.testing.assert_allclose(all_.probability.sum(), 1.0, rtol=1e-12)
    minus = {"one": None, "two": "old", "against the logger": "logged"}[case]
    against = None if minus is None else all_.pmf[minus]
    truth = world.value("new") - (0.0 if minus is None else world.value(minus))
    bounds = (k, 1.5, 500.0)
    again = None if draws == 2 else np.zeros(all_.units.n, dtype=bool)
    found = pseudo_outcomes(
        all_.units, all_.pmf["new"], against, all_.q, all_.observed, all_.f, all_.chance, bounds=bounds, again=again
    )
    scale = np.abs(found.low).max() + np.abs(found.high).max()
    np.testing.assert_allclose(found.low @ all_.probability, truth, atol=1e-12 * scale)
    np.testing.assert_allclose(found.high @ all_.probability, truth, atol=1e-12 * scale)
    np.testing.assert_allclose(found.bound_low, bounds, rtol=1e-12)
    np.testing.assert_allclose(found.bound_high, np.array(bounds) + (minus is None), rtol=1e-12)
    assert (found.low >= -found.bound_low[:, None]).all()
    assert (found.high <= found.bound_high[:, None]).all()


@settings(max_examples=30)
@given(st.integers(0, 10**9), st.sampled_from(CASES[:2]), st.booleans(), st.floats(1.0, 3.0))
def test_where_the_logger_never_goes_the_worst_and_the_best_are_taken(
    seed: int, case: str, labels: bool, k: float
) -> None:
    """Manski: rows for the lower limit have the mean with outcomes 0 there (1 for what is taken off), and the reverse.

    The bounds are kept all the same.
    """
    world = make_world(np.random.default_rng(seed), labels=labels, gaps=True)
    all_ = leaves(world)
    minus = None if case == "one" else "old"
    found = pseudo_outcomes(
        all_.units,
        all_.pmf["new"],
        None if minus is None else all_.pmf[minus],
        all_.q,
        all_.observed,
        all_.f,
        all_.chance,
        bounds=(k,),
    )
    low, high = world.value("new", 0.0), world.value("new", 1.0)
    if minus is not None:
        low, high = low - world.value(minus, 1.0), high - world.value(minus, 0.0)
    np.testing.assert_allclose(found.low @ all_.probability, low, atol=1e-12 * np.abs(found.low).max())
    np.testing.assert_allclose(found.high @ all_.probability, high, atol=1e-12 * np.abs(found.high).max())
    assert found.low.min() >= -k
    assert found.high.max() <= k + (minus is None)


@settings(max_examples=15)
@given(st.integers(0, 10**9), st.sampled_from([0.3, 1.0, 10.0]), st.booleans(), st.sampled_from([1, 2]))
def test_rounds_have_the_value_as_their_mean(seed: int, sharp: float, labels: bool, draws: int) -> None:
    """Doubly robust, importance weighted and prediction-powered at once: over everything that can happen."""
    world = make_world(np.random.default_rng(seed), sharp=sharp, labels=labels, draws=draws)
    all_ = leaves(world)
    reward = powered_rewards(all_.units, all_.observed, all_.f, all_.chance)
    for q in (None, all_.q):
        rounds = rounds_of(all_.units, all_.pmf["new"], q, reward)
        said = rounds.base + rounds.weight * (rounds.reward - rounds.q)
        np.testing.assert_allclose(said @ all_.probability, world.value("new"), atol=1e-12 * np.abs(said).max())


def test_a_difference_to_the_policy_itself_is_nothing() -> None:
    """Whatever was drawn, asked and said: no noise at all where two policies agree, beyond what a small bound costs."""
    all_ = leaves(make_world(np.random.default_rng(2)))
    agree = all_.pmf["new"]
    found = pseudo_outcomes(all_.units, agree, agree, all_.q, all_.observed, all_.f, all_.chance, bounds=(1e6,))
    assert (found.low == 0.0).all()
    assert (found.high == 0.0).all()


def test_a_bound_that_is_large_enough_cuts_nothing() -> None:
    """Then the outcomes are those of the doubly robust estimator, for one draw and for two."""
    all_ = leaves(make_world(np.random.default_rng(3)))
    found = pseudo_outcomes(
        all_.units, all_.pmf["new"], None, all_.q, all_.observed, all_.f, all_.chance, bounds=(1e9,)
    )
    reward = powered_rewards(all_.units, all_.observed, all_.f, all_.chance)
    rounds = rounds_of(all_.units, all_.pmf["new"], all_.q, reward)
    said = rounds.base + rounds.weight * (rounds.reward - rounds.q)
    np.testing.assert_allclose(found.low[0], said, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.high[0], said, rtol=1e-9, atol=1e-9)


def test_a_small_bound_pays_with_spread_and_never_with_the_mean() -> None:
    """A tighter cut has at least the variance of a looser one, and a good model has less of it than none."""
    rng = np.random.default_rng(4)
    world = make_world(rng, labels=False, draws=1)
    good = world.known[:, 0, :2].mean(axis=1)
    all_ = leaves(world._replace(q=np.tile(good, (1 + K, 1))))
    unit = np.zeros(all_.units.n, dtype=bool)

    def spread(q: np.ndarray | None, k: float) -> float:
        x = pseudo_outcomes(
            all_.units, all_.pmf["new"], None, q, all_.observed, all_.f, all_.chance, bounds=(k,), again=unit
        ).low[0]
        return float(all_.probability @ (x - all_.probability @ x) ** 2)

    spreads = [spread(all_.q, k) for k in (0.01, 0.3, 1.0, 100.0)]
    assert spreads == sorted(spreads, reverse=True)
    assert spreads[-1] < 1e-12 < spreads[0] <= spread(None, 1.0)


def test_amounts_keep_their_scale() -> None:
    """A cost in USD: the mean is in USD, and so are the bounds."""
    world = make_world(np.random.default_rng(5), labels=False)
    all_ = leaves(world)
    usd = all_.observed._replace(known=0.02 * all_.observed.known, high=0.02)
    found = pseudo_outcomes(all_.units, all_.pmf["new"], None, 0.02 * all_.q, usd, all_.f, all_.chance, bounds=(2.0,))
    np.testing.assert_allclose(found.low @ all_.probability, 0.02 * world.value("new"), rtol=1e-12)
    np.testing.assert_allclose([found.bound_low[0], found.bound_high[0]], [0.04, 0.06], rtol=1e-12)
    # A range that does not begin at 0, as utility has it.
    lower = all_.observed._replace(known=all_.observed.known - 3.0, low=-3.0, high=-2.0)
    found = pseudo_outcomes(all_.units, all_.pmf["new"], None, all_.q - 3.0, lower, all_.f, all_.chance, bounds=(2.0,))
    np.testing.assert_allclose(found.low @ all_.probability, world.value("new") - 3.0, rtol=1e-12)
    assert found.bound_low[0] == 5.0
    assert found.bound_high[0] == 0.0
    assert found.low.min() >= -5.0
    assert found.high.max() <= 0.0


def test_what_cannot_be_bounded_is_refused() -> None:
    """Half a pmf, a bound below 1 for a difference, units without an outcome, one draw where there were two."""
    all_ = leaves(make_world(np.random.default_rng(6)))
    pmf, old = all_.pmf["new"], all_.pmf["old"]
    args = (all_.q, all_.observed, all_.f)
    with pytest.raises(InvalidLog, match="at least 1 for a difference"):
        pseudo_outcomes(all_.units, pmf, old, *args, all_.chance, bounds=(0.5,))
    with pytest.raises(InvalidLog, match="above 0"):
        pseudo_outcomes(all_.units, pmf, None, *args, all_.chance, bounds=())
    with pytest.raises(InvalidLog, match="have no observable outcome"):
        pseudo_outcomes(all_.units, pmf, None, *args, np.zeros_like(all_.chance))
    with pytest.raises(InvalidLog, match="several draws"):
        pseudo_outcomes(all_.units, pmf, None, *args, all_.chance, again=np.zeros(all_.units.n, dtype=bool))
    log = all_.units.log
    prob = log.options.prob.copy()
    prob[all_.units.entries()[4]] = np.nan
    broken = all_.units._replace(log=log._replace(options=log.options._replace(prob=prob)))
    with pytest.raises(InvalidLog, match="the full pmf is not logged"):
        pseudo_outcomes(broken, pmf, None, *args, all_.chance)


def test_no_units_have_no_outcomes() -> None:
    """And no error."""
    units = closed_units(make_log(np.zeros((0, 2)), np.zeros(0, dtype=int)))
    nothing = np.zeros(0)
    found = pseudo_outcomes(units, nothing, None, None, observe_metric(units.log), nothing, nothing)
    assert found.low.shape == found.high.shape == (3, 0)


def test_rare_labels_get_room() -> None:
    """Bounds grow as 1/e of decisions that are asked; where all is known they are those of sequences."""
    log = make_log(np.ones((4, 1)), np.zeros(4, dtype=int), decisions={"asked_probability": np.full(4, 0.05)})
    assert bounds_for(observe_metric(log)) == bounds_for(observe_metric(log), paired=True) == (20.0, 80.0)
    every = observe_metric(make_log(np.ones((4, 1)), np.zeros(4, dtype=int)))
    assert bounds_for(every) == BOUNDS
    assert bounds_for(every, paired=True) == PAIRED_BOUNDS
