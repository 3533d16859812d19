"""Laws of arm posteriors: rows, variants, alarms, and state."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fitrouter.posterior.arms import UNKNOWN, ArmParams, Arms, base_arm
from fitrouter.posterior.heads import LowRankHeads
from fitrouter.posterior.labels import Answered, Label
from fitrouter.posterior.mixture import EXPERTS
from fitrouter.posterior.model import Fit
from fitrouter.types import FeedbackKind, Floats, Identity

d, D = 5, 4
WHO = Identity(user="ann", role="analyst")


def _arms() -> Arms:
    return Arms(d, D, ArmParams())


def _xh(rng: np.random.Generator) -> tuple[Floats, Floats]:
    x, h = rng.normal(size=d) * 0.4, rng.normal(size=D)
    x[0] = h[0] = 1.0
    return x, h


def _live(fit: Fit, rng: np.random.Generator, arms: tuple[str, ...], n: int = 40, y: float | None = None) -> None:
    for _ in range(n):
        arm = arms[int(rng.integers(len(arms)))]
        x, h = _xh(rng)
        fit.arms.observe_response(fit.arms.row(arm), x, h)
        fit.arms.observe_operations(fit.arms.model(arm), x, 100.0, 1.0)
        fit.arms.observe_answer(fit.arms.model(arm), True, 1.0)
        said = float(rng.random()) if y is None else y
        fit.learn(Label(WHO, Answered(arm, x, h), said, FeedbackKind.THUMB))


def _believed(fit: Fit, arms: tuple[str, ...], x: Floats) -> Floats:
    seen = fit.estimate(WHO, x, arms, 2.0)
    return np.stack([seen.mean, seen.blind, seen.tokens, seen.seconds, seen.availability])


@given(st.integers(0, 10_000), st.permutations(["a", "b", "c", "never asked"]))
@settings(max_examples=20)
def test_estimates_of_arms_are_independent(seed: int, names: list[str]) -> None:
    """An arm's estimate does not depend on the other arms asked for; an unknown arm has the prior's."""
    rng, fit = np.random.default_rng(seed), Fit(d, D)
    _live(fit, rng, ("a", "b", "c"))
    x, _ = _xh(rng)
    together = _believed(fit, tuple(names), x)
    for k, name in enumerate(names):
        np.testing.assert_allclose(_believed(fit, (name,), x)[:, 0], together[:, k], rtol=1e-6)
    k = names.index("never asked")
    assert together[2, k] == pytest.approx(fit.params.arms.tokens)
    assert together[0, k] != pytest.approx(together[0, k - 1])


def test_arms_can_join_at_any_time() -> None:
    """A joining arm does not change the others, and learns as if it had been there from the start."""
    early, late = Fit(d, D), Fit(d, D)
    early.arms.row("c")
    for fit in (early, late):
        rng = np.random.default_rng(1)
        _live(fit, rng, ("a", "b"))
        _live(fit, rng, ("a", "c"))
    x, _ = _xh(np.random.default_rng(2))
    np.testing.assert_allclose(
        _believed(early, ("a", "b", "c"), x), _believed(late, ("a", "b", "c"), x), rtol=1e-6, atol=1e-9
    )


@given(st.integers(0, 1000))
@settings(max_examples=15)
def test_reading_is_what_the_posterior_says(seed: int) -> None:
    """The batched products of `read` are the single ones."""
    rng, arms = np.random.default_rng(seed), _arms()
    for _ in range(30):
        x, h = _xh(rng)
        k = arms.row("ab"[int(rng.integers(2))])
        arms.observe_response(k, x, h)
        arms.observe_operations(k, x, 300.0 * rng.random(), float(rng.random()))
    names = ("b", "a") if seed % 2 else ("a", "b")
    x, _ = _xh(rng)
    widths = rng.dirichlet(np.ones(len(ArmParams().corrections)))
    seen = arms.read(arms.find(names), x, widths)
    for i, name in enumerate(names):
        k = arms.names[name]
        np.testing.assert_allclose(seen.profile[i], x @ arms.profile[k], atol=1e-12)
        assert seen.spread[i] == pytest.approx(x @ arms.profile_cov[k] @ x, rel=1e-5)
        assert seen.variance[i] == pytest.approx(x @ np.einsum("c,cij->ij", widths, arms.correction_cov[k]) @ x)
        np.testing.assert_allclose([seen.tokens[i], seen.seconds[i]], arms.operations[k] @ x, atol=1e-9)


# --- variants ---


def test_variants_share_all_but_the_profile() -> None:
    """C, offsets, cost and availability are the model's; the profile starts at the model's and is learnt separately."""
    rng, fit = np.random.default_rng(0), Fit(d, D)
    _live(fit, rng, ("m@1", "n@1"), y=0.9)
    fit.arms.row("m#brief@1")
    names, (x, _) = ("m@1", "m#brief@1"), _xh(rng)
    mean, *_ = start = _believed(fit, names, x)
    np.testing.assert_allclose(start[:, 0], start[:, 1], rtol=1e-9)
    for _ in range(30):
        z, h = _xh(rng)
        h[1] = 3.0
        fit.arms.observe_response(fit.arms.row("m#brief@1"), z, h)
    profile = fit.profile(x, names)
    assert profile[1, 1] > 2.0
    assert abs(profile[0, 1]) < 1.0
    label = Label(WHO, Answered("m#brief@1", x, None), 0.0, FeedbackKind.THUMB)
    before = fit.arms.correction[fit.arms.row("m@1")].copy()
    fit.learn(label)
    now = fit.arms.correction[fit.arms.row("m@1")]
    assert (now[:, 0] < before[:, 0]).all(), "a label on the variant teaches the model's c"
    assert set(fit.tastes.users["ann"].heads[0].models) == {"m@1", "n@1"}
    assert _believed(fit, names, x)[2, 0] == _believed(fit, names, x)[2, 1]
    assert mean[0] == mean[1]


def test_base_arms(subtests: pytest.Subtests) -> None:
    """The variant's name is removed, the revision stays."""
    for arm, base in (
        ("gpt", "gpt"),
        ("gpt@2", "gpt@2"),
        ("gpt#a", "gpt"),
        ("gpt#a@2", "gpt@2"),
        ("a/b#c-1.x@r@s", "a/b@r@s"),
    ):
        with subtests.test(arm=arm, base=base):
            assert base_arm(arm) == base


# --- alarms ---


def test_a_drifted_arm_has_the_same_means_and_larger_variances() -> None:
    """Means stay, variances grow up to the prior's, also those of offsets; other arms stay."""
    rng, fit = np.random.default_rng(0), Fit(d, D)
    _live(fit, rng, ("a", "b"), n=200, y=0.8)
    x, _ = _xh(rng)
    k, prior = fit.arms.names["a"], fit.arms.correction_cov[0]
    before, cov = fit.arms.correction[k].copy(), fit.arms.correction_cov[k].copy()
    other = fit.arms.corrections[fit.arms.names["b"]].copy()
    fit.drifted("a")
    np.testing.assert_array_equal(fit.arms.correction[k], before)
    after = fit.arms.correction_cov[k]
    assert np.linalg.eigvalsh(after - cov).min() > -1e-12
    assert np.linalg.eigvalsh(prior - after).min() > -1e-12
    assert np.trace(after[1]) > 2.0 * np.trace(cov[1])
    ann = fit.tastes.user(Identity(user="ann"))
    assert ann is not None
    assert not any(head.offsets("a").any() for head in ann.heads)
    np.testing.assert_array_equal(fit.arms.corrections[fit.arms.names["b"]], other)
    assert fit.estimate(WHO, x, ("a",), 2.0).sd[0] > 0.0


def test_a_silent_drop_is_detected() -> None:
    """After a drop of .5 the alarm is raised, and the level is relearnt much faster than without it."""

    def level(heed: bool) -> float:
        rng, fit = np.random.default_rng(3), Fit(d, D)
        if not heed:
            fit.drift.observe = lambda *_: False  # type: ignore[method-assign]
        x = np.eye(d)[0]
        for t in range(500):
            y = float(rng.random() < (0.85 if t < 400 else 0.35))
            who = Identity(user=f"u{t % 40}")
            for arm, said in (("a", y), ("b", float(rng.random() < 0.6))):
                fit.learn(Label(who, Answered(arm, x, None), said, FeedbackKind.THUMB))
        return float(fit.estimate(Identity(), x, ("a",), 0.0).mean[0])

    assert level(True) < level(False) - 0.05


def test_an_overrated_arm_learns_from_labels_alone() -> None:
    """Its texts and profile no longer change its utility, labels do; a restored state continues the same."""
    rng, fit = np.random.default_rng(0), Fit(d, D)
    fit.tastes.population.mean = np.array([0.7, 0.3, 0.0, 0.0])
    _live(fit, rng, ("a", "b", "flatterer", "flatterer#kind"), n=80)
    x, h = _xh(rng)
    fit.distrust("flatterer#kind")
    k = fit.arms.names["flatterer"]
    assert (fit.arms.correction[k, :, 0] == 0.0).all()
    assert (fit.arms.correction_cov[k, :, 0, 0] == UNKNOWN).all()
    names = ("flatterer", "a", "flatterer#kind")
    trusted = (fit.arms.names["a"], fit.arms.names["b"])
    mean = np.mean([x @ fit.arms.profile[row] for row in trusted], axis=0)
    np.testing.assert_allclose(fit.profile(x, names)[[0, 2]], [mean, mean], atol=1e-12)
    before = fit.estimate(Identity(), x, names, 0.0).mean
    for _ in range(20):
        fit.arms.observe_response(fit.arms.row("flatterer"), x, np.array([1.0, 9.0, 0.0, 0.0]))
    after = fit.estimate(Identity(), x, names, 0.0).mean
    np.testing.assert_array_equal(before, after)
    taste = fit.tastes.population.state.copy()
    for _ in range(20):
        fit.learn(Label(Identity(), Answered("flatterer", x, h), 0.0, FeedbackKind.THUMB))
    np.testing.assert_array_equal(fit.tastes.population.state, taste)
    assert fit.estimate(Identity(), x, names, 0.0).mean[0] < before[0] - 0.1
    other = Fit(d, D)
    for name in fit.arms.names:
        other.arms.row(name)
    assert all(other.arms.load(name, fit.arms.dump(name)) for name in fit.arms.names)
    assert other.arms.distrusts("flatterer#kind")


def test_an_overrated_arm_is_detected() -> None:
    """An arm with high scores and low labels is flagged, and no other one."""
    rng, fit = np.random.default_rng(1), Fit(d, D)
    fit.tastes.population.mean = np.array([0.7, 0.2, 0.0, 0.0])
    arms = ("a", "b", "c", "fake")
    for t in range(600):
        arm, x = arms[t % 4], np.eye(d)[0]
        h = np.array([1.0, 1.5 if arm == "fake" else 0.0, *rng.normal(size=2)])
        y = float(rng.random() < (0.1 if arm == "fake" else 0.7))
        answer = Answered(arm, x, h)
        # Labels of the others hold the taste where it is, as a prior from elsewhere would.
        fit.tastes.population.mean = np.array([0.7, 0.2, 0.0, 0.0])
        fit.learn(Label(Identity(user=f"u{t % 50}"), answer, y, FeedbackKind.THUMB))
    assert {name for name in arms if fit.arms.distrusts(name)} == {"fake"}


# --- state ---


@given(st.integers(0, 10_000), st.integers(0, 10_000))
@example(3153, 0)  # draws no "m#brief"
@settings(max_examples=15)
def test_arm_state_round_trips_and_rejects_corruption(seed: int, at: int) -> None:
    """The state round-trips bit for bit; cut, padded or non-finite bytes are rejected and change nothing."""
    rng, fit = np.random.default_rng(seed), Fit(d, D)
    names = ("m", "m#brief", "n")
    _live(fit, rng, names, n=20)
    for name in names:  # twenty draws of three can leave one out
        _live(fit, rng, (name,), n=1)
    if seed % 2:
        fit.distrust("n")
    other = Fit(d, D)
    for name in names:
        assert other.arms.load(name, fit.arms.dump(name))
        assert other.arms.dump(name) == fit.arms.dump(name)
    x, _ = _xh(rng)
    np.testing.assert_array_equal(fit.profile(x, names), other.profile(x, names))
    payload = fit.arms.dump("m")
    at = 8 * (at % (len(payload) // 8))
    broken = payload[:at] + np.float64(np.nan).tobytes() + payload[at + 8 :]
    for wrong in (broken, payload[:-8], payload + b"\0" * 8, fit.arms.dump("m#brief")):
        assert not other.arms.load("m", wrong)
    assert other.arms.dump("m") == payload


def test_person_state_round_trips() -> None:
    """Heads and weights come back with everything else; damaged ones are refused and change nothing."""
    fit = Fit(d, D)
    _live(fit, np.random.default_rng(0), ("a", "b"))
    person, other = fit.tastes.users["ann"], fit.tastes.new_person()
    assert other.load(person.dump())
    assert other.dump() == person.dump()
    assert other.heads[0].offsets("a").tolist() == person.heads[0].offsets("a").tolist()
    assert person.heads[0].offsets("a").all()
    payload = other.dump()
    for weights in (np.zeros(1), np.full(len(EXPERTS), np.nan), np.full(len(EXPERTS), -1.0), np.ones(len(EXPERTS))):
        kept, person.weights["user"] = person.weights["user"], weights
        assert not other.load(person.dump())
        person.weights["user"] = kept
    for value in (np.nan, np.inf, 30.0):
        broken = fit.tastes.new_person()
        assert broken.load(payload)
        heads = broken.heads[-1]
        assert isinstance(heads, LowRankHeads)
        heads.factors[0, 0, 0] = value
        assert not other.load(broken.dump())
    assert other.dump() == payload
