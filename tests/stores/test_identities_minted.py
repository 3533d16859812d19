"""Laws of minted subjects, written in the background: no user becomes anonymous, and no subject survives an erasure."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from tests.kits.gateway import make_router, wait_for
from tests.kits.identity_stores import Store, heard, interposed, rows

from fitrouter.errors import NotAuthorized, StoreError, UnknownDecision
from fitrouter.hooks import Notice, Trouble
from fitrouter.router import Router
from fitrouter.routing import pipeline
from fitrouter.stores.identities import Identities, IdentityRows, SqliteRows, UnknownSubject
from fitrouter.stores.identities import _identities as module
from fitrouter.stores.identities._rows import Offer
from fitrouter.stores.journal import Journal, MemoryJournal, digest_of
from fitrouter.types import Decision, Erasure, Execution, Feedback, FeedbackKind, Identity, Request

ANN, BOB = Identity(user="ann"), Identity(user="bob")


class Slow(Identities):
    """Looks up and writes only while `go` is set, and does not rewrite its store: that is another law."""

    def __init__(self, rows: IdentityRows) -> None:
        self.go = threading.Event()
        rows.compact = lambda: None  # type: ignore[method-assign]
        super().__init__(rows)

    def _meet_all(self, people: Sequence[str]) -> dict[str, str]:
        assert self.go.wait(300.0)
        return super()._meet_all(people)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No waiting for slow lookups, and immediate retries of failed writes."""
    monkeypatch.setattr(pipeline, "IDENTITY_WAIT_S", 0.0)
    monkeypatch.setattr(module, "_RETRY_S", 0.01)


@pytest.fixture
def here(store: Store) -> Iterator[Slow]:
    with closing(Slow(store.rows())) as found:
        yield found
        found.go.set()


@pytest.fixture
def there(store: Store) -> Iterator[Slow]:
    """Another process with the same store."""
    with closing(Slow(store.rows())) as found:
        yield found
        found.go.set()


def ask(who: Identity) -> Request:
    return Request(messages=({"role": "user", "content": "Hello"},), identity=who)


async def decide(router: Router, who: Identity = ANN) -> Decision:
    """A decision that is durable."""
    answer = await router.complete(ask(who))
    await router.settled()
    return answer.decision


async def vote(router: Router, decision: Decision, who: Identity = ANN, **more: Any) -> Feedback:
    """A vote as it was logged."""
    kind = FeedbackKind.PAIR if more else FeedbackKind.THUMB
    told = await router.feedback(decision.id, kind, 1.0, identity=who, **more)
    (found,) = [event for event in logged(router._journal, Feedback) if event.id == told]
    assert isinstance(found, Feedback)
    return found


def logged(journal: Journal, kind: type[Any]) -> list[Any]:
    return [row.event for row in journal.tail(0, 100_000) if isinstance(row.event, kind)]


def read_only(identities: Identities, yes: bool) -> None:
    """Refuse writes: of a file, as a full disk does."""
    connection: sqlite3.Connection = identities.rows._connection  # type: ignore[attr-defined]
    connection.execute(f"PRAGMA query_only = {'ON' if yes else 'OFF'}")


# --- a slow file ---


async def test_known_users_are_found_while_writes_are_slow(store: Store, there: Slow, tmp_path: Path) -> None:
    """A known user is found in memory, or in the row that another process wrote, however slow writes are."""
    there.go.set()
    known = there.subject("default", "ann")
    with closing(Slow(store.rows())) as here:
        async with make_router(tmp_path, identities=here) as router:
            for _ in range(2):
                assert (await decide(router)).identity.user == known
            assert {event.identity.user for event in logged(router._journal, Execution)} == {known}
            here.go.set()


async def test_a_new_user_is_logged_as_theirs_and_votes_before_the_write_ended(here: Slow, tmp_path: Path) -> None:
    """The first decision has a subject that is not written yet; its user's vote is accepted, other users' are not."""
    notes: list[Notice] = []
    async with make_router(tmp_path, identities=here, hook=notes.append) as router:
        first, second = await decide(router), await decide(router)
        token = first.identity.user
        assert token is not None
        assert second.identity.user == token
        assert {event.identity.user for event in logged(router._journal, Execution)} == {token}
        assert {notice.part for notice in notes if isinstance(notice, Trouble)} == {"identities"}
        assert (await decide(router, BOB)).identity.user not in {None, token}
        assert (await vote(router, first)).identity.user == token
        assert (await vote(router, second, other=first.id)).identity.user == token
        with pytest.raises(NotAuthorized):
            await router.feedback(first.id, FeedbackKind.THUMB, 1.0, identity=BOB)
        assert rows(here) == {}, "all of this came before the write"
        here.go.set()
        await asyncio.to_thread(wait_for, lambda: len(rows(here)) == 2)
        assert here.subject("default", "ann") == token
        assert (await decide(router)).identity.user == token
        assert (await vote(router, first)).identity.user == token


async def test_another_process_takes_the_vote_once_the_write_is_durable(
    here: Slow, there: Slow, tmp_path: Path
) -> None:
    """Every process with the file knows the user of the decision."""
    journal = MemoryJournal()
    router, other = (make_router(tmp_path, identities=each, journal=journal) for each in (here, there))
    async with router:
        decision = await decide(router)
        here.go.set()
        await asyncio.to_thread(wait_for, lambda: rows(here))
        assert (await vote(other, decision)).identity.user == decision.identity.user
        with pytest.raises(NotAuthorized):
            await vote(other, decision, BOB)


async def test_two_processes_mint_for_one_user_at_once(here: Slow, there: Slow, tmp_path: Path) -> None:
    """The first write wins, the other token is an alias: both decisions are theirs, and votes teach the one subject."""
    journal = MemoryJournal()
    routers = [make_router(tmp_path, identities=each, journal=journal) for each in (here, there)]
    async with routers[0], routers[1]:
        first, second = [await decide(router) for router in routers]
        winner, loser = first.identity.user or "", second.identity.user or ""
        assert winner != loser
        here.go.set()
        await asyncio.to_thread(wait_for, lambda: rows(here))
        assert (await vote(routers[1], second)).identity.user == loser, "who won is not known there yet"
        there.go.set()
        await asyncio.to_thread(wait_for, lambda: len(rows(here)) == 2)
        for router in routers:
            identities = router._identities
            assert identities.subject("default", "ann") == winner
            assert [identities.reveal(token) for token in (winner, loser)] == [("default", "ann")] * 2
            assert [identities.canonical(token) for token in (winner, loser)] == [winner] * 2
            assert (await vote(router, first)).identity.user == winner
            assert (await vote(router, second)).identity.user == loser, "a changed vote teaches whom it taught before"
            assert (await vote(router, second, other=first.id)).identity.user in {winner, loser}
            with pytest.raises(NotAuthorized):
                await vote(router, second, BOB)
        assert here.decrypt(there.encrypt(loser, "secret")) == "secret"
        third = await decide(routers[1])
        assert third.identity.user == winner
        assert (await vote(routers[0], third)).identity.user == winner
        assert set(here.erase("default", "ann")) == {winner, loser}
        assert rows(here) == {}


async def test_a_vote_on_an_alias_teaches_the_subject(here: Slow, there: Slow, tmp_path: Path) -> None:
    """A vote after the write is learned under the user's one subject, in any process."""
    there.go.set()
    async with make_router(tmp_path, identities=here) as router:
        decisions = [await decide(router), await decide(router)]
        subject = there.subject("default", "ann")
        here.go.set()
        await asyncio.to_thread(wait_for, lambda: here.writing(decisions[0].identity.user or "") is None)
        assert len(rows(there)) == 2
        assert decisions[0].identity.user != subject
        assert (await vote(router, decisions[0])).identity.user == subject
        assert (await vote(router, decisions[1], Identity())).identity.user == subject


# --- erasing ---


async def test_erasing_what_is_not_written_yet(here: Slow, tmp_path: Path) -> None:
    """A pending subject is returned by `erase` and never written, and its user cannot vote on the logged decision."""
    async with make_router(tmp_path, identities=here) as router:
        decision, other = await decide(router), await decide(router, BOB)
        assert here.erase("default", "ann") == (decision.identity.user,)
        with pytest.raises(NotAuthorized):
            await vote(router, decision)
        here.go.set()
        await asyncio.to_thread(wait_for, lambda: other.identity.user in rows(here))
        new = await decide(router)
        assert new.identity.user not in {None, decision.identity.user}
        here.flush()
        assert rows(here) == {new.identity.user: "ann", other.identity.user: "bob"}
        with pytest.raises(NotAuthorized):
            await vote(router, decision)
        assert (await vote(router, other, BOB)).identity.user == other.identity.user, "others are not erased"
        assert logged(router._journal, Erasure) == []


async def test_erasing_in_another_process_what_is_not_written_yet(here: Slow, there: Slow, tmp_path: Path) -> None:
    """A process that cannot know whom another one erased writes none of its older tokens: it erases their events."""
    async with make_router(tmp_path, identities=here) as router:
        decision = await decide(router)
        token = decision.identity.user
        assert there.erase("default", "ann") == ()
        heard(here, there)
        assert here.known("default", "ann") is None
        here.go.set()
        (erasure,) = await asyncio.to_thread(wait_for, lambda: logged(router._journal, Erasure))
        assert erasure.digests == (digest_of(token),)
        assert not router._journal.of(token)
        with pytest.raises(UnknownDecision):
            await vote(router, decision)
        new = await decide(router)
        here.flush()
        assert rows(here) == {new.identity.user: "ann"}
        assert new.identity.user != token


async def test_a_pending_subject_is_its_users_whoever_else_is_erased(here: Slow, there: Slow) -> None:
    """Another process's erasure may concern it or not: until the write tells, the user's votes are taken."""
    token = here.mint("default", "ann")
    there.go.set()
    there.subject("default", "bob")
    there.erase("default", "bob")
    heard(here, there)
    assert here.known("default", "ann") is None
    assert here.stands_for(token, "default", "ann")
    assert not here.stands_for(token, "default", "bob")
    here.go.set()


async def test_erasing_in_another_process_what_is_remembered(here: Slow, there: Slow, tmp_path: Path) -> None:
    """An erased user leaves the caches of all processes, and earlier decisions belong to no user."""
    here.go.set()
    async with make_router(tmp_path, identities=here) as router:
        here.subject("default", "ann")
        decision = await decide(router)
        assert there.erase("default", "ann") == (decision.identity.user,)
        heard(here, there)
        here.go.clear()
        assert here.known("default", "ann") is None
        assert (await decide(router)).identity.user not in {None, decision.identity.user}
        with pytest.raises(NotAuthorized):
            await vote(router, decision)
        here.go.set()


# --- a file that cannot be written ---


@pytest.fixture
def here_in_file(tmp_path: Path) -> Iterator[Slow]:
    with closing(Slow(SqliteRows(tmp_path / "identities.db"))) as found:
        yield found
        found.go.set()


async def test_without_a_file_that_can_be_written_requests_are_answered(here_in_file: Slow, tmp_path: Path) -> None:
    """New users are anonymous, hooks are notified, known users stay known; once the file works all users are found."""
    here_in_file.go.set()
    known = here_in_file.subject("default", "bob")
    read_only(here_in_file, True)
    with pytest.raises(StoreError, match="readonly"):
        here_in_file.subject("default", "eve")
    notes: list[Notice] = []
    async with make_router(tmp_path, identities=here_in_file, hook=notes.append) as router:
        decision = await decide(router)
        assert decision.identity.user is None
        assert {notice.part for notice in notes if isinstance(notice, Trouble)} == {"identities"}
        assert (await decide(router, BOB)).identity.user == known
        with pytest.raises(NotAuthorized):
            await vote(router, decision)
        read_only(here_in_file, False)
        here_in_file.subject("default", "eve")
        assert (await decide(router)).identity.user is not None


def test_only_subjects_that_somebody_was_given_wait_for_the_disk(here_in_file: Slow) -> None:
    """Of a lookup that failed nothing is kept; its caller was told."""
    spooled: list[list[str]] = []
    spool = here_in_file.rows.spool

    def recorded(offers: Sequence[Offer], error: StoreError) -> bool:
        spooled.append([json.loads(offer.who)[1] for offer in offers])
        return spool(offers, error)

    here_in_file.rows.spool = recorded  # type: ignore[method-assign]
    read_only(here_in_file, True)
    here_in_file.mint("default", "ann")
    here_in_file.go.set()
    with pytest.raises(StoreError, match="readonly"):
        here_in_file.subject("default", "eve")
    assert {name for names in spooled for name in names} <= {"ann"}


async def test_a_write_that_failed_is_tried_again(here_in_file: Slow, tmp_path: Path) -> None:
    """A minted subject stays the user's, and is written as soon as the file can be, without another request."""
    async with make_router(tmp_path, identities=here_in_file) as router:
        decision = await decide(router)
        read_only(here_in_file, True)
        here_in_file.go.set()
        await asyncio.to_thread(wait_for, lambda: here_in_file._failure)
        assert (await decide(router)).identity.user == decision.identity.user
        assert (await vote(router, decision)).identity.user == decision.identity.user
        assert (await decide(router, BOB)).identity.user is None, "nobody new is given a token that is not written"
        read_only(here_in_file, False)
        await asyncio.to_thread(wait_for, lambda: "ann" in rows(here_in_file).values())
        # A lookup of bob that was still waiting may write a row of his own: nothing is logged under it.
        assert [subject for subject, user in rows(here_in_file).items() if user == "ann"] == [decision.identity.user]


async def test_what_could_not_be_written_until_the_end_is_erased(here_in_file: Slow, tmp_path: Path) -> None:
    """No token stays in the journal that no row leads to, and that nobody could have erased."""
    journal = MemoryJournal()
    erased: list[str] = []
    async with make_router(tmp_path, identities=here_in_file, journal=journal) as router:
        decision = await decide(router)
        read_only(here_in_file, True)
        here_in_file.go.set()
        journal.close = lambda: erased.extend(one for event in logged(journal, Erasure) for one in event.digests)  # type: ignore[method-assign]
    assert erased == [digest_of(decision.identity.user)]


def test_who_is_erased_while_the_store_closes_is_no_orphan(here: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    """The erasure returned the subject; what the disk of this machine keeps for the next start is no orphan either."""
    erased, orphans = list[str](), list[str]()
    here.on_orphan = orphans.append
    kept, late, token = (here.mint("default", name) for name in ("bob", "eve", "ann"))
    here._minted[kept].kept = True

    def fails(people: Sequence[str]) -> dict[str, str]:
        assert [json.loads(who)[1] for who in people] == ["eve", "ann"]
        erased.extend(here.erase("default", "ann"))
        here._minted[late].kept = True
        raise StoreError("the disk is full")

    monkeypatch.setattr(here, "_meet_all", fails)
    here.flush()
    assert (erased, orphans) == ([token], [])


async def test_what_is_pending_is_written_when_the_router_closes(here: Slow, there: Slow, tmp_path: Path) -> None:
    """Closing waits for the write."""
    async with make_router(tmp_path, identities=here) as router:
        decision = await decide(router)
        here.go.set()
    assert rows(there) == {decision.identity.user: "ann"}


async def test_too_many_that_wait_to_be_written(here: Slow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of pending subjects is bounded: further new users are anonymous."""
    monkeypatch.setattr(module, "_MINTED", 1)
    async with make_router(tmp_path, identities=here) as router:
        assert (await decide(router)).identity.user is not None
        assert (await decide(router, BOB)).identity.user is None
        assert (await decide(router)).identity.user is not None
        here.go.set()


def test_texts_of_a_pending_subject(here: Slow, there: Slow) -> None:
    """The process that minted a token encrypts under its key at once; others read it when the write has ended."""
    token = here.mint("default", "ann")
    blob = here.encrypt(token, "secret")
    assert here.decrypt(blob) == "secret"
    writing = here.writing(token)
    assert writing is not None
    with pytest.raises(UnknownSubject):
        there.decrypt(blob)
    here.go.set()
    writing.result(300.0)
    assert there.decrypt(blob) == here.decrypt(blob) == "secret"
    assert here.writing(token) is None
    there.erase("default", "ann")
    heard(here, there)
    for each in (here, there):
        with pytest.raises(UnknownSubject):
            each.decrypt(blob)


# --- whoever comes and goes meanwhile ---

USERS = ("ann", "bob")
ACTION = st.tuples(st.sampled_from(["mint", "write", "erase"]), st.sampled_from(USERS))


class Manual(Identities):
    """Writes only when it is told to, and does not rewrite its store: that is another law."""

    def __init__(self, rows: IdentityRows) -> None:
        rows.compact = lambda: None  # type: ignore[method-assign]
        super().__init__(rows)

    def _write(self, who: str) -> None:
        """Nothing is written behind."""


@given(
    steps=st.lists(
        st.tuples(st.booleans(), ACTION, st.dictionaries(st.integers(0, 8), ACTION, max_size=3)),
        min_size=1,
        max_size=8,
    )
)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_token_is_lost_or_outlives_an_erasure(
    store: Store, steps: list[tuple[bool, Any, Mapping[int, Any]]]
) -> None:
    """Whatever two processes do between two statements of a write: every token that was given out is accounted for.

    At the end it is in the file under its own user, or `erase` returned it, or it was given up. None that was given out
    before its user was erased is in the file; none that was given up ever comes back.
    """
    given_out: dict[str, str] = {}
    returned: set[str] = set()
    orphans: set[str] = set()
    dead: set[str] = set()
    with closing(Manual(store.rows())) as here, closing(Manual(store.rows())) as there:
        both = (here, there)
        for user in USERS:  # of earlier examples
            here.erase("acme", user)
        heard(here, there)  # or `there` still gives out their subjects
        for each in both:
            each.on_orphan = orphans.add

        def act(identities: Identities, what: str, user: str) -> None:
            if what == "mint":
                given_out[identities.known("acme", user) or identities.mint("acme", user)] = user
            elif what == "write":
                identities.flush()
            else:
                before = {token for token, whose in given_out.items() if whose == user}
                returned.update(identities.erase("acme", user))
                dead.update(before)

        def look() -> None:
            heard(here, there)
            file = rows(there)
            assert not (orphans | returned | dead) & file.keys()
            assert all(given_out.get(token, whose) == whose for token, whose in file.items())
            for token, whose in file.items():
                assert all(each.stands_for(token, "acme", whose) for each in both)

        for first, (what, user), meanwhile in steps:
            actor, other = both if first else reversed(both)
            statement = iter(range(1_000_000))

            def between(meanwhile: Any = meanwhile, other: Any = other, statement: Any = statement) -> None:
                action = meanwhile.get(next(statement))
                if action is not None:
                    act(other, *action)

            end = interposed(actor, between if what == "write" else lambda: None)
            act(actor, what, user)
            end()
            look()
        for each in both:
            each.flush()
        look()
        file = rows(there)
        assert given_out.keys() <= file.keys() | returned | orphans
        for token, user in given_out.items():
            for each in both:
                assert each.stands_for(token, "acme", user) == (token in file)
