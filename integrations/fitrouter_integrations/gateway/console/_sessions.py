"""Sessions of pages: what opened one, in a cookie that scripts cannot read, and a token against forged changes.

The cookie holds what opened the session, such as a key, and its expiry, encrypted and authenticated (AES-GCM), so that
a key that is withdrawn or expires ends its sessions too. The secret for that is a file of the data folder, which all
workers share.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import os
import secrets
import time
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fitrouter_integrations.gateway.asgi._limits import is_own
from fitrouter_integrations.gateway.asgi._wire import Problem

COOKIE = "fitrouter_console"
TOKEN = "x-fitrouter-csrf"  # noqa: S105 - a header's name
LOCAL = "loopback"
"""The token where no keys are configured; a page of another origin cannot send the header without asking first."""
_SECRET_BYTES = 32
_log = logging.getLogger("fitrouter.gateway")


class Place(NamedTuple):
    """The pages that sessions are for."""

    cookie: str
    path: str
    hours: int
    """Longest session."""


CONSOLE = Place(COOKIE, "/console", 12)


class Sessions:
    """Seals what opened a session in a cookie, and reads it back.

    Args:
        data: folder of the secret.
        place: the pages that the sessions are for; one place's cookie opens no other.
    """

    def __init__(self, data: Path, place: Place = CONSOLE) -> None:
        self._data, self._place = data, place
        self._label = f"{place.cookie} session".encode()
        self._secret = b""

    def cookie(self, key: str, secure: bool) -> str:
        """Return the `Set-Cookie` header that begins a session; with an empty key, one that ends it."""
        value, age = "", 0
        if key:
            age = self._place.hours * 3600
            nonce = secrets.token_bytes(12)
            plain = f"{int(time.time()) + age}:{key}".encode()
            value = base64.urlsafe_b64encode(nonce + self._cipher().encrypt(nonce, plain, self._label)).decode()
        safe = "; Secure" if secure else ""
        return f"{self._place.cookie}={value}; Path={self._place.path}; Max-Age={age}; HttpOnly; SameSite=Strict{safe}"

    def key(self, headers: Mapping[str, bytes]) -> str:
        """Return the key of a request's session; empty without a valid one."""
        sealed = _cookie(headers, self._place.cookie)
        try:
            raw = base64.b64decode(sealed, altchars=b"-_", validate=True)
            until, _, key = self._cipher().decrypt(raw[:12], raw[12:], self._label).decode().partition(":")
            return key if int(until) > time.time() else ""
        except (ValueError, InvalidTag):
            return ""

    def token(self, headers: Mapping[str, bytes]) -> str:
        """Return the CSRF token that changes in a request's session must carry."""
        sealed = _cookie(headers, self._place.cookie)
        return hmac.new(self._shared(), sealed.encode(), hashlib.sha256).hexdigest() if sealed else LOCAL

    def check(self, headers: Mapping[str, bytes]) -> None:
        """Refuse a change that another site's page may have sent.

        Raises:
            Problem: it may.
        """
        check_origin(headers)
        if "authorization" in headers:  # no browser adds that by itself
            return
        if not hmac.compare_digest(headers.get(TOKEN, b""), self.token(headers).encode()):
            raise Problem(
                403, "forged_request", f"the header {TOKEN} is missing or of another session; reload the page"
            )

    def _cipher(self) -> AESGCM:
        return AESGCM(self._shared())

    def _shared(self) -> bytes:
        if not self._secret:
            try:
                self._secret = _stored(self._data / "console.key")
            except OSError as error:
                _log.warning("sessions of the console end with this process, since their secret is not kept: %s", error)
                self._secret = secrets.token_bytes(_SECRET_BYTES)
        return self._secret


def check_origin(headers: Mapping[str, bytes]) -> None:
    """Refuse a request that the page of another origin sent.

    Raises:
        Problem: it was one.
    """
    origin = headers.get("origin")
    foreign = origin is not None and not is_own(origin, headers)
    if foreign or headers.get("sec-fetch-site", b"none") not in {b"same-origin", b"none"}:
        raise Problem(403, "forged_request", "this comes from a page of another site; open this gateway's own page")


def _cookie(headers: Mapping[str, bytes], name: str) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", b"").decode("latin-1")).get(name)
    except CookieError:
        return ""
    return found.value if found is not None else ""


def _stored(path: Path) -> bytes:
    """Read the secret in a file, which is created atomically if it does not exist."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    if not path.exists():
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_SECRET_BYTES))
        try:
            os.link(fresh, path)  # another worker's is not replaced
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
    found = path.read_bytes()
    if len(found) != _SECRET_BYTES:
        raise OSError(f"{str(path)!r} does not hold {_SECRET_BYTES} bytes; delete it")
    return found
