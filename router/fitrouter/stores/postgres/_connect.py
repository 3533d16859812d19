"""Connections to PostgreSQL: address, session settings, and readable errors."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg import Connection, errors
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import ConnectionPool

from fitrouter.errors import ConfigError, StoreError, conceal

Session: TypeAlias = Connection[tuple[Any, ...]]
T = TypeVar("T")

DELAYS = (0.05, 0.2, 0.5, 1.0, 2.0)
"""Pauses before an operation that lost its connection, or a race, is repeated; then it fails."""
_PATIENCE_S = 5.0
"""For a connection."""
_GIVE_UP_S = 1.0
"""After which the pool stops to connect by itself, with ever longer pauses, until it is asked again."""
_DEFAULTS = {
    # A machine that is cut off is noticed within 5 seconds, at both ends.
    "connect_timeout": "5",
    "tcp_user_timeout": "4000",
    "keepalives_idle": "2",
    "keepalives_interval": "1",
    "keepalives_count": "3",
    # Of several hosts, the one that takes writes: after a failover, the promoted standby.
    "target_session_attrs": "read-write",
    "application_name": "fitrouter",
}
_SESSION = """SELECT set_config(name, value, false) FROM (VALUES
('client_min_messages', 'warning'), ('tcp_keepalives_idle', '2'), ('tcp_keepalives_interval', '1'),
('tcp_keepalives_count', '3'), ('tcp_user_timeout', '4000'), ('idle_in_transaction_session_timeout', '10000'),
('lock_timeout', '10000')) AS settings (name, value)
UNION ALL SELECT set_config('synchronous_commit', 'on', false)
WHERE current_setting('synchronous_commit') IN ('off', 'local')"""
"""Acknowledged means durable, whatever the database's default; a client that hangs holds no lock for ever."""


class Database:
    """The address of a PostgreSQL database. No message and no repr shows its password.

    Args:
        url: `postgresql://USER@HOST:PORT/NAME`, or several hosts, as libpq reads it; what it leaves out comes from
            libpq's environment (`PGPASSWORD`, `PGPASSFILE` …), a role's password from `PGPASSWORD_` and its name, too.

    Raises:
        ConfigError: the URL cannot be read.
    """

    def __init__(self, url: str) -> None:
        try:
            given = {key: str(value) for key, value in conninfo_to_dict(url).items() if value is not None}
        except psycopg.ProgrammingError:  # its message may quote the password
            raise ConfigError(
                "the database's URL cannot be read; write postgresql://USER@HOST:PORT/NAME, with %40 for an @ in a "
                "password, or leave the password to PGPASSWORD or ~/.pgpass"
            ) from None
        role = given.get("user", "").upper()  # two roles have two passwords, and PGPASSWORD is one
        if "password" not in given and (password := os.environ.get(f"PGPASSWORD_{role}")):
            given["password"] = password
        conceal(given.get("password", ""))
        self._settings = _DEFAULTS | given
        hosts = zip(given.get("host", "").split(","), given.get("port", "").split(","), strict=False)
        address = ",".join(f"{host}:{port}" if port else host for host, port in hosts)
        user = f"{given['user']}@" if "user" in given else ""
        self.name = f"postgresql://{user}{address}/{given.get('dbname', '')}"
        """The URL without password and parameters."""

    def __repr__(self) -> str:
        return f"Database({self.name!r})"

    def connect(self, *, autocommit: bool = True) -> Session:
        """Open a new connection that is not pooled.

        Raises:
            psycopg.Error: the server cannot be reached, or refuses.
        """
        connection = psycopg.connect(autocommit=True, **self._settings)  # type: ignore[arg-type]
        try:
            configure(connection)
            connection.autocommit = autocommit
        except BaseException:
            connection.close()
            raise
        return connection

    def pool(self, name: str, most: int) -> ConnectionPool[Session]:
        """Make a pool of connections, which is not open yet.

        Args:
            name: for its log.
            most: connections at once.
        """
        return ConnectionPool(
            kwargs=self._settings | {"autocommit": True},
            min_size=1,
            max_size=most,
            timeout=_PATIENCE_S,
            reconnect_timeout=_GIVE_UP_S,
            configure=configure,
            open=False,
            name=name,
        )

    def retried(self, use: Callable[[Session], T], what: str) -> T:
        """Call a function with a new connection, and again, with pauses, if it breaks or loses a race.

        Raises:
            StoreError: it failed.
        """

        def attempt() -> T:
            connection = self.connect()
            try:
                return use(connection)
            finally:
                connection.close()

        with self.store_errors(what):
            return retried(attempt)

    @contextmanager
    def store_errors(self, what: str) -> Iterator[None]:
        """Raise errors of PostgreSQL within the context as `ConfigError` or `StoreError`.

        Args:
            what: what could not be done, such as `the journal could not be read`.
        """
        try:
            yield
        except errors.InsufficientPrivilege as error:
            raise ConfigError(
                f"{what}: {in_short(error)} in {self.name}. See docs/postgres.md for the rights that the role needs"
            ) from error
        except psycopg.Error as error:
            raise StoreError(f"{what}: {in_short(error)} ({self.name})") from error


def configure(connection: Session) -> None:
    """Prepare a new connection, in autocommit mode."""
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    connection.execute(_SESSION)


def retried(use: Callable[[], T], failed: Callable[[], object] = lambda: None, within_s: float = math.inf) -> T:
    """Call a function, and repeat it with pauses after a lost connection or race.

    Args:
        use: the function.
        failed: called after each failure that is not the last.
        within_s: after which it is not repeated.
    """
    began = time.monotonic()
    for delay in DELAYS:
        try:
            return use()
        except errors.DiskFull:  # a new connection then fails with words that hide the cause
            raise
        except psycopg.OperationalError:
            if time.monotonic() - began >= within_s:
                raise
        failed()
        time.sleep(delay)
    return use()


def in_short(error: psycopg.Error) -> str:
    """The first line of an error's message."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
