"""The event log (the source of truth): in SQLite, and in memory for tests."""

from fitrouter.stores.journal._base import Entry, Journal, Lease, Row, Snapshot, Spooled
from fitrouter.stores.journal._claims import Claim, Grant
from fitrouter.stores.journal._copy import BATCH, Copied, FilePlace, Part, Place, Raw, copy, digest_of_place
from fitrouter.stores.journal._memory import MemoryJournal
from fitrouter.stores.journal._ranges import LONGEST_MS, LONGEST_NAME, MOST_TOKENS, MOST_USD, fault_in
from fitrouter.stores.journal._record import decision_of, digest_of, outcomes_of, stored
from fitrouter.stores.journal._salvage import JournalCheck, check, in_use, in_words, leased, salvage
from fitrouter.stores.journal._sqlite import SqliteJournal
from fitrouter.stores.journal._unlogged import UnloggedJournal

__all__ = [
    "BATCH",
    "LONGEST_MS",
    "LONGEST_NAME",
    "MOST_TOKENS",
    "MOST_USD",
    "Claim",
    "Copied",
    "Entry",
    "FilePlace",
    "Grant",
    "Journal",
    "JournalCheck",
    "Lease",
    "MemoryJournal",
    "Part",
    "Place",
    "Raw",
    "Row",
    "Snapshot",
    "Spooled",
    "SqliteJournal",
    "UnloggedJournal",
    "check",
    "copy",
    "decision_of",
    "digest_of",
    "digest_of_place",
    "fault_in",
    "in_use",
    "in_words",
    "leased",
    "outcomes_of",
    "salvage",
    "stored",
]
