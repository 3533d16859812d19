"""Exact posterior of one person: conjugate updates, heads weighed by evidence, and votes counted once."""

from __future__ import annotations

import numpy as np
import pytest

from fitrouter.posterior.draws import sampled
from fitrouter.posterior.labels import Answered, FitParams, Label
from fitrouter.posterior.likelihoods import SIGNALS
from fitrouter.posterior.model import Fit
from fitrouter.posterior.person_draws import PersonPosterior, draw_person, draw_person_ratings
from fitrouter.types import FeedbackKind, Identity
from fitrouter_evaluators.personal.beliefs import Beliefs, Questions

ANN, ARMS, D, d = Identity(user="ann"), ("a", "b"), 4, 3
X = np.array([1.0, 0.0, 0.0])


def fitted(labels: int) -> Fit:
    """A fit after thumbs of a crowd."""
    fit, rng = Fit(d, D, FitParams(), names=("one", "g", "length", "structure")), np.random.default_rng(3)
    for arm in ARMS:
        fit.arms.join(arm)
        for _ in range(30):
            fit.arms.observe_response(fit.arms.row(arm), X, np.array([1.0, *rng.normal(size=D - 1)]))
    for i in range(labels):
        answer = Answered(ARMS[i % 2], X, np.array([1.0, *rng.normal(size=D - 1)]))
        fit.learn(Label(Identity(user=f"u{i % 20}"), answer, float(rng.random() < 0.6), FeedbackKind.THUMB, ts=1e9 + i))
    return fit


def votes(n: int, kind: FeedbackKind, seed: int = 0, size: float = 1.0) -> list[Label]:
    rng, found = np.random.default_rng(seed), []
    for _ in range(n):
        sides = [Answered(ARMS[k], X, np.array([1.0, *size * rng.normal(size=D - 1)])) for k in (0, 1)]
        y, against = (0.8, None) if kind is not FeedbackKind.PAIR else (1.0, sides[1])
        found.append(Label(ANN, sides[0], y, kind, against=against))
    return found


def test_without_votes_it_is_the_prior() -> None:
    """The taste's mean is the population's, and heads have the weights of a new installation."""
    fit = fitted(400)
    posterior = PersonPosterior(fit, ANN, [], ARMS, X)
    taste, level = posterior.draw(20_000, [1])
    assert posterior.weights.sum() == pytest.approx(1.0)
    assert np.abs(taste.mean(axis=0) - fit.tastes.population.mean).max() < 0.02
    assert np.abs(level.mean(axis=0)).max() < 0.02


def test_gaussian_votes_give_the_conjugate_posterior() -> None:
    """Given a head, thumbs give what one Bayesian linear regression in weight space gives (Bishop 2006, eq. 3.50)."""
    posterior = PersonPosterior(fitted(400), ANN, votes(12, FeedbackKind.THUMB), ARMS, X)
    A, noise = posterior._rows, SIGNALS[FeedbackKind.THUMB].noise
    for prior, found in zip(posterior._heads, posterior._posteriors, strict=True):
        live = np.diag(prior.cov) > 0
        precision = np.linalg.inv(prior.cov[np.ix_(live, live)])
        cov = np.linalg.inv(precision + A[:, live].T @ A[:, live] / noise)
        mean = cov @ (precision @ prior.mean[live] + A[:, live].T @ (0.8 - posterior._known) / noise)
        assert np.allclose(found.mean[live], mean, atol=1e-8)
        assert np.allclose(found.cov[np.ix_(live, live)], cov, atol=1e-8)


def test_pairs_give_the_moments_of_the_logistic_posterior() -> None:
    """Mean, spread and evidence agree with importance sampling, also where the prior is wider than a vote's noise."""
    own, rng, signal = votes(6, FeedbackKind.PAIR), np.random.default_rng(4), SIGNALS[FeedbackKind.PAIR]
    posterior = PersonPosterior(fitted(400), ANN, own, ARMS, X)
    evidence = []
    for prior, found in zip(posterior._heads, posterior._posteriors, strict=True):
        drawn = sampled(prior, 40_000, rng)
        f = drawn @ posterior._rows.T + posterior._known
        weights = np.exp(-signal.weight * np.logaddexp(0.0, -f / signal.temperature).sum(axis=1))
        mean = weights @ drawn / weights.sum()
        sd = np.sqrt(weights @ (drawn - mean) ** 2 / weights.sum())
        assert np.allclose(found.mean, mean, atol=0.03)
        assert np.allclose(np.sqrt(np.diag(found.cov)), sd, atol=0.03)
        evidence.append(np.log(weights.mean()))
    start = np.log(PersonPosterior(fitted(400), ANN, [], ARMS, X).weights)
    stated = np.log(posterior.weights) - start
    assert np.allclose(stated - stated[0], np.array(evidence) - evidence[0], atol=0.05)


def test_a_person_who_gave_all_votes_is_counted_once() -> None:
    """With nobody else's votes the prior is the one before any vote; unread and broken votes are left out."""
    fit = fitted(0)
    own = votes(20, FeedbackKind.THUMB)
    for vote in own:
        fit.learn(vote)
    posterior = PersonPosterior(fit, ANN, own, ARMS, X)
    fresh = PersonPosterior(fitted(0), ANN, own, ARMS, X)
    assert np.allclose(posterior._posteriors[0].mean, fresh._posteriors[0].mean)
    broken = [Label(ANN, Answered("a", X, None), 1.0, FeedbackKind.THUMB)]
    assert PersonPosterior(fit, ANN, [*own, *broken], ARMS, X)._rows.shape[0] == 20


def test_comparisons_of_answers_that_are_alike_say_nothing() -> None:
    """Their difference has no variance; beside other votes and alone they change nothing, in any context."""
    fit, h = fitted(400), np.array([1.0, 0.5, 0.5, 0.5])
    same = Label(ANN, Answered("a", X, h), 0.5, FeedbackKind.PAIR, against=Answered("a", 2.0 * X, h))
    for own in ([], votes(6, FeedbackKind.PAIR)):
        with_it, without = (PersonPosterior(fit, ANN, given, ARMS, X) for given in ([*own, same], own))
        assert (with_it.weights == without.weights).all()
        assert all((a.mean == b.mean).all() for a, b in zip(with_it._posteriors, without._posteriors, strict=True))


def test_ratings_follow_the_votes() -> None:
    """Somebody who prefers model a in every comparison gets it first, and draws are finite and reproducible."""
    fit = fitted(400)
    own = draw_person_ratings(fit, ANN, votes(40, FeedbackKind.PAIR), X[None], ARMS, 2000, [5]).ratings
    assert np.isfinite(own).all()
    assert (own[:, 0] > own[:, 1]).mean() > 0.9
    again = draw_person_ratings(fit, ANN, votes(40, FeedbackKind.PAIR), X[None], ARMS, 2000, [5]).ratings
    assert (own == again).all()


def test_a_quiz_and_the_exact_posterior_agree() -> None:
    """The same comparisons, as weights of draws from before them and as votes, give the same P(best)."""
    fit, rng = fitted(400), np.random.default_rng(8)
    h = np.concatenate([np.ones((6, 2, 1)), rng.normal(size=(6, 2, D - 1))], axis=2)
    x, shown, n = np.tile(X, (6, 1)), [0, 1, 2, 3, 4], 20_000
    before = Beliefs(draw_person(fit, ANN, [], x, ARMS, n, [1]), h)
    before.learn(Questions(*np.array([(p, 0, 1) for p in shown]).T), [True] * len(shown))
    votes = [
        Label(ANN, Answered(ARMS[0], X, h[p, 0]), 1.0, FeedbackKind.PAIR, against=Answered(ARMS[1], X, h[p, 1]))
        for p in shown
    ]
    after = Beliefs(draw_person(fit, ANN, votes, x, ARMS, n, [2]), h)
    assert before.best[0] == pytest.approx(after.best[0], abs=0.03)
    assert before.weights @ before.ratings == pytest.approx(after.ratings.mean(axis=0), abs=0.03)
