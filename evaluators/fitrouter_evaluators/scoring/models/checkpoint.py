"""Folders of Hugging Face models: found, identified and checked without loading any weights.

Weights are read from safetensors only, and a checkpoint's own code is never run.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from fitrouter_evaluators.scoring.models.reward_model import ModelError

_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
_EDGE = 1 << 16


def checkpoint(model: str, *, weights: bool = True) -> Path:
    """Folder of a model; one of the hub is downloaded first, unless the library is offline (`HF_HUB_OFFLINE=1`).

    Args:
        model: a folder, or a hub id.
        weights: False fetches the configuration only.

    Raises:
        ModelError: there is no such folder or model, or its weights are not safetensors.
    """
    folder = Path(model).expanduser()
    if not folder.is_dir():
        if model.startswith((".", "/", "~")):
            raise ModelError(
                f"there is no folder {model!r}; give a folder with config.json, a tokenizer and safetensors"
            )
        folder = _fetched(model, weights)
    if not (folder / "config.json").is_file():
        raise ModelError(f"{model!r} has no config.json; give the folder of a Hugging Face model, or a hub id")
    if weights:
        for pickled in (*folder.rglob("*.bin"), *folder.rglob("*.pt")):
            if not any(pickled.parent.glob("*.safetensors")):
                raise ModelError(
                    f"{model!r} has {pickled.name!r} instead of safetensors; pickles are not loaded. Convert it"
                )
    return folder


def _fetched(model: str, weights: bool) -> Path:
    try:
        import huggingface_hub
    except ImportError as error:
        raise ModelError(f"{model!r} needs {error.name!r}; `pip install 'fitrouter[reward]'`") from None
    try:
        if weights:
            return Path(huggingface_hub.snapshot_download(model, allow_patterns=_FILES))
        return Path(huggingface_hub.hf_hub_download(model, "config.json")).parent
    except Exception as error:
        reason = str(error).strip().splitlines()[0][:200]
        raise ModelError(
            f"the model {model!r} is no folder, and cannot be read from the hub ({type(error).__name__}: {reason}); "
            f"correct the name, download it first, or unset HF_HUB_OFFLINE"
        ) from None


def read_configuration(folder: Path) -> dict[str, Any]:
    """The model's config.json.

    Raises:
        ModelError: it is no JSON object.
    """
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{str(folder / 'config.json')!r} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise ModelError(f"{str(folder / 'config.json')!r} is no JSON object")
    return found


def fingerprint(folder: Path) -> str:
    """Commit of a hub's snapshot; else a hash of the configuration and of both ends of each file of weights."""
    if folder.parent.name == "snapshots":
        return folder.name
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for file in sorted(folder.glob("*.safetensors")):
        size = file.stat().st_size
        with file.open("rb") as stream:
            ends = stream.read(_EDGE)
            stream.seek(max(size - _EDGE, 0))
            digest.update(f"{file.name} {size}".encode() + ends + stream.read(_EDGE))
    return digest.hexdigest()
