"""Propensity audit: a correct log raises no alarm, altered propensities do."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from fitrouter.draw import replay
from fitrouter.monitors.propensities import ALPHA, Propensities, audit, chi2_tail
from fitrouter.types import Decision, Floats, Identity, Mode, PolicyVersion

NAMES = tuple(f"m{k}" for k in range(8))


def logged(probs: Floats, number: int, seed: int) -> Decision:
    """A decision drawn from `probs` over the first arms."""
    names = NAMES[: len(probs)]
    blank = Decision(
        id=str(uuid.UUID(int=seed << 64 | number)),
        ts=0.0,
        draw_id="",
        identity=Identity(),
        mode=Mode.ONLINE,
        eligible=names,
        probs=tuple(probs.tolist()),
        chosen=names[0],
        propensity=0.0,
        floor=0.05 * (1.0 - 1e-9),
        policy=PolicyVersion(algorithm="test"),
        seed=seed,
    )
    chosen = replay(blank)
    return msgspec.structs.replace(blank, chosen=chosen, propensity=float(probs[names.index(chosen)]))


def log(seed: int, n: int) -> list[Decision]:
    """Correctly logged decisions over six or eight arms, some nearly certain."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(n):
        K = 8 if number % 3 else 6
        probs = 0.95 * rng.dirichlet(np.full(K, 0.5)) + 0.05 / K
        found.append(logged(probs / probs.sum(), number, seed))
    return found


def relabel(decision: Decision, probs: Floats) -> Decision:
    probs = probs / probs.sum()
    chosen = decision.eligible.index(decision.chosen)
    return msgspec.structs.replace(
        decision,
        probs=tuple(probs.tolist()),
        propensity=float(probs[chosen]),
        floor=min(0.05, 6.0 * float(probs.min())),
    )


def chosen_times(factor: float) -> Callable[[Decision], Decision]:
    def alter(decision: Decision) -> Decision:
        q, a = np.array(decision.probs), decision.eligible.index(decision.chosen)
        p = min(factor * q[a], 0.5 * (1.0 + q[a]))
        q *= (1.0 - p) / (1.0 - q[a])
        q[a] = p
        return relabel(decision, q)

    return alter


def arm_times(factor: float) -> Callable[[Decision], Decision]:
    def alter(decision: Decision) -> Decision:
        return relabel(decision, np.array(decision.probs) * np.array([factor, *np.ones(len(decision.probs) - 1)]))

    return alter


CORRECT = log(1, 6000)


def test_a_correct_log_raises_no_alarm() -> None:
    """Three correct logs: every draw replays, χ² is not significant, and no e-value comes near the alarm."""
    for seed in (1, 2, 3):
        found = audit(CORRECT if seed == 1 else log(seed, 1500))
        assert found.ok
        assert not found.violations
        assert found.fired_at is None
        assert found.peak["all"] < 50.0
        assert found.chi2_dof == 7
        assert abs(found.mean_inverse - 1.0) < 0.1


@pytest.mark.parametrize(
    ("alter", "family"),
    [
        (chosen_times(1.05), "sharp"),
        (chosen_times(1 / 1.3), "uniform"),
        (lambda d: relabel(d, np.array(d.probs) ** (1 / 1.15)), "sharp"),
        (arm_times(0.8), "arm"),
        (lambda d: relabel(d, 0.9 * np.array(d.probs) + 0.1 / len(d.probs)), "uniform"),
    ],
)
def test_altered_propensities_raise_the_alarm(alter: Callable[[Decision], Decision], family: str) -> None:
    """Draws from another pmf than the logged one raise the alarm, also that of the matching family alone."""
    found = audit((alter(decision) for decision in CORRECT), replays=False)
    assert found.fired_at is not None
    assert found.peak["all"] >= 1.0 / ALPHA
    assert found.peak[family] >= 1.0 / ALPHA
    assert not found.ok


def test_violated_invariants_are_counted() -> None:
    """Sum, floor, propensity, choice and replay: each violation is counted, with the first decision."""
    made = CORRECT[:8]
    p = made[0].probs
    made[0] = msgspec.structs.replace(made[0], probs=(0.95 * p[0], *p[1:]))
    made[1] = msgspec.structs.replace(made[1], floor=1.0)
    made[2] = msgspec.structs.replace(made[2], propensity=made[2].propensity * 1.05)
    made[3] = msgspec.structs.replace(made[3], chosen="stranger")
    other = next(name for name in made[4].eligible if name != made[4].chosen)
    made[4] = msgspec.structs.replace(made[4], chosen=other, propensity=made[4].probs[made[4].eligible.index(other)])
    made[5] = msgspec.structs.replace(made[5], probs=(math.nan, *made[5].probs[1:]))
    made[6] = msgspec.structs.replace(made[6], mode=Mode.PINNED, probs=())
    found = audit(made)
    assert (found.decisions, found.drawn) == (8, 7)
    assert found.violations == {"pmf": 2, "floor": 1, "propensity": 1, "chosen": 1, "replay": 1}
    assert found.first["pmf"] == made[0].id
    assert not found.ok


def test_chi2_finds_an_arm_that_is_drawn_too_often() -> None:
    """An arm whose logged probability is 20% too low in 6,000 decisions is significant."""
    assert audit(map(arm_times(0.8), CORRECT), replays=False).chi2_p < ALPHA


def test_a_tail_is_a_probability() -> None:
    """Its terms can add up to more than 1 by rounding."""
    tails = [chi2_tail(0.25, dof) for dof in range(20, 40)]
    assert max(tails) <= 1.0 == pytest.approx(min(tails))
    assert chi2_tail(1e9, 5) == 0.0
    assert chi2_tail(3.0, 0) == 1.0, "without degrees of freedom nothing is significant"


def test_an_empty_log_is_correct() -> None:
    """No decisions, or one eligible arm: no alarm."""
    assert audit([]).ok
    found = audit([logged(np.ones(1), 0, 1)])
    assert found.ok
    assert found.chi2_p == 1.0


def test_every_family_is_a_fair_game() -> None:
    """The mean e-value over all draws from the logged pmfs is 1, zero probabilities included."""
    pmfs = [np.array([0.6, 0.3, 0.1]), np.array([0.05, 0.95]), np.array([0.5, 0.0, 0.5])]
    totals: dict[str, float] = {}
    for number in range(3 * 2 * 3):
        draws = np.unravel_index(number, (3, 2, 3))
        weight, watch = 1.0, Propensities()
        for k, probs in zip(draws, pmfs, strict=True):
            weight *= probs[k]
            if probs[k] > 0.0:
                made = logged(probs, number, 1)
                watch.observe(msgspec.structs.replace(made, chosen=NAMES[k]))
        for name, value in watch.evidence.items():
            totals[name] = totals.get(name, 0.0) + weight * value
    assert totals == pytest.approx(dict.fromkeys(("uniform", "sharp", "arm", "all"), 1.0), rel=1e-12)


def test_an_invalid_pmf_is_no_evidence() -> None:
    """The running test skips what `audit` reports: negative and missing probabilities, and other sums than 1."""
    watch = Propensities()
    sound = logged(np.array([0.6, 0.3, 0.1]), 1, 1)
    for probs in ((0.8, 0.3, -0.1), (0.5, 0.3, 0.1), (0.6, math.nan, 0.1), (0.0, 0.0, 0.0)):
        watch.observe(msgspec.structs.replace(sound, probs=probs, chosen=NAMES[0]))
    watch.observe(msgspec.structs.replace(sound, probs=(0.0, 0.9, 0.1), chosen=NAMES[0]))
    assert watch.n == 0
    assert watch.dump() == Propensities().dump()


def test_the_state_round_trips_and_rejects_corruption() -> None:
    """A restored state continues bit for bit; invalid bytes change nothing."""
    one, two = Propensities(), Propensities()
    assert math.isnan(one.mean_inverse)
    for decision in CORRECT[:300]:
        one.observe(decision)
    payload = one.dump()
    assert two.load(payload)
    for decision in CORRECT[300:320]:
        one.observe(decision)
        two.observe(decision)
    assert one.dump() == two.dump()
    assert one.evidence == two.evidence
    before = two.dump()
    stored = msgspec.msgpack.decode(payload)
    for place, junk in ((0, b"x"), (3, ["a", "a"]), (4, -1), (5, math.inf)):
        spoilt = list(stored)
        spoilt[place] = junk
        assert not two.load(msgspec.msgpack.encode(spoilt))
    assert not two.load(payload[:-1])
    assert two.dump() == before
