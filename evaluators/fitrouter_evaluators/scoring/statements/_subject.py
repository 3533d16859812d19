"""Whether a statement is about the style of answers, or about anything else.

"I hate long queues" has words of style and is about none. A logistic regression on the statement's kernel regression
(`declared`), its highest relevance, the log odds of its words' stems (naive Bayes), the share of words that the corpus
lacks, "I" and "my", and its length decides. Its weights were fitted on predictions that left out a fifth of the style
statements and whole subjects of the others (food, pets …), so that they hold for subjects that the corpus lacks:
`python -m benchmarks.scoring.topics --fit`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from fitrouter.types import Floats

WORD = re.compile(r"[a-z]+")
"""A word in lower case."""
_STEM = 6
"""Leading letters of a word that stand for it."""
_MOST = 3.0
"""Largest log odds of a stem."""

WEIGHTS = (0.13, 2.946, 3.336, 0.679, -2.862, -2.890, -1.686, -1.015)
"""Of `features`, in their order."""


class StemOdds:
    """Log odds of word stems in statements about style versus other subjects, smoothed by half a count.

    Args:
        style: content words of each statement about style.
        other: content words of each other statement.
    """

    def __init__(self, style: Sequence[Iterable[str]], other: Sequence[Iterable[str]]) -> None:
        counts = [Counter(stem for words in part for stem in set(stems(words))) for part in (style, other)]
        total = len(style) + len(other)
        self._odds = {
            stem: float(
                np.clip(
                    np.log((counts[0][stem] + 0.5) * total / len(style))
                    - np.log((counts[1][stem] + 0.5) * total / len(other)),
                    -_MOST,
                    _MOST,
                )
            )
            for stem in counts[0] | counts[1]
        }

    def read(self, words: Iterable[str]) -> tuple[float, float]:
        """Mean log odds of the words, 0 for those that are not known, and the share of these."""
        found = [self._odds.get(stem) for stem in stems(words)]
        if not found:
            return 0.0, 1.0
        return sum(odds or 0.0 for odds in found) / len(found), sum(odds is None for odds in found) / len(found)


def stems(words: Iterable[str]) -> list[str]:
    """Stems of all words in texts."""
    return [word[:_STEM] for text in words for word in WORD.findall(text)]


def features(statement: str, pieces: Sequence[str], odds: StemOdds, style: float, relevance: float) -> Floats:
    """Features from which it is told whether a statement is about style, float64[8].

    Args:
        statement: as it was written.
        pieces: its content (`_polarity.units`).
        odds: of the corpus.
        style: regression of its pieces on 1 (style) and −1 (another subject), their mean.
        relevance: the highest relevance of a piece for a dimension.
    """
    said = set(WORD.findall(statement.lower()))
    mean, unknown = odds.read(pieces)
    count = np.log(max(len(stems(pieces)), 1))
    return np.array([1.0, style, relevance, mean, unknown, float("i" in said), float("my" in said), count])


def about_style(found: Floats) -> bool:
    """Whether a statement with these features is about style."""
    return bool(found @ np.array(WEIGHTS) > 0.0)
