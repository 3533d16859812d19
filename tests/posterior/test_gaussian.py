"""Gaussian and Laplace updates of sums of independent blocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fitrouter.posterior.gaussian import Gaussian, gaussian_update, ordered_sum
from fitrouter.types import Floats

finite = st.floats(-3, 3, allow_nan=False)


def blocks(seed: int, D: int = 4, n: int = 3) -> tuple[list[Gaussian], np.ndarray]:
    """N independent Gaussians over R^D, and an observation direction."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(n):
        root = rng.normal(size=(D, D)) * 0.5
        made.append(Gaussian(rng.normal(size=D), root @ root.T + 0.05 * np.eye(D)))
    return made, rng.normal(size=D)


def stacked(made: list[Gaussian], h: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same as one Gaussian over all blocks."""
    D, n = len(h), len(made)
    mean = np.concatenate([block.mean for block in made])
    cov = np.zeros((n * D, n * D))
    for i, block in enumerate(made):
        cov[i * D : (i + 1) * D, i * D : (i + 1) * D] = block.cov
    return mean, cov, np.tile(h, n)


@given(seed=st.integers(0, 10_000), y=st.sampled_from([0.0, 0.3, 1.0]), weight=st.sampled_from([0.3, 1.0, 2.0]))
def test_logistic_update_is_the_laplace_posterior(seed: int, y: float, weight: float) -> None:
    """After one logistic label every block's marginal is that of the full Laplace approximation over all blocks."""
    made, h = blocks(seed)
    mean, cov, direction = stacked(made, h)
    precision = np.linalg.inv(cov)
    w = mean.copy()
    for _ in range(300):  # damped Newton on the log posterior, with no use of its rank-one structure
        p = 1 / (1 + np.exp(-direction @ w))
        gradient = weight * (y - p) * direction - precision @ (w - mean)
        hessian = precision + weight * p * (1 - p) * np.outer(direction, direction)
        step = np.linalg.solve(hessian, gradient)
        w += step * min(1.0, 1.0 / max(abs(direction @ step), 1e-12))
    p = 1 / (1 + np.exp(-direction @ w))
    expected = np.linalg.inv(precision + weight * p * (1 - p) * np.outer(direction, direction))
    gains = [block.gain(h) for block in made]
    innovation = gaussian_update(direction @ mean, sum(h @ gain for gain in gains), y, weight=weight)
    D = len(h)
    for i, (block, gain) in enumerate(zip(made, gains, strict=True)):
        block.learn(gain, innovation)
        part = slice(i * D, (i + 1) * D)
        np.testing.assert_allclose(block.mean, w[part], atol=1e-8)
        np.testing.assert_allclose(block.cov, expected[part, part], atol=1e-8)


def laplace(mean: Floats, root: Floats, h: Floats, y: float, weight: float) -> tuple[Floats, Floats]:
    """The Laplace posterior under N(mean, root rootᵀ) by dense Newton over z, w = mean + root·z: well conditioned."""
    z, seen = np.zeros(root.shape[1]), root.T @ h

    def loss(z: Floats) -> float:
        a = h @ mean + seen @ z
        return float(weight * (np.logaddexp(0.0, a) - y * a) + z @ z / 2)

    for _ in range(200):
        p = np.exp(-np.logaddexp(0.0, -(h @ mean + seen @ z)))
        hessian = np.eye(len(z)) + weight * p * (1 - p) * np.outer(seen, seen)
        step, size = np.linalg.solve(hessian, weight * (y - p) * seen - z), 1.0
        while loss(z + size * step) > loss(z) and size > 1e-4:
            size /= 2
        z = z + size * step
        if np.abs(step).max() < 1e-15 * max(1.0, np.abs(z).max()):
            break
    p = np.exp(-np.logaddexp(0.0, -(h @ mean + seen @ z)))
    hessian = np.eye(len(z)) + weight * p * (1 - p) * np.outer(seen, seen)
    return mean + root @ z, root @ np.linalg.solve(hessian, root.T)


@given(
    seed=st.integers(0, 100_000),
    D=st.integers(1, 40),
    y=st.floats(0, 1),
    weight=st.floats(0.05, 5),
    decades=st.floats(0, 6),
    size=st.floats(0.01, 5),
)
def test_logistic_update_equals_dense_newton(
    seed: int, D: int, y: float, weight: float, decades: float, size: float
) -> None:
    """Mean and covariance equal a dense reference to 1e-10: soft labels, any weight, conditions up to 1e12."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(D, D)))[0]
    root = basis * 10.0 ** rng.uniform(-decades, 0.0, D)
    h, block = rng.normal(size=D) * size, Gaussian(rng.normal(size=D), root @ root.T)
    mean, cov = laplace(block.mean, root, h, y, weight)
    gain = block.gain(h)
    block.learn(gain, gaussian_update(h @ block.mean, h @ gain, y, weight=weight))
    np.testing.assert_allclose(block.mean, mean, rtol=0, atol=1e-10)
    np.testing.assert_allclose(block.cov, cov, rtol=0, atol=1e-10)


@given(seed=st.integers(0, 10_000), y=finite, noise=st.sampled_from([0.05, 0.25]), weight=st.sampled_from([0.5, 1.0]))
def test_gaussian_update_is_the_exact_posterior(seed: int, y: float, noise: float, weight: float) -> None:
    """After one Gaussian label every block's marginal is that of the exact joint posterior."""
    made, h = blocks(seed)
    mean, cov, direction = stacked(made, h)
    precision = np.linalg.inv(cov)
    expected = np.linalg.inv(precision + np.outer(direction, direction) * weight / noise)
    w = expected @ (precision @ mean + direction * y * weight / noise)
    gains = [block.gain(h) for block in made]
    innovation = gaussian_update(direction @ mean, sum(h @ gain for gain in gains), y, noise=noise, weight=weight)
    D = len(h)
    for i, (block, gain) in enumerate(zip(made, gains, strict=True)):
        block.learn(gain, innovation)
        part = slice(i * D, (i + 1) * D)
        np.testing.assert_allclose(block.mean, w[part], atol=1e-8)
        np.testing.assert_allclose(block.cov, expected[part, part], atol=1e-8)


@given(
    predicted=st.floats(-30, 30),
    variance=st.floats(0, 1000),
    y=st.floats(0, 1),
    weight=st.sampled_from([0.2, 1.0, 5.0]),
)
def test_the_logistic_root_is_always_found(predicted: float, variance: float, y: float, weight: float) -> None:
    """The step solves a = a₀ + ρ v (y − σ(a)) also where plain Newton overshoots."""
    innovation = gaussian_update(predicted, variance, y, weight=weight)
    a = predicted + variance * innovation.step
    p = 1 / (1 + np.exp(-a)) if a > -700 else 0.0
    assert innovation.step == pytest.approx(weight * (y - p), abs=1e-6)
    assert 0 <= innovation.shrink * variance <= 1


def test_blocks_without_variance_do_not_change() -> None:
    """A block without variance along h keeps its bits."""
    block = Gaussian(np.array([1.0, 2.0]), np.diag([0.0, 1.0]))
    h = np.array([1.0, 0.0])
    block.learn(block.gain(h), gaussian_update(1.0, 0.5, 0.0, noise=0.2))
    assert block.mean.tolist() == [1.0, 2.0]
    assert block.cov.tolist() == [[0.0, 0.0], [0.0, 1.0]]


def test_sums_round_after_each_term() -> None:
    """The same terms give the same bits with every Python: its own `sum` compensates from 3.12 on."""
    assert ordered_sum([1e16, 1.0, -1e16]) == 0.0
    assert ordered_sum([]) == 0.0
