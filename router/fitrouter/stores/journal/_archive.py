"""Parquet files with the payloads of old events, beside the journal, whose table keeps the other columns.

Each file has the rows of a range of sequence numbers, so that the journal finds the payload of a row without one. Files
are written beside their place and renamed; that of an erased user is written again without their rows.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fitrouter.errors import StoreError, require
from fitrouter.stores._files import make_folder

if TYPE_CHECKING:
    import duckdb


CHUNK = 4096
"""Rows of a row group, which are read and kept in memory together."""
_CHUNKS = 8
_COLUMNS = ("seq", "id", "ts", "kind", "decision_id", "subject", "payload", "crc")
_TYPES = {"seq": np.int64, "ts": np.float64, "crc": np.int64}
_PAYLOADS = "SELECT seq, payload FROM read_parquet(?) WHERE seq >= ? AND seq < ?"
_SOME = "SELECT seq, payload FROM read_parquet(?) WHERE seq IN (SELECT unnest(?::BIGINT[]))"
_WRITE = "COPY ({}) TO '{}' (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {})"


class Segment(NamedTuple):
    """A Parquet file, and the range of its sequence numbers."""

    first: int
    last: int
    path: Path


class Archive:
    """The Parquet files of a journal. Thread safe; only the holder of a lease may write.

    Args:
        journal: path of the journal; the files are in the folder of its name with `.archive`.

    Raises:
        MissingExtra: there are files, and DuckDB is not installed.
    """

    def __init__(self, journal: Path) -> None:
        self.folder = journal.with_name(f"{journal.name}.archive")
        self._mutex = threading.Lock()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._chunks: OrderedDict[tuple[Path, int, int], dict[int, bytes]] = OrderedDict()
        """(file, its inode, number of the chunk) → payloads."""
        self._segments: list[Segment] = []
        if self.segments():
            require("duckdb", "the archive of the journal")

    def segments(self) -> list[Segment]:
        """Return the Parquet files, in order."""
        found = []
        if self.folder.is_dir():
            for path in sorted(self.folder.glob("*-*.parquet")):
                first, _, last = path.stem.partition("-")
                if first.isdecimal() and last.isdecimal():
                    found.append(Segment(int(first), int(last), path))
        self._segments = found
        return found

    def payload(self, seq: int) -> bytes | None:
        """The payload of an event; None if no file has it.

        Raises:
            StoreError: its file cannot be read.
        """
        with self._mutex:
            found = self._segment_of(seq)
            if found is None:  # another process may have written more
                self.segments()
                found = self._segment_of(seq)
            if found is None:
                return None
            try:
                inode = found.path.stat().st_ino
            except FileNotFoundError:
                return None
            key = found.path, inode, seq // CHUNK
            chunk = self._chunks.pop(key, None)
            if chunk is None:
                bounds = seq // CHUNK * CHUNK, (seq // CHUNK + 1) * CHUNK
                chunk = dict(self._run(_PAYLOADS, [str(found.path), *bounds]))
            self._chunks[key] = chunk
            if len(self._chunks) > _CHUNKS:
                self._chunks.popitem(last=False)
            return chunk.get(seq)

    def payloads(self, seqs: Sequence[int]) -> dict[int, bytes]:
        """The payloads of many events, as far as the files have them. Those of one person are in many chunks.

        Raises:
            StoreError: a file cannot be read.
        """
        if len({seq // CHUNK for seq in seqs}) < _CHUNKS:
            return {seq: found for seq in seqs if (found := self.payload(seq)) is not None}
        made: dict[int, bytes] = {}
        with self._mutex:
            for first, last, path in self.segments():
                if wanted := [seq for seq in seqs if first <= seq <= last]:
                    made |= self._run(_SOME, [str(path), wanted])
        return made

    def rows(self, segment: Segment) -> list[tuple[Any, ...]]:
        """The rows of a file, without the payloads."""
        columns = ", ".join(name for name in _COLUMNS if name != "payload")
        with self._mutex:
            return self._run(f"SELECT {columns} FROM read_parquet(?) ORDER BY seq", [str(segment.path)])  # noqa: S608

    def count(self, segment: Segment) -> int:
        """The number of rows of a file."""
        with self._mutex:
            return int(self._run("SELECT count(*) FROM read_parquet(?)", [str(segment.path)])[0][0])

    def write(self, rows: Sequence[Sequence[Any]]) -> Segment:
        """Write rows of the events table, in order, as a file."""
        require("duckdb", "the archive of the journal")
        made = Segment(rows[0][0], rows[-1][0], self.folder / f"{rows[0][0]:012d}-{rows[-1][0]:012d}.parquet")
        columns = zip(_COLUMNS, zip(*rows, strict=True), strict=True)
        arrays = {name: np.array(values, _TYPES.get(name, np.object_)) for name, values in columns}
        with self._mutex:
            self._copy("SELECT * FROM rows ORDER BY seq", made, {"rows": arrays})
        return made

    def keep_only(self, segment: Segment, seqs: Collection[int]) -> None:
        """Rewrite a file with only the given rows; delete it if none is given."""
        with self._mutex:
            self._chunks.clear()
            if not seqs:
                segment.path.unlink()
                return
            kept = {"seq": np.array(sorted(seqs), np.int64)}
            name = str(segment.path).replace("'", "''")
            sql = f"SELECT * FROM read_parquet('{name}') WHERE seq IN (SELECT seq FROM kept) ORDER BY seq"  # noqa: S608
            self._copy(sql, segment, {"kept": kept})

    def tidy(self) -> None:
        """Delete the unfinished files of an interrupted process."""
        for path in self.folder.glob("*.new"):
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close DuckDB."""
        with self._mutex:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _segment_of(self, seq: int) -> Segment | None:
        return next((each for each in self._segments if each.first <= seq <= each.last), None)

    def _copy(self, sql: str, segment: Segment, tables: dict[str, Any]) -> None:
        """Write the result of a query to a segment's file, durably and atomically."""
        make_folder(self.folder)
        new = segment.path.with_name(f"{segment.path.name}.new")
        new.unlink(missing_ok=True)
        new.touch(mode=0o600)
        name = str(new).replace("'", "''")
        for table, columns in tables.items():
            self._duckdb().register(table, columns)
        try:
            self._run(_WRITE.format(sql, name, CHUNK), [])
        finally:
            for table in tables:
                self._duckdb().unregister(table)
        try:
            new.chmod(0o600)
            for path in (new, self.folder):
                handle = os.open(path, os.O_RDONLY)
                try:
                    os.fsync(handle)
                    if path is new:
                        new.replace(segment.path)
                finally:
                    os.close(handle)
        except OSError as error:
            raise StoreError(f"{str(segment.path)!r} cannot be written: {error.strerror}") from error

    def _duckdb(self) -> duckdb.DuckDBPyConnection:
        import duckdb

        if self._connection is None:
            settings: dict[str, Any] = {"threads": 1, "memory_limit": "256MB", "temp_directory": ""}
            self._connection = duckdb.connect(":memory:", config=settings)
        return self._connection

    def _run(self, sql: str, values: list[Any]) -> list[Any]:
        import duckdb

        try:
            return self._duckdb().execute(sql, values).fetchall()
        except duckdb.Error as error:
            with suppress(duckdb.Error):
                self._duckdb().close()
            self._connection = None
            raise StoreError(f"the archive {str(self.folder)!r} cannot be used: {error}") from error
