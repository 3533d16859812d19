"""Writes of a gateway that may be cut off from the database: it logs to a backlog, and hands that in later."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress

import psycopg

from fitrouter.errors import StoreError
from fitrouter.stores.journal._writer import PROBE, Ticket
from fitrouter.stores.postgres._backlog import Backlog
from fitrouter.stores.postgres._connect import Database
from fitrouter.stores.postgres._writes import PostgresWrites

_log = logging.getLogger(__name__)
_GROUP = 1024
_AGAIN_S = 1.0
"""Pause between attempts to reach the database."""


class DetachableWrites:
    """`Writes` that go to a backlog while the database cannot be written.

    From the first failure on, all entries go to the backlog, and are acknowledged once they are on this machine's disk,
    with the number 0. A thread of its own looks for the database; when it is there, the backlog is handed in from its
    start, and new entries follow behind it, so that the order of this process's events is kept. Events are known by
    their ids: one whose commit was in doubt is there once. Snapshots are refused meanwhile.

    Args:
        writes: of the database.
        database: its address.
        backlog: for this process.
        tell: called with what is wrong when it is cut off, and with an empty text when all is handed in.
    """

    def __init__(
        self, writes: PostgresWrites, database: Database, backlog: Backlog, tell: Callable[[str], None]
    ) -> None:
        self._writes, self._database, self._backlog, self._tell = writes, database, backlog, tell
        self._reachable, self._stop = threading.Event(), threading.Event()
        self._reachable.set()
        self._thread: threading.Thread | None = None
        self._reason = ""
        self.waiting = backlog.count > 0
        """Whether entries go to the backlog: it is not handed in yet."""

    @property
    def pause(self) -> float | None:
        """Seconds after which `write` must be called to look at the backlog again; None if nothing waits."""
        if not self.waiting:
            return None
        return 0.0 if self._reachable.is_set() else _AGAIN_S

    def why_unreachable(self) -> str:
        """Reason why the database is not queried now; empty if it is."""
        return "" if self._reachable.is_set() else self._reason

    def write(self, tickets: Sequence[Ticket]) -> list[int | StoreError]:
        """Write the tickets to the database in one transaction, or to the backlog."""
        if not self.waiting:
            try:
                return [*self._writes.write(tickets)]
            except StoreError as error:
                if isinstance(error.__cause__, psycopg.DataError | psycopg.IntegrityError):
                    raise  # it would fail for ever
                self._detach(error)
        results = self._keep(tickets)
        if self._reachable.is_set():
            self._hand_in()
        return results

    def drop(self) -> None:
        """Stop; entries in the backlog stay there."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._writes.drop()
        self._backlog.close()

    def _keep(self, tickets: Sequence[Ticket]) -> list[int | StoreError]:
        if records := [item for ticket in tickets for item in ticket.records]:
            try:
                self._backlog.extend(records)
            except StoreError as error:
                raise StoreError(f"{error}; nor can the database: {self._reason}") from error
        refused = StoreError(f"no snapshot is saved before the backlog is handed in: {self._reason}")
        return [0 if ticket.snapshot is None or ticket.snapshot is PROBE else refused for ticket in tickets]

    def _hand_in(self) -> None:
        """Hand in the oldest entries of the backlog."""
        try:
            if rows := self._backlog.first(_GROUP):
                self._writes.write([Ticket(rows, None, Future())])
            self._backlog.remove(rows)
        except StoreError as error:
            self._detach(error)
            return
        if not self._backlog.count:
            self.waiting = False
            _log.warning("%s has all events of the backlog", self._database.name)
            self._tell("")

    def _detach(self, error: StoreError) -> None:
        """Log to the backlog until the database can be reached again."""
        if not self.waiting:
            _log.warning("%s: events are logged in %s until it is back", error, self._backlog.folder)
        self._reason = str(error)
        self._tell(f"{error}: events are logged in {str(self._backlog.folder)!r}, and handed in when it is back")
        self.waiting = True
        self._reachable.clear()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._look, name="fitrouter-reach", daemon=True)
            self._thread.start()

    def _look(self) -> None:
        """Try to connect until it succeeds or this is stopped."""
        while not self._stop.wait(_AGAIN_S):
            with suppress(psycopg.Error):
                self._database.connect().close()
                self._reachable.set()
                return
