"""Reward models made of an embedding and a basis that was learnt from people's labels: B (φ(x, y) − m).

A person's reward is r_u = λ_uᵀ B φ(x, y), as in LoRe (Bose et al. 2025) and PReF (Shenfeld et al. 2025); the weights
λ_u are the tastes that the learner keeps for these features. `fitrouter train basis` makes the file, which holds
numbers and a data sheet only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fitrouter.types import Floats
from fitrouter_evaluators.scoring.models.batches import TokenBatches
from fitrouter_evaluators.scoring.models.checkpoint import checkpoint, identify
from fitrouter_evaluators.scoring.models.reward_model import Description, Item, ModelError, RewardModel, reason_of
from fitrouter_evaluators.scoring.models.transformer import Transformer

if TYPE_CHECKING:
    from fitrouter.config import RewardModelConfig

_FORMAT = "fitrouter-basis-1"
_KEY = "fitrouter"


class Basis(NamedTuple):
    """A linear map of embeddings, and where it comes from."""

    matrix: Floats
    """float64[k, d]"""
    mean: Floats
    """float64[d]"""
    weights: str
    """Identify the model whose embeddings it maps."""
    dimensions: tuple[str, ...]
    sheet: Mapping[str, Any]
    """Data sheet: data, counts, metrics."""


def write_basis(path: Path, basis: Basis) -> None:
    """Write a basis as safetensors, in float32."""
    from safetensors.numpy import save

    about = {"format": _FORMAT, **basis._asdict()}
    arrays = {name: np.ascontiguousarray(about.pop(name), dtype=np.float32) for name in ("matrix", "mean")}
    path.write_bytes(save(arrays, {_KEY: json.dumps(about, sort_keys=True)}))


def read_basis(path: Path) -> Basis:
    """Read the file of a basis.

    Raises:
        ModelError: it is missing, or is no basis.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="numpy") as file:
            about = json.loads((file.metadata() or {})[_KEY])
            matrix, mean = (file.get_tensor(name).astype(np.float64) for name in ("matrix", "mean"))
        found = Basis(matrix, mean, about["weights"], tuple(about["dimensions"]), about["sheet"])
        shapes = (len(found.dimensions), len(mean))
        known = about["format"] == _FORMAT and matrix.shape == shapes and np.isfinite([*matrix, mean]).all()
    except FileNotFoundError:
        raise ModelError(f"there is no basis {str(path)!r}; `fitrouter train basis` writes one") from None
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{str(path)!r} is no basis: {error}; `fitrouter train basis` writes one") from None
    if not known:
        raise ModelError(f"{str(path)!r} is no basis, or is damaged; `fitrouter train basis` writes one")
    return found


class _SentenceTransformer:
    """A sentence-transformers model, which reads the prompt and the answer joined by an empty line."""

    def __init__(self, folder: Path, batch_tokens: int, device: str, report: Callable[[Exception], None]) -> None:
        import sentence_transformers
        import torch

        dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
        options = {"use_safetensors": True, "dtype": dtype}
        try:
            self._model = sentence_transformers.SentenceTransformer(str(folder), device=device, model_kwargs=options)
        except Exception as error:  # noqa: BLE001 - the library's errors have many types
            raise ModelError(f"{str(folder)!r} cannot be loaded ({reason_of(error)}); take another model") from None
        width = int(self._model.get_embedding_dimension() or 0)
        self.tokens, self.batches = 0, TokenBatches(batch_tokens, width, report)

    def score(self, items: Sequence[Item]) -> Floats:
        """Embed prompt and answer of each item, float64[n, d]; NaN for an answer without a text or that fails."""
        out = np.full((len(items), self.batches.width), np.nan)
        spoken = [i for i, item in enumerate(items) if item.answer.has_text]
        answers = [items[i].answer for i in spoken]
        texts = [f"{answer.prompt}\n\n{answer.text}".encode("utf-8", "replace").decode() for answer in answers]
        longest = int(self._model.max_seq_length or 512)
        lengths = [min(len(ids), longest) for ids in self._model.tokenizer(texts)["input_ids"]] if texts else []
        out[spoken] = self.batches.run(lengths, lambda batch: self._encoded([texts[i] for i in batch]))
        self.tokens += sum(lengths)
        return out

    def _encoded(self, texts: list[str]) -> Floats:
        found = self._model.encode(texts, batch_size=len(texts), convert_to_numpy=True, show_progress_bar=False)
        return np.asarray(found, dtype=np.float64)


def load_embedder(
    folder: Path, *, max_tokens: int, batch_tokens: int, device: str, report: Callable[[Exception], None]
) -> Transformer | _SentenceTransformer:
    """Load a folder's embedder: a sentence-transformers model, else the last hidden state of the last token.

    Raises:
        ModelError: it cannot be loaded.
    """
    if (folder / "modules.json").is_file():
        return _SentenceTransformer(folder, batch_tokens, device, report)
    return Transformer(folder, max_tokens=max_tokens, batch_tokens=batch_tokens, device=device, report=report)


def describe(entry: RewardModelConfig) -> Description:
    """Describe the model by its dimensions and a digest of its basis and weights.

    Raises:
        ModelError: there is no basis.
    """
    assert entry.basis is not None  # checked by the configuration
    basis = read_basis(entry.basis)
    digest = hashlib.sha256(basis.weights.encode() + basis.matrix.tobytes() + basis.mean.tobytes())
    return Description(basis.dimensions, digest.hexdigest())


class _Projected:
    """A reward model whose outputs are B (φ − m) of an embedding φ."""

    def __init__(self, transformer: Transformer | _SentenceTransformer, basis: Basis) -> None:
        self.transformer, self._basis = transformer, basis

    def score(self, items: Sequence[Item]) -> Floats:
        """Score items by their projected embeddings, float64[n, k]."""
        out: Floats = np.einsum("nd,kd->nk", self.transformer.score(items) - self._basis.mean, self._basis.matrix)
        return out


def load(entry: RewardModelConfig, device: str, report: Callable[[Exception], None]) -> RewardModel:
    """Load the model that maps embeddings of prompt and answer by the basis.

    Raises:
        ModelError: model or basis cannot be loaded, or the basis was learnt with another model.
    """
    assert entry.basis is not None  # checked by the configuration
    folder, basis = checkpoint(entry.model), read_basis(entry.basis)
    if (found := identify(folder)) != basis.weights:
        raise ModelError(
            f"the basis {str(entry.basis)!r} was learnt with the model {basis.weights[:12]}, and {entry.model!r} is "
            f"{found[:12]}; take that model, or run `fitrouter train basis` with this one"
        )
    options = {"max_tokens": entry.max_tokens, "batch_tokens": entry.batch_tokens}
    return _Projected(load_embedder(folder, **options, device=device, report=report), basis)
