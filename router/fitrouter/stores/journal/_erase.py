"""Deleting the events of a user from the journal's file, in one transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from fitrouter.draw import uuid7
from fitrouter.stores.journal._base import Entry
from fitrouter.stores.journal._record import DAY_S, SPENT_DAYS, costs_of, digest_of, record
from fitrouter.types import Erasure, Event

INSERT = """INSERT INTO events (id, ts, kind, decision_id, subject, payload, crc)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7 WHERE NOT EXISTS (SELECT 1 FROM events WHERE id = ?1)"""
"""Insert an event unless the journal has one with its id. `ON CONFLICT DO NOTHING` would use up a sequence number then,
and a salvage could not tell that number from that of a lost event."""
_OF = "subject IN (SELECT value FROM json_each(?1))"
_DECISIONS = f"SELECT decision_id FROM events WHERE {_OF} AND kind = 'decision'"  # noqa: S608
_ANY = f"SELECT seq, CAST(payload AS BLOB), CAST(crc AS INTEGER) FROM events WHERE {_OF} AND kind <> 'erasure' LIMIT 1"  # noqa: S608
_EXECUTIONS = f"""SELECT seq, CAST(payload AS BLOB), CAST(crc AS INTEGER) FROM events
WHERE {_OF} AND kind = 'execution' AND ts > ?2"""  # noqa: S608
Decode: TypeAlias = Callable[[Sequence[tuple[int, bytes, int]]], Sequence[Event]]
"""The sound events of rows (seq, payload, checksum)."""
_THESE = "SELECT value FROM json_each(?1)"


def erase(connection: sqlite3.Connection, subjects: Collection[str], tenant: str, ts: float, decode: Decode) -> int:
    """Delete all events of some subjects; see `Journal.erase`. Call it under the lock of the writers."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        events = _erase(connection, subjects, tenant, ts, decode)
        connection.execute("COMMIT")
    except BaseException:
        connection.rollback()
        raise
    return events


def delete(connection: sqlite3.Connection, subjects: Collection[str]) -> int:
    """Delete the events of some subjects and of their decisions, and their unscored answers; return how many events."""
    theirs = json.dumps(list(subjects))
    decisions = json.dumps([name for (name,) in connection.execute(_DECISIONS, (theirs,))])
    connection.execute(f"DELETE FROM spool WHERE decision_id IN ({_THESE})", (decisions,))  # noqa: S608
    count = connection.execute(f"DELETE FROM events WHERE {_OF}", (theirs,)).rowcount  # noqa: S608
    return count + connection.execute(f"DELETE FROM events WHERE decision_id IN ({_THESE})", (decisions,)).rowcount  # noqa: S608


def _erase(connection: sqlite3.Connection, subjects: Collection[str], tenant: str, ts: float, decode: Decode) -> int:
    digests, theirs = sorted(map(digest_of, subjects)), json.dumps(list(subjects))
    if not tenant:
        found = decode(connection.execute(_ANY, (theirs,)).fetchall())
        tenant = found[0].identity.tenant if found else ""  # type: ignore[union-attr]  # it has a subject
    executions = connection.execute(_EXECUTIONS, (theirs, ts - SPENT_DAYS * DAY_S)).fetchall()
    seq, spent = 0, costs_of(decode(executions), ts)
    if count := delete(connection, subjects):
        connection.execute("DELETE FROM snapshot_state")
        connection.execute("UPDATE snapshot_position SET seq = 0")
        note = Erasure(id=uuid7(ts), ts=ts, tenant=tenant, digests=tuple(digests), spent=spent)
        seq = connection.execute(INSERT, record(Entry(note))[:7]).lastrowid or 0
    rows = [(digest, seq) for digest in digests]
    # Again after a crash: whatever was finished is looked through again.
    connection.executemany(
        "INSERT INTO erased (digest, seq) VALUES (?, ?) ON CONFLICT (digest) DO UPDATE SET done = 0", rows
    )
    return count
