"""Batched pmfs equal the single ones, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.policies.test_conformance import NAMES, make

from fitrouter.policies import Beliefs, is_batched, proposals

entries = st.one_of(
    st.floats(-10, 10), st.sampled_from([0.0, 0.5, 0.7]), st.sampled_from([np.nan, np.inf, -np.inf, 1e308])
)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30)
@given(n=st.integers(1, 5), K=st.integers(1, 40), data=st.data())
def test_batched_pmfs_equal_single_ones(name: str, n: int, K: int, data: st.DataObject) -> None:
    """Row i of `proposals` has the bits of `propose` on row i, ties and invalid estimates included; inputs stay."""
    utility = np.array(data.draw(st.lists(entries, min_size=n * K, max_size=n * K))).reshape(n, K)
    sd = np.array(data.draw(st.lists(entries, min_size=n * K, max_size=n * K))).reshape(n, K)
    steps = np.array(data.draw(st.lists(st.floats(-1, 1e6), min_size=n, max_size=n)))
    before = utility.tobytes(), sd.tobytes()
    arms = tuple(f"a{k}" for k in range(K))
    policy = make(name)
    many = proposals(policy, [arms] * n, utility, sd, steps)
    assert (utility.tobytes(), sd.tobytes()) == before
    for i in range(n):
        one = policy.propose(Beliefs(arms=arms, utility=utility[i], sd=sd[i], steps=float(steps[i])))
        assert many[i].tobytes() == one.tobytes()


@pytest.mark.parametrize("sd", [2e-313, 1e-300, 1e-291, 1e-289, 1e-200])
def test_thompson_with_tiny_standard_deviations(sd: float) -> None:
    """Standard deviations down to the smallest float give a pmf without overflow."""
    beliefs = Beliefs(arms=("a", "b", "c"), utility=np.zeros(3), sd=np.array([0.0, sd, sd]), steps=0.0)
    pmf = make("linear_thompson").propose(beliefs)
    assert pmf.min() >= 0.0
    assert pmf.sum() == pytest.approx(1.0, abs=1e-12)
    assert pmf[1] == pytest.approx(pmf[2])


def test_batched_policies() -> None:
    """All policies are batched but the fixed one, which needs arm names."""
    assert {name for name in NAMES if not is_batched(make(name))} == {"fixed"}
