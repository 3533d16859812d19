"""E-processes and confidence sequences hold however often they are looked at."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fitrouter.monitors.e_process import RICH, Moments, Wealth


def peak(xs: np.ndarray, low: float) -> float:
    wealth, top = Wealth(), 1.0
    for x in xs:
        wealth.bet(float(x), low)
        top = max(top, wealth.value)
    return top


def test_a_gambler_does_not_get_rich_against_the_truth() -> None:
    """Ville's inequality: under the hypothesis the wealth ever reaches 20 in at most 5 % of streams."""
    rng = np.random.default_rng(1)
    ruin = [peak(rng.choice([-1.0, 1.0], 500), -1.0) for _ in range(150)]
    rare = [peak(np.where(rng.random(500) < 0.02, 49.0, -1.0), -1.0) for _ in range(150)]
    assert np.mean(np.array(ruin) >= 20.0) <= 0.05
    assert np.mean(np.array(rare) >= 20.0) <= 0.05


def test_the_wealth_of_a_fair_game_is_one_on_average() -> None:
    """The mixture over stakes and beginnings spends exactly the wealth that it has: E = 1 over all outcomes."""
    values = []
    for outcome in range(2**9):
        wealth = Wealth()
        for i in range(9):
            wealth.bet(1.0 if outcome >> i & 1 else -1.0, -1.0)
        values.append(wealth.value)
    assert math.isclose(float(np.mean(values)), 1.0, rel_tol=1e-12)


def test_an_effect_is_found_even_if_it_begins_late() -> None:
    """A mean of .3 on ±1 makes the gambler rich within 300 observations, at once or after 3,000 with mean −.3."""
    rng = np.random.default_rng(2)
    good = np.where(rng.random(300) < 0.65, 1.0, -1.0)
    bad = np.where(rng.random(3000) < 0.35, 1.0, -1.0)
    assert peak(good, -1.0) > 1e3
    assert peak(bad, -1.0) < 20.0
    assert peak(np.concatenate([bad, good]), -1.0) > 100.0


def test_wealth_stays_finite() -> None:
    """Certain wins for ever end at a bound; a certain loss never goes below 0."""
    wealth = Wealth()
    for _ in range(3000):
        wealth.bet(1.0, -1.0)
    assert wealth.value <= RICH
    for _ in range(3000):
        wealth.bet(-9.0, -1.0)  # below the bound that was promised: cut
    assert 0.0 <= wealth.value < 1.0


def test_a_confidence_sequence_covers_all_the_time() -> None:
    """A 95 % sequence for the mean of skewed outcomes, looked at from 20 to 1,000, misses in few streams."""
    rng = np.random.default_rng(3)
    missed = 0
    for _ in range(150):
        moments, ever = Moments(), False
        for i, x in enumerate(rng.beta(1.0, 3.0, 1000)):
            moments.see(float(x))
            if i >= 20 and i % 5 == 0:
                ever = ever or abs(moments.mean - 0.25) > moments.half_width(0.05, prior=(2.0, 0.05))
        missed += ever
    assert missed <= 8  # 5 % of 150, rounded up
    assert moments.half_width(0.05) < 3.3 * math.sqrt(0.0375 / 1000)


@given(st.lists(st.floats(-1, 1), max_size=40), st.integers(0, 8), st.binary(max_size=60))
def test_wealth_round_trips_and_rejects_what_is_not_its_own(xs: list[float], spoilt: int, junk: bytes) -> None:
    """What `dump` made is restored bit for bit; other bytes leave everything as it was."""
    wealth, other = Wealth(), Wealth()
    for x in xs:
        wealth.bet(x, -1.0)
    payload = wealth.dump()
    assert other.load(payload)
    assert other.dump() == payload
    other.bet(0.25, -1.0)
    wealth.bet(0.25, -1.0)
    assert other.value == wealth.value
    before = other.dump()
    for values in (np.full(6, math.nan), np.full(6, -1.0), np.full(6, 2 * RICH), np.full(6, 0.5)):
        assert not other.load(values.tobytes())
    assert len(junk) == len(payload) or not other.load(junk)
    assert not other.load(payload[: 5 * spoilt])
    assert other.dump() == before
