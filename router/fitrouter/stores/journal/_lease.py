"""Locks between the processes of one machine, by flock(2).

The kernel releases a lock when the last descriptor of its open file is closed, so that a killed process holds nothing.
Descriptors copied by a fork are closed in the child, which would otherwise keep a dead parent's lock.
"""

from __future__ import annotations

import fcntl
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from fitrouter.errors import StoreError


class _Descriptor:
    """The descriptor of a lock file; -1 while it is closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = -1
        _DESCRIPTORS.add(self)

    def open(self) -> int:
        if self.fd < 0:
            self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return self.fd

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def current(self) -> bool:
        """Whether the path still names the open file."""
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
    """A blocking lock between processes: exclusive as `with lock:`, shared with `share()`."""

    def __init__(self, path: Path) -> None:
        self._descriptor = _Descriptor(path)

    def __enter__(self) -> None:
        fcntl.flock(self._descriptor.open(), fcntl.LOCK_EX)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        fcntl.flock(self._descriptor.fd, fcntl.LOCK_UN)

    def share(self) -> None:
        """Take a shared lock, held until `close`."""
        fcntl.flock(self._descriptor.open(), fcntl.LOCK_SH)

    def alone(self) -> bool:
        """Take the exclusive lock without waiting; False if another process holds or shares it."""
        try:
            fcntl.flock(self._descriptor.open(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Release the lock."""
        self._descriptor.close()


class FileLease:
    """A `Lease` implemented by a locked file.

    Two leases of one name exclude each other inside a process too. A lease whose file was deleted is lost, and the
    next call competes for it again, unless the journal that it belongs to is gone: the lease file of another journal
    at the same path is never taken.

    Args:
        path: the file.
        valid: whether the journal is still there.
    """

    def __init__(self, path: Path, valid: Callable[[], bool] = lambda: True) -> None:
        self._descriptor = _Descriptor(path)
        self._valid = valid
        self._mutex = threading.Lock()

    def held(self) -> bool:
        """Acquire the lease; True while this process holds it.

        Raises:
            StoreError: its file cannot be opened or locked, which is not that another process holds it.
        """
        with self._mutex:
            if not self._valid():
                self._descriptor.close()
                return False
            lost = self._descriptor.fd >= 0
            if lost:
                if self._descriptor.current():
                    return True
                self._descriptor.close()
            try:
                fcntl.flock(self._descriptor.open(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._descriptor.close()
                return False
            except OSError as error:
                self._descriptor.close()
                if lost:
                    return False
                raise StoreError(f"the lease {str(self._descriptor.path)!r} cannot be taken: {error}") from error
            if not self._descriptor.current():
                self._descriptor.close()
                return False
            return True

    def release(self) -> None:
        """Give the lease back at once."""
        with self._mutex:
            self._descriptor.close()
