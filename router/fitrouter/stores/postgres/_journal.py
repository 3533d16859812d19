"""Journal in a PostgreSQL database, shared by gateways on any number of machines."""

from __future__ import annotations

import math
import os
import re
import uuid
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, LiteralString, TypeVar

from fitrouter.errors import StoreError
from fitrouter.stores._files import make_folder
from fitrouter.stores.journal._base import Entry, Lease, Row, Snapshot, Spooled
from fitrouter.stores.journal._claims import KEPT_S, Claim, Grant, granted
from fitrouter.stores.journal._lease import FileLease
from fitrouter.stores.journal._record import Fault, next_sound, no_fault, record, sound_rows
from fitrouter.stores.journal._writer import GroupWriter
from fitrouter.stores.postgres._backlog import Backlog
from fitrouter.stores.postgres._connect import Database, Session, retried
from fitrouter.stores.postgres._detached import DetachableWrites
from fitrouter.stores.postgres._lease import Leases, SessionLease
from fitrouter.stores.postgres._listen import Listener
from fitrouter.stores.postgres._schema import create
from fitrouter.stores.postgres._writes import PostgresWrites, erase
from fitrouter.types import Event, ProfileChange

T = TypeVar("T")

_END = 2**63 - 1
_READERS = 4
_BREAK_S = 2.0
"""A break this long is waited for; then entries are logged in the folder."""
_OF_THE_FOLDER = frozenset({"warehouse", "erasure"})
"""Leases of work on files in the folder, which each machine has for itself."""
_OPEN = """SELECT digest, seq FROM fitrouter.erased e
WHERE NOT EXISTS (SELECT 1 FROM fitrouter.finished f WHERE f.folder = %b AND f.digest = e.digest)"""
_CLAIMS = "SELECT holder, usd, spent, seen FROM fitrouter.claims WHERE account = %b"
_CLAIM = """INSERT INTO fitrouter.claims (account, holder, usd, spent, seen, ends) VALUES (%b, %b, %b, %b, %b, %b)
ON CONFLICT (account, holder) DO UPDATE SET usd = excluded.usd, spent = excluded.spent, seen = excluded.seen"""
_FINISH = """INSERT INTO fitrouter.finished (folder, digest)
SELECT %b, digest FROM fitrouter.erased WHERE digest = ANY(%b::text[]) ON CONFLICT DO NOTHING"""


class PostgresJournal:
    """A `Journal` in the schema `fitrouter` of a PostgreSQL database, with group commit.

    Transactions queue on the lock of one row, which also has the last number: numbers are committed in order, and a
    reader that polls `tail(after)` never misses a row. What is acknowledged is as durable as the server's
    `synchronous_commit` says, which is never less than its own disk. Connections that break are replaced, and what they
    did is repeated with pauses. A single row whose checksum does not match is skipped and logged.

    With a folder, a process that is cut off goes on logging, there, and hands in when the database is back; see
    `DetachableWrites`. `incident` says so meanwhile.

    Args:
        database: the address, or its URL. The tables are created if they are missing.
        folder: on this machine, for leases of its own files and for the backlog; None for neither.
        hold: seconds that a commit waits for further entries.
        capacity: most entries that may be queued, before `append` raises `JournalFull`.
        fault: called before each write step, for tests.

    Raises:
        ConfigError: the URL cannot be read, or the role lacks a right.
        StoreError: the database cannot be reached, or another version of fitrouter made its tables.
    """

    incident = ""

    def __init__(
        self,
        database: Database | str,
        folder: Path | None = None,
        hold: float = 0.0,
        *,
        capacity: int = 65_536,
        fault: Fault = no_fault,
    ) -> None:
        self.database = Database(database) if isinstance(database, str) else database
        self.folder = folder
        self._pid, self._closed = os.getpid(), False
        self._damaged: set[int] = set()
        """Rows whose checksum differs."""
        self.database.retried(lambda session: create(session, self.database.name), "the journal cannot be opened")
        self._machine = "" if folder is None else _name_of(folder)
        self._readers = self.database.pool("fitrouter-readers", _READERS)
        self._readers.open()
        self._of_files: list[FileLease] = []
        self._leases, self._listener = Leases(self.database), Listener(self.database)
        plain = PostgresWrites(self.database, fault, math.inf if folder is None else _BREAK_S)
        self._backlog = None if folder is None else Backlog(folder)
        self._detachable = (
            None
            if self._backlog is None
            else DetachableWrites(plain, self.database, self._backlog, self._note_incident)
        )
        self._writer = GroupWriter(self._detachable or plain, capacity=capacity, hold=hold)

    def __repr__(self) -> str:
        return f"PostgresJournal({self.database.name!r})"

    def fault(self) -> str:
        """Reason why events cannot be logged now (the last transaction failed); empty if they can."""
        return "" if self._closed else self._writer.failure

    def append(self, *entries: Entry) -> Future[int]:
        """Queue the entries as one transaction; see `Journal.append`."""
        records = [record(entry) for entry in entries]
        for item in records:
            if any("\0" in (name or "") for name in (item.id, item.decision_id, item.subject)):
                raise ValueError(f"the {item.kind} {item.id!r} is not logged: PostgreSQL stores no NUL in a text")
        return self._writer.submit(records)

    def tail(self, after: int, limit: int = 512) -> Sequence[Row]:
        """The next rows after a sequence number, in order."""
        sql: LiteralString = (
            "SELECT seq, payload, crc FROM fitrouter.events WHERE seq > %b::bigint ORDER BY seq LIMIT %b"
        )
        return next_sound(lambda start: self._read(sql, (start, limit)), self._decode, after, limit)

    def of(self, *keys: str) -> Sequence[Row]:
        """Return all rows with any of these decision ids and subjects, in order; those without a number come last."""
        waiting = {key: self._waiting(key) for key in keys if "\0" not in key}  # which PostgreSQL has in no text
        asked = list(waiting)
        if self._unreachable():  # where the decision itself is here, all that followed is here
            asked = [key for key in waiting if all(row.event.id != key for row in waiting[key])]
        where: LiteralString = "decision_id = ANY(%b::text[]) OR subject = ANY(%b::text[]) ORDER BY seq"
        found = self._events(where, (asked, asked)) if asked else []
        there = {row.event.id for row in found}
        return [*found, *(row for rows in waiting.values() for row in rows if row.event.id not in there)]

    def ids(self, prefix: str, limit: int) -> Sequence[str]:
        """Decision ids that begin with a prefix; see `Journal.ids`."""
        where: LiteralString = "decision_id >= %b AND decision_id < %b AND starts_with(decision_id, %b) LIMIT %b"
        sql = f"SELECT DISTINCT decision_id FROM fitrouter.events WHERE {where}"  # noqa: S608 - a constant
        return [found for (found,) in self._read(sql, (prefix, f"{prefix}g", prefix, limit))]

    def latest(
        self,
        kinds: Sequence[str],
        limit: int = 256,
        *,
        before: int | None = None,
        subject: str | None = None,
        run: str = "",
    ) -> Sequence[Row]:
        """The last rows of some kinds of events, the newest first; see `Journal.latest`."""
        where, end = [list(kinds), _END if before is None else before], limit
        if run:
            return self._events(
                "kind = ANY(%b::text[]) AND seq < %b::bigint AND decision_id = %b ORDER BY seq DESC LIMIT %b",
                (*where, run, end),
            )
        if subject is None:
            return self._events("kind = ANY(%b::text[]) AND seq < %b::bigint ORDER BY seq DESC LIMIT %b", (*where, end))
        return self._events(
            "kind = ANY(%b::text[]) AND seq < %b::bigint AND subject = %b ORDER BY seq DESC LIMIT %b",
            (*where, subject, end),
        )

    def counts(self, key: str) -> dict[str, tuple[int, float, float]]:
        """Count the rows about a subject, or of a run, by kind of event, with the times of the first and the last."""
        rows = self._read(
            "SELECT kind, count(*), min(ts), max(ts) FROM fitrouter.events "
            "WHERE subject = %b OR decision_id = %b GROUP BY kind",
            (key, key),
        )
        return {kind: (number, first, last) for kind, number, first, last in rows}

    def event(self, event_id: str) -> Event | None:
        """The event with an id; None without one."""
        rows = self._events("id = %b", (event_id,))
        return rows[0].event if rows else None

    def profile(self, subject: str) -> ProfileChange | None:
        """The last profile of a subject; None without one."""
        rows = self._events("subject = %b AND kind = 'profile' ORDER BY seq DESC LIMIT 1", (subject,))
        return rows[0].event if rows and isinstance(rows[0].event, ProfileChange) else None

    def erase(self, subjects: Collection[str], tenant: str, ts: float) -> int:
        """Delete all events of some subjects; see `Journal.erase`."""
        self._require_open()

        def events(found: Sequence[tuple[int, bytes, int]]) -> list[Event]:
            return [row.event for row in self._decode(found)]

        return self.database.retried(
            lambda session: erase(session, subjects, tenant, ts, events), "the journal could not be written"
        )

    def unfinished(self) -> dict[str, int]:
        """Return the erased subjects of which something is left on this machine; see `Journal.unfinished`."""
        return dict(self._read(_OPEN, (self._machine,)))

    def finish(self, digests: Collection[str]) -> None:
        """Record that nothing is left of erased subjects on this machine."""
        self.database.retried(
            lambda session: session.execute(_FINISH, (self._machine, list(digests))), "the journal could not be written"
        )

    def compact(self, patience_s: float = 30.0) -> None:
        """Rewrite the tables, unless it was done since the last erasure; see `Journal.compact`.

        The server's log (WAL) and its backups hold deleted rows for as long as they are kept.
        """

        def rewrite(session: Session) -> None:
            session.execute("SELECT set_config('lock_timeout', %s, false)", (f"{max(1, int(patience_s * 1000))}",))
            numbers = session.execute("SELECT max(number) FROM fitrouter.erased WHERE NOT rewritten").fetchone()
            if numbers and numbers[0] is not None:
                for table in ("events", "spool", "snapshot_state"):
                    session.execute(f"VACUUM (FULL, ANALYZE) fitrouter.{table}")
                session.execute("UPDATE fitrouter.erased SET rewritten = true WHERE number <= %s", numbers)

        self.database.retried(rewrite, "the journal could not be rewritten")

    def lease(self, name: str) -> Lease:
        """Return the lease of this name among all gateways of the database, or this machine's for leases of its files.

        Raises:
            ValueError: the name has other characters than a-z, 0-9, '-' and '_'.
        """
        if not re.fullmatch(r"[a-z0-9_-]{1,64}", name):
            raise ValueError(f"lease {name!r}: use 1 to 64 of a-z, 0-9, '-' and '_'")
        if self.folder is not None and name in _OF_THE_FOLDER:
            self._of_files.append(FileLease(self.folder / f"postgres.{name}.lease", lambda: not self._closed))
            return self._of_files[-1]
        return SessionLease(name, self._leases)

    def claim(self, claim: Claim) -> Grant:
        """Claim money of an account; see `Journal.claim`."""

        def write(session: Session) -> Grant:
            with session.transaction():
                session.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (claim.account,))
                found, written = granted(claim, session.execute(_CLAIMS, (claim.account,), binary=True).fetchall())
                session.cursor().executemany(_CLAIM, written)
                old = claim.ts - KEPT_S, claim.account
                session.execute("DELETE FROM fitrouter.claims WHERE ends < %b AND account <> %b", old)
            return found

        return self._use(write)

    def watch(self, call: Callable[[], object]) -> None:
        """Register a function to call after appends of any gateway; see `Journal.watch`."""
        self._listener.add(call)

    def spooled(self, limit: int = 64) -> Sequence[Spooled]:
        """The oldest unscored answers, without those whose Score is being appended."""
        rows = self._read("SELECT decision_id, ts, content FROM fitrouter.spool ORDER BY seq LIMIT %b", (limit,))
        return [Spooled(*row) for row in rows]

    def save(self, snapshot: Snapshot) -> None:
        """Merge the state into the stored snapshot and move its position; see `Journal.save`."""
        self._writer.submit((), snapshot).result()

    def snapshot(self, put_aside: Callable[[str, bytes], bool] | None = None) -> Snapshot:
        """The stored snapshot; see `Journal.snapshot`."""

        def read(session: Session) -> Snapshot:
            position, state = 0, dict[str, bytes]()
            with session.transaction(), session.cursor("snapshot") as cursor:  # a page at a time
                cursor.execute(
                    "SELECT snapshot, key, value FROM fitrouter.head LEFT JOIN fitrouter.snapshot_state ON true "
                    'ORDER BY key COLLATE "C"',
                    binary=True,
                )
                for position, key, value in cursor:  # noqa: B007
                    if key is not None and not (put_aside and put_aside(key, value)):
                        state[key] = value
            return Snapshot(position, state)

        return self._use(read)

    def head(self) -> int:
        """The last sequence number, 0 in an empty journal."""
        return int(self._read("SELECT seq FROM fitrouter.head", ())[0][0])

    def close(self) -> None:
        """Write the queued entries, give back all leases, then close."""
        if self._closed:
            return
        self._closed = True
        if self._pid != os.getpid():
            return
        self._writer.close()
        self._listener.close()
        self._leases.close()
        for lease in self._of_files:
            lease.release()
        self._readers.close()

    def _waiting(self, decision_id: str) -> list[Row]:
        """Rows of a decision that wait in the backlog."""
        if self._detachable is None or self._backlog is None or not self._detachable.waiting:
            return []
        return self._decode([(_END, item.payload, item.crc) for item in self._backlog.of(decision_id)])

    def _unreachable(self) -> str:
        return "" if self._detachable is None else self._detachable.why_unreachable()

    def _note_incident(self, text: str) -> None:
        self.incident = text

    def _events(self, where: LiteralString, params: tuple[object, ...]) -> list[Row]:
        return self._decode(self._read(f"SELECT seq, payload, crc FROM fitrouter.events WHERE {where}", params))  # noqa: S608

    def _decode(self, found: Sequence[tuple[int, bytes, int]]) -> list[Row]:
        return sound_rows(found, self._damaged, self.database.name)

    def _read(self, sql: LiteralString, params: tuple[object, ...]) -> list[Any]:
        if any(isinstance(value, str) and "\0" in value for value in params):
            return []  # a text with NUL is nowhere
        return self._use(lambda session: session.execute(sql, params, binary=True).fetchall())

    def _use(self, read: Callable[[Session], T]) -> T:
        """Run a function with a pooled connection."""
        self._require_open()
        if reason := self._unreachable():  # whoever waits would only wait longer
            raise StoreError(f"the journal could not be read: {reason}")

        def attempt() -> T:
            with self._readers.connection() as session:
                return read(session)

        with self.database.store_errors("the journal could not be read"):
            return retried(attempt, self._readers.check)

    def _require_open(self) -> None:
        if self._closed or self._pid != os.getpid():
            raise StoreError("the journal is closed, or was opened before this process was forked; open it again")


def _name_of(folder: Path) -> str:
    """Return the random name of this machine's folder, which a file in it stores."""
    file = folder / "postgres.name"
    try:
        make_folder(folder)
        if not file.exists():
            part = file.with_name(f"{file.name}.{os.getpid()}")
            part.write_text(uuid.uuid4().hex)
            with suppress(FileExistsError):  # of two processes, the first
                os.link(part, file)
            part.unlink()
        return file.read_text()
    except OSError as error:
        raise StoreError(f"the folder {str(folder)!r} cannot be used: {error}") from error
