"""Identity store: maps users to the pseudonymous subjects that the journal holds.

A subject is a random token with a random key. Stored texts of a user are encrypted under that key, so that deleting one
row makes the subject anonymous and the texts unreadable (crypto-shredding). The rows are in SQLite or in PostgreSQL
(`IdentityRows`); caches and the protocol among processes are the same.

A request does not wait for a slow store: `mint` returns a subject that is written in the background. Invariants:

1. A user has at most one subject in the store. When several processes mint for one user at once, the first write wins;
   the other subjects are written as aliases of the same user, with their own keys.
2. A subject is only written for the user it was minted for, and only if that user was not erased since: the store
   counts erasures, and a write is refused if the count has changed (in PostgreSQL, that of a small group of users). A
   refused subject is given up and never written later: `on_orphan` is called, so that its events are erased from the
   journal.
3. `erase` increments the count, then deletes and returns the subject, its aliases, and this process's pending subject
   of the user. With 2, every subject minted before is deleted, returned or given up.
4. A pending subject is known to the process that minted it (`known`, `stands_for`, `key`), and to all others as soon as
   the write is durable.

When a process is killed, its pending subjects are lost, unless the rows keep them on the disk of the machine, as those
in PostgreSQL do while the server cannot be reached. Of a lost one neither row nor key was written, so that it leads
back to nobody and its texts cannot be read, as after an erasure.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fitrouter.errors import StoreError
from fitrouter.stores.identities._coalesce import Coalescer
from fitrouter.stores.identities._rows import IdentityRows, Offer, who_is

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_log = logging.getLogger("fitrouter")
T = TypeVar("T")

_VERSION = b"\x01"
_NONCE = 12
_CACHED = 10_000
_MINTED = 10_000
"""Most subjects that may be waiting to be written."""
_GROUP = 512
_RETRY_S = 1.0
"""Pause before a failed write is retried."""


class UnknownSubject(StoreError):
    """A subject is not in the store: its key is gone, and texts encrypted under it stay unreadable."""


class Identities:
    """Maps users to subjects and their keys, shared by all processes that use the same rows.

    Thread safe. A new user costs a synced commit (about 5 ms, shared by concurrent calls); known users are answered
    from memory (about 10 µs). `mint` avoids waiting for the commit. The store counts erasures, and caches from before
    the last one are dropped: with a file, an erasure is seen by the next call in every process; with a database, as
    soon as the process hears of it.

    Args:
        rows: the stored rows.
    """

    def __init__(self, rows: IdentityRows) -> None:
        self._rows = rows
        self._pid = os.getpid()
        self._mutex = threading.RLock()
        self._memory = threading.Lock()
        """Never held while anything waits for the store."""
        self._by_who: OrderedDict[str, str] = OrderedDict()
        self._by_subject: OrderedDict[str, AESGCM] = OrderedDict()
        self._erasures = -1
        """The store's erasure count when the caches were last valid."""
        self._offers: dict[str, Offer] = {}
        """By user: subjects being written, and minted ones that could not be written yet."""
        self._minted: dict[str, Offer] = {}
        """The minted ones of them, by subject."""
        self._failure: StoreError | None = None
        self._told = ""
        """The failure of the last write, unless it will pass."""
        self._retry: threading.Timer | None = None
        self._left = False
        """Whether what an earlier process left could not be written yet."""
        self._closed = False
        self.note = ""
        """An incident that who opened it adds."""
        self.on_orphan: Callable[[str], object] | None = None
        """Called with every minted subject that is given up; the callee erases the events logged under it."""
        self._met = Coalescer(self._meet_all, "fitrouter-identities")
        erasures = rows.erasures()
        self._remember(self._by_who, rows.recent(), erasures)

    @property
    def rows(self) -> IdentityRows:
        """The stored rows.

        Raises:
            StoreError: the store was opened before this process was forked.
        """
        self._require_own_process()
        return self._rows

    @property
    def salt(self) -> bytes:
        """A secret of this installation, for hashes in the journal that nobody else can repeat."""
        return self._rows.salt

    @property
    def folder(self) -> Path:
        """The data folder on this machine."""
        return self._rows.folder

    @property
    def incident(self) -> str:
        """Describe what is or was wrong with the store, and what becomes of it; empty for nothing."""
        return "; ".join(filter(None, (self.note, self._rows.incident())))

    def fault(self) -> str:
        """Reason why subjects cannot be read or written now; empty if they can."""
        return "" if self._closed else self._rows.fault()

    def subject(self, tenant: str, user: str | None) -> str:
        """Return the subject of a user, created if new; for None the tenant's anonymous subject.

        Raises:
            StoreError: the store cannot be read or written.
        """
        return self.known(tenant, user) or self.meet(tenant, user).result()

    def known(self, tenant: str, user: str | None) -> str | None:
        """Return the subject of a user if it is found without waiting: in memory, or by reading one row of a file.

        None if it is not, or if the store cannot be read at this moment.
        """
        who = who_is(tenant, user)
        with self._memory:
            if not self._up_to_date():
                return None
            if (found := self._recall(self._by_who, who)) is not None:
                return found
            offer = self._offers.get(who)
            if offer is not None and offer.minted and offer.erasures == self._erasures:
                return offer.subject
            found = self._rows.glance(who)
            if found is not None:
                self._remember(self._by_who, {who: found}, self._erasures)
            return found

    def existing(self, tenant: str, user: str | None) -> str | None:
        """Return the subject of a user if there is one, without creating it. May wait for the store.

        Raises:
            StoreError: the store cannot be read.
        """
        who = who_is(tenant, user)
        return self.known(tenant, user) or self.rows.find([who]).get(who)

    def mint(self, tenant: str, user: str | None) -> str:
        """The subject of a user without waiting for the store; a new one is written in the background.

        Further calls for the user return the same subject. It is known to other processes once it is written.

        Raises:
            StoreError: the store cannot be written, or too many subjects are waiting to be.
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
                    raise StoreError(
                        f"{_MINTED} subjects are waiting to be written to {self._rows.name!r}; retry later"
                    )
                offer = self._offer(who, self._erasures)
                offer.minted = True
                self._minted[offer.subject] = offer
        self._write(who)  # always: the batch being written may not include it
        return offer.subject

    def writing(self, subject: str) -> Future[str] | None:
        """Return a future that ends when a minted subject is written or given up; None if no write is pending."""
        with self._memory:
            offer = self._minted.get(subject)
        return None if offer is None else self._met.ask(offer.who)

    def stands_for(self, subject: str, tenant: str, user: str | None) -> bool:
        """Whether a subject is the user's: in the store, as an alias, or pending in this process.

        Raises:
            StoreError: the store cannot be read.
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
            StoreError: the store cannot be read.
        """
        person = self.reveal(subject)
        return subject if person is None else self.existing(*person) or subject

    def meet(self, tenant: str, user: str | None) -> Future[str]:
        """Start `subject` and return its future, for callers that must not block; it fails with `StoreError`.

        Raises:
            StoreError: too many lookups are pending, or the store was opened before this process was forked.
        """
        self._require_own_process()
        return self._met.ask(who_is(tenant, user))

    def key(self, subject: str) -> bytes:
        """The encryption key of a subject: 32 bytes.

        Raises:
            UnknownSubject: there is no such subject.
            StoreError: the store cannot be read.
        """
        with self._memory:
            offer = self._minted.get(subject)
        if offer is not None:
            return offer.key
        key = self.rows.key(subject)
        if key is None:
            raise UnknownSubject(f"the subject {subject!r} has no key: it was erased, or never existed")
        return key

    def encrypt(self, subject: str | None, text: str, tenant: str = "default") -> bytes:
        """Encrypt a text under the subject's key (AES-256-GCM); the subject is part of the header.

        Args:
            subject: a subject, or None for the anonymous subject of the tenant.
            text: any string, lone surrogates included.
            tenant: used only if the subject is None.

        Raises:
            UnknownSubject: there is no such subject.
            StoreError: the store cannot be read.
        """
        subject = self.subject(tenant, None) if subject is None else subject
        name = subject.encode()
        header = _VERSION + bytes([len(name)]) + name
        nonce = secrets.token_bytes(_NONCE)
        return header + nonce + self._cipher(subject).encrypt(nonce, text.encode("utf-8", "surrogatepass"), header)

    def at_hand(self, subject: str | None, tenant: str = "default") -> bool:
        """Whether `encrypt` can be called without waiting for the store: the subject's key is in memory."""
        subject = self.known(tenant, None) if subject is None else subject
        with self._memory:
            return subject is not None and self._up_to_date() and subject in self._by_subject

    def decrypt(self, blob: bytes) -> str:
        """Decrypt the output of `encrypt`.

        Raises:
            UnknownSubject: the subject was erased; the text cannot be recovered.
            ValueError: the bytes are not an output of `encrypt`, or were changed.
            StoreError: the store cannot be read.
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
        """The (tenant, user) of a subject or alias; None if the store has no such subject.

        Raises:
            StoreError: the store cannot be read.
        """
        who = self.rows.owner(subject)
        return None if who is None else _person(who)

    def subjects(self, tenant: str, user: str) -> tuple[str, ...]:
        """All subjects of a user as far as the store has them: the canonical one first, then its aliases.

        Raises:
            StoreError: the store cannot be read.
        """
        return self.rows.subjects(who_is(tenant, user))

    def erased(self, digests: Collection[str]) -> set[tuple[str, str | None]]:
        """The (tenant, user) of all subjects and aliases whose digests are given.

        Raises:
            StoreError: the store cannot be read.
        """
        return {*map(_person, self.rows.erased(digests))}

    def unknown(self, subjects: Sequence[str]) -> list[str]:
        """The subjects that the store lacks.

        Raises:
            StoreError: the store cannot be read.
        """
        return self.rows.unknown(subjects)

    def people(self, limit: int, tenant: str | None = None) -> list[tuple[str, str]]:
        """The (tenant, user) pairs that were met last, the newest first.

        Args:
            limit: most pairs; -1 for all.
            tenant: of the users; None for all.

        Raises:
            StoreError: the store cannot be read.
        """
        return [(tenant, user or "") for tenant, user in map(_person, self.rows.people(limit, tenant))]

    def erase(self, tenant: str, user: str | None) -> tuple[str, ...]:
        """Delete a user's rows and rewrite the store, so that no free page still holds them.

        Returns:
            The user's subjects, aliases included, each to be erased from the journal. Calling again is allowed, and
            rewrites the store again.

        Raises:
            StoreError: the store could not be rewritten, for example because another process keeps reading a file. The
                rows are deleted then; call again to rewrite.
        """
        who = who_is(tenant, user)
        with self._mutex:
            gone = self.rows.erase(who)
            tokens, withdrawn = [*gone.subjects], list[Offer]()
            with self._memory:
                offer = self._offers.get(who)
                if offer is not None and self._withdraw(offer):
                    tokens.append(offer.subject)
                    withdrawn.append(offer)
                if gone.alone:  # other users' subjects stay valid
                    for other in self._offers.values():
                        if other.erasures >= gone.before:
                            other.erasures = gone.after
                self._as_of(gone.after)
            self._unspool(withdrawn)
        self.compact()
        return tuple(dict.fromkeys(tokens))

    def compact(self) -> None:
        """Rewrite the store, so that nothing is left of deleted rows.

        Raises:
            StoreError: it could not be rewritten, for example because another process keeps reading a file.
        """
        self.rows.compact()

    def hand_in(self) -> None:
        """Write what an earlier process left on this machine's disk; after a failure it is tried again later."""
        try:
            self._write_kept(self.rows.abandoned())
            self._left = False
        except StoreError as error:
            self._left = True
            self._write_later(error)

    def flush(self) -> None:
        """Write the pending subjects; those that cannot be written are given up, unless they are on the disk."""
        with self._memory:
            offers = [*self._minted.values()]
        try:
            self._write_kept([offer for offer in offers if offer.kept])
        except StoreError as error:
            _log.warning("users wait on this machine's disk for the next start: %s", error)
        people = [offer.who for offer in offers if not offer.kept]
        for start in range(0, len(people), _GROUP):
            group = people[start : start + _GROUP]
            try:
                self._meet_all(group)
            except StoreError as error:
                _log.warning("%d new users cannot be written; their events are erased: %s", len(group), error)
                with self._memory:
                    failed = [self._offers[who] for who in group if who in self._offers]
                    orphans = [offer for offer in failed if not offer.kept and self._withdraw(offer)]
                self._give_up(orphans)

    def close(self) -> None:
        """Close the store."""
        with self._mutex, self._memory:
            self._closed = True
            if self._retry is not None:
                self._retry.cancel()
        self._rows.close()

    def _meet_all(self, people: Sequence[str]) -> dict[str, str]:
        """The subjects of several users, with one commit for all new ones."""
        try:
            with self._mutex:
                found, orphans = self._write_all(people)
        except StoreError as error:
            self._failed(people, error)
            raise
        self._give_up(orphans)
        return found

    def _write_all(self, people: Sequence[str]) -> tuple[dict[str, str], list[Offer]]:
        """Write the missing subjects of users; return user → subject, and the minted subjects that were given up."""
        rows, orphans = self.rows, list[Offer]()

        def refuse(offer: Offer) -> None:
            with self._memory:
                if self._withdraw(offer):
                    orphans.append(offer)

        erasures = now = rows.erasures()  # before reading, so that results are cached with a safe count
        found = rows.find(people)
        while missing := [who for who in people if who not in found]:
            with self._memory:
                offers = {who: self._offer(who, now) for who in missing}
            rows.make([*offers.values()])
            found |= rows.find(missing)  # another process may have written first, or have erased the user
            for who, offer in offers.items():
                if who not in found:
                    refuse(offer)
            now = rows.erasures()
        written = {who: [subject] for who, subject in found.items()}
        while losers := self._end(people, written, erasures):
            # Minted while another subject of the same user was written.
            rows.make(losers, aliases=True)
            refused = {*rows.unknown([offer.subject for offer in losers])}
            for offer in losers:
                if offer.subject in refused:
                    refuse(offer)
                else:
                    written[offer.who].append(offer.subject)
        return found, orphans

    def _write_kept(self, offers: Sequence[Offer]) -> None:
        """Write subjects that waited on this machine's disk; a user who was erased meanwhile gets no other subject."""
        for start in range(0, len(offers), _GROUP):
            group = offers[start : start + _GROUP]
            with self._mutex:
                erasures = self.rows.erasures()
                self.rows.make(group)
                found = self.rows.find([offer.who for offer in group])
                self.rows.make([offer for offer in group if found.get(offer.who) != offer.subject], aliases=True)
                refused = {*self.rows.unknown([offer.subject for offer in group])}
                with self._memory:
                    for offer in group:
                        self._withdraw(offer)
                    self._failure = None
                    self._remember(self._by_who, found, erasures)
            self._give_up([offer for offer in group if offer.subject in refused])
            self._unspool(group)

    def _end(self, people: Sequence[str], written: Mapping[str, Sequence[str]], erasures: int) -> list[Offer]:
        """Cache the users' subjects and return []; or return the minted subjects that the store still lacks."""
        with self._memory:
            offers = [self._offers[who] for who in people if who in self._offers]
            losers = [offer for offer in offers if offer.minted and offer.subject not in written[offer.who]]
            if not losers:
                self._failure = None
                for offer in offers:
                    self._withdraw(offer)
                self._remember(self._by_who, {who: written[who][0] for who in people}, erasures)
        if not losers:
            self._unspool(offers)
        return losers

    def _unspool(self, offers: Sequence[Offer]) -> None:
        """Remove written or withdrawn subjects from this machine's disk."""
        if kept := [offer.subject for offer in offers if offer.kept]:
            self._rows.unspool(kept)

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
        """Drop outdated caches; False if the store's erasure count cannot be known."""
        if os.getpid() != self._pid or (erasures := self._rows.seen()) is None:
            return False  # the caller's own access to the store reports the error
        self._as_of(erasures)
        return True

    def _recall(self, memory: OrderedDict[str, T], key: str) -> T | None:
        """Return a cached value, now the one used last; None if it is not cached."""
        found = memory.get(key)
        if found is not None:
            memory.move_to_end(key)
        return found

    def _remember(self, memory: OrderedDict[str, T], found: Mapping[str, T], erasures: int) -> None:
        """Cache values that were read at an erasure count; drop them if the count has risen since."""
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
        """Return the subject that is to be written for a user, made if there is none."""
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

    def _give_up(self, orphans: Sequence[Offer]) -> None:
        for offer in orphans:
            if self.on_orphan is not None:
                self.on_orphan(offer.subject)
        self._unspool(orphans)

    def _write(self, who: str) -> None:
        """Request a write without waiting for it."""
        try:
            self._met.ask(who)
        except StoreError as error:
            self._write_later(error)

    def _write_later(self, error: StoreError | None = None) -> None:
        if error is not None and str(error) != self._told:
            self._told = str(error)
            _log.warning("users could not be written to %s, which is tried again: %s", self._rows.name, error)
        with self._memory:
            if self._retry is None and not self._closed:
                self._retry = threading.Timer(_RETRY_S, self._write_again)
                self._retry.daemon = True
                self._retry.start()

    def _write_again(self) -> None:
        with self._memory:
            self._retry = None
            offers = [*self._minted.values()]
        if self._left:
            self.hand_in()
        try:
            self._write_kept([offer for offer in offers if offer.kept])
        except StoreError as error:
            self._write_later(error)
        for offer in offers:
            if not offer.kept:
                self._write(offer.who)

    def _failed(self, people: Sequence[str], error: StoreError) -> None:
        """Keep minted subjects for a retry after a failed write."""
        with self._memory:
            offers = [self._offers[who] for who in people if who in self._offers]
            for offer in offers:
                if not offer.minted:
                    self._withdraw(offer)
        passing = self._rows.spool([offer for offer in offers if offer.minted], error)
        with self._memory:
            self._failure = None if passing else error
            gone = [offer for offer in offers if self._offers.get(offer.who) is not offer]
            again = bool(self._minted)
        self._unspool(gone)  # erased meanwhile
        if again:
            self._write_later()

    def _require_own_process(self) -> None:
        if os.getpid() != self._pid:
            raise StoreError(
                f"the identities {self._rows.name!r} were opened before this process was forked; open them again in it"
            )


def _person(who: str) -> tuple[str, str | None]:
    """Parse the key of a user to (tenant, user)."""
    tenant, user = json.loads(who)
    return tenant, user
