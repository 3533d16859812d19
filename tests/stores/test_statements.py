"""SQL: no input becomes a part of a statement, whatever it holds and wherever it goes."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.kits.gateway import wait_for

from fitrouter.config import parse_config
from fitrouter.router import Router
from fitrouter.stores.cold_feed import ColdFeed
from fitrouter.stores.journal import SqliteJournal
from fitrouter.types import FeedbackKind, Identity, Request
from fitrouter_dashboards.console import Reads, decisions, overview
from fitrouter_dashboards.console.decisions import FILTERS, role_names

HOSTILE = (
    "'; DROP TABLE events; --",
    '"; DELETE FROM decisions; --',
    "') OR 1=1 --",
    "read_csv('/etc/passwd')",
    "%_[a-z]*\\",
    "$1 ?1 :name @x {table}",
)


def settings(folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "data": str(folder),
        "scorer": {"encoder": "none"},
        "content": "plain",
        "providers": {"s": {"kind": "simulated", "options": {"m'; DROP TABLE users; --": {"latency_s": 0.0}}}},
        "models": [{"name": "m'; DROP TABLE users; --", "provider": "s"}],
        **more,
    }


def counts(folder: Path) -> Mapping[str, list[str]]:
    """The tables of every SQLite file of a folder."""
    found = {}
    for file in sorted(folder.glob("*.db")):
        with closing(sqlite3.connect(file)) as connection:
            found[file.name] = sorted(name for (name,) in connection.execute("SELECT name FROM sqlite_master"))
    return found


def test_hostile_names_are_values_everywhere(tmp_path: Path) -> None:
    """As user, role, task, session and tenant, in the folder's name, in lists, filters, replay, moves and erasure."""
    folder = tmp_path / "o'brien\"; DROP TABLE decisions; --"
    people = [Identity(user=text, role=text, task=text, session=text) for text in HOSTILE]

    async def live() -> None:
        now = [1.0e9]
        router = Router.from_config(
            parse_config(settings(folder, cold={"place": str(folder / "cold"), "every_s": 3600.0}))
        )
        router.clock = lambda: now[0]
        async with router:
            for number, who in enumerate(people):
                request = Request(messages=({"role": "user", "content": HOSTILE[number]},), identity=who)
                reply = await router.complete(request)
                await router.feedback(reply.decision.id, FeedbackKind.THUMB, 1.0, identity=who)
                assert [one.user for one in router.lists.answers(9, user=who.user)] == [who.user]
                assert [one.user for one in router.lists.feedback(9, user=who.user)] == [who.user]
                assert router.lists.answers(9, tenant=HOSTILE[number]) == []
            assert {one.user for one in router.lists.users(99)} == set(HOSTILE)
            warehouse = router.warehouse
            assert warehouse is not None
            await asyncio.to_thread(
                wait_for, lambda: warehouse.query("SELECT count(*) FROM feedback", [])[0][0] == len(HOSTILE)
            )
            reads = Reads(warehouse)
            try:
                assert set(role_names(reads, "default")) == set(HOSTILE)
                for text in HOSTILE:
                    for name in FILTERS:
                        page = decisions(reads, "default", {name: text}, None)["decisions"]
                        assert len(page) == {"role": 1, "rated": len(HOSTILE)}.get(name, 0), (name, text)
                    assert decisions(reads, text, {}, None)["decisions"] == []
                assert overview(reads, "default", "all", router.clock())["totals"]["requests"] == len(HOSTILE)
            finally:
                reads.close()
            before = counts(folder)
            assert (await router.erase("default", HOSTILE[0])).subjects == 1
            assert counts(folder) == before
            assert {one.user for one in router.lists.users(99)} == set(HOSTILE[1:])

    asyncio.run(live())
    journal = SqliteJournal(folder / "journal.db")
    try:
        kept = [row for row in journal.tail(0, 1000) if getattr(row.event, "identity", None)]
        assert len({row.event.identity.role for row in kept}) == len(HOSTILE) - 1  # type: ignore[union-attr]
        feed = ColdFeed(journal, str(folder / "cold"), folder, every_s=0.0, days=1.0, clock=lambda: 4.0e9)
        while feed.step():
            pass
        with sqlite3.connect(folder / "journal.db") as connection:
            assert connection.execute("SELECT 1 FROM events WHERE length(payload) = 0").fetchone()
        assert len(journal.tail(0, 1000)) > 0
    finally:
        journal.close()
