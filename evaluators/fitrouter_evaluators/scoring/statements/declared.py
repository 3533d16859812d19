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
import threading
from collections.abc import Sequence
from importlib import resources
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fitrouter.context.encoders import Encoder
from fitrouter.types import Floats
from fitrouter_evaluators.scoring.statements._polarity import Unit, units
from fitrouter_evaluators.scoring.statements._polarity_words import FUNCTION
from fitrouter_evaluators.scoring.statements._subject import StemOdds, about_style, features
from fitrouter_evaluators.scoring.statements.glossary import in_english
from fitrouter_evaluators.scoring.text.language import ENGLISH, language_of
from fitrouter_evaluators.scoring.text.reading import split_words

_LONGEST = 1000
"""Maximum characters of a statement."""
_WIDTH = 0.5
"""γ of the kernel exp(−γ |x − x'|²); x consists of two unit vectors, so that |x − x'|² ≤ 8."""
_RIDGE = 0.1
_RELEVANT = 0.15
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
    """Statements that mean the same, with their values −1…1 by dimension; no values if they are not about style."""

    values: dict[str, float]
    statements: tuple[str, ...]


@functools.cache
def preferences() -> tuple[Preferences, ...]:
    """Load the corpus of preferences, in the order of its file."""
    payload = (resources.files("fitrouter_evaluators.scoring") / "data" / "preferences.json").read_bytes()
    return msgspec.json.decode(payload, type=tuple[Preferences, ...])


@functools.cache
def _english() -> frozenset[str]:
    """Words that English statements consist of; some are words of other languages as well."""
    return FUNCTION.union(*(split_words(text) for group in preferences() for text in group.statements))


def understandable(statement: str) -> str:
    """The statement, or its English wording where it is in another language and the glossary has all of its words."""
    return statement if _english().issuperset(split_words(statement)) else in_english(statement)


def _nothing(reason: str) -> DeclaredTaste:
    """Result for a statement that was not understood."""
    return DeclaredTaste({}, understood=False, reason=reason)


def _words(text: str) -> list[str]:
    """Words of a text and their prefixes, by which 'illustrate' and 'illustrations' are similar."""
    return sorted({part for word in text.split() for part in (word, f"{word[:4]}_", f"{word[:6]}_")})


class Pieces:
    """The corpus' pieces, to which a kernel compares texts; their words are kept as an inverted index.

    Args:
        vectors: float64[n, dim], unit vectors of the pieces or 0.
        texts: the pieces.
    """

    def __init__(self, vectors: Floats, texts: Sequence[str]) -> None:
        self._vectors = vectors
        self._at: dict[str, NDArray[np.intp]] = {}
        parts = [_words(text) for text in texts]
        where: dict[str, list[int]] = {}
        for i, found in enumerate(parts):
            for part in found:
                where.setdefault(part, []).append(i)
        self._at = {part: np.array(rows) for part, rows in where.items()}
        self._weight = np.array([1.0 / np.sqrt(max(len(found), 1)) for found in parts])
        self._square = np.einsum("nd,nd->n", vectors, vectors) + np.array([float(bool(found)) for found in parts])

    def kernel(self, vectors: Floats, texts: Sequence[str]) -> Floats:
        """Kernel of texts, with their encoder vectors, and the corpus' pieces, float64[n, pieces]."""
        dot = vectors @ self._vectors.T
        square = np.einsum("nd,nd->n", vectors, vectors)
        for row, text in enumerate(texts):
            parts = _words(text)
            known = [rows for part in parts if (rows := self._at.get(part)) is not None]
            for rows in known:
                dot[row, rows] += self._weight[rows] / np.sqrt(len(parts))
            square[row] += len(known) / max(len(parts), 1)
        out: Floats = np.exp(-_WIDTH * np.maximum(square[:, None] + self._square - 2.0 * dot, 0.0))
        return out


class Mapping(NamedTuple):
    """A fitted mapping: contributions of the corpus' pieces to a regression on their kernel."""

    dimensions: tuple[str, ...]
    pieces: Pieces
    side: Floats
    """float64[pieces, dimensions], as is `relevance`"""
    relevance: Floats
    style: Floats
    """float64[pieces]"""
    odds: StemOdds
    variance: Floats
    """float64[dimensions]"""

    def __call__(self, vectors: Floats, texts: Sequence[str]) -> tuple[Floats, Floats, Floats]:
        """Predict side and relevance by dimension, float64[n, dimensions], and style, float64[n], of pieces."""
        kernel = self.pieces.kernel(vectors, texts)
        return kernel @ self.side, kernel @ self.relevance, kernel @ self.style


def fit(encoder: Encoder, corpus: Sequence[tuple[str, dict[str, float]]]) -> Mapping:
    """Fit the mapping of an encoder to statements with their values by dimension, none for other subjects."""
    read = [(pieces, values) for text, values in corpus if (pieces := units(text))]
    dimensions = tuple(dict.fromkeys(name for _, values in read for name in values))
    texts = sorted({piece.text for pieces, _ in read for piece in pieces})
    at = {text: i for i, text in enumerate(texts)}
    vectors = encoder.encode(texts)
    known = Pieces(vectors, texts)
    target = np.array([[values.get(name, 0.0) for name in dimensions] for _, values in read])
    named = target != 0.0
    style = 2.0 * named.any(axis=1) - 1.0
    kernel = known.kernel(vectors, texts)
    places = [[at[piece.text] for piece in pieces] for pieces, _ in read]
    signed = [[piece.sign / len(pieces) for piece in pieces] for pieces, _ in read]
    plain = [[1.0 / len(pieces)] * len(pieces) for pieces, _ in read]
    also = np.column_stack([np.abs(target), style])
    relevance = np.asarray(np.linalg.solve(*_normal_equations(kernel, places, plain, also)), np.float64)
    system, sums = _normal_equations(kernel, places, signed, target)
    inverse = np.linalg.inv(system)
    side: Floats = inverse @ sums
    errors, fitted = np.empty_like(target), kernel @ side
    for s, (rows, w) in enumerate(zip(places, signed, strict=True)):  # leave-one-out
        leverage = np.dot(w, kernel[rows] @ inverse[:, rows] @ w)
        errors[s] = (target[s] - np.dot(w, fitted[rows])) / (1.0 - leverage)
    content = [[piece.text for piece in pieces] for pieces, _ in read]
    return Mapping(
        dimensions,
        known,
        side,
        relevance[:, :-1],
        relevance[:, -1],
        StemOdds(
            [words for words, s in zip(content, style, strict=True) if s > 0.0],
            [words for words, s in zip(content, style, strict=True) if s < 0.0],
        ),
        (errors**2 * named).sum(axis=0) / named.sum(axis=0),
    )


def _normal_equations(
    kernel: Floats, places: Sequence[Sequence[int]], weights: Sequence[Sequence[float]], target: Floats
) -> tuple[Floats, Floats]:
    """Build the equations of a kernel ridge regression on statements that are weighted sums of pieces.

    They are solved for the pieces, which are fewer than the statements.

    With S the weights, float64[statements, pieces]: Sᵀ (S K Sᵀ + rI)⁻¹ Y = (SᵀS K + rI)⁻¹ SᵀY.

    Returns:
        SᵀS K + rI and SᵀY.
    """
    pieces = len(kernel)
    gram, sums = np.zeros((pieces, pieces)), np.zeros((pieces, target.shape[1]))
    for at, w, y in zip(places, weights, target, strict=True):
        np.add.at(gram, np.ix_(at, at), np.outer(w, w))
        np.add.at(sums, at, np.outer(w, y))
    system = np.empty_like(kernel)
    for row, out in zip(gram, system, strict=True):
        used = np.flatnonzero(row)
        np.matmul(row[used], kernel[used], out=out)
    system[np.diag_indices(pieces)] += _RIDGE
    return system, sums


_known: dict[str, Mapping] = {}
_lock = threading.Lock()


def _mapping(encoder: Encoder) -> Mapping:
    with _lock:
        if encoder.id not in _known:
            _known[encoder.id] = fit(
                encoder, [(text, group.values) for group in preferences() for text in group.statements]
            )
        return _known[encoder.id]


class DeclaredValues:
    """Maps stated preferences to declared values. Thread-safe.

    Args:
        encoder: any; the first one of its id encodes the corpus, about 3,500 short texts, which takes a few seconds.
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
        said = understandable(statement)
        reason = unreadable(said)
        return _nothing(reason) if reason else self._map(said)

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
        pieces = units(statement)
        if not pieces:
            return _nothing("it names no property of an answer")
        mapping = _mapping(self._encoder)
        values, subject = read_units(mapping, statement, pieces, self._encoder)
        if not about_style(subject):
            return _nothing("it is about something else than the style of answers")
        found = {
            name: Belief(float(np.clip(value, -1.0, 1.0)), min(float(variance), 0.99))
            for name, value, variance in zip(mapping.dimensions, values, mapping.variance, strict=True)
            if abs(value) >= _SAYS
        }
        return DeclaredTaste(found) if found else _nothing("it concerns no known dimension")


def read_units(mapping: Mapping, statement: str, pieces: Sequence[Unit], encoder: Encoder) -> tuple[Floats, Floats]:
    """Read values, float64[dimensions] (0 where no piece concerns one), and the features for `about_style`."""
    texts = [piece.text for piece in pieces]
    side, relevance, style = mapping(encoder.encode(texts), texts)
    named = (relevance >= _RELEVANT) & (relevance >= 0.5 * relevance.max(axis=1, keepdims=True))
    signs = np.array([piece.sign for piece in pieces])
    values: Floats = np.einsum("n,nd,nd->d", signs, side, named) / np.maximum(named.sum(axis=0), 1)
    return values, features(statement, texts, mapping.odds, float(style.mean()), float(relevance.max()))


def _pool(beliefs: Sequence[Belief]) -> Belief:
    precision = np.array([1.0 / belief.variance for belief in beliefs])
    means = np.array([belief.mean for belief in beliefs])
    mean = float((precision * means).sum() / precision.sum())
    spread = float((precision * (means - mean) ** 2).sum() / precision.sum())
    return Belief(mean, 1.0 / float(precision.sum()) + spread)


def unreadable(statement: str) -> str:
    """Reason why a statement of this language or length is not read; empty if it is."""
    if len(statement) > _LONGEST:
        return f"it has {len(statement)} characters; a statement has at most {_LONGEST}"
    if (language := language_of(statement)) != ENGLISH:
        return f"it is in {language}, and was not understood: say it in English, or set the values"
    return ""
