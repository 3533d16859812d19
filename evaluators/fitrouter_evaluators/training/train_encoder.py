"""Distillation of a sentence encoder into a table of token vectors (`fitrouter train encoder`)."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fitrouter.context.encoders import MINILM_SHA256, minilm_path
from fitrouter.errors import ConfigError
from fitrouter.types import Floats

_SIF = 1e-4
"""Arora et al.'s a: a token of frequency p weighs a / (a + p)."""
_ZIPF_SHIFT = 2.7
"""Mandelbrot's shift of the rank in p ∝ 1 / (rank + 2.7)."""
_FIRST_WORD = 1996
"""Index of 'the' in BERT's vocabulary, from which words are roughly in order of frequency."""
_RARE_CHARACTER = 1 / 5000
"""Unnormalised frequency of a single character outside ASCII."""
_CLIP = 5.0
"""Standard deviations that the int8 range spans; the few entries beyond are cut."""


def train_static(out: Path, dim: int = 128) -> dict[str, Any]:
    """Write static.bin, static.json and vocab.txt into `out`; returns a summary.

    Every token of MiniLM's vocabulary is encoded alone ([CLS] token [SEP], mean pooled), centred on the mean of running
    text, projected to the `dim` leading principal components of weighted running text and whitened. Token frequencies
    are taken from ranks by Zipf's law. The same weights give the same bytes on one build.

    Raises:
        ConfigError: torch, sentence-transformers or the weights are missing, or `dim` is out of range.
        ArtifactError: the weights do not match their sha256.
    """
    if not 8 <= dim <= 256:
        raise ConfigError(f"dim is {dim}; allowed are 8 to 256")
    started = time.perf_counter()
    source = minilm_path()
    vocab = (source / "vocab.txt").read_bytes()
    vocabulary = vocab.decode("utf-8").rstrip("\n").split("\n")
    frequency = _frequencies(vocabulary)
    weights = _SIF / (_SIF + frequency)
    table = _project(_token_vectors(source, len(vocabulary)), frequency, weights, dim)
    scale = table.std(axis=0) * _CLIP / 127
    quantised = np.clip(np.rint(table / scale), -127, 127).astype(np.int8)
    payload = quantised.tobytes() + weights.astype("<f2").tobytes()
    digest = hashlib.sha256(payload).hexdigest()
    manifest = {
        "id": f"static-{digest[:12]}",
        "dim": dim,
        "tokens": len(vocabulary),
        "scale": scale.tolist(),
        "sha256": {"static.bin": digest, "vocab.txt": hashlib.sha256(vocab).hexdigest()},
        "source": {"model": "all-MiniLM-L6-v2", "licence": "Apache-2.0", "sha256": MINILM_SHA256},
    }
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(manifest, indent=1, sort_keys=True) + "\n"
    for name, content in (("static.bin", payload), ("vocab.txt", vocab), ("static.json", text.encode())):
        (out / name).write_bytes(content)
    return {
        "id": manifest["id"],
        "folder": str(out),
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "tokens": len(vocabulary),
        "dim": dim,
        "bytes": len(payload) + len(vocab) + len(text),
        "seconds": round(time.perf_counter() - started, 1),
    }


def _frequencies(vocabulary: Sequence[str]) -> Floats:
    """Estimate token frequencies in running text from ranks in the vocabulary, float64[V], with sum 1.

    Tokens that text cannot hold ([unused7], [CLS] …) have frequency 0; [UNK] counts as the most frequent word, so that
    it only matters in texts without other words.
    """
    rank = np.maximum(1.0, np.arange(len(vocabulary)) - (_FIRST_WORD - 1))
    frequency = 1 / (rank + _ZIPF_SHIFT)
    for i, token in enumerate(vocabulary):
        if len(token) > 1 and token.startswith("[") and token.endswith("]") and token != "[UNK]":  # noqa: S105
            frequency[i] = 0.0
        elif len(token) == 1 and not token.isascii():
            frequency[i] = _RARE_CHARACTER
    normalised: Floats = frequency / frequency.sum()
    return normalised


def _token_vectors(source: Path, tokens: int, batch: int = 2048) -> Floats:
    """Encode each token as a sentence of its own, float64[V, 384]."""
    try:
        import torch
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise ConfigError(f"training needs {error.name!r}; `pip install 'fitrouter[reward]'`") from None
    transformer: Any = SentenceTransformer(str(source), device="cpu")[0]
    model = transformer.auto_model.eval()
    found: list[NDArray[np.float32]] = []
    with torch.inference_mode():
        for start in range(0, tokens, batch):
            ids = torch.arange(start, min(tokens, start + batch))
            sentences = torch.stack([torch.full_like(ids, 101), ids, torch.full_like(ids, 102)], dim=1)
            states = model(input_ids=sentences, attention_mask=torch.ones_like(sentences)).last_hidden_state
            found.append(states.mean(dim=1).numpy())
    return np.vstack(found).astype(np.float64)


def _project(vectors: Floats, frequency: Floats, weights: Floats, dim: int) -> Floats:
    """Centre and whiten along the principal components of weighted running text, largest first, float64[V, dim]."""
    share = frequency * weights
    centred = vectors - (share / share.sum()) @ vectors
    moments = frequency * weights**2
    covariance = (centred * (moments / moments.sum())[:, None]).T @ centred
    values, axes = np.linalg.eigh(covariance)
    values, axes = values[::-1][:dim], axes[:, ::-1][:, :dim]
    # An eigenvector's sign is arbitrary: its largest entry is made positive.
    axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(dim)])
    projected: Floats = centred @ axes / np.sqrt(values)
    return projected
