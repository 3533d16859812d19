"""What personalisation buys: the estimate is unbiased, the verdicts hold however often they are looked at."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from fitrouter.identity import role_key
from fitrouter.monitors.personalisation import PersonalisationMonitor, Report
from fitrouter.types import Decision, Identity, Mode, PolicyVersion

K = 4
NAMES = tuple(f"m{k}" for k in range(K))
WHO = Identity(user="u", role="analyst")
ROLE = role_key(WHO)


def pmf(means: np.ndarray, floor: float = 0.05) -> np.ndarray:
    """Nearly greedy, as a router that has learnt for long."""
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


def report(twin: PersonalisationMonitor, role: str | None = None) -> Report:
    found = twin.report(role)
    assert found is not None
    return found


def test_the_gain_is_unbiased_whatever_the_prediction() -> None:
    """Over all draws and labels, the mean of z is V(personal) − V(blind), also where the term is off."""
    rng = np.random.default_rng(1)
    for off in (False, True):
        personal, blind, mean, worth = (rng.dirichlet(np.ones(K)) for _ in range(4))
        probs, expected = blind if off else personal, 0.0
        for a in range(K):
            for y, q in ((1.0, worth[a]), (0.0, 1.0 - worth[a])):
                twin, candidate = PersonalisationMonitor(), tuple(personal.tolist()) if off else ()
                twin.observe(decision(probs, blind, mean, a, personal=candidate), y)
                expected += probs[a] * q * report(twin).gain
        assert math.isclose(expected, float(((personal - blind) * worth).sum()), abs_tol=1e-12)


def play(rng: np.random.Generator, worth: np.ndarray, labels: int, boost: float) -> tuple[PersonalisationMonitor, bool]:
    """Labels of personal decisions that are `boost` better than the twin's; whether the interval ever missed."""
    twin, missed, total = PersonalisationMonitor(), False, 0.0
    for t in range(labels):
        blind_means, personal_means = worth.copy(), worth.copy()
        best = int(rng.integers(K))
        truth = worth.copy()
        truth[best] += boost
        personal_means[best] += 0.5  # the personal one prefers another arm in most decisions, rightly or not
        probs, blind = pmf(personal_means), pmf(blind_means)
        a = int(rng.choice(K, p=probs))
        twin.observe(decision(probs, blind, worth, a), float(rng.random() < truth[a]))
        total += float(((probs - blind) * truth).sum())
        if t >= 50 and t % 10 == 0:
            found = report(twin)
            missed = missed or not found.low <= total / (t + 1) <= found.high
    return twin, missed


def test_the_interval_covers_at_all_times() -> None:
    """The 95 % sequence for the gain, with weights up to 75, misses the truth in few of 60 streams."""
    worth = np.array([0.5, 0.45, 0.4, 0.35])
    missed = [play(np.random.default_rng(seed), worth, 400, 0.1)[1] for seed in range(60)]
    assert sum(missed) <= 5


def foresight(
    seed: int, labels: int, real: Callable[[int], float], roles: int = 1
) -> tuple[PersonalisationMonitor, int, bool]:
    """Labels of which a term of sd .13 says the share `real(t)`; when it went off, whether "helps" was ever said."""
    rng, twin, off, helped = np.random.default_rng(seed), PersonalisationMonitor(), -1, False
    blind = np.clip(rng.normal(0.6, 0.15, labels), 0.05, 0.95)
    terms, luck = rng.normal(0.0, 0.13, labels), rng.random(labels)
    for t in range(labels):
        y = float(luck[t] < blind[t] + real(t) * terms[t])
        twin.foresee(f"r{t % roles}" if roles > 1 else ROLE, y, float(blind[t]), float(terms[t]))
        if off < 0 and twin.off(ROLE):
            off = t
        helped = helped or report(twin).verdict == "helps"
    return twin, off, helped


def test_a_term_that_says_nothing_never_helps() -> None:
    """S = 0: "helps" in at most 5 % of 20 streams of 3,000 labels, looked at after each; most are switched off."""
    runs = [foresight(seed, 3000, lambda _t: 0.0) for seed in range(20)]
    assert sum(helped for _, _, helped in runs) <= 1
    assert sum(off >= 0 for _, off, _ in runs) >= 16


def test_a_term_that_is_real_stays_on_and_is_said_to_help() -> None:
    """Half real or all real: hardly ever switched off in 3,000 labels, and said to help."""
    for real in (lambda _t: 0.5, lambda _t: 1.0):
        runs = [foresight(100 + seed, 3000, real) for seed in range(10)]
        assert not any(off >= 0 for _, off, _ in runs)
        assert sum(helped for _, _, helped in runs) >= 9
    found = report(runs[0][0])
    assert abs(found.real - 1.0) < 0.25


def test_tastes_that_turn_switch_the_term_off() -> None:
    """Harm: after every 300 labels the term points the wrong way until it is learnt anew; off in at least 80 %."""
    runs = [foresight(200 + seed, 3000, lambda t: -0.6 if t % 300 < 150 else 0.6) for seed in range(10)]
    assert sum(off >= 0 for _, off, _ in runs) >= 8


def test_harm_that_comes_late_is_found_and_help_that_comes_later_too() -> None:
    """Real for 1,500 labels, then against the truth: off. Then real again: on."""
    wrong = foresight(7, 3500, lambda t: 1.0 if t < 1500 else -0.5)
    assert wrong[1] > 1500
    assert report(wrong[0]).verdict == "harms"
    again, off, _ = foresight(7, 7000, lambda t: 1.0 if t < 1500 or t > 3500 else -0.5)
    assert 1500 < off < 3500
    assert not again.off(ROLE)


def test_each_role_has_a_switch_of_its_own() -> None:
    """A role that the term misleads is switched off; one that it serves stays on, whatever is said overall."""
    rng, twin = np.random.default_rng(3), PersonalisationMonitor()
    for t in range(6000):
        role, real = ("bad", -0.8) if t % 3 else ("good", 1.0)
        term, b = float(rng.normal(0.0, 0.13)), 0.5
        twin.foresee(role, float(rng.random() < b + real * term), b, term)
    assert twin.off("bad")
    assert not twin.off("good")
    assert twin.off("never seen") == report(twin).off
    assert report(twin, "good").verdict == "helps"
    assert report(twin, "bad").verdict == "harms"
    assert twin.roles() == ["good", "bad"]
    assert twin.report("never seen") is None


def test_only_drawn_decisions_speak() -> None:
    """Sticky, pinned and forced decisions, and labels that are none, leave no trace; all parts of the draw count."""
    p, q = pmf(np.array([1.0, 0, 0, 0])), pmf(np.array([0, 1.0, 0, 0]))
    twin, blank = PersonalisationMonitor(), PersonalisationMonitor().dump()
    made = decision(p, q, np.full(K, 0.5), 0)
    for mode in (Mode.STICKY, Mode.PINNED, Mode.FORCED):
        twin.observe(msgspec.structs.replace(made, mode=mode), 1.0)
    twin.observe(msgspec.structs.replace(made, probs=(), twin=()), 1.0)
    twin.observe(msgspec.structs.replace(made, twin=(0.5, 0.5)), 1.0)
    twin.observe(made, math.nan)
    twin.observe(made, 1.5)
    twin.foresee(ROLE, 1.0, math.nan, 0.1)
    twin.foresee(ROLE, 1.0, 0.5, 0.0)
    assert twin.dump() == blank
    for mode in (Mode.ONLINE, Mode.UNIFORM, Mode.SHADOW):
        twin.observe(msgspec.structs.replace(made, mode=mode), 1.0)
    assert report(twin).n == 3
    assert report(PersonalisationMonitor()).verdict == "not known"
    assert math.isinf(report(PersonalisationMonitor()).high)


def test_the_state_round_trips_and_rejects_corruption(subtests: pytest.Subtests) -> None:
    """Restored state goes on bit for bit; bytes that are not sound leave everything unchanged."""
    for spoil in (
        "gain",
        "wealth",
        "missing",
        "name",
        "squares",
    ):
        with subtests.test(spoil=spoil):
            one, _ = play(np.random.default_rng(5), np.array([0.5, 0.45, 0.4, 0.35]), 60, 0.1)
            one.foresee(ROLE, 1.0, 0.4, 0.2)
            payload, two = one.dump(), PersonalisationMonitor()
            assert two.load(payload)
            assert two.dump() == payload
            for twin in (one, two):
                twin.foresee("other", 0.0, 0.4, 0.2)
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
