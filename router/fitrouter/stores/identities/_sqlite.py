"""Rows of an identity store in an SQLite file, `identities.db`, with a copy beside it."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from fitrouter.errors import StoreError
from fitrouter.stores import _files
from fitrouter.stores.identities import _lines as copies
from fitrouter.stores.identities._identities import Identities
from fitrouter.stores.identities._rows import Gone, Offer, Person

_log = logging.getLogger("fitrouter")
FILE = "identities.db"
"""Name of the file in the data folder."""
_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS subjects (
        subject TEXT PRIMARY KEY,
        who TEXT NOT NULL UNIQUE,
        key BLOB NOT NULL
    )""",
    "CREATE TABLE IF NOT EXISTS salts (one INTEGER PRIMARY KEY CHECK (one = 1), salt BLOB NOT NULL)",
    # A trigger also counts rows that another program deletes.
    "CREATE TABLE IF NOT EXISTS erasures (one INTEGER PRIMARY KEY CHECK (one = 1), number INTEGER NOT NULL)",
    """CREATE TRIGGER IF NOT EXISTS erased AFTER DELETE ON subjects BEGIN
        INSERT INTO erasures VALUES (1, 1) ON CONFLICT (one) DO UPDATE SET number = number + 1;
    END""",
)

# One statement and one result row for a whole batch: sqlite3 releases the GIL at every step of a statement, and getting
# it back from a busy event loop takes milliseconds.
_FIND = """SELECT json_group_array(json_array(who, subject)) FROM subjects
WHERE who IN (SELECT value FROM json_each(?))"""
_MAKE = """INSERT INTO subjects (subject, who, key)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), substr(?2, 32 * key + 1, 32) FROM json_each(?1)
WHERE json_extract(value, '$[2]') = (SELECT coalesce(max(number), 0) FROM erasures) ON CONFLICT (who) DO NOTHING"""
"""A row is refused if any user was erased since the token was minted: it may have been this one."""
_COUNT_ERASURE = """INSERT INTO erasures VALUES (1, 1) ON CONFLICT (one) DO UPDATE SET number = number + 1
RETURNING number"""
_ERASURES = "SELECT coalesce(max(number), 0) FROM erasures"
_ERASE = "DELETE FROM subjects WHERE who = ?1 OR (who > ?2 AND who < ?3) RETURNING subject"
_SUBJECTS = "SELECT subject FROM subjects WHERE who = ?1 OR (who > ?2 AND who < ?3) ORDER BY who = ?1 DESC, rowid"
_UNKNOWN = "SELECT value FROM json_each(?) WHERE value NOT IN (SELECT subject FROM subjects)"
_PEOPLE = """SELECT who FROM subjects
WHERE json_array_length(who) = 2 AND json_type(who, '$[1]') = 'text' AND (?1 IS NULL OR json_extract(who, '$[0]') = ?1)
ORDER BY rowid DESC LIMIT ?2"""
"""Aliases have three parts, and nobody in particular (the anonymous subject of a tenant) has no name."""


class SqliteRows:
    """`IdentityRows` in a file that all processes of a machine may open.

    A corrupt file is renamed to `<path>.corrupt-<seconds>` and restored from its copy; `quarantined` is then its new
    path.

    Args:
        path: the file, readable by its owner only; its folder is created.
        clock: seconds since the epoch, for the name of a quarantined file.
        patience_s: how long `compact` waits for readers in other processes.

    Raises:
        StoreError: the file cannot be opened.
    """

    def __init__(
        self, path: str | os.PathLike[str], clock: Callable[[], float] = time.time, patience_s: float = 30.0
    ) -> None:
        self.path = Path(path).absolute()
        self.name, self.folder = str(self.path), self.path.parent
        self.copy = self.path.with_name(f"{self.path.name}.copy")
        """The file from which a damaged one is restored."""
        self.quarantined: Path | None = None
        self.note = ""
        """The incident: what was found damaged when the file was opened, and what became of it."""
        self._damage = ""
        self._patience = patience_s
        self._mutex, self._glancing = threading.RLock(), threading.Lock()
        self._closed = False
        try:
            _files.make_folder(self.path.parent)
            try:
                self._connection = _opened(self.path)
            except sqlite3.DatabaseError as error:
                if not _files.is_damaged(error):
                    raise
                self._connection = self._restored(error, clock())
            try:
                copies.compare(self.copy, self._connection)
            except (OSError, ValueError, sqlite3.Error) as error:
                self._lacks_copy(error)
            self.salt = bytes(self._connection.execute("SELECT salt FROM salts").fetchone()[0])
            self._glance = _connect(self.path, patience_s=0.0)
            self._files = _files.OpenFiles(self.path)
            self._changes = _files.map_changes(self.path)
            self._read: tuple[bytes, int] = b"", 0
            """The head of the log's index before the erasure count was read, and the count."""
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"the identities {self.name!r} cannot be opened: {error}") from error

    def _restored(self, error: sqlite3.Error, now: float) -> sqlite3.Connection:
        """Replace a damaged file by a new one with the rows of its copy."""
        self.quarantined = _files.quarantine(self.path, now, _files.COMPANIONS, instead="its copy")
        connection = _opened(self.path)
        count = copies.restore(self.copy, connection)
        self.note = (
            f"{self.path.name} was damaged ({error}) and is kept as {self.quarantined.name}; {count} subjects were "
            f"restored from {self.copy.name}" + ("" if count else ": all users are new. Restore a backup")
        )
        return connection

    def _lacks_copy(self, error: Exception) -> None:
        """Note that the copy, a precaution, is not complete; the file itself is sound."""
        if not self.note:
            self.note = f"the copy {str(self.copy)!r} is not complete until the next start: {error}"
            _log.warning("%s", self.note)

    def incident(self) -> str:
        """What was found damaged when the file was opened, or missing later; empty for nothing."""
        return self.note

    def fault(self) -> str:
        """Reason why subjects cannot be read or written now: the file is gone or damaged; empty if they can."""
        return "" if self._closed else self._files.fault() or self._damage

    def seen(self) -> int | None:
        """The erasure count; None if the file cannot be read at this moment."""
        with suppress(sqlite3.Error), self._glancing:
            head = b"" if self._changes is None else self._changes[: _files.INDEX_HEAD]
            if not head or head != self._read[0]:
                self._read = head, int(self._glance.execute(_ERASURES).fetchone()[0])
            return self._read[1]
        return None

    def glance(self, who: str) -> str | None:
        """The subject of a user, read without waiting for a lock."""
        with suppress(sqlite3.Error), self._glancing:
            return _find(self._glance, [who]).get(who)
        return None

    def erasures(self) -> int:
        """The number of erasures so far."""
        with self._using() as connection:
            return _erasures(connection)

    def find(self, people: Sequence[str]) -> dict[str, str]:
        """Return user → subject for those of the users that have one."""
        with self._using() as connection:
            return _find(connection, people)

    def recent(self) -> dict[str, str]:
        """Return nothing: `glance` finds all users."""
        return {}

    def make(self, offers: Sequence[Offer], *, aliases: bool = False) -> None:
        """Insert subjects, unless any user was erased since they were made; see `IdentityRows.make`."""
        rows = [
            (each.subject, _alias(each.who, each.subject) if aliases else each.who, each.erasures) for each in offers
        ]
        with self._using() as connection:
            connection.execute(_MAKE, (json.dumps(rows), b"".join(offer.key for offer in offers)))
            try:
                copies.extend(self.copy, connection, [offer.subject for offer in offers])
            except (OSError, sqlite3.Error) as error:
                self._lacks_copy(error)

    def unknown(self, subjects: Sequence[str]) -> list[str]:
        """Those subjects that the file does not have."""
        with self._using() as connection:
            rows = connection.execute(_UNKNOWN, (json.dumps(list(subjects)),)).fetchall()
        return [str(subject) for (subject,) in rows]

    def owner(self, subject: str) -> str | None:
        """The user of a subject or alias."""
        row = self._row("SELECT who FROM subjects WHERE subject = ?", subject)
        return None if row is None else json.dumps(json.loads(row[0])[:2])

    def key(self, subject: str) -> bytes | None:
        """The key of a subject or alias."""
        row = self._row("SELECT key FROM subjects WHERE subject = ?", subject)
        return None if row is None else bytes(row[0])

    def subjects(self, who: str) -> tuple[str, ...]:
        """The subjects of a user: the canonical one first, then aliases."""
        with self._using() as connection:
            rows = connection.execute(_SUBJECTS, (who, *_alias_bounds(who))).fetchall()
        return tuple(str(subject) for (subject,) in rows)

    def erased(self, digests: Collection[str]) -> set[str]:
        """The users of all subjects and aliases whose sha256 is given."""
        with self._using() as connection:
            rows = connection.execute("SELECT subject, who FROM subjects").fetchall()
        theirs = (who for subject, who in rows if hashlib.sha256(subject.encode()).hexdigest() in digests)
        return {json.dumps(json.loads(who)[:2]) for who in theirs}

    def people(self, limit: int, tenant: str | None) -> list[str]:
        """The users that were met last, the newest first."""
        with self._using() as connection:
            return [who for (who,) in connection.execute(_PEOPLE, (tenant, limit))]

    def every(self) -> Iterator[Person]:
        """Iterate over the stored rows, oldest first."""
        with self._using() as connection:
            rows = connection.execute("SELECT subject, who, key FROM subjects ORDER BY rowid").fetchall()
        for subject, text, key in rows:
            who = json.loads(text)
            yield Person(subject, json.dumps(who[:2]), bytes(key), len(who) > 2)

    def merge(self, people: Sequence[Person], salt: bytes | None) -> None:
        """Insert rows of another store; see `IdentityRows.merge`."""
        with self._using() as connection:
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                if salt is not None and not connection.execute("SELECT count(*) FROM subjects").fetchone()[0]:
                    connection.execute("UPDATE salts SET salt = ?", (salt,))
                    self.salt = salt
                new = {*self.unknown([each.subject for each in people])}
                for each in (each for each in people if each.subject in new):
                    alias = each.alias or each.who in _find(connection, [each.who])
                    name = _alias(each.who, each.subject) if alias else each.who
                    connection.execute(
                        "INSERT INTO subjects (subject, who, key) VALUES (?, ?, ?)", (each.subject, name, each.key)
                    )
            copies.rewrite(self.copy, connection)

    def erase(self, who: str) -> Gone:
        """Delete a user's rows, and rewrite the copy."""
        with self._using() as connection:
            # Count before deleting: a subject that another process minted earlier is either written by now, and deleted
            # here, or refused.
            counted = int(connection.execute(_COUNT_ERASURE).fetchone()[0])
            rows = connection.execute(_ERASE, (who, *_alias_bounds(who))).fetchall()
            erasures = _erasures(connection)
            copies.rewrite(self.copy, connection)
        alone = erasures == counted + len(rows)
        return Gone(tuple(str(subject) for (subject,) in rows), counted - 1, erasures, alone)

    def compact(self) -> None:
        """Rewrite the file, and the copy if it differs, so that nothing is left of deleted rows.

        Raises:
            StoreError: the file could not be rewritten, for example because another process keeps reading it.
        """
        with self._using() as connection:
            copies.compare(self.copy, connection)
        deadline = time.monotonic() + self._patience
        while not self._rewritten():
            if time.monotonic() > deadline:
                raise StoreError(
                    f"{self.name!r} could not be rewritten in {self._patience} s: another process keeps it busy. "
                    "The user's rows are deleted; erase again to rewrite the file"
                )
            time.sleep(0.05)

    def spool(self, offers: Sequence[Offer], error: StoreError) -> bool:  # noqa: ARG002 - a lock is held for moments
        """Whether the write only failed because another process kept the file busy; nothing is stored."""
        return _files.is_busy(error.__cause__)

    def unspool(self, subjects: Sequence[str]) -> None:
        """Do nothing: `spool` stores nothing."""

    def abandoned(self) -> list[Offer]:
        """Return nothing: `spool` stores nothing."""
        return []

    def close(self) -> None:
        """Close the file."""
        with self._mutex, self._glancing:
            self._closed = True
            self._connection.close()
            self._glance.close()
            self._changes = None  # last: see `map_changes`

    def _rewritten(self) -> bool:
        """Rewrite the file (VACUUM); False if another connection is reading or writing."""
        try:
            with closing(_connect(self.path, patience_s=0.1)) as connection:
                connection.execute("VACUUM")
                return not connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        except sqlite3.Error as error:
            if _files.is_busy(error):
                return False
            raise StoreError(f"the identities {self.name!r} could not be rewritten: {error}") from error

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        """Provide the connection to one thread at a time."""
        if fault := self._files.fault():
            raise StoreError(fault)
        with self._mutex:
            try:
                yield self._connection
            except sqlite3.Error as error:
                if _files.is_damaged(error):
                    self._damage = f"{self.name!r} is damaged ({error}): restart the gateway, which restores it"
                raise StoreError(f"the identities {self.name!r} could not be used: {error}") from error

    def _row(self, statement: str, *values: str) -> tuple[Any, ...] | None:
        """Read one row, if possible without waiting for writers."""
        row: tuple[Any, ...] | None
        try:
            with self._glancing:
                row = self._glance.execute(statement, values).fetchone()
        except sqlite3.Error:
            with self._using() as connection:
                row = connection.execute(statement, values).fetchone()
        return row


class SqliteIdentities(Identities):
    """The identity store in an SQLite file; see `SqliteRows`."""

    def __init__(
        self, path: str | os.PathLike[str], clock: Callable[[], float] = time.time, patience_s: float = 30.0
    ) -> None:
        super().__init__(SqliteRows(path, clock, patience_s))


class TemporaryIdentities(SqliteIdentities):
    """Temporary copy of an identity store whose disk is full or read-only; the folder is removed at the end.

    Args:
        path: the store; it may be missing.
        reason: why it cannot be written.

    Raises:
        StoreError: there is no folder for temporary files either.
    """

    def __init__(self, path: Path, reason: str) -> None:
        self._reason, self._place = reason, path
        try:
            self._copied = _files.copied_aside(path)
        except OSError as error:
            raise StoreError(f"{reason}, and no temporary folder can be written: {error}") from error
        super().__init__(Path(self._copied.name) / path.name)

    def fault(self) -> str:
        """Reason why the store is only a copy; empty once it is the store itself."""
        if not self._reason:
            return super().fault()
        return f"{self._reason}: new users are known to this process only. Make room or the folder writable"

    def reopen(self) -> bool:
        """Use the store itself, with the users met meanwhile, if it can be written again. Blocks on the disk."""
        try:
            rows = SqliteRows(self._place, time.time, 30.0)
            rows.merge(list(self._rows.every()), self._rows.salt)
        except StoreError:
            return False
        with self._memory:
            before, self._rows, self._reason, self._erasures = self._rows, rows, "", -1
        before.close()
        return True

    def close(self) -> None:
        """Close the store, and remove the copy."""
        super().close()
        self._copied.cleanup()


def _opened(path: Path) -> sqlite3.Connection:
    """Open the file and create its tables, possibly at the same time as other processes."""
    connection = _connect(path, patience_s=5.0)
    try:
        _files.write_ahead(connection)
        for statement in _SCHEMA:
            connection.execute(statement)
        connection.execute("INSERT INTO salts VALUES (1, ?) ON CONFLICT DO NOTHING", (secrets.token_bytes(32),))
        connection.execute("SELECT count(*) FROM subjects").fetchone()
        _files.quick_check(connection, path)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _connect(path: Path, patience_s: float) -> sqlite3.Connection:
    """Open a connection that waits up to `patience_s` for locks, and overwrites deleted rows with zeros."""
    connection = _files.connect(path, patience_s)
    try:
        connection.execute("PRAGMA secure_delete = ON")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _erasures(connection: sqlite3.Connection) -> int:
    return int(connection.execute(_ERASURES).fetchone()[0])


def _find(connection: sqlite3.Connection, people: Sequence[str]) -> dict[str, str]:
    (rows,) = connection.execute(_FIND, (json.dumps(people),)).fetchone()
    return dict(json.loads(rows))


def _alias(who: str, subject: str) -> str:
    """The key of an alias: (tenant, user, subject), which no (tenant, user) equals."""
    return json.dumps([*json.loads(who), subject])


def _alias_bounds(who: str) -> tuple[str, str]:
    """Exclusive bounds of the keys of a user's aliases."""
    return f"{who[:-1]}, ", f"{who[:-1]},!"
