"""API keys: the tenants that they authenticate, their scopes, and their rates."""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fitrouter.config import ServerConfig
from fitrouter.errors import ConfigError, conceal
from fitrouter.routing.tiers import BALANCED, TIERS
from fitrouter.stores.keys import SCOPES, StoredKey, id_of, read_keys

_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_SHORTEST = 16
_EVERY = frozenset({"chat", "feedback", "read"})
WATCH_S = 1.0
"""Seconds between looks at the key file."""
_NO_DIGEST = "0" * 64
_BUCKETS = 10_000
"""Keys whose rate is known."""
_log = logging.getLogger("fitrouter.gateway")


class Caller(NamedTuple):
    """The tenant that a key authenticates, and what it may do."""

    tenant: str
    admin: bool
    """Whether it may change the policy, which all tenants share."""
    metrics: bool
    """Whether it may read the metrics of all tenants."""
    trusted: bool = False
    """Whether it speaks for all users of its tenant."""
    scopes: frozenset[str] = _EVERY
    """Of `SCOPES`: those that routes ask for."""
    name: str = ""
    """Of the key; empty without keys."""
    user: str = ""
    """The one user that it speaks for, whomever its requests name; empty for no one in particular."""
    requests_per_minute: float | None = None
    usd_per_day: float | None = None
    tiers: tuple[str, ...] = TIERS
    """Cost tiers that its requests may ask for."""
    operator: bool = False
    """Whether it is whoever runs a command of `fitrouter` in this process."""
    everybody: bool = False
    """Whether an operator sees all tenants; `tenant` is then that of what concerns one."""

    @property
    def shown(self) -> str:
        """Describe the caller as the actor of a change, for the audit log."""
        if self.operator:
            return self.name
        return f"key {self.name}" if self.name else "a client without a key"


ANYBODY = Caller("default", True, True, True)
"""Every caller on this machine while there are no keys."""


class Keys:
    """Looks up callers by key. Only digests are kept, so that no repr and no log shows a key.

    Without keys every caller on this machine is the tenant `default` and may do everything. Keys come from environment
    variables that the configuration names, and from the file of `fitrouter keys`, which is read again when it changes.

    Args:
        config: names the environment variables that hold keys.
        environ: the environment.
        file: of `fitrouter keys`.
        clock: seconds since the epoch.
        report: gets the reason when the file cannot be read again.

    Raises:
        ConfigError: a variable is missing or too short, the file cannot be used, or the address is not loopback and
            there are no keys.
    """

    def __init__(
        self,
        config: ServerConfig,
        environ: Mapping[str, str] | None = None,
        file: Path | None = None,
        clock: Callable[[], float] = time.time,
        report: Callable[[str, Exception], object] = lambda _part, _error: None,
    ) -> None:
        self._report, self.fault = report, ""
        """Why the file cannot be read now, so that the keys read before stay in force; empty if it can."""
        environ = os.environ if environ is None else environ
        self._config, self._file, self._clock = config, file, clock
        self._stored: dict[str, StoredKey] = {}
        """Id → key of the file."""
        self._seen: object = None
        """What the file looked like when it was read."""
        self._look_at = -math.inf
        self._closed = bool(config.keys)
        """Whether a key is needed; a file that vanishes or is damaged does not open the gateway again."""
        self._shown = set[str]()
        """Ids of keys that are masked in messages."""
        self._secrets: list[bytes] = []
        for key in config.keys:
            secret = environ.get(key.key_env, "")
            if len(secret) < _SHORTEST:
                fault = "is not set" if not secret else f"holds {len(secret)} characters"
                raise ConfigError(
                    f"server.keys: {key.name!r} reads the environment variable {key.key_env!r}, which {fault}; "
                    f"give a key of at least {_SHORTEST} characters"
                )
            conceal(secret)
            self._secrets.append(_digest(secret.encode()))
        self._take(() if file is None else read_keys(file))
        if not self._closed and config.host not in _LOOPBACK:
            raise ConfigError(
                f"server.host: {config.host!r} is reachable from other machines, but no keys are configured; without "
                "'server.keys' only 127.0.0.1, ::1 and localhost are allowed. Add keys or listen on 127.0.0.1"
            )

    def _take(self, stored: Sequence[StoredKey]) -> None:
        """Take over the keys read from the file."""
        self._closed = self._closed or bool(stored)
        self._stored = {key.id: key for key in stored}
        bound = [key for key in self._config.keys if not key.admin or "tenant" in key.model_fields_set]
        tenants = {key.tenant for key in bound} | {
            key.tenant or "default" for key in stored if key.tenant is not None or "admin" not in key.scopes
        }
        self._several = len(tenants) > 1
        self._known = []
        for key, digest in zip(self._config.keys, self._secrets, strict=True):
            admin = key.admin and not (self._several and "tenant" in key.model_fields_set)
            if admin is not key.admin:
                _log.warning(
                    "server.keys: %r is one tenant's, so it may not change the policy, which all tenants share; give "
                    "the installation an admin key without 'tenant'",
                    key.name,
                )
            caller = Caller(
                key.tenant,
                admin,
                admin or key.metrics,
                key.trusted,
                name=key.name,
                requests_per_minute=key.requests_per_minute,
                usd_per_day=key.usd_per_day,
                tiers=(BALANCED, *key.tiers),
            )
            self._known.append((digest, caller))

    def _look(self) -> None:
        """Read the file again if it has changed; if it cannot be read, the keys stay as they are."""
        if self._file is None or (now := time.monotonic()) < self._look_at:
            return
        self._look_at = now + WATCH_S
        try:
            found = self._file.stat()
            seen: object = (found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode)
        except OSError as error:
            seen = type(error)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._take(read_keys(self._file))
            self.fault = ""
        except ConfigError as error:
            self.fault = f"{error}; the keys read before stay in force"
            self._report("keys", ConfigError(self.fault))

    def __bool__(self) -> bool:
        self._look()
        return self._closed

    def caller(self, authorization: bytes | None) -> Caller | None:
        """Return the caller of an `Authorization` header, None if its key is unknown; equally fast for every key."""
        if not self:
            return ANYBODY
        scheme, _, given = (authorization or b"").partition(b" ")
        secret = given.strip()
        if scheme.lower() != b"bearer":
            secret = b""
        digest = _digest(secret)
        found = None
        for known, caller in self._known:
            if hmac.compare_digest(digest, known):
                found = caller
        return found or self._of_file(secret.decode("latin-1"), digest)

    def _of_file(self, secret: str, digest: bytes) -> Caller | None:
        key, now = self._stored.get(id_of(secret)), self._clock()
        digests = key.digests(now) if key is not None else ()
        matches = [hmac.compare_digest(digest.hex().encode(), known.encode()) for known in digests or (_NO_DIGEST,)]
        if key is None or not digests or not any(matches):
            return None
        if key.id not in self._shown:
            self._shown.add(key.id)
            conceal(secret)
        admin = "admin" in key.scopes and not (self._several and key.tenant is not None)
        return Caller(
            key.tenant or "default",
            admin,
            admin or "metrics" in key.scopes,
            "trusted" in key.scopes,
            frozenset(key.scopes) & frozenset(SCOPES) | ({"read"} if admin else set()),
            key.name,
            key.user,
            key.requests_per_minute,
            key.usd_per_day,
        )


class Rates:
    """Token buckets of the keys with a limit of requests per minute, in one process; each holds a minute's worth."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Name of a key → requests that are left, at a time on the monotonic clock."""

    def charge(self, caller: Caller, calls: int) -> None:
        """Count further calls of a request that goes on; where they are more than is left, later requests wait."""
        if calls > 0 and caller.name in self._buckets:
            left, since = self._buckets[caller.name]
            self._buckets[caller.name] = (left - calls, since)

    def take(self, caller: Caller) -> float:
        """Count a request of a caller; 0.0 if it may go on, else the seconds until it may."""
        rate = caller.requests_per_minute
        if rate is None:
            return 0.0
        now, most = time.monotonic(), max(rate, 1.0)
        left, since = self._buckets.get(caller.name, (most, now))
        left = min(left + (now - since) * rate / 60.0, most)
        wait_s = max(1.0 - left, 0.0) * 60.0 / rate
        self._buckets[caller.name] = (left if wait_s else left - 1.0, now)
        self._buckets.move_to_end(caller.name)
        if len(self._buckets) > _BUCKETS:
            self._buckets.popitem(last=False)
        return wait_s


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()
