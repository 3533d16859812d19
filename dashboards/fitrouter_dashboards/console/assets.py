"""The files of the page."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from typing import NamedTuple

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


class Asset(NamedTuple):
    """A file of the page."""

    body: bytes
    media_type: str
    etag: str


@cache
def assets() -> dict[str, Asset]:
    """Load the files of the page: name → file."""
    found = {}
    for file in resources.files(__package__ or __name__).joinpath("static").iterdir():
        if (media_type := _TYPES.get(file.name.rpartition(".")[2])) is not None:
            body = file.read_bytes()
            found[file.name] = Asset(body, media_type, f'"{hashlib.sha256(body).hexdigest()[:20]}"')
    return found
