"""The warehouse's tables as Parquet files in a folder or a bucket, for logs that outgrow one machine's file.

A manifest, `segments.json`, names the files of each range of the journal; replacing it is the commit of every change.
"""

from fitrouter.stores.warehouse.segments._editor import Editor, erase_segments
from fitrouter.stores.warehouse.segments._feed import EVENTS, SegmentFeed
from fitrouter.stores.warehouse.segments._manifest import MANIFEST, Manifest, Segment, manifest_of
from fitrouter.stores.warehouse.segments._places import place_of, storage_at
from fitrouter.stores.warehouse.segments._read import fetch
from fitrouter.stores.warehouse.segments._storage import Storage, Superseded

__all__ = [
    "EVENTS",
    "MANIFEST",
    "Editor",
    "Manifest",
    "Segment",
    "SegmentFeed",
    "Storage",
    "Superseded",
    "erase_segments",
    "fetch",
    "manifest_of",
    "place_of",
    "storage_at",
]
