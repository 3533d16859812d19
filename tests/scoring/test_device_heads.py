"""Laws of the heads on a device: a cache of the fold, equal to it, that holds what fits and copies what changed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fitrouter.posterior.gaussian import Gaussian, gaussian_update
from fitrouter.types import Floats, Identity
from fitrouter_evaluators.scoring import DeviceHeads, _fused
from fitrouter_evaluators.scoring.head_store import HeadStore

torch = pytest.importorskip("torch")


def learnt(rng: np.random.Generator, D: int, labels: int, variance: float) -> Gaussian:
    """A taste after some logistic labels, as the fold would have it."""
    taste = Gaussian.prior(rng.normal(size=D) * 0.2, np.full(D, variance))
    for _ in range(labels):
        h = rng.normal(size=D)
        gain = taste.gain(h)
        taste.learn(gain, gaussian_update(float(h @ taste.mean), float(h @ gain), float(rng.integers(0, 2))))
    return taste


def summed(blocks: list[Gaussian], h: Floats) -> tuple[float, float]:
    """Mean and sd of hᵀ(sum of the blocks) by numpy."""
    mean = sum(float(np.einsum("i,i->", h, block.mean)) for block in blocks)
    variance = sum(float(np.einsum("i,ij,j->", h, block.cov, h)) for block in blocks)
    return mean, float(np.sqrt(variance))


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), D=st.integers(1, 45), capacity=st.integers(3, 40), labels=st.integers(0, 60))
def test_the_cache_equals_the_fold(seed: int, D: int, capacity: int, labels: int) -> None:
    """Population + role + user in float32 equal float64 to 1e-5, through learning, however little fits."""
    rng = np.random.default_rng(seed)
    population, roles = learnt(rng, D, labels, 0.5), [learnt(rng, D, labels // 2, 0.2) for _ in range(2)]
    users = [learnt(rng, D, labels // 4, 0.2) for _ in range(9)]
    blocks = {str(i): [population, roles[i % 2], users[i]] for i in range(9)}
    heads = DeviceHeads(lambda identity: blocks[identity.user or ""], D, "cpu", capacity=capacity)
    for _ in range(3):
        names = [str(i) for i in rng.integers(0, 9, 12)]
        h = np.clip(rng.normal(size=(12, D)), -3, 3)
        means, sds = heads.score_many([Identity(user=name) for name in names], h)
        expected = np.array([summed(blocks[name], row) for name, row in zip(names, h, strict=True)])
        np.testing.assert_allclose(means, expected[:, 0], rtol=0, atol=1e-5)
        np.testing.assert_allclose(sds, expected[:, 1], rtol=0, atol=1e-5)
        for block in blocks[names[0]]:
            gain = block.gain(h[0])
            block.learn(gain, gaussian_update(0.0, float(h[0] @ gain), 1.0))


def test_nobody_is_kept_alive() -> None:
    """A user whom the fold has dropped is no longer in the host's memory, and a new one at its address is copied."""
    people: dict[str, Gaussian] = {}
    heads = DeviceHeads(lambda identity: [people[identity.user or ""]], 3, "cpu")
    h = np.ones((1, 3))
    for i in range(50):
        people.clear()  # CPython reuses the address of what was freed
        people["u"] = Gaussian(np.full(3, float(i)), np.eye(3) * (i + 1))
        means, sds = heads.score_many([Identity(user="u")], h)
        assert means[0] == pytest.approx(3.0 * i)
        assert sds[0] == pytest.approx(np.sqrt(3.0 * (i + 1)))
    assert heads.uploads == 50


def test_a_store_grows_as_far_as_it_may() -> None:
    """It begins small, grows to what is asked, keeps what lies in it, and stops at its capacity."""
    store = HeadStore(2, "cpu", 5000)
    assert len(store) == 1024
    store.put([7], np.array([[1.0, 2.0]]), np.eye(2)[None])
    assert store.reserve(1025) == 2048
    assert store.reserve(9000) == len(store) == 5000
    mean, variance = store.score(torch.tensor([7]), torch.tensor([[[1.0, 1.0], [0.0, 2.0]]]))
    assert mean.tolist() == [[3.0, 4.0]]
    assert variance.tolist() == [[2.0, 4.0]]
    with pytest.raises(ValueError, match="capacity is 0"):
        HeadStore(2, "cpu", 0)


def test_a_full_device_makes_room_by_forgetting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the device has no memory left the cache stays at its size and still answers for everybody."""
    blocks = [Gaussian(np.full(2, float(i)), np.eye(2)) for i in range(1500)]
    heads = DeviceHeads(lambda identity: [blocks[int(identity.user or 0)]], 2, "cpu")

    def full(slots: int) -> None:
        raise torch.OutOfMemoryError(f"no room for {slots}")

    monkeypatch.setattr(heads._store, "_room", full)
    means, _ = heads.score_many([Identity(user=str(i)) for i in range(1500)], np.ones((1500, 2)))
    assert means.tolist() == [2.0 * i for i in range(1500)]
    assert heads._store.capacity == 1024


def test_chunks_do_not_show() -> None:
    """More rows than are worked on together give what each gives alone."""
    rng = np.random.default_rng(0)
    store = HeadStore(30, "cpu", 1024)
    roots = rng.normal(size=(1000, 30, 30))
    store.put(np.arange(1000), rng.normal(size=(1000, 30)), roots @ roots.transpose(0, 2, 1) / 30)
    slots = torch.tensor(rng.permutation(1000))
    h = torch.tensor(rng.normal(size=(1000, 2, 30)), dtype=torch.float32)
    mean, variance = store.score(slots, h)
    for i in (0, 1, 499, 999):
        one_mean, one_variance = store.score(slots[i : i + 1], h[i : i + 1])
        torch.testing.assert_close(one_mean[0], mean[i])
        torch.testing.assert_close(one_variance[0], variance[i])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_fused_kernel_equals_torch() -> None:
    """On a GPU the fused kernel gives what torch's own operations give."""
    store, rng = HeadStore(38, "cuda", 1024), np.random.default_rng(0)
    roots = rng.normal(size=(500, 38, 38))
    store.put(np.arange(500), rng.normal(size=(500, 38)), roots @ roots.transpose(0, 2, 1) / 38)
    slots = torch.tensor(rng.integers(0, 500, 300), device="cuda")
    h = torch.tensor(rng.normal(size=(300, 8, 38)), dtype=torch.float32, device="cuda")
    assert store.fused is not None
    fused = store.score(slots, h)
    store.fused = None
    torch.testing.assert_close(fused, store.score(slots, h), rtol=1e-5, atol=1e-5)


def test_without_triton_the_fused_kernel_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without Triton learns what is missing."""
    monkeypatch.setattr(_fused, "_kernel", None)
    with pytest.raises(RuntimeError, match="needs Triton"):
        _fused.fused_score(None, None, None, torch.zeros((1, 1, 2)), None, None)
