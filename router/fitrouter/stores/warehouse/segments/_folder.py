"""Segments in a folder of this machine, or of a mounted file system."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from fitrouter.errors import StoreError
from fitrouter.stores._files import make_folder
from fitrouter.stores.journal._lease import FileLock
from fitrouter.stores.warehouse.segments._storage import Missing, Stored, Superseded

_LOCK = "lock"


class Folder:
    """A `Storage` in a folder; files are written beside their place, synced and renamed.

    Args:
        path: the folder; it is created with the first file.
    """

    def __init__(self, path: Path) -> None:
        self._path, self.place = path, str(path)

    def read(self, name: str) -> Stored | None:
        """Read a small file; see `Storage`."""
        with self._store_errors("read"):
            try:
                data = (self._path / name).read_bytes()
            except FileNotFoundError:
                return None
        return Stored(data, hashlib.sha256(data).hexdigest())

    def replace(self, name: str, data: bytes, tag: str | None) -> str:
        """Replace a small file; see `Storage`."""
        with self._store_errors("written"):
            make_folder(self._path)
            lock = FileLock(self._path / _LOCK)
            with lock:
                found = self.read(name)
                if (found.tag if found else None) != tag:
                    raise Superseded(f"the segments in {self.place!r} were changed by another process")
                self._write(name, lambda file: file.write(data))
            lock.close()
        return hashlib.sha256(data).hexdigest()

    def put(self, path: Path, name: str) -> None:
        """Store a copy of a local file; see `Storage`."""
        with self._store_errors("written"), path.open("rb") as source:
            self._write(name, lambda file: shutil.copyfileobj(source, file))

    def fetch(self, name: str, path: Path) -> None:
        """Copy a file to a local one; see `Storage`."""
        with self._store_errors("read"):
            try:
                shutil.copyfile(self._path / name, path)
            except FileNotFoundError:
                raise Missing(f"the segments in {self.place!r} lack {name}") from None

    def sizes(self) -> dict[str, int]:
        """Return the bytes of every file by name; see `Storage`."""
        found = {}
        with self._store_errors("listed"):
            for path in self._path.rglob("*"):
                try:
                    if path.is_file() and path.name != _LOCK:
                        found[path.relative_to(self._path).as_posix()] = path.stat().st_size
                except FileNotFoundError:  # deleted meanwhile
                    continue
        return found

    def delete(self, names: Collection[str]) -> None:
        """Delete files; see `Storage`."""
        with self._store_errors("deleted"):
            for name in names:
                (self._path / name).unlink(missing_ok=True)

    def _write(self, name: str, write: Callable[[BinaryIO], object]) -> None:
        path = self._path / name
        make_folder(path.parent)
        new = path.with_name(f"{path.name}.new")
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600), "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    @contextmanager
    def _store_errors(self, done: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(
                f"the segments in {self.place!r} cannot be {done}: {error.strerror or error}; see that the folder is "
                "mounted, writable, and has room"
            ) from error
