"""Cold store in a folder of this machine, or of a mounted file system."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from fitrouter.errors import StoreError
from fitrouter.stores._files import make_folder
from fitrouter.stores.cold._storage import Missing


class Folder:
    """A `Storage` in a folder; files are written beside their place, synced and renamed.

    Args:
        path: the folder; it is created with the first file.
    """

    def __init__(self, path: Path) -> None:
        self._path, self.place = path, str(path)

    def put(self, name: str, write: Callable[[Path], object]) -> None:
        """Store a file; see `Storage`."""
        with self._store_errors("written"):
            make_folder(self._path)
            path = self._path / name
            new = path.with_name(f"{name}.new")
            new.unlink(missing_ok=True)
            new.touch(mode=0o600)
            write(new)
            new.chmod(0o600)
            for each in (new, self._path):
                handle = os.open(each, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)
                if each is new:
                    new.replace(path)

    @contextmanager
    def local(self, name: str) -> Iterator[Path]:
        """Provide the path of a file; see `Storage`."""
        path = self._path / name
        if not path.is_file():
            raise Missing(f"the cold store {self.place!r} lacks {name}")
        yield path

    def sizes(self) -> dict[str, int]:
        """Return the bytes of every file by name; see `Storage`."""
        found = {}
        with self._store_errors("listed"):
            for path in self._path.iterdir() if self._path.exists() else ():
                try:
                    found[path.name] = path.stat().st_size
                except FileNotFoundError:  # deleted meanwhile
                    continue
        return found

    def delete(self, names: Collection[str]) -> None:
        """Delete files; see `Storage`."""
        with self._store_errors("deleted"):
            for name in names:
                (self._path / name).unlink(missing_ok=True)

    @contextmanager
    def _store_errors(self, done: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(
                f"the cold store {self.place!r} cannot be {done}: {error.strerror or error}; see that the folder is "
                "mounted, writable, and has room"
            ) from error
