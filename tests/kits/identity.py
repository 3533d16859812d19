"""Kit of the identity tests: identities, valid and invalid names, deployments near and far, documented channels."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
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

DOCS = Path(__file__).resolve().parents[2] / "docs"
ANN = Identity(user="ann", role="nurse", task="triage", session="s1")
BOB = Identity(user="bob", role="cook", task="soup", session="s2")
FIELDS = ("user", "role", "task", "session")

INVALID: dict[str, Any] = {
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
NAMED = {
    "a boolean": "bool was given; give text",
    "a fraction": "float was given; give text",
    "a mapping": "dict was given; give text",
    "a list": "list was given; give text",
    "600 characters": "has 600 characters",
    "a line break": "has the control character",
    "a zero byte": "has the control character",
    "an escape": "has the control character",
    "half a character": "has the control character",
}
"""What the error of each invalid value contains."""
VALID: dict[str, tuple[Any, str]] = {
    "text": ("ann", "ann"),
    "a number": (7, "7"),
    "other scripts": ("Zoë ☃ 王安", "Zoë ☃ 王安"),
    "512 characters": ("x" * 512, "x" * 512),
}
"""Values that are names, with their text."""
UNSET: dict[str, Any] = {"None": None, "empty text": ""}
"""Values that leave a field to the next channel."""


def fields(identity: Identity, *names: str) -> dict[str, str]:
    """An identity, or some fields of it, by the names of `Identity`."""
    return {name: getattr(identity, name) for name in names or FIELDS}


def ids(identity: Identity, *names: str) -> dict[str, str]:
    """An identity, or some fields of it, by the names that applications use."""
    aliases = {"user": "user_id", "session": "session_id"}
    return {aliases.get(name, name): value for name, value in fields(identity, *names).items()}


def mixtures(channels: Mapping[str, Collection[str]], turn: int = 0) -> Iterator[dict[str, str]]:
    """Channel → one field, so that no two channels of a mixture share a field and every channel is in a mixture.

    Args:
        channels: the fields that each channel can carry.
        turn: rotates the fields, so that other channels carry them.
    """
    waiting = list(channels)
    while waiting:
        free = [FIELDS[(i + turn) % len(FIELDS)] for i in range(len(FIELDS))]
        mixture: dict[str, str] = {}
        for channel in sorted(waiting, key=lambda channel: len(channels[channel])):
            if field := next((field for field in free if field in channels[channel]), None):
                mixture[channel] = field
                free.remove(field)
        waiting = [channel for channel in waiting if channel not in mixture]
        yield mixture


class Deployment(NamedTuple):
    """A router, how an adapter reaches it, and the position of its journal up to which a test has read."""

    router: Router
    target: Any
    far: bool
    position: list[int]

    def identities(self) -> list[Identity]:
        """The identities of the decisions since the last call, in the journal's order."""
        assert isinstance(self.router._journal, MemoryJournal)
        rows = self.router._journal.tail(self.position[0], 10_000)
        self.position[0] = rows[-1].seq if rows else self.position[0]
        return [row.event.identity for row in rows if isinstance(row.event, Decision)]

    def logged(self, identity: Identity) -> Identity:
        """An identity as the journal has it: a pseudonym for the user, and the session's hash."""
        user = None if identity.user is None else self.router._identities.subject(identity.tenant, identity.user)
        key, _ = session_key(Request(messages=(), identity=identity), self.router._identities.salt)
        return Identity(tenant=identity.tenant, user=user, role=identity.role, task=identity.task, session=key)

    def check(self, identity: Identity, *names: str, steps: int = 1, cell: object = "") -> None:
        """Assert that `steps` decisions since the last call have the identity, in the named fields or in all."""
        found, wanted = self.identities(), self.logged(identity)
        assert len(found) == steps, f"{cell}: {len(found)} decisions, expected {steps}"
        for one in found:
            for name in names or ("tenant", *FIELDS):
                assert getattr(one, name) == getattr(wanted, name), f"{cell}: {name}"

    def tiers(self) -> list[str]:
        """Cost tiers of the decisions since the last call."""
        rows = self.router._journal.tail(self.position[0], 10_000)
        self.position[0] = rows[-1].seq if rows else self.position[0]
        return [row.event.tier for row in rows if isinstance(row.event, Decision)]

    def check_none(self) -> None:
        """Assert that nothing was decided since the last call."""
        assert self.identities() == []


@contextmanager
def deployed(folder: Path, where: str, agent: Any = None) -> Iterator[Deployment]:
    """A router in this process (`near`), or behind a gateway on loopback (`far`)."""
    router = agent_router(folder, agent or Agent())
    if where == "near":
        with connect(router):
            yield Deployment(router, router, False, [0])
    else:
        with serving(router, config()) as url, connect(url):
            yield Deployment(router, url, True, [0])


def documented_channels(page: str) -> dict[str, list[str]]:
    """The table of identity channels of a documentation page: channel → the other cells."""
    text = (DOCS / page).read_text(encoding="utf-8")
    table = re.search(r"^\| channel \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert table is not None, f"{page} has no table of channels"
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[1].splitlines()]
    return {row[0]: row[1:] for row in rows}
