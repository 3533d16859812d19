"""Leases as advisory locks of a PostgreSQL session."""

from __future__ import annotations

import hashlib
import threading
from contextlib import suppress

import psycopg

from fitrouter.errors import StoreError
from fitrouter.stores.postgres._connect import Database, Session, in_short


class Leases:
    """The leases of one journal, held by one connection; when it breaks, the server frees them all.

    Advisory locks are re-entrant within a session, so that leases of one name exclude each other here.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._mutex = threading.Lock()
        self._session: Session | None = None
        self._holders: dict[str, SessionLease] = {}
        self._closed = False

    def held(self, lease: SessionLease) -> bool:
        """Acquire a lease, or check that this process still holds it; False also for one that is lost.

        Raises:
            StoreError: the database cannot be asked.
        """
        with self._mutex:
            if self._closed or self._holders.get(lease.name, lease) is not lease:
                return False
            try:
                if self._session is None:
                    self._session = self._database.connect()
                if lease.name in self._holders:
                    self._session.execute("SELECT 1")  # the session that has the lock lives
                    return True
                row = self._session.execute("SELECT pg_try_advisory_lock(%s)", (_key(lease.name),)).fetchone()
                if row == (True,):
                    self._holders[lease.name] = lease
                    return True
            except psycopg.Error as error:
                lost = lease.name in self._holders
                self._drop()
                if lost:
                    return False
                raise StoreError(f"the lease {lease.name!r} cannot be taken: {in_short(error)}") from error
            return False

    def release(self, lease: SessionLease) -> None:
        """Give a lease back."""
        with self._mutex:
            if self._holders.get(lease.name) is lease:
                del self._holders[lease.name]
                try:
                    if self._session is not None:
                        self._session.execute("SELECT pg_advisory_unlock(%s)", (_key(lease.name),))
                except psycopg.Error:
                    self._drop()

    def close(self) -> None:
        """Give all leases back."""
        with self._mutex:
            self._closed = True
            self._drop()

    def _drop(self) -> None:
        session, self._session = self._session, None
        self._holders.clear()
        if session is not None:
            with suppress(psycopg.Error):
                session.close()


class SessionLease:
    """A `Lease` among all gateways of a database."""

    def __init__(self, name: str, leases: Leases) -> None:
        self.name, self._leases = name, leases

    def held(self) -> bool:
        """Acquire the lease; True while this process holds it, False also if the server cannot be reached."""
        return self._leases.held(self)

    def release(self) -> None:
        """Give the lease back at once."""
        self._leases.release(self)


def _key(name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"fitrouter lease {name}".encode()).digest()[:8], "big", signed=True)
