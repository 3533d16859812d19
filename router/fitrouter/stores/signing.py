"""Ed25519 signatures of JSON documents, such as audits and certificates.

A signature is over the document without its field `signature`, as JSON with sorted keys and without spaces. It proves
that the document is unchanged since the holder of the key signed it; whose key it is, only the fingerprint tells,
compared over another channel.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fitrouter.errors import InvalidRequest, StoreError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FIELD = "signature"
_ALGORITHM = "Ed25519"
_CHANGED = "signature: does not belong to this document; it was changed after it was signed"


def signing_key(path: Path) -> Ed25519PrivateKey:
    """Read the private key of a file, or make one that only its owner can read.

    Raises:
        StoreError: the file cannot be read or written, or holds no key.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return Ed25519PrivateKey.from_private_bytes(path.read_bytes())
        key = Ed25519PrivateKey.generate()
        with os.fdopen(handle, "wb") as file:
            file.write(key.private_bytes_raw())
    except (OSError, ValueError) as error:
        raise StoreError(f"{str(path)!r} gives no key to sign with: {error}") from None
    return key


def signed(document: Mapping[str, Any], key: Ed25519PrivateKey) -> dict[str, Any]:
    """Return a document with its signature, replacing an earlier one."""
    body = {name: value for name, value in document.items() if name != FIELD}
    public = key.public_key().public_bytes_raw()
    value = key.sign(canonical(body))
    return {**body, FIELD: {"algorithm": _ALGORITHM, "key": _text(public), "value": _text(value)}}


def verified(document: Mapping[str, Any]) -> str:
    """Verify a document's signature, and return the fingerprint of the key that signed it.

    Raises:
        InvalidRequest: there is no signature, or it is not that of this document.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    given = document.get(FIELD)
    if not isinstance(given, Mapping) or given.get("algorithm") != _ALGORITHM:
        raise InvalidRequest("signature: missing; only documents that fitrouter signed can be verified")
    try:
        public, value = (base64.b64decode(given[name], validate=True) for name in ("key", "value"))
        body = {name: each for name, each in document.items() if name != FIELD}
        Ed25519PublicKey.from_public_bytes(public).verify(value, canonical(body))
    except (InvalidSignature, KeyError, TypeError, ValueError):
        raise InvalidRequest(_CHANGED) from None
    if dict(given) != {"algorithm": _ALGORITHM, "key": _text(public), "value": _text(value)}:
        raise InvalidRequest(_CHANGED)  # another field, or another base64 text of the same bytes
    return fingerprint(public)


def fingerprint(public: bytes) -> str:
    """Return a public key's fingerprint, which people can compare."""
    return hashlib.sha256(public).hexdigest()[:32]


def canonical(body: Any) -> bytes:
    """Encode JSON with sorted keys and without spaces.

    >>> canonical({"b": 1.0, "a": [True, None]})
    b'{"a":[true,null],"b":1.0}'
    """
    return msgspec.json.encode(msgspec.json.decode(msgspec.json.encode(body)), order="deterministic")


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()
