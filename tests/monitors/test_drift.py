"""Drift detection: few false alarms, short delays, and an exact state."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fitrouter.monitors.drift import CusumStatistics, Drift, DriftParams

RATE = 0.7
"""P(label = 1) before a change."""
SD = math.sqrt(RATE * (1.0 - RATE))

residuals = st.floats(-4.0, 4.0, allow_nan=False)
streams = st.lists(st.tuples(st.sampled_from(["a", "b", "c#warm@2"]), residuals), max_size=120)
quick = st.builds(
    DriftParams, threshold=st.floats(0.5, 5.0), slack=st.floats(0.0, 0.5), warmup=st.integers(0, 5), clip=st.just(3.0)
)


def fold(drift: Drift, stream: list[tuple[str, float]]) -> list[bool]:
    return [drift.observe(arm, z) for arm, z in stream]


def alarms(drift: Drift, seed: int, labels: int, rate: float) -> list[int]:
    """Indices of alarms on a stream of thumbs with probability `rate`, where RATE was predicted."""
    thumbs = np.random.default_rng(seed).random(labels) < rate
    return [t for t, y in enumerate(thumbs) if drift.observe("a", (float(y) - RATE) / SD)]


def settled(seed: int) -> Drift:
    """A detector after 300 labels of an unchanged arm."""
    drift = Drift()
    alarms(drift, seed + 1000, 300, RATE)
    return drift


@given(quick, streams, streams)
@settings(max_examples=40)
def test_the_state_round_trips_exactly(params: DriftParams, before: list[tuple[str, float]], after: list) -> None:
    """Storing and restoring the state halfway changes no later alarm and no bit."""
    whole, half = Drift(params), Drift(params)
    fold(whole, before)
    assert half.load(whole.dump())
    assert half.dump() == whole.dump()
    assert fold(half, after) == fold(whole, after)
    assert half.dump() == whole.dump()


@given(streams)
@settings(max_examples=20)
def test_arms_are_independent(stream: list[tuple[str, float]]) -> None:
    """An arm's statistics depend on its own labels only, and the bytes not on the order in which arms appeared."""
    params = DriftParams(threshold=3.0, warmup=2)
    together, apart = Drift(params), Drift(params)
    fold(together, stream)
    fold(apart, sorted(stream, key=lambda label: label[0]))  # stable: each arm's own order stays
    assert together.dump() == apart.dump()


@given(st.binary(max_size=60), streams)
@settings(max_examples=80)
def test_invalid_bytes_change_nothing(payload: bytes, stream: list[tuple[str, float]]) -> None:
    """`load` returns False and leaves the state, or restores it from the bytes."""
    drift = Drift(DriftParams(threshold=3.0, warmup=2))
    fold(drift, stream)
    before = drift.dump()
    if not drift.load(payload):
        assert drift.dump() == before
    assert not drift.load(before[:-1])


def test_no_impossible_state_is_restored(subtests: pytest.Subtests) -> None:
    """NaN, infinities, sums outside [0, threshold], negative counts and arms named twice are rejected."""
    for arms in (
        [("a", 1, math.nan, 0.0)],
        [("a", 1, 0.0, math.inf)],
        [("a", 1, -0.1, 0.0)],
        [("a", 1, 0.0, 99.0)],
        [("a", -1, 0.0, 0.0)],
        [("a", 1, 0.0, 0.0), ("a", 2, 0.0, 0.0)],
        [("a", 1, 0.0)],
    ):
        with subtests.test(arms=arms):
            drift = Drift()
            drift.observe("b", 1.0)
            before = drift.dump()
            assert not drift.load(msgspec.msgpack.encode([arms]))
            assert drift.dump() == before


@given(quick, streams)
@settings(max_examples=20)
def test_nan_is_skipped(params: DriftParams, stream: list[tuple[str, float]]) -> None:
    """A NaN residual changes nothing; an infinite one counts as `clip`."""
    clean, dirty = Drift(params), Drift(params)
    for arm, z in stream:
        assert not dirty.observe(arm, math.nan)
        assert dirty.observe(arm, math.copysign(math.inf, z) if abs(z) >= 3.0 else z) == clean.observe(arm, z)
    assert dirty.dump() == clean.dump()


@given(st.floats(0.2, 3.0), st.booleans(), st.integers(1, 40))
@settings(max_examples=20)
def test_no_alarm_during_warmup(size: float, down: bool, warmup: int) -> None:
    """However large the residuals, the first `warmup` labels raise no alarm, and those after an alarm do not either."""
    drift = Drift(DriftParams(threshold=0.1, slack=0.0, warmup=warmup))
    fired = [drift.observe("a", -size if down else size) for _ in range(3 * (warmup + 1))]
    assert fired == ([False] * warmup + [True]) * 3


def test_an_alarm_resets_the_statistics() -> None:
    """After an alarm, the statistics of the arm are those of an arm without labels."""
    drift = Drift(DriftParams(threshold=2.0, warmup=0))
    assert [drift.observe("a", 1.5) for _ in range(2)] == [False, True]
    assert drift.statistics("a") == CusumStatistics()
    drift.observe("a", -1.5)
    assert drift.statistics("a").down == pytest.approx(1.2)


def test_false_alarms_are_rare() -> None:
    """An unchanged arm has an alarm in about 18,000 labels: at most 30 in 300,000 (seeded)."""
    assert sum(len(alarms(Drift(), seed, 15_000, RATE)) for seed in range(20)) <= 30


@pytest.mark.parametrize(("shift", "median"), [(-0.2, 100), (0.2, 100), (-0.4, 40)])
def test_detection_delay(shift: float, median: int) -> None:
    """A model that gets better or worse by .2 is noticed within 100 labels, by .4 within 40 (medians of 40 streams)."""
    delays = [alarms(settled(seed), seed, 2000, RATE + shift)[0] for seed in range(40)]
    assert np.median(delays) <= median


def test_a_higher_threshold_is_slower() -> None:
    """The first alarm on a stream comes later with a higher threshold."""
    for seed in range(20):
        low = alarms(Drift(DriftParams(threshold=8.0)), seed, 3000, RATE - 0.15)
        high = alarms(Drift(DriftParams(threshold=14.0)), seed, 3000, RATE - 0.15)
        assert low[0] < high[0]
