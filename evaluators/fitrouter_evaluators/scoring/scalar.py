"""Global scalar g(x, y): calibrated Bradley–Terry quality of an answer to its prompt for any reader.

    g = (q − κ · min(max(d − d₀, 0), D) − c) / s        P(a ≻ b) = σ(τ (g(x, a) − g(x, b)))

q is the quality according to human votes, d the log odds that the answer was manipulated to please a judge: padded,
repeated, flattering, off topic, or addressing its grader. Both are linear in the same terms, so that each can be read:
measures of sound writing (`text.sound`), style, cosines of the answer, its beginning and its end with the prompt and
with each other, what the prompt asks for × how the answer looks, and the answer's own vector under a strong
ridge. All terms saturate, so that none grows with length without bound. Model names are not used.

**Data sheet.** `data/scalar.json` is made by `python -m benchmarks.training.scalar DATA OUT` from the
3,355 human votes of MT-bench (Zheng et al. 2023; votes CC-BY-4.0, answers Apache-2.0) and from attacked answers, which
lose to the answers that they were made from (`training.attacks`). It holds numbers only, no text. Metrics:
`docs/results/reward_pairs.md`. The votes are those of 65 judges on English answers of 2023.

g always uses the static encoder that ships with the core, also if the scorer has another one: MiniLM's vectors predict
votes no better (see the results), and one set of constants serves all.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from importlib import resources

import msgspec
import numpy as np

from fitrouter.context.encoders import Cached, Encoder, shipped
from fitrouter.errors import ArtifactError
from fitrouter.types import Floats
from fitrouter_evaluators.scoring._answer import Answer
from fitrouter_evaluators.scoring.text.reading import Reading, clip_text
from fitrouter_evaluators.scoring.text.sound import MEASURES, PromptFeatures, asked, measure_soundness
from fitrouter_evaluators.scoring.text.style import CLIP, STYLE

_END = 256
"""Characters of the beginning and of the end whose vectors are compared with prompt and answer."""
_EDGE = 1024
_STYLE = {dimension.name: i for i, dimension in enumerate(STYLE)}
_SOUND = {name: i for i, name in enumerate(MEASURES)}
_LOOKS = ("distinct", "letters", "short", "paragraphs", "repeats"), ("length", "code", "digits", "structure", "refusal")
_NEAR = 6
"""Cosines: prompt–answer, prompt–beginning, prompt–end, beginning–end, beginning–answer, end–answer."""


class Constants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Trained constants of the scalar."""

    encoder: str
    """Id of the encoder that they were trained with."""
    centre: tuple[float, ...]
    """Of the measures and the cosines."""
    scale: tuple[float, ...]
    mean: tuple[float, ...]
    """Of the answers' vectors."""
    quality: tuple[float, ...] = ()
    """Weights of q."""
    dressed: tuple[float, ...] = ()
    """Weights of d, its intercept last."""
    threshold: float = 0.0
    """d₀."""
    penalty: float = 0.0
    """κ."""
    most: float = 0.0
    """D."""
    middle: float = 0.0
    """c."""
    spread: float = 1.0
    """s."""
    temperature: float = 1.0
    """τ: log odds of a preference per unit of g."""

    def combine(self, X: Floats) -> Floats:
        """Combine rows X of the design matrix to the scalar g, float64[n]."""
        # einsum and not BLAS, so that a row does not depend on its batch.
        q = np.einsum("nd,d->n", X, np.array(self.quality))
        d = np.einsum("nd,d->n", X, np.array(self.dressed[:-1])) + self.dressed[-1]
        guarded = q - self.penalty * np.clip(d - self.threshold, 0.0, self.most)
        out: Floats = np.clip((guarded - self.middle) / self.spread, -CLIP, CLIP)
        return out


class View(msgspec.Struct, frozen=True):
    """Measurements of n answers."""

    asks: tuple[PromptFeatures, ...]
    sound: Floats
    """Raw, float64[n, len(MEASURES)]."""
    style: Floats
    """Standardised, float64[n, len(STYLE)]."""
    near: Floats
    """Cosines, float64[n, 6]."""
    vectors: Floats
    """float64[n, d], of the answers."""


def look(
    items: Sequence[Answer],
    readings: Sequence[Reading],
    prompts: Floats,
    vectors: Floats,
    style: Floats,
    encoder: Encoder,
) -> View:
    """Measure answers, given the encoder's vectors float64[n, d] of prompts and answers."""
    asks = tuple(asked(item.prompt) for item in items)
    rows = zip(asks, items, readings, strict=True)
    sound = np.array([measure_soundness(ask, item.text, reading) for ask, item, reading in rows])
    first, last = _ends(items, vectors, encoder)
    pairs = (prompts, vectors), (prompts, first), (prompts, last), (first, last), (first, vectors), (last, vectors)
    near = np.column_stack([np.einsum("nd,nd->n", a, b) for a, b in pairs])
    return View(asks, sound, style, near, vectors)


def _ends(items: Sequence[Answer], vectors: Floats, encoder: Encoder) -> tuple[Floats, Floats]:
    """Vectors of the beginnings and of the ends of answers; for a short answer both are its own vector."""
    first, last = vectors.copy(), vectors.copy()
    long = [i for i, item in enumerate(items) if len(item.text) > _END]
    if long:
        ends = encoder.encode([_clean(end) for i in long for end in (items[i].text[:_END], items[i].text[-_END:])])
        first[long], last[long] = ends[0::2], ends[1::2]
    return first, last


def _clean(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def design(constants: Constants, view: View) -> dict[str, Floats]:
    """Build the blocks of the design matrix by name, float64[n, ·] each."""
    n, m = len(view.sound), len(MEASURES)
    centre, scale = np.array(constants.centre), np.array(constants.scale)
    sound = np.nan_to_num(np.clip((view.sound - centre[:m]) / scale[:m], -CLIP, CLIP))  # missing is average
    asking = np.array([[ask.code, ask.maths, ask.prose] for ask in view.asks]).reshape(n, 3)
    looks = np.hstack([sound[:, [_SOUND[k] for k in _LOOKS[0]]], view.style[:, [_STYLE[k] for k in _LOOKS[1]]]])
    near = np.clip((view.near - centre[m:]) / scale[m:], -CLIP, CLIP)
    relevance, far = near[:, 0], np.minimum(near[:, 0] + 0.5, 0.0)
    words = np.maximum(sound[:, _SOUND["distinct"]], 0.0)
    return {
        "sound": sound,
        "style": view.style,
        "asked": (asking[:, :, None] * looks[:, None, :]).reshape(n, -1),
        "relevance": np.column_stack([relevance, far, np.maximum(relevance - 1.0, 0.0), far * words]),
        "coherence": np.hstack([near[:, 1:], np.minimum(near[:, 1:] + 0.5, 0.0)]),
        "vector": (view.vectors - np.array(constants.mean)) * np.sqrt(view.vectors.shape[1]),
    }


class GlobalScalar:
    """The scalar with given constants; see the module. Thread-safe.

    Args:
        constants: as `train_scalar` makes them.
        encoder: of the scorer; its vectors are used if the constants are for it.
        reader: the encoder that the constants are for.

    Raises:
        ArtifactError: the constants are for another encoder than `reader`.
    """

    def __init__(self, constants: Constants, encoder: Encoder, reader: Encoder) -> None:
        if reader.id != constants.encoder:
            raise ArtifactError(
                f"the global scalar's constants are for the encoder {constants.encoder!r}, not for {reader.id!r}; "
                f"in a checkout, `python -m benchmarks.training.scalar DATA OUT` makes them"
            )
        self.id = f"g1-{hashlib.sha256(msgspec.json.encode(constants)).hexdigest()[:8]}"
        self.temperature = constants.temperature
        self._constants = constants
        self._reads = encoder.id == reader.id
        self._reader = reader
        self._prompts = Cached(reader, 1024)

    def of(self, items: Sequence[Answer], readings: Sequence[Reading], vectors: Floats, style: Floats) -> Floats:
        """Rate the quality of answers, float64[n], about unit variance over ordinary answers, within ±3.

        Args:
            items: answers with a text, and their prompts.
            readings: of their texts.
            vectors: float64[n, d], the scorer's encoder's vectors of the answers; 0 for one without any known word.
            style: float64[n, len(STYLE)], their standardised style.
        """
        if not items:
            return np.zeros(0)
        if not self._reads:
            vectors = self._reader.encode([_clean(clip_text(item.text, _EDGE)) for item in items])
        prompts = self._prompts.encode([_clean(clip_text(item.prompt, _EDGE)) for item in items])
        view = look(items, readings, prompts, vectors, style, self._reader)
        return self._constants.combine(np.hstack(list(design(self._constants, view).values())))


@functools.cache
def _shipped() -> Constants:
    payload = (resources.files("fitrouter_evaluators.scoring") / "data" / "scalar.json").read_bytes()
    return msgspec.json.decode(payload, type=Constants)


def global_scalar(encoder: Encoder) -> GlobalScalar:
    """Load the shipped scalar for a scorer's encoder.

    Raises:
        ArtifactError: the static table is not the one that the constants are for.
    """
    constants = _shipped()
    return GlobalScalar(constants, encoder, encoder if encoder.id == constants.encoder else shipped())
