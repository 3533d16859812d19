"""The alarm rings for an arm that the score flatters, and not for arms that are better or worse than their text."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from fitrouter.monitors.reward_bias import RewardBiasMonitor, RewardBiasParams

K, LABELS = 8, 2000


def stream(
    rng: np.random.Generator, excess: np.ndarray, labels: int = LABELS, noise: float = 0.25
) -> RewardBiasMonitor:
    """Labels as a router gets them: most of the traffic on few arms, and a level that all arms share at the start."""
    flattery = RewardBiasMonitor()
    shares = 0.85 * rng.dirichlet(np.full(K, 0.5)) + 0.15 / K
    arms, noises = rng.choice(K, labels, p=shares), rng.normal(0.0, noise, labels)
    for t, (k, e) in enumerate(zip(arms, noises, strict=True)):
        flattery.observe(f"m{k}", "analyst", f"c{t % 3}", float(excess[k] + e + 0.2 * math.exp(-t / 60)))
    return flattery


def test_ordinary_models_raise_no_alarm() -> None:
    """Arms with a c_k of sd .1 that the score does not see: alarms in at most 5 % of streams, always looked at."""
    alarms = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        alarms += bool(stream(rng, rng.normal(0.0, 0.1, K)).flagged())
    assert alarms <= 2


def test_a_flatterer_is_found_and_no_one_else() -> None:
    """An arm whose text promises .4 more than people find is flagged within about 100 of its labels."""
    needed = []
    for seed in range(20):
        rng = np.random.default_rng(100 + seed)
        excess = np.array([0.4, *rng.normal(0.0, 0.05, K - 1)])
        flattery, labels = RewardBiasMonitor(), 0
        for t in range(4 * K * 60):
            k = t % K if t % 2 else 0  # it takes half of the traffic, as flatterers do
            labels += k == 0
            if flattery.observe(f"m{k}", None, None, float(excess[k] + rng.normal(0.0, 0.25))):
                break
        assert list(flattery.flagged()) == ["m0"]
        needed.append(labels)
    assert np.median(needed) <= 80
    assert np.quantile(needed, 0.9) <= 130


def test_the_best_model_does_not_make_flatterers_of_the_others() -> None:
    """An arm that is .3 better than its text and has 80 % of the traffic: the others agree with each other."""
    rng = np.random.default_rng(5)
    flattery = RewardBiasMonitor()
    for _ in range(LABELS):
        k = 0 if rng.random() < 0.8 else int(rng.integers(1, K))
        flattery.observe(f"m{k}", None, None, float((-0.3 if k == 0 else 0.0) + rng.normal(0.0, 0.25)))
    assert not flattery.flagged()
    assert "underrates model m0" in flattery.describe("m0")


def test_it_says_by_how_much() -> None:
    """The interval covers the excess over the other arms, per arm, role and cluster."""
    rng = np.random.default_rng(7)
    flattery = RewardBiasMonitor()
    for t in range(3000):
        k, role = t % K, "lawyer" if t % 3 else "cook"
        excess = 0.0 if k else (0.45 if role == "lawyer" else 0.15)
        flattery.observe(f"m{k}", role, "c0", float(0.1 + excess + rng.normal(0.0, 0.2)))
    found = flattery.flagged()["m0"]
    assert abs(found.bias - 0.35) < found.half_width < 0.1
    assert flattery.describe("m0") == f"the score flatters model m0 by {found.bias:.2f} ± {found.half_width:.2f}"
    assert [cell[:2] for cell in flattery.cells("m0")] == [("role", "lawyer"), ("cluster", "c0"), ("role", "cook")]
    lawyer, cook = flattery.excess("m0", role="lawyer"), flattery.excess("m0", role="cook")
    assert lawyer is not None
    assert cook is not None
    assert abs(lawyer.bias - 0.45) < lawyer.half_width
    assert abs(cook.bias - 0.15) < cook.half_width
    assert flattery.excess("m0", role="baker") is None
    assert "like the others" in flattery.describe("m3")
    assert "too few" in flattery.describe("nobody")


def test_a_flag_stays_until_it_is_cleared() -> None:
    """Honest labels do not take the alarm back; somebody does. Then it can be raised again."""
    rng = np.random.default_rng(8)
    flattery = RewardBiasMonitor()

    def labels(n: int, excess: float) -> None:
        for t in range(n):
            k = t % 4
            flattery.observe(f"m{k}", None, None, float((excess if k == 0 else 0.0) + rng.normal(0.0, 0.2)))

    labels(800, 0.5)
    labels(2000, 0.0)
    assert list(flattery.flagged()) == ["m0"]
    flattery.clear("m0")
    assert not flattery.flagged()
    labels(800, 0.0)
    assert not flattery.flagged()
    labels(1600, 0.6)
    assert list(flattery.flagged()) == ["m0"]


def test_two_flatterers_do_not_hide_each_other() -> None:
    """Two arms of eight with .5 too much are both found."""
    rng = np.random.default_rng(9)
    flattery = RewardBiasMonitor()
    for t in range(8 * 250):
        k = t % K
        flattery.observe(f"m{k}", None, None, float((0.5 if k < 2 else 0.0) + rng.normal(0.0, 0.25)))
    assert sorted(flattery.flagged()) == ["m0", "m1"]


def test_a_tolerance_is_never_an_alarm() -> None:
    """An operator who tolerates .5 hears nothing of .4."""
    rng = np.random.default_rng(10)
    flattery = RewardBiasMonitor(RewardBiasParams(tolerance=0.5))
    for t in range(2000):
        flattery.observe(f"m{t % 4}", None, None, float((0.4 if t % 4 == 0 else 0.0) + rng.normal(0.0, 0.2)))
    assert not flattery.flagged()


def test_what_is_no_number_teaches_nothing() -> None:
    """NaN and infinities leave the state as it was; residuals beyond ±1 count as ±1."""
    one, two = RewardBiasMonitor(), RewardBiasMonitor()
    for t in range(60):
        one.observe(f"m{t % 3}", "r", "c", 7.0 if t % 3 else 0.1)
        one.observe("m0", "r", "c", math.nan)
        one.observe("new", "r", "c", math.inf)
        two.observe(f"m{t % 3}", "r", "c", 1.0 if t % 3 else 0.1)
    assert one.dump() == two.dump()


@pytest.mark.parametrize("spoil", ["raised", "level", "cells", "wealth", "noise"])
def test_the_state_round_trips_and_rejects_corruption(spoil: str) -> None:
    """Restored state goes on bit for bit; bytes that are not sound leave everything unchanged."""
    rng = np.random.default_rng(11)
    one = stream(rng, np.array([0.5, *np.zeros(K - 1)]), 600)
    payload = one.dump()
    two = RewardBiasMonitor()
    assert two.load(payload)
    assert two.dump() == payload
    for flattery in (one, two):
        flattery.observe("m1", "lawyer", "c9", 0.3)
    assert one.dump() == two.dump()
    stored = msgspec.msgpack.decode(payload)
    match spoil:
        case "raised":
            stored[5] = ["ghost"]
        case "level":
            stored[0][0][1][1] = 3.0
        case "cells":
            stored[1][0][3][2] = -1.0
        case "wealth":
            stored[0][0][2] = stored[0][0][2][:-1]
        case _:
            stored[2][0] = math.nan
    before = two.dump()
    for junk in (msgspec.msgpack.encode(stored), payload[: len(payload) // 2], b"", b"junk"):
        assert not two.load(junk)
    assert two.dump() == before
