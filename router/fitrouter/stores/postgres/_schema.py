"""Schema of the journal in PostgreSQL."""

from __future__ import annotations

from fitrouter.errors import StoreError
from fitrouter.stores.postgres._connect import Session

VERSION = 1
_MAKING = 7_310_593_858_410_262_900
"""Key of the advisory lock under which the schema is created."""
_SCHEMA = """
CREATE TABLE fitrouter.events (
    seq bigint PRIMARY KEY,
    id text NOT NULL UNIQUE,
    ts double precision NOT NULL,
    kind text NOT NULL,
    decision_id text,
    subject text,
    payload bytea NOT NULL,
    crc bigint NOT NULL
);
CREATE INDEX events_decision ON fitrouter.events (decision_id, seq) WHERE decision_id IS NOT NULL;
CREATE INDEX events_subject ON fitrouter.events (subject, kind, seq) WHERE subject IS NOT NULL;
CREATE INDEX events_kind ON fitrouter.events (kind, seq);
CREATE TABLE fitrouter.spool (
    decision_id text PRIMARY KEY,
    seq bigint NOT NULL,
    ts double precision NOT NULL,
    content bytea NOT NULL
);
CREATE INDEX spool_seq ON fitrouter.spool (seq);
CREATE TABLE fitrouter.snapshot_state (key text PRIMARY KEY, value bytea NOT NULL);
CREATE TABLE fitrouter.erased (
    digest text PRIMARY KEY,
    seq bigint NOT NULL,
    number bigint NOT NULL,
    rewritten boolean NOT NULL DEFAULT false
);
CREATE TABLE fitrouter.finished (
    folder text NOT NULL,
    digest text NOT NULL REFERENCES fitrouter.erased ON DELETE CASCADE,
    PRIMARY KEY (folder, digest)
);
CREATE TABLE fitrouter.claims (
    account text NOT NULL,
    holder text NOT NULL,
    usd double precision NOT NULL,
    spent double precision NOT NULL,
    seen double precision NOT NULL,
    ends double precision NOT NULL,
    PRIMARY KEY (account, holder)
);
CREATE TABLE fitrouter.head (
    one integer PRIMARY KEY CHECK (one = 1),
    version integer NOT NULL,
    seq bigint NOT NULL,
    snapshot bigint NOT NULL,
    erasures bigint NOT NULL
);
"""
# `head` is one row, whose lock a writer holds from its first number to its commit. So numbers are committed in order,
# and no reader can pass a number that is not committed yet, as it could with a sequence.


def create(session: Session, where: str) -> None:
    """Create the journal's tables in a new database.

    Raises:
        StoreError: another version of fitrouter made them.
        psycopg.Error: a right is missing, or the connection broke.
    """
    if not _made(session):
        with session.transaction():
            session.execute("SELECT pg_advisory_xact_lock(%s)", (_MAKING,))
            if not _made(session):
                if session.execute("SELECT FROM pg_namespace WHERE nspname = 'fitrouter'").fetchone() is None:
                    session.execute("CREATE SCHEMA fitrouter")  # needs a right even where it exists
                session.execute(_SCHEMA)
                session.execute("INSERT INTO fitrouter.head VALUES (1, %s, 0, 0, 0)", (VERSION,))
    found = session.execute("SELECT version FROM fitrouter.head").fetchone()
    version = found[0] if found else 0
    if version != VERSION:
        later = version > VERSION
        raise StoreError(
            f"{where} has journal format {version}, written by {'a later' if later else 'an earlier'} fitrouter; this "
            f"one reads {VERSION}. "
            + ("Upgrade fitrouter" if later else "Copy the journal with that version: `fitrouter journal copy`")
        )


def _made(session: Session) -> bool:
    # Not by to_regclass: its cache need not know yet what another process made while this one waited for the lock.
    return (
        session.execute("SELECT FROM pg_tables WHERE schemaname = 'fitrouter' AND tablename = 'head'").fetchone()
        is not None
    )
