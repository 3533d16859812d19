"""Declared values: maps a stated preference to a prior over named dimensions of an answer.

"I dislike bullet points" → structure −. `_polarity` splits a statement into signed pieces of content; the mapping gives
the dimensions that a piece concerns, and on which side:

    relevance(u) = r · φ(u),   side(u) = s · φ(u),   value = mean of sign(u) · side(u) over the pieces that are relevant

φ is a Gaussian kernel on the piece's encoder vector beside its words and their beginnings; r and s are kernel ridge
regressions (Saunders et al. 1998) on `preferences.json`, statements that we wrote, with the sign outside. So a
negation reverses every dimension of the statement, independently of how the encoder represents "not".

The mapping is computed from the corpus when an encoder is first used, and cached by the encoder's id. The variance of a
value is the mean squared leave-one-out error of its dimension on the corpus. Statements that are not understood
(another language or subject) have no effect, and a reason is given.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import NamedTuple

import msgspec
import numpy as np

from fitrouter.context.encoders import Encoder
from fitrouter.types import Floats
from fitrouter_evaluators.scoring.statements._polarity import Unit, units
from fitrouter_evaluators.scoring.statements._polarity_words import FOREIGN, FUNCTION

_LONGEST = 1000
"""Maximum characters of a statement."""
_WIDTH = 0.5
"""γ of the kernel exp(−γ |x − x'|²); x consists of two unit vectors, so that |x − x'|² ≤ 8."""
_RIDGE = 0.1
_RELEVANT = 0.25
"""Relevance from which a piece concerns a dimension, if no other is twice as relevant; by cross-validation."""
_SAYS = 0.1
"""Smaller values are dropped."""


class Belief(msgspec.Struct, frozen=True):
    """Declared value of one dimension in [−1, 1], and its variance."""

    mean: float
    variance: float


class DeclaredTaste(msgspec.Struct, frozen=True):
    """Declared values by dimension; empty with a reason if the statement was not understood."""

    values: dict[str, Belief]
    understood: bool = True
    reason: str = ""


class Preferences(msgspec.Struct, frozen=True):
    """Statements of one meaning, with values −1…1 by dimension; no values for other subjects."""

    values: dict[str, float]
    statements: tuple[str, ...]


@functools.cache
def preferences() -> tuple[Preferences, ...]:
    """The corpus, in the order of its file."""
    payload = (resources.files("fitrouter_evaluators.scoring") / "data" / "preferences.json").read_bytes()
    return msgspec.json.decode(payload, type=tuple[Preferences, ...])


def _nothing(reason: str) -> DeclaredTaste:
    """No effect."""
    return DeclaredTaste({}, understood=False, reason=reason)


def _words(text: str) -> list[str]:
    """Words and their prefixes, so that 'illustrate' and 'illustrations' are similar."""
    return sorted({part for word in text.split() for part in (word, f"{word[:4]}_", f"{word[:6]}_")})


class _Mapping(NamedTuple):
    """A fitted mapping: kernel features of the corpus' pieces, and their contributions."""

    dimensions: tuple[str, ...]
    vocabulary: dict[str, int]
    pieces: Floats
    """float64[pieces, dim + words]"""
    side: Floats
    """float64[pieces, dimensions], as is `relevance`"""
    relevance: Floats
    variance: Floats
    """float64[dimensions]"""

    def __call__(self, vectors: Floats, texts: Sequence[str]) -> tuple[Floats, Floats]:
        """Side and relevance, float64[n, dimensions], of pieces with their encoder vectors."""
        kernel = _kernel(_features(vectors, texts, self.vocabulary), self.pieces)
        return kernel @ self.side, kernel @ self.relevance


def _features(vectors: Floats, texts: Sequence[str], vocabulary: Mapping[str, int]) -> Floats:
    bags = np.zeros((len(texts), len(vocabulary)))
    for bag, text in zip(bags, texts, strict=True):
        parts = _words(text)
        bag[[vocabulary[part] for part in parts if part in vocabulary]] = 1.0 / np.sqrt(max(len(parts), 1))
    return np.concatenate([vectors, bags], axis=1)


def _kernel(a: Floats, b: Floats) -> Floats:
    square = np.einsum("nd,nd->n", a, a)[:, None] + np.einsum("nd,nd->n", b, b)[None] - 2.0 * (a @ b.T)
    out: Floats = np.exp(-_WIDTH * np.maximum(square, 0.0))
    return out


def _fit(encoder: Encoder) -> _Mapping:
    """Fit the mapping of an encoder to the whole corpus."""
    corpus = [(units(text), group.values) for group in preferences() for text in group.statements]
    corpus = [(pieces, values) for pieces, values in corpus if pieces]
    dimensions = tuple(dict.fromkeys(name for _, values in corpus for name in values))
    texts = sorted({piece.text for pieces, _ in corpus for piece in pieces})
    at = {text: i for i, text in enumerate(texts)}
    vocabulary = {part: i for i, part in enumerate(sorted({part for text in texts for part in _words(text)}))}
    X = _features(encoder.encode(texts), texts, vocabulary)
    kernel = _kernel(X, X)
    signed, plain = np.zeros((2, len(corpus), len(texts)))
    for row, (pieces, _) in enumerate(corpus):
        for piece in pieces:
            signed[row, at[piece.text]] += piece.sign / len(pieces)
            plain[row, at[piece.text]] += 1.0 / len(pieces)
    target = np.array([[values.get(name, 0.0) for name in dimensions] for _, values in corpus])
    side, errors = _ridge(kernel, signed, target)
    relevance, _ = _ridge(kernel, plain, np.abs(target))
    named = target != 0.0
    variance = (errors**2 * named).sum(axis=0) / named.sum(axis=0)
    return _Mapping(dimensions, vocabulary, X, side, relevance, variance)


def _ridge(kernel: Floats, mixing: Floats, target: Floats) -> tuple[Floats, Floats]:
    """Kernel ridge of statements that mix pieces: contributions [pieces, d], leave-one-out errors [statements, d]."""
    inverse = np.linalg.inv(mixing @ kernel @ mixing.T + _RIDGE * np.eye(len(mixing)))
    dual = inverse @ target
    return mixing.T @ dual, dual / np.diag(inverse)[:, None]


_known: dict[str, _Mapping] = {}
_lock = threading.Lock()


def _mapping(encoder: Encoder) -> _Mapping:
    with _lock:
        if encoder.id not in _known:
            _known[encoder.id] = _fit(encoder)
        return _known[encoder.id]


class DeclaredValues:
    """Maps stated preferences to declared values. Thread-safe.

    Args:
        encoder: any; the first one of its id encodes the corpus, about 800 short texts.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    def read(self, statement: str) -> DeclaredTaste:
        """Map one statement; a text that is not understood has no effect.

        Raises:
            Exception: the encoder failed; no text is an error.
        """
        if not any(map(str.isalpha, statement)):
            return _nothing("it has no words")
        if len(statement) > _LONGEST:
            return _nothing(f"it has {len(statement)} characters; a statement has at most {_LONGEST}")
        return self._map(statement)

    def read_all(self, statements: Sequence[str]) -> DeclaredTaste:
        """Map several statements together: the precision-weighted mean per dimension.

        Disagreement adds the spread of their means to the variance.
        """
        tastes = [self.read(statement) for statement in statements]
        by_name: dict[str, list[Belief]] = {}
        for taste in tastes:
            for name, belief in taste.values.items():
                by_name.setdefault(name, []).append(belief)
        if not by_name:
            return _nothing("; ".join(dict.fromkeys(taste.reason for taste in tastes)) or "nothing was stated")
        return DeclaredTaste({name: _pool(beliefs) for name, beliefs in by_name.items()})

    def _map(self, statement: str) -> DeclaredTaste:
        if _foreign(statement):
            return _nothing("it is not English")
        pieces = units(statement)
        if not pieces:
            return _nothing("it names no property of an answer")
        mapping = _mapping(self._encoder)
        values = _values(mapping, pieces, self._encoder)
        found = {
            name: Belief(float(np.clip(value, -1.0, 1.0)), float(variance))
            for name, value, variance in zip(mapping.dimensions, values, mapping.variance, strict=True)
            if abs(value) >= _SAYS
        }
        return DeclaredTaste(found) if found else _nothing("it concerns no known dimension")


def _values(mapping: _Mapping, pieces: Sequence[Unit], encoder: Encoder) -> Floats:
    """float64[dimensions]: mean over the pieces that concern a dimension, 0 without any."""
    texts = [piece.text for piece in pieces]
    side, relevance = mapping(encoder.encode(texts), texts)
    named = (relevance >= _RELEVANT) & (relevance >= 0.5 * relevance.max(axis=1, keepdims=True))
    signs = np.array([piece.sign for piece in pieces])
    out: Floats = np.einsum("n,nd,nd->d", signs, side, named) / np.maximum(named.sum(axis=0), 1)
    return out


def _pool(beliefs: Sequence[Belief]) -> Belief:
    precision = np.array([1.0 / belief.variance for belief in beliefs])
    means = np.array([belief.mean for belief in beliefs])
    mean = float((precision * means).sum() / precision.sum())
    spread = float((precision * (means - mean) ** 2).sum() / precision.sum())
    return Belief(mean, 1.0 / float(precision.sum()) + spread)


_LETTERS = re.compile(r"[^\W\d_]+")


def _foreign(statement: str) -> bool:
    """Whether another script, or function words of another language, outweigh English."""
    found = _LETTERS.findall(statement.lower())
    letters = "".join(found)
    if sum(letter > "ɏ" for letter in letters) * 4 > len(letters):
        return True
    return (foreign := sum(word in FOREIGN for word in found)) > 0 and foreign >= sum(
        word in FUNCTION for word in found
    )
