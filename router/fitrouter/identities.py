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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from fitrouter._files import quarantine, write_ahead
from fitrouter.errors import StoreError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

__all__ = ["Identities", "SubjectErased"]

T = TypeVar("T")

_VERSION = b"\x01"
_NONCE = 12
_CACHED = 10_000
_COMPANIONS = ("-wal", "-shm")
_SCHEMA = """CREATE TABLE IF NOT EXISTS subjects (
    subject TEXT PRIMARY KEY,
    who TEXT NOT NULL UNIQUE,
    key BLOB NOT NULL
)"""


class SubjectErased(StoreError):
    """A subject is not in the file, so that its key is gone and what was encrypted under it stays unreadable."""


class _Known(NamedTuple):
    subject: str
    key: bytes


class Identities:
    """Subjects and their keys, the same in every process that opens the file.

    Thread safe. A first sight costs one synced commit (about 5 ms); later ones are answered from memory, as long as no
    other process changed the file. Erasing in one process is seen by the next call in any other.

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
        self._mutex = threading.RLock()
        self._by_who: OrderedDict[str, _Known] = OrderedDict()
        self._by_subject: OrderedDict[str, AESGCM] = OrderedDict()
        self._seen = -1
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._connection = _open(self.path)
            except sqlite3.DatabaseError as error:
                if error.sqlite_errorcode & 0xFF not in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
                    raise
                self.quarantined = quarantine(self.path, clock(), _COMPANIONS)
                self._connection = _open(self.path)
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"the identities {str(self.path)!r} cannot be opened: {error}") from error

    def subject(self, tenant: str, user: str | None) -> str:
        """The token that stands for a user of a tenant, made on first sight; for None the tenant's anonymous one.

        Raises:
            StoreError: the file cannot be read or written.
        """
        who = _who(tenant, user)
        with self._using() as connection:
            known = self._by_who.get(who)
            if known is None:
                known = self._find(connection, who) or self._make(connection, who)
            _remember(self._by_who, who, known)
            return known.subject

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
            self._by_who.clear()
            self._by_subject.clear()
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
        with self._mutex:
            self._connection.close()

    def _rewritten(self) -> bool:
        """Write the file anew; False where a reader or a writer in another process is in the way."""
        with self._using() as connection:
            connection.execute("PRAGMA busy_timeout = 100")  # others of this process wait meanwhile
            try:
                connection.execute("VACUUM")
                return not connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF not in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
                    raise
                return False
            finally:
                connection.execute("PRAGMA busy_timeout = 5000")

    def _find(self, connection: sqlite3.Connection, who: str) -> _Known | None:
        row = connection.execute("SELECT subject, key FROM subjects WHERE who = ?", (who,)).fetchone()
        return _Known(*row) if row else None

    def _make(self, connection: sqlite3.Connection, who: str) -> _Known:
        connection.execute(
            "INSERT INTO subjects (subject, who, key) VALUES (?, ?, ?) ON CONFLICT (who) DO NOTHING",
            (secrets.token_hex(16), who, secrets.token_bytes(32)),
        )
        known = self._find(connection, who)  # another process may have been first
        assert known is not None
        return known

    def _cipher(self, subject: str) -> AESGCM:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        with self._using():
            cipher = self._by_subject.get(subject) or AESGCM(self.key(subject))
            _remember(self._by_subject, subject, cipher)
            return cipher

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        """The connection for one thread at a time; what is remembered is dropped when another process wrote."""
        with self._mutex:
            try:
                (version,) = self._connection.execute("PRAGMA data_version").fetchone()
                if version != self._seen:
                    self._seen = version
                    self._by_who.clear()
                    self._by_subject.clear()
                yield self._connection
            except sqlite3.Error as error:
                raise StoreError(f"the identities {str(self.path)!r} could not be used: {error}") from error


def _open(path: Path) -> sqlite3.Connection:
    """A connection to the file, which others may be making at the same moment."""
    path.touch(mode=0o600)
    connection = sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)
    try:
        write_ahead(connection)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute(_SCHEMA)
        connection.execute("SELECT count(*) FROM subjects").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _who(tenant: str, user: str | None) -> str:
    """One text for one (tenant, user): JSON in ASCII, so that no two pairs meet and any text is allowed."""
    return json.dumps([tenant, user])


def _remember(cache: OrderedDict[str, T], key: str, value: T) -> None:
    cache[key] = value
    cache.move_to_end(key)
    if len(cache) > _CACHED:
        cache.popitem(last=False)
