"""The exact refit is the fold of the remaining events."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kits.learner import Log, fold, learner, story

from fitrouter.hooks import Hooks
from fitrouter.state.digest import StateDigest
from fitrouter.state.follower import Follower
from fitrouter.state.learner import Learner
from fitrouter.state.refit import refit
from fitrouter.stores.journal import Entry, MemoryJournal
from fitrouter.types import Erasure, Feedback, FeedbackKind, Identity, ProfileChange, Refit


def without(journal: MemoryJournal, subject: str) -> MemoryJournal:
    """The journal without the events of a subject."""
    rest = MemoryJournal()
    for row in journal.tail(0, 10_000):
        identity = getattr(row.event, "identity", None)
        if not isinstance(row.event, Erasure) and (identity is None or identity.user != subject):
            rest.append(Entry(row.event)).result()
    return rest


def busy(seed: int, corrected: bool = True) -> MemoryJournal:
    """A journal with every kind of feedback, declared values, corrections, and an erasure of bob."""
    rng = np.random.default_rng(seed)
    log = Log(MemoryJournal(), rng)
    mine: dict[str, list[str]] = {"ann": [], "bob": []}
    for i in range(40):
        user, arm = ("ann", "bob")[rng.integers(2)], "ab"[rng.integers(2)]
        name = log.answer(user, arm)
        log.score(name)
        kind = tuple(FeedbackKind)[rng.integers(len(FeedbackKind))]
        if kind is not FeedbackKind.PAIR:
            log.vote(name, float(rng.integers(2)), kind=kind, dimension=("overall", "tone")[rng.integers(2)])
            if corrected and rng.random() < 0.3:
                log.vote(name, float(rng.integers(2)), kind=FeedbackKind.THUMB)
                log.vote(name, float(rng.integers(2)), kind=FeedbackKind.THUMB)
        elif mine[user]:
            log.vote(name, float(rng.integers(3)) / 2, kind=kind, other=mine[user][-1])
        mine[user].append(name)
        if i % 10 == 0:
            identity = next(r.event for r in log.journal.of(name)).identity  # type: ignore[union-attr]
            log.put(ProfileChange(id=f"p{i}", ts=1.0, identity=identity, declared={"h1": float(rng.normal())}))
    log.put(Erasure(id="e", ts=1.0, subject="bob"))
    return log.journal


def named() -> Learner:
    return learner(names=("one", "h1", "h2", "h3"))


@settings(max_examples=15)
@given(seed=st.integers(0, 10_000))
def test_a_refit_after_an_erasure_is_the_fold_without_that_user(seed: int) -> None:
    """Bit for bit, with all kinds of feedback in the journal."""
    journal = busy(seed, corrected=False)
    again = refit(journal, named(), journal.head())
    assert again.digest() == fold(without(journal, "bob"), named()).digest()


@settings(max_examples=15)
@given(seed=st.integers(0, 10_000))
def test_a_refit_uses_the_last_version_of_each_vote(seed: int) -> None:
    """A journal with changed votes has the same refit as one with the last votes only."""
    journal = busy(seed)
    last = {}
    for row in journal.tail(0, 10_000):
        if isinstance(row.event, Feedback):
            vote = row.event
            last[vote.decision_id, vote.kind, vote.dimension, vote.other] = vote.id
    clean = MemoryJournal()
    for row in journal.tail(0, 10_000):
        if not isinstance(row.event, Feedback) or row.event.id in last.values():
            clean.append(Entry(row.event)).result()
    assert refit(journal, named(), journal.head()).digest() == fold(without(clean, "bob"), named()).digest()


def test_the_running_fold_is_near_the_refit_after_corrections() -> None:
    """The first-order correction of a changed thumb is nearer to the exact refit than no correction."""
    log = Log(MemoryJournal(), np.random.default_rng(0))
    names = []
    for _ in range(30):
        names.append(log.answer("ann", "a"))
        log.score(names[-1])
        log.vote(names[-1], 1.0)
    uncapped, who = learner(votes_per_day=1000), Identity(user="ann")
    stale = fold(log.journal, uncapped.blank()).fit.taste(who)
    for name in names[::2]:
        log.vote(name, 0.0)
    running = fold(log.journal, uncapped.blank()).fit.taste(who)
    exact = refit(log.journal, uncapped, log.journal.head()).fit.taste(who)
    assert np.abs(running - exact).max() < 0.5 * np.abs(stale - exact).max()


def test_a_refit_stops_at_the_position() -> None:
    """Later events are not folded."""
    journal = story(4)
    assert refit(journal, learner(), 20).digest() == fold(journal, until=20).digest()


async def test_a_refit_invalidates_the_cached_digest() -> None:
    """After a refit to the same position, the digest is that of the refitted state."""
    journal = busy(3)
    live = named()
    fold(journal, live)
    digests = StateDigest(live)
    before = await digests.digest()
    live.take_over(refit(journal, live, live.seq))
    assert before[0] == live.seq
    assert await digests.digest() == (live.seq, live.digest()) != before


@pytest.mark.parametrize("ask", [Refit(id="refit", ts=1.0), Erasure(id="again", ts=1.0, subject="ann")])
async def test_the_follower_refits_beside_the_requests(ask: Refit | Erasure) -> None:
    """An Erasure or a Refit leads to the refitted state, in a running process and after a restart."""
    journal = busy(11)
    journal.append(Entry(ask)).result()
    mine = named()
    follower = Follower(journal, mine, Hooks())
    await follower.start()
    async with asyncio.timeout(300.0):
        await follower.caught_up()
    await follower.aclose()
    exact = refit(journal, named(), journal.head())
    assert mine.digest() == exact.digest()
    later = named()
    second = Follower(journal, later, Hooks())
    await second.start()
    async with asyncio.timeout(300.0):
        await second.caught_up()
    await second.aclose()
    assert later.digest() == exact.digest()
