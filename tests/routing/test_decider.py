"""Decisions: exact pmfs and exact, replayable draws."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kits.learner import Log, fold

from fitrouter.draw import draws, renormalise, replay
from fitrouter.plain import on_grid
from fitrouter.policies import Beliefs, SquareCB
from fitrouter.routing.decider import Decider, Rules
from fitrouter.routing.eligibility import Roster, Wants
from fitrouter.state.learner import Learner
from fitrouter.stores.journal import MemoryJournal
from fitrouter.types import (
    FULL_SHARE,
    Decision,
    Identity,
    Mode,
    ModelCard,
    Prices,
    decode_event,
    encode_event,
)

X = np.array([1.0, 0.3, -0.2])


def cards(K: int) -> list[ModelCard]:
    return [ModelCard(name=f"m{k:02d}", provider="p", prices=Prices(output=10.0 * k)) for k in range(K)]


def learner(seed: int, K: int) -> Learner:
    """A learner whose arms differ."""
    rng = np.random.default_rng(seed)
    made = Learner(len(X), 2)
    for card in cards(K):
        k = made.fit.arms.row(card.arm)
        made.fit.arms.correction[k] = rng.normal(size=len(X)) * 0.2
    return made


def decide(rules: Rules, number: int = 1, K: int = 4, seed: int = 0) -> Decision:
    decider = Decider(SquareCB(20.0), learner(seed, K), rules)
    return decider.decide(str(uuid.UUID(int=number)), 1.0, Identity(user="u"), X, cards(K))


rules_ = st.builds(
    Rules,
    floor=st.floats(0, 1),
    uniform_slice=st.floats(0, 1),
    friction=st.sampled_from([0.0, 0.0, 0.1, 1.0]),
    share=st.floats(0, 1),
    default_arm=st.sampled_from([None, "m00", "gone"]),
    ask=st.floats(0.005, 0.05),
    cost_weight=st.floats(0, 2),
    latency_weight=st.floats(0, 2),
    seed=st.integers(0, 2**63 - 1),
)


@settings(max_examples=80)
@given(rules=rules_, number=st.integers(0, 2**128 - 1), K=st.integers(1, 12), seed=st.integers(0, 50))
def test_invariants_of_a_decision(rules: Rules, number: int, K: int, seed: int) -> None:
    """|Σp − 1| < 1e-12, min p ≥ floor/K, the logged propensity is the chosen arm's, and the draw replays."""
    decision = decide(rules, number, K, seed)
    for probs in (decision.probs, decision.twin):
        assert abs(sum(probs) - 1) < 1e-12
        assert min(probs) >= decision.floor / K
    assert decision.propensity == decision.probs[decision.eligible.index(decision.chosen)] > 0
    assert decision.mode in {Mode.ONLINE, Mode.UNIFORM, Mode.SHADOW}
    read_back = decode_event(encode_event(decision))
    assert isinstance(read_back, Decision)
    assert read_back == decision
    assert replay(read_back) == decision.chosen


@settings(max_examples=40)
@given(rules=rules_, K=st.integers(1, 12), seed=st.integers(0, 50))
def test_the_policys_pmf_can_be_recomputed_from_the_log(rules: Rules, K: int, seed: int) -> None:
    """Applied to the logged predictions, the policy and the logged mixture give the logged pmf."""
    decision = decide(rules, K=K, seed=seed)
    usd = decision.cost_weight / decision.cost_unit_usd
    burden = usd * np.array(decision.cost) + decision.latency_weight / decision.latency_unit_s * np.array(
        decision.latency
    )
    utility = np.array(decision.availability) * (np.array(decision.mean) - burden)
    sd = np.array(decision.availability) * np.array(decision.sd)
    own = SquareCB(20.0).propose(Beliefs(arms=decision.eligible, utility=utility, sd=sd, steps=decision.steps))
    rest = np.array(decision.rest)
    assert np.abs((1.0 - rest.sum()) * own + rest - decision.probs).max() < 1e-12


def test_the_twin_is_the_pmf_of_somebody_unknown() -> None:
    """Whatever was learnt of the user and the role moves the logged pmf and not the twin's."""
    log = Log(MemoryJournal(), np.random.default_rng(3))
    for number in range(60):
        name = log.answer("ann", arm := "ab"[number % 2])
        log.score(name)
        log.vote(name, float(arm == "b"))
    made = fold(log.journal)
    two = [ModelCard(name=name, provider="p", prices=Prices()) for name in "ab"]
    decider = Decider(SquareCB(200.0), made, Rules(floor=0.02))
    x = np.array([1.0, 0.3, -0.2, 0.1, 0.4])
    stranger, known = (
        decider.decide(str(uuid.UUID(int=5)), 1e6, who, x, two) for who in (Identity(), Identity(user="ann"))
    )
    assert stranger.twin == stranger.probs
    assert known.twin == pytest.approx(stranger.probs, abs=1e-12)
    assert abs(known.probs[0] - known.twin[0]) > 1e-3


@given(st.integers(0, 2**63 - 1), st.uuids(), st.integers(1, 12))
def test_draws_are_philox(seed: int, number: uuid.UUID, n: int) -> None:
    """A decision's uniforms are those of numpy's Philox generator, keyed by seed and id."""
    high, low = number.int >> 64, number.int & (2**64 - 1)
    philox = np.random.Philox(
        key=np.array([seed, high], dtype=np.uint64), counter=np.array([0, 0, 0, low], dtype=np.uint64)
    )
    assert draws(seed, str(number), n).tolist() == np.random.Generator(philox).random(n).tolist()


def test_draws_follow_the_logged_pmf() -> None:
    """Over many decisions 1/(K p) averages 1 and arms are as frequent as their probabilities (χ² at 1e-6)."""
    rules = Rules(floor=0.2, uniform_slice=0.05, share=0.7, default_arm="m01", seed=11)
    n, K = 8_000, 4
    decider = Decider(SquareCB(20.0), learner(0, K), rules)
    rng = np.random.default_rng(5)
    made = [decider.decide(str(uuid.UUID(bytes=rng.bytes(16))), 1.0, Identity(user="u"), X, cards(K)) for _ in range(n)]
    weights = np.array([1 / (K * decision.propensity) for decision in made])
    assert abs(weights.mean() - 1) < 5 * weights.std() / np.sqrt(n)
    counts = np.array([sum(decision.chosen == arm for decision in made) for arm in made[0].eligible])
    expected = n * np.array(made[0].probs)
    assert ((counts - expected) ** 2 / expected).sum() < 33.4  # χ²(3) at 1e-6 is 30.7; a little room
    modes = {mode: sum(decision.mode is mode for decision in made) / n for mode in Mode}
    assert modes[Mode.SHADOW] == pytest.approx(0.3, abs=0.02)
    assert modes[Mode.UNIFORM] == pytest.approx(0.7 * 0.05, abs=0.01)


def test_friction_reserves_traffic_for_good_models() -> None:
    """Models near the user-blind best get equal parts of the share, whoever asks; the policy has the rest."""
    plain, rubbed = decide(Rules(floor=0.0)), decide(Rules(floor=0.0, friction=0.3))
    part = np.array(rubbed.probs) - 0.7 * np.array(plain.probs)
    good = part > 1e-12
    assert 0 < good.sum() < len(part)
    assert part[good] == pytest.approx(0.3 / good.sum())
    assert part == pytest.approx(np.array(rubbed.twin) - 0.7 * np.array(plain.twin))
    assert part == pytest.approx(rubbed.rest)
    assert good[int(np.argmax(plain.twin))]
    assert sum(plain.rest) == 0.0


def test_a_share_of_zero_is_shadow_mode() -> None:
    """With share 0 the default model takes all requests while the policy's predictions are logged."""
    decision = decide(Rules(share=0.0, default_arm="m02"))
    assert (decision.chosen, decision.propensity, decision.mode) == ("m02", 1.0, Mode.SHADOW)
    assert len(decision.mean) == 4


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_a_share_logs_what_the_policy_would_do_with_all_requests(share: float) -> None:
    """Below a share of 1 the pmf at share 1 is logged; at 0 the shadow candidates' pmfs are at 1, too."""
    rules = Rules(share=share, default_arm="m02", floor=0.1)
    known: dict[str, Any] = {"candidates": {"steep": {"algorithm": "squarecb", "gamma": 900.0}}}
    made = [
        Decider(SquareCB(20.0), learner(0, 4), rule, **known).decide(
            str(uuid.UUID(int=7)), 1.0, Identity(user="u"), X, cards(4)
        )
        for rule in (rules, msgspec.structs.replace(rules, share=1.0))
    ]
    assert made[0].candidates[FULL_SHARE] == made[1].probs
    assert (made[0].candidates["steep"] == made[1].candidates["steep"]) is (share == 0.0)
    assert FULL_SHARE not in made[1].candidates


def test_an_ineligible_default_takes_no_traffic() -> None:
    """If the default model is excluded, the policy routes the whole request."""
    decision = decide(Rules(share=0.1, default_arm="gone"))
    assert decision.mode is Mode.ONLINE
    assert min(decision.probs) > 0


def test_a_cost_weight_favours_cheap_models() -> None:
    """A weight on cost lowers the probability of the most expensive model at once."""
    free, dear = decide(Rules()), decide(Rules(cost_weight=1.0))
    assert dear.probs[-1] < free.probs[-1]
    assert dear.mean == free.mean


def test_decisions_are_reproducible() -> None:
    """The same id and seed give the same decision; another seed can give another draw."""
    assert decide(Rules(seed=1), 5) == decide(Rules(seed=1), 5)
    assert len({decide(Rules(seed=seed, floor=1.0), 5).chosen for seed in range(40)}) == 4


@given(number=st.integers(0, 2**128 - 1))
def test_fallbacks_are_drawn_from_the_same_pmf(number: int) -> None:
    """Each fallback is drawn from the pmf without the failed models, with its conditional probability; then None."""
    decision = decide(Rules(floor=0.3), number)
    failed = [decision.chosen]
    while (following := renormalise(decision, failed, len(failed))) is not None:
        arm, probability = following
        assert arm not in failed
        left = sum(p for a, p in zip(decision.eligible, decision.probs, strict=True) if a not in failed)
        assert probability == pytest.approx(decision.probs[decision.eligible.index(arm)] / left)
        failed.append(arm)
    assert sorted(failed) == sorted(decision.eligible)


def test_exclusions_have_reasons() -> None:
    """A model without a capability or enough context is excluded with the reason, and the order is canonical."""
    small = ModelCard(name="z", provider="p", context_window=100)
    plain = ModelCard(name="b", provider="p", capabilities=("streaming",))
    able = ModelCard(name="a", provider="p", capabilities=("streaming", "tools"), revision="2")
    found = Roster([small, plain, able]).eligible(Wants(capabilities=("tools",), prompt_tokens=500))
    assert [card.arm for card in found.cards] == ["a@2"]
    assert dict(found.excluded) == {
        "b": "capability: lacks tools, has streaming",
        "z": "context: needs about 500 tokens, has 100",
    }


@pytest.mark.parametrize(("level", "new"), [(0.5, ("m01",)), (-50.0, ())])
def test_a_new_arm_keeps_its_share_while_there_is_hope(level: float, new: tuple[str, ...]) -> None:
    """After its first calls it has one only if it may still be the best; without a share none is logged."""
    made = learner(0, 4)
    made.fit.arms.correction[made.fit.arms.row("m01")] = [level, 0.0, 0.0]
    counts = made.projections.arm_counts
    counts.counts, counts.joined = {"m00": 1000, "m01": 5}, {"m00": 0, "m01": 1000, "m02": 0, "m03": 0}
    rules = Rules(newcomer_pulls=4, newcomer_labels=30, newcomer_floor=0.4)
    for share, logged in ((0.4, new), (0.0, ())):
        decider = Decider(SquareCB(20.0), made, msgspec.structs.replace(rules, newcomer_floor=share))
        decision = decider.decide(str(uuid.UUID(int=1)), 1.0, Identity(user="u"), X, cards(4))
        assert decision.new == logged


def test_what_is_not_used_is_not_logged() -> None:
    """Without runtime settings the configuration's version counts; fields at their default take no space."""
    decision = decide(Rules(config_hash="c"))
    assert decision.policy.config_hash == "c"
    assert not [
        name for name in (b"new", b"cost_weight", b"budget_unit_usd", b"switch") if name in encode_event(decision)
    ]


def test_a_model_takes_sixty_bytes_of_a_decision() -> None:
    """Of the rows that decide every bit is kept; what only explains is rounded, and names are shortened."""
    sizes = []
    for K in (3, 32):
        rng, decision = np.random.default_rng(K), decide(Rules(), K=K)
        exact = {name: tuple(rng.random(K).tolist()) for name in ("probs", "twin", "mean", "sd")}
        assert decision.grounds is not None
        terms = tuple(map(tuple, on_grid(rng.normal(size=(6, K)) * 0.01, 12).tolist()))
        grounds = msgspec.structs.replace(
            decision.grounds, terms=(*terms[:3], (), *terms[4:]), answers=(200,) * K, labels=(200,) * K
        )
        sizes.append(len(encode_event(msgspec.structs.replace(decision, grounds=grounds, **exact))))
    assert (sizes[1] - sizes[0]) / 29 <= 60


def test_only_models_without_a_price_are_logged_as_unpriced() -> None:
    """A known price of 0 is a price."""
    free, unknown = cards(2)
    unknown = msgspec.structs.replace(unknown, prices=Prices(output=1.0, known=False))
    decider = Decider(SquareCB(20.0), learner(0, 2), Rules())
    assert decider.decide(str(uuid.UUID(int=1)), 1.0, Identity(), X, [free, unknown]).unpriced == (unknown.arm,)


def test_without_a_limit_a_named_model_needs_no_prediction() -> None:
    """What cannot be over a budget is not looked up, so that a broken fit bars nothing."""
    made = learner(0, 2)
    made.fit = None  # type: ignore[assignment]
    assert Decider(SquareCB(20.0), made, Rules()).over_budget(1.0, Identity(), X, cards(2), 10) == []
