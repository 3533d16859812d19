"""Journal of a gateway whose disk cannot be written at the start: it reads what is there and refuses every entry.

`reopen` makes it the journal itself, once there is room.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import threading
from collections import deque
from collections.abc import Collection
from concurrent.futures import Future
from pathlib import Path

from fitrouter.errors import StoreError
from fitrouter.stores._files import OpenFiles, connect, connect_read_only, copied_aside
from fitrouter.stores.cold import Payloads
from fitrouter.stores.journal._base import Entry, Snapshot
from fitrouter.stores.journal._claims import Claim, Grant
from fitrouter.stores.journal._schema import create
from fitrouter.stores.journal._sqlite import SqliteJournal


class _Unwritable(OpenFiles):
    """Stands for files that cannot be opened, so that no lease is held."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def fault(self) -> str:
        """Reason why."""
        return self._reason


class UnloggedJournal(SqliteJournal):
    """Journal that answers reads, if its file can be read, and logs nothing until it is reopened.

    A log beside the file must fit into a copy of it. Requests are answered with what was learnt.

    Args:
        path: the file; it may be missing.
        reason: why it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        self.path, self._reason = Path(path).absolute(), reason
        self.quarantined, self.incident = None, ""
        self._damaged, self._unreadable = set(), ""
        self._payloads = Payloads(self.path.parent)
        self._mutex, self._idle = threading.Lock(), deque()
        self._closed, self._pid = False, os.getpid()
        self._files, self._leases = _Unwritable(reason), []
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        self._readable, self._hidden = False, ""
        try:
            log = self.path.with_name(f"{self.path.name}-wal")
            self._readable = self.path.exists()
            if log.exists() and log.stat().st_size:  # without it, the file may be inconsistent
                self._readable = False
                self._copy = copied_aside(self.path)
        except OSError as error:
            self._hidden = f"the journal {str(self.path)!r} cannot be read: {error.strerror}"

    def fault(self) -> str:
        """Reason found at the start why nothing is logged; it holds until `reopen`."""
        if not self._reason:
            return super().fault()
        return f"{self._reason}: nothing is logged or learnt. Make room or the folder writable"

    def reopen(self) -> bool:
        """Become the journal itself, with the leases that were given out, if its disk can be written. Blocks on it."""
        try:
            opened = SqliteJournal(self.path)
        except StoreError:
            return False
        opened._leases, before, copy = self._leases, self._idle, self._copy
        # One assignment, since other threads read: from here on, both objects are the same journal.
        self.__dict__ = {**opened.__dict__, "_reason": "", "_copy": None}
        for connection in before:
            connection.close()
        if copy is not None:
            copy.cleanup()
        return True

    def _refuse(self) -> None:
        if self._reason:
            raise StoreError(self.fault())

    def append(self, *entries: Entry) -> Future[int]:
        """Refuse the entries."""
        self._refuse()
        return super().append(*entries)

    def save(self, snapshot: Snapshot) -> None:
        """Refuse the snapshot."""
        self._refuse()
        super().save(snapshot)

    def erase(self, subjects: Collection[str], tenant: str, ts: float) -> int:
        """Refuse the erasure."""
        self._refuse()
        return super().erase(subjects, tenant, ts)

    def claim(self, claim: Claim) -> Grant:
        """Refuse to share money."""
        self._refuse()
        return super().claim(claim)

    def unfinished(self) -> dict[str, int]:
        """Return nothing, as no erasure could be finished."""
        return {} if self._reason else super().unfinished()

    def close(self) -> None:
        """Close the connections."""
        if not self._reason:
            super().close()
            return
        with self._mutex:
            self._closed = True
            while self._idle:
                self._idle.pop().close()
        if self._copy is not None:
            self._copy.cleanup()

    def _connect(self) -> sqlite3.Connection:
        if not self._reason:
            return super()._connect()
        if self._hidden:
            raise StoreError(self._hidden)
        if self._copy is not None:
            return connect(Path(self._copy.name) / self.path.name)
        if self._readable:
            return connect_read_only(self.path, immutable=True)
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        create(connection, self.path)
        return connection
