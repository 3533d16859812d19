"""Laws of the population prior: exact posteriors, sums that add up, and recovery of what was put in."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fitrouter.posterior.gaussian import Gaussian, gaussian_update
from fitrouter_evaluators.training.hierarchy import (
    Observations,
    Prior,
    Shrinkage,
    e_step,
    evidence,
    fit_prior,
    m_step,
)


def _prior(rng: np.random.Generator, D: int, link: str = "gaussian") -> Prior:
    root = rng.normal(size=(D, D)) / np.sqrt(D)
    return Prior(rng.normal(size=D), root @ root.T + 0.1 * np.eye(D), 0.3, link)  # type: ignore[arg-type]


def _world(rng: np.random.Generator, U: int, n: int, D: int, P: int = 0):
    """Users with Gaussian tastes around w_0 + Γ v: (users, declared, w_0, Γ)."""
    w0, gamma = rng.normal(size=D), rng.normal(size=(D, P))
    scale = np.linspace(0.1, 0.8, D)
    users, declared = [], rng.normal(size=(U, P))
    for u in range(U):
        X = rng.normal(size=(n, D))
        X[:, 0] = 1.0
        w = w0 + gamma @ declared[u] + scale * rng.normal(size=D)
        users.append(Observations(X, X @ w + 0.5 * rng.normal(size=n)))
    return users, declared, w0, gamma


@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 8))
@settings(max_examples=20)
def test_the_gaussian_posterior_is_the_fold(seed: int, n: int, D: int) -> None:
    """All labels at once (re-fit) and one after the other (`gaussian`) end in the same Gaussian, to 1e-10."""
    rng = np.random.default_rng(seed)
    prior = _prior(rng, D)
    labels = Observations(rng.normal(size=(n, D)), rng.normal(size=n), rng.uniform(0.2, 2.0, n))
    block = Gaussian(prior.mean.copy(), prior.cov.copy())
    for x, y, weight in zip(labels.X, labels.y, labels.weight, strict=True):  # type: ignore[arg-type]
        gain = block.gain(x)
        block.learn(gain, gaussian_update(float(x @ block.mean), float(x @ gain), y, noise=prior.noise, weight=weight))
    refit = prior.posterior(labels)
    np.testing.assert_allclose(refit.mean, block.mean, atol=1e-10, rtol=1e-10)
    np.testing.assert_allclose(refit.cov, block.cov, atol=1e-10, rtol=1e-10)


@given(st.integers(0, 10_000), st.integers(1, 30), st.integers(1, 8))
@settings(max_examples=20)
def test_the_logistic_posterior_is_a_stationary_point(seed: int, n: int, D: int) -> None:
    """At the mode the gradient of the log posterior is 0 and the covariance is the inverse of minus its Hessian."""
    rng = np.random.default_rng(seed)
    prior = _prior(rng, D, "logistic")
    labels = Observations(3 * rng.normal(size=(n, D)), rng.uniform(size=n).round(1))
    found = prior.posterior(labels)
    p = 1 / (1 + np.exp(-labels.X @ found.mean))
    precision = np.linalg.inv(prior.cov)
    gradient = labels.X.T @ (labels.y - p) - precision @ (found.mean - prior.mean)
    assert np.abs(gradient).max() < 1e-8
    hessian = precision + (labels.X * (p * (1 - p))[:, None]).T @ labels.X
    np.testing.assert_allclose(found.cov @ hessian, np.eye(D), atol=1e-7)


@given(st.integers(0, 10_000), st.integers(2, 12))
@settings(max_examples=15)
def test_ratings_and_choices_of_one_user_meet_in_one_posterior(seed: int, n: int) -> None:
    """The mode of a mixed posterior is stationary; a mixed one of one kind alone is that of its own link."""
    rng = np.random.default_rng(seed)
    prior = _prior(rng, 4)
    X, y, offset = rng.normal(size=(n, 4)), rng.uniform(size=n), rng.normal(size=n)
    kind = np.arange(n) % 2 == 0
    found = prior.posterior(Observations(X, y, None, kind, offset))
    p = 1 / (1 + np.exp(-X @ found.mean - offset))
    score = np.where(kind, y - p, (y - X @ found.mean) / prior.noise)
    assert np.abs(X.T @ score - np.linalg.inv(prior.cov) @ (found.mean - prior.mean)).max() < 1e-7
    alone = prior.posterior(Observations(X, y, None, np.ones(n, dtype=bool)))
    other = prior._replace(link="logistic").posterior(Observations(X, y))
    np.testing.assert_allclose(alone.mean, other.mean, atol=1e-10)


def test_no_label_means_the_prior() -> None:
    """A user without labels is the prior, moved by what they declared."""
    rng = np.random.default_rng(0)
    prior = _prior(rng, 3)._replace(gamma=rng.normal(size=(3, 2)))
    v = np.array([1.0, -0.5])
    found = prior.posterior(Observations(np.zeros((0, 3)), np.zeros(0)), v)
    np.testing.assert_array_equal(found.mean, prior.mean + prior.gamma @ v)  # type: ignore[operator]
    np.testing.assert_array_equal(found.cov, prior.cov)


@pytest.mark.parametrize("link", ["gaussian", "logistic"])
def test_federated_equals_central(link: str) -> None:
    """The sums of groups of users, added up, give the same prior as all users at once, to 1e-8."""
    rng = np.random.default_rng(1)
    users, declared, _, _ = _world(rng, 20, 8, 5, 2)
    if link == "logistic":
        users = [Observations(user.X, (user.y > 0).astype(float)) for user in users]
    central = federated = fit_prior(users, link=link, declared=declared, iterations=1)  # type: ignore[arg-type]
    for _ in range(5):
        central = m_step(central, e_step(central, users, declared), Shrinkage())
        groups = [slice(0, 3), slice(3, 11), slice(11, 20)]
        sums = [e_step(federated, users[group], declared[group]) for group in groups]
        federated = m_step(federated, sums[0].plus(sums[1]).plus(sums[2]), Shrinkage())
    for mine, theirs in zip(central[:2], federated[:2], strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-8)


def test_em_finds_what_was_put_in() -> None:
    """With many users, w_0, Γ, the scales and the noise come back."""
    rng = np.random.default_rng(2)
    users, declared, w0, gamma = _world(rng, 400, 20, 4, 2)
    found = fit_prior(users, declared=declared, shrinkage=Shrinkage(1.0, 0.01, 0.01, 0.01), iterations=60)
    np.testing.assert_allclose(found.mean, w0, atol=0.15)
    assert found.gamma is not None
    np.testing.assert_allclose(found.gamma, gamma, atol=0.15)
    np.testing.assert_allclose(np.sqrt(np.diag(found.cov)), np.linspace(0.1, 0.8, 4), atol=0.12)
    assert abs(found.noise - 0.25) < 0.03


def test_evidence_is_the_marginal_likelihood() -> None:
    """For the Gaussian link it is the density of N(Xμ, XΣXᵀ + σ²I), computed densely."""
    rng = np.random.default_rng(3)
    prior = _prior(rng, 4)
    X, y = rng.normal(size=(7, 4)), rng.normal(size=7)
    V = X @ prior.cov @ X.T + prior.noise * np.eye(7)
    away = y - X @ prior.mean
    dense = -0.5 * (away @ np.linalg.solve(V, away) + np.linalg.slogdet(V)[1] + 7 * np.log(2 * np.pi))
    assert abs(evidence(prior, [Observations(X, y)]) - dense) < 1e-9


@pytest.mark.parametrize(
    ("users", "message"),
    [
        ([], "no labels"),
        ([Observations(np.ones((2, 2)), np.ones(3))], "labels, features"),
        ([Observations(np.full((1, 2), np.nan), np.ones(1))], "finite"),
        ([Observations(np.ones((1, 2)), np.full(1, 2.0))], "probabilities"),
    ],
)
def test_bad_input_is_refused(users: list[Observations], message: str) -> None:
    """What cannot be learnt from is named."""
    with pytest.raises(ValueError, match=message):
        fit_prior(users, link="logistic")
