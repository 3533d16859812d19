"""Satisfaction across users: luck is taken out, and what is left is the truth of worlds that are known."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fitrouter_evaluators.replay.report import UserSatisfaction
from fitrouter_evaluators.replay.study.satisfaction import satisfaction

LEVEL = 0.6


class World(NamedTuple):
    """Users with true means under the candidate and `against`, and noisy units of theirs."""

    before: np.ndarray
    after: np.ndarray
    user: np.ndarray
    x: np.ndarray
    x0: np.ndarray

    def found(self, **how: Any) -> UserSatisfaction:
        none = np.full(len(self.user), -1)
        return satisfaction(self.x, self.x0, self.user, none, (), **{"replicates": 150, **how})[0]

    @property
    def worst(self) -> float:
        return float(np.sort(self.after)[: len(self.after) // 10].mean())

    @property
    def worse(self) -> float:
        return float((self.after < self.before).mean())


def world(
    seed: int, gains: str, *, users: int = 200, each: int = 25, between: float = 0.1, noise: float = 0.5
) -> World:
    """Gains of users: `none`, `normal`, `two` humps (a fifth is harmed), `skewed` (a long tail is harmed)."""
    rng = np.random.default_rng([7, seed])
    before = LEVEL + between * rng.standard_normal(users)
    gain = {
        "none": np.zeros(users),
        "normal": rng.normal(0.03, 0.15, users),
        "two": np.where(rng.random(users) < 0.2, -0.25, 0.1),
        "skewed": 0.15 - rng.gamma(1.0, 0.12, users),
    }[gains]
    n = np.maximum(rng.geometric(1.0 / each, users), 2)
    user = np.repeat(np.arange(users), n)
    shared = noise * rng.standard_normal(len(user))
    x0 = before[user] + shared
    x = (before + gain)[user] + shared + noise * rng.standard_normal(len(user))
    return World(before, before + gain, user, x, x0)


def wide(seen: World) -> UserSatisfaction:
    """With true means that may be anything: the worlds here are normal."""
    return seen.found(low=-9.0, high=9.0)


def test_where_users_do_not_differ_no_difference_is_found() -> None:
    """Equal users: the standard deviation is about 0 and the worst tenth has the mean, unlike raw means."""
    sds, gaps, raw = [], [], []
    for seed in range(20):
        seen = world(seed, "none", between=0.0, each=10)
        found = wide(seen)
        sds.append(found.sd)
        gaps.append(found.mean - found.worst_decile)
        means = np.bincount(seen.user, seen.x) / np.bincount(seen.user)
        raw.append(float(found.mean - np.sort(means)[:20].mean()))
    assert np.median(sds) < 0.03
    assert np.mean(gaps) < 0.06
    assert np.mean(raw) > 0.3


def test_the_share_of_the_worse_off_is_undecided_where_nobody_changes() -> None:
    """Without any difference the interval of the share worse off contains 0 and mostly 1."""
    found = [wide(world(seed, "none", each=10)) for seed in range(25)]
    assert np.mean([one.worse_off_low == 0.0 for one in found]) >= 0.88
    assert np.mean([one.worse_off_high - one.worse_off_low > 0.9 for one in found]) >= 0.8


def test_a_gain_that_is_the_same_for_all_leaves_nobody_behind() -> None:
    """If everybody gains equally the share worse off is 0 with a narrow interval; mirrored, it is 1."""
    rng = np.random.default_rng(3)
    user = np.repeat(np.arange(200), 20)
    x0 = LEVEL + 0.3 * rng.standard_normal(len(user))
    x = x0 + 0.1 + 0.3 * rng.standard_normal(len(user))
    none = np.full(len(user), -1)
    gains = satisfaction(x, x0, user, none, (), low=-9.0, high=9.0)[0]
    falls = satisfaction(x0, x, user, none, (), low=-9.0, high=9.0)[0]
    assert gains.worse_off < 0.05
    assert gains.worse_off_low == 0.0
    assert gains.worse_off_high < 0.2
    assert falls.worse_off == pytest.approx(1.0 - gains.worse_off, abs=0.02)


@pytest.mark.parametrize("gains", ["normal", "two", "skewed"])
def test_true_worlds_lie_in_their_intervals(gains: str) -> None:
    """Intervals of worst decile and share worse off cover the truth in 90% of worlds and are not vacuous."""
    worst, worse, width = [], [], []
    for seed in range(20):
        seen = world(seed, gains)
        found = wide(seen)
        worst.append(found.worst_decile_low <= seen.worst <= found.worst_decile_high)
        worse.append(found.worse_off_low <= seen.worse <= found.worse_off_high)
        width.append(found.worse_off_high - found.worse_off_low)
    assert np.mean(worst) >= 0.9
    assert np.mean(worse) >= 0.9
    assert np.mean(width) < 0.4


def test_estimates_are_nearer_to_the_truth_than_raw_means_and_their_shrinkage() -> None:
    """Raw means overstate the worst tenth's loss; posterior means of a normal prior understate it."""
    ours, naive, shrunken = [], [], []
    for seed in range(20):
        seen = world(seed, "two", each=12)
        found = wide(seen)
        n = np.bincount(seen.user)
        means = np.bincount(seen.user, seen.x) / n
        luck = 0.5 / n
        pull = found.sd**2 / (found.sd**2 + luck)
        posterior = found.mean + pull * (means - found.mean)
        ours.append(found.worst_decile - seen.worst)
        naive.append(np.sort(means)[:20].mean() - seen.worst)
        shrunken.append(np.sort(posterior)[:20].mean() - seen.worst)
    assert np.mean(naive) < -0.06
    assert np.mean(shrunken) > 0.01
    assert abs(np.mean(ours)) < 0.5 * abs(np.mean(naive))


def test_the_spread_of_true_means_is_unbiased_whatever_the_labels() -> None:
    """The standard deviation does not grow with the noise, as that of raw means does."""
    for noise in (0.2, 0.5, 1.0):
        sds = [wide(world(seed, "none", between=0.15, noise=noise)).sd_against for seed in range(6)]
        assert np.mean(sds) == pytest.approx(0.15, abs=0.02)


def test_users_who_are_treated_alike_are_not_worse_off() -> None:
    """Users with the same policy on both sides are not counted as worse off."""
    rng = np.random.default_rng(5)
    user = np.repeat(np.arange(200), 20)
    x0 = LEVEL + 0.3 * rng.standard_normal(len(user))
    loss = np.where(user < 100, 0.0, -0.2 + 0.3 * rng.standard_normal(len(user)))
    found = satisfaction(x0 + loss, x0, user, np.full(len(user), -1), (), low=-9.0, high=9.0)[0]
    assert found.worse_off == pytest.approx(0.5, abs=0.03)
    assert found.worse_off_high <= 0.6
    same = satisfaction(x0, x0, user, np.full(len(user), -1), ())[0]
    assert (same.worse_off, same.worse_off_low, same.worse_off_high) == (0.0, 0.0, 0.0)


def test_roles_are_told_apart_and_small_ones_are_left_out() -> None:
    """Each role is reported; one of fewer than ten users has no worst tenth; units without a user are not counted."""
    rng = np.random.default_rng(6)
    user = np.repeat(np.arange(105), 20)
    role = np.where(user < 50, 0, np.where(user < 100, 1, 2))
    x0 = LEVEL + 0.2 * rng.standard_normal(len(user))
    x = x0 + np.where(role == 0, 0.1, -0.1) + 0.1 * rng.standard_normal(len(user))
    found = satisfaction(x, x0, user, role, ("nurse", "clerk", "rare"))
    assert [one.role for one in found] == ["", "nurse", "clerk"]
    assert [one.users for one in found] == [105, 50, 50]
    assert found[1].worse_off < 0.1
    assert found[2].worse_off > 0.9
    assert found[1].mean > found[2].mean
    extra = satisfaction(np.append(x, 99.0), np.append(x0, 0.0), np.append(user, -1), np.append(role, 0), ("nurse",))
    assert extra == found[:2]


def test_nothing_is_said_of_few() -> None:
    """An empty log, nine users, and users with one unit each give no estimates."""
    for users, each in ((0, 0), (9, 30), (50, 1)):
        user = np.repeat(np.arange(users), each)
        x = np.random.default_rng(0).random(len(user))
        assert satisfaction(x, x, user, np.full(len(user), -1), ()) == []


@settings(max_examples=12)
@given(st.integers(0, 10_000), st.integers(10, 40), st.integers(2, 6), st.sampled_from([0.0, 0.01, 0.3]))
def test_numbers_are_possible(seed: int, users: int, each: int, noise: float) -> None:
    """Estimates lie in their ranges and intervals, and are reproducible."""
    rng = np.random.default_rng(seed)
    user = rng.permutation(np.repeat(np.arange(users), each))
    x0 = np.clip(0.5 + noise * rng.standard_normal(len(user)), 0.0, 1.0)
    x = np.clip(x0 + noise * rng.standard_normal(len(user)), 0.0, 1.0)
    role = np.zeros(len(user), dtype=np.int64)
    found = satisfaction(x, x0, user, role, ("r",), replicates=30)
    assert found == satisfaction(x, x0, user, role, ("r",), replicates=30)
    for one in found:
        assert 0.0 <= one.worse_off_low <= one.worse_off <= one.worse_off_high <= 1.0
        assert one.worst_decile_low <= one.worst_decile <= one.worst_decile_high
        assert 0.0 <= one.worst_decile <= one.mean + 1e-9 <= 1.0 + 1e-9
        assert min(one.sd, one.sd_against) >= 0.0


def test_who_is_who_does_not_matter() -> None:
    """Estimates are invariant to users' codes and the order of units."""
    seen = world(1, "skewed", users=60)
    codes = np.random.default_rng(0).permutation(60) * 3
    order = np.random.default_rng(1).permutation(len(seen.user))
    other = World(seen.before, seen.after, codes[seen.user][order], seen.x[order], seen.x0[order])
    one, two = wide(seen), wide(other)
    for name in ("mean", "sd", "worst_decile", "worse_off", "sd_against", "worst_decile_against"):
        assert getattr(one, name) == pytest.approx(getattr(two, name), abs=1e-9)
