"""Who the random tokens of the journal stand for: `identities.db`, the only file that leads back to a person.

A subject is a random token with a random key. Everything kept of a person's text is encrypted under that key, so that
removing one row makes the token anonymous and the text unreadable at once (crypto-shredding).
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fitrouter.errors import StoreError
from fitrouter.stores._coalesce import Coalescer
from fitrouter.stores._files import quarantine, write_ahead

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM


T = TypeVar("T")

_VERSION = b"\x01"
_NONCE = 12
_CACHED = 10_000
_COMPANIONS = ("-wal", "-shm")
_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS subjects (
        subject TEXT PRIMARY KEY,
        who TEXT NOT NULL UNIQUE,
        key BLOB NOT NULL
    )""",
    # Whoever deletes a row, and by whatever program: it is counted.
    "CREATE TABLE IF NOT EXISTS erasures (one INTEGER PRIMARY KEY CHECK (one = 1), number INTEGER NOT NULL)",
    """CREATE TRIGGER IF NOT EXISTS erased AFTER DELETE ON subjects BEGIN
        INSERT INTO erasures VALUES (1, 1) ON CONFLICT (one) DO UPDATE SET number = number + 1;
    END""",
)

# One statement for a whole group, and one row back: between two steps of a statement Python may give way to a busy
# event loop, for milliseconds each time.
_FIND = """SELECT json_group_array(json_array(who, subject)) FROM subjects
WHERE who IN (SELECT value FROM json_each(?))"""
_MAKE = """INSERT INTO subjects (subject, who, key)
SELECT lower(hex(substr(?2, 48 * key + 1, 16))), value, substr(?2, 48 * key + 17, 32) FROM json_each(?1)
WHERE true ON CONFLICT (who) DO NOTHING"""
_CHANCE = 16 + 32
"""Random bytes of one person: a token and a key."""


class SubjectErased(StoreError):
    """A subject is not in the file, so that its key is gone and what was encrypted under it stays unreadable."""


class Identities:
    """Subjects and their keys, the same in every process that opens the file.

    Thread safe. A first sight costs a synced commit (about 5 ms), which all share that wait at the same moment; later
    ones are answered from memory (about 10 µs). Erasing in one process is seen by the next call in any other: the file
    counts its erasures, and what is remembered from before the last one is dropped.

    A file that is no database any more is renamed to `<path>.corrupt-<seconds>`, and an empty one takes its place:
    everybody is then new. `quarantined` names it.

    Args:
        path: the file; its folder is made. It can be read by its owner only.
        clock: seconds since the epoch, for the name of a quarantined file.
        patience_s: how long `erase` waits for readers in other processes.

    Raises:
        StoreError: the file cannot be opened.
    """

    def __init__(
        self, path: str | os.PathLike[str], clock: Callable[[], float] = time.time, patience_s: float = 30.0
    ) -> None:
        self.path = Path(path).absolute()
        self.quarantined: Path | None = None
        self._patience = patience_s
        self._pid = os.getpid()
        self._mutex = threading.RLock()
        self._memory = threading.Lock()
        """Never held while anything waits for the disk."""
        self._by_who: OrderedDict[str, str] = OrderedDict()
        self._by_subject: OrderedDict[str, AESGCM] = OrderedDict()
        self._erasures = -1
        """As of which what is remembered is true."""
        self._met = Coalescer(self._meet_all, "fitrouter-identities")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._connection = _open(self.path)
            except sqlite3.DatabaseError as error:
                if error.sqlite_errorcode & 0xFF not in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
                    raise
                self.quarantined = quarantine(self.path, clock(), _COMPANIONS)
                self._connection = _open(self.path)
            self._glance = _connect(self.path, patience_s=0.0)
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"the identities {str(self.path)!r} cannot be opened: {error}") from error

    def subject(self, tenant: str, user: str | None) -> str:
        """The token that stands for a user of a tenant, made on first sight; for None the tenant's anonymous one.

        Raises:
            StoreError: the file cannot be read or written.
        """
        return self.known(tenant, user) or self.meet(tenant, user).result()

    def known(self, tenant: str, user: str | None) -> str | None:
        """The token of somebody who was met before, from memory; None where only the file can tell. It never waits."""
        return self._recall(self._by_who, _who(tenant, user))

    def meet(self, tenant: str, user: str | None) -> Future[str]:
        """The token that `subject` gives, for those that cannot wait for the disk; it fails with `StoreError`.

        Raises:
            StoreError: too many wait already, or this process was forked from the one that opened the file.
        """
        self._require_own_process()
        return self._met.ask(_who(tenant, user))

    def key(self, subject: str) -> bytes:
        """The 32 bytes that a subject's texts are encrypted under.

        Raises:
            SubjectErased: there is no such subject.
            StoreError: the file cannot be read.
        """
        with self._using() as connection:
            row = connection.execute("SELECT key FROM subjects WHERE subject = ?", (subject,)).fetchone()
        if row is None:
            raise SubjectErased(f"the subject {subject!r} has no key: it was erased, or was never here")
        return bytes(row[0])

    def encrypt(self, subject: str | None, text: str, tenant: str = "default") -> bytes:
        """The text under the subject's key (AES-256-GCM), with what `decrypt` needs to find the key again.

        Args:
            subject: a token; None for somebody unknown, whose texts lie under the anonymous subject of the tenant.
            text: any text, lone surrogates too.
            tenant: only read where the subject is None.

        Raises:
            SubjectErased: there is no such subject.
            StoreError: the file cannot be read.
        """
        subject = self.subject(tenant, None) if subject is None else subject
        name = subject.encode()
        header = _VERSION + bytes([len(name)]) + name
        nonce = secrets.token_bytes(_NONCE)
        return header + nonce + self._cipher(subject).encrypt(nonce, text.encode("utf-8", "surrogatepass"), header)

    def decrypt(self, blob: bytes) -> str:
        """The text that `encrypt` was given.

        Raises:
            SubjectErased: its subject is gone, and so is the text.
            ValueError: the bytes are not what `encrypt` gave.
            StoreError: the file cannot be read.
        """
        from cryptography.exceptions import InvalidTag

        end = 2 + blob[1] if len(blob) > 1 and blob[:1] == _VERSION else len(blob)
        header, nonce, sealed = blob[:end], blob[end : end + _NONCE], blob[end + _NONCE :]
        if not sealed:
            raise ValueError(f"a blob of {len(blob)} bytes cannot be decrypted: it is cut short, or of another version")
        try:
            cipher = self._cipher(header[2:].decode())
            return cipher.decrypt(nonce, sealed, header).decode("utf-8", "surrogatepass")
        except (InvalidTag, UnicodeDecodeError):
            raise ValueError(
                f"a blob of {len(blob)} bytes cannot be decrypted: it was changed, or belongs to another installation"
            ) from None

    def reveal(self, subject: str) -> tuple[str, str | None] | None:
        """The tenant and the user behind a token; None where there is no such subject (any more).

        Raises:
            StoreError: the file cannot be read.
        """
        with self._using() as connection:
            row = connection.execute("SELECT who FROM subjects WHERE subject = ?", (subject,)).fetchone()
        if row is None:
            return None
        tenant, user = json.loads(row[0])
        return tenant, user

    def erase(self, tenant: str, user: str | None) -> str | None:
        """Forget a user: the row goes, and the file is rewritten so that no free page still holds it.

        Returns:
            The token that stood for the user; None where there was none. Calling it again rewrites the file again.

        Raises:
            StoreError: the file could not be rewritten, for example because another process keeps reading it. The row
                is gone then; call it again to rewrite.
        """
        with self._using() as connection:
            row = connection.execute(
                "DELETE FROM subjects WHERE who = ? RETURNING subject", (_who(tenant, user),)
            ).fetchall()
            erasures = _erasures(connection)
        with self._memory:
            self._as_of(erasures)
        deadline = time.monotonic() + self._patience
        while not self._rewritten():
            if time.monotonic() > deadline:
                raise StoreError(
                    f"{str(self.path)!r} could not be rewritten in {self._patience} s: another process keeps it busy. "
                    "The user's row is gone; erase again to rewrite the file"
                )
            time.sleep(0.05)
        return str(row[0][0]) if row else None

    def close(self) -> None:
        """Close the file."""
        with self._mutex, self._memory:
            self._connection.close()
            self._glance.close()

    def _rewritten(self) -> bool:
        """Write the file anew; False where a reader or a writer is in the way."""
        try:
            with closing(_connect(self.path, patience_s=0.1)) as connection:
                connection.execute("VACUUM")
                return not connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
                return False
            raise StoreError(f"the identities {str(self.path)!r} could not be rewritten: {error}") from error

    def _meet_all(self, people: Sequence[str]) -> dict[str, str]:
        """The tokens of many, with one commit for all that are new."""
        with self._using() as connection:
            erasures = _erasures(connection)  # before anything is read, so that nothing older is remembered as of it
            found = _find(connection, people)
            while missing := [who for who in people if who not in found]:
                _make(connection, missing)
                found |= _find(connection, missing)  # another process may have been first, or have erased them again
        self._remember(self._by_who, found, erasures)
        return found

    def _cipher(self, subject: str) -> AESGCM:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        cipher = self._recall(self._by_subject, subject)
        if cipher is None:
            with self._using() as connection:
                erasures = _erasures(connection)
                cipher = AESGCM(self.key(subject))
            self._remember(self._by_subject, {subject: cipher}, erasures)
        return cipher

    # --- memory ---

    def _recall(self, memory: OrderedDict[str, T], key: str) -> T | None:
        """What is remembered, as long as nobody was erased since."""
        if os.getpid() != self._pid:
            return None
        with self._memory:
            try:
                self._as_of(_erasures(self._glance))
            except sqlite3.Error:  # whoever asks the file itself is told why
                return None
            found = memory.get(key)
            if found is not None:
                memory.move_to_end(key)
            return found

    def _remember(self, memory: OrderedDict[str, T], found: Mapping[str, T], erasures: int) -> None:
        """Keep what was read from the file after it counted so many erasures."""
        with self._memory:
            self._as_of(erasures)
            if erasures == self._erasures:
                memory.update(found)
                while len(memory) > _CACHED:
                    memory.popitem(last=False)

    def _as_of(self, erasures: int) -> None:
        """Drop what is remembered where somebody was erased since."""
        if erasures > self._erasures:
            self._erasures = erasures
            self._by_who.clear()
            self._by_subject.clear()

    # --- the file ---

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        """The connection for one thread at a time."""
        self._require_own_process()
        with self._mutex:
            try:
                yield self._connection
            except sqlite3.Error as error:
                raise StoreError(f"the identities {str(self.path)!r} could not be used: {error}") from error

    def _require_own_process(self) -> None:
        if os.getpid() != self._pid:
            raise StoreError(
                f"the identities {str(self.path)!r} were opened before this process was forked; open them again in it"
            )


def _open(path: Path) -> sqlite3.Connection:
    """A connection to the file with its table, which others may be making at the same moment."""
    path.touch(mode=0o600)
    connection = _connect(path, patience_s=5.0)
    try:
        write_ahead(connection)
        for statement in _SCHEMA:
            connection.execute(statement)
        connection.execute("SELECT count(*) FROM subjects").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _connect(path: Path, patience_s: float) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=patience_s, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA secure_delete = ON")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _erasures(connection: sqlite3.Connection) -> int:
    """How many erasures the file has seen."""
    return int(connection.execute("SELECT coalesce(max(number), 0) FROM erasures").fetchone()[0])


def _find(connection: sqlite3.Connection, people: Sequence[str]) -> dict[str, str]:
    (rows,) = connection.execute(_FIND, (json.dumps(people),)).fetchone()
    return dict(json.loads(rows))


def _make(connection: sqlite3.Connection, people: Sequence[str]) -> None:
    """Make those that are not there yet."""
    chance = secrets.token_bytes(_CHANCE * len(people))
    connection.execute(_MAKE, (json.dumps(people), chance))


def _who(tenant: str, user: str | None) -> str:
    """One text for one (tenant, user): JSON in ASCII, so that no two pairs meet and any text is allowed."""
    return json.dumps([tenant, user])
