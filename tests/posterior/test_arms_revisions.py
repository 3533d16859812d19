"""Revisions: a new revision of a model starts from the posterior of the last one."""

from __future__ import annotations

import numpy as np

from fitrouter.posterior.arms import ArmParams, Arms
from fitrouter.routing.variants import expand
from fitrouter.state.learner import Learner
from fitrouter.stores.journal import Row
from fitrouter.types import ModelCard, ModelChange, Variant

X = np.array([1.0, 0.4, -0.3])


def taught(name: str) -> Arms:
    arms = Arms(3, 2, ArmParams())
    row = arms.row(name)
    for _ in range(50):
        arms.observe_response(row, X, np.array([1.0, 0.7]))
        arms.observe_operations(row, X, 120.0, 0.5)
        gains, means, variances = arms.along(row, X)
        total = 0.1 + variances
        arms.correct(row, gains, (0.2 - means) / total, 1.0 / total)
    return arms


def test_a_revision_inherits_means_with_larger_variances() -> None:
    """Means are the last revision's; every covariance lies half-way to the prior's; other models start at the prior."""
    arms = taught("m@1")
    old, new, other = arms.names["m@1"], arms.join("m@2"), arms.join("n@2")
    assert (arms.profile[new] == arms.profile[old]).all()
    assert (arms.correction[new] == arms.correction[old]).all()
    assert (arms.operations[new] == arms.operations[old]).all()
    for covs in (arms.profile_cov, arms.correction_cov, arms.operations_cov):
        np.testing.assert_allclose(covs[new], 0.5 * (covs[old] + covs[0]))
    assert (arms.corrections[other] == arms.corrections[0]).all()
    names = ("m@1", "m@2")
    read = arms.read(arms.find(names), X, np.full(len(arms.params.corrections), 0.2))
    assert read.variance[1] > read.variance[0]
    assert arms.join("m@2") == new


def test_variants_inherit_from_their_last_revision() -> None:
    """A ModelChange lets the new revision of a model and of its variants start from the old ones."""
    learner = Learner(3, 2)
    one = expand([ModelCard(name="m", provider="p", revision="1", variants=(Variant(name="terse", prefix="Short."),))])
    learner.apply(Row(1, ModelChange(id="a", ts=0.0, cards=tuple(one), registry="1")))
    arms = learner.fit.arms
    arms.profile[arms.names["m#terse@1"], 0, 1] = 0.9
    arms.correction[arms.names["m@1"], :, 0] = 0.3
    two = expand([ModelCard(name="m", provider="p", revision="2", variants=(Variant(name="terse", prefix="Short."),))])
    learner.apply(Row(2, ModelChange(id="b", ts=1.0, cards=tuple(two), registry="2")))
    assert arms.profile[arms.names["m#terse@2"], 0, 1] == 0.9
    assert (arms.correction[arms.names["m@2"], :, 0] == 0.3).all()
    assert arms.shared["m#terse@2"] == arms.names["m@2"]
    fresh = learner.blank()
    assert fresh.restore(learner.snapshot())
    assert fresh.digest() == learner.digest()
