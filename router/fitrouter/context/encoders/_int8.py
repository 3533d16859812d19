"""MiniLM quantised to int8 for machines without a GPU, several times faster than in torch."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fitrouter.context.encoders._artifacts import check_sha256, read_manifest
from fitrouter.context.encoders._minilm import minilm_basis
from fitrouter.errors import ConfigError
from fitrouter.types import Floats

INT8_FILES = ("encoder.onnx", "tokenizer.json")
"""Files whose sha256 is in the manifest `int8.json`."""


def int8_folder() -> Path:
    """Folder of the encoder `minilm-int8`: $FITROUTER_INT8, or a folder in the user's cache."""
    if named := os.environ.get("FITROUTER_INT8"):
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "fitrouter" / "minilm-int8"


class Int8Encoder:
    """MiniLM with int8 weights and activations, run by onnxruntime on the CPU.

    `python -m fitrouter_evaluators.training.train_int8 FOLDER` makes the folder. Texts are encoded one by one: the
    scale of the activations is computed over the whole input, so in a batch a row would depend on the other texts.

    Args:
        folder: with int8.json (the manifest), encoder.onnx and tokenizer.json; None is `int8_folder()`.
        threads: threads for one text; 0 is all cores.

    Raises:
        ConfigError: the folder or onnxruntime is missing.
        ArtifactError: a file does not match the manifest.
    """

    ordered = False
    slow = True
    """Encoding takes milliseconds: keep it off the event loop."""

    def __init__(self, folder: Path | None = None, threads: int = 0) -> None:
        root = int8_folder() if folder is None else folder
        if not (root / "int8.json").is_file():
            raise ConfigError(
                f"the encoder 'minilm-int8' is not in {str(root)!r}; make it with "
                "`python -m fitrouter_evaluators.training.train_int8`, set FITROUTER_INT8 to it, or use 'static'"
            )
        manifest = read_manifest(root / "int8.json", "int8", INT8_FILES, ("id", "dim", "tokens"))
        try:
            runtime: Any = importlib.import_module("onnxruntime")
        except ImportError:
            raise ConfigError(
                "the encoder 'minilm-int8' needs onnxruntime; `pip install 'fitrouter[int8]'`, "
                "or use the encoder 'static' or 'minilm'"
            ) from None
        from tokenizers import Tokenizer

        for name in INT8_FILES:
            check_sha256(
                root / name,
                manifest["sha256"][name],
                "make it again with `python -m fitrouter_evaluators.training.train_int8`",
            )
        self.id: str = manifest["id"]
        self.dim: int = manifest["dim"]
        self.basis = minilm_basis()
        self._tokenizer = Tokenizer.from_file(str(root / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(manifest["tokens"])
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        # Threads that spin between texts would take CPU time from the threads that serve requests.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = runtime.InferenceSession(
            str(root / "encoder.onnx"), options, providers=["CPUExecutionProvider"]
        )

    def encode(self, texts: Sequence[str]) -> Floats:
        """Encode texts as rows of length 1 (0 for a blank text), float64[n, dim].

        A row depends on its own text only.
        """
        out = np.zeros((len(texts), self.dim))
        for row, text in zip(out, texts, strict=True):
            if text.strip():
                read = self._tokenizer.encode(text.encode("utf-8", "replace").decode())
                inputs = {"input_ids": np.array([read.ids]), "attention_mask": np.array([read.attention_mask])}
                vector = self._session.run(None, inputs)[0][0].astype(np.float64)
                row[:] = vector / max(float(np.sqrt(np.einsum("i,i->", vector, vector))), 1e-12)
        return out
