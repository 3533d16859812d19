"""The manifest: which files make up the tables, and how far into the journal they reach."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from fitrouter.errors import StoreError
from fitrouter.stores.warehouse.segments._storage import Storage, Superseded

MANIFEST = "segments.json"
FORMAT = 1


class File(msgspec.Struct, frozen=True):
    """A Parquet file of one table."""

    name: str
    size: int
    """Bytes."""
    sha256: str
    rows: int


class Segment(msgspec.Struct, frozen=True):
    """Files with the rows of a range of the journal."""

    first: int
    """First sequence number."""
    last: int
    """Last sequence number."""
    start: float
    """Time of the oldest event, in seconds since the epoch."""
    end: float
    """Time of the newest event."""
    events: int
    level: int
    """How often its rows were merged."""
    files: dict[str, File]
    """Table → its file; a table without rows has none."""


class Manifest(msgspec.Struct, frozen=True):
    """Description of a place's content: the segments in order, and the last event in them."""

    format: int = FORMAT
    version: int = 0
    """Number of the change. Names of files have it, so that no file is ever written twice with different rows."""
    seq: int = 0
    event_id: str = ""
    segments: tuple[Segment, ...] = ()

    def names(self) -> dict[str, File]:
        """All files by name."""
        return {file.name: file for segment in self.segments for file in segment.files.values()}

    def before(self, ts: float) -> int:
        """The sequence number up to which all segments are older than a time; 0 for none."""
        seq = 0
        for segment in self.segments:
            if segment.end >= ts:
                break
            seq = segment.last
        return seq


class Found(NamedTuple):
    """A manifest with the tag that is needed to replace it; None if there is no manifest yet."""

    manifest: Manifest
    tag: str | None


def manifest_of(storage: Storage) -> Found:
    """Read the manifest of a place; an empty one if there is none yet.

    Raises:
        StoreError: it cannot be read, is damaged, or a later version of fitrouter wrote it.
    """
    stored = storage.read(MANIFEST)
    if stored is None:
        return Found(Manifest(), None)
    again = f"delete {MANIFEST} there, and the gateway writes all segments again from its journal"
    try:
        form = msgspec.json.decode(stored.data, type=dict[str, msgspec.Raw]).get("format")
        if form is not None and msgspec.json.decode(form) != FORMAT:
            raise StoreError(
                f"the segments in {storage.place!r} have format {bytes(form)[:20].decode()}, written by a later "
                f"fitrouter; this one knows {FORMAT}: upgrade it, or {again}"
            )
        return Found(msgspec.json.decode(stored.data, type=Manifest), stored.tag)
    except msgspec.MsgspecError as error:
        raise StoreError(f"{MANIFEST} in {storage.place!r} is damaged ({error}); {again}") from error


def replace_manifest(storage: Storage, manifest: Manifest, tag: str | None) -> Found:
    """Commit a new manifest of a place.

    Raises:
        Superseded: another process has committed one since the tag was read.
        StoreError: it cannot be written; it may have been all the same.
    """
    data = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    try:
        return Found(manifest, storage.replace(MANIFEST, data, tag))
    except Superseded:
        stored = storage.read(MANIFEST)
        if stored is None or stored.data != data:
            raise
        return Found(manifest, stored.tag)  # the reply to our own first try was lost
