"""Reward-model bias: overrated arms are flagged, arms that are better or worse than their text are not."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from fitrouter.monitors.reward_bias import RewardBiasMonitor, RewardBiasParams
from fitrouter.posterior.labels import Answered, Label
from fitrouter.posterior.model import Fit
from fitrouter.types import FeedbackKind, Identity

K, LABELS = 8, 2000


def stream(
    rng: np.random.Generator, excess: np.ndarray, labels: int = LABELS, noise: float = 0.25
) -> RewardBiasMonitor:
    """Residuals as in a router: most of the traffic on few arms, and a shared level that decays."""
    monitor = RewardBiasMonitor()
    shares = 0.85 * rng.dirichlet(np.full(K, 0.5)) + 0.15 / K
    arms, noises = rng.choice(K, labels, p=shares), rng.normal(0.0, noise, labels)
    for t, (k, e) in enumerate(zip(arms, noises, strict=True)):
        monitor.observe(f"m{k}", "analyst", f"c{t % 3}", float(excess[k] + e + 0.2 * math.exp(-t / 60)))
    return monitor


def test_false_alarms_are_rare() -> None:
    """Arms with a c_k of sd .1: alarms in at most 5% of streams, checked after every label."""
    alarms = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        alarms += bool(stream(rng, rng.normal(0.0, 0.1, K)).flagged())
    assert alarms <= 2


def test_an_overrated_arm_is_flagged_alone() -> None:
    """An arm that is overrated by .4 is flagged within about 100 of its labels, and no other arm."""
    needed = []
    for seed in range(20):
        rng = np.random.default_rng(100 + seed)
        excess = np.array([0.4, *rng.normal(0.0, 0.05, K - 1)])
        monitor, labels = RewardBiasMonitor(), 0
        for t in range(4 * K * 60):
            k = t % K if t % 2 else 0  # overrated arms get more traffic: here half of it
            labels += k == 0
            if monitor.observe(f"m{k}", None, None, float(excess[k] + rng.normal(0.0, 0.25))):
                break
        assert list(monitor.flagged()) == ["m0"]
        needed.append(labels)
    assert np.median(needed) <= 80
    assert np.quantile(needed, 0.9) <= 130


def test_an_underrated_arm_does_not_flag_the_others() -> None:
    """An arm underrated by .3 with 80% of the traffic does not make the others look overrated."""
    rng = np.random.default_rng(5)
    monitor = RewardBiasMonitor()
    for _ in range(LABELS):
        k = 0 if rng.random() < 0.8 else int(rng.integers(1, K))
        monitor.observe(f"m{k}", None, None, float((-0.3 if k == 0 else 0.0) + rng.normal(0.0, 0.25)))
    assert not monitor.flagged()
    assert "underrates model m0" in monitor.describe("m0")


def test_reported_bias() -> None:
    """The interval covers the bias relative to the other arms, per arm, role and cluster."""
    rng = np.random.default_rng(7)
    monitor = RewardBiasMonitor()
    for t in range(3000):
        k, role = t % K, "lawyer" if t % 3 else "cook"
        excess = 0.0 if k else (0.45 if role == "lawyer" else 0.15)
        monitor.observe(f"m{k}", role, "c0", float(0.1 + excess + rng.normal(0.0, 0.2)))
    found = monitor.flagged()["m0"]
    assert abs(found.bias - 0.35) < found.half_width < 0.1
    assert monitor.describe("m0") == f"the reward model overrates model m0 by {found.bias:.2f} ± {found.half_width:.2f}"
    assert [cell[:2] for cell in monitor.cells("m0")] == [("role", "lawyer"), ("cluster", "c0"), ("role", "cook")]
    lawyer, cook = monitor.excess("m0", role="lawyer"), monitor.excess("m0", role="cook")
    assert lawyer is not None
    assert cook is not None
    assert abs(lawyer.bias - 0.45) < lawyer.half_width
    assert abs(cook.bias - 0.15) < cook.half_width
    assert monitor.excess("m0", role="baker") is None
    assert "like the other models" in monitor.describe("m3")
    assert "too few" in monitor.describe("nobody")


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_people_who_disagree_raise_no_alarm(share: float) -> None:
    """Two people of opposite tastes, one of whom may vote more, flag no arm; a flatterer among the arms is."""
    rng, fit = np.random.default_rng(12), Fit(4, 7)
    profile = rng.normal(size=(3, 7)) * 0.3
    for _ in range(200):
        person, k = int(rng.random() >= share), int(rng.integers(3))
        x = np.concatenate([[1.0], rng.normal(size=3) * 0.4])
        likes = 0.5 if k == 2 else 0.9 if k == person else 0.1
        answer = Answered(f"m{k}", x, profile[k] + rng.normal(size=7) * 0.5)
        fit.learn(Label(Identity(user=f"u{person}"), answer, float(rng.random() < likes), FeedbackKind.THUMB))
    assert not fit.reward_bias.flagged()
    for t in range(600):
        k = t % 3
        fit.reward_bias.observe(f"m{k}", None, None, float((0.5 if k == 2 else 0.0) + rng.normal(0.0, 0.25)))
    assert list(fit.reward_bias.flagged()) == ["m2"]


def test_a_flag_stays() -> None:
    """Later unbiased labels do not withdraw the alarm."""
    rng = np.random.default_rng(8)
    monitor = RewardBiasMonitor()

    def labels(n: int, excess: float) -> None:
        for t in range(n):
            k = t % 4
            monitor.observe(f"m{k}", None, None, float((excess if k == 0 else 0.0) + rng.normal(0.0, 0.2)))

    labels(800, 0.5)
    labels(2000, 0.0)
    assert list(monitor.flagged()) == ["m0"]


def test_two_overrated_arms_do_not_mask_each_other() -> None:
    """Two of eight arms that are overrated by .5 are both flagged."""
    rng = np.random.default_rng(9)
    monitor = RewardBiasMonitor()
    for t in range(8 * 250):
        k = t % K
        monitor.observe(f"m{k}", None, None, float((0.5 if k < 2 else 0.0) + rng.normal(0.0, 0.25)))
    assert sorted(monitor.flagged()) == ["m0", "m1"]


def test_biases_within_the_tolerance_raise_no_alarm() -> None:
    """With a tolerance of .5, a bias of .4 is not flagged."""
    rng = np.random.default_rng(10)
    monitor = RewardBiasMonitor(RewardBiasParams(tolerance=0.5))
    for t in range(2000):
        monitor.observe(f"m{t % 4}", None, None, float((0.4 if t % 4 == 0 else 0.0) + rng.normal(0.0, 0.2)))
    assert not monitor.flagged()


def test_residuals_are_finite_and_clipped() -> None:
    """NaN and infinite residuals change nothing; residuals beyond ±1 count as ±1."""
    one, two = RewardBiasMonitor(), RewardBiasMonitor()
    for t in range(60):
        one.observe(f"m{t % 3}", "r", "c", 7.0 if t % 3 else 0.1)
        one.observe("m0", "r", "c", math.nan)
        one.observe("new", "r", "c", math.inf)
        two.observe(f"m{t % 3}", "r", "c", 1.0 if t % 3 else 0.1)
    assert one.dump() == two.dump()


def test_the_state_round_trips_and_rejects_corruption(subtests: pytest.Subtests) -> None:
    """A restored state continues bit for bit; invalid bytes change nothing."""
    for spoil in (
        "raised",
        "level",
        "cells",
        "wealth",
        "noise",
    ):
        with subtests.test(spoil=spoil):
            rng = np.random.default_rng(11)
            one = stream(rng, np.array([0.5, *np.zeros(K - 1)]), 600)
            payload = one.dump()
            two = RewardBiasMonitor()
            assert two.load(payload)
            assert two.dump() == payload
            for monitor in (one, two):
                monitor.observe("m1", "lawyer", "c9", 0.3)
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
