"""An unseen role starts near its kin, and a stranger at 0."""

from __future__ import annotations

import math

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fitrouter.context.encoders import Hashing, Static
from fitrouter.posterior.role_similarity import KnownRoles, RoleSimilarity, RoleSimilarityParams

D = 5


def key(role: str, tenant: str = "acme") -> str:
    return f"{tenant}\x1f{role}"


def family(*roles: str, tenant: str = "acme") -> RoleSimilarity:
    kin, encoder = RoleSimilarity(), Static()
    for role, vector in zip(roles, encoder.encode(list(roles)), strict=True):
        assert kin.meet(key(role, tenant), vector)
    return kin


def test_a_senior_tax_analyst_starts_near_the_tax_analyst() -> None:
    """With the router's own encoders, an unseen role takes about half of what its kin taught, and no stranger's."""
    taste, other = np.array([0.0, 0.3, -0.2, 0.1, 0.0]), np.array([0.0, -0.9, 0.9, 0.9, 0.9])
    roles = ["tax analyst", "senior tax analyst", "pediatric nurse", "chef"]
    for encoder in (Static(), Hashing()):
        kin = RoleSimilarity()
        for role, vector in zip(roles, encoder.encode(roles), strict=True):
            kin.meet(key(role), vector)
        known = {key("tax analyst"): KnownRoles(taste, 0.9), key("pediatric nurse"): KnownRoles(other, 0.9)}
        start = kin.prior(key("senior tax analyst"), known, D)
        along = float(start @ taste / (taste @ taste))
        assert 0.4 < along < 1.0
        assert np.abs(start - along * taste).max() < 1e-12
        assert not kin.prior(key("chef"), known, D).any()


def test_kin_that_hardly_know_themselves_teach_little() -> None:
    """A posterior mean that is half of the truth, half certain, teaches less than a certain one."""
    kin, truth = family("tax analyst", "senior tax analyst"), np.ones(D)
    starts = [
        float(kin.prior(key("senior tax analyst"), {key("tax analyst"): KnownRoles(c * truth, c)}, D)[0])
        for c in (0.0, 0.2, 0.6, 1.0)
    ]
    assert starts == sorted(starts)
    assert starts[0] == 0.0
    assert starts[-1] < 1.0


def test_no_one_learns_from_another_tenant_nor_from_themselves() -> None:
    """The same words at another tenant are strangers; the role's own taste is not its prior; no text, no kin."""
    kin = family("tax analyst")
    vector = kin.vectors[key("tax analyst")]
    kin.meet(key("tax analyst", "rival"), vector)
    known = {key("tax analyst"): KnownRoles(np.ones(D), 1.0)}
    assert kin.likeness(key("tax analyst"), key("tax analyst")) == 1.0
    assert not kin.prior(key("tax analyst", "rival"), known, D).any()
    assert not kin.prior(key("tax analyst"), known, D).any()
    assert not kin.prior(key("never met"), known, D).any()
    assert not kin.prior(key("senior tax analyst"), {key("x"): KnownRoles(np.full(D, math.nan), 1.0)}, D).any()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.floats(0.05, 0.95))
def test_the_prior_lies_between_nothing_and_the_kin(certainties: list[float], cosine: float) -> None:
    """Whatever is known, the prior is between 0 and the truth that all kin share."""
    kin, truth = RoleSimilarity(RoleSimilarityParams(near=0.0)), np.array([1.0, -2.0])
    kin.meet("me", np.array([1.0, 0.0, 0.0]))
    known = {}
    for i, c in enumerate(certainties):
        kin.meet(f"r{i}", np.array([cosine, math.sqrt(1.0 - cosine * cosine), 0.0]))
        known[f"r{i}"] = KnownRoles(c * truth, c)
    start = kin.prior("me", known, 2)
    assert 0.0 <= start[0] <= 1.0
    assert math.isclose(start[1], -2.0 * start[0], abs_tol=1e-12)


def test_vectors_that_are_none_are_not_met() -> None:
    """NaN, zeros, matrices and nothing are refused; another encoder's vectors replace all."""
    kin = RoleSimilarity()
    for junk in (np.array([1.0, math.nan]), np.zeros(3), np.ones((2, 2)), np.zeros(0), np.array([math.inf])):
        assert not kin.meet("a", junk)
    assert kin.meet("a", np.array([3.0, 4.0]))
    assert kin.vectors["a"].tolist() == [0.6, 0.8]
    assert kin.meet("b", np.ones(3))
    assert list(kin.vectors) == ["b"]
    for i in range(400):
        kin.meet(f"r{i}", np.ones(3))
    assert len(kin.vectors) == 256
    assert kin.meet("b", np.array([0.0, 0.0, 2.0]))
    assert kin.vectors["b"].tolist() == [0.0, 0.0, 1.0]


def test_the_state_round_trips_and_rejects_corruption() -> None:
    """Restored state reads the same bit for bit; bytes that are not sound leave everything unchanged."""
    one, two = family("tax analyst", "chef"), RoleSimilarity()
    payload = one.dump()
    assert two.load(payload)
    assert two.dump() == payload
    stored = msgspec.msgpack.decode(payload)
    long, short = [stored[0][0], stored[0][1] * 2], [stored[0][0], np.ones(1).tobytes()]
    for junk in ([long, stored[1]], [short, stored[1]], [stored[0], stored[0]], [["a", b"123"]]):
        assert not two.load(msgspec.msgpack.encode(junk))
    assert not two.load(payload[:-4])
    assert two.dump() == payload
