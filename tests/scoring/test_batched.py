"""Laws of the batched kernel: whatever the batch, it is the fold of `fitrouter.posterior.gaussian`, event by event."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.scoring.batched import BatchedTastes, rounds
from hypothesis import given
from hypothesis import strategies as st

from fitrouter.posterior.gaussian import Gaussian, gaussian_update
from fitrouter.types import Floats

pytest.importorskip("torch")


def tastes(rng: np.random.Generator, n: int, K: int) -> list[Gaussian]:
    """Random Gaussians, some nearly singular and some very wide."""
    roots = rng.normal(size=(n, K, K)) * (10.0 ** rng.uniform(-2, 1, size=(n, 1, 1)))
    return [Gaussian(rng.normal(size=K), root @ root.T / K) for root in roots]


def learn_one(taste: Gaussian, h: Floats, y: float, noise: float | None, weight: float, offset: float) -> None:
    """The fold's way."""
    gain = taste.gain(h)
    predicted = float(np.einsum("i,i->", h, taste.mean)) + offset
    taste.learn(gain, gaussian_update(predicted, float(np.einsum("i,i->", h, gain)), y, noise=noise, weight=weight))


@given(seed=st.integers(0, 10_000), people=st.integers(1, 6), n=st.integers(0, 30), K=st.integers(1, 40))
def test_batched_equals_sequential(seed: int, people: int, n: int, K: int) -> None:
    """Any mixture of people, links, weights and offsets gives what the fold gives one by one, to 1e-10."""
    rng = np.random.default_rng(seed)
    blocks = tastes(rng, people, K)
    batch = BatchedTastes.of(blocks)
    who, h = rng.integers(0, people, n), rng.normal(size=(n, K)) * 10.0 ** rng.uniform(-2, 1, size=(n, 1))
    y = np.where(rng.random(n) < 0.5, rng.integers(0, 2, n), rng.random(n))
    noise = np.where(rng.random(n) < 0.5, np.nan, rng.uniform(0.01, 2.0, n))
    weight, offset = rng.uniform(0.05, 5.0, n), rng.normal(size=n)
    batch.learn(who, h, y, noise=noise, weight=weight, offset=offset)
    for i in range(n):
        sigma2 = None if np.isnan(noise[i]) else float(noise[i])
        learn_one(blocks[who[i]], h[i], float(y[i]), sigma2, float(weight[i]), float(offset[i]))
    for row, block in enumerate(blocks):
        found = batch.gaussian(row)
        scale = max(1.0, float(np.abs(block.cov).max()))
        np.testing.assert_allclose(found.mean, block.mean, rtol=1e-10, atol=1e-10 * scale)
        np.testing.assert_allclose(found.cov, block.cov, rtol=1e-10, atol=1e-10 * scale)
        assert (found.cov == found.cov.T).all()


@given(st.lists(st.integers(0, 5), max_size=40))
def test_rounds_keep_the_order(people: list[int]) -> None:
    """Every event is in one round, no person twice in a round, and each person's events in their order."""
    made = [turn.tolist() for turn in rounds(np.array(people, dtype=np.int64))]
    assert sorted(i for turn in made for i in turn) == list(range(len(people)))
    for turn in made:
        assert len({people[i] for i in turn}) == len(turn)
    for person in set(people):
        assert [i for turn in made for i in turn if people[i] == person] == [
            i for i, name in enumerate(people) if name == person
        ]
    assert len(made) == max((people.count(person) for person in people), default=0)


def test_one_prior_for_all() -> None:
    """A label moves its own person; the others stay at the prior, bit for bit, and so does the prior itself."""
    prior = Gaussian(np.array([0.5, -1.0]), np.array([[1.0, 0.2], [0.2, 2.0]]))
    batch = BatchedTastes.prior(prior, 3)
    batch.learn([1], np.array([[1.0, 2.0]]), [1.0])
    assert batch.gaussian(0).mean.tolist() == batch.gaussian(2).mean.tolist() == prior.mean.tolist()
    assert batch.gaussian(2).cov.tolist() == prior.cov.tolist() == [[1.0, 0.2], [0.2, 2.0]]
    assert batch.gaussian(1).mean[1] > -1.0
    assert len(batch) == 3


def test_shapes_that_do_not_fit_are_refused() -> None:
    """Shapes and rows are checked before anything changes."""
    prior = Gaussian(np.zeros(2), np.eye(2))
    batch = BatchedTastes.prior(prior, 3)
    for people, h, y in (([0], np.ones((1, 3)), [1.0]), ([0, 1], np.ones((1, 2)), [1.0]), ([0], np.ones((1, 2)), [])):
        with pytest.raises(ValueError, match="must be"):
            batch.learn(people, h, y)
    for row in (-1, 3):
        with pytest.raises(ValueError, match="there are 0 to 2"):
            batch.learn([row], np.ones((1, 2)), [1.0])
    with pytest.raises(ValueError, match="must be \\(2, 3, 3\\)"):
        BatchedTastes(np.zeros((2, 3)), np.zeros((2, 3)))
    assert batch.gaussian(0).mean.tolist() == [0.0, 0.0]
