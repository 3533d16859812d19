"""Laws of a gateway that is cut off from PostgreSQL: it logs to its own disk, and hands in when it is back."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from benchmarks.stores import partitions
from tests.kits.postgres import Server
from tests.kits.proxies import Proxy, proxied

from fitrouter.errors import StoreError
from fitrouter.stores.journal import Entry, Snapshot
from fitrouter.types import Decision, Erasure, Execution, Identity, Mode, PolicyVersion

WAIT = 300.0


def entry(name: str, subject: str = "ann") -> Entry:
    return Entry(Erasure(id=name, ts=1.0, subject=subject))


def done(future: Future[int]) -> int:
    return future.result(WAIT)


def names(journal: Any) -> list[str]:
    return [row.event.id for row in journal.tail(0, 100_000)]


def files(folder: Path) -> list[Path]:
    return list(folder.glob("postgres.backlog-*.db"))


@pytest.fixture
def proxy(postgres_server: Server) -> Iterator[Proxy]:
    with proxied(postgres_server.folder / ".s.PGSQL.5432") as found:
        yield found


@pytest.fixture
def url(postgres_server: Server, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a new database, through the proxy, by a client that soon gives up."""
    monkeypatch.setattr("fitrouter.stores.postgres._connect.DELAYS", (0.0, 0.0))
    monkeypatch.setattr("fitrouter.stores.postgres._detached._AGAIN_S", 0.05)
    name = postgres_server.database()
    return f"postgresql://admin@127.0.0.1:{proxy.port}/{name}?connect_timeout=2&tcp_user_timeout=1000"


def handed_in(journal: Any) -> None:
    """Wait until nothing is in the backlog."""
    while journal.incident:
        done(journal.append())


@pytest.mark.parametrize("how", ["cut", "cut in the midst"])
def test_cut_off_gateway_logs_and_hands_in(
    tmp_path: Path, url: str, proxy: Proxy, postgres_journal: Any, how: str
) -> None:
    """What is appended while the database is away is acknowledged, and is there once, in order, when it is back."""
    with closing(postgres_journal(url, tmp_path)) as journal:
        futures = [journal.append(entry(f"before{n}")) for n in range(50)]
        if how == "cut":
            done(futures[-1])
        proxy.cut()
        futures += [journal.append(entry(f"during{n}")) for n in range(2500)]
        assert done(futures[-1]) == 0, "durable, without a number yet"
        assert "logged in" in journal.incident
        assert journal.fault() == "", "it goes on taking requests"
        with pytest.raises(StoreError, match="could not be read"):
            journal.tail(0)
        with pytest.raises(StoreError, match="backlog"):
            journal.save(Snapshot(1, {"a": b"1"}))
        proxy.restore()
        handed_in(journal)
        futures.append(journal.append(entry("after")))
        assert done(futures[-1]) == 2551
        assert names(journal) == [
            *(f"before{n}" for n in range(50)),
            *(f"during{n}" for n in range(2500)),
            "after",
        ]
        assert not any(future.exception() for future in futures)
        assert files(tmp_path) == []


def test_black_hole_is_survived(tmp_path: Path, url: str, proxy: Proxy, postgres_journal: Any) -> None:
    """A network that swallows packets is noticed; a commit whose answer was lost is there once."""
    with closing(postgres_journal(url, tmp_path)) as journal:
        done(journal.append(entry("a")))
        proxy.swallow()
        future = journal.append(entry("b"))
        with pytest.raises(TimeoutError):  # the bytes are taken by the proxy: only the client's own limit helps
            future.result(0.2)
        proxy.restore()
        assert done(future) in {0, 2}
        handed_in(journal)
        assert done(journal.append(entry("b"), entry("c"))) == 3
        assert names(journal) == ["a", "b", "c"]


def test_gateways_hand_in_side_by_side(
    tmp_path: Path, url: str, proxy: Proxy, postgres_server: Server, postgres_journal: Any
) -> None:
    """Others go on meanwhile; each one's order is kept; an event that both know is there once."""
    direct = postgres_server.url(url.rpartition("/")[2].partition("?")[0])
    with (
        closing(postgres_journal(url, tmp_path / "one")) as one,
        closing(postgres_journal(direct, tmp_path / "two")) as two,
    ):
        proxy.cut()
        for n in range(100):
            one.append(entry(f"one{n}"))
        done(one.append(entry("both")))
        for n in range(100):
            two.append(entry(f"two{n}"))
        assert done(two.append(entry("both"))) == 101
        proxy.restore()
        handed_in(one)
        found = names(two)
        assert len(found) == 201 == len(set(found))
        for name in ("one", "two"):
            assert [each for each in found if each.startswith(name)] == [f"{name}{n}" for n in range(100)]


def test_decision_is_known_before_it_is_handed_in(
    tmp_path: Path, url: str, proxy: Proxy, postgres_journal: Any
) -> None:
    """Feedback finds a decision that waits in the backlog; others cannot be looked up, which is said at once."""
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
    event = Execution(
        id="x", ts=2.0, decision_id="d", identity=Identity(user="ann"), chosen="b", served_by="b", status="ok"
    )
    with closing(postgres_journal(url, tmp_path)) as journal:
        proxy.cut()
        done(journal.append(Entry(decision), Entry(event, b"secret")))
        assert [row.event for row in journal.of("d")] == [decision, event]
        for key in ("ann", "other"):
            with pytest.raises(StoreError, match="could not be read"):
                journal.of(key)
        proxy.restore()
        handed_in(journal)
        assert [(row.seq, row.event) for row in journal.of("d")] == [(1, decision), (2, event)]
        assert [(each.decision_id, each.content) for each in journal.spooled()] == [("d", b"secret")]


def test_erased_users_are_not_handed_in(
    tmp_path: Path, url: str, proxy: Proxy, postgres_server: Server, postgres_journal: Any
) -> None:
    """What was logged about a user who was erased meanwhile, by another gateway, is refused."""
    direct = postgres_server.url(url.rpartition("/")[2].partition("?")[0])
    with (
        closing(postgres_journal(url, tmp_path / "one")) as one,
        closing(postgres_journal(direct, tmp_path / "two")) as two,
    ):
        done(one.append(entry("a", "zoe")))
        proxy.cut()
        done(one.append(entry("b", "zoe"), entry("c", "ann")))
        two.erase(["zoe"], "acme", 2.0)
        proxy.restore()
        handed_in(one)
        assert list(two.of("zoe")) == []
        assert [row.event.id for row in two.of("ann")] == ["c"]
        assert files(tmp_path / "one") == []


WRITER = """
import sys
from pathlib import Path
from fitrouter.stores.journal import Entry
from fitrouter.stores.postgres import PostgresJournal, _connect
from fitrouter.types import Erasure

_connect.DELAYS = (0.0,)
journal = PostgresJournal(sys.argv[1], Path(sys.argv[2]))
print("open", flush=True)
sys.stdin.readline()
n = 0
while True:
    journal.append(Entry(Erasure(id=f"w{n}", ts=1.0, subject="w"))).result(300.0)
    print(n, flush=True)
    n += 1
"""


def test_backlog_of_a_killed_gateway_is_handed_in(
    tmp_path: Path, url: str, proxy: Proxy, postgres_server: Server, postgres_journal: Any
) -> None:
    """After kill -9 while it was cut off, the next start on the folder hands in what was acknowledged, first."""
    command = [sys.executable, "-c", WRITER, url, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "open\n"
            proxy.cut()
            process.stdin.write("go\n")
            process.stdin.flush()
            for _ in range(30):
                process.stdout.readline()
            direct = postgres_server.url(url.rpartition("/")[2].partition("?")[0])
            with closing(postgres_journal(direct, tmp_path)) as other:
                assert names(other) == [], "the file of a living process is left to it"
                assert len(files(tmp_path)) == 1
        finally:
            process.kill()
        last = [line for line in process.stdout.read().splitlines() if line][-1:]
    proxy.restore()
    with closing(postgres_journal(url, tmp_path)) as journal:
        done(journal.append(entry("new")))
        while journal._detachable.waiting:
            done(journal.append())
        found = names(journal)
        assert found[-1] == "new"
        assert found[:-1] == [f"w{n}" for n in range(len(found) - 1)]
        assert len(found) - 1 > int(last[0] if last else 28)
        assert files(tmp_path) == []


def test_full_backlog_is_told(
    tmp_path: Path, url: str, proxy: Proxy, postgres_journal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backlog is bounded: what does not fit is refused with both reasons, and what fitted is handed in."""
    monkeypatch.setattr("fitrouter.stores.postgres._locked_files.MOST_PAGES", 16)
    with closing(postgres_journal(url, tmp_path)) as journal:
        proxy.cut()
        kept = list[str]()
        with pytest.raises(StoreError, match=r"backlog.*full.*nor can the database"):
            _fill(journal, kept)
        assert "full" in journal.fault()
        proxy.restore()
        handed_in(journal)
        assert names(journal) == kept != []
        assert done(journal.append(entry("last"))) == len(kept) + 1
        assert journal.fault() == ""


def _fill(journal: Any, kept: list[str]) -> None:
    for n in range(10_000):
        done(journal.append(Entry(Erasure(id=f"e{n}", ts=1.0, subject="ann", digests=("x" * 1000,)))))
        kept.append(f"e{n}")


def test_three_gateways_survive_partitions_and_kills() -> None:
    """In networks of their own: no acknowledged event lost, doubled or crossed, equal digests, one lease holder."""
    if not partitions.possible():
        pytest.skip("network namespaces need root, `ip` and PostgreSQL's binaries")
    found = partitions.run(150, 3)
    assert partitions.broken(found) == [], found
    assert (found["kills"], found["partitions"]) == (1, 2)
    assert found["acknowledged"] > 300
