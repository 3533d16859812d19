"""Beliefs of a quiz: information, gain, and what answers do to the draws."""

from __future__ import annotations

import numpy as np
import pytest

from fitrouter.posterior.draws import Draws, draw_posterior
from fitrouter.posterior.labels import Answered, Label
from fitrouter.posterior.model import Fit
from fitrouter.types import FeedbackKind, Floats, Identity
from fitrouter_evaluators.personal.beliefs import Beliefs, Questions

P, K, D, S = 8, 3, 4, 600
MODELS = ("a", "b", "c")


def answers(seed: int = 0) -> Floats:
    """float64[P, K, D]: the second feature differs between models, one entry is missing."""
    h = np.random.default_rng(seed).normal(size=(P, K, D))
    h[..., 0] = 1.0
    h[..., 1] += np.array([-2.0, 0.0, 2.0])
    h[0, 0, 3] = np.nan
    return h


def drawn(seed: int = 0) -> Draws:
    rng = np.random.default_rng(seed)
    return Draws(rng.normal(0.0, 0.2, (S, D)), rng.normal(0.0, 0.1, (S, K)), rng.normal(0.0, 0.05, (P, K)))


def every() -> Questions:
    """All questions, in both orders."""
    found = [(p, i, j) for p in range(P) for i in range(K) for j in range(K) if i != j]
    return Questions(*np.array(found).T)


@pytest.mark.parametrize("seed", range(5))
def test_information_and_gain_are_never_negative(seed: int) -> None:
    """0 ≤ information ≤ ln 2 and gain ≥ 0, also after answers; the gain is at most the regret."""
    beliefs = Beliefs(drawn(seed), answers(seed))
    for _ in range(4):
        information, gain = beliefs.information(every()), beliefs.gain(every())
        assert (information >= 0.0).all()
        assert (information <= np.log(2.0)).all()
        assert (gain >= 0.0).all()
        assert (gain <= beliefs.regret + 1e-9).all()
        question = Questions(*(column[[int(information.argmax())]] for column in every()))
        beliefs.learn(question, [bool(seed % 2)])


def test_the_order_of_the_answers_changes_nothing() -> None:
    """A question and its mirror image have the same information and gain, and their answers the same effect."""
    one, other = Beliefs(drawn(), answers()), Beliefs(drawn(), answers())
    q = every()
    mirrored = Questions(q.prompt, q.second, q.first)
    np.testing.assert_allclose(one.information(q), one.information(mirrored), atol=1e-12)
    np.testing.assert_allclose(one.gain(q), one.gain(mirrored), atol=1e-12)
    one.learn(Questions(*(c[:3] for c in q)), [True, False, True])
    other.learn(Questions(*(c[:3] for c in mirrored)), [False, True, False])
    np.testing.assert_allclose(one.weights, other.weights)


def test_answers_count_in_any_order_and_at_once() -> None:
    """Weights after answers one by one, in another order, and all at once are the same."""
    at_once, by_one = Beliefs(drawn(), answers()), Beliefs(drawn(), answers())
    q = Questions(*(c[:4] for c in every()))
    told = [True, False, False, True]
    at_once.learn(q, told)
    for n in (2, 0, 3, 1):
        by_one.learn(Questions(*(c[n : n + 1] for c in q)), [told[n]])
    np.testing.assert_allclose(at_once.weights, by_one.weights)
    assert at_once.best.sum() == pytest.approx(1.0)


def test_no_doubt_no_information() -> None:
    """Where all draws agree on the best model, no question tells anything about it."""
    certain = drawn()._replace(taste=np.zeros((S, D)), level=np.tile([0.0, 0.0, 1.0], (S, 1)), fixed=np.zeros((P, K)))
    beliefs = Beliefs(certain, answers())
    assert beliefs.best.tolist() == [0.0, 0.0, 1.0]
    assert beliefs.regret == pytest.approx(0.0)
    assert beliefs.information(every()).max() < 1e-9
    assert beliefs.gain(every()).max() < 1e-9


def test_a_taste_is_found_and_told() -> None:
    """Somebody who always prefers more of the second feature gets the model that has most of it, and is told so."""
    beliefs, h = Beliefs(drawn(), answers()), answers()
    q = every()
    beliefs.learn(q, (h[q.prompt, q.first, 1] > h[q.prompt, q.second, 1]).tolist())
    assert beliefs.favourite == 2
    (first, *_) = beliefs.models(MODELS)
    assert first.model == "c"
    assert first.low <= first.high
    likes = beliefs.likings(("one", "length", "x", "y"), ("length",))
    assert [(each.feature, each.likes) for each in likes] == [("length", True)]
    assert 0.8 <= likes[0].sure <= 1.0


@pytest.mark.parametrize("level", [[0.9, 1.1, 1.2], [1.5, 1.6, 1.7], [-0.2, -0.1, 0.4]])
def test_no_fit_is_beyond_the_scale(level: list[float]) -> None:
    """Expected ratings and their intervals end at 0 and 1, and each interval is around its rating."""
    draws = drawn()
    beliefs = Beliefs(draws._replace(taste=draws.taste * 0.1, level=draws.level + np.array(level)), answers())
    found = beliefs.models(MODELS)
    mean = sum(each.fit for each in found) / len(found)
    for each in found:
        assert mean + each.low >= -1e-9
        assert mean + each.low - 1e-9 <= each.fit <= mean + each.high + 1e-9
        assert mean + each.high <= 1.0 + 1e-9
        assert each.low < each.high


def test_draws_have_the_moments_of_the_fit() -> None:
    """Mean and variance of draws of an answer's rating are those that the fit predicts, for a person with labels."""
    rng = np.random.default_rng(1)
    fit, ann = Fit(3, D), Identity(user="ann", role="nurse")
    x, h = np.array([1.0, 0.2, -0.1]), answers()
    for t in range(12):
        k = t % 2
        answer = Answered(MODELS[k], x, np.nan_to_num(h[t % P, k]))
        fit.learn(Label(ann, answer, float(rng.random() < 0.3 + 0.6 * k), FeedbackKind.THUMB, ts=float(t)))
    draws = draw_posterior(fit, ann, x[None], MODELS, 60_000, [1])
    for k, model in enumerate(MODELS):  # the last one has no label
        text = np.nan_to_num(h[1, k])
        full = fit.predict(Label(ann, Answered(model, x, text), 1.0, FeedbackKind.THUMB)).full
        ratings = draws.taste @ text + draws.fixed[0, k] + draws.level[:, k]
        assert ratings.mean() == pytest.approx(full[0], abs=0.01)
        assert ratings.var() == pytest.approx(full[1], rel=0.05)
    again = draw_posterior(fit, ann, x[None], MODELS, 60_000, [1])
    assert (again.taste == draws.taste).all()
    assert (again.level == draws.level).all()
