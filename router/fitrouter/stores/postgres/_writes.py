"""Transactions of the journal in PostgreSQL."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

import psycopg

from fitrouter.draw import uuid7
from fitrouter.errors import StoreError
from fitrouter.stores.journal._base import Entry, Snapshot
from fitrouter.stores.journal._record import DAY_S, SPENT_DAYS, Fault, Record, costs_of, digest_of, record, rehearse
from fitrouter.stores.journal._writer import PROBE, Ticket
from fitrouter.stores.postgres._connect import Database, Session, in_short, retried
from fitrouter.types import Erasure, Event

CHANNEL = "fitrouter"
"""Notified of every commit that appends."""
_LOCK = "SELECT seq, snapshot, erasures FROM fitrouter.head FOR UPDATE"
_ERASED = "SELECT digest, seq FROM fitrouter.erased WHERE number > %b"
_KNOWN = "SELECT id, seq FROM fitrouter.events WHERE id = ANY(%b::text[])"
_INSERT = """INSERT INTO fitrouter.events (seq, id, ts, kind, decision_id, subject, payload, crc)
SELECT * FROM unnest(%b::bigint[], %b::text[], %b::float8[], %b::text[], %b::text[], %b::text[], %b::bytea[],
%b::bigint[])"""
_SPOOL = """INSERT INTO fitrouter.spool (decision_id, seq, ts, content)
SELECT * FROM unnest(%b::text[], %b::bigint[], %b::float8[], %b::bytea[])
ON CONFLICT (decision_id) DO UPDATE SET seq = excluded.seq, ts = excluded.ts, content = excluded.content"""
_UNSPOOL = "DELETE FROM fitrouter.spool WHERE decision_id = ANY(%b::text[])"
_ADVANCE = "UPDATE fitrouter.head SET seq = %b::bigint"
_NOTIFY = f"NOTIFY {CHANNEL}"
_STATE = """INSERT INTO fitrouter.snapshot_state (key, value) VALUES (%b, %b)
ON CONFLICT (key) DO UPDATE SET value = excluded.value"""
_ANY = """SELECT seq, payload, crc FROM fitrouter.events
WHERE subject = ANY(%b::text[]) AND kind <> 'erasure' LIMIT 1"""
_EXECUTIONS = """SELECT seq, payload, crc FROM fitrouter.events
WHERE subject = ANY(%b::text[]) AND kind = 'execution' AND ts > %b"""
_DECISIONS = "SELECT decision_id FROM fitrouter.events WHERE subject = ANY(%b::text[]) AND kind = 'decision'"
_DELETE = "DELETE FROM fitrouter.events WHERE subject = ANY(%b::text[]) OR decision_id = ANY(%b::text[])"
_NOTE = """INSERT INTO fitrouter.erased (digest, seq, number) VALUES (%b, %b::bigint, %b::bigint)
ON CONFLICT (digest) DO UPDATE SET number = excluded.number, rewritten = false"""


class PostgresWrites:
    """`Writes` to a PostgreSQL database.

    A transaction whose connection breaks, or that loses a race, is repeated with pauses. It may have been committed
    before: events are known by their ids, so that each is there once.

    Args:
        database: the address.
        fault: see `Fault`.
        patience_s: after which a transaction that broke is not repeated.
    """

    pause: float | None = None

    def __init__(self, database: Database, fault: Fault, patience_s: float = math.inf) -> None:
        self._database, self._fault, self._patience = database, fault, patience_s
        self._session: Session | None = None
        self._failing = False
        """Whether the last write failed: then the next one is not repeated, so that a long queue fails soon."""
        self._erased: dict[str, int] = {}
        """Digest of an erased subject → position of its Erasure, as of `_erasures`."""
        self._erasures = 0

    def write(self, tickets: Sequence[Ticket]) -> list[int]:
        """Write the tickets in one transaction; returns the last sequence number of each."""
        try:
            patience = 0.0 if self._failing else self._patience
            results = retried(lambda: self._transact(tickets), within_s=patience)
        except psycopg.Error as error:
            self._failing = True
            raise StoreError(f"{in_short(error)} ({self._database.name})") from error
        self._failing = False
        return results

    def drop(self) -> None:
        """Roll back and close the connection."""
        session, self._session = self._session, None
        if session is not None:
            with suppress(psycopg.Error):
                session.close()

    def _transact(self, tickets: Sequence[Ticket]) -> list[int]:
        try:
            if self._session is None:
                self._session = self._database.connect(autocommit=False)
            self._fault("begin")
            results = self._apply(self._session, tickets)
        except BaseException:
            self.drop()
            raise
        return results

    def _apply(self, session: Session, tickets: Sequence[Ticket]) -> list[int]:
        names = [item.id for ticket in tickets for item in ticket.records]
        with session.pipeline():  # two round trips: one up to the lock, one up to the commit
            head, known = session.execute(_LOCK), session.execute(_KNOWN, (names,)) if names else None
            (seq, snapshot, erasures), first = head.fetchone() or (0, 0, 0), 0
            there: dict[str, int] = dict(known.fetchall()) if known else {}
            if erasures != self._erasures:
                self._erased.update(session.execute(_ERASED, (self._erasures,)).fetchall())
                self._erasures = erasures
            first, results = seq, list[int]()
            rows, waiting, scored = list[Record](), dict[str, tuple[int, float, bytes]](), set[str]()
            for ticket in tickets:
                if ticket.snapshot is not None:
                    snapshot = self._save(session, ticket.snapshot, snapshot)
                rehearse(self._fault, ticket.records)
                last = 0
                for item in ticket.records:
                    if self._erased and item.subject is not None and digest_of(item.subject) in self._erased:
                        last = seq  # a request that was in progress
                    elif item.id in there:
                        last = max(last, there[item.id])
                    else:
                        last = seq = there[item.id] = seq + 1
                        rows.append(item)
                        _spool(item, seq, waiting, scored)
                results.append(last if ticket.records else seq)
            if rows:
                append(session, first, rows)
            if scored:
                session.execute(_UNSPOOL, (list(scored),))
            if waiting:
                session.execute(
                    _SPOOL, tuple(map(list, zip(*((key, *row) for key, row in waiting.items()), strict=True)))
                )
            self._fault("commit")
            session.commit()
        return results

    def _save(self, session: Session, snapshot: Snapshot, position: int) -> int:
        """Merge a snapshot into the stored one; returns the position of the stored one."""
        self._fault("snapshot")
        if snapshot is PROBE:
            session.execute("UPDATE fitrouter.head SET one = one")
        if snapshot.seq < max(position, *self._erased.values(), 0):
            return position
        with session.cursor() as cursor:
            if rows := [(key, payload) for key, payload in snapshot.state.items() if payload]:
                cursor.executemany(_STATE, rows)
            if gone := [key for key, payload in snapshot.state.items() if not payload]:
                cursor.execute("DELETE FROM fitrouter.snapshot_state WHERE key = ANY(%b::text[])", (gone,))
            cursor.execute("UPDATE fitrouter.head SET snapshot = %b::bigint", (snapshot.seq,))
        return snapshot.seq


def _spool(item: Record, seq: int, waiting: dict[str, tuple[int, float, bytes]], scored: set[str]) -> None:
    """Note what an appended record adds to the spool or removes from it."""
    if item.decision_id is not None and item.content is not None:
        waiting[item.decision_id] = seq, item.ts, item.content
    if item.decision_id is not None and item.kind == "score":
        waiting.pop(item.decision_id, None)
        scored.add(item.decision_id)


def append(session: Session, seq: int, rows: Sequence[Record]) -> None:
    """Insert rows that are new, with the numbers after `seq`, under the lock of the head."""
    columns = [list(column) for column in zip(*(row[:7] for row in rows), strict=True)]
    session.execute(_INSERT, (list(range(seq + 1, seq + 1 + len(rows))), *columns))
    session.execute(_ADVANCE, (seq + len(rows),))
    session.execute(_NOTIFY)


def erase(
    session: Session,
    subjects: Collection[str],
    tenant: str,
    ts: float,
    decode: Callable[[Sequence[tuple[int, bytes, int]]], Sequence[Event]],
) -> int:
    """Delete all events of some subjects, in one transaction; see `Journal.erase`."""
    theirs, digests = list(subjects), sorted(map(digest_of, subjects))
    with session.transaction():
        head, _, number = session.execute(_LOCK).fetchone() or (0, 0, 0)
        if not tenant:
            found = decode(session.execute(_ANY, (theirs,), binary=True).fetchall())
            tenant = found[0].identity.tenant if found else ""  # type: ignore[union-attr]  # it has a subject
        spent = costs_of(
            decode(session.execute(_EXECUTIONS, (theirs, ts - SPENT_DAYS * DAY_S), binary=True).fetchall()), ts
        )
        decisions = [name for (name,) in session.execute(_DECISIONS, (theirs,))]
        session.execute(_UNSPOOL, (decisions,))
        count, seq = session.execute(_DELETE, (theirs, decisions)).rowcount, 0
        if count:
            session.execute("DELETE FROM fitrouter.snapshot_state")
            session.execute("UPDATE fitrouter.head SET snapshot = 0")
            note = Erasure(id=uuid7(ts), ts=ts, tenant=tenant, digests=tuple(digests), spent=spent)
            append(session, head, [record(Entry(note))])
            seq = head + 1
        session.cursor().executemany(_NOTE, [(digest, seq, number + 1) for digest in digests])
        session.execute("DELETE FROM fitrouter.finished WHERE digest = ANY(%b::text[])", (digests,))
        session.execute("UPDATE fitrouter.head SET erasures = %b::bigint", (number + 1,))
    return count
