"""Audits of roles with high stakes: signed files in the data folder, without which such a role is not personalised."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from fitrouter.errors import InvalidRequest, StoreError, in_words
from fitrouter.identity import canonical_role
from fitrouter.stores.signing import fingerprint, signing_key, verified

OBJECT = "fitrouter.audit"
KEY = "signing.key"


def audit_file(data: Path, role: str) -> Path:
    """Path of a role's audit."""
    name = hashlib.sha256((canonical_role(role) or "").encode()).hexdigest()[:16]
    return data / "audits" / f"{name}.json"


def has_passed(data: Path, role: str, registry: str) -> bool:
    """Whether a role has an audit that passed, for exactly these models, signed by the key of this data folder.

    Raises:
        StoreError: there is an audit that cannot be read, or that was changed.
    """
    file = audit_file(data, role)
    try:
        found = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
        signer = verified(found)
    except FileNotFoundError:
        return False
    except (OSError, msgspec.DecodeError, InvalidRequest) as error:
        raise StoreError(
            f"the audit of the role {role!r} cannot be read, so that the role is not personalised: {in_words(error)}; "
            f"run `fitrouter audits role` again, or put {str(file)!r} back"
        ) from error
    return (
        signer == fingerprint(signing_key(data / KEY).public_key().public_bytes_raw())
        and found.get("object") == OBJECT
        and found.get("role") == canonical_role(role)
        and found.get("registry") == registry
        and found.get("passed") is True
    )
