"""Conformance: laws of every policy in the package, and the purpose of each."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import uuid

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fitrouter import policies
from fitrouter.config import CandidateConfig
from fitrouter.draw import replay
from fitrouter.errors import ConfigError
from fitrouter.policies import Beliefs, Fixed, LinearThompson, Policy, SquareCB, build_policy
from fitrouter.policies._base import sound
from fitrouter.posterior.labels import Answered, Label
from fitrouter.routing.decider import Decider, Rules
from fitrouter.state.learner import Learner
from fitrouter.types import FeedbackKind, Identity, ModelCard


def discovered() -> dict[str, type]:
    """Name → class, of every class in the package that has a name and proposes."""
    found: dict[str, type] = {}
    for module in pkgutil.iter_modules(policies.__path__, "fitrouter.policies."):
        for item in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(item) and isinstance(getattr(item, "name", None), str) and hasattr(item, "propose"):
                found[item.name] = item
    return found


brief = settings(max_examples=20)
NAMES = sorted(discovered())
BY_BELIEFS = [name for name in NAMES if name != "fixed"]
"""Policies that look at beliefs alone, not at names."""

finite = st.floats(-10, 10)
broken = st.sampled_from([np.nan, np.inf, -np.inf, 1e308, -1e308])


def make(name: str) -> Policy:
    return build_policy(name, default_model="a1", shadow=True)


GROWN = 612.0
"""Labels after which linear Thompson sampling explores by its whole scale."""


def beliefs(utility: list[float], sd: float | list[float] = 0.1, steps: float = 100.0) -> Beliefs:
    K = len(utility)
    return Beliefs(
        arms=tuple(f"a{k}" for k in range(K)),
        utility=np.array(utility, dtype=np.float64),
        sd=np.full(K, sd) if isinstance(sd, float) else np.array(sd, dtype=np.float64),
        steps=steps,
    )


@st.composite
def states(draw: st.DrawFn, entry: st.SearchStrategy[float] = finite) -> Beliefs:
    """Beliefs of 1 to 32 arms, ties and certain arms among them."""
    K = draw(st.integers(1, 32))
    utility = draw(st.lists(st.one_of(entry, st.sampled_from([0.0, 0.5])), min_size=K, max_size=K))
    sd = draw(st.lists(st.one_of(st.floats(0, 3), st.just(0.0), entry.map(abs)), min_size=K, max_size=K))
    return beliefs(utility, sd, draw(st.floats(0, 1e9)))


# --- the pmf ---


def test_every_policy_is_configured_and_built_by_its_name() -> None:
    """A new policy is tested, and can be configured, by existing; its fields are settings of the configuration."""
    assert len(NAMES) >= 7
    for name, cls in discovered().items():
        assert type(make(name)) is cls
        assert policies.parameters(name).keys() == policies.fields_of(cls).keys() <= CandidateConfig.model_fields.keys()


@pytest.mark.parametrize("name", NAMES)
@brief
@given(state=states())
def test_proposal_is_a_pmf(name: str, state: Beliefs) -> None:
    """Probabilities are non-negative and sum to 1 within 1e-12, for one arm as for 32; a single arm has all."""
    pmf = make(name).propose(state)
    assert pmf.shape == state.utility.shape
    assert pmf.dtype == np.float64
    assert (pmf >= 0).all()
    assert abs(pmf.sum() - 1) < 1e-12
    if len(pmf) == 1:
        assert pmf.tolist() == [1.0]


@pytest.mark.parametrize("name", NAMES)
@brief
@given(state=states(st.one_of(finite, broken)))
def test_invalid_estimates_give_a_pmf(name: str, state: Beliefs) -> None:
    """NaN, infinities and numbers that overflow give a pmf, without a warning."""
    pmf = make(name).propose(state)
    assert np.isfinite(pmf).all()
    assert (pmf >= 0).all()
    assert abs(pmf.sum() - 1) < 1e-12


def test_an_invalid_utility_counts_as_the_lowest_valid_one(subtests: pytest.Subtests) -> None:
    """An arm whose utility is not finite neither wins nor changes what the others get of each other."""
    for bad in (
        np.nan,
        np.inf,
        -np.inf,
    ):
        for name in NAMES:
            with subtests.test(name=name, bad=bad):
                policy = make(name)
                assert (
                    policy.propose(beliefs([0.4, bad, 0.9])).tolist()
                    == policy.propose(beliefs([0.4, 0.4, 0.9])).tolist()
                )
                certain = policy.propose(beliefs([0.4, 0.6, 0.9], [0.1, 0.0, 0.1]))
                assert policy.propose(beliefs([0.4, 0.6, 0.9], [0.1, bad, 0.1])).tolist() == certain.tolist()


def test_sound_estimates_are_used_as_they_are_and_huge_ones_are_bounded() -> None:
    """Sound arrays are not copied for each pmf; an sd beyond all reason still leaves numbers that can be compared."""
    state = beliefs([0.1, 0.9], [0.0, 0.2])
    assert [given is used for given, used in zip((state.utility, state.sd), sound(state), strict=True)] == [True, True]
    assert sound(beliefs([0.1, 0.9], [1e300, 0.2]))[1].tolist() == [1e100, 0.2]


def test_no_arms_are_refused(subtests: pytest.Subtests) -> None:
    """No arms, and arrays of unequal lengths, are ValueErrors."""
    for name in NAMES:
        with subtests.test(name=name):
            with pytest.raises(ValueError, match="at least one eligible arm"):
                make(name).propose(beliefs([]))
            with pytest.raises(ValueError, match="lengths must be equal"):
                make(name).propose(Beliefs(arms=("a", "b"), utility=np.zeros(2), sd=np.zeros(3), steps=0.0))


@pytest.mark.parametrize("name", NAMES)
@brief
@given(state=states(), other=states())
def test_proposing_is_pure(name: str, state: Beliefs, other: Beliefs) -> None:
    """The same estimates give the same bits whatever was proposed before, and are not modified."""
    policy = make(name)
    before = state.utility.tobytes(), state.sd.tobytes()
    first = policy.propose(state)
    policy.propose(other)
    assert policy.propose(state).tobytes() == make(name).propose(state).tobytes() == first.tobytes()
    assert (state.utility.tobytes(), state.sd.tobytes()) == before
    assert not np.shares_memory(first, state.utility)


@pytest.mark.parametrize("name", BY_BELIEFS)
@brief
@given(state=states(), data=st.data())
def test_order_of_arms_does_not_matter(name: str, state: Beliefs, data: st.DataObject) -> None:
    """Permuting the arms permutes the pmf, ties included: no arm is favoured for its name."""
    order = data.draw(st.permutations(range(len(state.arms))))
    moved = Beliefs(
        arms=tuple(state.arms[i] for i in order), utility=state.utility[order], sd=state.sd[order], steps=state.steps
    )
    straight = make(name).propose(state)
    np.testing.assert_allclose(make(name).propose(moved), straight[order], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", BY_BELIEFS)
@brief
@given(state=states(), sd=st.floats(0, 2))
def test_a_better_arm_is_never_less_likely(name: str, state: Beliefs, sd: float) -> None:
    """Among arms of equal sd probability never falls as utility rises; equal arms are equally likely."""
    K = len(state.arms)
    pmf = make(name).propose(Beliefs(arms=state.arms, utility=state.utility, sd=np.full(K, sd), steps=state.steps))
    order = np.argsort(state.utility, kind="stable")
    assert (np.diff(pmf[order]) >= -1e-9).all()
    tied = np.diff(state.utility[order]) == 0
    np.testing.assert_allclose(np.diff(pmf[order])[tied], 0.0, atol=1e-12)


# --- through the decider ---


def cards(K: int) -> list[ModelCard]:
    return [ModelCard(name=f"a{k}", provider="p") for k in range(K)]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15)
@given(
    seed=st.integers(0, 1000),
    floor=st.floats(0, 1),
    uniform_slice=st.floats(0, 1),
    share=st.floats(0, 1),
    eligible=st.sets(st.integers(0, 5), min_size=1),
)
def test_decisions_keep_the_floor_and_replay(
    name: str, seed: int, floor: float, uniform_slice: float, share: float, eligible: set[int]
) -> None:
    """A logged pmf covers the eligible arms alone, sums to 1 and is nowhere under its floor; its draw replays."""
    learner = _taught(seed)
    rules = Rules(floor=floor, uniform_slice=uniform_slice, share=share, default_arm="a0", seed=seed)
    able = [card for k, card in enumerate(cards(6)) if k in eligible]
    x = np.random.default_rng(seed).normal(size=3)
    decision = Decider(make(name), learner, rules).decide(
        str(uuid.UUID(int=seed << 64 | seed)), 1.0, Identity(), x, able
    )
    assert decision.eligible == tuple(card.arm for card in able)
    assert len(decision.probs) == len(able)
    assert abs(sum(decision.probs) - 1) < 1e-12
    assert min(decision.probs) >= decision.floor / len(able)
    if 0 in eligible:
        assert decision.probs[0] >= (1 - share) * (1 - 1e-9)
    assert decision.propensity == decision.probs[decision.eligible.index(decision.chosen)] > 0
    assert replay(decision) == decision.chosen


@pytest.mark.parametrize("name", NAMES)
def test_arms_come_and_go_at_any_time(name: str) -> None:
    """A model that nobody saw can be chosen at once; one that is gone stays away, and comes back as it was left."""
    learner = _taught(3)
    decider = Decider(make(name), learner, Rules(floor=0.05))
    x = np.array([1.0, 0.2, -0.1])

    def probs(*names: int) -> tuple[float, ...]:
        decision = decider.decide(str(uuid.UUID(int=5)), 1.0, Identity(), x, [cards(9)[k] for k in names])
        assert decision.eligible == tuple(f"a{k}" for k in names)
        return decision.probs

    before = probs(0, 1, 2)
    with_new = probs(0, 1, 2, 8)
    assert min(with_new) >= 0.05 / 4 * (1 - 1e-9)
    assert probs(2) == (1.0,)
    assert probs(0, 1, 2) == before


def _taught(seed: int) -> Learner:
    """A learner with some labels of four of six models."""
    rng = np.random.default_rng(seed)
    learner = Learner(3, 1)
    for n in range(20):
        x = np.concatenate([[1.0], rng.normal(size=2) * 0.5])
        arm = f"a{rng.integers(4)}"
        answered, y = Answered(arm, x, np.ones(1)), float(rng.random() < 0.6)
        learner.fit.learn(Label(Identity(), answered, y, FeedbackKind.THUMB, ts=n))
    return learner


# --- each policy ---


def test_squarecb_sharpens() -> None:
    """More labels make the best arm likelier."""
    early = SquareCB(20.0).propose(beliefs([0.5, 0.9, 0.2], steps=0))
    late = SquareCB(20.0).propose(beliefs([0.5, 0.9, 0.2], steps=10_000))
    assert early[1] > early[0] > early[2]
    assert late[1] > early[1]


def test_thompson_explores_more_as_more_requests_are_to_be_expected() -> None:
    """Three eighths of its scale count before the first label, all of it after 612, and no more than that."""
    first, grown, late = (LinearThompson(1.0).propose(beliefs([0.5, 0.7], steps=steps)) for steps in (0, GROWN, 1e6))
    np.testing.assert_allclose(first, LinearThompson(0.375).propose(beliefs([0.5, 0.7], steps=GROWN)))
    assert first[0] < grown[0] == late[0]


def test_thompson_explores_what_is_unknown() -> None:
    """Of two arms that are equally far behind, the more uncertain one is more likely; squarecb ignores uncertainty."""
    state = beliefs([0.9, 0.5, 0.5], [0.1, 0.5, 0.1])
    known = LinearThompson(1.0).propose(state)
    assert known[1] > 10 * known[2]
    blind = SquareCB(20.0).propose(state)
    assert blind[1] == blind[2]


def test_fixed_steps_aside_where_its_arm_is_not_eligible() -> None:
    """Without its arm, fixed is uniform."""
    assert Fixed("gone").propose(beliefs([1.0, 0.0])).tolist() == [0.5, 0.5]


def test_linucb_is_shadow_only() -> None:
    """A deterministic policy is refused on traffic and allowed as a shadow candidate."""
    with pytest.raises(ConfigError, match="shadow candidate only"):
        build_policy("linucb")
    assert build_policy("linucb", shadow=True).name == "linucb"


def test_settings_that_cannot_be_used_are_refused(subtests: pytest.Subtests) -> None:
    """The message names the value, what is allowed, and what to do."""
    for algorithm, settings_, message in (
        ("thompsen", {}, r"'thompsen'; allowed are .*'squarecb'"),
        ("fixed", {}, "needs 'default_model'"),
        ("squarecb", {"gamma": 0.0}, r"'squarecb' with gamma=0.0: .* greater than 0"),
        ("linear_thompson", {"scale": float("nan")}, "scale=nan: .* finite"),
        ("softmax", {"temperature": -1.0}, r"'softmax' with temperature=-1.0"),
        ("epsilon_greedy", {"epsilon": 1.5}, r"'epsilon_greedy' with epsilon=1.5: .* less than or equal to 1"),
        ("linucb", {"alpha": float("inf"), "shadow": True}, "alpha=inf"),
        ("squarecb", {"gama": 1.0}, r"unknown settings \['gama'\]; allowed are .*'gamma'"),
    ):
        with subtests.test(algorithm=algorithm, settings_=settings_), pytest.raises(ConfigError, match=message):
            build_policy(algorithm, **settings_)


def test_edges_of_settings_are_allowed() -> None:
    """ε-greedy may be greedy, and may be uniform."""
    assert build_policy("epsilon_greedy", epsilon=0.0).propose(beliefs([0.1, 0.2])).tolist() == [0.0, 1.0]
    assert build_policy("epsilon_greedy", epsilon=1.0).propose(beliefs([0.1, 0.2])).tolist() == [0.5, 0.5]


# --- the quadrature ---


def _reference(mean: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """The pmf of the argmax from the C library's erfc on 6,001 nodes an arm: another rule, another grid."""
    from math import erfc, sqrt

    z = np.linspace(-8.5, 8.5, 6001)
    cdf = np.frompyfunc(lambda value: 0.5 * erfc(-value / sqrt(2.0)), 1, 1)
    found = []
    for k in range(len(mean)):
        t = mean[k] + sd[k] * z
        others = [cdf((t - mean[j]) / sd[j]).astype(float) for j in range(len(mean)) if j != k]
        found.append(np.trapezoid(np.prod(others, axis=0) * np.exp(-0.5 * z * z), z) / sqrt(2.0 * np.pi))
    return np.array(found)


@settings(max_examples=15)
@given(
    mean=st.lists(st.floats(-1, 1), min_size=2, max_size=5),
    sds=st.lists(st.floats(-1.5, 0), min_size=5, max_size=5),
)
def test_thompson_agrees_with_a_fine_reference(mean: list[float], sds: list[float]) -> None:
    """The pmf is exact to 1e-7 for sds that differ by a factor of thirty."""
    m, s = np.array(mean), 10.0 ** np.array(sds[: len(mean)])
    state = beliefs(mean, s.tolist(), GROWN)
    np.testing.assert_allclose(LinearThompson(1.0).propose(state), _reference(m, s), atol=1e-7)


def test_thompson_with_32_arms_agrees_with_a_fine_reference() -> None:
    """The same for as many arms as a request may have, close together."""
    rng = np.random.default_rng(4)
    m, s = rng.normal(size=32) * 0.05, np.full(32, 0.2)
    np.testing.assert_allclose(
        LinearThompson(1.0).propose(beliefs(m.tolist(), s.tolist(), GROWN)), _reference(m, s), atol=1e-7
    )


@given(gap=st.floats(-4, 4), sds=st.tuples(st.floats(-5, 0), st.floats(-5, 0)))
def test_thompson_of_two_arms_has_a_closed_form(gap: float, sds: tuple[float, float]) -> None:
    """P(X > Y) = Φ((m − n) / √(s² + r²)), to 1e-7 up to a factor of 1e5 between the sds."""
    from math import erfc, sqrt

    s, r = 10.0 ** sds[0], 10.0 ** sds[1]
    assume(s != r or gap != 0)
    wanted = 0.5 * erfc(-gap / sqrt(s * s + r * r) / sqrt(2.0))
    assert LinearThompson(1.0).propose(beliefs([gap, 0.0], [s, r], GROWN))[0] == pytest.approx(wanted, abs=1e-7)


def test_thompson_at_the_edges(subtests: pytest.Subtests) -> None:
    """Certain arms, ties, tiny sds on large means and huge gaps: no underflow, no division by nothing."""
    for mean, sd, wanted in (
        ([0.3, 0.7], [0.0, 0.0], [0.0, 1.0]),
        ([0.7, 0.7, 0.1], [0.0, 0.0, 0.0], [0.5, 0.5, 0.0]),
        ([0.0, 0.0], [1.0, 0.0], [0.5, 0.5]),
        ([1e6, 1e6], [1e-9, 0.0], [0.5, 0.5]),
        ([0.0, 1e9], [1.0, 1.0], [0.0, 1.0]),
        ([0.0, -50.0], [1.0, 1.0], [1.0, 0.0]),
    ):
        with subtests.test(mean=mean, sd=sd, wanted=wanted):
            np.testing.assert_allclose(LinearThompson(1.0).propose(beliefs(mean, sd)), wanted, atol=1e-7)
