"""A pool of real responses: every model's answer to every prompt, as arrays.

The file (Parquet or JSONL) has the columns prompt_id, prompt, model, response; a prompt that lacks an answer of some
model is left out. Users and their tastes belong to a world (`worlds`).
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from fitrouter.context.encoders import Encoder
from fitrouter.context.features import context_features, estimate_tokens, read_prompt
from fitrouter.errors import ConfigError
from fitrouter.types import Floats, Request
from fitrouter_evaluators.scoring import Answer, ResponseFeatures

ATTRIBUTES = ("length", "structure", "hedging", "warmth", "word_length", "code", "digits", "examples")
"""Attributes that simulated users care about, computed independently of the scorer's features."""

UNSEEN = ("rhythm", "negation", "opening", "ending")
"""Attributes of hidden tastes, which no feature of the scorer measures."""

CHARACTERS = 4
"""Characters of a token, on average."""

_SENTENCE = re.compile(r"[.!?]+(?:\s|$)|\n+")
_NO = re.compile(r"\b(?:not|no|never|cannot|without|nothing|\w+n't)\b", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z']+")
_BULLET = re.compile(r"^\s*([-*•]|\d+[.)])\s", re.MULTILINE)
_HEADING = re.compile(r"^#+ ", re.MULTILINE)
_HEDGES = (
    "may ",
    "might",
    "could",
    "perhaps",
    "possibly",
    "likely",
    "generally",
    "it depends",
    "often",
    "however",
)
_WARM = (" you ", "your ", "i hope", "feel free", "happy to", "glad")
_EXAMPLES = ("for example", "for instance", "e.g.", "such as")


def attributes(text: str) -> list[float]:
    """The eight attributes of one answer, in the order of `ATTRIBUTES`, not yet standardised."""
    words = _WORD.findall(text)
    low, root = text.lower(), float(np.sqrt(max(len(words), 1)))
    structure = len(_BULLET.findall(text)) + len(_HEADING.findall(text)) + text.count("**") / 2
    return [
        float(np.log1p(len(text))),
        structure / root,
        sum(low.count(word) for word in _HEDGES) / root,
        (low.count("!") + sum(low.count(word) for word in _WARM)) / root,
        float(np.mean([len(word) for word in words])) if words else 0.0,
        float("```" in text),
        sum(character.isdigit() for character in text) / root,
        sum(low.count(word) for word in _EXAMPLES) / root,
    ]


def unseen(text: str) -> list[float]:
    """Measure the attributes of one answer in the order of `UNSEEN`, not yet standardised.

    Spread of sentence lengths, share of negations, lengths of the first and the last sentence.
    """
    words = [len(_WORD.findall(sentence)) for sentence in _SENTENCE.split(text)]
    words = [n for n in words if n] or [1]
    return [
        float(np.std(words)) / float(np.mean(words)),
        len(_NO.findall(text)) / float(np.sqrt(max(sum(words), 1))),
        float(np.log1p(words[0])),
        float(np.log1p(words[-1])),
    ]


class Pool(msgspec.Struct, frozen=True):
    """Recorded answers of K models to N prompts, with contexts, features and attributes."""

    models: tuple[str, ...]
    prompts: tuple[str, ...]
    x: Floats
    """The router's contexts, float64[N, d]."""
    h: Floats
    """The scorer's response features, float64[K, N, D]."""
    attributes: Floats
    """Standardised over the pool and cut at ±3, float64[K, N, 8]."""
    topics: Floats
    """1 and sixteen principal components of the prompts, in the world's own encoder, float64[N, 17]."""
    schema: str
    prompt_tokens: NDArray[np.int64]
    """int64[N]"""
    completion_tokens: NDArray[np.int64]
    """int64[K, N]"""
    names: tuple[str, ...] = ()
    """Of the response features."""
    unseen: Floats | None = None
    """Residuals of the attributes `UNSEEN` after linear regression on h in this pool, standardised
    and clipped to ±3, so that no taste over h explains them, float64[K, N, 4]."""


def principal(vectors: Floats, dim: int) -> Floats:
    """Leading principal components, each of unit variance (sklearn.decomposition.PCA), float64[n, dim]."""
    from sklearn.decomposition import PCA

    return np.asarray(PCA(dim, whiten=True, svd_solver="full").fit_transform(vectors), dtype=np.float64)


def load_pool(path: Path, encoder: Encoder, features: ResponseFeatures, topics: Encoder, limit: int = 0) -> Pool:
    """Read a pool, and compute its contexts, features and attributes.

    Args:
        path: the file.
        encoder: the router's encoder of prompts.
        features: the scorer's response features.
        topics: encoder of the world's topics.
        limit: number of prompts; 0 for all.

    Raises:
        ConfigError: the file is missing, or lacks a column.
    """
    models, prompts, texts = _read(path)
    if limit:
        prompts, texts = prompts[:limit], [row[:limit] for row in texts]
    N, K = len(prompts), len(models)
    requests = [Request(messages=({"role": "user", "content": prompt},)) for prompt in prompts]
    answers = [Answer(prompt=prompts[n], text=texts[k][n]) for k in range(K) for n in range(N)]
    h = np.asarray(features.encode(answers))
    seen = _standard(np.array([attributes(answer.text) for answer in answers]))
    hidden = _standard(np.array([unseen(answer.text) for answer in answers]))
    hidden = _standard(hidden - _explained(np.where(np.isnan(h), 0.0, h), hidden))
    # 16 scaled components, together of length about 1, as in the first experiments.
    dim = min(16, N - 1)
    components = principal(np.asarray(topics.encode(prompts)), dim) / np.sqrt(dim)
    return Pool(
        models=tuple(models),
        prompts=tuple(prompts),
        x=np.array([context_features(read_prompt(request), encoder) for request in requests]),
        h=h.reshape(K, N, -1),
        attributes=seen.reshape(K, N, -1),
        topics=np.concatenate([np.ones((N, 1)), components], axis=1),
        schema=features.schema,
        names=features.names,
        prompt_tokens=np.array([estimate_tokens(request.messages, request.params) for request in requests]),
        completion_tokens=np.array([len(answer.text) // CHARACTERS for answer in answers]).reshape(K, N),
        unseen=hidden.reshape(K, N, -1),
    )


def _standard(values: Floats) -> Floats:
    """Standardise columns to mean 0 and variance 1, clipped to ±3."""
    result: Floats = np.clip((values - values.mean(0)) / (values.std(0) + 1e-9), -3, 3)
    return result


def _explained(h: Floats, values: Floats) -> Floats:
    """Least-squares prediction of the columns of `values` from h."""
    weights, *_ = np.linalg.lstsq(h, values, rcond=None)
    return np.asarray(h @ weights)


def _read(path: Path) -> tuple[list[str], list[str], list[list[str]]]:
    """Read models, prompts and texts[K][N] of a file, complete prompts only."""
    import duckdb

    if not path.is_file():
        raise ConfigError(f"there is no pool {str(path)!r}; give a Parquet or JSONL file of recorded responses")
    reader = "read_parquet(?)" if path.suffix == ".parquet" else "read_json(?, format='newline_delimited')"
    with duckdb.connect() as connection:
        try:
            rows = connection.execute(
                f"select prompt_id, prompt, model, response from {reader} order by prompt_id, model",  # noqa: S608
                [str(path)],
            ).fetchall()
        except duckdb.Error as error:
            raise ConfigError(
                f"{str(path)!r} is not a pool: {error}; it needs the columns prompt_id, prompt, model, response"
            ) from None
    models = sorted({row[2] for row in rows})
    by_prompt: dict[str, dict[str, str]] = {}
    words: dict[str, str] = {}
    for prompt_id, prompt, model, response in rows:
        by_prompt.setdefault(str(prompt_id), {})[model] = response or ""
        words[str(prompt_id)] = prompt
    complete = [prompt_id for prompt_id, answers in by_prompt.items() if len(answers) == len(models)]
    texts = [[by_prompt[prompt_id][model] for prompt_id in complete] for model in models]
    return models, [words[prompt_id] for prompt_id in complete], texts
