"""Identity store: maps users to the pseudonymous subjects that the journal holds (`identities.db`).

A subject is a random token with a random key. Stored texts of a user are encrypted under that key, so that deleting one
row makes the subject anonymous and the texts unreadable (crypto-shredding). Only the copy beside it, from which a
damaged file is restored, also leads back to a user; `erase` rewrites both.

A request does not wait for a slow file: `mint` returns a subject that is written in the background. Invariants:

1. A user has at most one subject in the file. When several processes mint for one user at once, the first write wins;
   the other subjects are written as aliases of the same user, with their own keys.
2. A subject is only written for the user it was minted for, and only if no user was erased since: the file counts
   erasures, and a write is refused if the count has changed. A refused subject is given up and never written later:
   `on_orphan` is called, so that its events are erased from the journal.
3. `erase` increments the count, then deletes and returns the subject, its aliases, and this process's pending subject
   of the user. With 2, every subject minted before is deleted, returned or given up.
4. A pending subject is known to the process that minted it (`known`, `stands_for`, `key`), and to all others as soon as
   the write is durable.

When a process is killed, its pending subjects are lost: neither row nor key was written, so that they lead back to
nobody and their texts cannot be read, as after an erasure.
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
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fitrouter.errors import StoreError
from fitrouter.stores import _identity_copy as copies
from fitrouter.stores._coalesce import Coalescer
from fitrouter.stores._files import (
    COMPANIONS,
    OpenFiles,
    copied_aside,
    is_busy,
    is_damaged,
    make_folder,
    quarantine,
)
from fitrouter.stores._identity_rows import (
    COUNT_ERASURE,
    ERASE,
    PEOPLE,
    SUBJECTS,
    UNKNOWN,
    Offer,
    alias_bounds,
    alias_name,
    connect,
    count_erasures,
    find,
    find_salt,
    make,
    open_file,
    who_is,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM


T = TypeVar("T")

_VERSION = b"\x01"
_NONCE = 12
_CACHED = 10_000
_MINTED = 10_000
"""Most subjects that may be waiting to be written."""
_GROUP = 512
_RETRY_S = 1.0
"""Pause before a failed write is retried."""


class SubjectErased(StoreError):
    """A subject is not in the file: its key is gone, and texts encrypted under it stay unreadable."""


class Identities:
    """Subjects of users and their keys, shared by all processes that open the file.

    Thread safe. A new user costs a synced commit (about 5 ms, shared by concurrent calls); known users are answered
    from memory (about 10 µs). `mint` avoids waiting for the commit. An erasure is seen by the next call in every other
    process: the file counts erasures, and caches from before the last one are dropped.

    A corrupt file is renamed to `<path>.corrupt-<seconds>` and restored from its copy; `quarantined` is then its new
    path.

    Args:
        path: the file, readable by its owner only; its folder is created.
        clock: seconds since the epoch, for the name of a quarantined file.
        patience_s: how long `erase` waits for readers in other processes.

    Raises:
        StoreError: the file cannot be opened.
    """

    def __init__(
        self, path: str | os.PathLike[str], clock: Callable[[], float] = time.time, patience_s: float = 30.0
    ) -> None:
        self.path = Path(path).absolute()
        self.copy = self.path.with_name(f"{self.path.name}.copy")
        """The file from which a damaged one is restored."""
        self.quarantined: Path | None = None
        self.incident = ""
        """What was found damaged when the file was opened, and what became of it; empty for nothing."""
        self._damage = ""
        self._patience = patience_s
        self._pid = os.getpid()
        self._mutex = threading.RLock()
        self._memory = threading.Lock()
        """Never held while anything waits for the disk."""
        self._by_who: OrderedDict[str, str] = OrderedDict()
        self._by_subject: OrderedDict[str, AESGCM] = OrderedDict()
        self._erasures = -1
        """The file's erasure count when the caches were last valid."""
        self._offers: dict[str, Offer] = {}
        """By user: subjects being written, and minted ones that could not be written yet."""
        self._minted: dict[str, Offer] = {}
        """The minted ones of them, by subject."""
        self._failure: StoreError | None = None
        """The failure of the last write, unless another process only kept the file busy."""
        self._retry: threading.Timer | None = None
        self._closed = False
        self.on_orphan: Callable[[str], object] | None = None
        """Called with every minted subject that is given up; the callee erases the events logged under it."""
        self._met = Coalescer(self._meet_all, "fitrouter-identities")
        try:
            make_folder(self.path.parent)
            try:
                self._connection = open_file(self.path)
            except sqlite3.DatabaseError as error:
                if not is_damaged(error):
                    raise
                self._connection = self._restored(error, clock())
            self._compare()
            self.salt = find_salt(self._connection)
            """A secret of this installation, for hashes in the journal that nobody else can repeat."""
            self._glance = connect(self.path, patience_s=0.0)
            self._files = OpenFiles(self.path)
            self._as_of(count_erasures(self._connection))
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"the identities {str(self.path)!r} cannot be opened: {error}") from error

    def _restored(self, error: sqlite3.Error, now: float) -> sqlite3.Connection:
        """Replace a damaged file by what its copy holds."""
        self.quarantined = quarantine(self.path, now, COMPANIONS, instead="its copy")
        connection = open_file(self.path)
        count = copies.restore(self.copy, connection)
        self.incident = (
            f"{self.path.name} was damaged ({error}) and is kept as {self.quarantined.name}; {count} subjects were "
            f"restored from {self.copy.name}" + ("" if count else ": all users are new. Restore a backup")
        )
        return connection

    def _compare(self) -> None:
        with suppress(OSError, ValueError, sqlite3.Error):  # a copy is a precaution; the file itself is sound
            copies.compare(self.copy, self._connection)

    def fault(self) -> str:
        """Reason why subjects cannot be read or written now (file missing or damaged); empty if they can."""
        return "" if self._closed else self._files.fault() or self._damage

    def subject(self, tenant: str, user: str | None) -> str:
        """The subject of a user, created at first; for None the tenant's anonymous subject.

        Raises:
            StoreError: the file cannot be read or written.
        """
        return self.known(tenant, user) or self.meet(tenant, user).result()

    def known(self, tenant: str, user: str | None) -> str | None:
        """The subject of a user if one exists, from memory or by reading one row without waiting for a lock.

        None if there is none, or if the file cannot be read at this moment.
        """
        who = who_is(tenant, user)
        with self._memory, suppress(sqlite3.Error):  # `meet` reports the error
            if not self._up_to_date():
                return None
            if (found := self._recall(self._by_who, who)) is not None:
                return found
            offer = self._offers.get(who)
            if offer is not None and offer.minted and offer.erasures == self._erasures:
                return offer.subject
            found = find(self._glance, [who]).get(who)
            if found is not None:
                self._remember(self._by_who, {who: found}, self._erasures)
            return found
        return None

    def mint(self, tenant: str, user: str | None) -> str:
        """The subject of a user without waiting for the disk; a new one is written in the background.

        Further calls for the user return the same subject. It is known to other processes once it is written.

        Raises:
            StoreError: the file cannot be written, or too many subjects are waiting to be.
        """
        self._require_own_process()
        who = who_is(tenant, user)
        with self._memory:
            self._up_to_date()  # if this fails, the subject gets an older erasure count and may be given up
            if (found := self._recall(self._by_who, who)) is not None:
                return found
            offer = self._offers.get(who)
            if offer is None or not offer.minted:
                if self._failure is not None:
                    raise StoreError(str(self._failure)) from self._failure
                if len(self._minted) >= _MINTED:
                    raise StoreError(f"{_MINTED} subjects are waiting to be written to {str(self.path)!r}; retry later")
                offer = self._offer(who, self._erasures)
                offer.minted = True
                self._minted[offer.subject] = offer
        self._write(who)  # always: the batch being written may not include it
        return offer.subject

    def writing(self, subject: str) -> Future[str] | None:
        """Resolves when a minted subject is written, or could not be; None if no write is pending."""
        with self._memory:
            offer = self._minted.get(subject)
        return None if offer is None else self._met.ask(offer.who)

    def stands_for(self, subject: str, tenant: str, user: str | None) -> bool:
        """Whether a subject is the user's: in the file, as an alias, or pending in this process.

        Raises:
            StoreError: the file cannot be read.
        """
        if self.known(tenant, user) == subject:
            return True
        with self._memory:
            offer = self._offers.get(who_is(tenant, user))
            if offer is not None and offer.minted and offer.subject == subject:
                return True
        return self.reveal(subject) == (tenant, user)

    def canonical(self, subject: str) -> str:
        """The subject of an alias's user; any other token unchanged.

        Raises:
            StoreError: the file cannot be read.
        """
        person = self.reveal(subject)
        return subject if person is None else self.known(*person) or subject

    def meet(self, tenant: str, user: str | None) -> Future[str]:
        """The result of `subject` as a future, for callers that must not block; it fails with `StoreError`.

        Raises:
            StoreError: too many lookups are pending, or the store was opened before this process was forked.
        """
        self._require_own_process()
        return self._met.ask(who_is(tenant, user))

    def key(self, subject: str) -> bytes:
        """The encryption key of a subject: 32 bytes.

        Raises:
            SubjectErased: there is no such subject.
            StoreError: the file cannot be read.
        """
        with self._memory:
            offer = self._minted.get(subject)
        if offer is not None:
            return offer.key
        row = self._row("SELECT key FROM subjects WHERE subject = ?", subject)
        if row is None:
            raise SubjectErased(f"the subject {subject!r} has no key: it was erased, or never existed")
        return bytes(row[0])

    def encrypt(self, subject: str | None, text: str, tenant: str = "default") -> bytes:
        """Encrypt a text under the subject's key (AES-256-GCM); the subject is part of the header.

        Args:
            subject: a subject, or None for the anonymous subject of the tenant.
            text: any string, lone surrogates included.
            tenant: used only if the subject is None.

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
        """Decrypt the output of `encrypt`.

        Raises:
            SubjectErased: the subject was erased; the text cannot be recovered.
            ValueError: the bytes are not an output of `encrypt`, or were changed.
            StoreError: the file cannot be read.
        """
        from cryptography.exceptions import InvalidTag

        end = 2 + blob[1] if len(blob) > 1 and blob[:1] == _VERSION else len(blob)
        header, nonce, sealed = blob[:end], blob[end : end + _NONCE], blob[end + _NONCE :]
        if not sealed:
            raise ValueError(f"a blob of {len(blob)} bytes cannot be decrypted: it is truncated, or of another version")
        try:
            cipher = self._cipher(header[2:].decode())
            return cipher.decrypt(nonce, sealed, header).decode("utf-8", "surrogatepass")
        except (InvalidTag, UnicodeDecodeError):
            raise ValueError(
                f"a blob of {len(blob)} bytes cannot be decrypted: it was changed, or belongs to another installation"
            ) from None

    def reveal(self, subject: str) -> tuple[str, str | None] | None:
        """The (tenant, user) of a subject or alias; None if the file has no such subject.

        Raises:
            StoreError: the file cannot be read.
        """
        row = self._row("SELECT who FROM subjects WHERE subject = ?", subject)
        if row is None:
            return None
        tenant, user, *_ = json.loads(row[0])
        return tenant, user

    def subjects(self, tenant: str, user: str) -> tuple[str, ...]:
        """All subjects of a user as far as the file has them: the canonical one first, then its aliases.

        Raises:
            StoreError: the file cannot be read.
        """
        who = who_is(tenant, user)
        with self._using() as connection:
            rows = connection.execute(SUBJECTS, (who, *alias_bounds(who))).fetchall()
        return tuple(str(subject) for (subject,) in rows)

    def find(self, wanted: Callable[[str], bool]) -> set[tuple[str, str | None]]:
        """The (tenant, user) of all subjects and aliases for which a function is true.

        Raises:
            StoreError: the file cannot be read.
        """
        with self._using() as connection:
            rows = connection.execute("SELECT subject, who FROM subjects").fetchall()
        return {(who[0], who[1]) for who in (json.loads(text) for subject, text in rows if wanted(subject))}

    def unknown(self, subjects: Sequence[str]) -> list[str]:
        """The subjects that the file lacks.

        Raises:
            StoreError: the file cannot be read.
        """
        with self._using() as connection:
            rows = connection.execute(UNKNOWN, (json.dumps(list(subjects)),)).fetchall()
        return [str(subject) for (subject,) in rows]

    def people(self, limit: int, tenant: str | None = None) -> list[tuple[str, str]]:
        """The (tenant, user) pairs that were met last, the newest first.

        Args:
            limit: most pairs.
            tenant: of the users; None for all.

        Raises:
            StoreError: the file cannot be read.
        """
        with self._using() as connection:
            rows = connection.execute(PEOPLE, (tenant, limit)).fetchall()
        return [(tenant, user) for tenant, user in (json.loads(who) for (who,) in rows)]

    def erase(self, tenant: str, user: str | None) -> tuple[str, ...]:
        """Delete a user's rows and rewrite the file, so that no free page still holds them.

        Returns:
            The user's subjects, aliases included, each to be erased from the journal. Calling again is allowed, and
            rewrites the file again.

        Raises:
            StoreError: the file could not be rewritten, for example because another process keeps reading it. The rows
                are deleted then; call again to rewrite.
        """
        who = who_is(tenant, user)
        with self._using() as connection:
            # Count before deleting: a subject that another process minted earlier is either written by now, and deleted
            # here, or refused.
            counted = int(connection.execute(COUNT_ERASURE).fetchone()[0])
            rows = connection.execute(ERASE, (who, *alias_bounds(who))).fetchall()
            erasures = count_erasures(connection)
            copies.rewrite(self.copy, connection)
            tokens = [str(subject) for (subject,) in rows]
            with self._memory:
                offer = self._offers.get(who)
                if offer is not None and self._withdraw(offer):
                    tokens.append(offer.subject)
                if erasures == counted + len(rows):  # no other erasure meanwhile: other users' subjects stay valid
                    for other in self._offers.values():
                        if other.erasures >= counted - 1:
                            other.erasures = erasures
                self._as_of(erasures)
        self.compact()
        return tuple(dict.fromkeys(tokens))

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
                    f"{str(self.path)!r} could not be rewritten in {self._patience} s: another process keeps it busy. "
                    "The user's rows are deleted; erase again to rewrite the file"
                )
            time.sleep(0.05)

    def flush(self) -> None:
        """Write the pending subjects; those that cannot be written are given up."""
        with self._memory:
            people = [offer.who for offer in self._minted.values()]
        for start in range(0, len(people), _GROUP):
            group = people[start : start + _GROUP]
            try:
                self._meet_all(group)
            except StoreError:
                with self._memory:
                    offers = [self._offers[who] for who in group if who in self._offers]
                    orphans = [offer.subject for offer in offers if self._withdraw(offer)]
                self._give_up(orphans)

    def close(self) -> None:
        """Close the file."""
        with self._mutex, self._memory:
            self._closed = True
            if self._retry is not None:
                self._retry.cancel()
            self._connection.close()
            self._glance.close()

    def _rewritten(self) -> bool:
        """Rewrite the file (VACUUM); False if another connection is reading or writing."""
        try:
            with closing(connect(self.path, patience_s=0.1)) as connection:
                connection.execute("VACUUM")
                return not connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        except sqlite3.Error as error:
            if is_busy(error):
                return False
            raise StoreError(f"the identities {str(self.path)!r} could not be rewritten: {error}") from error

    def _meet_all(self, people: Sequence[str]) -> dict[str, str]:
        """The subjects of several users, with one commit for all new ones."""
        try:
            with self._using() as connection:
                found, orphans = self._write_all(connection, people)
        except StoreError as error:
            self._failed(people, error)
            raise
        self._give_up(orphans)
        return found

    def _write_all(self, connection: sqlite3.Connection, people: Sequence[str]) -> tuple[dict[str, str], list[str]]:
        """(user → subject, minted subjects that had to be given up)."""
        orphans: list[str] = []

        def refuse(offer: Offer) -> None:
            with self._memory:
                if self._withdraw(offer):
                    orphans.append(offer.subject)

        erasures = now = count_erasures(connection)  # before reading, so that results are cached with a safe count
        found = find(connection, people)
        while missing := [who for who in people if who not in found]:
            with self._memory:
                offers = {who: self._offer(who, now) for who in missing}
            make(connection, offers)
            found |= find(connection, missing)  # another process may have written first, or have erased the user
            self._extend(connection, [offer.subject for offer in offers.values()])
            for who, offer in offers.items():
                if who not in found:
                    refuse(offer)
            now = count_erasures(connection)
        written = {who: [subject] for who, subject in found.items()}
        while losers := self._end(people, written, erasures):
            # Minted while another subject of the same user was written.
            aliases = {alias_name(offer): offer for offer in losers}
            make(connection, aliases)
            there = find(connection, list(aliases))
            self._extend(connection, [offer.subject for offer in losers])
            for alias, offer in aliases.items():
                if alias in there:
                    written[offer.who].append(offer.subject)
                else:
                    refuse(offer)
        return found, orphans

    def _extend(self, connection: sqlite3.Connection, subjects: Sequence[str]) -> None:
        with suppress(OSError, sqlite3.Error):  # the next start completes the copy
            copies.extend(self.copy, connection, subjects)

    def _end(self, people: Sequence[str], written: Mapping[str, Sequence[str]], erasures: int) -> list[Offer]:
        """Cache the users' subjects and return []; if the file still lacks minted ones, return those instead."""
        with self._memory:
            offers = [self._offers[who] for who in people if who in self._offers]
            losers = [offer for offer in offers if offer.minted and offer.subject not in written[offer.who]]
            if not losers:
                self._failure = None
                for offer in offers:
                    self._withdraw(offer)
                self._remember(self._by_who, {who: written[who][0] for who in people}, erasures)
            return losers

    def _cipher(self, subject: str) -> AESGCM:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        with self._memory:
            readable = self._up_to_date()
            erasures = self._erasures
            cipher = self._recall(self._by_subject, subject) if readable else None
        if cipher is None:
            cipher = AESGCM(self.key(subject))
            with self._memory:
                if readable and subject not in self._minted:
                    self._remember(self._by_subject, {subject: cipher}, erasures)
        return cipher

    # --- caches: all of these are called while `_memory` is held ---

    def _up_to_date(self) -> bool:
        """Drop outdated caches; False if the file's erasure count cannot be read."""
        if os.getpid() != self._pid:
            return False
        try:
            self._as_of(count_erasures(self._glance))
        except sqlite3.Error:  # the caller's own access to the file reports the error
            return False
        return True

    def _recall(self, memory: OrderedDict[str, T], key: str) -> T | None:
        """A cached value."""
        found = memory.get(key)
        if found is not None:
            memory.move_to_end(key)
        return found

    def _remember(self, memory: OrderedDict[str, T], found: Mapping[str, T], erasures: int) -> None:
        """Cache values that were read at an erasure count."""
        self._as_of(erasures)
        if erasures == self._erasures:
            memory.update(found)
            while len(memory) > _CACHED:
                memory.popitem(last=False)

    def _as_of(self, erasures: int) -> None:
        """Drop the caches if the erasure count has risen."""
        if erasures > self._erasures:
            self._erasures = erasures
            self._by_who.clear()
            self._by_subject.clear()

    def _offer(self, who: str, erasures: int) -> Offer:
        """The subject to be written for a user."""
        offer = self._offers.get(who)
        if offer is None:
            offer = self._offers[who] = Offer(who, erasures)
        return offer

    def _withdraw(self, offer: Offer) -> bool:
        """Forget a subject that was written or given up; returns whether it had been minted."""
        if self._offers.get(offer.who) is offer:
            del self._offers[offer.who]
        return self._minted.pop(offer.subject, None) is not None

    # --- writes in the background ---

    def _give_up(self, orphans: Sequence[str]) -> None:
        for subject in orphans:
            if self.on_orphan is not None:
                self.on_orphan(subject)

    def _write(self, who: str) -> None:
        """Request a write without waiting for it."""
        try:
            self._met.ask(who)
        except StoreError:
            self._write_later()

    def _write_later(self) -> None:
        with self._memory:
            if self._retry is None and not self._closed:
                self._retry = threading.Timer(_RETRY_S, self._write_again)
                self._retry.daemon = True
                self._retry.start()

    def _write_again(self) -> None:
        with self._memory:
            self._retry = None
            people = [offer.who for offer in self._minted.values()]
        for who in people:
            self._write(who)

    def _failed(self, people: Sequence[str], error: StoreError) -> None:
        """Keep minted subjects for a retry after a failed write."""
        with self._memory:
            self._failure = None if is_busy(error.__cause__) else error
            for who in people:
                offer = self._offers.get(who)
                if offer is not None and not offer.minted:
                    self._withdraw(offer)
            again = bool(self._minted)
        if again:
            self._write_later()

    # --- the file ---

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        """The connection, for one thread at a time."""
        self._require_own_process()
        if fault := self._files.fault():
            raise StoreError(fault)
        with self._mutex:
            try:
                yield self._connection
            except sqlite3.Error as error:
                if is_damaged(error):
                    self._damage = f"{str(self.path)!r} is damaged ({error}): restart the gateway, which restores it"
                raise StoreError(f"the identities {str(self.path)!r} could not be used: {error}") from error

    def _row(self, statement: str, *values: str) -> tuple[Any, ...] | None:
        """One row, if possible by a read that does not wait for writers."""
        self._require_own_process()
        row: tuple[Any, ...] | None
        try:
            with self._memory:
                row = self._glance.execute(statement, values).fetchone()
        except sqlite3.Error:
            with self._using() as connection:
                row = connection.execute(statement, values).fetchone()
        return row

    def _require_own_process(self) -> None:
        if os.getpid() != self._pid:
            raise StoreError(
                f"the identities {str(self.path)!r} were opened before this process was forked; open them again in it"
            )


class TemporaryIdentities(Identities):
    """A copy of a store whose disk is full or read-only, in a temporary folder that is removed at the end.

    Args:
        path: the store; it may be missing.
        reason: why it cannot be written.

    Raises:
        StoreError: there is no folder for temporary files either.
    """

    def __init__(self, path: Path, reason: str) -> None:
        self._reason = reason
        try:
            self._folder = copied_aside(path)
        except OSError as error:
            raise StoreError(f"{reason}, and no temporary folder can be written: {error}") from error
        super().__init__(Path(self._folder.name) / path.name)

    def fault(self) -> str:
        """Reason why only a copy of the store is in use."""
        return f"{self._reason}: new users are forgotten at the end. Make room or the folder writable, then restart"

    def close(self) -> None:
        """Close and remove the copy."""
        super().close()
        self._folder.cleanup()
