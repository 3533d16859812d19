"""Reads the pages of an SQLite file and its write-ahead log without SQLite, to find what is sound in a damaged file.

Formats: https://www.sqlite.org/fileformat2.html. Every image of a page is read, in the file and in the log, and rows
are taken from leaves of tables wherever they are, so that damaged inner pages, indexes and headers cost no row.
"""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fitrouter.stores._files import INDEX_HEAD

Value: TypeAlias = int | float | str | bytes | None
_HEADER, _FRAME = 32, 24
"""Bytes of the log's header, and of that of a frame."""
_BIG_ENDIAN = 0x377F0683
_CHAINS = 64
"""Most combinations of page images that are tried for one row."""


class Row(NamedTuple):
    """A row of any table; `cells` does not include the rowid."""

    rowid: int
    cells: Sequence[Value]


class _Frames(NamedTuple):
    """The frames of a write-ahead log, as arrays with one entry per frame."""

    salts: NDArray[np.uint32]
    """Those of the header's round of the log."""
    current: NDArray[np.bool_]
    """The frame belongs to the header's round of the log."""
    linked: NDArray[np.bool_]
    """Its checksum follows from its bytes and the checksum before it."""


def damage_in_log(path: Path) -> str:
    """Describe the frames that SQLite would silently drop after a damaged one; empty if there are none.

    SQLite reads a log up to the first frame whose checksum is wrong, as if the rest had never been written. That is
    right for frames behind the last commit in the wal-index: they belong to a transaction that a kill interrupted.

    Args:
        path: of the database. Nobody may be writing to it.
    """
    log = path.with_name(path.name + "-wal")
    data = log.read_bytes() if log.exists() else b""
    size = _page_size(path, data)
    count = (len(data) - _HEADER) // (_FRAME + size)
    if count < 1:
        return ""
    found = _frames(data, size, count)
    read = int(np.argmin(np.append(found.current & found.linked, False)))
    committed = _committed(path, found.salts)
    if committed is not None and committed <= read:
        return ""
    lost = found.current[read:].copy()  # later frames of an earlier round are rightly not read
    if len(lost):
        lost[0] |= found.linked[read]
    return f"its log is damaged at frame {read + 1} of {read + 1 + int(np.flatnonzero(lost)[-1])}" if lost.any() else ""


def _committed(path: Path, salts: NDArray[np.uint32]) -> int | None:
    """Frames of the log up to its last commit, by the wal-index; None if that is missing, damaged or of another round.

    The index survives its processes. It has the machine's byte order, except for the salts, and changes after the log.
    """
    index = path.with_name(path.name + "-shm")
    data = index.read_bytes()[: 2 * INDEX_HEAD] if index.exists() else b""
    if len(data) < 2 * INDEX_HEAD or data[:INDEX_HEAD] != data[INDEX_HEAD:]:
        return None
    header = np.frombuffer(data, "=u4", INDEX_HEAD // 4)
    sums = _checksum(header[None, :10], np.zeros((1, 2), np.uint64))
    whole = bool((sums == header[10:].astype(np.uint64)).all())
    same = bool((np.frombuffer(data, ">u4", INDEX_HEAD // 4)[8:10] == salts).all())
    return int(header[4]) if whole and same else None


def _frames(data: bytes, size: int, count: int) -> _Frames:
    order = ">" if int.from_bytes(data[:4], "big") == _BIG_ENDIAN else "<"
    frames = np.frombuffer(data, np.uint8, count * (_FRAME + size), _HEADER).reshape(count, _FRAME + size)
    heads = np.ascontiguousarray(frames[:, :_FRAME]).view(">u4")
    header = np.frombuffer(data, ">u4", 8)
    own = np.frombuffer(data, f"{order}u4", 6).reshape(1, 6)
    salts, stored = header[4:6], np.concatenate([header[None, 6:8], heads[:, 4:6]]).astype(np.uint64)
    whole = bool((_checksum(own, np.zeros((1, 2), np.uint64)) == stored[:1]).all())
    if not whole:  # then the frames say which round it is
        salts = heads[0, 2:4]
    linked = np.empty(count, bool)
    for start in range(0, count, 256):
        block = frames[start : start + 256]
        words = np.ascontiguousarray(np.delete(block, range(8, _FRAME), axis=1)).view(f"{order}u4")
        sums = _checksum(words, stored[start : start + len(block)])
        linked[start : start + len(block)] = (sums == stored[start + 1 : start + 1 + len(block)]).all(axis=1)
    linked[0] &= whole
    current = (heads[:, 2:4] == salts).all(axis=1)
    return _Frames(salts, current, linked)


def _checksum(words: NDArray[np.uint32], before: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Compute SQLite's checksums of n rows of words, each continued from the checksum before it, uint64[n, 2].

    For each pair of words: s₀ += x₀ + s₁, s₁ += x₁ + s₀, modulo 2³², which is linear in all of them.
    """
    n = words.shape[1] // 2
    powers = np.empty((n + 1, 2, 2), np.uint64)
    powers[0] = np.eye(2)
    step, entry = np.array([[1, 1], [1, 2]], np.uint64), np.array([[1, 0], [1, 1]], np.uint64)
    for i in range(n):
        powers[i + 1] = powers[i] @ step & 0xFFFFFFFF
    pairs = words.reshape(-1, n, 2).astype(np.uint64)
    sums: NDArray[np.uint64] = np.einsum("fnj,nij->fi", pairs, powers[:n][::-1] @ entry)
    sums += np.einsum("ij,fj->fi", powers[n], before)
    sums &= np.uint64(0xFFFFFFFF)
    return sums


def rows(path: Path) -> Iterator[Row]:
    """Yield every row of every table: of the log's frames from the last to the first, of the file, and of unused pages.

    Newer images of a page come first. A row may come several times, and damaged ones come too: check each.
    """
    log = path.with_name(path.name + "-wal")
    data = log.read_bytes() if log.exists() else b""
    size = _page_size(path, data)
    with path.open("rb") as file:
        pages = _Images(file.fileno(), path.stat().st_size, size, data)
        for page, number in pages.every():
            yield from _rows_of(page, number, pages)


def _page_size(path: Path, log: bytes) -> int:
    with path.open("rb") as file:
        header = file.read(18)
    for size in (int.from_bytes(header[16:18], "big"), int.from_bytes(log[8:12], "big")):
        size = 65_536 if size == 1 else size
        if 512 <= size <= 65_536 and size & (size - 1) == 0:
            return size
    return 4096


class _Images:
    """All images of each page, in the file and in the log."""

    def __init__(self, file: int, length: int, size: int, log: bytes) -> None:
        self._file, self._count, self.size, self._log = file, -(-length // size), size, log
        self._frames: defaultdict[int, list[int]] = defaultdict(list)
        self._order: list[tuple[int, int]] = []
        for start in range(_HEADER, len(log) - _FRAME - size + 1, _FRAME + size):
            number = int.from_bytes(log[start : start + 4], "big")
            self._frames[number].append(start + _FRAME)
            self._order.append((start + _FRAME, number))

    def every(self) -> Iterator[tuple[bytes, int]]:
        """Yield (image, number of the page), the log's images first."""
        for start, number in reversed(self._order):
            yield self._log[start : start + self.size], number
        for number in range(1, self._count + 1):
            yield self._stored(number), number

    def of(self, number: int) -> Iterator[bytes]:
        """The images of a page, the newest first."""
        for start in reversed(self._frames.get(number, ())):
            yield self._log[start : start + self.size]
        if 1 <= number <= self._count:
            yield self._stored(number)

    def _stored(self, number: int) -> bytes:
        return os.pread(self._file, self.size, (number - 1) * self.size)


def _rows_of(page: bytes, number: int, pages: _Images) -> Iterator[Row]:
    """Yield the rows in a page image that may be a leaf; cells are found by their pointers, not by their count."""
    start, end = 8 + (100 if number == 1 else 0), len(page)
    if start >= end or page[start - 8] in {0, 2, 10}:  # overflow, or an index
        return
    first = end
    for at in range(start, end - 1, 2):
        if at >= first:
            return
        pointer = int.from_bytes(page[at : at + 2], "big")
        if start <= pointer < end:
            first = min(first, pointer)
            yield from _cell(page, pointer, pages)


def _cell(page: bytes, at: int, pages: _Images) -> Iterator[Row]:
    """The row of a cell, once for each combination of images that its overflow pages may have."""
    size = len(page)
    length, at = _varint(page, at)
    rowid, at = _varint(page, at)
    if not 2 <= length <= 2**30:
        return
    most, least = size - 35, (size - 12) * 32 // 255 - 23
    here = length
    if length > most:
        here = least + (length - least) % (size - 4)
        here = here if here <= most else least
    if at + here > size:
        return
    local, following = page[at : at + here], int.from_bytes(page[at + here : at + here + 4], "big")
    texts = [local] if here == length else itertools.islice(_joined(local, following, length, pages), _CHAINS)
    for text in texts:
        cells = _record(text)
        if cells is not None:
            yield Row(rowid, cells)


def _joined(text: bytes, number: int, length: int, pages: _Images) -> Iterator[bytes]:
    """Yield a payload continued over its overflow pages, for each combination of their images."""
    if len(text) >= length:
        yield text[:length]
        return
    for image in pages.of(number):
        yield from _joined(text + image[4:], int.from_bytes(image[:4], "big"), length, pages)


def _record(text: bytes) -> list[Value] | None:
    """Parse the cells of a record; None if it is not one."""
    end, at = _varint(text, 0)
    if not 2 <= end <= min(len(text), 64):
        return None
    cells: list[Value] = []
    data = end
    while at < end:
        kind, at = _varint(text, at)
        if kind in {8, 9}:
            cells.append(kind - 8)
            continue
        length = (kind - 12) // 2 if kind >= 12 else (0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0)[kind]
        value = text[data : data + length]
        if len(value) < length:
            return None
        data += length
        if kind >= 12:
            cells.append(value if kind % 2 == 0 else value.decode("utf-8", "replace"))
        elif kind == 7:
            cells.append(float(np.frombuffer(value, ">f8")[0]))
        else:
            cells.append(int.from_bytes(value, "big", signed=True) if kind else None)
    return cells


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Parse a variable-length integer; also return where it ends."""
    value = 0
    for i, byte in enumerate(data[at : at + 9]):
        if i == 8:
            return value << 8 | byte, at + 9
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + i + 1
    return value, len(data)
