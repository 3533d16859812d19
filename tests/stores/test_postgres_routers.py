"""Routers whose journal is in PostgreSQL: configuration, two processes on one database, and every command's stores."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.kits.pages import ROOT, blocks
from tests.kits.postgres import Server
from typer.testing import CliRunner

from fitrouter import Router
from fitrouter.assemble import open_identities, open_journal
from fitrouter.config import load_config, parse_config
from fitrouter.errors import ConfigError
from fitrouter.stores.identities import SqliteIdentities
from fitrouter.stores.journal import Entry
from fitrouter.types import Erasure, FeedbackKind, Identity, Request
from fitrouter_integrations.cli import app

WAIT = 300.0
PAGE = ROOT / "docs" / "postgres.md"


def settings(url: str, folder: Path) -> dict[str, Any]:
    """Two simulated models, a small scorer, and a journal in a database."""
    return {
        "data": url,
        "folder": str(folder),
        "providers": {"s": {"kind": "simulated", "options": {"a": {}, "b": {}, "speed": float("inf")}}},
        "models": [{"name": name, "provider": "s"} for name in "ab"],
        "encoder": "hashing",
        "scorer": {"encoder": "hashing"},
    }


ROUTER = """
import asyncio, json, sys, time
from fitrouter import Router
from fitrouter.config import parse_config
from fitrouter.types import FeedbackKind, Identity, Request

async def main(name, config, ahead):
    async with Router.from_config(parse_config(config), clock=lambda: time.time() + ahead) as router:
        for n in range(12):
            who = Identity(user=f"{name}-{n % 3}")
            ask = Request(messages=({"role": "user", "content": f"{name} asks {n}"},), identity=who)
            answer = await router.complete(ask)
            await router.feedback(answer.decision.id, FeedbackKind.THUMB, float(n % 2), identity=who)
        print("done", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            while router._learner.seq < int(line):
                await asyncio.sleep(0.01)
            print(router._learner.seq, router._learner.digest(), flush=True)

asyncio.run(main(sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3])))
"""


@pytest.mark.parametrize("ahead", ["0", "3600"])
def test_two_processes_fold_to_equal_digests(
    tmp_path: Path, postgres_url: str, postgres_journal: Any, ahead: str
) -> None:
    """At one position two routers on a database have one digest, and so has a third that starts later; one scores.

    Also where the clock of one is an hour ahead.
    """
    config = settings(postgres_url, tmp_path)
    with ExitStack() as stack:
        command = [sys.executable, "-c", ROUTER]
        config["providers"]["s"]["options"].pop("speed")
        both = [
            stack.enter_context(
                subprocess.Popen(
                    [*command, name, json.dumps(config), skew], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            for name, skew in (("one", "0"), ("two", ahead))
        ]
        stack.callback(lambda: [process.kill() for process in both])
        for process in both:
            assert process.stdout is not None
            assert process.stdout.readline() == "done\n"
        journal = postgres_journal(postgres_url, tmp_path)
        stack.callback(journal.close)
        told = set[str]()
        while len(told) != 1 or journal.head() != int(told.copy().pop().split()[0]):
            while journal.spooled():  # the scorer of one of them is at work
                pass
            told.clear()
            for process in both:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(f"{journal.head()}\n")
                process.stdin.flush()
                told.add(process.stdout.readline())
        assert not journal.lease("scorer").held()
        scores = [row.event.decision_id for row in journal.latest(("score",), 1000)]
        assert len(scores) == len(set(scores)) == 24
        both[0].kill()
        assert both[1].stdin is not None
        both[1].stdin.close()
        assert both[1].wait(WAIT) == 0
        with Router.offline(parse_config(config)) as router:
            assert f"{router._learner.seq} {router._learner.digest()}\n" in told
        assert journal.lease("scorer").held()


def test_commands_read_the_database(tmp_path: Path, postgres_url: str) -> None:
    """Lists, doctor, refit, quarantine, erasure and policy use the database; what reads files only says how to copy."""
    file = tmp_path / "fitrouter.yaml"
    config = settings(postgres_url, Path("here"))
    config["providers"]["s"]["options"].pop("speed")
    config["server"] = {"port": 1}
    file.write_text(yaml.safe_dump(config))

    async def lived() -> str:
        async with Router.from_config(load_config(file)) as router:
            who = Identity(user="zoe")
            answer = await router.complete(Request(messages=({"role": "user", "content": "hello"},), identity=who))
            await router.feedback(answer.decision.id, FeedbackKind.THUMB, 1.0, identity=who)
            await router.settled()
            return answer.decision.id

    name = asyncio.run(lived())
    assert not (tmp_path / "here" / "journal.db").exists()
    assert (tmp_path / "here" / "fitrouter.duckdb").exists()

    def said(*command: str, code: int = 0) -> str:
        found = CliRunner().invoke(app, [*command, "--config", str(file)])
        assert found.exit_code == code, (command, found.output, found.exception)
        return found.output + str(found.exception or "")

    assert name in said("decisions")
    assert "zoe" in said("users")
    assert "postgresql://admin@" in said("config", "check")
    assert "events in PostgresJournal" in said("doctor", "--json").replace("\n", "")
    assert "requested a rebuild" in said("train", "refit")
    assert "excluded" in said("journal", "quarantine", name)
    assert "erased zoe" in said("users", "erase", "--user", "zoe", "--yes")
    assert "journal copy postgresql://" in said("journal", "check", code=1)


def test_settings_of_a_database(tmp_path: Path) -> None:
    """A URL as `data` keeps the folder apart, beside the file if it is relative; no repr has the URL."""
    config = settings("postgresql://ann:hunter2hunter2@db/fit", Path("here"))
    config["providers"]["s"]["options"].pop("speed")
    (tmp_path / "f.yaml").write_text(yaml.safe_dump(config))
    found = load_config(tmp_path / "f.yaml")
    assert found.database == config["data"]
    assert found.data == tmp_path / "here"
    assert "hunter2" not in repr(found)
    assert found.in_folder(tmp_path).database == ""
    with pytest.raises(ConfigError, match="only if 'data' is the URL"):
        parse_config(config | {"data": "folder"})
    del config["folder"]
    assert parse_config(config).data == Path("fitrouter-data")


def test_sqlite_needs_no_driver() -> None:
    """Neither the router nor a journal in a file imports psycopg."""
    code = "import sys, fitrouter.assemble, fitrouter_integrations.commands.journal; sys.exit('psycopg' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_page_as_it_stands(tmp_path: Path, postgres_server: Server) -> None:
    """The page's statements make a database in which the role of its configuration opens a journal, and no more."""
    import psycopg

    (_, sql), (_, config) = *blocks(PAGE, "sql"), *blocks(PAGE, "yaml")
    psql = [str(postgres_server.bin / "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", postgres_server.url("postgres")]
    subprocess.run(psql, input=sql, text=True, check=True)
    found = yaml.safe_load(config)
    url, whose = (
        found[name].replace("@db.example:5432/", "@/") + f"?host={postgres_server.folder}"
        for name in ("data", "identities")
    )
    given = parse_config(settings(url, tmp_path / found["folder"]) | {"identities": whose})
    with closing(open_journal(given)) as journal, closing(open_identities(given, journal)) as identities:
        token = identities.subject("acme", "ann")
        for role, table in ((url, "fitrouter_identities.subjects"), (whose, "fitrouter.events")):
            with psycopg.connect(role) as session, pytest.raises(psycopg.errors.InsufficientPrivilege):
                session.execute(f"SELECT FROM {table}".encode())
        assert journal.append(Entry(Erasure(id="e", ts=1.0, subject="ann"))).result(WAIT) == 1
    rights = """SELECT has_schema_privilege(r, 'public', 'CREATE'), has_database_privilege(r, 'fitrouter', 'CREATE'),
    has_database_privilege(r, 'fitrouter', 'TEMP') FROM unnest(ARRAY['fitrouter', 'fitrouter_identities']) AS r"""
    assert postgres_server.sql(rights, "fitrouter") == [(False,) * 3] * 2
    for _, block in blocks(PAGE, "bash"):
        for line in block.splitlines():
            if line.startswith("fitrouter journal copy "):
                words = [
                    name.replace("@db.example/", "@/") + f"?host={postgres_server.folder}"
                    if name.startswith("postgresql://")
                    else str(tmp_path / name)
                    if "/" in name
                    else name
                    for name in line.split()[1:]
                ]
                if words[2].startswith("postgresql://"):
                    done = CliRunner().invoke(app, words)
                    assert done.exit_code == 0, done
    assert (tmp_path / "copy" / "journal.db").is_file()
    with closing(SqliteIdentities(tmp_path / "copy" / "identities.db")) as back:
        assert back.reveal(token) == ("acme", "ann")
