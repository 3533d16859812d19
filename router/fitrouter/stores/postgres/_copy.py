"""The journal in PostgreSQL as a place to copy from or to."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import LiteralString

from fitrouter.errors import StoreError
from fitrouter.stores.journal import BATCH, Part, Raw
from fitrouter.stores.postgres._connect import Database, Session
from fitrouter.stores.postgres._schema import create

_OTHERS = """SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'fitrouter' AND pid <> pg_backend_pid()"""
_ROWS = """SELECT seq, id, ts, kind, decision_id, subject, payload, crc FROM fitrouter.events
WHERE seq > %b::bigint ORDER BY seq LIMIT %b"""
_EVENTS = ("int8", "text", "float8", "text", "text", "text", "bytea", "int8")
_COPY = "COPY fitrouter.events (seq, id, ts, kind, decision_id, subject, payload, crc) FROM STDIN (FORMAT BINARY)"
_PARTS = {  # texts in the order of their bytes, as in SQLite
    "spool": """SELECT decision_id, seq, ts, content FROM fitrouter.spool ORDER BY seq, decision_id COLLATE "C" """,
    "erased": """SELECT digest, seq FROM fitrouter.erased ORDER BY digest COLLATE "C" """,
    "snapshot_state": """SELECT key, value FROM fitrouter.snapshot_state ORDER BY key COLLATE "C" """,
}
_FILL: dict[str, LiteralString] = {
    "spool": "INSERT INTO fitrouter.spool (decision_id, seq, ts, content) VALUES (%b, %b::bigint, %b, %b)",
    # What is copied has no deleted rows between its own, so that its tables need no rewriting.
    "erased": """INSERT INTO fitrouter.erased (digest, seq, number, rewritten)
SELECT %b, %b::bigint, 1 + (SELECT count(*) FROM fitrouter.erased), true""",
    "snapshot_position": "UPDATE fitrouter.head SET snapshot = %b::bigint",
    "snapshot_state": "INSERT INTO fitrouter.snapshot_state (key, value) VALUES (%b, %b)",
}


class DatabasePlace:
    """A `Place` in a PostgreSQL database, on one connection; missing tables are created.

    Args:
        database: the address.

    Raises:
        ConfigError: the role lacks a right.
        StoreError: the database cannot be reached, or gateways are using it.
    """

    def __init__(self, database: Database) -> None:
        self.name, self._database = database.name, database
        with self._store_errors():
            self._session: Session = database.connect()
            try:
                create(self._session, self.name)
                others = self._one(_OTHERS)
            except BaseException:
                self._session.close()
                raise
        if others:
            self._session.close()
            raise StoreError(f"{self.name} is open in gateways ({others} connections); stop them first")

    def head(self) -> int:
        """The number of the last event."""
        with self._store_errors():
            return self._one("SELECT coalesce(max(seq), 0) FROM fitrouter.events")

    def rows(self, after: int) -> Sequence[Raw]:
        """The next rows."""
        with self._store_errors():
            return self._session.execute(_ROWS, (after, BATCH), binary=True).fetchall()

    def extend(self, rows: Sequence[Raw]) -> None:
        """Append rows with their numbers."""
        with self._store_errors(), self._session.transaction(), self._session.cursor() as cursor:
            cursor.execute("UPDATE fitrouter.head SET seq = greatest(seq, %b::bigint)", (rows[-1][0],))
            with cursor.copy(_COPY) as copy:
                copy.set_types(_EVENTS)
                for row in rows:
                    copy.write_row(row)

    def parts(self) -> Iterator[Part]:
        """Yield everything of the journal other than its events."""
        with self._store_errors():
            yield "snapshot_position", (self._one("SELECT snapshot FROM fitrouter.head"),)
            for name, statement in _PARTS.items():
                with self._session.transaction(), self._session.cursor(f"copied_{name}") as cursor:
                    cursor.execute(statement.encode(), binary=True)
                    yield from ((name, row) for row in cursor)

    def fill(self, parts: Iterable[Part]) -> None:
        """Replace everything of the journal other than its events."""
        with self._store_errors(), self._session.transaction(), self._session.cursor() as cursor:
            cursor.execute("TRUNCATE fitrouter.spool, fitrouter.finished, fitrouter.erased, fitrouter.snapshot_state")
            for name, group in itertools.groupby(parts, lambda part: part[0]):
                cursor.executemany(_FILL[name], (row for _, row in group))
            cursor.execute("UPDATE fitrouter.head SET erasures = (SELECT count(*) FROM fitrouter.erased)")

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def _one(self, statement: str) -> int:
        row = self._session.execute(statement.encode()).fetchone()
        return int(row[0]) if row else 0

    @contextmanager
    def _store_errors(self) -> Iterator[None]:
        with self._database.store_errors("the journal could not be copied"):
            yield
