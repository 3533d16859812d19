"""Text attributes that simulated users notice: eight of the evaluators' pool, and four without a scorer feature.

The scorer (`fitrouter_evaluators.scoring.text.style`) sees those four only through correlation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

import numpy as np

from fitrouter.errors import ConfigError
from fitrouter.types import Floats
from fitrouter_evaluators.simulation.pool import ATTRIBUTES, attributes

_WORD = re.compile(r"[A-Za-z']+")
_SENTENCE = re.compile(r"[.!?]+(?:\s|$)|\n")
_NO = frozenset({"not", "no", "never", "don't", "isn't", "won't", "aren't", "can't", "nothing", "without"})


HIDDEN: dict[str, Callable[[Sequence[int], Sequence[str]], float]] = {
    "rhythm": lambda sentences, _: float(np.std(sentences)),
    "negation": lambda _, words: sum(word in _NO for word in words) / math.sqrt(len(words)),
    "opening": lambda sentences, _: math.log1p(sentences[0]),
    "ending": lambda sentences, _: math.log1p(sentences[-1]),
}
"""Name → function of (words of each sentence, words); rhythm is the standard deviation of the sentence lengths."""


def notice(text: str, seen: Sequence[str], hidden: Sequence[str]) -> Floats:
    """Return the named attributes of a text, not standardised, float64[len(seen) + len(hidden)].

    Raises:
        ConfigError: an attribute is unknown.
    """
    for name, known in [(name, ATTRIBUTES) for name in seen] + [(name, tuple(HIDDEN)) for name in hidden]:
        if name not in known:
            raise ConfigError(f"unknown text attribute {name!r}; allowed are {', '.join(known)}")
    counts = attributes(text)
    words = [word.casefold() for word in _WORD.findall(text)] or ["none"]
    sentences = [n for part in _SENTENCE.split(text) if (n := len(_WORD.findall(part)))] or [0]
    return np.array(
        [counts[ATTRIBUTES.index(name)] for name in seen] + [HIDDEN[name](sentences, words) for name in hidden]
    )
