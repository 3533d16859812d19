"""Segments in a bucket of S3, or of a server that speaks its protocol, through obstore.

obstore reads the environment variables of AWS: keys, region, endpoint, and those of roles and containers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fitrouter.errors import StoreError, conceal, require
from fitrouter.stores.warehouse.segments._storage import Missing, Stored, Superseded

if TYPE_CHECKING:
    from obstore.store import S3Store


_SECRETS = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_TOKEN")
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_RETRY_S = 10.0
"""Seconds for which a call is tried again; what calls does so later."""
_CHUNK = 8 * 2**20
_CODES = {
    "NoSuchBucket": "the bucket does not exist: create it, or correct `warehouse.segments`",
    "InvalidAccessKeyId": "the key is not known there: correct AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "the key's secret is wrong: correct AWS_SECRET_ACCESS_KEY",
    "ExpiredToken": "the session token has expired: renew AWS_SESSION_TOKEN",
    "AccessDenied": "the key lacks a right: it needs s3:ListBucket, GetObject, PutObject and DeleteObject there",
    "NotImplemented": "the server lacks a part of S3; it must take conditional writes (If-Match, If-None-Match)",
    "PermanentRedirect": "the bucket is in another region: set AWS_REGION",
    "AuthorizationHeaderMalformed": "the bucket is in another region: set AWS_REGION",
}
"""Code of an error → what it means, and what to do."""
_NO_KEY = "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run with a role"


class Bucket:
    """A `Storage` in a bucket of objects.

    Args:
        url: s3://BUCKET/PREFIX.

    Raises:
        MissingExtra: obstore is not installed.
    """

    def __init__(self, url: str) -> None:
        require("obstore", "a warehouse in S3")
        self.place = url.rstrip("/")
        self._parts = urlsplit(self.place)
        self._made: S3Store | None = None

    def read(self, name: str) -> Stored | None:
        """Read a small file; see `Storage`."""
        try:
            with self._store_errors("read", name):
                found = self._store().get(name)
                return Stored(bytes(found.bytes()), str(found.meta["e_tag"]))
        except Missing:
            return None

    def replace(self, name: str, data: bytes, tag: str | None) -> str:
        """Replace a small file; see `Storage`."""
        with self._store_errors("written", name):
            mode = "create" if tag is None else {"e_tag": tag}
            return str(self._store().put(name, data, mode=mode, use_multipart=False)["e_tag"])  # type: ignore[arg-type]

    def put(self, path: Path, name: str) -> None:
        """Store a copy of a local file; see `Storage`."""
        with self._store_errors("written", name):
            self._store().put(name, path)

    def fetch(self, name: str, path: Path) -> None:
        """Copy a file to a local one; see `Storage`."""
        with self._store_errors("read", name), path.open("wb") as file:
            for chunk in self._store().get(name).stream(min_chunk_size=_CHUNK):
                file.write(chunk)

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
    def _store_errors(self, done: str, name: str) -> Iterator[None]:
        from obstore import exceptions

        try:
            yield
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
            raise Superseded(f"the segments in {self.place!r} were changed by another process") from error
        except OSError as error:
            # obstore's own "not found" is one, too, and says so of a bucket as well
            text = str(error)
            if isinstance(error, FileNotFoundError) and "NoSuchBucket" not in text and not error.filename:
                raise Missing(f"the segments in {self.place!r} lack {name}") from error
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
        return f"the segments in {self.place!r} cannot be {done}: {why}"
