"""Verified reading of encoder files: manifests, and files with a known sha256."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fitrouter.errors import ArtifactError


def check_sha256(path: Path, sha256: str, remedy: str) -> None:
    """Check a file's sha256 without reading it into memory as a whole.

    Raises:
        ArtifactError: the file cannot be read, or its sha256 differs.
    """
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ArtifactError(f"{str(path)!r} cannot be read ({error}); {remedy}") from None
    if found != sha256:
        raise ArtifactError(f"{str(path)!r} has sha256 {found}, expected {sha256}; {remedy}")


def read_manifest(path: Path, kind: str, files: Collection[str], keys: Collection[str]) -> dict[str, Any]:
    """Read a JSON manifest; it must have the given keys, and a sha256 for each of the given files.

    Raises:
        ArtifactError: it cannot be read, or has another content.
    """
    try:
        manifest = json.loads(path.read_bytes())
        if manifest["sha256"].keys() >= set(files) and manifest.keys() >= set(keys):
            return dict(manifest)
        problem = "a key is missing"
    except (AttributeError, OSError, ValueError, KeyError, TypeError) as error:
        problem = repr(error)
    raise ArtifactError(f"{str(path)!r} is not a manifest of a {kind} encoder: {problem}")
