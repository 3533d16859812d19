"""Signed fit certificates, and their verification from the exported rows.

Verification needs neither the log nor the installation: it checks the layout of the file, the signature, the hash of
the rows, and recomputes every figure from them. It cannot know whether the rows are all that happened, or whose key
signed: compare the fingerprint over another channel.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from fitrouter.config import Config
from fitrouter.errors import InvalidRequest
from fitrouter.router import Router
from fitrouter.serving.people import STRANGER
from fitrouter.stores.signing import FIELD, signed, verified
from fitrouter.types import Identity
from fitrouter_evaluators.personal.certificate.figures import Figures, Method, figures
from fitrouter_evaluators.personal.certificate.rows import Rows, logged_rows
from fitrouter_evaluators.personal.leaderboard import Leaderboards

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

OBJECT, VERSION = "fitrouter.certificate", 1
_GIVE = "give a file that `fitrouter personal certificate` wrote"
_TOLERANCE = 1e-9
"""Other processors add in another order."""


class Certificate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fit certificate, without its signature."""

    object: str = OBJECT
    version: int = VERSION
    user: str
    role: str | None
    ts: float
    """Unix time."""
    log: str
    """SHA-256 of the exported rows."""
    method: Method
    figures: Figures


class Verified(NamedTuple):
    """A certificate whose signature and figures were verified, with the key that signed it."""

    certificate: Certificate
    key: str
    """Fingerprint of the key that signed it."""


async def certified(
    router: Router,
    config: Config,
    identity: Identity,
    *,
    method: Method | None = None,
    anchors: Mapping[str, float] | None = None,
) -> Rows:
    """Collect the rows of a person that a certificate is computed from.

    Args:
        router: started, or `Router.offline`.
        config: whose data folder has the log.
        identity: a user, in a role if one is given.
        method: checked before the log is read.
        anchors: model → equated score on the anchors of a suite.

    Raises:
        InvalidRequest: no user, or nothing is known of them.
        ConfigError, InvalidLog, StoreError: the log cannot be read.
    """
    (method or Method()).build()
    if not identity.user:
        raise InvalidRequest("certificate: no user; certificates are of one person")
    who = await router.people.recall(identity)
    if who.user == STRANGER or who.user is None:
        raise InvalidRequest(f"certificate: nothing is known of the user {identity.user!r} in {identity.tenant!r}")
    drawn = await asyncio.to_thread(Leaderboards(router, config).drawn, who, identity)
    return await asyncio.to_thread(
        logged_rows,
        config.data,
        tenant=identity.tenant,
        subject=who.user,
        compared=drawn.names,
        population_first=drawn.board.population_first,
        draws=drawn.own.ratings,
        anchors=anchors,
    )


def issued(
    rows: Rows, identity: Identity, key: Ed25519PrivateKey, *, ts: float, method: Method | None = None
) -> tuple[bytes, bytes]:
    """Compute and sign a certificate of rows; return the bytes of its file and of the file of its rows."""
    payload, method = rows.encoded(), method or Method()
    document = Certificate(
        user=identity.user or "",
        role=identity.role,
        ts=ts,
        log=hashlib.sha256(payload).hexdigest(),
        method=method,
        figures=figures(rows, method),
    )
    return layout(signed(msgspec.to_builtins(document), key)), payload


def layout(document: Mapping[str, Any]) -> bytes:
    """Serialise a document canonically, so that no byte of a certificate can be changed unnoticed."""
    return msgspec.json.format(msgspec.json.encode(document, order="deterministic"), indent=1) + b"\n"


def verify(certificate: bytes, rows: bytes, key: str = "") -> Verified:
    """Check a certificate and recompute it from its rows.

    Args:
        certificate: the file.
        rows: the file of exported rows.
        key: fingerprint that the signing key must have, if it is known.

    Raises:
        InvalidRequest: it is no certificate, one of the files was changed, or a figure does not follow from the rows.
    """
    try:
        document = msgspec.json.decode(certificate, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(
            f"certificate: not JSON ({error}); give a file that `fitrouter personal certificate` wrote"
        ) from None
    if document.get("object") != OBJECT:
        raise InvalidRequest(
            "certificate: not a fit certificate; give a file that `fitrouter personal certificate` wrote"
        )
    if document.get("version") != VERSION:
        raise InvalidRequest(f"certificate: version {document.get('version')!r} is unknown here; this is {VERSION}")
    signer = verified(document)
    if layout(document) != certificate:
        raise InvalidRequest("certificate: it is not laid out as it was written; it was changed after it was signed")
    if key and signer != key:
        raise InvalidRequest(f"certificate: signed by the key {signer}, not by {key}")
    try:
        body = {name: value for name, value in document.items() if name != FIELD}
        found = msgspec.convert(body, Certificate)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"certificate: {error}") from None
    if (digest := hashlib.sha256(rows).hexdigest()) != found.log:
        raise InvalidRequest(f"rows: their SHA-256 is {digest}, not {found.log}; they are others, or were changed")
    own = msgspec.to_builtins(figures(Rows.decoded(rows), found.method))
    if place := _difference(body["figures"], own, "figures"):
        raise InvalidRequest(f"certificate: {place}")
    return Verified(found, signer)


def _difference(said: Any, own: Any, place: str) -> str:
    """The first place at which two values differ by more than rounding, in words; empty for none."""
    if isinstance(said, dict) and isinstance(own, dict) and said.keys() == own.keys():
        return next((found for name in said if (found := _difference(said[name], own[name], f"{place}.{name}"))), "")
    if isinstance(said, list) and isinstance(own, list | tuple) and len(said) == len(own):
        pairs = enumerate(zip(said, own, strict=True))
        return next((found for i, (a, b) in pairs if (found := _difference(a, b, f"{place}[{i}]"))), "")
    if isinstance(said, int | float) and isinstance(own, int | float):
        same = math.isclose(said, own, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    else:
        same = said == own
    return "" if same else f"{place} is {said!r}, but the rows give {own!r}"
