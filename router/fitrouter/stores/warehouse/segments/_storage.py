"""Protocol of the places where segments are kept."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple, Protocol

from fitrouter.errors import StoreError


class Superseded(StoreError):
    """Another process has changed the segments meanwhile; nothing of this change is kept."""


class Missing(StoreError):
    """There is no file of this name."""


class Stored(NamedTuple):
    """A small file, with a tag that changes whenever it is replaced."""

    data: bytes
    tag: str


class Storage(Protocol):
    """Protocol of stores of named files, such as `decisions/1-9.parquet`.

    Thread safe; every method blocks, and may raise StoreError.
    """

    place: str
    """The place, for messages; it has no secrets."""

    def read(self, name: str) -> Stored | None:
        """Read a small file; None if there is none."""
        ...

    def replace(self, name: str, data: bytes, tag: str | None) -> str:
        """Write a small file, if it still is the one that was read; returns its new tag.

        Args:
            name: of the file.
            data: its new content.
            tag: of the content that is replaced; None for a file that must not exist yet.

        Raises:
            Superseded: another process has replaced it.
        """
        ...

    def put(self, path: Path, name: str) -> None:
        """Store a copy of a local file, durably; it replaces a file of the same name."""
        ...

    def fetch(self, name: str, path: Path) -> None:
        """Copy a file to a local one.

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
