"""Copying an identity store into another one."""

from __future__ import annotations

import hashlib
from itertools import islice
from typing import NamedTuple

import msgspec

from fitrouter.errors import StoreError
from fitrouter.stores.identities._rows import IdentityRows, Person

_BATCH = 2000


class Merged(NamedTuple):
    """Result of `merge`."""

    subjects: int
    """In the source, aliases included."""
    added: int
    """Of them by this call: others were there before."""


def merge(source: IdentityRows, target: IdentityRows) -> Merged:
    """Copy subjects, keys and the salt, and compare both stores; a repeated call goes on after an interruption.

    A user whom both know keeps the subject of the target, for whom the source's becomes an alias. The salt is copied to
    an empty target only. Nobody else may write either meanwhile: whoever is erased in one only would come back.

    Args:
        source: is only read.
        target: is added to.

    Raises:
        StoreError: a store cannot be used, or the copy differs from its source.
    """
    count = added = 0
    target.merge([], source.salt)
    rows = source.every()
    while people := list(islice(rows, _BATCH)):
        new = target.unknown([each.subject for each in people])
        target.merge(people, None)
        count, added = count + len(people), added + len(new)
    there = {_digest(each) for each in target.every()}
    if lost := [each.subject for each in source.every() if _digest(each) not in there]:
        raise StoreError(
            f"the copy differs from its source: {target.name} has {len(lost)} of the {count} subjects of {source.name} "
            "otherwise. Stop what writes either, and copy again"
        )
    return Merged(count, added)


def _digest(person: Person) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode((person.subject, person.who, person.key))).digest()[:16]
