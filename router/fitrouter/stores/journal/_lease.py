"""Locks between the processes of one machine, by flock(2).

The kernel gives a lock back when the last descriptor of its open file is closed, so that a killed process holds
nothing for longer than its own death. Descriptors that a fork copied are closed in the child, which would else keep a
dead parent's lock.
"""

from __future__ import annotations

import fcntl
import os
import threading
import weakref
from pathlib import Path
from types import TracebackType


class _Descriptor:
    """A file that is open for the sake of its lock; -1 where it is not."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = -1
        _DESCRIPTORS.add(self)

    def open(self) -> int:
        if self.fd < 0:
            self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        return self.fd

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def current(self) -> bool:
        """True while the open file is still the one that the path names."""
        try:
            return self.fd >= 0 and os.path.samestat(os.fstat(self.fd), self.path.stat())
        except OSError:
            return False


_DESCRIPTORS: weakref.WeakSet[_Descriptor] = weakref.WeakSet()


def _after_fork() -> None:
    for descriptor in list(_DESCRIPTORS):
        descriptor.close()


os.register_at_fork(after_in_child=_after_fork)


class FileLock:
    """A lock that is waited for: `with lock:` is one process of the machine at a time, `share()` is many."""

    def __init__(self, path: Path) -> None:
        self._descriptor = _Descriptor(path)

    def __enter__(self) -> None:
        fcntl.flock(self._descriptor.open(), fcntl.LOCK_EX)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        fcntl.flock(self._descriptor.fd, fcntl.LOCK_UN)

    def share(self) -> None:
        """Hold it together with others until `close`."""
        fcntl.flock(self._descriptor.open(), fcntl.LOCK_SH)

    def alone(self) -> bool:
        """True if nobody else holds or shares it; it is held from then on."""
        try:
            fcntl.flock(self._descriptor.open(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Give it back."""
        self._descriptor.close()


class FileLease:
    """A right that one holder on this machine has, kept as a locked file.

    Two leases of one name exclude each other inside a process too. A lease whose file somebody deleted is lost, and the
    next call competes for it anew.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = _Descriptor(path)
        self._mutex = threading.Lock()

    def held(self) -> bool:
        """Take it if it is free; True while it is ours. A file that cannot be opened is a lease that we do not have."""
        with self._mutex:
            if self._descriptor.fd >= 0:
                if self._descriptor.current():
                    return True
                self._descriptor.close()
            try:
                fcntl.flock(self._descriptor.open(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                self._descriptor.close()
                return False
            if not self._descriptor.current():
                self._descriptor.close()
                return False
            return True

    def release(self) -> None:
        """Give it back at once."""
        with self._mutex:
            self._descriptor.close()
