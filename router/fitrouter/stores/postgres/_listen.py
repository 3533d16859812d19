"""LISTEN: a thread that is notified when other processes commit."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg
from psycopg import sql

from fitrouter.stores.postgres._connect import Database, Session
from fitrouter.stores.postgres._writes import CHANNEL

_LOOK_S = 0.5
"""Seconds between looks at whether to stop."""
_AGAIN_S = 1.0
"""Pause before it connects again."""


class Listener:
    """Thread that calls functions after notifications; it misses some while disconnected, so poll as well.

    Args:
        database: the address.
        channel: of the notifications.
        look: called with each new connection, after each notification, and twice a second; it may raise psycopg's
            errors, after which there is a new connection.
        lost: called when the database cannot be reached.
    """

    def __init__(
        self,
        database: Database,
        channel: str = CHANNEL,
        look: Callable[[Session], object] = lambda _: None,
        lost: Callable[[psycopg.Error], object] = lambda _: None,
    ) -> None:
        self._database, self._channel, self._look, self._lost = database, channel, look, lost
        self._calls: list[Callable[[], object]] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, call: Callable[[], object]) -> None:
        """Register a function to call after every notification, in the listener's thread."""
        self._calls.append(call)
        self.start()

    def start(self) -> None:
        """Start the thread, which connects."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="fitrouter-listen", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with self._database.connect() as session:
                    session.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
                    while not self._stop.is_set():
                        self._look(session)
                        for _ in session.notifies(timeout=_LOOK_S, stop_after=1):
                            for call in self._calls:
                                call()
            except psycopg.Error as error:
                self._lost(error)
            self._stop.wait(_AGAIN_S)
