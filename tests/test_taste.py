"""The one kernel of all tastes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fitrouter.taste import Gaussian, innovate

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
    innovation = innovate(direction @ mean, sum(h @ gain for gain in gains), y, weight=weight)
    D = len(h)
    for i, (block, gain) in enumerate(zip(made, gains, strict=True)):
        block.learn(gain, innovation)
        part = slice(i * D, (i + 1) * D)
        np.testing.assert_allclose(block.mean, w[part], atol=1e-8)
        np.testing.assert_allclose(block.cov, expected[part, part], atol=1e-8)


@given(seed=st.integers(0, 10_000), y=finite, noise=st.sampled_from([0.05, 0.25]), weight=st.sampled_from([0.5, 1.0]))
def test_gaussian_update_is_the_exact_posterior(seed: int, y: float, noise: float, weight: float) -> None:
    """After one Gaussian label every block's marginal is that of the exact joint posterior."""
    made, h = blocks(seed)
    mean, cov, direction = stacked(made, h)
    precision = np.linalg.inv(cov)
    expected = np.linalg.inv(precision + np.outer(direction, direction) * weight / noise)
    w = expected @ (precision @ mean + direction * y * weight / noise)
    gains = [block.gain(h) for block in made]
    innovation = innovate(direction @ mean, sum(h @ gain for gain in gains), y, noise=noise, weight=weight)
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
def test_logistic_root_is_found_everywhere(predicted: float, variance: float, y: float, weight: float) -> None:
    """The step solves a = a₀ + ρ v (y − σ(a)) also where plain Newton overshoots."""
    innovation = innovate(predicted, variance, y, weight=weight)
    a = predicted + variance * innovation.step
    p = 1 / (1 + np.exp(-a)) if a > -700 else 0.0
    assert innovation.step == pytest.approx(weight * (y - p), abs=1e-6)
    assert 0 <= innovation.shrink * variance <= 1


def test_no_information_changes_nothing() -> None:
    """A block without variance along h keeps its bits."""
    block = Gaussian(np.array([1.0, 2.0]), np.diag([0.0, 1.0]))
    h = np.array([1.0, 0.0])
    block.learn(block.gain(h), innovate(1.0, 0.5, 0.0, noise=0.2))
    assert block.mean.tolist() == [1.0, 2.0]
    assert block.cov.tolist() == [[0.0, 0.0], [0.0, 1.0]]
