"""Value dimensions of an answer, as directions in encoder space.

Each value has two poles. `data/statements/NAME.json` has contrast pairs that we wrote for it: one situation, said from
either pole, as opinions and as an assistant's answers, alike in length and form. The direction of a value is
Fisher's linear discriminant (Fisher 1936) of its pairs,

    w = ((1 − λ) C + λ tr(C)/d · I)⁻¹ · mean(x₊ − x₋),

C being the covariance within the twelve poles, pooled over all values, so that other differences between statements,
such as topics, weigh less. λ was chosen by cross-validation over the pairs with three encoders (`SHRINKAGE`).

Directions are computed from the statements when first needed, and cached by the encoder's id. A score is centred by the
statements of all values together, which are balanced between the poles, and scaled by the standard deviation of the
other five values' statements. For an encoder that ships (`_constants.VALUE_CONSTANTS`) the calibration answers of the
style dimensions set it: they have mean 0 and standard deviation 1. With any other one ordinary answers lie within a
standard deviation or so of 0. English only, as the style dimensions are.

A score reflects word choice as the encoder sees it. It is weak on negation and irony, and it does not judge a stance.
`benchmarks/scoring/values.py` measures it on held-out statements.
"""

from __future__ import annotations

import functools
import threading
from importlib import resources
from typing import NamedTuple

import msgspec
import numpy as np

from fitrouter.context.encoders import Encoder
from fitrouter.types import Floats
from fitrouter_evaluators.scoring._constants import VALUE_CONSTANTS

SHRINKAGE = 0.7
"""λ, the share of the spherical covariance."""


class Value(NamedTuple):
    """One value dimension: a high score is the first pole, a low one the second."""

    name: str
    high: str
    low: str


VALUES: tuple[Value, ...] = (
    Value("autonomy_protection", "let people decide for themselves", "keep people from harm"),
    Value("caution", "check first and go slowly", "dare, and mend what breaks"),
    Value("refusal_directness", "say no in plain words", "turn a request down gently, by a detour"),
    Value("individual_collective", "one's own aims and rights", "what the group shares and owes"),
    Value("tradition_change", "keep what has proved itself", "try what is new"),
    Value("evidence_experience", "believe studies and measurements", "believe what was lived and felt"),
)
"""All value dimensions, in the order of every feature vector."""


class Contrast(msgspec.Struct, frozen=True):
    """One situation, worded from the high and from the low pole of a value."""

    topic: str
    high: str
    low: str


class Directions(NamedTuple):
    """Maps unit vectors to value scores: ((x · weights) − centre) / scale."""

    weights: Floats
    """float64[dim, values]"""
    centre: Floats
    """float64[values]"""
    scale: Floats
    """float64[values], positive"""

    def __call__(self, vectors: Floats) -> Floats:
        """Score unit vectors float64[n, dim] on each value, float64[n, values]; NaN for a vector of length 0."""
        scores = (np.einsum("nd,dk->nk", vectors, self.weights) - self.centre) / self.scale
        return np.where((vectors == 0.0).all(axis=1, keepdims=True), np.nan, scores)

    def rescaled(self, centre: Floats, scale: Floats) -> Directions:
        """Return the directions with their scores s replaced by (s − centre) / scale."""
        return Directions(self.weights, self.centre + self.scale * centre, self.scale * scale)


@functools.cache
def statements(name: str) -> tuple[Contrast, ...]:
    """Load the contrast pairs of one value, in the order of the file."""
    payload = (resources.files("fitrouter_evaluators.scoring") / "data" / "statements" / f"{name}.json").read_bytes()
    return msgspec.json.decode(payload, type=tuple[Contrast, ...])


def fit(pairs: list[Floats], shrinkage: float = SHRINKAGE) -> Directions:
    """Fit directions to float64[pairs, 2, dim], one array a value, at least two values; the high pole is first."""
    weights = _discriminants(pairs, shrinkage)
    raw = [np.einsum("npd,dk->npk", value, weights).reshape(-1, weights.shape[1]) for value in pairs]
    centre = np.mean([scores.mean(axis=0) for scores in raw], axis=0)
    others = [np.concatenate([*raw[:k], *raw[k + 1 :]])[:, k] for k in range(len(raw))]
    scale = np.array([scores.std() for scores in others])
    return Directions(weights, centre, np.maximum(scale, 1e-12))


def _discriminants(pairs: list[Floats], shrinkage: float) -> Floats:
    dim = pairs[0].shape[2]
    within = np.concatenate([(value - value.mean(axis=0)).reshape(-1, dim) for value in pairs])
    covariance = within.T @ within / len(within)
    sphere = np.trace(covariance) / dim
    shrunk = (1.0 - shrinkage) * covariance + (shrinkage * sphere + 1e-12) * np.eye(dim)
    means = np.array([(value[:, 0] - value[:, 1]).mean(axis=0) for value in pairs])
    out: Floats = np.linalg.solve(shrunk, means.T)
    return out


def encode_statements(encoder: Encoder) -> list[Floats]:
    """Encode all statements in one batch; return float64[pairs, 2, dim] for each value.

    Raises:
        Exception: whatever the encoder raises.
        ValueError: it gives vectors that are not finite.
    """
    sets = [statements(value.name) for value in VALUES]
    vectors = encoder.encode([text for pairs in sets for pair in pairs for text in (pair.high, pair.low)])
    if not np.isfinite(vectors).all():
        raise ValueError(f"encoder {encoder.id!r} gave vectors that are not finite; value directions need finite ones")
    ends = np.cumsum([2 * len(pairs) for pairs in sets])[:-1]
    return [part.reshape(-1, 2, encoder.dim) for part in np.split(vectors, ends)]


_known: dict[str, Directions] = {}
_lock = threading.Lock()


def directions(encoder: Encoder) -> Directions:
    """Directions of an encoder; the first call for an id encodes all statements, and caches nothing on failure.

    Raises:
        Exception: as `encode_statements`.
    """
    with _lock:
        found = _known.get(encoder.id)
    if found is None:
        found = fit(encode_statements(encoder))
        if encoder.id in VALUE_CONSTANTS:
            found = found.rescaled(*np.array(VALUE_CONSTANTS[encoder.id]))
        with _lock:
            found = _known.setdefault(encoder.id, found)
    return found


def value_scores(encoder: Encoder, vectors: Floats) -> Floats:
    """Score an encoder's unit vectors float64[n, dim] on the values, float64[n, 6]; NaN for a vector of length 0."""
    return directions(encoder)(vectors)
