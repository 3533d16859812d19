"""API keys and the tenants that they authenticate."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping
from typing import NamedTuple

from fitrouter.config import ServerConfig
from fitrouter.errors import ConfigError

_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_SHORTEST = 16


class Caller(NamedTuple):
    """The tenant that a key authenticates."""

    tenant: str
    admin: bool
    """Whether it may change the policy, which all tenants share."""


class Keys:
    """Looks up callers by key. Only digests are kept, so that no repr and no log shows a key.

    Without keys every caller on this machine is the tenant `default` and may change the policy.

    Args:
        config: names the environment variables that hold the keys.
        environ: the environment.

    Raises:
        ConfigError: a variable is missing or too short, or the address is not loopback and there are no keys.
    """

    def __init__(self, config: ServerConfig, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        if not config.keys and config.host not in _LOOPBACK:
            raise ConfigError(
                f"server.host: {config.host!r} is reachable from other machines, but no keys are configured; without "
                "'server.keys' only 127.0.0.1, ::1 and localhost are allowed. Add keys or listen on 127.0.0.1"
            )
        self._known: list[tuple[bytes, Caller]] = []
        for key in config.keys:
            secret = environ.get(key.key_env, "")
            if len(secret) < _SHORTEST:
                fault = "is not set" if not secret else f"holds {len(secret)} characters"
                raise ConfigError(
                    f"server.keys: {key.name!r} reads the environment variable {key.key_env!r}, which {fault}; "
                    f"give a key of at least {_SHORTEST} characters"
                )
            self._known.append((_digest(secret.encode()), Caller(key.tenant, key.admin)))

    def __bool__(self) -> bool:
        return bool(self._known)

    def caller(self, authorization: bytes | None) -> Caller | None:
        """The caller of an `Authorization` header, None if its key is unknown. Takes the same time for every key."""
        if not self._known:
            return Caller("default", True)
        scheme, _, secret = (authorization or b"").partition(b" ")
        digest = _digest(secret.strip())
        found = None
        for known, caller in self._known:
            if hmac.compare_digest(digest, known) and scheme.lower() == b"bearer":
                found = caller
        return found


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()
