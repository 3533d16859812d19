"""People beyond the bound of memory: the state never depends on who is in memory, and a crash loses nobody."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kits.gateway import Echo, make_router
from tests.kits.learner import Log, fold, learner

from fitrouter.errors import StoreError
from fitrouter.hooks import Hooks, Notice, Trouble
from fitrouter.state.follower import Follower, catch_up, restore
from fitrouter.state.learner import Learner
from fitrouter.state.reading import read_batch
from fitrouter.state.refit import refit
from fitrouter.stores.journal import Entry, MemoryJournal, SqliteJournal
from fitrouter.types import Erasure, FeedbackKind, Identity, Message, ProfileChange, Request

USERS = tuple(f"u{k}" for k in range(9))
WORKER = """
import asyncio, sys
from pathlib import Path
import fitrouter.state.follower as follower
from fitrouter.hooks import Hooks
from fitrouter.stores.journal import SqliteJournal
from tests.kits.learner import Log, learner
import numpy as np
follower.SNAPSHOT_EVERY = 40
folder = Path(sys.argv[1])
journal = SqliteJournal(folder / "journal.db")
log = Log(journal, np.random.default_rng(int(sys.argv[2])), journal.head())
async def main():
    mine = learner(people=3, folder=folder)
    following = follower.Follower(journal, mine, Hooks())
    await following.start()
    while True:
        for k in range(20):
            name = log.answer(f"u{k % 9}", "ab"[k % 2])
            log.score(name)
            log.vote(name, float(k % 3 == 0))
        following.wake()
        await following.caught_up()
        print(journal.snapshot().seq, flush=True)
asyncio.run(main())
"""


def crowd(seed: int, n: int = 60) -> MemoryJournal:
    """A journal with votes of several kinds and dimensions of nine people, corrections, declarations, an erasure."""
    rng = np.random.default_rng(seed)
    log = Log(MemoryJournal(), rng)
    for i in range(n):
        user = None if rng.random() < 0.1 else str(rng.choice(USERS))
        name = log.answer(user, "ab"[rng.integers(2)])
        log.score(name)
        for _ in range(int(rng.integers(1, 3))):
            kind = FeedbackKind.RATING if rng.random() < 0.4 else FeedbackKind.THUMB
            log.vote(name, float(rng.integers(2)), kind=kind, dimension=("overall", "tone")[rng.random() < 0.1])
        if i % 9 == 4 and user:
            who = Identity(user=user, role="analyst")
            log.put(ProfileChange(id=f"p{i}", ts=1.0, identity=who, declared={"h1": float(rng.normal())}))
    return log.journal


def named(**more: object) -> Learner:
    return learner(names=("one", "h1", "h2", "h3"), **more)


@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_any_schedule_of_evictions_is_none(seed: int, bound: int, chance: int) -> None:
    """Whenever people are dropped and read again, whoever asks for them, with alarms between: the same bits."""
    journal, rng = crowd(seed), np.random.default_rng(chance)
    journal.append(Entry(Erasure(id="e", ts=1.0, subject="u1"))).result()
    plain, bounded = named(), named(people=bound)
    alarms = set(rng.integers(1, journal.head(), 3).tolist())
    while rows := read_batch(journal, plain.seq, 5, plain.waiting).rows:
        if rng.random() < 0.5:
            bounded.load(read_batch(journal, bounded.seq, 5, bounded.waiting))
        for row, related in rows:
            plain.apply(row, related)
            bounded.apply(row, related)
            if row.seq in alarms and "a" in plain.fit.arms.names:
                plain.fit.drifted("a")
                bounded.fit.drifted("a")
            if rng.random() < 0.3:
                bounded.users.load(str(rng.choice(USERS)))
            if rng.random() < 0.3:
                bounded.users.shrink()
                assert not bounded.users.full
        if rng.random() < 0.2:
            stored = MemoryJournal()
            stored.save(bounded.snapshot())
            if len(bounded.users) and rng.random() < 0.5:
                bounded.take_over(bounded)  # everything is part of the next snapshot again
    assert dict(bounded.state()) == dict(plain.state())
    assert bounded.digest() == plain.digest()
    assert "u1" not in bounded.users


@given(st.integers(0, 10_000), st.integers(1, 100))
@settings(max_examples=10, deadline=None)
def test_a_bounded_worker_restores_what_an_unbounded_one_saved(seed: int, cut: int) -> None:
    """From a snapshot at any position, with people in the spill, the rest folds to the same bits; so does a refit."""
    journal = crowd(seed)
    cut = 1 + cut * journal.head() // 101
    journal.save(fold(journal, named(), until=cut).snapshot())
    bounded = named(people=2)
    assert restore(bounded, journal)
    assert bounded.seq == cut
    assert not bounded.users.full
    catch_up(bounded, journal, journal.head())
    assert bounded.digest() == fold(journal, named()).digest()
    assert refit(journal, bounded, journal.head()).digest() == refit(journal, named(), journal.head()).digest()


def test_a_snapshot_of_another_position_is_not_restored() -> None:
    """Where another version has moved the position since, the events between would be missing."""
    journal, mine, other = crowd(1), named(), named(votes_per_day=5)
    journal.save(fold(journal, mine, until=40).snapshot())
    journal.save(fold(journal, other, until=80).snapshot())
    assert not restore(named(), journal)
    assert restore(named(votes_per_day=5), journal)


def test_an_erased_person_leaves_memory_spill_and_snapshots() -> None:
    """Whether in memory or in the spill when the erasure is folded."""
    for warm in (False, True):
        journal, mine = crowd(2), named(people=1)
        fold(journal, mine)
        journal.save(mine.snapshot())
        mine.users.shrink()
        assert "u3" in mine.users
        if warm:
            mine.users.load("u3")
        journal.append(Entry(Erasure(id="e", ts=1.0, subject="u3"))).result()
        fold(journal, mine)
        assert "u3" not in mine.users
        mine.users.load("u3")
        mine.users.load("u4")
        mine.users.load("u5")
        mine.users.shrink()
        assert "u3" not in mine.users
        spill = mine.users._spill
        assert spill is not None
        assert spill.read("u3") is None
        journal.save(mine.snapshot())
        assert f"{mine.version}/user:u3" not in journal.snapshot().state


def test_a_damaged_row_leads_to_a_refit() -> None:
    """A person who cannot be read back is missing until a refit has rebuilt the state from the journal."""
    journal, mine = crowd(3), named(people=1)
    fold(journal, mine)
    mine.users.shrink()
    spill = mine.users._spill
    assert spill is not None
    cold = next(name for name in USERS if mine.users.cold(name) and name in mine.users)
    spill.write([(cold, b"damaged")])
    log = Log(journal, np.random.default_rng(0), 10_000)
    name = log.answer(cold, "a")
    log.score(name)
    log.vote(name, 1.0)
    catch_up(mine, journal, journal.head())
    assert not mine.stale
    assert mine.digest() == refit(journal, named(), journal.head()).digest()


class Failing(MemoryJournal):
    """Fails to save while `broken`."""

    broken = True

    def save(self, snapshot: object) -> None:
        if self.broken:
            raise StoreError("the disk is full")
        super().save(snapshot)  # type: ignore[arg-type]


async def test_a_snapshot_that_failed_is_part_of_the_next() -> None:
    """What could not be saved is saved later."""
    journal, mine = Failing(), named(people=4)
    for row in crowd(4).tail(0, 10_000):
        journal.append(Entry(row.event)).result()
    follower = Follower(journal, mine, Hooks())
    await follower.start()
    await follower.caught_up()
    with pytest.raises(StoreError):
        await follower._save(every=1)
    assert journal.snapshot().seq == 0
    journal.broken = False
    await follower.aclose()
    again = named(people=4)
    assert restore(again, journal)
    assert again.digest() == fold(journal, named()).digest()


async def test_a_request_reads_a_cold_person_and_survives_a_broken_spill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cold user's terms are in memory when the request is decided; if they cannot be read, it is answered without."""
    found: list[Notice] = []
    message: Message = {"role": "user", "content": "Hello"}
    request = Request(messages=(message,), identity=Identity(user="ann"))
    async with make_router(tmp_path, {"echo": Echo()}, hook=found.append) as router:
        users = router._learner.users
        first = await router.complete(request)
        await router.feedback(first.decision.id, FeedbackKind.THUMB, 1.0)
        await router.settled()
        user = first.decision.identity.user or ""
        users.limit = 0
        users.shrink()
        users.limit = 100
        assert users.cold(user)
        assert user in users
        await router._pipeline.load(first.decision.identity)
        assert users.hot(user) is not None
        users.limit = 0
        users.shrink()

        def broken(name: str) -> None:
            raise sqlite3.OperationalError("disk I/O error")

        monkeypatch.setattr(users, "load", broken)
        assert (await router.complete(request)).decision.probs
    assert Trouble("learner", "OperationalError") in found


def test_kill_9_while_people_are_written_back(tmp_path: Path) -> None:
    """After every kill the state is the fold of the journal, and no file of the killed process is left."""
    for life in range(2):
        with subprocess.Popen(
            [sys.executable, "-c", WORKER, str(tmp_path), str(life)],
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            for _ in range(4):
                assert process.stdout.readline()
            time.sleep(0.05 * life)
            process.kill()
        journal = SqliteJournal(tmp_path / "journal.db")
        mine = learner(people=3, folder=tmp_path)
        assert restore(mine, journal)
        assert 0 < mine.seq <= journal.head()
        catch_up(mine, journal, journal.head())
        assert mine.digest() == fold(journal, learner()).digest()  # type: ignore[arg-type]
        journal.close()
    assert not [file.name for file in tmp_path.iterdir() if not file.name.startswith("journal.db")]


async def test_two_workers_with_different_bounds_agree(tmp_path: Path) -> None:
    """One saves snapshots and keeps few people, the other keeps all: both have the digest of the fold."""
    journal = SqliteJournal(tmp_path / "journal.db")
    for row in crowd(6).tail(0, 10_000):
        journal.append(Entry(row.event)).result()
    learners = [named(people=2, folder=tmp_path), named()]
    followers = [Follower(journal, each, Hooks()) for each in learners]
    for each in followers:
        await each.start()
    log = Log(journal, np.random.default_rng(7), 10_000)  # type: ignore[arg-type]
    for k in range(30):
        name = log.answer(f"u{k % 9}", "a")
        log.score(name)
        log.vote(name, 1.0)
        if k % 10 == 5:
            await followers[0]._save(every=1)
    await asyncio.gather(*(each.caught_up() for each in followers))
    digests = {each.digest() for each in learners}
    for each in followers:
        await each.aclose()
    assert digests == {fold(journal, named()).digest()}  # type: ignore[arg-type]
    journal.close()
