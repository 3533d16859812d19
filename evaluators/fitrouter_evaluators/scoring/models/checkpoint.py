"""Folders of Hugging Face models: found, identified and checked without loading any weights.

Weights are read from safetensors only, and a checkpoint's own code is never run.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from fitrouter_evaluators.scoring.models.reward_model import ModelError, reason_of

_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
_EDGE = 1 << 16


def checkpoint(model: str, *, weights: bool = True) -> Path:
    """Find a model's folder; one of the hub is downloaded first, unless the library is offline (`HF_HUB_OFFLINE=1`).

    Args:
        model: a folder, or a hub id.
        weights: False fetches the configuration only.

    Raises:
        ModelError: there is no such folder or model, or its weights are not safetensors.
    """
    folder = Path(model).expanduser()
    if not folder.is_dir() and model.startswith((".", "/", "~")):
        raise ModelError(f"there is no folder {model!r}; give a folder with config.json, a tokenizer and safetensors")
    if not folder.is_dir():
        folder = _fetched(model, weights)
    if not (folder / "config.json").is_file() and not (folder / "modules.json").is_file():
        raise ModelError(f"{model!r} has no config.json; give the folder of a Hugging Face model, or a hub id")
    for pickled in (*folder.rglob("*.bin"), *folder.rglob("*.pt")):
        if not any(pickled.parent.glob("*.safetensors")):
            raise ModelError(f"{model!r} has {pickled.name!r} and no safetensors; pickles are not loaded, convert it")
    return folder


def _fetched(model: str, weights: bool) -> Path:
    try:
        import huggingface_hub

        if weights:
            return Path(huggingface_hub.snapshot_download(model, allow_patterns=_FILES))
        return Path(huggingface_hub.hf_hub_download(model, "config.json")).parent
    except ImportError as error:
        raise ModelError(f"{model!r} needs {error.name!r}; `pip install 'fitrouter[reward]'`") from None
    except Exception as error:  # noqa: BLE001 - the hub's errors have many types
        raise ModelError(
            f"the model {model!r} is no folder, and cannot be read from the hub ({reason_of(error)}); "
            f"correct the name, download it first, or unset HF_HUB_OFFLINE"
        ) from None


def identify(folder: Path) -> str:
    """Identify a model by its commit on the hub, else by a hash of its configuration and of parts of its weights."""
    if folder.parent.name == "snapshots":
        return folder.name
    digest = hashlib.sha256()
    for file in sorted([*folder.rglob("config.json"), *folder.rglob("*.safetensors")]):
        with file.open("rb") as stream:
            ends = stream.read(_EDGE)
            stream.seek(max(file.stat().st_size - _EDGE, 0))
            digest.update(f"{file.name} {file.stat().st_size}".encode() + ends + stream.read(_EDGE))
    return digest.hexdigest()
