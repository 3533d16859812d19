"""Identity stores for laws that hold for all of them: each place can be opened several times, as by other processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tests.kits.gateway import wait_for
from tests.kits.postgres import Server

from fitrouter.stores.identities import Identities, IdentityRows, SqliteRows


class Store(Protocol):
    """A place of identities."""

    def rows(self) -> IdentityRows:
        """Open it, as a process on a machine of its own would."""
        ...

    def data(self) -> bytes:
        """All that the store has on the disk."""
        ...


class SqliteStore:
    """A file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def rows(self) -> IdentityRows:
        """Open it."""
        return SqliteRows(self.folder / "identities.db")

    def data(self) -> bytes:
        """All files of its folder."""
        return b"".join(file.read_bytes() for file in self.folder.iterdir())


class PostgresStore:
    """A database, opened from folders of their own."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder, self.server, self.name, self.opened = folder, server, server.database(), 0

    def rows(self) -> IdentityRows:
        """Open it."""
        from fitrouter.stores.postgres import PostgresRows

        self.opened += 1
        return PostgresRows(self.server.url(self.name), self.folder / f"host{self.opened}")

    def data(self) -> bytes:
        """All files of the database's tables, and of the folders."""
        self.server.sql("CHECKPOINT")
        ((oid,),) = self.server.sql(f"SELECT oid FROM pg_database WHERE datname = '{self.name}'")
        tables = (self.server.folder / "data" / "base" / str(oid)).iterdir()
        return b"".join(file.read_bytes() for file in (*tables, *self.folder.glob("host*/*")) if file.is_file())


def heard(*stores: Identities) -> None:
    """Wait until all of them have heard of all erasures; processes with a file see them at once."""
    if not isinstance(stores[0].rows, SqliteRows):
        wait_for(lambda: len({each.rows.seen() for each in stores} | {stores[0].rows.erasures()}) == 1)


def rows(identities: Identities) -> dict[str, str]:
    """Subject → user, of subjects and of aliases."""
    return {each.subject: json.loads(each.who)[1] for each in identities.rows.every()}


def subjects(identities: Identities) -> dict[str, str]:
    """User → subject, without aliases."""
    return {json.loads(each.who)[1]: each.subject for each in identities.rows.every() if not each.alias}


def interposed(identities: Identities, call: Callable[[], object]) -> Callable[[], None]:
    """Call a function between all statements of a store, or between its transactions; returns what ends that."""
    rows = identities.rows
    if isinstance(rows, SqliteRows):
        connection = rows._connection
        connection.set_trace_callback(lambda _: call())
        return lambda: connection.set_trace_callback(None)
    use, within = rows._use, [False]  # type: ignore[attr-defined]

    def calling(do: object) -> object:
        if within[0]:
            return use(do)
        within[0] = True
        try:
            call()
        finally:
            within[0] = False
        return use(do)

    rows._use = calling  # type: ignore[attr-defined]
    return lambda: setattr(rows, "_use", use)
