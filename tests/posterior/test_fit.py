"""Laws of likelihoods, rating scales, declared values and other dimensions."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from benchmarks.training.likelihoods import load_signals
from hypothesis import given, settings
from hypothesis import strategies as st

from fitrouter.identity import task_of
from fitrouter.posterior.gaussian import Gaussian, gaussian_update
from fitrouter.posterior.heads import HINGES
from fitrouter.posterior.labels import Answered, FitParams, Label
from fitrouter.posterior.likelihoods import DWELL_LENGTH, DWELL_SPREAD, SIGNALS, TIE, observation_of
from fitrouter.posterior.model import Fit
from fitrouter.posterior.rating_scale import GAINS, RatingScale
from fitrouter.posterior.tastes import TasteParams
from fitrouter.types import FeedbackKind, Floats, Identity

ANN = Identity(user="ann", role="analyst")
D = 4
KINDS = tuple(FeedbackKind)


def _fit() -> Fit:
    return Fit(2, D, names=("one", "a", "b", "c"))


def _answer(rng: np.random.Generator, arm: str = "m", h: Floats | None = None) -> Answered:
    features = np.concatenate([[1.0], rng.normal(size=D - 1)]) if h is None else h
    return Answered(arm, np.array([1.0, 0.3]), features)


def _tastes(fit: Fit) -> Floats:
    return np.concatenate([block.mean for block in fit.heads(ANN)])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not FeedbackKind.PAIR])
def test_a_better_signal_raises_the_score(kind: FeedbackKind) -> None:
    """For every kind, feedback in favour of an answer leads to a higher score than feedback against it."""
    good = {FeedbackKind.EDIT: 0.0, FeedbackKind.REGENERATE: 0.0, FeedbackKind.DWELL: 300.0}.get(kind, 1.0)
    bad = {FeedbackKind.EDIT: 1.0, FeedbackKind.REGENERATE: 1.0, FeedbackKind.DWELL: 0.0}.get(kind, 0.0)
    scores = []
    for value in (bad, good):
        fit, answer = _fit(), _answer(np.random.default_rng(0))
        before = fit.score(ANN, answer.h)  # type: ignore[arg-type]
        fit.learn(Label(ANN, answer, value, kind, tokens=100))
        after = fit.score(ANN, answer.h)  # type: ignore[arg-type]
        assert after[1] < before[1], "a label makes the score surer"
        scores.append((before[0], after[0]))
    assert scores[0][1] < scores[1][1]


@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.5, 1.0]))
@settings(max_examples=20)
def test_a_swapped_pair_is_equivalent(seed: int, y: float) -> None:
    """(A, B) with y and (B, A) with 1 − y lead to the same tastes, corrections and offsets."""
    rng = np.random.default_rng(seed)
    a, b = _answer(rng, "m"), _answer(rng, "n")
    one, other = _fit(), _fit()
    one.learn(Label(ANN, a, y, FeedbackKind.PAIR, against=b))
    other.learn(Label(ANN, b, 1.0 - y, FeedbackKind.PAIR, against=a))
    np.testing.assert_allclose(_tastes(one), _tastes(other), atol=1e-12)
    np.testing.assert_allclose(
        one.arms.correction[[one.arms.row("m"), one.arms.row("n")]],
        other.arms.correction[[other.arms.row("m"), other.arms.row("n")]],
        atol=1e-12,
    )
    for mine, yours in zip(one.tastes.users["ann"].heads, other.tastes.users["ann"].heads, strict=True):
        assert mine.offsets("m") == pytest.approx(yours.offsets("m"), abs=1e-6)


def test_a_pair_does_not_change_the_level() -> None:
    """The intercepts of tastes, which both answers share, stay."""
    fit, rng = _fit(), np.random.default_rng(1)
    fit.learn(Label(ANN, _answer(rng), 1.0, FeedbackKind.PAIR, against=_answer(rng, "n")))
    assert fit.tastes.population.mean[0] == fit.params.tastes.level
    for head in fit.tastes.users["ann"].heads:
        assert (head.tastes()[:, 0] == 0.0).all()
    assert np.abs(fit.tastes.users["ann"].heads[-1].tastes()[:, 1:]).max() > 0


def test_a_tie_draws_two_answers_together() -> None:
    """A tie between answers with different predictions brings their scores closer."""
    fit, rng = _fit(), np.random.default_rng(2)
    a, b = _answer(rng), _answer(rng, "n")
    for _ in range(5):
        fit.learn(Label(ANN, a, 1.0, FeedbackKind.PAIR, against=b))

    def gap() -> float:
        return fit.score(ANN, a.h)[0] - fit.score(ANN, b.h)[0]  # type: ignore[arg-type]

    before = gap()
    fit.learn(Label(ANN, a, 0.5, FeedbackKind.PAIR, against=b))
    assert 0 < gap() < before


def test_a_pair_of_one_model_changes_no_offset() -> None:
    """A pair of one model's answers in one context changes neither its correction nor its offsets."""
    fit, rng = _fit(), np.random.default_rng(3)
    fit.learn(Label(ANN, _answer(rng), 1.0, FeedbackKind.PAIR, against=_answer(rng)))
    assert not fit.arms.correction[fit.arms.row("m")].any()
    assert not any(head.offsets("m").any() for head in fit.tastes.users["ann"].heads)


@given(st.floats(-3, 3), st.floats(1e-3, 2), st.floats(0, 1), st.sampled_from([k for k in KINDS if k != "dwell"]))
@settings(max_examples=30)
def test_updates_are_in_units_of_the_rating(predicted: float, variance: float, y: float, kind: FeedbackKind) -> None:
    """A logistic update equals the unscaled update of the taste divided by the temperature."""
    seen = observation_of(kind, y)
    signal = seen.signal
    ours = seen.gaussian_update(predicted, variance)
    if signal.link == "gaussian":
        plain = gaussian_update(predicted, variance, seen.y, noise=signal.noise, weight=signal.weight)
        assert (ours.step, ours.shrink) == (plain.step, plain.shrink)
        return
    tau = signal.temperature
    block = Gaussian(np.array([predicted / tau]), np.array([[variance / tau**2]]))
    gain = block.gain(np.ones(1))
    block.learn(gain, gaussian_update((predicted - signal.level) / tau, float(gain[0]), seen.y, weight=signal.weight))
    assert predicted + variance * ours.step == pytest.approx(block.mean[0] * tau, abs=1e-9)
    assert variance - variance**2 * ours.shrink == pytest.approx(block.cov[0, 0] * tau**2, abs=1e-9)


def test_dwell_is_normalised_by_length() -> None:
    """Dwell times are relative to the typical time for an answer of that length."""
    assert (
        observation_of(FeedbackKind.DWELL, 30.0, tokens=20).y > observation_of(FeedbackKind.DWELL, 30.0, tokens=2000).y
    )
    assert all(0 <= observation_of(FeedbackKind.DWELL, s, tokens=100).y <= 1 for s in (0.0, 1.0, 1e6))


def test_every_kind_has_a_likelihood() -> None:
    """The table covers all kinds of feedback."""
    assert set(SIGNALS) == set(FeedbackKind)
    assert all(s.weight > 0 and s.noise > 0 and s.temperature > 0 for s in SIGNALS.values())


def test_the_likelihoods_are_the_fitted_ones() -> None:
    """The core's table is the one that `reward.signals` wrote, to three digits."""
    fitted = load_signals()
    for kind, signal in SIGNALS.items():
        found = fitted[kind.value]
        if kind is FeedbackKind.THUMB:
            a = (TasteParams().level - found.level) / found.temperature  # type: ignore[operator]
            p = 1 / (1 + math.exp(-a))
            assert signal.noise == pytest.approx(p * (1 - p) / found.weight, rel=3e-3)
        elif signal.link == "gaussian":
            assert signal.noise == pytest.approx(found.noise, rel=3e-3)
        else:
            expected = (found.temperature, found.level, found.weight)
            assert (signal.temperature, signal.level, signal.weight) == pytest.approx(expected, rel=5e-3)
    assert (TIE.temperature, TIE.weight) == pytest.approx((fitted["tie"].temperature, fitted["tie"].weight), rel=5e-3)
    assert (*DWELL_LENGTH, DWELL_SPREAD) == pytest.approx(fitted["dwell"].length, rel=5e-3)
    assert fitted["edit"].knots == ((0.0, 1.0), (1.0, 0.0)), "the core reads an edit as 1 − distance"


# --- rating scales ---


def test_a_strict_rating_scale_is_learnt() -> None:
    """Ratings that are .3 lower with half the range are mapped to the common scale after some ratings."""
    rng, scale, level = np.random.default_rng(0), RatingScale(), 0.7
    for _ in range(300):
        fit = level + 0.2 * rng.normal()
        scale.learn(level - 0.3 + 0.5 * (fit - level) + 0.03 * rng.normal(), fit, level, 0.001)
    assert scale.offset == pytest.approx(-0.3, abs=0.02)
    assert scale.gain == pytest.approx(0.5, abs=0.1)
    y, noisier = scale.common(level - 0.3 + 0.5 * 0.1, level)
    assert y == pytest.approx(level + 0.1, abs=0.05)
    assert noisier == pytest.approx(1 / scale.gain**2)


def test_rating_scales_are_shrunk() -> None:
    """The first rating moves the scale by less than half of its residual."""
    scale = RatingScale()
    scale.learn(0.0, 0.7, 0.7, 0.1)
    assert -0.35 < scale.offset < 0


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(-1, 2)), max_size=30))
@settings(max_examples=15)
def test_rating_scales_stay_valid(events: list[tuple[float, float]]) -> None:
    """For any ratings, the gain stays within its bounds and the state is valid."""
    scale = RatingScale()
    for rating, predicted in events:
        scale.learn(rating, predicted, 0.7, 0.1)
    assert GAINS[0] <= scale.gain <= GAINS[1]
    assert scale.state.valid()


def test_rating_scales_do_not_leak_into_tastes() -> None:
    """Two users with the same taste, one of whom rates lower, get the same taste, up to noise."""
    rng = np.random.default_rng(5)
    fit = _fit()
    w = np.array([0.0, 0.15, -0.1, 0.0])
    for _ in range(400):
        for user, shift in (("ann", 0.0), ("bob", -0.25)):
            answer = _answer(rng)
            y = float(np.clip(0.7 + answer.h @ w + shift + 0.05 * rng.normal(), 0, 1))  # type: ignore[operator]
            fit.learn(Label(Identity(user=user), answer, y, FeedbackKind.RATING))
    ann, bob = fit.tastes.users["ann"], fit.tastes.users["bob"]
    assert bob.scale.offset < ann.scale.offset - 0.05
    who = (Identity(user="ann"), Identity(user="bob"))
    np.testing.assert_allclose(fit.taste(who[0])[1:], fit.taste(who[1])[1:], atol=0.06)


# --- declared values ---


def test_labels_overrule_declared_values() -> None:
    """A declared value moves the taste's feature; enough labels to the contrary reverse it."""
    fit = _fit()
    fit.tastes.declare(ANN, {"a": 1.0, "no such feature": 1.0})
    own = fit.taste(ANN) - fit.tastes.population.mean
    assert own[1] > 0
    assert not own[[0, 2, 3]].any()
    rng = np.random.default_rng(0)
    for _ in range(200):
        answer = _answer(rng)
        fit.learn(Label(ANN, answer, float(answer.h[1] < 0), FeedbackKind.THUMB, pooled=False))  # type: ignore[index]
    assert (fit.taste(ANN) - fit.tastes.population.mean)[1] < 0


# --- dimensions ---


def test_other_dimensions_are_separate() -> None:
    """A label on tone updates the taste of tone, and neither routing nor the overall taste."""
    fit, rng = _fit(), np.random.default_rng(0)
    answer = _answer(rng)
    before = _tastes(fit), fit.mixture.weights("user")
    for _ in range(20):
        fit.learn(Label(ANN, answer, 1.0, FeedbackKind.THUMB, dimension="tone"))
    np.testing.assert_array_equal(_tastes(fit), before[0])
    np.testing.assert_array_equal(fit.mixture.weights("user"), before[1])
    assert not fit.arms.correction.any()
    tone, sd = fit.score(ANN, answer.h, "tone")  # type: ignore[arg-type]
    assert tone > fit.score(ANN, answer.h)[0]  # type: ignore[arg-type]
    assert math.isfinite(sd)
    assert fit.heads(ANN, "never judged") == []


def test_the_number_of_dimensions_is_limited() -> None:
    """A new dimension in every vote does not fill the memory."""
    fit, rng = _fit(), np.random.default_rng(0)
    for i in range(40):
        fit.learn(Label(ANN, _answer(rng), 1.0, FeedbackKind.THUMB, dimension=f"d{i}"))
    assert len(fit.tastes.others) == 16
    assert len(fit.tastes.users["ann"].others) == 16


# --- where a taste belongs ---


def _x(*text: float) -> Floats:
    return np.array([1.0, *text])


def test_a_sensitive_role_starts_without_the_users_taste() -> None:
    """With a sensitive role, a user's taste has almost no effect on estimates until labels of that role show one."""
    params = FitParams(sensitive_roles=("Judge",))
    fit, rng = Fit(5, D, params), np.random.default_rng(0)
    for _ in range(60):
        answer = msgspec.structs.replace(_answer(rng), x=_x(0, 0, 0, 0))
        fit.learn(Label(ANN, answer, float(answer.h[1] > 0), FeedbackKind.THUMB, pooled=False))  # type: ignore[index]
    fit.arms.observe_response(fit.arms.row("long"), _x(0, 0, 0, 0), np.array([1.0, 2.0, 0.0, 0.0]))
    seen = {}
    for role in ("analyst", "judge"):
        estimate = fit.estimate(Identity(user="ann", role=role), _x(0, 0, 0, 0), ("long",), 0.0)
        plain = fit.estimate(Identity(role=role), _x(0, 0, 0, 0), ("long",), 0.0)
        seen[role] = estimate.mean[0] - plain.mean[0]
    assert seen["analyst"] > 0.02
    assert abs(seen["judge"]) < 0.1 * seen["analyst"]


def test_tasks_are_labels_or_clusters_of_prompts() -> None:
    """The client's label comes first, however it is written; else one of 16 clusters by the prompt."""
    x = np.concatenate([[1.0], np.random.default_rng(0).normal(size=20)])
    assert task_of(Identity(task="Write_Code "), x) == task_of(Identity(task="write code"), -x)
    clusters = {task_of(Identity(), np.random.default_rng(i).normal(size=20)) for i in range(400)}
    assert len(clusters) == 16


# --- how noisy labels are here ---


def test_labels_that_are_noisy_here_teach_less() -> None:
    """The noise of ratings starts at what was fitted elsewhere and ends at what they vary by here."""
    found = {}
    for spread in (0.02, 0.35):
        fit, rng = Fit(2, D), np.random.default_rng(0)
        first = fit._fitted(Label(ANN, _answer(rng), 0.5, FeedbackKind.RATING)).signal.noise
        assert first == SIGNALS[FeedbackKind.RATING].noise
        for i in range(600):
            y = float(np.clip(0.5 + spread * rng.normal(), 0, 1))
            fit.learn(Label(Identity(user=f"u{i % 40}"), _answer(rng), y, FeedbackKind.RATING))
        found[spread] = fit._fitted(Label(ANN, _answer(rng), 0.5, FeedbackKind.RATING)).signal.noise
    assert found[0.02] < 0.03
    assert 0.08 < found[0.35] < 0.2
    assert fit._fitted(Label(ANN, _answer(rng), 0.5, FeedbackKind.THUMB)).signal.noise == pytest.approx(
        SIGNALS[FeedbackKind.THUMB].noise
    )


@pytest.mark.parametrize("noise", [0.02, 0.25])
def test_what_is_not_learnt_yet_is_no_noise(noise: float) -> None:
    """The learnt noise is that of the ratings, not the error of predictions, which know the models only little."""
    rng, width = np.random.default_rng(0), FitParams().arms.corrections[1].slopes
    fit, (X, truth) = Fit(8, 1, FitParams(personal=False)), _models(rng, width * noise / 0.255)
    squares = []
    for i in range(1200):
        label = _rating(rng, i, X, truth, noise)
        squares.append((label.y - fit.predict(label).full[0]) ** 2)
        fit.learn(label)
    total, n = fit.residuals["rating"]
    assert total / n == pytest.approx(noise, rel=0.06)
    assert n == 1200
    assert float(np.mean(squares)) > 1.03 * total / n


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("noise", [0.02, 0.25])
def test_the_average_finds_the_width(wide: bool, noise: float) -> None:
    """Where models differ as one prior of c says, its posterior takes over, however noisy the ratings are."""
    rng, width = np.random.default_rng(1), FitParams().arms.corrections[int(wide)].slopes
    fit = Fit(8, 1, FitParams(personal=False))
    # The priors of c hold for a thumb's noise and shrink with the label's.
    X, truth = _models(rng, width * noise / SIGNALS[FeedbackKind.THUMB].noise)
    for i in range(3000):
        fit.learn(_rating(rng, i, X, truth, noise))
    assert fit.widths.weights[int(wide)] > 0.9


def _models(rng: np.random.Generator, variance: float) -> tuple[Floats, Floats]:
    """Contexts of 200 prompts, with a text block as long as the router's, and the slopes of 10 models."""
    X = rng.normal(size=(200, 8))
    X *= math.sqrt(0.75) / np.linalg.norm(X, axis=1, keepdims=True)
    X[:, 0] = 1.0
    truth = rng.normal(size=(10, 8)) * math.sqrt(variance)
    truth[:, 0] = 0.0
    return X, truth


def _rating(rng: np.random.Generator, i: int, X: Floats, truth: Floats, noise: float) -> Label:
    x, k = X[rng.integers(len(X))], int(rng.integers(len(truth)))
    y = 0.5 + float(x @ truth[k]) + math.sqrt(noise) * rng.normal()
    return Label(Identity(), Answered(f"m{k}", x, np.ones(1)), y, FeedbackKind.RATING)


def test_hinges_of_length_are_everybodys() -> None:
    """The population learns them from a person's label; the person's heads have no such coordinate."""
    fit, h = Fit(1, 5, names=("one", "length", *HINGES)), np.array([1.0, 1.0, 0.9, 0.6, -0.1])
    before = fit.tastes.population.cov.copy()
    assert np.diag(before)[2:].tolist() == [fit.params.tastes.population_hinge] * 3
    for _ in range(20):
        fit.learn(Label(Identity(user="ann"), Answered("a", np.ones(1), h), 0.0, FeedbackKind.RATING))
    user = fit.tastes.user(Identity(user="ann"))
    assert user is not None
    assert {tuple(heads.priors.features.tolist()) for heads in user.heads} <= {(0, 1), (0,)}
    assert (fit.tastes.population.mean[2:4] < 0.0).all()
    assert (fit.taste(Identity(user="ann")) == fit.tastes.population.mean)[2:].all()
