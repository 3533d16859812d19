"""Places of segments, by the setting, by a path on the command line, and those that a data folder has used."""

from __future__ import annotations

import os
from pathlib import Path

from fitrouter.config import segments_place
from fitrouter.errors import ConfigError
from fitrouter.stores.warehouse.segments._bucket import Bucket
from fitrouter.stores.warehouse.segments._folder import Folder
from fitrouter.stores.warehouse.segments._storage import Storage

PLACES = "segments.places"
"""File of a data folder with every place that its events went to, so that an erasure reaches them."""


def storage_at(place: str) -> Storage:
    """Open the storage at a place: a folder, or s3://BUCKET/PREFIX.

    Raises:
        ConfigError: it is neither.
        MissingExtra: obstore is not installed.
    """
    try:
        place = segments_place(place)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return Bucket(place) if "://" in place else Folder(Path(place).absolute())


def place_of(path: str | os.PathLike[str]) -> str:
    """Return the URL of a bucket, even if it was made a path with only one slash; empty for other paths.

    >>> place_of(Path("s3://bucket/prefix")), place_of("fitrouter-data")
    ('s3://bucket/prefix', '')
    """
    scheme, _, rest = os.fspath(path).partition(":/")
    return f"s3://{rest.lstrip('/')}" if scheme == "s3" else ""


def note_place(folder: Path, storage: Storage) -> None:
    """Record in a data folder that a place is used; earlier places stay."""
    known = noted_places(folder)
    if storage.place not in known:
        new = folder / f"{PLACES}.new"
        with os.fdopen(os.open(new, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o600), "w") as file:
            file.writelines(f"{place}\n" for place in (*known, storage.place))
            file.flush()
            os.fsync(file.fileno())
        new.replace(folder / PLACES)


def noted_places(folder: Path) -> list[str]:
    """The places that a data folder has used."""
    try:
        return (folder / PLACES).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
