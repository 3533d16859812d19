"""Stores that cannot be read: every read of one fails, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fitrouter.errors import StoreError
from fitrouter.stores.identities import SqliteRows
from fitrouter.stores.journal import SqliteJournal
from fitrouter.stores.warehouse import Warehouse

WAREHOUSE, JOURNAL, IDENTITIES = STORES = ("warehouse", "journal", "identities")
REASON = "the test made it unreadable"


@contextmanager
def unreadable(store: str) -> Iterator[None]:
    """Let every read of a store fail."""

    def fail(*_args: object, **_more: object) -> Any:
        raise StoreError(REASON)

    with pytest.MonkeyPatch.context() as patch:
        match store:
            case "warehouse":
                patch.setattr(Warehouse, "queries", fail)
            case "journal":
                patch.setattr(SqliteJournal, "_reader", fail)
            case "identities":
                patch.setattr(SqliteRows, "_using", fail)
                patch.setattr(SqliteRows, "_row", fail)
                patch.setattr(SqliteRows, "seen", lambda _self: None)  # what is remembered is not trusted
        yield
