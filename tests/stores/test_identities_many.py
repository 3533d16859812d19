"""Laws of concurrent use: every user has one subject, whichever processes start, stop or hang meanwhile."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from tests.kits.gateway import make_router, wait_for
from tests.kits.identity_stores import Store, heard, interposed, subjects

from fitrouter.errors import StoreError
from fitrouter.hooks import Notice, Trouble
from fitrouter.router import Router
from fitrouter.routing import pipeline
from fitrouter.stores.identities import Identities, SqliteIdentities, SqliteRows
from fitrouter.stores.identities._coalesce import Coalescer
from fitrouter.stores.journal import MemoryJournal
from fitrouter.types import Decision, Execution, Identity, Request

ROOT = Path(__file__).resolve().parents[2]
MANY = 500


def ask(user: str) -> Request:
    words = ({"role": "user", "content": f"{user} asks"},)
    return Request(messages=words, identity=Identity(user=user, session=f"of {user}"))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process that keeps the file to itself."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


def logged(router: Router, kind: type[Any]) -> list[Any]:
    assert isinstance(router._journal, MemoryJournal)
    return [row.event for row in router._journal.tail(0, 100_000) if isinstance(row.event, kind)]


# --- through the router ---


async def test_a_burst_of_new_users_is_logged_completely(tmp_path: Path) -> None:
    """500 concurrent first requests of 500 new users are all decided and logged under their own subjects."""
    users = [f"u{i}" for i in range(MANY)]
    async with make_router(tmp_path) as router:
        answers = await asyncio.gather(*(router.complete(ask(user)) for user in users))
        await router.settled()
        await asyncio.to_thread(router._identities.flush)
        subjects = {answer.decision.id: answer.decision.identity.user for answer in answers}
        of = {
            user: router._identities.canonical(answer.decision.identity.user)
            for user, answer in zip(users, answers, strict=True)
        }
        assert of == {user: router._identities.subject("default", user) for user in users}
        for kind in (Decision, Execution):
            found = {getattr(event, "decision_id", event.id): event.identity.user for event in logged(router, kind)}
            assert found == subjects
        assert len(set(of.values())) == MANY
        for user, answer in zip(users, answers, strict=True):
            assert answer.completion.message["content"].endswith(f"heard {user} asks")


BURST = """
import asyncio, json, pathlib, sys
sys.path.insert(0, sys.argv[2])
from fitrouter.routing import pipeline
from fitrouter.types import Identity, Request
from tests.kits.gateway import make_router

def ask(user):
    return Request(messages=({"role": "user", "content": "hello"},), identity=Identity(user=user, session=user))

async def main():
    pipeline.IDENTITY_WAIT_S = float(sys.argv[3])
    async with make_router(pathlib.Path(sys.argv[1])) as router:
        print("ready", flush=True)
        users = json.loads(sys.stdin.readline())
        answers = await asyncio.gather(*(router.complete(ask(user)) for user in users))
        said = [answer.decision.identity.user for answer in answers]
    print(json.dumps(said))

asyncio.run(main())
"""


@pytest.mark.parametrize("wait_s", [300.0, 0.0])
def test_a_burst_in_two_processes(tmp_path: Path, wait_s: float) -> None:
    """Two processes on one file see 500 new users each at the same moment, half of them the same.

    Where they wait for the file they agree on the subject; where they do not, each has an alias of it at worst.
    """
    crowds = [[f"u{i}" for i in range(start, start + MANY)] for start in (0, MANY // 2)]
    several = [
        subprocess.Popen(
            [sys.executable, "-c", BURST, str(tmp_path), str(ROOT), str(wait_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for _ in crowds
    ]
    for each in several:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    for each, crowd in zip(several, crowds, strict=True):
        assert each.stdin is not None
        each.stdin.write(json.dumps(crowd) + "\n")
        each.stdin.flush()
    said = [json.loads(each.communicate(timeout=300)[0]) for each in several]
    with closing(SqliteIdentities(tmp_path / "identities.db")) as identities:
        for crowd, subjects in zip(crowds, said, strict=True):
            assert [identities.reveal(subject or "") for subject in subjects] == [("default", user) for user in crowd]
            of = [identities.subject("default", user) for user in crowd]
            assert of == [identities.canonical(subject) for subject in subjects]
            assert of == subjects or wait_s == 0.0


async def test_a_hanging_file_delays_no_request(tmp_path: Path) -> None:
    """While the file hangs, new users get a subject that is written in the background, and known users stay known."""
    notes: list[Notice] = []
    async with make_router(tmp_path, hook=notes.append) as router:
        ann = (await router.complete(ask("ann"))).decision.identity.user
        with locked(tmp_path / "identities.db"):  # every answer below comes while it is
            new = await asyncio.gather(*(router.complete(ask(f"u{i}")) for i in range(50)))
            subjects = [answer.decision.identity.user or "" for answer in new]
            assert len({*subjects} - {""}) == 50
            assert [router._identities.reveal(subject) for subject in subjects] == [None] * 50
            assert (await router.complete(ask("ann"))).decision.identity.user == ann is not None
        assert {notice.part for notice in notes if isinstance(notice, Trouble)} == {"identities"}
        await asyncio.to_thread(router._identities.flush)
        assert [router._identities.reveal(each) for each in subjects] == [("default", f"u{i}") for i in range(50)]
        again = await asyncio.gather(*(router.complete(ask(f"u{i}")) for i in range(50)))
        assert [answer.decision.identity.user for answer in again] == [*map(router._identities.canonical, subjects)]


class Told(SqliteIdentities):
    """A store without users that resolves lookups at once."""

    def known(self, tenant: str, user: str | None) -> str | None:
        return None

    def meet(self, tenant: str, user: str | None) -> Future[str]:
        told: Future[str] = Future()
        told.set_result(f"token of {user}")
        return told


async def test_a_result_in_time_counts_on_a_busy_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that came in time is used, even if the event loop processes it after the deadline."""
    monkeypatch.setattr(pipeline, "IDENTITY_WAIT_S", 0.0)
    async with make_router(tmp_path, identities=Told(tmp_path / "identities.db")) as router:
        assert (await router.complete(ask("ann"))).decision.identity.user == "token of ann"


# --- one commit for many ---


def test_pending_lookups_share_a_commit(tmp_path: Path) -> None:
    """500 new users while the file is busy cost one write more than the first of them."""
    with closing(SqliteIdentities(tmp_path / "identities.db")) as identities:
        ran: list[str] = []
        identities.rows._connection.set_trace_callback(ran.append)  # type: ignore[attr-defined]
        with locked(tmp_path / "identities.db"):
            met = [identities.meet("acme", f"u{i}") for i in range(MANY)]
        tokens = [future.result(300.0) for future in met]
        assert sum(statement.startswith("INSERT") for statement in ran) <= 2
        assert len(set(tokens)) == MANY
        assert len({identities.key(token) for token in tokens}) == MANY
        ran.clear()
        assert [identities.subject("acme", f"u{i}") for i in range(MANY)] == tokens
        assert not ran, "who is known is not looked up"


def test_use_after_a_fork_is_refused(store: Store) -> None:
    """A forked child gets a StoreError with the remedy at once."""
    with closing(Identities(store.rows())) as identities:
        identities.subject("acme", "ann")
        identities._pid -= 1
        assert identities.known("acme", "ann") is None
        for use in (lambda: identities.subject("acme", "ann"), lambda: identities.key("x")):
            with pytest.raises(StoreError, match="forked"):
                use()
        identities._pid += 1


# --- whoever comes and goes meanwhile ---

USERS = ("ann", "bob", "eve")
ACTION = st.tuples(st.sampled_from(["meet", "erase"]), st.sampled_from(USERS))


def quick(store: Store) -> Identities:
    """Does not rewrite its store: that is another law."""
    found = Identities(store.rows())
    found.rows.compact = lambda: None  # type: ignore[method-assign]
    return found


@given(
    steps=st.lists(
        st.tuples(ACTION | st.just(("meet all", "")), st.dictionaries(st.integers(0, 6), ACTION, max_size=3)),
        min_size=1,
        max_size=5,
    )
)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_interleaving_of_two_processes(store: Store, steps: list[tuple[Any, Mapping[int, Any]]]) -> None:
    """Whatever another process does between two statements: no user has two subjects, and none is another user's.

    What is remembered is what the file says or nothing; a token that was erased is never given to who asks later.
    """
    with closing(quick(store)) as here, closing(quick(store)) as there:
        for each in (here.rows, there.rows):
            if isinstance(each, SqliteRows):
                each._connection.execute("PRAGMA synchronous = OFF")  # what a power failure leaves is another law
                each._connection.execute("PRAGMA busy_timeout = 20")  # the holder of a lock waits in this very thread
        for user in USERS:  # of earlier examples
            here.erase("acme", user)
        gone: set[str] = set()

        def act(identities: Identities, what: str, users: Sequence[str]) -> dict[str, str]:
            if what == "erase":
                gone.update(*(identities.erase("acme", user) for user in users))
                return {}
            met = {user: identities.meet("acme", user) for user in users}
            return {user: future.result(300.0) for user, future in met.items()}

        def look() -> None:
            heard(here, there)
            file = subjects(there)
            assert not gone & set(file.values())
            for each, user in itertools.product((here, there), USERS):
                assert each.known("acme", user) in {None, file.get(user)}

        for (what, user), meanwhile in steps:
            statements, erased = itertools.count(), set()

            def between(meanwhile: Any = meanwhile, statements: Any = statements, erased: Any = erased) -> None:
                action = meanwhile.get(next(statements))
                if action is not None:
                    act(there, action[0], [action[1]])
                    erased |= {action[1]} if action[0] == "erase" else set()
                    look()

            before, end = subjects(here), interposed(here, between)
            found = act(here, "meet" if what == "meet all" else what, [user] if user else USERS)
            end()
            look()
            for user, token in found.items():
                if user not in erased:
                    assert token == subjects(here)[user] == there.subject("acme", user) == before.get(user, token)
            assert not gone & set(act(here, "meet", list(found)).values())


def test_erasing_in_the_middle_of_a_burst(store: Store) -> None:
    """Threads of two processes look up users while some are erased: after an erasure a user gets another subject."""
    clock = itertools.count()
    asked: list[tuple[int, str, str]] = []
    erased: dict[str, int] = {}
    with closing(Identities(store.rows())) as here, closing(quick(store)) as there:

        def meet(identities: Identities) -> None:
            for n in range(150):
                began = next(clock)
                user = f"u{n % 15}"
                asked.append((began, user, identities.subject("acme", user)))

        def erase(identities: Identities) -> None:
            for n in range(30):
                for token in identities.erase("acme", f"u{n % 5}"):
                    erased[token] = next(clock)

        with ThreadPoolExecutor(8) as pool:
            work = [pool.submit(meet, (here, there)[n % 2]) for n in range(6)]
            for future in [*work, *(pool.submit(erase, each) for each in (here, there))]:
                future.result(300.0)
        late = [user for began, user, token in asked if token in erased and began > erased[token]]
        assert late == []
        owners: dict[str, set[str]] = {}
        for _, user, token in asked:
            owners.setdefault(token, set()).add(user)
        assert all(len(users) == 1 for users in owners.values())
        assert all(len({token for _, user, token in asked if user == f"u{n}"}) == 1 for n in range(5, 15))
        heard(here, there)
        assert {user: here.subject("acme", user) for user in subjects(here)} == subjects(here)


# --- questions in groups ---


class Desk:
    """A batch function that blocks until it is released, and records its batches."""

    def __init__(self) -> None:
        self.heard: list[list[str]] = []
        self.go = threading.Semaphore(0)
        self.error: Exception | None = None

    def __call__(self, keys: Sequence[str]) -> dict[str, str]:
        self.heard.append(list(keys))
        self.go.acquire(timeout=300.0)
        if self.error is not None:
            raise self.error
        return {key: f"{key} at {len(self.heard)}" for key in keys}


def test_lookups_are_batched() -> None:
    """Pending lookups are one batch; a lookup of a key that is being looked up joins the next batch."""
    desk = Desk()
    grouped = Coalescer(desk, "desk", size=2)
    first = grouped.ask("a")
    wait_for(lambda: desk.heard)
    again, b, same, c = (grouped.ask(key) for key in "abac")
    assert same is again is not first
    desk.go.release(3)
    assert [each.result(300.0) for each in (first, again, b, c)] == ["a at 1", "a at 2", "b at 2", "c at 3"]
    assert desk.heard == [["a"], ["a", "b"], ["c"]]
    wait_for(lambda: not any(thread.name == "desk" for thread in threading.enumerate()))


def test_a_failed_batch_does_not_stop_the_next() -> None:
    """Each caller gets its own error, too many lookups are refused, and the next batch works."""
    desk = Desk()
    grouped = Coalescer(desk, "desk", capacity=2)
    first = grouped.ask("a")
    wait_for(lambda: desk.heard)
    waiting = [grouped.ask(key) for key in "bc"]
    with pytest.raises(StoreError, match="desk: 2 lookups are pending"):
        grouped.ask("d")
    assert grouped.ask("b") is waiting[0]
    desk.error = OSError("no space left")
    desk.go.release(2)
    errors = [each.exception(300.0) for each in (first, *waiting)]
    assert all(isinstance(error, StoreError) and "no space left" in str(error) for error in errors)
    assert len(set(map(id, errors))) == 3
    desk.error = None
    desk.go.release()
    assert grouped.ask("d").result(300.0) == "d at 3"
