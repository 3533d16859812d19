"""Rows of an identity store in a PostgreSQL database, shared by gateways on any number of machines."""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import Any, LiteralString, TypeVar

import psycopg

from fitrouter.errors import ConfigError, StoreError
from fitrouter.stores.identities import Gone, Identities, Offer, Person
from fitrouter.stores.postgres._connect import Database, Session, in_short, retried
from fitrouter.stores.postgres._listen import Listener
from fitrouter.stores.postgres._pending import Pending

T = TypeVar("T")

CHANNEL = "fitrouter_identities"
"""Notified of every erasure, without saying whose."""
_VERSION = 1
_LOCK = 7_310_593_858_410_262_901
"""Key of the advisory lock under which the schema is created, and that orders writes and erasures."""
_CONNECTIONS = 2
_CACHED = 10_000
_BREAK_S = 2.0
"""A break this long is waited for; then new users wait on this machine's disk."""
_BUCKETS = 4096
_AWAY = ("08", "57P", "53300")
"""States of SQL: no connection, a server that stops or starts, too many connections."""
_SCHEMA = """
CREATE TABLE fitrouter_identities.subjects (
    n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    subject text NOT NULL UNIQUE,
    who text NOT NULL,
    person bytea NOT NULL,
    alias boolean NOT NULL,
    key bytea NOT NULL
);
CREATE UNIQUE INDEX subjects_person ON fitrouter_identities.subjects (person) WHERE NOT alias;
CREATE INDEX subjects_alias ON fitrouter_identities.subjects (person) WHERE alias;
ALTER TABLE fitrouter_identities.subjects ALTER subject SET STATISTICS 0, ALTER who SET STATISTICS 0,
    ALTER person SET STATISTICS 0, ALTER key SET STATISTICS 0;
CREATE TABLE fitrouter_identities.buckets (bucket integer PRIMARY KEY, number bigint NOT NULL);
CREATE TABLE fitrouter_identities.head (
    one integer PRIMARY KEY CHECK (one = 1),
    version integer NOT NULL,
    salt bytea NOT NULL,
    number bigint NOT NULL,
    rewritten bigint NOT NULL
);
"""
# No statistics, because they are samples of the values, which an erasure would have to find. An index has room for
# 2,700 bytes a key: so users are found by a hash. `buckets` has the number of the last erasure among the users of a
# hash's first 12 bits: so that an erasure refuses what a gateway that is cut off minted for that user, and for hardly
# anybody else, while nobody can tell from it who was erased.
_FIND = """SELECT who, subject, key, (SELECT number FROM fitrouter_identities.head)
FROM fitrouter_identities.subjects WHERE person = ANY(%b::bytea[]) AND NOT alias"""
_RECENT = """SELECT who, subject, key, (SELECT number FROM fitrouter_identities.head)
FROM fitrouter_identities.subjects WHERE NOT alias ORDER BY n DESC LIMIT %b"""
_MAKE = """INSERT INTO fitrouter_identities.subjects (subject, who, person, alias, key)
SELECT o.subject, o.who, o.person, %b, o.key
FROM unnest(%b::text[], %b::text[], %b::bytea[], %b::bytea[], %b::int[], %b::bigint[])
    WITH ORDINALITY AS o (subject, who, person, key, bucket, erasures, n)
LEFT JOIN fitrouter_identities.buckets b ON b.bucket = o.bucket
WHERE coalesce(b.number, 0) <= o.erasures ORDER BY o.n ON CONFLICT DO NOTHING"""
_COUNT = "UPDATE fitrouter_identities.head SET number = number + 1 RETURNING number"
_BUCKET = """INSERT INTO fitrouter_identities.buckets VALUES (%b, %b)
ON CONFLICT (bucket) DO UPDATE SET number = excluded.number"""
_SUBJECTS = "SELECT subject FROM fitrouter_identities.subjects WHERE person = %b ORDER BY alias, n"
_PEOPLE = """SELECT who FROM fitrouter_identities.subjects
WHERE NOT alias AND right(who, 7) <> ', null]' AND starts_with(who, %b) ORDER BY n DESC LIMIT %b"""
_UNKNOWN = """SELECT given FROM unnest(%b::text[]) AS given
WHERE NOT EXISTS (SELECT FROM fitrouter_identities.subjects s WHERE s.subject = given)"""


class PostgresRows:
    """`IdentityRows` in the schema `fitrouter_identities` of a database.

    The last users are in memory from the start. Erasures of others are heard of by NOTIFY, and by polling twice a
    second; until then, the journal refuses what is logged of who was erased. While the server cannot be reached, users
    in memory stay known, and new ones are kept on this machine's disk, from which they are written when it is back.

    Args:
        database: the address, or its URL. The tables are created if they are missing.
        folder: on this machine.

    Raises:
        ConfigError: the URL cannot be read, or the role lacks a right.
        StoreError: the database cannot be reached, or another version of fitrouter made its tables.
    """

    def __init__(self, database: Database | str, folder: Path) -> None:
        self._database = Database(database) if isinstance(database, str) else database
        self.name, self.folder = self._database.name, folder
        self._memory = threading.Lock()
        self._keys: OrderedDict[str, bytes] = OrderedDict()
        self._seen = 0
        self._broken: psycopg.Error | None = None
        """Why the database is not to be asked now."""
        self._unkept = ""
        """Why new users cannot be kept on this machine's disk either."""
        self._waiting = 0
        """Subjects on this machine's disk."""
        self._pending = Pending(folder)
        self._closed = False

        def begin(session: Session) -> tuple[Any, ...]:
            _create(session, self.name)
            row = session.execute("SELECT salt, number FROM fitrouter_identities.head").fetchone()
            return row or (b"", 0)

        self.salt, self._seen = self._database.retried(begin, "the identities cannot be opened")
        self._pool = self._database.pool("fitrouter-identities", _CONNECTIONS)
        self._pool.open()
        self._listener = Listener(self._database, CHANNEL, self._look, self._lost)
        self._listener.start()

    def incident(self) -> str:
        """Describe why the database cannot be reached, and what becomes of users; empty if it can."""
        if (broken := self._broken) is None:
            return ""
        return (
            f"the identities {self.name} cannot be reached ({in_short(broken)}): who is in memory stays known, and "
            f"{self._waiting} new users wait in {str(self.folder)!r}"
        )

    def fault(self) -> str:
        """Reason why new users can be written nowhere; empty if they can."""
        return "" if self._closed else self._unkept

    def seen(self) -> int | None:
        """The erasure count as far as this process knows."""
        return self._seen

    def glance(self, who: str) -> str | None:  # noqa: ARG002 - a protocol
        """Return None: no user can be read without waiting."""
        return None

    def erasures(self) -> int:
        """The number of erasures so far."""
        number = int(self._rows("SELECT number FROM fitrouter_identities.head")[0][0])
        self._note_erasures(number)
        return number

    def find(self, people: Sequence[str]) -> dict[str, str]:
        """Return user → subject for those of the users that have one."""
        rows = self._rows(_FIND, [_hash(who) for who in people])
        if rows:
            self._remember({subject: key for _, subject, key, _ in rows}, rows[0][3])
        return {who: subject for who, subject, _, _ in rows}

    def recent(self) -> dict[str, str]:
        """Return user → subject for the users that were met last."""
        rows = self._rows(_RECENT, _CACHED)
        if rows:
            self._remember({subject: key for _, subject, key, _ in rows}, rows[0][3])
        return {who: subject for who, subject, _, _ in rows}

    def make(self, offers: Sequence[Offer], *, aliases: bool = False) -> None:
        """Insert subjects, unless their users may have been erased since; see `IdentityRows.make`."""
        if not offers:
            return
        rows = sorted(((_hash(each.who), each) for each in offers), key=itemgetter(0))  # one order, so no deadlocks
        columns = [
            [offer.subject for _, offer in rows],
            [offer.who for _, offer in rows],
            [person for person, _ in rows],
            [offer.key for _, offer in rows],
            [_bucket(person) for person, _ in rows],
            [offer.erasures for _, offer in rows],
        ]

        def write(session: Session) -> None:
            with session.transaction():
                session.execute("SELECT pg_advisory_xact_lock_shared(%b)", (_LOCK,))
                session.execute(_MAKE, (aliases, *columns))

        self._use(write)

    def unknown(self, subjects: Sequence[str]) -> list[str]:
        """Those subjects that the database does not have."""
        return [subject for (subject,) in self._rows(_UNKNOWN, list(subjects))]

    def owner(self, subject: str) -> str | None:
        """The user of a subject or alias."""
        found = self._rows("SELECT who FROM fitrouter_identities.subjects WHERE subject = %b", subject)
        return str(found[0][0]) if found else None

    def key(self, subject: str) -> bytes | None:
        """The key of a subject or alias."""
        with self._memory:
            key = self._keys.get(subject)
        if key is None and "\0" not in subject:
            found = self._rows(
                "SELECT key, number FROM fitrouter_identities.subjects, fitrouter_identities.head WHERE subject = %b",
                subject,
            )
            for key, number in found:
                self._remember({subject: key}, number)
        return key

    def subjects(self, who: str) -> tuple[str, ...]:
        """The subjects of a user: the canonical one first, then aliases."""
        return tuple(subject for (subject,) in self._rows(_SUBJECTS, _hash(who)))

    def erased(self, digests: Collection[str]) -> set[str]:
        """The users of all subjects and aliases whose sha256 is given."""
        rows = self._rows(
            "SELECT who FROM fitrouter_identities.subjects WHERE sha256(subject::bytea) = ANY(%b::bytea[])",
            [bytes.fromhex(digest) for digest in digests],
        )
        return {who for (who,) in rows}

    def people(self, limit: int, tenant: str | None) -> list[str]:
        """The users that were met last, the newest first."""
        begins = "[" if tenant is None else json.dumps([tenant])[:-1] + ", "
        return [who for (who,) in self._rows(_PEOPLE, begins, None if limit < 0 else limit)]

    def every(self) -> Iterator[Person]:
        """Iterate over the stored rows, oldest first."""
        after = 0
        while rows := self._rows(
            "SELECT subject, who, key, alias, n FROM fitrouter_identities.subjects WHERE n > %b ORDER BY n LIMIT 2000",
            after,
        ):
            yield from (Person(*row[:4]) for row in rows)
            after = rows[-1][4]

    def merge(self, people: Sequence[Person], salt: bytes | None) -> None:
        """Insert rows of another store; see `IdentityRows.merge`."""
        insert = """INSERT INTO fitrouter_identities.subjects (subject, who, person, alias, key)
        VALUES (%b, %b, %b, %b, %b) ON CONFLICT DO NOTHING"""

        def write(session: Session) -> None:
            with session.transaction(), session.cursor() as cursor:
                if salt is not None:
                    cursor.execute(
                        "UPDATE fitrouter_identities.head SET salt = %b "
                        "WHERE NOT EXISTS (SELECT FROM fitrouter_identities.subjects)",
                        (salt,),
                    )
                rows = [(each.subject, each.who, _hash(each.who), each.alias, each.key) for each in people]
                cursor.executemany(insert, rows)
                # Who had a subject here: the other one is an alias.
                cursor.executemany(insert, [(*row[:3], True, row[4]) for row in rows if not row[3]])
                if found := cursor.execute("SELECT salt FROM fitrouter_identities.head").fetchone():
                    self.salt = found[0]

        self._use(write)

    def erase(self, who: str) -> Gone:
        """Count an erasure, and delete all subjects of a user, in steps that may each be repeated."""
        person = _hash(who)

        def count(session: Session) -> int:
            with session.transaction():  # waits for writes; those that begin later are refused
                session.execute("SELECT pg_advisory_xact_lock(%b)", (_LOCK,))
                number = _one(session, _COUNT)
                session.execute(_BUCKET, (_bucket(person), number))
            return number

        def delete(session: Session) -> tuple[list[str], int]:
            with session.transaction():
                rows = session.execute(
                    "DELETE FROM fitrouter_identities.subjects WHERE person = %b RETURNING subject", (person,)
                ).fetchall()
                number = _one(session, _COUNT)  # again, for whoever read the rows in between
                session.execute(f"NOTIFY {CHANNEL}")
            return [subject for (subject,) in rows], number

        before = self._use(count)
        theirs = self.subjects(who)
        deleted, after = self._use(delete)
        self._note_erasures(after)
        return Gone(tuple(dict.fromkeys((*theirs, *deleted))), before - 1, after, after == before + 1)

    def compact(self) -> None:
        """Rewrite the tables, unless it was done since the last erasure.

        The server's log (WAL) and its backups hold deleted rows for as long as they are kept.
        """

        def rewrite(session: Session) -> None:
            number = _one(session, "SELECT number FROM fitrouter_identities.head")
            if number != _one(session, "SELECT rewritten FROM fitrouter_identities.head"):
                session.execute("VACUUM (FULL) fitrouter_identities.subjects")
                session.execute(
                    "UPDATE fitrouter_identities.head SET rewritten = greatest(rewritten, %b::bigint)", (number,)
                )

        self._use(rewrite)

    def spool(self, offers: Sequence[Offer], error: StoreError) -> bool:
        """Keep minted subjects on this machine's disk until the database can be written."""
        if isinstance(error.__cause__, psycopg.DataError | psycopg.IntegrityError) or not isinstance(
            error.__cause__, psycopg.Error
        ):
            return False
        try:
            if new := [offer for offer in offers if not offer.kept]:
                self._pending.add(new)
                self._waiting += len(new)
                for offer in new:
                    offer.kept = True
            self._unkept = ""
        except StoreError as failure:
            self._unkept = f"{failure}; nor can {self.name} be written: {in_short(error.__cause__)}"
            return False
        return True

    def unspool(self, subjects: Sequence[str]) -> None:
        """Remove subjects from this machine's disk."""
        self._waiting = max(0, self._waiting - len(subjects))
        with suppress(StoreError):  # the next start finds them written, or refused
            self._pending.remove(subjects)

    def abandoned(self) -> list[Offer]:
        """Return the subjects that dead processes kept on this machine's disk."""
        return self._pending.take_over()

    def close(self) -> None:
        """Close the connections."""
        if not self._closed:
            self._closed = True
            self._listener.close()
            self._pool.close()
            self._pending.close()

    # --- the database ---

    def _use(self, do: Callable[[Session], T]) -> T:
        """Call a function with a pooled connection, again after a lost connection or race."""
        if self._closed:
            raise StoreError(f"the identities {self.name} are closed")
        what = "the identities cannot be used"
        if (broken := self._broken) is not None:  # whoever waits would only wait longer
            raise StoreError(f"{what}: {in_short(broken)} ({self.name})") from broken

        def attempt() -> T:
            with self._pool.connection() as session:
                return do(session)

        try:
            with self._database.store_errors(what):
                return retried(attempt, self._pool.check, within_s=_BREAK_S)
        except ConfigError as error:  # a right was revoked
            raise StoreError(str(error)) from error.__cause__
        except StoreError as error:
            cause = error.__cause__
            if isinstance(cause, psycopg.OperationalError) and (cause.sqlstate or "08").startswith(_AWAY):
                self._broken = cause
            raise

    def _rows(self, sql: LiteralString, *params: object) -> list[Any]:
        if any(isinstance(value, str) and "\0" in value for value in params):
            return []  # a text with NUL is nowhere
        return self._use(lambda session: session.execute(sql, params, binary=True).fetchall())

    def _look(self, session: Session) -> None:
        """Read the erasure count, and note that the database can be reached."""
        self._note_erasures(_one(session, "SELECT number FROM fitrouter_identities.head"))
        self._broken = None

    def _lost(self, error: psycopg.Error) -> None:
        self._broken = error

    def _note_erasures(self, number: int) -> None:
        with self._memory:
            if number > self._seen:
                self._seen = number
                self._keys.clear()

    def _remember(self, keys: dict[str, bytes], number: int) -> None:
        """Cache keys that were read at an erasure count; drop them if the count has risen since."""
        self._note_erasures(number)
        with self._memory:
            if number == self._seen:
                self._keys.update(keys)
                while len(self._keys) > _CACHED:
                    self._keys.popitem(last=False)


class PostgresIdentities(Identities):
    """The identity store in a PostgreSQL database; see `PostgresRows`."""

    def __init__(self, database: Database | str, folder: Path) -> None:
        super().__init__(PostgresRows(database, folder))


def has_identities(database: Database) -> bool:
    """Whether the schema's tables exist, as far as the role can see.

    Raises:
        StoreError: the database cannot be reached.
    """
    return database.retried(_made, "the identities cannot be found")


def _create(session: Session, where: str) -> None:
    """Create the tables in a new database."""
    if not _made(session):
        with session.transaction():
            session.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            if not _made(session):
                if (
                    session.execute("SELECT FROM pg_namespace WHERE nspname = 'fitrouter_identities'").fetchone()
                    is None
                ):
                    session.execute("CREATE SCHEMA fitrouter_identities")  # needs a right even where it exists
                session.execute(_SCHEMA)
                session.execute(
                    "INSERT INTO fitrouter_identities.head VALUES (1, %s, %s, 0, 0)",
                    (_VERSION, secrets.token_bytes(32)),
                )
    version = _one(session, "SELECT version FROM fitrouter_identities.head")
    if version != _VERSION:
        raise StoreError(
            f"the identities in {where} have format {version}; this fitrouter reads {_VERSION}. Upgrade fitrouter"
        )


def _made(session: Session) -> bool:
    # Not by to_regclass: its cache need not know yet what another process made while this one waited for the lock.
    sql = "SELECT FROM pg_tables WHERE schemaname = 'fitrouter_identities' AND tablename = 'head'"
    return session.execute(sql).fetchone() is not None


def _one(session: Session, sql: LiteralString) -> int:
    row = session.execute(sql).fetchone()
    return int(row[0]) if row else 0


def _hash(who: str) -> bytes:
    return hashlib.sha256(who.encode()).digest()


def _bucket(person: bytes) -> int:
    return int.from_bytes(person[:2], "big") % _BUCKETS
