"""Laws of the mixture of heads: the bound on its loss, exact posteriors of heads, and valid state."""

from __future__ import annotations

import math
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fitrouter.posterior.gaussian import gaussian_update
from fitrouter.posterior.heads import RANK, DenseHeads, HeadPriors, Heads, LowRankHeads, Rows, Width
from fitrouter.posterior.labels import Answered, FitParams, Label
from fitrouter.posterior.mixture import EXPERTS, FLOOR, SHARE, START, Context, MixturePrior, ModelAverage, updated
from fitrouter.posterior.model import Fit, _along
from fitrouter.posterior.people import Person
from fitrouter.types import FeedbackKind, Floats, Identity

D = 5
NAMES = ("one", "length", "structure", "c", "d")
MODELS = ("m", "n", "o")


@given(
    st.lists(st.lists(st.floats(-12, 0), min_size=3, max_size=3), min_size=1, max_size=60),
    st.lists(st.floats(0.01, 1), min_size=3, max_size=3),
    st.integers(0, 1000),
)
@settings(max_examples=80)
def test_nobody_loses_more_than_the_bound(rows: list[list[float]], start: list[float], seed: int) -> None:
    """For any likelihoods and any priors that the share returns to: loss ≤ best head + ln 1/π + n ln 1/(1 − share)."""
    rng, weights = np.random.default_rng(seed), np.array(start) / sum(start)
    first, loss = weights.copy(), 0.0
    for row in np.array(rows):
        loss -= float(np.log(weights @ np.exp(row)))
        _, weights = updated(weights, row, rng.dirichlet(np.ones(3)))
        assert weights.sum() == pytest.approx(1.0)
    bound = -np.array(rows).sum(axis=0) - np.log(first) - len(rows) * math.log(1.0 - SHARE)
    assert loss <= bound.min() + 1e-9


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 2), st.sampled_from(list(FeedbackKind))), max_size=40))
@settings(max_examples=15)
def test_the_bound_holds_for_what_is_learnt(labels: list[tuple[float, int, FeedbackKind]]) -> None:
    """For any labels of a person, the mixture of the reward model loses no more than the bound against any head."""
    fit, rng, user = Fit(2, D, names=NAMES), np.random.default_rng(0), Identity(user="u")
    losses, loss, priors = np.zeros(len(EXPERTS)), 0.0, None
    for y, k, kind in labels:
        h = np.concatenate([[1.0], rng.normal(size=D - 1)])
        against = Answered("z", np.array([1.0, 0.2]), -h) if kind is FeedbackKind.PAIR else None
        label = Label(user, Answered(MODELS[k], np.array([1.0, 0.3]), h), y, kind, against=against)
        weights = fit.weights(user)
        priors = weights if priors is None else priors
        with patch.object(Person, "reweigh", autospec=True, side_effect=Person.reweigh) as reweigh:
            fit.learn(label)
        seen = reweigh.call_args.args[2]
        losses -= seen
        loss -= float(np.log(weights @ np.exp(seen - seen.max())) + seen.max())
    if priors is not None:
        assert loss <= (losses - np.log(priors)).min() - len(labels) * math.log(1.0 - SHARE) + 1e-6


def _heads(kind: type[Heads], *widths: Width) -> Heads:
    (priors,) = HeadPriors.grouped(widths, _index(), D)
    return kind(priors)


def _learn(heads: Heads, row: Rows, y: float, noise: float, level: float = 0.0) -> None:
    """Fold a label into a single head."""
    seen = heads.observe(row)
    update = gaussian_update(level + seen.mean[0], seen.variance[0], y, noise=noise)
    heads.learn(row, np.array([update.step]), np.array([update.shrink]))


@pytest.mark.parametrize(("kind", "labels", "error"), [(DenseHeads, 12, 1e-9), (LowRankHeads, RANK, 5e-3)])
@given(st.integers(0, 10_000), st.floats(0.01, 0.3))
@settings(max_examples=20)
def test_a_head_is_the_joint_posterior(kind: type[Heads], labels: int, error: float, seed: int, offset: float) -> None:
    """Taste and offsets are the posterior of a dense Gaussian over all of them; of low rank up to its rank."""
    rng = np.random.default_rng(seed)
    head, n = _heads(kind, Width(level=0.1, offset=offset, taste=0.4, named={"length": 0.2})), D + len(MODELS)
    mean, cov = np.zeros(n), np.diag(np.concatenate([head.priors.variance[0], np.full(len(MODELS), offset)]))
    rows = [_row(rng) for _ in range(labels)]
    for row in rows:
        y, noise = float(rng.normal()), float(rng.uniform(0.1, 1.0))
        z = np.concatenate(
            [row.h[0], [float(row.coefficient[0] @ [m == model for m in row.models]) for model in MODELS]]
        )
        _learn(head, row, y, noise)
        gain = cov @ z / (noise + z @ cov @ z)
        mean, cov = mean + gain * (y - z @ mean), cov - np.outer(gain, z @ cov)
    for row in [_row(rng) for _ in range(5)]:
        z = np.concatenate(
            [row.h[0], [float(row.coefficient[0] @ [m == model for m in row.models]) for model in MODELS]]
        )
        found = head.observe(row)
        assert found.mean[0] == pytest.approx(z @ mean, abs=error)
        assert found.variance[0] == pytest.approx(z @ cov @ z, abs=error)
    assert [float(head.offsets(model)[0]) for model in MODELS] == pytest.approx(mean[D:], abs=error)


@given(st.integers(0, 10_000), st.integers(0, 60))
@settings(max_examples=20)
def test_low_rank_keeps_what_labels_say_most_about(seed: int, labels: int) -> None:
    """Variances stay between the exact posterior's and the prior's, and the state round-trips bit for bit."""
    rng, width = np.random.default_rng(seed), Width(level=0.1, offset=0.2, taste=0.4)
    low, dense = _heads(LowRankHeads, width), _heads(DenseHeads, width)
    prior = low.observe(probe := _row(rng)).variance[0]
    for _ in range(labels):
        row, y = _row(rng), float(rng.normal())
        _learn(low, row, y, 0.1)
        _learn(dense, row, y, 0.1)
    variance, exact = low.observe(probe).variance[0], dense.observe(probe).variance[0]
    assert exact - 5e-3 <= variance <= prior + 5e-3
    for heads in (low, dense):
        other = type(heads)(heads.priors)
        other.load(*heads.dump())
        assert other.dump() == heads.dump()


def test_low_rank_forgets_the_least_direction() -> None:
    """Labels on few directions beyond its rank: those that were seen most stay known."""
    rng, low = np.random.default_rng(0), _heads(LowRankHeads, Width(level=0.1, offset=0.2, taste=0.4))
    often = Rows(np.eye(D)[[1]], ("m",), np.ones((1, 1)))
    for _ in range(100):
        _learn(low, often, 1.0, 0.1)
        _learn(low, _row(rng), float(rng.normal()), 5.0)
    seen = low.observe(often)
    assert seen.variance[0] < 0.02
    assert seen.mean[0] == pytest.approx(1.0, abs=0.05)


def _index() -> dict[str, int]:
    return {name: j for j, name in enumerate(NAMES)}


def _dense(row: Rows) -> Floats:
    counted = dict(zip(row.models, row.coefficient[0].tolist(), strict=True))
    return np.concatenate([row.h[0], [counted.get(model, 0.0) for model in MODELS]])


def _row(rng: np.random.Generator) -> Rows:
    one, other = rng.choice(len(MODELS), size=2, replace=False)
    if rng.random() < 0.5:
        return Rows(rng.normal(size=(1, D)), (MODELS[one],), np.ones((1, 1)))
    return Rows(rng.normal(size=(1, D)), (MODELS[one], MODELS[other]), np.array([[1.0, -1.0]]))


@given(st.integers(0, 1000), st.floats(-1, 1), st.floats(-1, 1))
@settings(max_examples=15)
def test_declared_values_are_exact_at_any_time(seed: int, first: float, second: float) -> None:
    """Declared before or after the labels, or corrected later: declared mean plus deviation is the same posterior."""
    rng = np.random.default_rng(seed)
    labels, shift = [(_row(rng), float(rng.normal())) for _ in range(6)], np.array([0.0, 0.3, -0.2, 0.0, 0.1])

    def learnt(steps: list[object]) -> tuple[Floats, Floats]:
        person = Person(D, [_heads(DenseHeads, Width(level=0.1, offset=0.1, taste=0.4))])
        for step in steps:
            if isinstance(step, float):
                person.declare(step * shift)
                continue
            row, y = step  # type: ignore[misc]
            _learn(person.heads[0], row, y, 0.1, float(person.declared @ row.h[0]))
        (heads,) = person.heads
        return person.declared + heads.tastes()[0], heads.covariance(np.ones(1))[:D, :D]

    late, early = learnt([first, *labels, second]), learnt([second, *labels])
    np.testing.assert_allclose(late[0], early[0], atol=1e-9)
    np.testing.assert_allclose(late[1], early[1], atol=1e-9)


@given(st.integers(0, 1000), st.integers(0, 60), st.sampled_from([None, "r"]), st.sampled_from([None, "u", "new"]))
@settings(max_examples=30)
def test_decisions_and_scores_read_the_mixture_that_labels_are_predicted_by(
    seed: int, labels: int, role: str | None, user: str | None
) -> None:
    """The moments of role and user, kept between labels, are those of each answer's row minus the average row."""
    fit, rng = Fit(2, D, names=NAMES), np.random.default_rng(seed)
    who, others = Identity(user=user, role=role), [Identity(user=name, role="r") for name in ("u", "v")]
    for declared in (0.1, 0.5):
        fit.tastes.declare(others[0], {"length": declared})
        fit.score(who, np.ones(D))
    bases, known = ("m", "n", "n", "unknown"), ("m", "n", "unknown")
    for number in range(labels + 1):
        profile, coefficient = rng.normal(size=(4, D)), np.array([[b == m for m in known] for b in bases]) * 1.0
        h = profile - profile.mean(axis=0)
        rows = [Rows(a[None], known, b[None]) for a, b in zip(h, coefficient - coefficient.mean(0), strict=True)]
        if role or user:
            (of_role, of_user), at = fit.people(who), fit.context(who)
            roles = [] if of_role is None else [of_role]
            seen = [fit._observe(at, [(each, row) for each in roles], of_user, row) for row in rows]
            _, mean, variance = _along(profile, bases, *fit._deviations(who))
            np.testing.assert_allclose(mean - mean.mean(), [each.mean for each in seen], atol=1e-9)
            np.testing.assert_allclose(variance, [each.variance for each in seen], atol=1e-5)
            plain = Rows(profile[:1], (), np.zeros((1, 0)))
            text = fit._observe(at, [(each, plain) for each in roles], of_user, plain)
            gain, common = fit.tastes.population.along(profile[0])
            score = fit.score(who, profile[0])
            assert score[0] == pytest.approx(common + text.mean, abs=1e-9)
            assert score[1] ** 2 == pytest.approx(profile[0] @ gain + text.variance, abs=1e-5)
        answer = Answered(MODELS[number % 2], np.array([1.0, 0.3]), np.concatenate([[1.0], rng.normal(size=D - 1)]))
        fit.learn(Label(others[number % 2], answer, float(rng.integers(2)), FeedbackKind.THUMB))


def test_nothing_half_learnt_is_kept_for_readers() -> None:
    """A reader in another thread, at any moment of an update in another context, leaves nothing for later ones."""
    fits = [Fit(2, D, FitParams(sensitive_roles=("judge",)), names=NAMES) for _ in range(2)]
    who, alone = Identity(user="u", role="judge"), Identity(user="u")
    h = np.concatenate([[1.0], np.linspace(-1.0, 1.0, D - 1)])
    label = Label(who, Answered("m", np.array([1.0, 0.3]), h), 1.0, FeedbackKind.THUMB)
    moved = Heads._move

    def read(heads: Heads, *args: Floats) -> None:
        moved(heads, *args)
        fits[0].score(alone, h)

    for fit in fits:
        fit.learn(label)
    with patch.object(Heads, "_move", read):
        fits[0].learn(label)
    fits[1].learn(label)
    assert fits[0].score(alone, h) == fits[1].score(alone, h)


def test_a_change_of_taste_is_followed() -> None:
    """After forty labels for long answers, thirty for short ones turn the sign of the taste."""
    fit, rng, user = Fit(2, D, names=NAMES), np.random.default_rng(0), Identity(user="u")
    for t in range(70):
        h = np.concatenate([[1.0], rng.normal(size=D - 1)])
        y = float((h[1] > 0) == (t < 40))
        fit.learn(Label(user, Answered("m", np.array([1.0, 0.0]), h), y, FeedbackKind.THUMB, pooled=False))
        if t == 39:
            assert fit.taste(user)[1] > 0.1
    assert fit.taste(user)[1] < 0.0


@pytest.mark.parametrize("kind", [FeedbackKind.THUMB, FeedbackKind.PAIR])
def test_a_change_of_mind_is_noticed_and_noise_is_not(kind: FeedbackKind) -> None:
    """Fifteen labels against a settled taste make a person uncertain again; three hundred random ones hardly ever."""
    for noisy in (False, True):
        fit, rng, user = Fit(2, D, names=NAMES), np.random.default_rng(1), Identity(user="u")
        with patch.object(LowRankHeads, "loosen", autospec=True, side_effect=LowRankHeads.loosen) as loosen:
            for t in range(300 if noisy else 75):
                h = np.concatenate([[1.0], rng.normal(size=D - 1)])
                y = float(rng.random() < 0.5 if noisy else (h[1] > 0) == (t < 60))
                against = Answered("n", np.array([1.0, 0.0]), -h) if kind is FeedbackKind.PAIR else None
                answer = Answered("m", np.array([1.0, 0.0]), h)
                fit.learn(Label(user, answer, y, kind, against=against))
                assert noisy or t >= 60 or not loosen.called
        person = fit.tastes.users["u"]
        assert loosen.call_count == person.changes * len(person.heads)
        assert person.changes <= 3 if noisy else person.changes == 1
    person.surprise, restored = 0.5, fit.tastes.new_person()
    assert restored.load(person.dump())
    assert [getattr(restored, name) for name in ("surprise", "changes", "usual")] == [0.5, person.changes, person.usual]


def test_loosened_heads_are_as_uncertain_as_new_ones() -> None:
    """Loosened heads keep the share of the mean that they are told to, and have the prior's variances."""
    width, rng = Width(level=0.1, offset=0.1, taste=0.4), np.random.default_rng(0)
    for kind in (LowRankHeads, DenseHeads):
        heads = _heads(kind, width)
        for _ in range(2 * RANK):
            _learn(heads, _row(rng), float(rng.normal()), 0.1, 0.0)
        mean, row = heads.mean.copy(), _row(rng)
        heads.loosen(0.5)
        np.testing.assert_allclose(heads.mean, 0.5 * mean)
        np.testing.assert_allclose(heads.observe(row).variance, _heads(kind, width).observe(row).variance)
        _learn(heads, row, 1.0, 0.1, 0.0)
        assert heads.finite()


def test_uncertainty_that_all_arms_share_cancels() -> None:
    """A person's level, however unknown, adds nothing to the standard deviations that policies explore by."""
    sds = []
    for level in (0.0, 5.0):
        widths = {name: Width(level=level, offset=0.05) for name in EXPERTS[2:]}
        base = FitParams()
        tastes = type(base.tastes)(**widths, population_intercept=level)
        fit = Fit(2, D, FitParams(tastes=tastes), names=NAMES)
        sds.append(fit.estimate(Identity(user="u"), np.array([1.0, 0.3]), MODELS, 0.0).sd)
    np.testing.assert_allclose(sds[0], sds[1], rtol=1e-9)


@given(
    st.lists(st.sampled_from([(c, e) for c, start in sorted(START.items()) for e in range(len(start))]), max_size=40)
)
@settings(max_examples=20)
def test_the_common_prior_keeps_its_floor_and_round_trips(moves: list[tuple[Context, int]]) -> None:
    """Whatever people's weights do, every head keeps its floor; the state round-trips and rejects damage."""
    prior = MixturePrior()
    for context, place in moves:
        E = len(START[context])
        prior.learn(context, np.eye(E)[place] - 1.0 / E)
    for context, start in START.items():
        weights = prior.weights(context)
        assert weights.sum() == pytest.approx(1.0)
        assert (weights >= FLOOR * np.array(start) - 1e-12).all()
    other, payload = MixturePrior(), prior.dump()
    assert other.load(payload)
    assert other.dump() == payload
    for broken in (payload[:-1], b"", b"\xc1"):
        assert not other.load(broken)
    assert other.dump() == payload


def test_the_better_width_takes_over() -> None:
    """Averaging weights follow the posterior that predicts better, and back; damage is rejected."""
    average = ModelAverage((1.0, 9.0))
    assert average.weights[1] == pytest.approx(9.0 * average.weights[0])
    for better in (0, 1):
        for _ in range(60):
            average.learn(np.where(np.arange(2) == better, 0.0, -0.5))
        assert average.weights[better] > 0.95
    other = ModelAverage((1.0, 9.0))
    assert other.load(average.dump())
    assert other.dump() == average.dump()
    assert not other.load(ModelAverage((1.0, 1.0, 1.0)).dump())


def test_small_evidence_adds_up() -> None:
    """The weights are the posterior's: three thousand labels of a thousandth of a nat each count as three nats."""
    average = ModelAverage((1.0, 9.0))
    for _ in range(3_000):
        average.learn(np.array([0.0, -0.001]))
    odds = average.weights[0] / average.weights[1]
    assert np.log(odds) == pytest.approx(3.0 - np.log(9.0), abs=0.05)
