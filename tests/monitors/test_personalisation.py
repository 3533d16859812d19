"""Personalisation monitor: the gain is unbiased, and the verdicts are valid at every look."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fitrouter.identity import role_key
from fitrouter.monitors.personalisation import PersonalisationMonitor, Report, Verdict
from fitrouter.types import Decision, Identity, Mode, PolicyVersion

K = 4
NAMES = tuple(f"m{k}" for k in range(K))
WHO = Identity(user="u", role="analyst")
ROLE = role_key(WHO)
VERDICTS: list[Verdict] = ["helps", "harms", "not known"]


def pmf(means: np.ndarray, floor: float = 0.05) -> np.ndarray:
    """A nearly greedy pmf."""
    p = np.full(len(means), floor / len(means))
    p[means.argmax()] += 1.0 - floor
    return p


def decision(probs: np.ndarray, twin: np.ndarray, mean: np.ndarray, chosen: int, **changes: Any) -> Decision:
    made = Decision(
        id="d",
        ts=0.0,
        draw_id="d",
        identity=WHO,
        mode=Mode.ONLINE,
        eligible=NAMES,
        probs=tuple(probs.tolist()),
        twin=tuple(twin.tolist()),
        mean=tuple(mean.tolist()),
        chosen=NAMES[chosen],
        propensity=float(probs[chosen]),
        policy=PolicyVersion(algorithm="test"),
    )
    return msgspec.structs.replace(made, **changes)


def report(monitor: PersonalisationMonitor, role: str | None = None) -> Report:
    found = monitor.report(role)
    assert found is not None
    return found


def test_the_gain_is_unbiased_for_every_prediction() -> None:
    """Over all draws and labels, the mean of z is V(personal) − V(blind), also while the term is switched off."""
    rng = np.random.default_rng(1)
    for off in (False, True):
        personal, blind, mean, worth = (rng.dirichlet(np.ones(K)) for _ in range(4))
        probs, expected = blind if off else personal, 0.0
        for a in range(K):
            for y, q in ((1.0, worth[a]), (0.0, 1.0 - worth[a])):
                monitor, candidate = PersonalisationMonitor(), tuple(personal.tolist()) if off else ()
                monitor.observe(decision(probs, blind, mean, a, personal=candidate), y)
                expected += probs[a] * q * report(monitor).gain
        assert math.isclose(expected, float(((personal - blind) * worth).sum()), abs_tol=1e-12)


def play(rng: np.random.Generator, worth: np.ndarray, labels: int, boost: float) -> tuple[PersonalisationMonitor, bool]:
    """A monitor after labels of an arm that is `boost` better; whether its interval ever missed the gain."""
    monitor, missed, total = PersonalisationMonitor(), False, 0.0
    for t in range(labels):
        blind_means, personal_means = worth.copy(), worth.copy()
        best = int(rng.integers(K))
        truth = worth.copy()
        truth[best] += boost
        personal_means[best] += 0.5  # the personal pmf prefers another arm in most decisions
        probs, blind = pmf(personal_means), pmf(blind_means)
        a = int(rng.choice(K, p=probs))
        monitor.observe(decision(probs, blind, worth, a), float(rng.random() < truth[a]))
        total += float(((probs - blind) * truth).sum())
        if t >= 50 and t % 10 == 0:
            found = report(monitor)
            missed = missed or not found.low <= total / (t + 1) <= found.high
    return monitor, missed


def test_the_interval_covers_at_all_times() -> None:
    """The 95% sequence for the gain, with weights up to 75, misses the truth in few of 60 streams."""
    worth = np.array([0.5, 0.45, 0.4, 0.35])
    missed = [play(np.random.default_rng(seed), worth, 400, 0.1)[1] for seed in range(60)]
    assert sum(missed) <= 5


def foresight(
    seed: int, labels: int, real: Callable[[int], float], roles: int = 1
) -> tuple[PersonalisationMonitor, int, bool]:
    """Labels of which a term of sd .13 explains the share `real(t)`; when it went off, if "helps" was reported."""
    rng, monitor, off, helped = np.random.default_rng(seed), PersonalisationMonitor(), -1, False
    blind = np.clip(rng.normal(0.6, 0.15, labels), 0.05, 0.95)
    terms, luck = rng.normal(0.0, 0.13, labels), rng.random(labels)
    for t in range(labels):
        y = float(luck[t] < blind[t] + real(t) * terms[t])
        role = f"r{t % roles}" if roles > 1 else ROLE
        monitor.observe_prediction(role, y=y, blind=float(blind[t]), term=float(terms[t]))
        if off < 0 and monitor.off(ROLE):
            off = t
        helped = helped or report(monitor).verdict == "helps"
    return monitor, off, helped


def test_a_term_without_effect_never_helps() -> None:
    """S = 0: "helps" in at most 5% of 20 streams of 3,000 labels, checked after each; most are switched off."""
    runs = [foresight(seed, 3000, lambda _t: 0.0) for seed in range(20)]
    assert sum(helped for _, _, helped in runs) <= 1
    assert sum(off >= 0 for _, off, _ in runs) >= 16


def test_a_real_term_stays_on_and_helps() -> None:
    """A term that is half or fully real is not switched off in 3,000 labels, and reported to help."""
    for real in (lambda _t: 0.5, lambda _t: 1.0):
        runs = [foresight(100 + seed, 3000, real) for seed in range(10)]
        assert not any(off >= 0 for _, off, _ in runs)
        assert sum(helped for _, _, helped in runs) >= 9
    found = report(runs[0][0])
    assert abs(found.real - 1.0) < 0.25


def test_alternating_tastes_switch_the_term_off() -> None:
    """Harm: after every 300 labels the term points the wrong way until it is learnt anew; off in at least 80%."""
    runs = [foresight(200 + seed, 3000, lambda t: -0.6 if t % 300 < 150 else 0.6) for seed in range(10)]
    assert sum(off >= 0 for _, off, _ in runs) >= 8


def test_late_harm_and_later_help_are_found() -> None:
    """Real for 1,500 labels, then with the wrong sign: off. Then real again: on."""
    wrong = foresight(7, 3500, lambda t: 1.0 if t < 1500 else -0.5)
    assert wrong[1] > 1500
    assert report(wrong[0]).verdict == "harms"
    again, off, _ = foresight(7, 7000, lambda t: 1.0 if t < 1500 or t > 3500 else -0.5)
    assert 1500 < off < 3500
    assert not again.off(ROLE)


def test_roles_have_their_own_switches() -> None:
    """The term is switched off for the role that it harms and stays on for the one it helps, whatever holds overall."""
    rng, monitor = np.random.default_rng(3), PersonalisationMonitor()
    for t in range(6000):
        role, real = ("bad", -0.8) if t % 3 else ("good", 1.0)
        term, b = float(rng.normal(0.0, 0.13)), 0.5
        monitor.observe_prediction(role, y=float(rng.random() < b + real * term), blind=b, term=term)
    assert monitor.off("bad")
    assert not monitor.off("good")
    assert monitor.off("never seen") == report(monitor).off
    assert report(monitor, "good").verdict == "helps"
    assert report(monitor, "bad").verdict == "harms"
    assert monitor.roles() == ["good", "bad"]
    assert monitor.report("never seen") is None


def test_only_drawn_decisions_count() -> None:
    """Sticky, pinned and forced decisions and invalid labels change nothing; all modes of a draw count."""
    p, q = pmf(np.array([1.0, 0, 0, 0])), pmf(np.array([0, 1.0, 0, 0]))
    monitor, blank = PersonalisationMonitor(), PersonalisationMonitor().dump()
    made = decision(p, q, np.full(K, 0.5), 0)
    for mode in (Mode.STICKY, Mode.PINNED, Mode.FORCED):
        monitor.observe(msgspec.structs.replace(made, mode=mode), 1.0)
    monitor.observe(msgspec.structs.replace(made, probs=(), twin=()), 1.0)
    monitor.observe(msgspec.structs.replace(made, twin=(0.5, 0.5)), 1.0)
    monitor.observe(made, math.nan)
    monitor.observe(made, 1.5)
    monitor.observe_prediction(ROLE, y=1.0, blind=math.nan, term=0.1)
    monitor.observe_prediction(ROLE, y=1.0, blind=0.5, term=0.0)
    assert monitor.dump() == blank
    for mode in (Mode.ONLINE, Mode.UNIFORM, Mode.SHADOW):
        monitor.observe(msgspec.structs.replace(made, mode=mode), 1.0)
    assert report(monitor).n == 3
    assert report(PersonalisationMonitor()).verdict == "not known"
    assert math.isinf(report(PersonalisationMonitor()).high)


@given(gain=st.floats(-50, 50), half=st.floats(0, 50) | st.just(math.inf), verdict=st.sampled_from(VERDICTS))
def test_what_is_printed_lies_in_its_interval_and_range(gain: float, half: float, verdict: Verdict) -> None:
    """−1 ≤ low ≤ gain ≤ high ≤ 1; and where the bets have decided nothing, the interval has 0."""
    found = Report(9, gain, gain - half, gain + half, verdict, 0.5, False).printed()
    assert -1.0 <= found.low <= found.gain <= found.high <= 1.0
    if verdict == "not known":
        assert found.low <= 0.0 <= found.high


def test_the_state_round_trips_and_rejects_corruption(subtests: pytest.Subtests) -> None:
    """A restored state continues bit for bit; invalid bytes change nothing."""
    for spoil in (
        "gain",
        "wealth",
        "missing",
        "name",
        "squares",
    ):
        with subtests.test(spoil=spoil):
            one, _ = play(np.random.default_rng(5), np.array([0.5, 0.45, 0.4, 0.35]), 60, 0.1)
            one.observe_prediction(ROLE, y=1.0, blind=0.4, term=0.2)
            payload, two = one.dump(), PersonalisationMonitor()
            assert two.load(payload)
            assert two.dump() == payload
            for monitor in (one, two):
                monitor.observe_prediction("other", y=0.0, blind=0.4, term=0.2)
            assert one.dump() == two.dump()
            stored = msgspec.msgpack.decode(payload)
            match spoil:
                case "gain":
                    stored[0][1][1][1] = math.inf
                case "wealth":
                    stored[0][0][1][7]["foresees"] = b"x"
                case "missing":
                    del stored[0][0][1][7]["misleads"]
                case "name":
                    stored[0][0][0] = "everybody"
                case _:
                    stored[1][0] = -1.0
            before = two.dump()
            for junk in (msgspec.msgpack.encode(stored), payload[:-3], b""):
                assert not two.load(junk)
            assert two.dump() == before
