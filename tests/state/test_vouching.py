"""Users whom an untrusted key names count for others as a few established people, however many they are."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.kits.learner import D_X, Log, fold, learner
from tests.kits.tables import table_driven

from fitrouter.state.learner import Learner
from fitrouter.state.refit import refit
from fitrouter.state.vouching import CALLERS, DAYS, Vouching
from fitrouter.stores.journal import MemoryJournal
from fitrouter.types import Identity

STRANGER, X = Identity(user="stranger", role="analyst"), np.eye(D_X)[0]
TEAM, INVENTED = 8, 60


def expected(state: Learner) -> float:
    """The rating that a stranger is expected to give model a."""
    return float(state.fit.estimate(STRANGER, X, ("a", "b"), 2.0).mean[0])


def votes(log: Log, who: str, n: int, value: float, vouched: str, dimension: str = "overall") -> None:
    """One vote on model a of each of n users."""
    for number in range(n):
        name = log.answer(f"{who}{number}", "a")
        log.score(name)
        log.vote(name, value, vouched=vouched, dimension=dimension)


def established(team: int = TEAM, key: str = "") -> Log:
    """A team that has voted up model a on each of six days."""
    log = Log(MemoryJournal(), np.random.default_rng(7))
    for log.day in range(6):
        votes(log, "t", team, 1.0, key)
    return log


@table_driven(
    "team, key, attacker, days, dimension, held",
    [
        (TEAM, "", "app", 1, "overall", True),
        (TEAM, "", "app", 7, "overall", True),  # aged for a week
        (TEAM, "other", "app", 1, "overall", True),  # people of another untrusted key are established too
        (TEAM, "", "app", 1, "tone", True),
        (TEAM, "", "", 1, "overall", False),  # a trusted key speaks for its users
        (2, "", "app", 1, "overall", False),  # too few others are established
        (TEAM, "app", "app", 1, "overall", False),  # no others are there
    ],
)
def test_invented_users_count_as_a_few_people(
    team: int, key: str, attacker: str, days: int, dimension: str, held: bool
) -> None:
    """Votes of an untrusted key's many users move strangers no more than three established people; others' do."""
    log = established(team, key)
    before = fold(log.journal)
    for _ in range(days):
        log.day += 1
        votes(log, "evil", INVENTED, 0.0, attacker, dimension)
    after = fold(log.journal)
    left_out = after.projections.vouching.left_out
    most = 3 * (4 if dimension == "overall" else 3)  # four votes each since they were established, or three a day
    assert left_out == (INVENTED * days - most if held else 0)
    if dimension == "overall":
        assert (expected(after) > 0.5) is held
    assert after.fit.labels == before.fit.labels + (INVENTED * days if dimension == "overall" else 0)
    users = after.fit.tastes.users
    assert all(users[f"evil{n}"].weights or users[f"evil{n}"].others for n in range(INVENTED)), "their own terms learn"


def test_the_more_established_people_vote_the_more_a_key_may() -> None:
    """The limit follows the mean of the people of others who vote most on the model."""
    log = established()
    for _ in range(30):
        log.day += 1
        votes(log, "t", TEAM, 1.0, "")
    votes(log, "u", 300, 1.0, "app")
    assert fold(log.journal).projections.vouching.left_out == 300 - 3 * (36 - DAYS + 1)


def test_limits_are_part_of_the_state() -> None:
    """A restored learner and a refit leave out the same votes, and votes that are left out publish nothing."""
    log = established()
    votes(log, "evil", INVENTED, 0.0, "app")
    straight = fold(log.journal)
    log.journal.save(straight.snapshot())
    restored = learner()
    assert restored.restore(log.journal.snapshot())
    votes(log, "evil", INVENTED, 0.0, "app")
    for state in (fold(log.journal, restored), fold(log.journal)):
        assert state.projections.vouching.left_out == 2 * INVENTED - 12
        assert len(state.projections.publication.voters) == TEAM + 12
    assert refit(log.journal, straight, log.journal.head()).projections.vouching.left_out == 2 * INVENTED - 12
    assert learner(people_per_key=4).version != straight.version


def test_accounts_are_bounded() -> None:
    """Names of keys and dimensions make no more accounts and counts than there may be; damaged ones are refused."""
    vouching = Vouching()
    for number in range(CALLERS + 5):
        vouching.observe(f"key {number}", "a", days=1, before=0, left=2.0)
    assert len(vouching._accounts) == CALLERS + 1
    log = established()
    for number in range(30):
        votes(log, "evil", 1, 0.0, "app", f"dimension {number}")
    assert set(fold(log.journal).projections.vouching._accounts["app"].counted) == {"a *"}
    copy = Vouching()
    assert copy.load(vouching.dump())
    assert copy.dump() == vouching.dump()
    vouching._accounts["key 1"].people = -1
    assert not copy.load(vouching.dump())


@pytest.mark.parametrize("people", [1, 3])
def test_the_limit_begins_with_enough_people(people: int) -> None:
    """It holds from the third day of as many people of others as a key counts for."""
    vouching, limits = Vouching(), {"people": people, "votes_per_day": 3}
    vouching.observe("app", "a", days=1, before=0, left=math.inf)
    for number in range(people):
        assert vouching.left("app", "a", **limits) == math.inf, number
        for day in range(DAYS):
            vouching.observe("", "a", days=day + 1, before=day, left=math.inf)
    for left in (2.0, 1.0, 0.0):
        vouching.observe("app", "a", days=1, before=0, left=left)
    assert (vouching.left("app", "a", **limits), vouching.left_out) == (people * 3 - 2, 1)
    assert vouching.left("app", "b", **limits) == people * 3
    assert vouching.left("", "a", **limits) == math.inf


def test_people_of_several_keys_do_not_limit_each_other() -> None:
    """Two teams of three, each with an untrusted key: every vote counts, day after day."""
    log = Log(MemoryJournal(), np.random.default_rng(7))
    for log.day in range(8):
        for key in "xy":
            votes(log, key, 3, 1.0, key)
    assert fold(log.journal).projections.vouching.left_out == 0


def test_a_vote_that_was_left_out_stays_so() -> None:
    """Its correction moves its user only."""
    log = established()
    for number in range(13):
        name = log.answer(f"evil{number}", "a")
        log.score(name)
        log.vote(name, 1.0, vouched="app")
    before = expected(fold(log.journal))
    log.vote(name, 0.0, vouched="app")
    after = fold(log.journal)
    assert after.projections.vouching.left_out == 1
    assert expected(after) == before
