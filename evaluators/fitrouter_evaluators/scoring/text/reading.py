"""A tokenised answer text, shared by all style dimensions."""

from __future__ import annotations

import math
import re

CAP = 20_000
"""Characters read at each end of a text."""

# Scripts without spaces between words give one token a character; any other run of letters is one word.
_SPACELESS = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_SPACELESS}]|[^\W\d_{_SPACELESS}]+(?:'[^\W\d_{_SPACELESS}]+)*")
_SENTENCE = re.compile(r"[.!?…](?=\s|\Z)|[。！？؟।۔]|\n")


def clip_text(text: str, cap: int = CAP) -> str:
    r"""The first and the last `cap` characters.

    >>> clip_text("abcdefgh", 2)
    'ab\ngh'
    """
    return text if len(text) <= 2 * cap else f"{text[:cap]}\n{text[-cap:]}"


class Lexicon:
    """Counts whole words and phrases.

    >>> Lexicon(("often", "for example")).count(Reading("He softened, for example, more often."))
    2
    """

    __slots__ = ("_phrases", "_words")

    def __init__(self, entries: tuple[str, ...]) -> None:
        self._words = frozenset(entry for entry in entries if " " not in entry)
        self._phrases = tuple(f" {'  '.join(entry.split())} " for entry in entries if " " in entry)

    def count(self, reading: Reading) -> int:
        """Occurrences in the prose."""
        words = self._words
        found = sum(reading.counts[word] for word in words & reading.counts.keys())
        return found + sum(map(reading.spaced.count, self._phrases))


class Reading:
    """A text, tokenised once: fenced code is separated, the rest is lower-cased `prose`."""

    __slots__ = ("chars", "counts", "prose", "root", "sentences", "spaced", "text", "total", "words")

    def __init__(self, text: str) -> None:
        self.chars = len(text)
        self.text = clip_text(text)
        # Between the fences every other piece is prose; a fence that is never closed runs to the end.
        self.prose = "\n".join(self.text.split("```")[::2])
        self.words: list[str] = _WORD.findall(self.prose.replace("’", "'").lower())
        self.total = len(self.words)
        self.root = math.sqrt(max(self.total, 1))
        self.counts: dict[str, int] = {}
        for word in self.words:
            self.counts[word] = self.counts.get(word, 0) + 1
        # Every word brings its own spaces, so that neighbouring phrases never share one.
        self.spaced = f" {'  '.join(self.words)} "
        self.sentences = max(1, sum(len(part) > 3 for part in _SENTENCE.split(self.prose)))

    def rate(self, count: float) -> float:
        """Count per square root of words: a compromise between a total and a share, which depend on length."""
        return count / self.root
