"""Audit log of administrative acts: JSON lines, each with the SHA-256 of the line before it.

Whoever changes, removes, inserts or swaps a line breaks the chain. To notice that lines were cut from the end, or that
the whole file was written anew, keep a hash elsewhere: `verify` says whether it is still part of the chain.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from fitrouter.errors import StoreError
from fitrouter.stores._files import make_folder

FILE = "audit.log"
"""Name of the file in the data folder."""
NOTHING = "0" * 64
"""The hash before the first line."""
_LONGEST = 500
"""Characters of a text that are kept."""
_BLOCK = 2**16


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """An administrative act. It is noted before it is done, so that none is done without a line."""

    ts: float
    """Seconds since the epoch."""
    act: str
    """Such as `policy set`, `key create`, `user erase`."""
    by: str
    """Name of the API key, or the user id (uid) of a command."""
    about: dict[str, str] = {}
    """Never a user's name or token, nor a secret."""
    previous: str = NOTHING
    """Hash of the line before."""


class Chain(msgspec.Struct, frozen=True, kw_only=True):
    """Result of `verify`: how far the chain of lines is intact."""

    acts: int
    """Sound lines from the beginning."""
    head: str
    """Hash of the last one."""
    broken: int | None = None
    """Number of the first line that does not follow the one before; None for none."""
    known: bool = True
    """Whether the given hash is that of one of the sound lines."""


class AuditLog:
    """Audit log in a file, which any number of processes append to. All methods block on the disk.

    Args:
        folder: the data folder; it and the file are created at the first act, readable by their owner only.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE

    def note(self, act: Act) -> str:
        """Append an act durably; return the hash of its line, to which the next line refers.

        Raises:
            StoreError: the file cannot be written. The act should not be done then.
        """
        try:
            make_folder(self.path.parent)
            with os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                last, end = _last(file.fileno())
                file.truncate(end)  # a line that a crash cut short; its act was not done
                about = {name: value[:_LONGEST] for name, value in act.about.items()}
                line = msgspec.json.encode(msgspec.structs.replace(act, about=about, previous=last))
                file.seek(end)
                file.write(line + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StoreError(f"the audit log {str(self.path)!r} cannot be written: {error.strerror}") from error
        return _hash(line)

    def acts(self) -> Iterator[Act]:
        """Yield the acts, the oldest first, up to the first line that is not one."""
        for line in self._lines():
            try:
                yield msgspec.json.decode(line, type=Act)
            except msgspec.DecodeError:
                return

    def verify(self, head: str | None = None) -> Chain:
        """Check that each line follows from the one before.

        Args:
            head: a hash that an earlier check printed.
        """
        acts, last, known = 0, NOTHING, head in {None, NOTHING}
        for number, line in enumerate(self._lines(), 1):
            try:
                previous = msgspec.json.decode(line, type=Act).previous
            except msgspec.DecodeError:
                previous = ""
            if previous != last:
                return Chain(acts=acts, head=last, broken=number, known=known)
            acts, last = number, _hash(line)
            known = known or last == head
        return Chain(acts=acts, head=last, known=known)

    def _lines(self) -> Iterator[bytes]:
        """Yield the complete lines; one that is still being written is left out."""
        try:
            with self.path.open("rb") as file:
                for line in file:
                    if line.endswith(b"\n"):
                        yield line[:-1]
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(f"the audit log {str(self.path)!r} cannot be read: {error.strerror}") from error


def by_command() -> str:
    """Name the user who runs a command, as actor in the log."""
    return f"uid {os.getuid()}"


def command_act(act: str, **about: str) -> Act:
    """Make an act of the command that is running now."""
    return Act(ts=time.time(), act=act, by=by_command(), about=about)


def is_hash(text: str) -> bool:
    """Whether a text has the form of a line's hash."""
    return re.fullmatch("[0-9a-f]{64}", text) is not None


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def _last(file: int) -> tuple[str, int]:
    """Return the hash of the last complete line, and the position of its end."""
    size = os.fstat(file).st_size
    start, tail = size, b""
    while start and tail.count(b"\n") < 2:
        length = min(start, _BLOCK)
        start -= length
        tail = os.pread(file, length, start) + tail
    whole, found, _ = tail.rpartition(b"\n")
    return (_hash(whole.rpartition(b"\n")[2]), start + len(whole) + 1) if found else (NOTHING, 0)
