"""Kinds of lasting attributes, and the domains of prompts for which each of them is relevant.

`kinds.json` has statements of each kind, prompts of each domain, and, for some words, what they rule out ("vegan":
eggs, honey …); all are our own. A text's kind or domain is the highest output of a kernel ridge regression on them,
with the kernel of the declared values (`scoring.statements.declared`): encoder vectors beside words and their
beginnings.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from importlib import resources

import msgspec
import numpy as np

from fitrouter.context.encoders import Encoder
from fitrouter.types import Floats
from fitrouter_evaluators.personal.diagnose.phrases import foreign, plain
from fitrouter_evaluators.scoring.statements._polarity_words import FUNCTION
from fitrouter_evaluators.scoring.statements._subject import WORD, stems
from fitrouter_evaluators.scoring.statements.declared import Pieces
from fitrouter_evaluators.scoring.text.lexicons import phrases

NONE = "none"
_RIDGE = 0.3
_COMMON = (
    FUNCTION
    | foreign()
    | frozenset(
        phrases("""
    year, years, old, week, weeks, day, days, daily, night, nights, morning, evening, month, months, new, good, bad
    back, long, short, first, second, two, three, four, five, ten, strictly, completely, fully, totally, never, lately
    since, called, last, ago, type, diagnosed
    almost, around, near, big, little, great, nice, best, better, live, work, works, eat, eats, drink
    love, loves, like, likes, enjoy, hate, hates, dislike, prefer, avoid, play, run, teach, speak, own, keep, follow
    gave, give, quit, stopped, stop, moved, move, switched, used, not, no, longer, more, allergic, allergy, intolerant
    stand, touch, born, raised, based, come, grew, suffer, live, lives, living, working, trained, am, favourite
    favorite, because, without, however, like, please, know, life, though, hello, also, actually, currently, owner, fan
    big, huge, strict, proud, keen, kind, person, man, woman, guy, someone, myself, fond, into, via, hi, hey, cannot
    """)
    )
)


class AttributeKind(msgspec.Struct, frozen=True):
    """A kind of attribute."""

    domains: tuple[str, ...]
    sensitive: bool
    evidence: tuple[str, ...]
    """Words in answers that are adapted to such an attribute, beside its own."""
    statements: tuple[str, ...]


class Kinds(msgspec.Struct, frozen=True):
    """Corpus of attribute kinds, with prompts of each domain."""

    kinds: dict[str, AttributeKind]
    none: tuple[str, ...]
    """Statements of the first person that say nothing lasting."""
    domains: dict[str, tuple[str, ...]]
    forbids: dict[str, tuple[str, ...]]


@functools.cache
def corpus() -> Kinds:
    """Load the corpus of `kinds.json`."""
    payload = (resources.files("fitrouter_evaluators.personal.diagnose") / "kinds.json").read_bytes()
    return msgspec.json.decode(payload, type=Kinds)


def content(text: str) -> tuple[str, ...]:
    """Distinct content words of a text in order, in lower case."""
    return tuple(dict.fromkeys(w for w in WORD.findall(plain(text)) if w not in _COMMON and len(w) > 1))


def same(one: Iterable[str], other: Iterable[str]) -> set[str]:
    """Words of the first collection that share a stem with a word of the second."""
    known = {_stem(word) for word in other}
    return {word for word in one if _stem(word) in known}


def _stem(word: str) -> str:
    word = word.removesuffix("ies") + "y" if word.endswith("ies") and len(word) > 4 else word
    word = word.removesuffix("s") if len(word) > 3 and not word.endswith("ss") else word
    return stems([word])[0] if word else ""


class Classifier:
    """Classifies texts by kernel ridge regression.

    Args:
        encoder: of the texts.
        classes: name → its texts.
    """

    def __init__(self, encoder: Encoder, classes: dict[str, tuple[str, ...]]) -> None:
        self.names = tuple(classes)
        self._encoder = encoder
        texts = [text.lower() for each in classes.values() for text in each]
        owner = np.repeat(np.arange(len(classes)), [len(each) for each in classes.values()])
        vectors = encoder.encode(texts)
        self._pieces = Pieces(vectors, texts)
        kernel = self._pieces.kernel(vectors, texts)
        target = np.eye(len(classes))[owner]
        self._mean = target.mean(axis=0)
        self._weights = np.linalg.solve(kernel + _RIDGE * np.eye(len(texts)), target - self._mean)

    def __call__(self, texts: Sequence[str]) -> Floats:
        """Score texts for each class, float64[n, classes]: about 1 for the class of a text and 0 for others."""
        lower = [text.lower() for text in texts]
        found: Floats = self._mean + self._pieces.kernel(self._encoder.encode(lower), lower) @ self._weights
        return found
