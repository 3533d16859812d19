"""Shared handling of store files: opening SQLite databases, and quarantine of damaged files."""

from __future__ import annotations

import errno
import logging
import mmap
import os
import shutil
import sqlite3
import tempfile
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path

_log = logging.getLogger(__name__)

_CHECKED_BYTES = 64 * 2**20
"""Files up to this size are checked page by page when they are opened (0.1 s); larger ones only where they are read."""
COMPANIONS = ("-wal", "-shm")
"""Suffixes of the files that SQLite keeps beside a database."""
INDEX_HEAD = 48
"""Bytes of the head of a log's index (SQLite, "WAL-mode file format", §2.1)."""
_MAPS: weakref.WeakValueDictionary[tuple[int, int], mmap.mmap] = weakref.WeakValueDictionary()
"""Device and inode → the map of an index that is in use in this process."""
_MAPPING = threading.Lock()


class OpenFiles:
    """Watches whether a database and its companion files are still the ones that were opened.

    Whoever unlinks or replaces one leaves SQLite with files that nobody will find again. Keep a connection open: SQLite
    itself removes the companions when the last one is closed.
    """

    def __init__(self, path: Path) -> None:
        self._paths = [path, *(path.with_name(path.name + suffix) for suffix in COMPANIONS)]
        self._opened: dict[Path, tuple[int, int]] = {}
        self.fault()

    def fault(self) -> str:
        """Reason why writes would be lost (a file is missing or replaced); empty if none.

        It costs three calls of stat.
        """
        for path in self._paths:
            try:
                found = path.stat()
                inode = found.st_dev, found.st_ino
            except FileNotFoundError:
                inode = None
            except OSError as error:
                return f"{str(path)!r} cannot be read: {error.strerror}"
            opened = self._opened.get(path)
            if opened is None and inode is not None:
                self._opened[path] = inode
            elif inode != opened:
                return (
                    f"{str(path)!r} was {'deleted' if inode is None else 'replaced'} while it was open: nothing can be "
                    f"logged. Put the file back or restore a backup, then restart"
                )
        return ""


def map_changes(path: Path) -> mmap.mmap | None:
    """Map the index of a database's log, whose first `INDEX_HEAD` bytes change with every commit; None if it has none.

    Comparing them tells whether anything was written without a call of SQLite, each of which gives up the GIL. The
    head comes twice and this copy is written last: once a commit has returned, it has changed.

    Give the map up after the connections, and do not close it: closing any descriptor of a file ends all locks of the
    process on it (POSIX), SQLite's too, and another process would truncate the index while it is in use.
    """
    index = path.with_name(path.name + "-shm")
    with suppress(OSError, ValueError), _MAPPING:
        found = index.stat()
        known = _MAPS.get(key := (found.st_dev, found.st_ino))
        if known is None and found.st_size >= INDEX_HEAD:
            descriptor = os.open(index, os.O_RDONLY | os.O_CLOEXEC)
            known = _MAPS[key] = mmap.mmap(descriptor, INDEX_HEAD, access=mmap.ACCESS_READ)
            weakref.finalize(known, os.close, descriptor).atexit = False
        return known
    return None


def make_folder(path: Path) -> None:
    """Create a folder that only its owner can read; an existing one stays as it is."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def connect(path: Path, patience_s: float = 5.0) -> sqlite3.Connection:
    """Open a connection in autocommit mode with durable commits, usable by one thread at a time.

    A new file, and those that SQLite keeps beside it, can be read by their owner only.
    """
    with suppress(OSError):  # it exists, or SQLite reports the error
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(path, timeout=patience_s, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA synchronous = FULL")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def connect_read_only(path: Path, *, immutable: bool = False) -> sqlite3.Connection:
    """Open a read-only connection; an `immutable` one needs no writable folder, and ignores the log."""
    address = f"{path.absolute().as_uri()}?{'immutable=1' if immutable else 'mode=ro'}"
    return sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)


def copied_aside(path: Path) -> tempfile.TemporaryDirectory[str]:
    """Copy a database and its log, as far as they exist, to a temporary folder.

    Raises:
        OSError: no folder for temporary files has room for them.
    """
    failure: OSError | None = None
    for place in (None, "/dev/shm"):  # noqa: S108 - the folder is made for this user only
        try:
            folder = tempfile.TemporaryDirectory(prefix="fitrouter-", dir=place)
            for file in (path, path.with_name(f"{path.name}-wal")):
                if file.exists():
                    shutil.copy(file, folder.name)
        except OSError as error:
            failure = error
        else:
            return folder
    raise failure or FileNotFoundError(path)


def is_damaged(error: BaseException) -> bool:
    """Whether an SQLite error means that the file is corrupt, not that it is busy, missing or full."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def quick_check(connection: sqlite3.Connection, path: Path) -> None:
    """Check the pages of a database file, unless it is large.

    Raises:
        sqlite3.DatabaseError: one is damaged (`is_damaged`).
    """
    if path.stat().st_size <= _CHECKED_BYTES:
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            error = sqlite3.DatabaseError(f"quick_check: {verdict}")
            error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise error


def is_unwritable(error: BaseException | None) -> bool:
    """Whether an error means that the disk is full or read-only."""
    if isinstance(error, sqlite3.Error):
        unwritable = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in unwritable
    return isinstance(error, OSError) and error.errno in {
        errno.ENOSPC,
        errno.EROFS,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EIO,
        errno.EACCES,
        errno.EPERM,
    }


def is_busy(error: BaseException | None) -> bool:
    """Whether an SQLite error means that another connection has locked the file."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def quarantine(
    path: Path, now: float, companions: tuple[str, ...] = (), reason: str = "is damaged", instead: str = "an empty file"
) -> Path:
    """Rename a damaged file to `<name>.corrupt-<seconds>` and log a warning.

    Args:
        path: the file.
        now: seconds since the epoch, for the name.
        companions: suffixes of files that are renamed along with it, such as a write-ahead log.
        reason: the problem, for the log.
        instead: what takes its place, for the log.

    Returns:
        The file's new path.
    """
    target = path.with_name(f"{path.name}.corrupt-{int(now)}")
    n = 1
    while target.exists():
        target = path.with_name(f"{path.name}.corrupt-{int(now)}-{n}")
        n += 1
    for suffix in companions:
        companion = path.with_name(path.name + suffix)
        if companion.exists():
            companion.rename(target.with_name(target.name + suffix))
    path.rename(target)
    _log.warning("%s %s; it was moved to %s and replaced by %s", path, reason, target, instead)
    return target


def write_ahead(connection: sqlite3.Connection, patience_s: float = 5.0) -> None:
    """Put an SQLite file into write-ahead mode, waiting for other processes that do so at the same moment.

    SQLite's own timeout does not cover this pragma: when two processes create a file together, one fails at once.

    Raises:
        sqlite3.Error: the file is still locked after `patience_s`, or is damaged.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return
