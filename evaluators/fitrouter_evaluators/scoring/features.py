"""Response features: the vector h of an answer, over which tastes are learned.

    h = [1, global scalar, style dimensions, value dimensions, tool dimensions, hinges of length, latent directions,
         declared fit]

**Missing is NaN, never zero.** An answer of tool calls has no text: of its entries only the first and the tool ones are
numbers. A text answer makes no calls: its tool entries are NaN. A text without any word that the encoder knows has no
direction: its value and latent entries are NaN. Without a trained scalar its entry is NaN for every answer. The last
entry, how well the answer respects what its reader declared about topics (`statements.topics`), is NaN where nothing
that was declared is relevant. In a text of another language than English what only English words tell is NaN: lexical
style dimensions (`style.unknown_in`), values, and the declared fit.
Readers of h treat NaN as no information, as the fit model does: a score counts it as average (0 after standardising),
a response profile as its prediction.
"""

from __future__ import annotations

import functools
import hashlib
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import numpy as np

from fitrouter.context.encoders import Encoder
from fitrouter.posterior.heads import HINGES
from fitrouter.types import Floats
from fitrouter_evaluators.scoring._answer import Answer, ToolCall, arguments_fit
from fitrouter_evaluators.scoring._constants import LATENT_CONSTANTS
from fitrouter_evaluators.scoring.statements.topics import declared_fit
from fitrouter_evaluators.scoring.text.language import ENGLISH, language_of
from fitrouter_evaluators.scoring.text.reading import Reading, clip_text
from fitrouter_evaluators.scoring.text.style import CLIP, STYLE, measure, standardise, unknown_in
from fitrouter_evaluators.scoring.values import VALUES, value_scores

STYLE_VERSION = "style-2"
"""Version of the style, value and tool features; raise it when they change for the same answer."""

TOOLS = ("tool_calls", "tool_arguments_fit", "tool_repeats")
"""Names of the tool dimensions, in order."""

DECLARED_FIT = "declared_fit"
"""Name of the feature that says how well an answer respects what was declared about topics."""

_EDGE = 1024
"""Characters of each end of the text that the encoder reads."""

_G = 1
_STYLE = slice(2, 2 + len(STYLE))
_VALUES = slice(_STYLE.stop, _STYLE.stop + len(VALUES))
_TOOLS = slice(_VALUES.stop, _VALUES.stop + len(TOOLS))
_LENGTH = 2 + [dimension.name for dimension in STYLE].index("length")


class Scalar(Protocol):
    """Protocol of a global scalar: the quality of an answer to its prompt for any reader."""

    @property
    def id(self) -> str:
        """Name and version: scalars of different ids never mix."""
        ...

    def of(self, items: Sequence[Answer], readings: Sequence[Reading], vectors: Floats, style: Floats) -> Floats:
        """Rate the quality of answers, float64[n], about unit variance; NaN where it is unknown.

        Args:
            items: answers with a text, and what they answer.
            readings: of their texts.
            vectors: float64[n, d], the encoder's vectors of the answers; 0 for a text without any known word.
            style: float64[n, len(STYLE)], their standardised style.
        """
        ...


def tool_features(answer: Answer) -> Floats:
    """Features of an answer's tool calls, float64[3]; NaN without calls, 0 for a single call that fits its schema.

    tool_calls: log2((1 + calls) / 2). tool_arguments_fit: 0 where all arguments fit, −3 where none do. tool_repeats:
    3 × the share of calls that repeat an earlier one of the answer. At most ±3. Centre and scale are set by hand.
    """
    calls = answer.calls
    if not calls:
        return np.full(len(TOOLS), np.nan)
    unfit = sum(not arguments_fit(call, answer.tools) for call in calls) / len(calls)
    repeats = 1.0 - len({_canonical(call) for call in calls}) / len(calls)
    return np.array([min(math.log2((1 + len(calls)) / 2), CLIP), -CLIP * unfit, CLIP * repeats])


def hinges(length: Floats) -> Floats:
    """Compute `HINGES` of standardised lengths float64[n], float64[n, 3]; 0 is the mean of a normal distribution."""
    at = np.array(list(HINGES.values()))
    found: Floats = np.maximum(length[:, None] - at, 0.0) - np.array([_excess(t) for t in HINGES.values()])
    return found


def _excess(t: float) -> float:
    """Mean of max(Z − t, 0) of a standard normal Z."""
    return math.exp(-t * t / 2.0) / math.sqrt(2.0 * math.pi) - t * math.erfc(t / math.sqrt(2.0)) / 2.0


def _canonical(call: ToolCall) -> ToolCall:
    """Canonical form of a call, without spacing and order of its arguments."""
    try:
        arguments = msgspec.json.encode(msgspec.json.decode(call.arguments), order="deterministic").decode()
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return call
    return ToolCall(call.name, arguments)


def latent_directions(encoder: Encoder, vectors: Floats, latent: int) -> Floats:
    """Project unit vectors float64[n, dim] to float64[n, latent] of about unit variance; NaN for a vector of length 0.

    An encoder whose dimensions are ordered by variance (`encoder.ordered`) gives its leading ones; of any other a
    Gaussian projection is taken, fixed for ever by its dimension (Johnson and Lindenstrauss 1984).
    """
    if getattr(encoder, "ordered", False) and latent <= encoder.dim:
        out = vectors[:, :latent] * np.sqrt(encoder.dim)
    else:
        out = np.einsum("nd,dk->nk", vectors, _projection(encoder.dim, latent))
    return np.where((vectors == 0.0).all(axis=1, keepdims=True), np.nan, out)


@functools.lru_cache(maxsize=8)
def _projection(dim: int, latent: int) -> Floats:
    # RandomState's streams are frozen for ever, Generator's are not.
    return np.random.RandomState([2026, dim, latent]).standard_normal((dim, latent))


class ResponseFeatures:
    """Turns answers into h, float64[n, dim], in batches; the last `cache` rows are kept under a hash of the content.

    Thread-safe. A row does not depend on its batch if the encoder's vectors do not.

    Args:
        encoder: reads the first and last 1,024 characters of the text.
        latent: number of latent directions, K.
        scalar: the trained global reward, as `global_scalar` gives it; without one its entry is NaN.
        hinges: whether h has `HINGES` of length.
        declared: whether h ends with the feature `declared_fit`.
        cache: rows that are kept.
    """

    def __init__(
        self,
        encoder: Encoder,
        latent: int = 8,
        *,
        scalar: Scalar | None = None,
        hinges: bool = True,
        declared: bool = False,
        cache: int = 4096,
    ) -> None:
        if latent < 0:
            raise ValueError(f"latent is {latent}; allowed are 0 and more")
        self.encoder = encoder
        self.latent = latent
        self._hinges = slice(_TOOLS.stop, _TOOLS.stop + hinges * len(HINGES))
        self._latent = slice(self._hinges.stop, self._hinges.stop + latent)
        self._declared = declared
        self.scalar = scalar
        trained = [scalar.id] if scalar else []
        further = [*hinges * ["length-1"], *declared * ["declared-1"]]
        self.schema = "/".join([STYLE_VERSION, encoder.id, str(latent), *trained, *further])
        self.names: tuple[str, ...] = (
            "one",
            "g",
            *(dimension.name for dimension in STYLE),
            *(value.name for value in VALUES),
            *TOOLS,
            *hinges * tuple(HINGES),
            *(f"latent_{i}" for i in range(latent)),
            *declared * [DECLARED_FIT],
        )
        self.dim = len(self.names)
        centre, scale = LATENT_CONSTANTS.get(encoder.id, ((), ()))
        known = 0 < latent <= len(centre)
        self._centre = np.array(centre[:latent]) if known else np.zeros(latent)
        self._scale = np.array(scale[:latent]) if known else np.ones(latent)
        self._size = cache
        self._rows: OrderedDict[bytes, Floats] = OrderedDict()
        self.compute: Callable[[Sequence[Answer]], Floats] = self._compute
        """float64[n, dim] of answers that are not kept; another process may do it."""
        self._lock = threading.Lock()

    def encode(self, items: Sequence[Answer]) -> Floats:
        """Compute the features of answers, float64[n, dim]; each is finite and within ±3, or NaN where it is missing.

        Raises:
            Exception: whatever the encoder raises; nothing is cached then.
        """
        keys = [_key(item, prompted=self.scalar is not None or bool(item.declared)) for item in items]
        with self._lock:
            found = {key: row for key in keys if (row := self._rows.get(key)) is not None}
        fresh = {key: item for key, item in zip(keys, items, strict=True) if key not in found}
        if fresh:
            rows = self.compute(list(fresh.values()))
            found |= dict(zip(fresh, rows, strict=True))
        with self._lock:
            for key in keys:
                self._rows[key] = found[key]
                self._rows.move_to_end(key)
            while len(self._rows) > self._size:
                self._rows.popitem(last=False)
        return np.array([found[key] for key in keys]).reshape(len(items), self.dim)

    def _compute(self, items: Sequence[Answer]) -> Floats:
        out = np.full((len(items), self.dim), np.nan)
        out[:, 0] = 1.0
        for i, item in enumerate(items):
            out[i, _TOOLS] = tool_features(item)
        spoken = [i for i, item in enumerate(items) if item.has_text]
        if not spoken:
            return out
        readings = [Reading(items[i].text) for i in spoken]
        style = standardise(np.array([measure(reading) for reading in readings]))
        languages = [language_of(reading) for reading in readings]
        english = np.array([language == ENGLISH for language in languages])
        unknown = np.array([[each.name in unknown_in(language) for each in STYLE] for language in languages])
        out[spoken, _STYLE] = np.where(unknown, np.nan, style)
        if self._hinges.stop > self._hinges.start:
            out[spoken, self._hinges] = hinges(out[spoken, _LENGTH])
        for i, language in zip(spoken, languages, strict=True):
            if self._declared and items[i].declared and language == ENGLISH:
                texts = readable(items[i].prompt), readable(items[i].text)
                out[i, -1] = declared_fit(self.encoder, *texts, items[i].declared)
        vectors = self._vectors([items[i].text for i in spoken])
        values = np.clip(value_scores(self.encoder, vectors), -CLIP, CLIP)
        out[spoken, _VALUES] = np.where(english[:, None], values, np.nan)
        if self.latent:
            latent = (latent_directions(self.encoder, vectors, self.latent) - self._centre) / self._scale
            out[spoken, self._latent] = np.clip(latent, -CLIP, CLIP)
        if self.scalar is not None:
            g = self.scalar.of([items[i] for i in spoken], readings, vectors, style)
            out[spoken, _G] = np.clip(g, -CLIP, CLIP)
        return out

    def _vectors(self, texts: list[str]) -> Floats:
        vectors = self.encoder.encode([readable(text) for text in texts])
        if vectors.shape != (len(texts), self.encoder.dim) or not np.isfinite(vectors).all():
            raise ValueError(
                f"encoder {self.encoder.id!r} gave {vectors.shape} for {len(texts)} texts; "
                f"it must give finite numbers of shape {(len(texts), self.encoder.dim)}"
            )
        return vectors


def readable(text: str) -> str:
    """Cut a text to its two ends and make it valid Unicode, for the encoder."""
    text = clip_text(text, _EDGE)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _key(item: Answer, *, prompted: bool) -> bytes:
    """Cache key of an answer; the prompt belongs to it only if it is read."""
    digest = hashlib.blake2b(item.text.encode("utf-8", "surrogatepass"), digest_size=16)
    # No text holds the byte 0xff in UTF-8, so the parts cannot run into each other.
    if item.calls:
        digest.update(b"\xff" + repr((item.calls, item.tools)).encode("utf-8", "surrogatepass"))
    if prompted:
        digest.update(b"\xff\xff" + item.prompt.encode("utf-8", "surrogatepass"))
    if item.declared:
        digest.update(b"\xff\xff\xff" + repr(item.declared).encode("utf-8", "surrogatepass"))
    return digest.digest()
