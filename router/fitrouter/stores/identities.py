"""Who the random tokens of the journal stand for: `identities.db`, the only file that leads back to a person.

A subject is a random token with a random key. Everything kept of a person's text is encrypted under that key, so that
removing one row makes the token anonymous and the text unreadable at once (crypto-shredding).

A request does not wait for a slow file: `mint` gives out a token that is written behind. These invariants hold:

1. A user has at most one subject in the file. Of several processes that mint for one user at once, the first to write
   wins; the tokens of the others are written as aliases of the same user, with their own keys.
2. A token is only ever written under the user it was minted for, and only while nobody was erased since it was minted:
   the file counts erasures, and a write is refused where the count has changed. A token that is refused is given up and
   never written later: `on_orphan` is told, so that its events are erased from the journal.
3. `erase` counts first and deletes then, and deletes and returns the subject, its aliases, and what this process has
   minted and not written yet. With 2, every token of the user that was minted before is deleted, returned or given up.
4. While its write is pending, a token is known to the process that minted it (`known`, `stands_for`, `key`), and to all
   others as soon as the write is durable.

A process that is killed takes its pending tokens along: no row and no key of them was ever written, so that they lead
back to nobody and their texts cannot be read, as after an erasure.
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
from fitrouter.stores._coalesce import Coalescer
from fitrouter.stores._files import quarantine
from fitrouter.stores._identity_rows import (
    COMPANIONS,
    COUNT_ERASURE,
    ERASE,
    Offer,
    alias_bounds,
    alias_name,
    connect,
    count_erasures,
    find,
    is_busy,
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
"""Tokens that may wait to be written."""
_GROUP = 512
_RETRY_S = 1.0
"""Pause before a failed write of minted tokens is tried again."""


class SubjectErased(StoreError):
    """A subject is not in the file, so that its key is gone and what was encrypted under it stays unreadable."""


class Identities:
    """Subjects and their keys, the same in every process that opens the file.

    Thread safe. A first sight costs a synced commit (about 5 ms), which all share that wait at the same moment; later
    ones are answered from memory (about 10 µs). Who cannot wait for the commit mints a token that is written behind.
    Erasing in one process is seen by the next call in any other: the file counts its erasures, and what is remembered
    from before the last one is dropped.

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
        self._offers: dict[str, Offer] = {}
        """By user: what is being written, and what was minted and could not be written yet."""
        self._minted: dict[str, Offer] = {}
        """Those of them that were given out, by subject."""
        self._failure: StoreError | None = None
        """Why the last write failed, where that was not another process that kept the file busy."""
        self._retry: threading.Timer | None = None
        self._closed = False
        self.on_orphan: Callable[[str], object] | None = None
        """Called with every token that was minted and then given up; whoever logged events under it erases them."""
        self._met = Coalescer(self._meet_all, "fitrouter-identities")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._connection = open_file(self.path)
            except sqlite3.DatabaseError as error:
                if error.sqlite_errorcode & 0xFF not in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
                    raise
                self.quarantined = quarantine(self.path, clock(), COMPANIONS)
                self._connection = open_file(self.path)
            self._glance = connect(self.path, patience_s=0.0)
            self._as_of(count_erasures(self._connection))
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"the identities {str(self.path)!r} cannot be opened: {error}") from error

    def subject(self, tenant: str, user: str | None) -> str:
        """The token that stands for a user of a tenant, made on first sight; for None the tenant's anonymous one.

        Raises:
            StoreError: the file cannot be read or written.
        """
        return self.known(tenant, user) or self.meet(tenant, user).result()

    def known(self, tenant: str, user: str | None) -> str | None:
        """The token of somebody who was met before, from memory, or by a read of one row that waits for no lock.

        None where there is none, and where the file cannot be read at this moment.
        """
        who = who_is(tenant, user)
        with self._memory, suppress(sqlite3.Error):  # whoever asks `meet` is told why
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
        """A token at once, for those that can no longer wait for `meet`: made in memory, and written behind.

        The same one is given out for the user until the write has ended. It stands for the user in this process now,
        and in every other one when it is written.

        Raises:
            StoreError: the file cannot be written, or too many tokens wait to be.
        """
        self._require_own_process()
        who = who_is(tenant, user)
        with self._memory:
            self._up_to_date()  # where it is not, tokens are made with an older count, and perhaps given up
            if (found := self._recall(self._by_who, who)) is not None:
                return found
            offer = self._offers.get(who)
            if offer is None or not offer.minted:
                if self._failure is not None:
                    raise StoreError(str(self._failure)) from self._failure
                if len(self._minted) >= _MINTED:
                    raise StoreError(f"{_MINTED} subjects wait to be written to {str(self.path)!r} already")
                offer = self._offer(who, self._erasures)
                offer.minted = True
                self._minted[offer.subject] = offer
        self._write(who)  # a group under way may have passed it
        return offer.subject

    def writing(self, subject: str) -> Future[str] | None:
        """Done when a minted token is written, or could not be; None where nothing is pending."""
        with self._memory:
            offer = self._minted.get(subject)
        return None if offer is None else self._met.ask(offer.who)

    def stands_for(self, subject: str, tenant: str, user: str | None) -> bool:
        """Whether a token is the user's: the subject, an alias, or one that waits to be written here.

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
        """The subject of the user that an alias stands for; any other token as it is given.

        Raises:
            StoreError: the file cannot be read.
        """
        person = self.reveal(subject)
        return subject if person is None else self.known(*person) or subject

    def meet(self, tenant: str, user: str | None) -> Future[str]:
        """The token that `subject` gives, for those that cannot wait for the disk; it fails with `StoreError`.

        Raises:
            StoreError: too many wait already, or this process was forked from the one that opened the file.
        """
        self._require_own_process()
        return self._met.ask(who_is(tenant, user))

    def key(self, subject: str) -> bytes:
        """The 32 bytes that a subject's texts are encrypted under.

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
        """The tenant and the user behind a token or an alias; None where the file has no such subject (any more).

        Raises:
            StoreError: the file cannot be read.
        """
        row = self._row("SELECT who FROM subjects WHERE subject = ?", subject)
        if row is None:
            return None
        tenant, user, *_ = json.loads(row[0])
        return tenant, user

    def erase(self, tenant: str, user: str | None) -> tuple[str, ...]:
        """Forget a user: the rows go, and the file is rewritten so that no free page still holds them.

        Returns:
            The tokens that stood for the user, aliases included, each to be erased from the journal; empty where there
            were none. Calling it again rewrites the file again.

        Raises:
            StoreError: the file could not be rewritten, for example because another process keeps reading it. The rows
                are gone then; call it again to rewrite.
        """
        who = who_is(tenant, user)
        with self._using() as connection:
            # Counted before it is deleted: what another process minted earlier is written before this, and deleted
            # here, or refused.
            counted = int(connection.execute(COUNT_ERASURE).fetchone()[0])
            rows = connection.execute(ERASE, (who, *alias_bounds(who))).fetchall()
            erasures = count_erasures(connection)
            tokens = [str(subject) for (subject,) in rows]
            with self._memory:
                offer = self._offers.get(who)
                if offer is not None and self._withdraw(offer):
                    tokens.append(offer.subject)
                if erasures == counted + len(rows):  # nobody else was erased meanwhile: other users' tokens stay good
                    for other in self._offers.values():
                        if other.erasures >= counted - 1:
                            other.erasures = erasures
                self._as_of(erasures)
        deadline = time.monotonic() + self._patience
        while not self._rewritten():
            if time.monotonic() > deadline:
                raise StoreError(
                    f"{str(self.path)!r} could not be rewritten in {self._patience} s: another process keeps it busy. "
                    "The user's rows are gone; erase again to rewrite the file"
                )
            time.sleep(0.05)
        return tuple(dict.fromkeys(tokens))

    def flush(self) -> None:
        """Write the tokens that wait to be written, one last time; those that cannot be written are given up."""
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
        """Write the file anew; False where a reader or a writer is in the way."""
        try:
            with closing(connect(self.path, patience_s=0.1)) as connection:
                connection.execute("VACUUM")
                return not connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        except sqlite3.Error as error:
            if is_busy(error):
                return False
            raise StoreError(f"the identities {str(self.path)!r} could not be rewritten: {error}") from error

    def _meet_all(self, people: Sequence[str]) -> dict[str, str]:
        """The tokens of many, with one commit for all that are new."""
        try:
            with self._using() as connection:
                found, orphans = self._write_all(connection, people)
        except StoreError as error:
            self._failed(people, error)
            raise
        self._give_up(orphans)
        return found

    def _write_all(self, connection: sqlite3.Connection, people: Sequence[str]) -> tuple[dict[str, str], list[str]]:
        """The tokens of many, and those that were minted and had to be given up."""
        orphans: list[str] = []

        def refuse(offer: Offer) -> None:
            with self._memory:
                if self._withdraw(offer):
                    orphans.append(offer.subject)

        erasures = now = count_erasures(connection)  # before anything is read: nothing older is remembered as of it
        found = find(connection, people)
        while missing := [who for who in people if who not in found]:
            with self._memory:
                offers = {who: self._offer(who, now) for who in missing}
            make(connection, offers)
            found |= find(connection, missing)  # another process may have been first, or have erased them again
            for who, offer in offers.items():
                if who not in found:
                    refuse(offer)
            now = count_erasures(connection)
        written = {who: [subject] for who, subject in found.items()}
        while losers := self._end(people, written, erasures):
            # They were minted while another token of the same user was written.
            aliases = {alias_name(offer): offer for offer in losers}
            make(connection, aliases)
            there = find(connection, list(aliases))
            for alias, offer in aliases.items():
                if alias in there:
                    written[offer.who].append(offer.subject)
                else:
                    refuse(offer)
        return found, orphans

    def _end(self, people: Sequence[str], written: Mapping[str, Sequence[str]], erasures: int) -> list[Offer]:
        """Remember what the file says of users; instead, what was minted for them and is not in the file, if any is."""
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

    # --- memory: all of these are called while `_memory` is held ---

    def _up_to_date(self) -> bool:
        """Forget what is not true any more; False where the file cannot tell."""
        if os.getpid() != self._pid:
            return False
        try:
            self._as_of(count_erasures(self._glance))
        except sqlite3.Error:  # whoever asks the file itself is told why
            return False
        return True

    def _recall(self, memory: OrderedDict[str, T], key: str) -> T | None:
        """What is remembered."""
        found = memory.get(key)
        if found is not None:
            memory.move_to_end(key)
        return found

    def _remember(self, memory: OrderedDict[str, T], found: Mapping[str, T], erasures: int) -> None:
        """Keep what was read from the file after it counted so many erasures."""
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

    def _offer(self, who: str, erasures: int) -> Offer:
        """The token that is to be written for a user."""
        offer = self._offers.get(who)
        if offer is None:
            offer = self._offers[who] = Offer(who, erasures)
        return offer

    def _withdraw(self, offer: Offer) -> bool:
        """Drop a token that was written or will not be; whether somebody was given it."""
        if self._offers.get(offer.who) is offer:
            del self._offers[offer.who]
        return self._minted.pop(offer.subject, None) is not None

    # --- written behind ---

    def _give_up(self, orphans: Sequence[str]) -> None:
        for subject in orphans:
            if self.on_orphan is not None:
                self.on_orphan(subject)

    def _write(self, who: str) -> None:
        """Ask for a write without waiting for it."""
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
        """Keep what was minted for another try."""
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
        """The connection for one thread at a time."""
        self._require_own_process()
        with self._mutex:
            try:
                yield self._connection
            except sqlite3.Error as error:
                raise StoreError(f"the identities {str(self.path)!r} could not be used: {error}") from error

    def _row(self, statement: str, *values: str) -> tuple[Any, ...] | None:
        """One row, by a read that waits for no writer where that is possible."""
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
