"""Retrieval of a user's earlier posts for a question, and its recall, MRR and NDCG.

Names: `bm25` (Robertson and Zaragoza 2009, Lucene's variant, by the library bm25s), `facebook/contriever-msmarco`
(Izacard et al. 2022; what Personalized RewardBench uses), or any encoder of `fitrouter.context.encoders` by cosine.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from fitrouter.context.encoders import Encoder, get_encoder
from fitrouter.errors import ConfigError
from fitrouter.types import Floats

CONTRIEVER = "facebook/contriever-msmarco"


class Retriever(Protocol):
    """Protocol of a retriever: scores posts by relevance to a question."""

    name: str

    def scores(self, question: str, posts: Sequence[str]) -> Floats:
        """Score posts by their nearness to a question, float64[posts]; on any scale, more is nearer."""
        ...


def top(retriever: Retriever, question: str, posts: Sequence[str], k: int = 10) -> list[int]:
    """Return the places of the k nearest posts, nearest first; of equals the earlier one first."""
    if not posts:
        return []
    order = np.argsort(-retriever.scores(question, posts), kind="stable")
    return [int(place) for place in order[:k]]


class BM25:
    """Retriever by BM25, with every profile as its own corpus.

    Raises:
        ConfigError: the library bm25s is missing.
    """

    name = "bm25"

    def __init__(self) -> None:
        try:
            self._library: Any = importlib.import_module("bm25s")
        except ImportError:
            raise ConfigError("the retriever 'bm25' needs 'bm25s'; `pip install bm25s`, or use 'minilm'") from None

    def scores(self, question: str, posts: Sequence[str]) -> Floats:
        """Score posts, float64[posts]; 0 for a post without a word of the question."""
        words, *corpus = self._library.tokenize(
            [question, *posts], stopwords="en", return_ids=False, show_progress=False
        )
        if not words or not any(corpus):
            return np.zeros(len(posts))
        index = self._library.BM25()
        index.index(corpus, show_progress=False)
        return np.asarray(index.get_scores(words), dtype=np.float64)


class Dense:
    """Retriever by the cosine of an encoder's vectors; those of the last `cache` texts are kept."""

    def __init__(self, encoder: Encoder, cache: int = 20_000) -> None:
        self.name = encoder.id
        self._encoder, self._size = encoder, cache
        self._kept: dict[str, Floats] = {}

    def vectors(self, texts: Sequence[str]) -> Floats:
        """Return the texts' vectors, float64[n, d], of length 1 (0 for a text without a token)."""
        fresh = list(dict.fromkeys(text for text in texts if text not in self._kept))
        if len(self._kept) + len(fresh) > self._size:
            self._kept = {text: self._kept[text] for text in texts if text in self._kept}
        if fresh:
            self._kept |= dict(zip(fresh, self._encoder.encode(fresh), strict=True))
        return np.array([self._kept[text] for text in texts]).reshape(len(texts), self._encoder.dim)

    def scores(self, question: str, posts: Sequence[str]) -> Floats:
        """Return the cosines of posts with the question, float64[posts] in [−1, 1]."""
        found = self.vectors([question, *posts])
        out: Floats = np.einsum("nd,d->n", found[1:], found[0])
        return out


class Contriever:
    """facebook/contriever-msmarco, or a folder with its files: mean pooling over the tokens, dot product, as published.

    As an `Encoder` its vectors are not of length 1: their length is part of the score.

    Raises:
        ConfigError: the library is missing, or the weights are not on this machine and cannot be fetched.
    """

    def __init__(self, name: str = CONTRIEVER, device: str = "cpu", batch: int = 32) -> None:
        try:
            library: Any = importlib.import_module("transformers")
            self._torch: Any = importlib.import_module("torch")
        except ImportError as error:
            raise ConfigError(
                f"the retriever {name!r} needs {error.name!r}; `pip install 'fitrouter[reward]'`, or use 'bm25'"
            ) from None
        try:
            self._tokenizer = library.AutoTokenizer.from_pretrained(name)
            self._model = library.AutoModel.from_pretrained(name).to(device).eval()
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"the weights of {name!r} are not on this machine ({str(error).splitlines()[0]}); run "
                f"`hf download {CONTRIEVER}` where the hub can be reached and HF_HUB_OFFLINE is not set, or give the "
                f"folder that holds them, or use 'bm25' or 'minilm'"
            ) from None
        self.name = self.id = name if name == CONTRIEVER else f"contriever:{Path(name).name}"
        self.dim = int(self._model.config.hidden_size)
        self._device, self._batch = device, batch

    def encode(self, texts: Sequence[str]) -> Floats:
        """Encode texts as the mean of the last layer over their tokens, float64[n, dim]; cut at 512 tokens."""
        out = np.zeros((len(texts), self.dim))
        for start in range(0, len(texts), self._batch):
            batch = list(texts[start : start + self._batch])
            tokens = self._tokenizer(batch, padding=True, truncation=True, max_length=512, return_tensors="pt")
            tokens = tokens.to(self._device)
            with self._torch.inference_mode():
                states = self._model(**tokens).last_hidden_state
            mask = tokens["attention_mask"][..., None].to(states.dtype)
            pooled = (states * mask).sum(dim=1) / mask.sum(dim=1)
            out[start : start + len(batch)] = pooled.double().cpu().numpy()
        return out

    def scores(self, question: str, posts: Sequence[str]) -> Floats:
        """Return the dot products of posts with the question, float64[posts]."""
        found = self.encode([question, *posts])
        out: Floats = np.einsum("nd,d->n", found[1:], found[0])
        return out


def get_retriever(name: str) -> Retriever:
    """Return the retriever of a name; see the module.

    Raises:
        ConfigError: there is no such retriever, or what it needs is missing.
    """
    if name == "bm25":
        return BM25()
    if name == CONTRIEVER or Path(name).joinpath("config.json").is_file():
        return Contriever(name)
    try:
        return Dense(get_encoder(name))
    except ConfigError as error:
        raise ConfigError(f"the retriever {name!r} cannot be used: {error}. 'bm25' and {CONTRIEVER!r} go too") from None


class Query(NamedTuple):
    """A question, posts, and the places of those that matter for it."""

    question: str
    posts: tuple[str, ...]
    relevant: frozenset[int]


def measure_retriever(retriever: Retriever, queries: Sequence[Query], k: int = 10) -> dict[str, float]:
    """Compute means over queries with something relevant.

    Returns:
        `recall`: share of the relevant posts among the top k (of k, where there are more); `mrr`: 1 / place of the
        first relevant one, 0 where none is in the top k; `ndcg` at k with gains of 0 and 1; `queries`.

    Raises:
        ValueError: no query has anything relevant.
    """
    rows = []
    for query in queries:
        if not query.relevant:
            continue
        hits = [place in query.relevant for place in top(retriever, query.question, query.posts, k)]
        most = min(k, len(query.relevant))
        gain = sum(hit / math.log2(i + 2) for i, hit in enumerate(hits))
        rows.append(
            (
                sum(hits) / most,
                next((1.0 / (i + 1) for i, hit in enumerate(hits) if hit), 0.0),
                gain / sum(1.0 / math.log2(i + 2) for i in range(most)),
            )
        )
    if not rows:
        raise ValueError("no query has a relevant post; label at least one")
    recall, mrr, ndcg = np.mean(rows, axis=0)
    return {"recall": float(recall), "mrr": float(mrr), "ndcg": float(ndcg), "queries": float(len(rows))}
