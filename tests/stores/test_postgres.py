"""Laws of the journal on PostgreSQL beyond those of all journals (test_journal.py)."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.kits import postgres
from typer.testing import CliRunner

from fitrouter.errors import ConfigError, StoreError, masked
from fitrouter.stores.journal import Entry, FilePlace, Snapshot, SqliteJournal, copy, digest_of_place
from fitrouter.stores.postgres import Database
from fitrouter.types import Decision, Erasure, Execution, Identity, Mode, PolicyVersion
from fitrouter_integrations.cli import app

WAIT = 300.0
ROOT = Path(__file__).resolve().parents[2]


def entry(name: str, subject: str = "ann") -> Entry:
    return Entry(Erasure(id=name, ts=1.0, subject=subject))


def done(future: Future[int]) -> int:
    return future.result(WAIT)


@pytest.fixture
def open_journal(postgres_url: str, postgres_journal: Any) -> Iterator[Any]:
    made = []

    def build(url: str = postgres_url, *args: Any, **options: Any) -> Any:
        made.append(postgres_journal(url, *args, **options))
        return made[-1]

    yield build
    for journal in made:
        journal.close()


WRITER = """
import sys
from fitrouter.stores.journal import Entry
from fitrouter.stores.postgres import PostgresJournal
from fitrouter.types import Erasure

url, name, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
journal = PostgresJournal(url)
lease = journal.lease("scorer")
print("lease", lease.held(), flush=True)
waiting = []
for n in range(rows):
    waiting.append((n, journal.append(Entry(Erasure(id=f"{name}-{n}", ts=float(n), subject=name)))))
    while len(waiting) > 20 or (waiting and n == rows - 1):
        acked, future = waiting.pop(0)
        future.result(300.0)
        print(acked, flush=True)
journal.close()
"""


@contextmanager
def writer(url: str, name: str, rows: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", WRITER, url, name, str(rows)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_writers_of_several_processes_make_one_order(postgres_url: str, open_journal: Any) -> None:
    """A reader that follows the tail sees every row once, without gaps, each writer's in its order."""
    journal, rows = open_journal(), 400
    seen: list[tuple[int, str]] = []
    with writer(postgres_url, "a", rows) as one, writer(postgres_url, "b", rows) as two:
        told: list[str] = []
        readers = [threading.Thread(target=lambda p=p: told.extend(p.stdout)) for p in (one, two)]
        for reader in readers:
            reader.start()
        while len(seen) < 2 * rows:
            seen += [(row.seq, row.event.id) for row in journal.tail(seen[-1][0] if seen else 0, 100)]
        for reader in readers:
            reader.join(WAIT)
        assert (one.wait(WAIT), two.wait(WAIT)) == (0, 0)
    assert [seq for seq, _ in seen] == list(range(1, 2 * rows + 1))
    for name in ("a", "b"):
        assert [f"{name}-{n}" for n in range(rows)] == [i for _, i in seen if i.startswith(name)]
    assert told.count("lease True\n") >= 1


def test_killed_clients_lose_nothing_and_hold_nothing(postgres_url: str, open_journal: Any) -> None:
    """After kill -9 of a writer, what it had acknowledged is there once, and its lease is free."""
    journal = open_journal()
    lease = journal.lease("scorer")
    for life in range(4):
        with writer(postgres_url, f"life{life}", 10_000) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "lease True\n"
            assert not lease.held()
            last = [int(process.stdout.readline()) for _ in range(40 + 30 * life)][-1]
            process.kill()
            last = max([last, *map(int, process.stdout.read().split()[:-1])])
        names = [row.event.id for row in journal.of(f"life{life}")]
        assert names == [f"life{life}-{n}" for n in range(len(names))]
        assert len(names) > last
        while not lease.held():  # the server notices a closed socket at once, but not in zero time
            pass
        lease.release()


def test_killed_server_loses_nothing_acknowledged(postgres_journal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through kill -9 of the server, appends are repeated until they are there, once, in order; leases fall."""
    monkeypatch.setattr(
        "fitrouter.stores.postgres._connect.DELAYS", (0.05, 0.2, *[0.5] * 120)
    )  # a busy machine starts it slowly
    with postgres.serving(fsync=True) as server:
        journal = postgres_journal(server.url(server.database()))
        try:
            lease = journal.lease("scorer")
            assert lease.held()
            futures, acked = [], list[int]()
            for life in range(3):
                futures += [journal.append(entry(f"{life}-{n}")) for n in range(300)]
                acked.append(done(futures[300 * life + 20]))
                server.kill()
                assert not lease.held()
                server.start()
                assert lease.held()
            assert [done(future) for future in futures] == sorted(done(future) for future in futures)
            names = [row.event.id for row in journal.tail(0, 10_000)]
            assert names == [f"{life}-{n}" for life in range(3) for n in range(300)]
            assert journal.fault() == ""
        finally:
            journal.close()


def test_server_that_is_down_fails_and_comes_back(postgres_journal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the server is down appends fail with StoreError and `fault` says why; it recovers by itself."""
    monkeypatch.setattr("fitrouter.stores.postgres._connect.DELAYS", (0.0, 0.0))
    monkeypatch.setattr("fitrouter.stores.postgres._connect._PATIENCE_S", 1.0)
    monkeypatch.setattr("fitrouter.stores.postgres._connect._GIVE_UP_S", 0.1)
    with postgres.serving(fsync=True) as server:
        journal = postgres_journal(server.url(server.database()))
        try:
            done(journal.append(entry("a")))
            server.kill()
            with pytest.raises(StoreError, match="postgresql://admin@"):
                done(journal.append(entry("b")))
            assert "could not write" in journal.fault()
            with pytest.raises(StoreError, match="could not be read"):
                journal.tail(0)
            server.start()
            assert done(journal.append(entry("b"))) == 2
            assert journal.fault() == ""
            assert [row.event.id for row in journal.tail(0)] == ["a", "b"]
        finally:
            journal.close()


def test_terminated_connections_are_replaced(postgres_server: Any, postgres_url: str, open_journal: Any) -> None:
    """When an administrator ends every connection, appends and reads go on, and a lost lease is told."""
    journal = open_journal()
    lease = journal.lease("scorer")
    assert lease.held()
    done(journal.append(entry("a")))
    for n in range(3):
        postgres_server.sql(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'fitrouter'"
        )
        assert not lease.held()
        assert lease.held()
        assert done(journal.append(entry(f"b{n}"))) == n + 2
        assert [row.event.id for row in journal.tail(n + 1)] == [f"b{n}"]


def test_listener_tells_of_other_processes(open_journal: Any) -> None:
    """`watch` calls after an append of another journal on the database, soon after a lost connection too."""
    journal, other = open_journal(), open_journal()
    told = threading.Event()
    journal.watch(told.set)
    n = 0
    while not told.wait(0.05):  # the first may come before it listens
        n += 1
        done(other.append(entry(f"e{n}")))
    assert n > 0


def test_damaged_row_is_left_out(
    postgres_server: Any, postgres_url: str, open_journal: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A row whose bytes changed is never folded; the rows behind it are still reached, page by page."""
    journal = open_journal()
    done(journal.append(*(entry(f"e{n}") for n in range(6))))
    name = postgres_url.partition("@/")[2].partition("?")[0]
    postgres_server.sql("UPDATE fitrouter.events SET payload = '\\xc1' WHERE seq IN (2, 3, 4)", name)
    assert [row.seq for row in journal.tail(0)] == [1, 5, 6]
    assert [row.seq for row in journal.tail(1, 1)] == [5]
    assert "row 2" in caplog.text


def test_erasure_is_of_every_folder(tmp_path: Path, postgres_url: str, open_journal: Any) -> None:
    """Each machine finishes an erasure in its own folder; the tables are rewritten once; later events are refused."""
    one, two = (open_journal(postgres_url, tmp_path / name) for name in ("one", "two"))
    event = Execution(
        id="x", ts=2.0, decision_id="d", identity=Identity(user="ann"), chosen="b", served_by="b", status="ok"
    )
    decision = Decision(
        id="d",
        ts=1.0,
        draw_id="d",
        identity=Identity(user="ann"),
        mode=Mode.ONLINE,
        eligible=("b",),
        probs=(1.0,),
        chosen="b",
        propensity=1.0,
        features=b"",
        policy=PolicyVersion(algorithm="squarecb"),
    )
    done(one.append(Entry(decision), Entry(event, b"secret")))
    one.save(Snapshot(2, {"a": b"1"}))
    assert two.erase(["ann"], "acme", 5.0) == 2
    assert (list(one.spooled()), one.snapshot()) == ([], Snapshot(0, {}))
    assert done(one.append(Entry(event))) == 3, "a request in progress"
    assert list(one.of("ann")) == []
    one.save(Snapshot(2, {"a": b"old"}))
    assert one.snapshot() == Snapshot(0, {})
    pending = one.unfinished()
    assert pending == two.unfinished() == dict.fromkeys(pending, 3)
    one.compact()
    one.finish(pending)
    assert (one.unfinished(), two.unfinished()) == ({}, pending)
    again = open_journal(postgres_url, tmp_path / "one")
    assert again.unfinished() == {}
    two.finish(pending)
    two.erase(["ann"], "", 6.0)
    assert len(one.unfinished()) == 1, "called again, it is looked through again"


def test_leases_of_files_are_of_the_machine(tmp_path: Path, postgres_url: str, open_journal: Any) -> None:
    """Two machines each feed their own warehouse, and share one scorer; processes of one folder exclude each other."""
    one, two, same = (open_journal(postgres_url, tmp_path / name) for name in ("one", "two", "one"))
    mine, theirs, ours = (each.lease("erasure") for each in (one, two, same))
    assert (mine.held(), theirs.held(), ours.held()) == (True, True, False)
    one.close()
    assert (mine.held(), ours.held()) == (False, True)
    mine, theirs = same.lease("scorer"), two.lease("scorer")
    assert (mine.held(), theirs.held()) == (True, False)


def test_processes_may_start_at_once(postgres_server: Any, open_journal: Any) -> None:
    """On a new database, all that open it together get one set of tables."""
    for _ in range(3):
        url = postgres_server.url(postgres_server.database())
        with ThreadPoolExecutor(6) as threads:
            opened = list(threads.map(open_journal, [url] * 6))
        assert [done(journal.append(entry(f"e{n}"))) for n, journal in enumerate(opened)] == [1, 2, 3, 4, 5, 6]


def test_other_formats_are_refused(postgres_server: Any, postgres_url: str, open_journal: Any) -> None:
    """Tables of another version of fitrouter are not touched, and the message says what to do."""
    open_journal().close()
    name = postgres_url.partition("@/")[2].partition("?")[0]
    for version, word in ((99, "Upgrade fitrouter"), (0, "journal copy")):
        postgres_server.sql(f"UPDATE fitrouter.head SET version = {version}", name)
        with pytest.raises(StoreError, match=f"format {version}.*{word}"):
            open_journal()


def test_missing_rights_are_told(postgres_server: Any, postgres_url: str, open_journal: Any) -> None:
    """A role that may not create or use the tables gets a ConfigError that names the page."""
    name = postgres_url.partition("@/")[2].partition("?")[0]
    postgres_server.sql("DROP ROLE IF EXISTS guest")
    postgres_server.sql("CREATE ROLE guest LOGIN")
    url = postgres_server.url(name, "guest")
    with pytest.raises(ConfigError, match=r"permission denied.*docs/postgres\.md"):
        open_journal(url)
    open_journal().close()
    with pytest.raises(ConfigError, match="permission denied"):
        open_journal(url)


def test_passwords_are_shown_nowhere(postgres_server: Any, postgres_journal: Any, monkeypatch: Any) -> None:
    """Neither a repr nor an error has the password, however wrong the URL is."""
    from fitrouter.stores.postgres import Database

    monkeypatch.setattr("fitrouter.stores.postgres._connect.DELAYS", ())
    said = [repr(Database("postgresql://ann:hunter2hunter2@db.example:5433/fit?sslmode=require"))]
    assert said == ["Database('postgresql://ann@db.example:5433/fit')"]
    for url in (
        f"postgresql://ann:hunter2hunter2@/nowhere?host={postgres_server.folder}",
        f"postgresql://ann:short@/nowhere?host={postgres_server.folder}/missing",
        "postgresql://ann:hunter2hunter2@db:port/fit?unknown=1",
        "postgresql://ann:hunter2 hunter2@/x",
    ):
        with pytest.raises((ConfigError, StoreError)) as caught:
            postgres_journal(url)
        said.append(str(caught.value))
    assert not any("hunter2" in text or "short" in text for text in said), said
    assert "cannot be opened" in said[1]
    assert "postgresql://USER@HOST:PORT/NAME" in said[3]


def test_text_with_nul_is_refused(open_journal: Any) -> None:
    """PostgreSQL stores no NUL in a text: such an entry is refused alone, and looked up in vain."""
    journal = open_journal()
    with pytest.raises(ValueError, match="NUL"):
        journal.append(entry("a\0b"))
    assert list(journal.of("a\0b")) == []


def filled(journal: Any, rows: int) -> None:
    """Events of several kinds and texts, an erasure, waiting answers and a snapshot."""
    for n in range(rows):
        event = Execution(
            id=f"x{n}",
            ts=n / 3,
            decision_id=f"d{n}",
            identity=Identity(user=f"ü{n}"),
            chosen="b",
            served_by="b",
            status="ok",
        )
        journal.append(Entry(event, bytes([n % 256]) * (n % 7 + 1)))
    done(journal.append())
    journal.erase(["ü1", "ü3"], "acme", 9.0)
    journal.save(Snapshot(journal.head(), {"b": b"2", "B": b"1", "é": b"\0"}))


def test_copy_there_and_back_is_equal(tmp_path: Path, postgres_url: str, open_journal: Any) -> None:
    """SQLite → PostgreSQL → SQLite: equal by digest, and both journals go on with the next number."""
    origin = SqliteJournal(tmp_path / "a.db")
    filled(origin, 3000)
    head, snapshot, waiting = origin.head(), origin.snapshot(), list(origin.spooled(10_000))
    with pytest.raises(StoreError, match="open in a gateway"):
        FilePlace(tmp_path / "a.db", new=False)
    origin.close()
    runner = CliRunner()
    said = [
        runner.invoke(app, ["journal", "copy", str(tmp_path / "a.db"), postgres_url]),
        runner.invoke(app, ["journal", "copy", postgres_url, str(tmp_path / "b.db")]),
    ]
    assert [each.exit_code for each in said] == [0, 0], said
    digests = {each.stdout.splitlines()[0].rpartition(" ")[2] for each in said}
    with (
        closing(FilePlace(tmp_path / "a.db", new=False)) as one,
        closing(FilePlace(tmp_path / "b.db", new=False)) as two,
    ):
        assert digests == {digest_of_place(one)[0]} == {digest_of_place(two)[0]}
    for journal in (open_journal(), SqliteJournal(tmp_path / "b.db")):
        assert (journal.head(), journal.snapshot(), list(journal.spooled(10_000))) == (head, snapshot, waiting)
        assert done(journal.append(entry("next", "ü1"), entry("more"))) == head + 1, "the erased one is refused"
        journal.close()


def test_interrupted_copy_goes_on(tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that broke off after some batches is completed by the next; a foreign journal is never mixed in."""
    monkeypatch.setattr("fitrouter.stores.journal._copy.BATCH", 7)
    monkeypatch.setattr("fitrouter.stores.postgres._copy.BATCH", 7)
    from fitrouter.stores.postgres import Database, DatabasePlace

    origin = SqliteJournal(tmp_path / "a.db")
    filled(origin, 50)
    origin.close()

    def breaks(seq: int, head: int) -> None:
        if seq >= 21:
            raise OSError("power cut")

    with closing(FilePlace(tmp_path / "a.db", new=False)) as source:
        with closing(DatabasePlace(Database(postgres_url))) as target, pytest.raises(OSError, match="power"):
            copy(source, target, breaks)
        with closing(DatabasePlace(Database(postgres_url))) as target:
            found = copy(source, target)
            assert (found.events, 0 < found.moved < found.events) == (49, True)
            assert copy(source, target).moved == 0
            other = SqliteJournal(tmp_path / "other.db")
            done(other.append(*(entry(f"o{n}") for n in range(60))))
            other.close()
            with closing(FilePlace(tmp_path / "other.db", new=False)) as foreign:
                with pytest.raises(ConfigError, match="another journal"):
                    copy(foreign, target)
                with pytest.raises(ConfigError, match="another journal"):
                    copy(target, foreign)
        assert digest_of_place(source) == (found.digest, 49)


def test_copy_of_a_running_journal_is_refused(postgres_url: str, open_journal: Any) -> None:
    """While a gateway has the database open, nothing is copied."""
    from fitrouter.stores.postgres import Database, DatabasePlace

    assert open_journal().head() == 0
    with pytest.raises(StoreError, match="open in gateways"):
        DatabasePlace(Database(postgres_url))


def test_each_role_may_have_a_password_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the environment by the role's name, unless the URL has one; libpq's `PGPASSWORD` is for all others."""
    monkeypatch.setenv("PGPASSWORD", "of the others")
    monkeypatch.setenv("PGPASSWORD_FITROUTER_IDENTITIES", "of that role")
    urls = ("fitrouter_identities@h/x", "fitrouter_identities:given@h/x", "fitrouter@h/x")
    found = [Database(f"postgresql://{url}") for url in urls]
    assert [each._settings.get("password") for each in found] == ["of that role", "given", None]
    assert "of that role" not in repr(found)
    assert masked("said: of that role") == "said: ••••"
