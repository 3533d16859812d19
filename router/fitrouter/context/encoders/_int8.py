"""MiniLM in eight bits: the sentence encoder for machines without a GPU, several times faster than in torch."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fitrouter.context.encoders._minilm import minilm_basis
from fitrouter.errors import ArtifactError, ConfigError
from fitrouter.types import Floats

INT8_FILES = ("encoder.onnx", "tokenizer.json")
"""What the manifest `int8.json` names the sha256 of."""


def int8_folder() -> Path:
    """Where `minilm-int8` lies: FITROUTER_INT8, or a folder of the user's cache."""
    if named := os.environ.get("FITROUTER_INT8"):
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "fitrouter" / "minilm-int8"


class Int8Encoder:
    """MiniLM with int8 weights and activations, run by onnxruntime on the CPU.

    `python -m fitrouter_evaluators.training.train_int8 FOLDER` writes the folder. Texts are encoded
    one by one: the scale of the activations is taken from the whole input, so that a row depends on its own text only,
    and nothing is spent on padding.

    Args:
        folder: holds int8.json (the manifest), encoder.onnx and tokenizer.json; None is `int8_folder()`.
        threads: threads of one text; 0 lets onnxruntime take all cores.

    Raises:
        ConfigError: the folder or onnxruntime is missing.
        ArtifactError: a file does not match the manifest.
    """

    ordered = False
    slow = True
    """Encoding takes milliseconds: keep it off the event loop."""

    def __init__(self, folder: Path | None = None, threads: int = 0) -> None:
        root = int8_folder() if folder is None else folder
        manifest = _manifest(root)
        try:
            runtime: Any = importlib.import_module("onnxruntime")
        except ImportError:
            raise ConfigError(
                "the encoder 'minilm-int8' needs onnxruntime; `pip install 'fitrouter[int8]'`, "
                "or use the encoder 'static' or 'minilm'"
            ) from None
        from tokenizers import Tokenizer

        for name in INT8_FILES:
            _check(root / name, manifest["sha256"][name])
        self.id: str = manifest["id"]
        self.dim: int = manifest["dim"]
        self.basis = minilm_basis()
        self._tokenizer = Tokenizer.from_file(str(root / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(manifest["tokens"])
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        # Threads that spin between texts would take the cores from those who answer requests.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = runtime.InferenceSession(
            str(root / "encoder.onnx"), options, providers=["CPUExecutionProvider"]
        )

    def encode(self, texts: Sequence[str]) -> Floats:
        """float64[n, dim], rows of length 1 (0 for a blank text); a row depends on its own text only."""
        out = np.zeros((len(texts), self.dim))
        for row, text in zip(out, texts, strict=True):
            if text.strip():
                read = self._tokenizer.encode(text.encode("utf-8", "replace").decode())
                inputs = {"input_ids": np.array([read.ids]), "attention_mask": np.array([read.attention_mask])}
                vector = self._session.run(None, inputs)[0][0].astype(np.float64)
                row[:] = vector / max(float(np.sqrt(np.einsum("i,i->", vector, vector))), 1e-12)
        return out


def _manifest(root: Path) -> dict[str, Any]:
    path = root / "int8.json"
    if not path.is_file():
        raise ConfigError(
            f"the encoder 'minilm-int8' is not in {str(root)!r}; make it with "
            "`python -m fitrouter_evaluators.training.train_int8`, name its folder in FITROUTER_INT8, or use 'static'"
        )
    try:
        manifest = json.loads(path.read_bytes())
        if set(manifest["sha256"]) >= set(INT8_FILES) and {"id", "dim", "tokens"} <= set(manifest):
            return dict(manifest)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"{str(path)!r} is no manifest of an int8 encoder ({error!r})") from None
    raise ArtifactError(f"{str(path)!r} is no manifest of an int8 encoder: it lacks a key")


def _check(path: Path, sha256: str) -> None:
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ArtifactError(
            f"{str(path)!r} cannot be read ({error}); "
            "make it anew with `python -m fitrouter_evaluators.training.train_int8`"
        ) from None
    if found != sha256:
        raise ArtifactError(
            f"{str(path)!r} has the sha256 {found}, expected is {sha256}; "
            f"make it anew with `python -m fitrouter_evaluators.training.train_int8`"
        )
