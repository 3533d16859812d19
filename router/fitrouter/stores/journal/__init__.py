"""The event log (the source of truth): in SQLite, and in memory for tests."""

from fitrouter.stores.journal._base import Entry, Journal, Lease, Row, Snapshot, Spooled
from fitrouter.stores.journal._memory import MemoryJournal
from fitrouter.stores.journal._sqlite import SqliteJournal

__all__ = ["Entry", "Journal", "Lease", "MemoryJournal", "Row", "Snapshot", "Spooled", "SqliteJournal"]
