"""Laws that hold for every policy, and what each one is for."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fitrouter import policies
from fitrouter.errors import ConfigError
from fitrouter.policies import Beliefs, Fixed, Policy, SquareCB, Uniform, build_policy

EXAMPLES: dict[str, Policy] = {"SquareCB": SquareCB(20.0), "Uniform": Uniform(), "Fixed": Fixed("a1")}


def discovered() -> list[str]:
    """Every class of the package that proposes."""
    found = [getattr(policies, name) for name in policies.__all__]
    return sorted(
        item.__name__ for item in found if inspect.isclass(item) and hasattr(item, "propose") and item is not Policy
    )


def beliefs(utility: list[float], steps: float = 100.0) -> Beliefs:
    K = len(utility)
    return Beliefs(arms=tuple(f"a{k}" for k in range(K)), utility=np.array(utility), sd=np.full(K, 0.1), steps=steps)


def test_every_policy_has_an_example() -> None:
    """A new policy is tested by existing."""
    assert discovered() == sorted(EXAMPLES)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
@given(
    utility=st.lists(st.floats(-10, 10), min_size=1, max_size=12),
    steps=st.floats(0, 1e9),
)
def test_proposal_is_a_pmf(name: str, utility: list[float], steps: float) -> None:
    """Probabilities are non-negative and sum to 1 within 1e-12, for one arm as for many."""
    pmf = EXAMPLES[name].propose(beliefs(utility, steps))
    assert pmf.shape == (len(utility),)
    assert (pmf >= 0).all()
    assert abs(pmf.sum() - 1) < 1e-12


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_proposing_is_pure(name: str) -> None:
    """The same beliefs give the same bits, and are left alone."""
    given_ = beliefs([0.1, 0.7, 0.4])
    before = given_.utility.copy()
    first, second = EXAMPLES[name].propose(given_), EXAMPLES[name].propose(given_)
    assert first.tobytes() == second.tobytes()
    assert given_.utility.tobytes() == before.tobytes()


@pytest.mark.parametrize("name", ["SquareCB", "Uniform"])
def test_order_of_arms_does_not_matter(name: str) -> None:
    """Permuting the arms permutes the pmf."""
    utility = [0.5, 0.9, 0.2, 0.4]
    order = [2, 0, 3, 1]
    straight = EXAMPLES[name].propose(beliefs(utility))
    np.testing.assert_allclose(EXAMPLES[name].propose(beliefs([utility[i] for i in order])), straight[order])


def test_squarecb_prefers_the_better_and_sharpens() -> None:
    """A better arm is never less likely, and more labels make the best one likelier."""
    early = SquareCB(20.0).propose(beliefs([0.5, 0.9, 0.2], steps=0))
    late = SquareCB(20.0).propose(beliefs([0.5, 0.9, 0.2], steps=10_000))
    assert early[1] > early[0] > early[2]
    assert late[1] > early[1]


def test_fixed_steps_aside_where_its_arm_is_not_eligible() -> None:
    """Without its arm, fixed is uniform."""
    assert Fixed("gone").propose(beliefs([1.0, 0.0])).tolist() == [0.5, 0.5]


@pytest.mark.parametrize(("algorithm", "message"), [("thompsen", "allowed are"), ("fixed", "default_model")])
def test_unknown_policies_are_refused(algorithm: str, message: str) -> None:
    """The message says what is allowed."""
    with pytest.raises(ConfigError, match=message):
        build_policy(algorithm)
