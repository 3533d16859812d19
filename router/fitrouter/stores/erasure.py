"""Erasure of a user from all stores of a data folder, which a crash in the middle only delays.

The first step is one transaction of the journal (`Journal.erase`): the events are gone, running gateways rebuild what
they learnt, and the erasure is noted as unfinished. What follows can be done again and again, by this process or by the
next one: identities, open quizzes, the warehouse, the bytes that files still hold in free pages, quarantined files, and
the cold store, which may be on another machine that is away.
"""

from __future__ import annotations

import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Collection
from contextlib import closing
from pathlib import Path

import msgspec

from fitrouter.errors import StoreError
from fitrouter.stores import contents
from fitrouter.stores._files import connect
from fitrouter.stores.audit_log import Act, AuditLog
from fitrouter.stores.cold import SCRATCH
from fitrouter.stores.cold_feed import erase_cold
from fitrouter.stores.identities import Identities
from fitrouter.stores.journal import Journal, digest_of
from fitrouter.stores.keys import FILE as KEYS
from fitrouter.stores.keys import forget_user
from fitrouter.stores.warehouse import WarehouseFeed

WAREHOUSE = "fitrouter.duckdb"
PATIENCE_S = 30.0
"""How long `finish` waits for other processes."""
POLL_S = 0.25
"""Seconds between looks at the warehouse, which nobody can write meanwhile."""
_NAMED = (("quizzes.db", "quizzes"), ("links.db", "links"), (contents.FILE, contents.TABLE))
"""Other files with a table whose column `user` is a subject."""
_ASIDE = ("*.corrupt-*", f"{WAREHOUSE}.new*", "*.copy.new", "*.salvaging*")
"""Damaged files that were put aside, and what an interrupted process left."""


class Erased(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an erasure."""

    subjects: int
    """Tokens that led to the user; 0 for nobody known."""
    events: int
    """Deleted events."""
    unfinished: str = ""
    """Why something is left in a file; empty for nothing. It is tried again by gateways, and at every start."""


class Eraser:
    """Erases users from all stores. Thread safe; any number of processes may do so. All methods block on the disk.

    Args:
        journal: the log.
        identities: lead from users to subjects.
        feed: of the warehouse; None without DuckDB.
        folder: of all files; None for stores in memory.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        journal: Journal,
        identities: Identities,
        feed: WarehouseFeed | None = None,
        folder: Path | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._journal, self._identities, self._feed = journal, identities, feed
        self._folder, self._clock = folder, clock
        self._lease = journal.lease("erasure")
        self._mutex = threading.Lock()
        self._here: set[str] = set()
        """Digests of which nothing is left in this folder, but perhaps in a cold store elsewhere."""

    def erase(self, tenant: str, user: str, patience_s: float = PATIENCE_S, by: str = "") -> Erased:
        """Erase a user everywhere. Calling again is allowed.

        Args:
            tenant: of the user.
            user: as requests name it.
            patience_s: how long to wait for other processes; what is not finished then is tried again later.
            by: who wants it, for the audit log.

        Raises:
            ConfigError: the file of keys cannot be changed; nothing is erased.
            StoreError: the journal, the identities or the audit log cannot be written; if the journal could, the rest
                follows later.
        """
        known = self._identities.existing(tenant, user)
        first = list(self._identities.subjects(tenant, user))
        if known and known not in first:
            first.append(known)
        if first and self._folder is not None:
            about = {"tenant": tenant, "user": ", ".join(map(digest_of, first))}
            AuditLog(self._folder).note(Act(ts=self._clock(), act="user erase", by=by, about=about))
        if self._folder is not None:
            forget_user(self._folder / KEYS, tenant, user)
        self._here.clear()
        events = self._journal.erase(first, tenant, self._clock()) if first else 0
        # Those that were written meanwhile, too.
        more = [subject for subject in self._identities.erase(tenant, user) if subject not in first]
        events += self._journal.erase(more, tenant, self._clock()) if more else 0
        unfinished = ""
        try:
            self.finish(patience_s)
        except StoreError as error:
            unfinished = str(error)
        return Erased(subjects=len(first) + len(more), events=events, unfinished=unfinished)

    def orphan(self, subject: str) -> None:
        """Erase a subject that was never written to the identities: nobody could request its erasure later."""
        self._journal.erase([subject], "", self._clock())

    def step(self) -> int:
        """Finish the erasures that a process left unfinished; return 0, so that a service pauses."""
        if self._journal.unfinished():
            self.finish()
        return 0

    def finish(self, patience_s: float = PATIENCE_S) -> None:
        """Complete all unfinished erasures of the journal.

        Raises:
            StoreError: something is left, and why.
        """
        deadline = time.monotonic() + patience_s
        while pending := self._journal.unfinished():
            with self._mutex:
                if self._lease.held():
                    try:
                        self._complete(pending, deadline)
                    finally:
                        self._lease.release()
                    continue
            if time.monotonic() > deadline:
                raise StoreError("another process is still completing the erasure")
            time.sleep(0.05)

    def _complete(self, pending: dict[str, int], deadline: float) -> None:
        if not self._here.issuperset(pending):
            self._complete_here(pending, deadline)
            self._here.update(pending)
        if self._folder is not None:
            erase_cold(self._journal, self._folder, pending, deadline)
            for path in self._folder.glob(f"{SCRATCH}*"):
                shutil.rmtree(path, ignore_errors=True)
        self._journal.finish(pending)
        self._here.difference_update(pending)

    def _complete_here(self, pending: dict[str, int], deadline: float) -> None:
        for tenant, user in self._identities.erased(pending):
            self._identities.erase(tenant, user)
        self._identities.compact()
        if self._folder is not None:
            self._named(self._folder, pending)
            self._warehouse(self._folder, max(pending.values()), deadline)
        self._journal.compact(deadline - time.monotonic())
        for pattern in _ASIDE if self._folder is not None else ():
            for path in self._folder.glob(pattern):  # type: ignore[union-attr]
                path.unlink(missing_ok=True)

    def _named(self, folder: Path, digests: Collection[str]) -> None:
        """Delete rows by subject in the database files of other parts."""
        for name, table in _NAMED:
            if (folder / name).exists():
                try:
                    with closing(connect(folder / name)) as connection:
                        connection.create_function("digest_of", 1, digest_of, deterministic=True)
                        marks = ", ".join("?" * len(digests))
                        connection.execute(f"DELETE FROM {table} WHERE digest_of(user) IN ({marks})", (*digests,))  # noqa: S608
                        connection.execute("VACUUM")
                        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                except sqlite3.Error as error:
                    raise StoreError(f"{str(folder / name)!r} could not be rewritten: {error}") from error

    def _warehouse(self, folder: Path, seq: int, deadline: float) -> None:
        """Wait until the warehouse has copied the erasure, or copy it, if this process may."""
        file = folder / WAREHOUSE
        if self._feed is None:  # it is rebuilt from the journal
            for path in (file, file.with_name(f"{file.name}.wal")):
                path.unlink(missing_ok=True)
            return
        fed = self._feed.holds
        try:
            while file.exists():
                why = ""
                try:
                    self._feed.step()
                    if self._feed.warehouse.position() >= seq:
                        return
                except StoreError as error:
                    why = f": {error}"
                if time.monotonic() > deadline:
                    raise StoreError(f"the warehouse {str(file)!r} still holds rows of the user{why}")
                time.sleep(POLL_S)
        finally:
            if not fed:  # what took the lease only for this need not step again
                self._feed.release()
