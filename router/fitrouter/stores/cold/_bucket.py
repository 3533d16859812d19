"""Cold store in a bucket of S3, or of a server that speaks its protocol, through obstore.

obstore reads the environment variables of AWS: keys, region, endpoint, and those of roles and containers.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fitrouter.errors import StoreError, conceal, require
from fitrouter.stores.cold._storage import Missing

if TYPE_CHECKING:
    from obstore.store import S3Store


_SECRETS = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_TOKEN")
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_RETRY_S = 10.0
"""Seconds for which a call is tried again; what calls does so later."""
_CHUNK = 8 * 2**20
SCRATCH = "cold.new-"
"""Prefix of folders for files under way; an erasure deletes those that a killed process left."""
_CODES = {
    "NoSuchBucket": "the bucket does not exist: create it, or correct `cold.place`",
    "InvalidAccessKeyId": "the key is not known there: correct AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "the key's secret is wrong: correct AWS_SECRET_ACCESS_KEY",
    "ExpiredToken": "the session token has expired: renew AWS_SESSION_TOKEN",
    "AccessDenied": "the key lacks a right: it needs s3:ListBucket, GetObject, PutObject and DeleteObject there",
    "PermanentRedirect": "the bucket is in another region: set AWS_REGION",
    "AuthorizationHeaderMalformed": "the bucket is in another region: set AWS_REGION",
}
"""Code of an error → what it means, and what to do."""
_NO_KEY = "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run with a role"


class Bucket:
    """A `Storage` in a bucket of objects.

    Args:
        url: s3://BUCKET/PREFIX.
        folder: for files under way; that for temporary files by default.

    Raises:
        MissingExtra: obstore is not installed.
    """

    def __init__(self, url: str, folder: Path | None = None) -> None:
        require("obstore", "a cold store in S3")
        self.place, self._folder = url.rstrip("/"), folder
        self._parts = urlsplit(self.place)
        self._made: S3Store | None = None

    def put(self, name: str, write: Callable[[Path], object]) -> None:
        """Store a file; see `Storage`."""
        with self._scratch() as path, self._store_errors("written", name):
            write(path)
            self._store().put(name, path)

    @contextmanager
    def local(self, name: str) -> Iterator[Path]:
        """Provide a copy of a file; see `Storage`."""
        with self._scratch() as path:
            with self._store_errors("read", name), path.open("wb") as file:
                for chunk in self._store().get(name).stream(min_chunk_size=_CHUNK):
                    file.write(chunk)
            yield path

    def sizes(self) -> dict[str, int]:
        """Return the bytes of every file by name; see `Storage`."""
        with self._store_errors("listed", ""):
            return {found["path"]: found["size"] for chunk in self._store().list() for found in chunk}

    def delete(self, names: Collection[str]) -> None:
        """Delete files; see `Storage`."""
        with self._store_errors("deleted", ""):
            for name in names:  # one by one: not every server takes a list
                try:
                    self._store().delete(name)
                except FileNotFoundError:
                    continue

    def _store(self) -> S3Store:
        if self._made is None:
            from obstore.store import S3Store

            for name in _SECRETS:
                conceal(os.environ.get(name, ""))
            endpoint = next(filter(None, map(os.environ.get, _ENDPOINTS)), "")
            self._made = S3Store(
                self._parts.netloc,
                prefix=self._parts.path.strip("/") or None,
                client_options={"allow_http": endpoint.startswith("http://"), "connect_timeout": "5s"},
                retry_config={"max_retries": 5, "retry_timeout": timedelta(seconds=_RETRY_S)},
            )
        return self._made

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        inside = self._folder if self._folder is not None and os.access(self._folder, os.W_OK) else None
        try:
            folder = tempfile.TemporaryDirectory(prefix=SCRATCH, dir=inside)
        except OSError as error:
            raise StoreError(f"there is no room for a file of the cold store {self.place!r}: {error}") from error
        with folder as name:
            yield Path(name) / "file.parquet"

    @contextmanager
    def _store_errors(self, done: str, name: str) -> Iterator[None]:
        from obstore import exceptions

        try:
            yield
        except OSError as error:
            # obstore's own "not found" is one, too, and says so of a bucket as well
            text = str(error)
            if isinstance(error, FileNotFoundError) and "NoSuchBucket" not in text and not error.filename:
                raise Missing(f"the cold store {self.place!r} lacks {name}") from error
            raise StoreError(self._message(done, text)) from error
        except exceptions.BaseError as error:
            raise StoreError(self._message(done, str(error))) from error

    def _message(self, done: str, text: str) -> str:
        """Say what is wrong and what to do, given an error with a page of details."""
        head = text.partition("\n\nDebug source:")[0]
        code = re.search(r"<Code>(\w+)</Code>", head)
        if code and code[1] in _CODES:
            why = f"{_CODES[code[1]]} ({code[1]})"
        elif "169.254." in head or "credential" in head.lower():
            why = _NO_KEY
        else:
            said = re.search(r"<Message>([^<]{1,300})", head)
            why = said[1] if said else " ".join(head.split())[:300]
            if "HTTP error" in head:
                why += "; see that the server is up, and AWS_ENDPOINT_URL and AWS_REGION are right"
        return f"the cold store {self.place!r} cannot be {done}: {why}"
