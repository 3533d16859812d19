"""Protocol of the places of a cold store."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from fitrouter.errors import StoreError


class Missing(StoreError):
    """There is no file of this name."""


class Storage(Protocol):
    """Protocol of stores of named files. Thread safe; every method blocks, and may raise StoreError."""

    place: str
    """The place, for messages; it has no secrets."""

    def put(self, name: str, write: Callable[[Path], object]) -> None:
        """Store a file that a function writes to a path: durably, and at once instead of one of the same name."""
        ...

    def local(self, name: str) -> AbstractContextManager[Path]:
        """Provide a path where a file can be read.

        Raises:
            Missing: there is none of this name.
        """
        ...

    def sizes(self) -> dict[str, int]:
        """Bytes of every file by name."""
        ...

    def delete(self, names: Collection[str]) -> None:
        """Delete files; missing ones are not an error."""
        ...
