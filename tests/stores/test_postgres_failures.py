"""What the journal on PostgreSQL survives: failover, deadlocks, a full disk, wrong addresses, clocks that differ."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.kits import postgres

from fitrouter.errors import ConfigError, StoreError
from fitrouter.stores.journal import Entry
from fitrouter.types import Erasure

WAIT = 300.0
PATIENT = (0.05, 0.2, *[0.5] * 240)
"""Pauses for servers that start slowly on a busy machine."""


def entry(name: str, noise: int = 0) -> Entry:
    """An event; with so many bytes in it that cannot be compressed."""
    digests = (random.Random(name).randbytes(noise // 2).hex(),) if noise else ()
    return Entry(Erasure(id=name, ts=1.0, subject="ann", digests=digests))


def done(future: Future[int]) -> int:
    return future.result(WAIT)


def database_of(url: str) -> str:
    return url.partition("@/")[2].partition("?")[0]


class Load:
    """A thread that appends one event after the other, and notes those that are acknowledged."""

    def __init__(self, journal: Any) -> None:
        self.acknowledged: list[str] = []
        self._journal, self._stop = journal, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        waiting: list[tuple[str, Future[int]]] = []
        n = 0
        while waiting or not self._stop.is_set():
            if not self._stop.is_set():
                waiting.append((f"e{n}", self._journal.append(entry(f"e{n}"))))
                n += 1
            if len(waiting) > 20 or self._stop.is_set():
                name, future = waiting.pop(0)
                done(future)
                self.acknowledged.append(name)

    def past(self, count: int) -> None:
        """Wait until so many more are acknowledged."""
        goal = len(self.acknowledged) + count
        while len(self.acknowledged) < goal:
            assert self._thread.is_alive()
            self._stop.wait(0.01)

    def end(self) -> list[str]:
        """Stop, and wait for the rest."""
        self._stop.set()
        self._thread.join(WAIT)
        assert not self._thread.is_alive()
        return self.acknowledged


def test_failover_loses_nothing_acknowledged(postgres_journal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the primary is killed under load and its synchronous standby is promoted, no acknowledged event is lost.

    All are there once, in order; the gateway finds the new primary, appends and leases go on.
    """
    if postgres.binaries() is None:
        pytest.skip(postgres.MISSING)
    monkeypatch.setattr("fitrouter.stores.postgres._connect.DELAYS", PATIENT)
    with postgres.serving(fsync=True) as primary:
        name = primary.database()
        with postgres.serving(fsync=True, primary=primary) as standby:
            primary.sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
            primary.sql("SELECT pg_reload_conf()")
            while not primary.sql("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"):
                pass
            both = f"postgresql://admin@/{name}?host={primary.folder},{standby.folder}"
            with closing(postgres_journal(both)) as journal:
                lease = journal.lease("scorer")
                assert lease.held()
                load = Load(journal)
                load.past(100)
                primary.kill()
                before = list(load.acknowledged)
                assert standby.sql("SELECT pg_promote(true, 120)") == [(True,)]
                there = [each for (each,) in standby.sql("SELECT id FROM fitrouter.events ORDER BY seq", name)]
                assert set(before) <= set(there)
                load.past(100)
                told = load.end()
                held = False
                while not held:
                    with suppress(StoreError):  # the standby is not promoted yet
                        held = lease.held()
                names = [row.event.id for row in journal.tail(0, 1_000_000)]
                assert names == told == [f"e{n}" for n in range(len(told))]
        primary.start()  # so that it can be stopped


def test_deadlock_is_repeated(postgres_url: str, postgres_journal: Any) -> None:
    """A transaction that PostgreSQL ends because of a deadlock is repeated, and its events are there once."""
    import psycopg

    with closing(postgres_journal(postgres_url)) as journal, psycopg.connect(postgres_url) as session:
        done(journal.append(entry("a")))
        session.execute("SET deadlock_timeout = '100s'")  # so that the journal's transaction is the one ended
        before = session.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").fetchone()
        session.execute("LOCK TABLE fitrouter.events IN EXCLUSIVE MODE")
        future = journal.append(entry("b"), entry("c"))
        with psycopg.connect(postgres_url, autocommit=True) as other:
            waits = "SELECT FROM pg_locks WHERE NOT granted AND relation = 'fitrouter.events'::regclass"
            while not other.execute(waits).fetchall():
                pass
            session.execute("SELECT FROM fitrouter.head FOR UPDATE")  # returns once the journal's transaction is ended
            assert not future.done()
            session.rollback()
            assert done(future) == 3
            count = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
            while other.execute(count).fetchone() == before:  # counted a moment later
                pass
        assert [row.event.id for row in journal.tail(0)] == ["a", "b", "c"]


@pytest.mark.parametrize("step", ["begin", "insert", "commit"])
def test_serialization_errors_are_repeated(
    postgres_url: str, postgres_journal: Any, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A lost race, at whatever step, costs only time; one that is lost every time is an error, and nothing is kept."""
    from psycopg import errors

    monkeypatch.setattr("fitrouter.stores.postgres._connect.DELAYS", (0.0, 0.0))
    left = [2]

    def fault(name: str) -> None:
        if name == step and left[0] > 0:
            left[0] -= 1
            raise errors.SerializationFailure("could not serialize access due to concurrent update")

    with closing(postgres_journal(postgres_url, fault=fault)) as journal:
        assert done(journal.append(entry("a"), entry("b"))) == 2
        left[0] = 3
        with pytest.raises(StoreError, match="could not serialize"):
            done(journal.append(entry("c")))
        assert done(journal.append(entry("c"))) == 3
        assert [row.event.id for row in journal.tail(0)] == ["a", "b", "c"]


@contextmanager
def small_disk(folder: Path, mb: int) -> Iterator[Path]:
    """A file system of a few megabytes; skips where mounting is not allowed."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mb}m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _appended(journal: Any, name: str, acknowledged: list[str]) -> StoreError | None:
    """Append ten large events, and note them; the error if they could not be."""
    try:
        done(journal.append(*(entry(f"{name}-{i}", 20_000) for i in range(10))))
    except StoreError as error:
        return error
    acknowledged += [f"{name}-{i}" for i in range(10)]
    return None


def test_full_disk_of_the_server(postgres_server: Any, postgres_journal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the server's disk is full, appends fail and say so; with room again they go on, nothing lost."""
    monkeypatch.setattr("fitrouter.stores.postgres._connect.DELAYS", (0.0,))
    place = postgres_server.folder / "small"
    with small_disk(place, 16):
        shutil.chown(place, postgres_server.folder.owner())
        postgres_server.sql(f"CREATE TABLESPACE small LOCATION '{place}'")
        postgres_server.sql("CREATE DATABASE full_disk TABLESPACE small")
        try:
            with closing(postgres_journal(postgres_server.url("full_disk"))) as journal:
                acknowledged = list[str]()
                while (error := _appended(journal, f"{len(acknowledged)}", acknowledged)) is None:
                    assert len(acknowledged) < 1_000_000
                assert re.search("no space left.*postgresql://admin@", str(error), re.IGNORECASE)
                assert "No space left" in journal.fault()
                assert [row.event.id for row in journal.tail(0, 100_000)] == acknowledged
                subprocess.run(["mount", "-o", "remount,size=128m", str(place)], check=True)
                assert done(journal.append(entry("last"))) == len(acknowledged) + 1
                assert journal.fault() == ""
        finally:
            postgres_server.sql("DROP DATABASE full_disk WITH (FORCE)")
            postgres_server.sql("DROP TABLESPACE small")


@pytest.mark.parametrize(
    ("url", "error", "said"),
    [
        ("postgresql://ann@127.0.0.1:1/fit", StoreError, r"cannot be opened.*postgresql://ann@127\.0\.0\.1:1/fit"),
        ("postgresql://ann@127.0.0.1:no/fit", StoreError, r"(?s)cannot be opened.*port"),
        ("postgresql://ann@[::1/fit", ConfigError, "postgresql://USER@HOST:PORT/NAME"),
        ("host=db sslmode", ConfigError, "postgresql://USER@HOST:PORT/NAME"),
    ],
)
def test_wrong_urls_are_told(
    postgres_journal: Any, monkeypatch: pytest.MonkeyPatch, url: str, error: type[Exception], said: str
) -> None:
    """A URL that cannot be read, or where nothing answers, gives an error that says which."""
    monkeypatch.setattr("fitrouter.stores.postgres._connect.DELAYS", ())
    with pytest.raises(error, match=said):
        postgres_journal(url)


def test_missing_database_and_role_are_told(
    postgres_server: Any, postgres_journal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a server that answers, the message says what it lacks."""
    monkeypatch.setattr("fitrouter.stores.postgres._connect.DELAYS", ())
    with pytest.raises(StoreError, match='database "nowhere" does not exist'):
        postgres_journal(postgres_server.url("nowhere"))
    with pytest.raises(StoreError, match='role "nobody" does not exist'):
        postgres_journal(postgres_server.url("postgres", "nobody"))


def test_rights_that_are_revoked_are_told(
    postgres_server: Any, postgres_url: str, postgres_journal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A role that loses a right at run time gets errors that name it; with the right again, appends go on."""
    monkeypatch.setattr("fitrouter.stores.postgres._connect.DELAYS", ())
    name = database_of(postgres_url)
    postgres_journal(postgres_url).close()
    postgres_server.sql("DROP ROLE IF EXISTS writer")
    postgres_server.sql("CREATE ROLE writer LOGIN")
    try:
        postgres_server.sql("GRANT USAGE ON SCHEMA fitrouter TO writer", name)
        postgres_server.sql("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA fitrouter TO writer", name)
        with closing(postgres_journal(postgres_server.url(name, "writer"))) as journal:
            assert done(journal.append(entry("a"))) == 1
            postgres_server.sql("REVOKE INSERT ON fitrouter.events FROM writer", name)
            with pytest.raises(StoreError, match="permission denied for table events"):
                done(journal.append(entry("b")))
            postgres_server.sql("GRANT INSERT ON fitrouter.events TO writer", name)
            assert done(journal.append(entry("b"))) == 2
    finally:
        postgres_server.sql("DROP OWNED BY writer", name)
        postgres_server.sql("DROP ROLE writer")
