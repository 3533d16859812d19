"""Rows of an identity store: the protocol that SQLite and PostgreSQL implement."""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from fitrouter.errors import StoreError


@dataclass(slots=True, eq=False)
class Offer:
    """A new subject and its key that are not written yet."""

    who: str
    erasures: int
    """The store's erasure count when the subject was made."""
    subject: str = field(default_factory=lambda: secrets.token_hex(16))
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    minted: bool = False
    """Whether the subject was returned by `mint`: then it must be written or given up, not silently replaced."""
    kept: bool = False
    """Whether it is on this machine's disk, to be written by a later process if this one dies."""


class Person(NamedTuple):
    """A stored row, in the form in which it is copied to another store."""

    subject: str
    who: str
    """Key of the user (`who_is`)."""
    key: bytes
    alias: bool
    """Whether the user has another subject, for which this one stands too."""


class Gone(NamedTuple):
    """Result of an erasure: the subjects that it deleted."""

    subjects: tuple[str, ...]
    before: int
    """The erasure count before it."""
    after: int
    alone: bool
    """Whether no other erasure was counted meanwhile."""


class IdentityRows(Protocol):
    """The rows of an identity store. Thread safe; all methods may block and raise `StoreError`, except where noted."""

    name: str
    """Of the store, for messages."""
    folder: Path
    """On this machine."""
    salt: bytes
    """A secret of the installation."""

    def incident(self) -> str:
        """Describe what is or was wrong, and what becomes of it; empty for nothing. Does not block."""
        ...

    def fault(self) -> str:
        """Reason why subjects cannot be read or written now; empty if they can. Does not block."""
        ...

    def seen(self) -> int | None:
        """The erasure count as far as it is known without waiting; None if it cannot be known. Does not raise."""
        ...

    def glance(self, who: str) -> str | None:
        """The subject of a user, if it can be read without waiting. Does not raise."""
        ...

    def erasures(self) -> int:
        """The number of erasures so far."""
        ...

    def find(self, people: Sequence[str]) -> dict[str, str]:
        """Return user → subject for those of the users that have one."""
        ...

    def recent(self) -> dict[str, str]:
        """Return user → subject for users met last, to be cached; empty where `glance` finds them."""
        ...

    def make(self, offers: Sequence[Offer], *, aliases: bool = False) -> None:
        """Insert the subjects of users that have none yet, or insert all of them as aliases.

        None whose user may have been erased since the subject was made is inserted.
        """
        ...

    def unknown(self, subjects: Sequence[str]) -> list[str]:
        """Those subjects that the store does not have."""
        ...

    def owner(self, subject: str) -> str | None:
        """The user of a subject or alias."""
        ...

    def key(self, subject: str) -> bytes | None:
        """The key of a subject or alias."""
        ...

    def subjects(self, who: str) -> tuple[str, ...]:
        """The subjects of a user: the canonical one first, then aliases, the oldest first."""
        ...

    def erased(self, digests: Collection[str]) -> set[str]:
        """The users of all subjects and aliases whose `digest_of` is given."""
        ...

    def people(self, limit: int, tenant: str | None) -> list[str]:
        """Return the users that were met last, the newest first; all of them if `limit` is -1."""
        ...

    def every(self) -> Iterator[Person]:
        """Iterate over the stored rows, oldest first."""
        ...

    def merge(self, people: Sequence[Person], salt: bytes | None) -> None:
        """Insert rows of another store; users keep subjects they have here. A salt replaces that of an empty store."""
        ...

    def erase(self, who: str) -> Gone:
        """Count an erasure, and delete all subjects of a user."""
        ...

    def compact(self) -> None:
        """Rewrite the store, so that nothing is left of deleted rows."""
        ...

    def spool(self, offers: Sequence[Offer], error: StoreError) -> bool:
        """Let minted subjects wait after a failed write, durably if that takes long; False if it will fail again."""
        ...

    def unspool(self, subjects: Sequence[str]) -> None:
        """Remove what `spool` stored. Does not raise."""
        ...

    def abandoned(self) -> list[Offer]:
        """What `spool` stored in processes that are dead."""
        ...

    def close(self) -> None:
        """Close the rows. Does not raise."""
        ...


def who_is(tenant: str, user: str | None) -> str:
    """Return the key of a user: ASCII JSON of (tenant, user), unique for each pair."""
    return json.dumps([tenant, user])
