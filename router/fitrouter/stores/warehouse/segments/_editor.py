"""Changes of segments: write new files, then commit a manifest that names them, then delete the old ones.

A process that ends in between leaves files that no manifest names, and `sweep` deletes them. Who begins to edit commits
a new version first. From then on the commits of everybody who began earlier are refused, and the names of their files,
which have the version, are never those of files that count: no lease and no clock has to be right for that.
"""

from __future__ import annotations

import glob
import hashlib
import re
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fitrouter.errors import StoreError
from fitrouter.stores._files import make_folder
from fitrouter.stores.warehouse.segments._manifest import File, Segment, manifest_of, replace_manifest
from fitrouter.stores.warehouse.segments._places import noted_places, storage_at
from fitrouter.stores.warehouse.segments._storage import Missing, Storage, Superseded

if TYPE_CHECKING:
    import duckdb


FAN_IN = 8
"""Segments that are merged into one."""
MOST_EVENTS = 1_000_000
"""Events of a merged segment, at most."""
KEPT = ("profiles", "models", "policies")
"""Tables whose rows stay when those of requests are dropped for their age: the last ones are in force."""
_SCRATCH = "segments.new-"
_STALE_S = 3600.0
_WRITE = "COPY ({}) TO '{}' (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 50000)"
_VERSION = re.compile(r"-(\d+)\.parquet(?:\.new)?$")
_THEIRS = """sha256("user") IN (SELECT digest FROM digests) AND seq < $before"""
_TRIES = 5


class Damaged(StoreError):
    """A file of a segment is missing, or differs from what was written."""

    def __init__(self, message: str, segment: Segment) -> None:
        super().__init__(message)
        self.segment = segment


class Editor:
    """Holder of the right to change the segments of a place, until another process takes it.

    Args:
        storage: the place.
        folder: a folder of this machine for files under way, in folders of their own.

    Raises:
        Superseded: another process takes it at the same moment.
        StoreError: the place cannot be read or written.
    """

    def __init__(self, storage: Storage, folder: Path) -> None:
        self.storage, self._folder = storage, folder
        found = manifest_of(storage)
        last = found.manifest.version if found.tag else max(map(_version, storage.sizes()), default=0)
        self.manifest = msgspec.structs.replace(found.manifest, version=last + 1)
        self._tag = replace_manifest(storage, self.manifest, found.tag).tag

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Provide a temporary folder for unfinished files."""
        make_folder(self._folder)
        with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=self._folder) as folder:
            yield Path(folder)

    def write(
        self, connection: duckdb.DuckDBPyConnection, sql: str, table: str, first: int, last: int, folder: Path
    ) -> File | None:
        """Store the rows of a query as a file of the next version; None without rows."""
        path = folder / f"{table}.parquet"
        ((rows,),) = run(connection, _WRITE.format(sql, str(path).replace("'", "''")))
        if not rows:
            return None
        name = f"{table}/{first:012d}-{last:012d}-{self.manifest.version + 1}.parquet"
        file = File(name, path.stat().st_size, _sha256(path), rows)
        self.storage.put(path, name)
        path.unlink()
        return file

    def commit(self, segments: Sequence[Segment], seq: int | None = None, event_id: str = "") -> None:
        """Make the given segments the current ones, and delete the files of the others.

        Args:
            segments: all of them.
            seq: the last event in them; None if that stays.
            event_id: of that event.

        Raises:
            Superseded: another process edits them; nothing was changed.
        """
        old = self.manifest
        changed = {"version": old.version + 1, "segments": tuple(sorted(segments, key=lambda each: each.first))}
        at = {} if seq is None else {"seq": seq, "event_id": event_id}
        new = msgspec.structs.replace(old, **changed, **at)
        self._tag = replace_manifest(self.storage, new, self._tag).tag
        self.manifest = new
        if gone := old.names().keys() - new.names().keys():
            self.storage.delete(sorted(gone))

    def merge(self, span_s: float) -> bool:
        """Merge some neighbouring segments of one size into one; False if there is nothing to merge.

        Args:
            span_s: most seconds between the oldest and the newest event of a segment.

        Raises:
            Damaged: a file of theirs is not what was written.
        """
        segments = list(self.manifest.segments)
        for i in range(len(segments) - FAN_IN + 1):
            run_ = segments[i : i + FAN_IN]
            if len({each.level for each in run_}) == 1 and sum(each.events for each in run_) <= MOST_EVENTS:
                merged = joined(run_, run_[0].level + 1)
                if merged.end - merged.start <= span_s:
                    break
        else:
            return False
        files = {}
        with self.scratch() as folder, database(folder) as connection:
            for table in dict.fromkeys(table for each in run_ for table in each.files):
                paths = [self.fetch(each, table, folder) for each in run_ if table in each.files]
                rows = f"SELECT * FROM {parquet(*paths)}"  # noqa: S608
                if file := self.write(connection, rows, table, merged.first, merged.last, folder):
                    files[table] = file
                for path in paths:
                    path.unlink()
        self.commit([*segments[:i], msgspec.structs.replace(merged, files=files), *segments[i + FAN_IN :]])
        return True

    def drop(self, before: float) -> bool:
        """Drop the rows of requests from segments that are older than a time; False if there are no such segments."""
        kept, dropped = [], False
        for each in self.manifest.segments:
            files = each.files
            if each.end < before and not files.keys() <= {*KEPT}:
                files, dropped = {table: file for table, file in files.items() if table in KEPT}, True
                rows = sum(file.rows for file in files.values())
                each = msgspec.structs.replace(each, files=files, events=rows, level=0)
            if files:
                kept.append(each)
        if dropped:
            self.commit(kept)
        return dropped

    def erase(self, digests: Collection[str], before: int = 2**63 - 1) -> int:
        """Rewrite the segments that have rows of erased users without them; return the number of files.

        Args:
            digests: of their subjects.
            before: only rows of earlier events.

        Raises:
            Damaged: a file is not what was written.
        """
        changed: dict[str, File | None] = {}
        with self.scratch() as folder, database(folder) as connection:
            of_them = "CREATE TABLE digests AS SELECT unnest($digests::VARCHAR[]) AS digest"
            run(connection, of_them, {"digests": list(digests)})
            run(connection, "CREATE TABLE theirs (decision_id VARCHAR)")
            for each in self.manifest.segments:
                if "decisions" not in each.files:
                    continue
                path = self.fetch(each, "decisions", folder)
                theirs = f"INSERT INTO theirs SELECT decision_id FROM {parquet(path)} WHERE {_THEIRS}"  # noqa: S608
                run(connection, theirs, {"before": before})
                path.unlink()
            for each in self.manifest.segments:
                for table, file in each.files.items():
                    path = self.fetch(each, table, folder)
                    columns = {name for name, *_ in run(connection, f"DESCRIBE FROM {parquet(path)}")}
                    conditions = [f"({_THEIRS})"] if "user" in columns else []
                    if "decision_id" in columns:
                        conditions.append("decision_id IN (FROM theirs)")
                    gone = f"coalesce({' OR '.join(conditions) or 'false'}, false)"
                    rows = f"FROM {parquet(path)} WHERE"
                    if conditions and run(connection, f"SELECT 1 {rows} {gone} LIMIT 1", {"before": before}):
                        sql = f"SELECT * {rows} NOT {gone.replace('$before', str(before))}"
                        changed[file.name] = self.write(connection, sql, table, each.first, each.last, folder)
                    path.unlink(missing_ok=True)
        if changed:
            self.commit([each for each in (_changed(each, changed) for each in self.manifest.segments) if each.files])
        return len(changed)

    def sweep(self) -> list[Segment]:
        """Delete what interrupted processes left; returns the segments with a missing or truncated file."""
        sizes, named = self.storage.sizes(), self.manifest.names()
        if left := [n for n in sizes.keys() - named.keys() if 0 < _version(n) <= self.manifest.version]:
            self.storage.delete(sorted(left))
        for path in self._folder.glob(f"{_SCRATCH}*"):
            if time.time() - path.stat().st_mtime > _STALE_S:
                shutil.rmtree(path, ignore_errors=True)
        return [
            each
            for each in self.manifest.segments
            if any(sizes.get(file.name) != file.size for file in each.files.values())
        ]

    def fetch(self, segment: Segment, table: str, folder: Path) -> Path:
        """Fetch a checked copy of a segment's file; see `fetched`."""
        return fetched(self.storage, segment, table, folder)


def fetched(storage: Storage, segment: Segment, table: str, folder: Path) -> Path:
    """Fetch a copy of a segment's file to a folder, and check it.

    Raises:
        Damaged: it is missing, or not what was written.
    """
    file = segment.files[table]
    path = folder / file.name.replace("/", "-")
    try:
        storage.fetch(file.name, path)
        size = path.stat().st_size
        if size == file.size and _sha256(path) == file.sha256:
            return path
        what = f"has {size} of {file.size} bytes" if size != file.size else "has other bytes than were written"
    except Missing:
        what = "is missing"
    raise Damaged(
        f"the segments in {storage.place!r} are damaged: {file.name} {what}. The gateway that writes there repairs it "
        "from its journal within the hour, or at its start",
        segment,
    )


def erase_segments(folder: Path, digests: Collection[str]) -> None:
    """Erase users from the segments in all places that a data folder has used.

    Raises:
        StoreError: something is left, and why.
    """
    for place in noted_places(folder):
        storage = storage_at(place)
        for attempt in range(_TRIES):
            if manifest_of(storage).tag is None:
                break
            try:
                editor = Editor(storage, folder)
                editor.erase(digests)
                editor.sweep()
                break
            except Superseded:
                if attempt == _TRIES - 1:
                    raise
                time.sleep(0.1 * 2**attempt)
    for path in folder.glob(f"{_SCRATCH}*"):
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def database(folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a DuckDB database in memory that spills into a folder."""
    import duckdb

    settings: dict[str, Any] = {"threads": 1, "memory_limit": "512MB", "temp_directory": str(folder / "spill")}
    with duckdb.connect(":memory:", config=settings) as connection:
        yield connection


def run(connection: duckdb.DuckDBPyConnection, sql: str, params: Mapping[str, object] | None = None) -> list[Any]:
    """Execute a statement, and return all its rows.

    Raises:
        StoreError: it fails, for example because the disk is full.
    """
    import duckdb

    try:
        return connection.execute(sql, dict(params) if params else None).fetchall()
    except (duckdb.Error, OSError) as error:
        raise StoreError(f"segments cannot be written: {error}") from error


def joined(run: Sequence[Segment], level: int) -> Segment:
    """Describe the segment that neighbouring segments become, still without files."""
    return Segment(
        first=run[0].first,
        last=run[-1].last,
        start=min(each.start for each in run),
        end=max(each.end for each in run),
        events=sum(each.events for each in run),
        level=level,
        files={},
    )


def parquet(*paths: Path) -> str:
    """Return the SQL table expression that reads Parquet files."""
    names = ", ".join("'" + glob.escape(str(path)).replace("'", "''") + "'" for path in paths)
    return f"read_parquet([{names}], union_by_name=true, hive_partitioning=false)"


def _version(name: str) -> int:
    """The version in the name of a file; 0 for other files."""
    found = _VERSION.search(name)
    return int(found[1]) if found else 0


def _changed(segment: Segment, changed: Mapping[str, File | None]) -> Segment:
    files = {table: changed.get(file.name, file) for table, file in segment.files.items()}
    return msgspec.structs.replace(segment, files={table: file for table, file in files.items() if file is not None})


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
