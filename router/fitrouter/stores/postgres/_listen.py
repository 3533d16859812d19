"""LISTEN: a thread that is notified of the commits of all gateways."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import psycopg

from fitrouter.stores.postgres._connect import Database
from fitrouter.stores.postgres._writes import CHANNEL

_LOOK_S = 0.5
"""Seconds between looks at whether to stop."""
_AGAIN_S = 1.0
"""Pause before it connects again."""


class Listener:
    """Calls functions after commits that append. It misses some while it has no connection: also poll."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._calls: list[Callable[[], object]] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, call: Callable[[], object]) -> None:
        """Call a function after every commit, in the listener's thread."""
        self._calls.append(call)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="fitrouter-listen", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            with suppress(psycopg.Error), self._database.connect() as session:
                session.execute(f"LISTEN {CHANNEL}")
                while not self._stop.is_set():
                    for _ in session.notifies(timeout=_LOOK_S, stop_after=1):
                        for call in self._calls:
                            call()
            self._stop.wait(_AGAIN_S)
