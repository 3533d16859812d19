"""Places of a cold store, by the setting, by a path on the command line, and those that a data folder has used."""

from __future__ import annotations

import os
from pathlib import Path

from fitrouter.config import cold_place
from fitrouter.errors import ConfigError
from fitrouter.stores.cold._bucket import Bucket
from fitrouter.stores.cold._folder import Folder
from fitrouter.stores.cold._storage import Storage

PLACES = "cold.places"
"""File of a data folder with every place that its events went to, so that reads and erasures reach them."""


def storage_at(place: str, folder: Path | None = None) -> Storage:
    """Open the storage at a place: a folder, or s3://BUCKET/PREFIX.

    Args:
        place: where; a relative folder is one of `folder`.
        folder: the data folder, for files under way; that for temporary files by default.

    Raises:
        ConfigError: it is neither.
        MissingExtra: obstore is not installed.
    """
    try:
        place = cold_place(place)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return Bucket(place, folder) if "://" in place else Folder((folder or Path()).absolute() / place)


def place_of(path: str | os.PathLike[str]) -> str:
    """Return the URL of a bucket, even if it was made a path with only one slash; empty for other paths.

    >>> place_of(Path("s3://bucket/prefix")), place_of("fitrouter-data")
    ('s3://bucket/prefix', '')
    """
    scheme, _, rest = os.fspath(path).partition(":/")
    return f"s3://{rest.lstrip('/')}" if scheme == "s3" else ""


def note_place(folder: Path, storage: Storage) -> None:
    """Record in a data folder which place is used now; earlier places stay. One inside of it moves with the folder."""
    place = storage.place
    if "://" not in place and Path(place).is_relative_to(folder.absolute()):
        place = str(Path(place).relative_to(folder.absolute()))
    known = noted_places(folder)
    if known[-1:] != [place]:
        new = folder / f"{PLACES}.new"
        with os.fdopen(os.open(new, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o600), "w") as file:
            file.writelines(f"{each}\n" for each in (*(each for each in known if each != place), place))
            file.flush()
            os.fsync(file.fileno())
        new.replace(folder / PLACES)


def noted_places(folder: Path) -> list[str]:
    """The places that a data folder has used, the present one last."""
    try:
        return (folder / PLACES).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
