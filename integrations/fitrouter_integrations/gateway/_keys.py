"""Who may speak: configured keys and the tenants they stand for."""

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


class Speaker(NamedTuple):
    """Whom a key stands for."""

    tenant: str
    admin: bool
    """May change the policy, which is everybody's."""


class Keys:
    """Key → who speaks. Only digests are kept, so that no repr and no log can show a key.

    Without keys everybody on this machine is the tenant `default`, and may change the policy.

    Args:
        config: names of the environment variables that hold the keys.
        environ: the environment.

    Raises:
        ConfigError: a variable is missing or short, or the address is open to others and there are no keys.
    """

    def __init__(self, config: ServerConfig, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        if not config.keys and config.host not in _LOOPBACK:
            raise ConfigError(
                f"server.host: {config.host!r} can be reached by others, and no keys are configured; "
                "allowed without 'server.keys' are 127.0.0.1, ::1 and localhost. Add keys or listen on 127.0.0.1"
            )
        self._known: list[tuple[bytes, Speaker]] = []
        for key in config.keys:
            secret = environ.get(key.key_env, "")
            if len(secret) < _SHORTEST:
                fault = "is not set" if not secret else f"holds {len(secret)} characters"
                raise ConfigError(
                    f"server.keys: {key.name!r} reads the environment variable {key.key_env!r}, which {fault}; "
                    f"give it a key of at least {_SHORTEST} characters"
                )
            self._known.append((_digest(secret.encode()), Speaker(key.tenant, key.admin)))

    def __bool__(self) -> bool:
        return bool(self._known)

    def speaker(self, authorization: bytes | None) -> Speaker | None:
        """Who sends an `Authorization` header, None where its key is unknown. Takes the same time for every key."""
        if not self._known:
            return Speaker("default", True)
        scheme, _, secret = (authorization or b"").partition(b" ")
        digest = _digest(secret.strip())
        found = None
        for known, speaker in self._known:
            if hmac.compare_digest(digest, known) and scheme.lower() == b"bearer":
                found = speaker
        return found


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()
