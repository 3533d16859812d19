"""The labs: pure functions of seed and setup, whose events the product's own code decides and learns."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from benchmarks.research.labs import POOLS, WINDOW, crossed, dearer, newcomer, pooling, share_held, stationary, worse
from benchmarks.research.scene import K, Outcome, People, Scene, Setup, draw, logit, play
from hypothesis import given, settings
from hypothesis import strategies as st

from fitrouter.monitors.drift import DriftParams
from fitrouter.routing.decider import Rules
from fitrouter_evaluators.training.hierarchy import sigmoid

SETUP = Setup()


def with_arrival(rounds: int, at: int) -> Scene:
    """A scene where the last model arrives late and is far better than all others."""
    scene = draw(3, rounds, lab=1)
    logits, here = logit(scene.p), scene.here.copy()
    logits[:, K - 1] = logits[:, : K - 1].max(axis=1) + 1.5
    here[:at, K - 1] = False
    return msgspec.structs.replace(scene, p=sigmoid(logits), here=here)


def with_loss(rounds: int, at: int) -> tuple[Scene, int]:
    """A scene whose best model, far better than the others, answers badly from a round on; and that model."""
    scene = draw(3, rounds, lab=2)
    logits = logit(scene.p)
    best = int(logits.mean(axis=0).argmax())
    logits[:, best] += 1.5
    p = sigmoid(logits)
    p[at:, best] = 0.1
    return msgspec.structs.replace(scene, p=p), best


def test_a_lab_is_a_pure_function() -> None:
    """Equal seeds and setups give equal results; other seeds give others."""
    assert stationary(1, SETUP, 300) == stationary(1, SETUP, 300)
    assert stationary(1, SETUP, 300).regret != stationary(2, SETUP, 300).regret


def test_worlds_of_a_seed_share_their_luck() -> None:
    """People, delays and setups are compared on one world: contexts and luck do not depend on the setup."""
    plain, again = draw(5, 50), draw(5, 50)
    for field in Scene.__struct_fields__:
        assert np.array_equal(getattr(plain, field), getattr(again, field))
    crowd = draw(5, 50, People(users=7, roles=2))
    assert np.array_equal(crowd.x, plain.x)
    assert (crowd.user >= 0).all()
    assert (plain.user == -1).all()


def test_equal_people_are_the_world_without_people() -> None:
    """Where users and roles do not differ, P(thumb up) is what it is without them."""
    scene = draw(5, 50, People(user_sd=0.0, role_sd=0.0))
    np.testing.assert_allclose(scene.p, draw(5, 50).p, rtol=0, atol=1e-15)


@given(st.integers(0, 50), st.integers(0, 90))
@settings(max_examples=8)
def test_outcomes_are_sound(seed: int, delay: int) -> None:
    """Probabilities sum to 1 over what is on offer and keep the floor; regret is never negative, and 0 on the best."""
    scene = with_arrival(80, 40)
    outcome = play(msgspec.structs.replace(scene, seed=seed), Setup(delay=delay))
    np.testing.assert_allclose(outcome.probs.sum(axis=1), 1.0, atol=1e-12)
    assert (outcome.probs[:40, K - 1] == 0).all()
    assert outcome.probs[scene.here].min() >= 0.05 / K * (1 - 1e-6) * 0.75
    assert (outcome.regret >= 0).all()
    assert (outcome.regret[outcome.chosen == outcome.best] == 0).all()


def test_nothing_is_learnt_before_labels_arrive() -> None:
    """Until the first label is there, decisions are those of a router that hears nothing; after it they are others."""
    scene = draw(0, 160)
    late, deaf = play(scene, Setup(delay=120)), play(scene, Setup(feedback=0.0))
    assert np.array_equal(late.probs[:121], deaf.probs[:121])
    assert not np.array_equal(late.probs[121], deaf.probs[121])


def test_late_labels_teach_the_same() -> None:
    """Labels that come late are all heard: in the end the best model has most of the traffic in any case."""
    scene = with_arrival(600, 0)
    for delay in (0, 100):
        assert play(scene, Setup(delay=delay)).probs[500:, K - 1].mean() > 0.5


def test_a_newcomer_gets_its_floor_and_is_adopted() -> None:
    """A new model starts with a quarter of the traffic or more, until it was asked as often as the rules say."""
    rules = Rules()
    outcome = play(with_arrival(900, 500), SETUP)
    asked = np.cumsum(outcome.chosen[500:] == K - 1)
    young = np.flatnonzero(asked < rules.newcomer_pulls)
    assert outcome.probs[500 + young, K - 1].min() >= rules.newcomer_floor
    assert outcome.probs[850:, K - 1].mean() > 0.5


def test_the_raised_floor_ends() -> None:
    """A bad newcomer has its floor until it was asked often enough; without a raised one it is asked less."""
    scene = with_arrival(700, 500)
    p = scene.p.copy()
    p[:, K - 1] = 0.05
    scene = msgspec.structs.replace(scene, p=p)
    raised, plain = play(scene, SETUP), play(scene, Setup(rules=Rules(newcomer_floor=0.0)))
    asked, least = ((outcome.chosen[500:] == K - 1).sum() for outcome in (raised, plain))
    assert least < Rules().newcomer_pulls <= asked
    assert raised.probs[690:, K - 1].max() < 0.1


def test_a_price_is_believed_at_once() -> None:
    """A price counts in the decision after its card changes: no label is needed to leave a model that got dear."""
    scene = with_arrival(400, 0)
    price = scene.price.copy()
    price[300:, K - 1] = 1e6
    rules = Rules(cost_weight=0.1)
    outcome = play(msgspec.structs.replace(scene, price=price), Setup(rules=rules))
    assert outcome.probs[250:300, K - 1].mean() > 0.5
    assert outcome.probs[300:, K - 1].max() <= 0.05 / K * 1.001


def test_a_bandit_of_ones_own_learns_nothing_from_others() -> None:
    """With separate learners a user's first decision is uniform however many labels others gave; with pooling not."""
    scene = draw(1, 300, People(users=30, roles=2))
    firsts = [int(np.flatnonzero(scene.user == user)[0]) for user in np.unique(scene.user)]
    late = [t for t in firsts if t > 60]
    alone = play(scene, Setup(separate=True))
    pooled = play(scene, SETUP)
    assert late
    np.testing.assert_allclose(alone.probs[late], 1.0 / K, atol=1e-12)
    assert all(pooled.probs[t].max() > 0.3 for t in late)


@pytest.mark.parametrize("pool", POOLS)
def test_every_pool_runs(pool: str) -> None:
    """Each way to pool gives a result whose phases add up."""
    result = pooling(0, SETUP, pool, rounds=200)
    assert result.regret["all"] == pytest.approx(result.regret["0-50"] + result.regret["50-200"])


def test_an_unknown_pool_is_refused() -> None:
    """The message says what was given and what is allowed."""
    with pytest.raises(ValueError, match=r"'everybody'.*'blind', 'role', 'user', 'separate'"):
        pooling(0, SETUP, "everybody", rounds=10)


def test_labs_report_what_they_define() -> None:
    """Newcomers, losses and prices come with their measures, None where something never happened."""
    arrived, lost, dear = (lab(0, SETUP, rounds=240) for lab in (newcomer, worse, dearer))
    assert {"adopted", "share .1 held", "others before", "decisions 1-120", "best in"} <= set(arrived.measures)
    assert {"abandoned", "wasted", "alarm", "false alarms"} == set(lost.measures)
    assert {"left", "wasted"} == set(dear.measures)


# --- what is read off an outcome ---


def test_a_crossing_is_the_first_window_that_crosses() -> None:
    """The mean of 50 decisions, their rounds counted from the event."""
    probs = np.concatenate([np.zeros(60), np.ones(100)])
    rounds = 1000 + 3 * np.arange(160)
    # 24 zeros and 26 ones are the first 50 whose mean is above a half.
    first = 60 - 24
    assert crossed(probs, rounds, 0.5, 1000, above=True) == (3.0 * first + 1, 3.0 * (first + WINDOW - 1) + 1)
    assert crossed(probs, rounds, 0.5, 1000, above=False) == (1.0, 3.0 * (WINDOW - 1) + 1)
    assert crossed(np.zeros(160), rounds, 0.5, 1000, above=True) is None
    assert crossed(np.ones(WINDOW - 1), rounds[: WINDOW - 1], 0.5, 1000, above=True) is None


@pytest.mark.parametrize(("period", "held"), [(5, 5.0), (20, None)])
def test_paretobandits_adoption(period: int, held: float | None) -> None:
    """A model that takes every fifth decision is adopted with its first one; one that takes every twentieth never."""
    chosen = np.zeros(400, dtype=int)
    chosen[100 + period - 1 :: period] = 7
    assert share_held(chosen, 7, 100) == held


def test_outcomes_of_a_model_that_is_never_taken() -> None:
    """Nothing is adopted that is never chosen."""
    assert share_held(np.zeros(300, dtype=int), 7, 0) is None
    assert Outcome.__struct_fields__ == ("regret", "probs", "chosen", "best", "alarms")


# --- drift ---


@pytest.fixture(scope="module")
def turned() -> tuple[int, Outcome, Outcome]:
    """A model that turns bad at round 600, heard by a router with the alarm and by one without."""
    scene, best = with_loss(1000, 600)
    return best, play(scene, SETUP), play(scene, Setup(drift=DriftParams(threshold=math.inf)))


def test_the_alarm_tells_when_a_model_turned_bad(turned: tuple[int, Outcome, Outcome]) -> None:
    """It fires for that model, soon after it changed and not before; without it nothing fires."""
    best, heard, deaf = turned
    assert heard.alarms
    assert heard.alarms[0][1] == best
    assert 600 < heard.alarms[0][0] < 700
    assert deaf.alarms == ()


def test_a_model_that_turned_bad_is_left_sooner_with_the_alarm(turned: tuple[int, Outcome, Outcome]) -> None:
    """Until the alarm both decide alike; after it the one that heard it asks the model less."""
    best, heard, deaf = turned
    fired = heard.alarms[0][0]
    assert np.array_equal(heard.probs[: fired + 1], deaf.probs[: fired + 1])
    assert heard.probs[fired + 1 :, best].sum() < deaf.probs[fired + 1 :, best].sum()


def test_late_labels_make_no_alarm() -> None:
    """Labels that come in a lump, late, are judged by what was known when they came: a delay alone is no drift."""
    assert play(draw(2, 500), Setup(delay=200)).alarms == ()
