"""The files of pages."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from types import ModuleType
from typing import NamedTuple

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


class Asset(NamedTuple):
    """A file of a page."""

    body: bytes
    media_type: str
    etag: str


@cache
def assets(pages: ModuleType) -> dict[str, Asset]:
    """Load the files of a package's pages, in its folder `static`: name → file."""
    found = {}
    for file in resources.files(pages).joinpath("static").iterdir():
        if (media_type := _TYPES.get(file.name.rpartition(".")[2])) is not None:
            body = file.read_bytes()
            found[file.name] = Asset(body, media_type, f'"{hashlib.sha256(body).hexdigest()[:20]}"')
    return found
