"""Laws of identities in PostgreSQL: gateways with folders of their own, cut off or not; rights; moving there and back.

The laws of all identity stores are in `test_identities.py`, `test_identities_many.py` and `test_identities_minted.py`.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from tests.kits.gateway import wait_for
from tests.kits.identity_stores import heard, rows
from tests.kits.postgres import Server
from tests.kits.proxies import Proxy, proxied
from tests.stores.test_postgres_routers import settings
from typer.testing import CliRunner

from fitrouter import Router
from fitrouter.assemble import open_identities, open_journal
from fitrouter.config import Config, parse_config
from fitrouter.errors import ConfigError, NotAuthorized, StoreError, UnknownDecision
from fitrouter.stores.identities import Identities, SqliteIdentities, UnknownSubject
from fitrouter.types import FeedbackKind, Identity, Request
from fitrouter_integrations.cli import app

psycopg = pytest.importorskip("psycopg")
from fitrouter.stores.postgres import PostgresIdentities  # noqa: E402


@pytest.fixture
def proxy(postgres_server: Server) -> Iterator[Proxy]:
    with proxied(postgres_server.folder / ".s.PGSQL.5432") as found:
        yield found


@pytest.fixture
def url(postgres_server: Server, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a new database, through the proxy, by a client that soon gives up."""
    monkeypatch.setattr("fitrouter.stores.postgres._connect.DELAYS", (0.0, 0.0))
    monkeypatch.setattr("fitrouter.stores.postgres._listen._LOOK_S", 0.05)
    monkeypatch.setattr("fitrouter.stores.postgres._listen._AGAIN_S", 0.05)
    monkeypatch.setattr("fitrouter.stores.identities._identities._RETRY_S", 0.05)
    name = postgres_server.database()
    return f"postgresql://admin@127.0.0.1:{proxy.port}/{name}?connect_timeout=2&tcp_user_timeout=1000"


@pytest.fixture
def direct(url: str, postgres_server: Server) -> str:
    """The URL of the same database, which is never cut."""
    return postgres_server.url(url.rpartition("/")[2].partition("?")[0])


def kept(folder: Path) -> list[Path]:
    return list(folder.glob("postgres.identities-*.db"))


def cut(proxy: Proxy, identities: Identities) -> None:
    """Cut it off, and wait until it has noticed."""
    proxy.cut()
    wait_for(lambda: "cannot be reached" in identities.incident)


# --- cut off ---


def test_cut_off_gateway_knows_its_users_and_keeps_new_ones(
    tmp_path: Path, url: str, direct: str, proxy: Proxy
) -> None:
    """Users in memory stay known; new ones are on this machine's disk until the database is back, then everywhere.

    Somebody else who is erased meanwhile costs nobody their subject.
    """
    with closing(PostgresIdentities(direct, tmp_path / "two")) as other:
        known = other.subject("acme", "ann")
        other.subject("acme", "bob")
        with closing(PostgresIdentities(url, tmp_path / "one")) as here:
            cut(proxy, here)
            assert here.known("acme", "ann") == known
            assert here.decrypt(here.encrypt(known, "secret")) == "secret", "its key was there from the start"
            new = [here.mint("acme", f"user {n}") for n in range(50)]
            wait_for(lambda: "50 new users wait" in here.incident)
            assert len(kept(tmp_path / "one")) == 1
            assert here.mint("acme", "user 7") == new[7]
            assert here.stands_for(new[7], "acme", "user 7")
            assert here.fault() == ""
            with pytest.raises(StoreError, match="cannot be used"):
                here.subject("acme", "zoe")
            blob = here.encrypt(new[7], "later")
            other.erase("acme", "bob")
            also = other.subject("acme", "user 8")
            proxy.restore()
            wait_for(lambda: len(rows(other)) == 52)
            assert {rows(other)[each] for each in new} == {f"user {n}" for n in range(50)}
            assert other.decrypt(blob) == "later"
            assert other.canonical(new[8]) == also, "who came there meanwhile has one subject"
            wait_for(lambda: not kept(tmp_path / "one"))
            assert here.incident == ""
            assert here.subject("acme", "user 8") == also


def test_who_was_erased_meanwhile_is_not_written(tmp_path: Path, url: str, direct: str, proxy: Proxy) -> None:
    """A subject that a cut-off gateway minted before its user was erased elsewhere is given up, and its events go."""
    orphans = list[str]()
    with (
        closing(PostgresIdentities(direct, tmp_path / "two")) as other,
        closing(PostgresIdentities(url, tmp_path / "one")) as here,
    ):
        here.on_orphan = orphans.append
        cut(proxy, here)
        ann, bob = here.mint("acme", "ann"), here.mint("acme", "bob")
        wait_for(lambda: "2 new users wait" in here.incident)
        other.erase("acme", "ann")
        proxy.restore()
        wait_for(lambda: not kept(tmp_path / "one"))
        assert orphans == [ann]
        assert rows(other) == {bob: "bob"}
        with pytest.raises(UnknownSubject):
            here.key(ann)
        assert here.subject("acme", "ann") != ann


DYING = """
import os, signal, sys
from pathlib import Path
from fitrouter.stores.postgres import PostgresIdentities, _connect
_connect.DELAYS = (0.0,)
identities = PostgresIdentities(sys.argv[1], Path(sys.argv[2]))
print("open", flush=True)
sys.stdin.readline()
tokens = [identities.mint("acme", f"user {n}") for n in range(3)]
while "3 new users wait" not in identities.incident:
    pass
print(*tokens, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_subjects_of_a_killed_gateway_are_written_by_the_next(
    tmp_path: Path, url: str, direct: str, proxy: Proxy
) -> None:
    """After kill -9 while it was cut off, the next start on the folder writes its new users, less the erased."""
    command = [sys.executable, "-c", DYING, url, str(tmp_path / "one")]
    orphans = list[str]()
    with closing(PostgresIdentities(direct, tmp_path / "two")) as other:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            proxy.cut()
            process.stdin.write("go\n")
            process.stdin.flush()
            tokens = process.stdout.readline().split()
        taken = other.subject("acme", "user 1")
        other.erase("acme", "user 2")
        proxy.restore()
        with closing(PostgresIdentities(url, tmp_path / "one")) as here:
            here.on_orphan = orphans.append
            assert len(kept(tmp_path / "one")) == 1
            here.hand_in()
            assert rows(other) == {tokens[0]: "user 0", tokens[1]: "user 1", taken: "user 1"}
            assert other.subjects("acme", "user 1") == (taken, tokens[1])
            assert orphans == [tokens[2]]
            assert kept(tmp_path / "one") == []


def test_erasure_is_heard_of_at_once(tmp_path: Path, postgres_url: str) -> None:
    """An erasure reaches the memory of other gateways by NOTIFY."""
    with ExitStack() as stack:
        one, two = (
            stack.enter_context(closing(PostgresIdentities(postgres_url, tmp_path / name))) for name in ("one", "two")
        )
        token = one.subject("acme", "ann")
        assert two.subject("acme", "ann") == two.known("acme", "ann") == token
        one.erase("acme", "ann")
        heard(one, two)
        assert two.known("acme", "ann") is None
        assert one.subject("acme", "ann") == two.subject("acme", "ann") != token


def test_replicas_agree_on_their_users(tmp_path: Path, postgres_url: str) -> None:
    """Routers with folders of their own: one subject, sessions go on, votes are theirs, an erasure on one is of all."""

    async def live() -> None:
        configs = [parse_config(settings(postgres_url, tmp_path / name)) for name in ("one", "two")]
        for config in configs:
            config.providers["s"].options.pop("speed")
        who = Identity(user="ann", session="talk")

        def ask(turn: int) -> Request:
            said = [{"role": "assistant", "content": "Yes"}, {"role": "user", "content": "And?"}] * turn
            return Request(messages=({"role": "user", "content": "Hello"}, *said), identity=who)

        async with Router.from_config(configs[0]) as one, Router.from_config(configs[1]) as two:
            first = (await one.complete(ask(0))).decision
            await one.settled()
            await asyncio.to_thread(wait_for, lambda: two._learner.seq >= one._journal.head())
            second = (await two.complete(ask(1))).decision
            assert (second.identity, second.chosen, second.mode.value) == (first.identity, first.chosen, "sticky")
            await two.settled()
            for router, decision in ((two, first), (one, second)):
                await router.feedback(decision.id, FeedbackKind.THUMB, 1.0, identity=who)
                with pytest.raises(NotAuthorized):
                    await router.feedback(decision.id, FeedbackKind.THUMB, 1.0, identity=Identity(user="bob"))
            assert (await two.people.recall(who)).user == first.identity.user
            assert (await two.erase("default", "ann")).subjects == 1
            await asyncio.to_thread(heard, one._identities, two._identities)
            assert one._identities.known("default", "ann") is None
            with pytest.raises(UnknownDecision):
                await one.feedback(first.id, FeedbackKind.THUMB, 1.0, identity=who)
            await asyncio.to_thread(wait_for, lambda: not one._journal.unfinished(), 60.0)
            again = (await one.complete(ask(0))).decision
            assert again.identity.user not in {None, first.identity.user}
        gone.append(first.identity.user or "")

    gone = list[str]()
    asyncio.run(live())
    assert [path for path in tmp_path.glob("*/*") if gone[0].encode() in path.read_bytes()] == []


# --- the database ---


def test_nobody_is_in_the_statistics(tmp_path: Path, postgres_server: Server, postgres_url: str) -> None:
    """The planner's samples hold no name, subject or key, which no erasure would find."""
    name = postgres_url.split("/")[3].partition("?")[0]
    with closing(PostgresIdentities(postgres_url, tmp_path)) as identities:
        for n in range(30):
            identities.subject("acme", f"user {n}")
    postgres_server.sql("ANALYZE fitrouter_identities.subjects", name)
    sampled = "SELECT attname FROM pg_stats WHERE schemaname = 'fitrouter_identities' AND tablename = 'subjects'"
    assert {str(row[0]) for row in postgres_server.sql(sampled, name)} <= {"n", "alias"}


def test_roles_cannot_read_each_other(tmp_path: Path, postgres_server: Server) -> None:
    """The role of the journal cannot tell who the users are; that of the identities reads no event."""
    name = postgres_server.database()
    for role, schema in (("logs", "fitrouter"), ("knows", "fitrouter_identities")):
        postgres_server.sql(f"DROP ROLE IF EXISTS {role}")
        postgres_server.sql(f"CREATE ROLE {role} LOGIN")
        postgres_server.sql(f"CREATE SCHEMA {schema} AUTHORIZATION {role}", name)
    logs, knows = (postgres_server.url(name, role) for role in ("logs", "knows"))
    given = settings(logs, tmp_path)
    config = parse_config(given | {"identities": knows})
    assert config.identities is None, "no repr shows a password"
    with closing(open_journal(config)) as journal, closing(open_identities(config, journal)) as identities:
        token = identities.subject("acme", "ann")
        identities.erase("acme", "bob")
        for role, table in ((logs, "fitrouter_identities.subjects"), (knows, "fitrouter.events")):
            with psycopg.connect(role) as session, pytest.raises(psycopg.errors.InsufficientPrivilege):
                session.execute(f"SELECT * FROM {table}".encode())
        assert identities.reveal(token) == ("acme", "ann")
        with pytest.raises(ConfigError, match=r"permission denied.*docs/postgres\.md"):
            open_identities(parse_config(given), journal)


def test_a_right_that_is_revoked_costs_no_user(
    tmp_path: Path, postgres_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New users wait on this machine's disk until the role may write again."""
    monkeypatch.setattr("fitrouter.stores.identities._identities._RETRY_S", 0.05)
    name = postgres_server.database()
    postgres_server.sql("DROP ROLE IF EXISTS revoked")
    postgres_server.sql("CREATE ROLE revoked LOGIN")
    postgres_server.sql("CREATE SCHEMA fitrouter_identities AUTHORIZATION revoked", name)
    with closing(PostgresIdentities(postgres_server.url(name, "revoked"), tmp_path)) as identities:
        postgres_server.sql("ALTER TABLE fitrouter_identities.subjects OWNER TO admin", name)
        token = identities.mint("acme", "ann")
        wait_for(lambda: kept(tmp_path))
        assert identities.known("acme", "ann") == identities.mint("acme", "ann") == token
        postgres_server.sql("ALTER TABLE fitrouter_identities.subjects OWNER TO revoked", name)
        wait_for(lambda: identities.reveal(token))
        wait_for(lambda: not kept(tmp_path))


def test_another_format_is_refused(tmp_path: Path, postgres_server: Server, postgres_url: str) -> None:
    """A store of a later version is left alone."""
    PostgresIdentities(postgres_url, tmp_path).close()
    name = postgres_url.split("/")[3].partition("?")[0]
    postgres_server.sql("UPDATE fitrouter_identities.head SET version = 99", name)
    with pytest.raises(StoreError, match=r"format 99.*Upgrade"):
        PostgresIdentities(postgres_url, tmp_path)


# --- moving ---


def configured(url: str, folder: Path, **more: str) -> Config:
    return parse_config(settings(url, folder) | more)


def opened(config: Config) -> Identities:
    with closing(open_journal(config)) as journal:
        return open_identities(config, journal)


def test_a_deployment_with_a_file_keeps_it_until_it_is_moved(tmp_path: Path, postgres_url: str) -> None:
    """Users in the folder are used from there, with a word how to move them; once moved, the file is only told of."""
    folder, said = tmp_path / "data", CliRunner()
    with closing(SqliteIdentities(folder / "identities.db")) as old:
        token = old.subject("acme", "ann")
        salt = old.salt
    with closing(opened(configured(postgres_url, folder))) as found:
        assert found.subject("acme", "ann") == token
        assert "fitrouter users copy" in found.incident
    with pytest.raises(ConfigError, match="knows none: `fitrouter users copy"):
        opened(configured(postgres_url, folder, identities=postgres_url))
    done = said.invoke(app, ["users", "copy", str(folder / "identities.db"), postgres_url])
    assert done.exit_code == 0, done.output
    assert "1 subjects, 1 of them copied now" in done.output
    with closing(opened(configured(postgres_url, folder))) as found:
        assert isinstance(found, PostgresIdentities)
        assert (found.subject("acme", "ann"), found.salt) == (token, salt)
        assert "no erasure reaches it" in found.incident
    for path in folder.glob("identities.db*"):
        path.unlink()
    with closing(opened(configured(postgres_url, folder))) as found:
        assert found.incident == ""


def test_a_log_whose_users_are_elsewhere_is_told(tmp_path: Path, postgres_url: str) -> None:
    """No second pseudonym for everybody: a folder without identities does not begin anew beside a log of users."""

    async def decide(config: Config) -> None:
        config.providers["s"].options.pop("speed")
        async with Router.from_config(config) as router:
            words = ({"role": "user", "content": "Hello"},)
            await router.complete(Request(messages=words, identity=Identity(user="ann")))
            await router.settled()

    folder = tmp_path / "one"
    SqliteIdentities(folder / "identities.db").close()
    with closing(SqliteIdentities(folder / "identities.db")) as old:
        old.subject("default", "ann")
    asyncio.run(decide(configured(postgres_url, folder)))
    with pytest.raises(ConfigError, match=r"identities\.db.*users copy"):
        opened(configured(postgres_url, tmp_path / "two"))
    with closing(opened(configured(postgres_url, tmp_path / "two", identities=postgres_url))) as found:
        assert found.people(-1) == [], "it was said that they are lost"


@pytest.mark.parametrize("given", ["fitrouter-data", "mysql://x/y"])
def test_settings_of_identities(tmp_path: Path, given: str) -> None:
    """The setting takes the URL of a database, beside a journal in one."""
    with pytest.raises(ConfigError, match="identities: give the URL"):
        configured("postgresql://db/fit", tmp_path, identities=given)
    with pytest.raises(ConfigError, match="identities: only if"):
        parse_config({**settings("x", tmp_path), "data": "folder", "folder": None, "identities": "postgresql://db/fit"})


def test_copy_there_and_back_is_equal(tmp_path: Path, postgres_url: str) -> None:
    """`journal copy` takes the identities along; aliases, keys, order and salt come back as they were."""
    run = CliRunner()
    with closing(
        open_journal(parse_config(settings(postgres_url, tmp_path) | {"data": str(tmp_path / "a"), "folder": None}))
    ):
        pass
    with (
        closing(SqliteIdentities(tmp_path / "a" / "identities.db")) as one,
        closing(SqliteIdentities(tmp_path / "a" / "identities.db")) as two,
    ):
        two._write = lambda _: None  # type: ignore[method-assign]
        alias = two.mint("acme", "user 3")
        for n in range(20):
            one.subject("acme", f"user {n}")
        one.subject("acme", None)
        two.flush()
        before, salt, people = [*one.rows.every()], one.salt, one.people(-1)
    for source, target in (
        (str(tmp_path / "a/journal.db"), postgres_url),
        (postgres_url, str(tmp_path / "b/journal.db")),
    ):
        done = run.invoke(app, ["journal", "copy", source, target])
        assert done.exit_code == 0, (done.output, done.exception)
        assert "22 subjects, 22 of them copied now" in done.output
    with closing(SqliteIdentities(tmp_path / "b" / "identities.db")) as back:
        assert [*back.rows.every()] == before
        assert (back.salt, back.people(-1)) == (salt, people)
        assert back.subjects("acme", "user 3")[1] == alias
    again = run.invoke(app, ["users", "copy", str(tmp_path / "a/identities.db"), postgres_url])
    assert "22 subjects, 0 of them copied now" in again.output


def test_users_of_two_files_are_merged(tmp_path: Path, postgres_url: str) -> None:
    """Who is known to both keeps the subject that was there; the other stands for the same person, with its own key."""
    tokens, blob = dict[str, str](), b""
    for name in "ab":
        with closing(SqliteIdentities(tmp_path / name / "identities.db")) as each:
            tokens[name] = each.subject("acme", "ann")
            blob = each.encrypt(tokens[name], name)
            each.subject("acme", f"only in {name}")
        assert (
            CliRunner().invoke(app, ["users", "copy", str(tmp_path / name / "identities.db"), postgres_url]).exit_code
            == 0
        )
    with closing(PostgresIdentities(postgres_url, tmp_path)) as found:
        assert found.subjects("acme", "ann") == (tokens["a"], tokens["b"])
        assert found.decrypt(blob) == "b"
        assert len(found.people(-1)) == 3
        assert set(found.erase("acme", "ann")) == {*tokens.values()}


def test_gateways_may_start_at_once(tmp_path: Path, postgres_url: str) -> None:
    """Of several that find no tables one makes them, and all have its secret."""
    with ExitStack() as stack, ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: PostgresIdentities(postgres_url, tmp_path / str(n)), range(4)))
        for each in found:
            stack.enter_context(closing(each))
        assert len({each.salt for each in found}) == 1
