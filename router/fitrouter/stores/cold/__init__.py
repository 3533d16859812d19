"""The cold store: events as daily Parquet files in a folder or a bucket, for replay elsewhere and a small journal."""

from fitrouter.stores.cold._bucket import SCRATCH
from fitrouter.stores.cold._files import File, Stored, day_of, drop, erase, files_at, gaps, query, sweep, write
from fitrouter.stores.cold._payloads import Payloads
from fitrouter.stores.cold._places import note_place, noted_places, place_of, storage_at
from fitrouter.stores.cold._storage import Missing, Storage

__all__ = [
    "SCRATCH",
    "File",
    "Missing",
    "Payloads",
    "Storage",
    "Stored",
    "day_of",
    "drop",
    "erase",
    "files_at",
    "gaps",
    "note_place",
    "noted_places",
    "place_of",
    "query",
    "storage_at",
    "sweep",
    "write",
]
