"""Identity store: maps users to the subjects that stand for them in the journal, and holds their keys."""

from fitrouter.stores.identities._copy import Merged, merge
from fitrouter.stores.identities._identities import Identities, UnknownSubject
from fitrouter.stores.identities._rows import Gone, IdentityRows, Offer, Person, who_is
from fitrouter.stores.identities._sqlite import FILE, SqliteIdentities, SqliteRows, TemporaryIdentities

__all__ = [
    "FILE",
    "Gone",
    "Identities",
    "IdentityRows",
    "Merged",
    "Offer",
    "Person",
    "SqliteIdentities",
    "SqliteRows",
    "TemporaryIdentities",
    "UnknownSubject",
    "merge",
    "who_is",
]
