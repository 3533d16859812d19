"""What the identity matrices share: who asks, desks near and far, what their journals say, and what is no name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.kits.agents import Agent, agent_router
from tests.kits.gateway import config, serving

from fitrouter.context.features import session_key
from fitrouter.router import Router
from fitrouter.stores.journal import MemoryJournal
from fitrouter.types import Decision, Identity, Request
from fitrouter_integrations.client import connect

ANN = Identity(user="ann", role="nurse", task="triage", session="s1")
BOB = Identity(user="bob", role="cook", task="soup", session="s2")
FIELDS = ("user", "role", "task", "session")

REFUSED: dict[str, Any] = {
    "a boolean": True,
    "a fraction": 0.5,
    "a mapping": {"id": "ann"},
    "a list": ["ann"],
    "600 characters": "x" * 600,
    "a line break": "ann\nbob",
    "a zero byte": "ann\0",
    "an escape": "ann\x1b[31m",
    "half a character": "ann\ud800",
}
"""Values that are no names, in every channel."""
TAKEN: dict[str, tuple[Any, str]] = {
    "text": ("ann", "ann"),
    "a number": (7, "7"),
    "other scripts": ("Zoë ☃ 王安", "Zoë ☃ 王安"),
    "512 characters": ("x" * 512, "x" * 512),
}
"""Values that are names, and how they read."""
NOTHING: dict[str, Any] = {"None": None, "empty text": ""}
"""Values that say nothing: the next channel counts."""


def fields(who: Identity, *names: str) -> dict[str, str]:
    """An identity as `Identity` calls it: keywords, and what constructors take."""
    return {name: getattr(who, name) for name in names or FIELDS}


def ids(who: Identity) -> dict[str, str]:
    """An identity as applications call it."""
    said = fields(who)
    return {"user_id": said["user"], "role": said["role"], "task": said["task"], "session_id": said["session"]}


class Desk(NamedTuple):
    """A router, how an adapter reaches it, and where its journal was when somebody last looked."""

    router: Router
    target: Any
    far: bool
    looked: list[int]

    def seen(self) -> list[Identity]:
        """Who asked since the last look, as the journal says; users by the names that they were called."""
        assert isinstance(self.router._journal, MemoryJournal)
        rows = self.router._journal.tail(self.looked[0], 10_000)
        self.looked[0] = rows[-1].seq if rows else self.looked[0]
        return [row.event.identity for row in rows if isinstance(row.event, Decision)]

    def expected(self, who: Identity) -> Identity:
        """What the journal is to say of somebody: a token in the user's stead, and the session's hash."""
        user = None if who.user is None else self.router._identities.subject(who.tenant, who.user)
        key, _ = session_key(Request(messages=(), identity=who))
        return Identity(tenant=who.tenant, user=user, role=who.role, task=who.task, session=key)

    def check(self, who: Identity, *names: str, steps: int = 1) -> None:
        """That somebody asked `steps` times since the last look, in the named fields or in all."""
        found, wanted = self.seen(), self.expected(who)
        assert len(found) == steps, f"{len(found)} decisions"
        for identity in found:
            for name in names or ("tenant", *FIELDS):
                assert getattr(identity, name) == getattr(wanted, name), name

    def nobody(self) -> None:
        """That nothing was asked since the last look."""
        assert self.seen() == []


@contextmanager
def standing(folder: Path, where: str, agent: Any = None) -> Iterator[Desk]:
    """A router in this process (`near`), or behind a gateway on loopback (`far`)."""
    router = agent_router(folder, agent or Agent())
    if where == "near":
        with connect(router):
            yield Desk(router, router, False, [0])
    else:
        with serving(router, config()) as url, connect(url):
            yield Desk(router, url, True, [0])


def told(page: str) -> dict[str, list[str]]:
    """The table under "Identity" on a page of the documentation: channel → the other cells."""
    text = (Path(__file__).resolve().parents[2] / "docs" / page).read_text(encoding="utf-8")
    section = text.split("\n## Identity\n", 1)[1].split("\n## ", 1)[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    return {row[0]: row[1:] for row in rows[2:]}
