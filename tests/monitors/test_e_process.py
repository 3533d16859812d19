"""E-processes and confidence sequences are valid at every look."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fitrouter.monitors.e_process import WEALTH_CAP, EProcess, Moments


def peak(xs: np.ndarray, low: float) -> float:
    wealth, top = EProcess(), 1.0
    for x in xs:
        wealth.bet(float(x), low)
        top = max(top, wealth.value)
    return top


def test_false_alarms_are_rare_under_the_hypothesis() -> None:
    """Ville's inequality: under the hypothesis the wealth ever reaches 20 in at most 5% of streams."""
    rng = np.random.default_rng(1)
    ruin = [peak(rng.choice([-1.0, 1.0], 500), -1.0) for _ in range(150)]
    rare = [peak(np.where(rng.random(500) < 0.02, 49.0, -1.0), -1.0) for _ in range(150)]
    assert np.mean(np.array(ruin) >= 20.0) <= 0.05
    assert np.mean(np.array(rare) >= 20.0) <= 0.05


def test_the_expected_value_of_a_fair_game_is_one() -> None:
    """The weights over stakes and starting times sum to 1: the mean e-value over all outcomes is 1."""
    values = []
    for outcome in range(2**9):
        wealth = EProcess()
        for i in range(9):
            wealth.bet(1.0 if outcome >> i & 1 else -1.0, -1.0)
        values.append(wealth.value)
    assert math.isclose(float(np.mean(values)), 1.0, rel_tol=1e-12)


def test_late_effects_are_found() -> None:
    """A mean of .3 on ±1 is significant within 300 observations, at once or after 3,000 with mean −.3."""
    rng = np.random.default_rng(2)
    good = np.where(rng.random(300) < 0.65, 1.0, -1.0)
    bad = np.where(rng.random(3000) < 0.35, 1.0, -1.0)
    assert peak(good, -1.0) > 1e3
    assert peak(bad, -1.0) < 20.0
    assert peak(np.concatenate([bad, good]), -1.0) > 100.0


def test_wealth_stays_finite() -> None:
    """Wins stop at the cap; losses never lead below 0, also beyond the promised bound."""
    wealth = EProcess()
    for _ in range(3000):
        wealth.bet(1.0, -1.0)
    assert wealth.value <= WEALTH_CAP
    for _ in range(3000):
        wealth.bet(-9.0, -1.0)  # below the promised bound: clipped
    assert 0.0 <= wealth.value < 1.0


def test_a_confidence_sequence_covers_at_all_times() -> None:
    """A 95% sequence for the mean of skewed outcomes, checked from 20 to 1,000 observations, misses in at most 5%."""
    rng = np.random.default_rng(3)
    missed = 0
    for _ in range(150):
        moments, ever = Moments(), False
        for i, x in enumerate(rng.beta(1.0, 3.0, 1000)):
            moments.add(float(x))
            if i >= 20 and i % 5 == 0:
                ever = ever or abs(moments.mean - 0.25) > moments.half_width(0.05, prior=(2.0, 0.05))
        missed += ever
    assert missed <= 8  # 5% of 150, rounded up
    assert moments.half_width(0.05) < 3.3 * math.sqrt(0.0375 / 1000)


@given(st.lists(st.floats(-1, 1), max_size=40), st.integers(0, 8), st.binary(max_size=60))
def test_the_state_round_trips_and_rejects_corruption(xs: list[float], cut: int, junk: bytes) -> None:
    """A dumped state is restored bit for bit; other bytes change nothing."""
    wealth, other = EProcess(), EProcess()
    for x in xs:
        wealth.bet(x, -1.0)
    payload = wealth.dump()
    assert other.load(payload)
    assert other.dump() == payload
    other.bet(0.25, -1.0)
    wealth.bet(0.25, -1.0)
    assert other.value == wealth.value
    before = other.dump()
    for values in (np.full(6, math.nan), np.full(6, -1.0), np.full(6, 2 * WEALTH_CAP), np.full(6, 0.5)):
        assert not other.load(values.tobytes())
    assert len(junk) == len(payload) or not other.load(junk)
    assert not other.load(payload[: 5 * cut])
    assert other.dump() == before
