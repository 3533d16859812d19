"""Outcome tokens: signed proofs that their bearer received an answer, and so may rate it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable

from fitrouter.errors import NotAuthorized


class OutcomeTokens:
    """Signs and checks tokens `EXPIRY.MAC`, bound to a decision and its tenant, under a secret of the installation.

    Args:
        secret: of the installation; every process over its data folder has the same.
        clock: seconds since the epoch.
        valid_s: how long a token is valid.
    """

    def __init__(self, secret: bytes, clock: Callable[[], float], valid_s: float) -> None:
        self._key = hmac.digest(secret, b"fitrouter outcome tokens", "sha256")
        self._clock, self._valid_s = clock, valid_s
        self.installation = hmac.digest(secret, b"fitrouter installation", "sha256").hex()[:16]
        """Name of the installation, by which a client knows that a gateway is its own."""

    def sign(self, decision_id: str, tenant: str) -> str:
        """Sign the token of a decision."""
        expires = f"{int(self._clock() + self._valid_s):x}"
        return f"{expires}.{self._mac(expires, decision_id, tenant)}"

    def check(self, token: str, decision_id: str, tenant: str) -> None:
        """Check that a token is valid for a decision and its tenant.

        Raises:
            NotAuthorized: it is not of this decision and tenant, or has expired.
        """
        expires, _, mac = token.partition(".")
        if not hmac.compare_digest(mac.encode("utf-8", "replace"), self._mac(expires, decision_id, tenant).encode()):
            raise NotAuthorized(f"token: it is not the token of the answer to decision {decision_id!r}")
        if int(expires, 16) < self._clock():
            raise NotAuthorized(f"token: that of decision {decision_id!r} has expired")

    def _mac(self, expires: str, decision_id: str, tenant: str) -> str:
        said = json.dumps([expires, decision_id, tenant]).encode()
        return base64.urlsafe_b64encode(hmac.digest(self._key, said, hashlib.sha256)[:18]).decode()
