"""A tokenised answer text, shared by all style dimensions."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

CAP = 20_000
"""Characters read at each end of a text."""

# Scripts without spaces between words give one token a character; any other run of letters is one word.
_SPACELESS = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
SPACELESS = re.compile(f"[{_SPACELESS}]")
_WORD = re.compile(rf"[{_SPACELESS}]|[^\W\d_{_SPACELESS}]+(?:'[^\W\d_{_SPACELESS}]+)*")
_SENTENCE = re.compile(r"[.!?…。！？؟।۔\n](?:(?<=[。！？؟।۔\n])|(?=\s|\Z))")  # a set comes first: sre searches it fast
_KNOWN, _LONGEST = 1 << 15, 32


class _Words(dict[str, tuple[str, ...]]):
    """Words of each stretch of text between two blanks; those of short stretches are cached."""

    def __missing__(self, stretch: str) -> tuple[str, ...]:
        """Split a stretch into lower-case words."""
        found = tuple(_WORD.findall(stretch.replace("’", "'").lower()))
        if len(stretch) <= _LONGEST:
            if len(self) >= _KNOWN:
                self.clear()
            self[stretch] = found
        return found


_words = _Words()


def split_words(text: str) -> list[str]:
    """Split a text into lower-case words; an apostrophe inside belongs to the word."""
    return list(itertools.chain.from_iterable(map(_words.__getitem__, text.split())))


def spaced(words: Sequence[str]) -> str:
    """Join words such that every word brings its own spaces, and neighbouring phrases never share one."""
    return f" {'  '.join(words)} "


def clip_text(text: str, cap: int = CAP) -> str:
    r"""The first and the last `cap` characters.

    >>> clip_text("abcdefgh", 2)
    'ab\ngh'
    """
    return text if len(text) <= 2 * cap else f"{text[:cap]}\n{text[-cap:]}"


class Lexicon:
    """Counts whole words and phrases; all lexicons of the process are counted in one pass over a text's words.

    >>> Lexicon(("often", "for example")).count(Reading("He softened, for example, more often."))
    2
    """

    __slots__ = ("_index",)
    _all: ClassVar[int] = 0
    _entries: ClassVar[dict[str, tuple[list[int], list[tuple[int, str]]]]] = {}
    """Word → lexicons that have it, by index; and phrases whose longest word it is, as in `Reading.spaced`."""

    def __init__(self, entries: tuple[str, ...]) -> None:
        self._index, Lexicon._all = Lexicon._all, Lexicon._all + 1
        for word in {entry for entry in entries if " " not in entry}:
            self._entries.setdefault(word, ([], []))[0].append(self._index)
        for parts in [entry.split() for entry in entries if " " in entry]:
            phrase = self._index, spaced(parts)
            self._entries.setdefault(max(parts, key=len), ([], []))[1].append(phrase)

    def count(self, reading: Reading) -> int:
        """Occurrences in the prose."""
        if len(reading.tally) <= self._index:
            reading.tally = self._tallied(reading)
        return reading.tally[self._index]

    @classmethod
    def _tallied(cls, reading: Reading) -> list[int]:
        """Occurrences by lexicon."""
        found = [0] * cls._all
        known = cls._entries.get
        for word, n in reading.counts.items():
            if entry := known(word):
                for index in entry[0]:
                    found[index] += n
                for index, phrase in entry[1]:
                    found[index] += reading.spaced.count(phrase)
        return found


class Reading:
    """A text, tokenised once: fenced code is separated, the rest is lower-cased `prose`."""

    __slots__ = ("chars", "counts", "prose", "root", "spaced", "tally", "text", "total", "words")

    def __init__(self, text: str) -> None:
        self.chars = len(text)
        self.text = clip_text(text)
        # Between the fences every other piece is prose; a fence that is never closed runs to the end.
        self.prose = "\n".join(self.text.split("```")[::2])
        self.words = split_words(self.prose)
        self.total = len(self.words)
        self.root = math.sqrt(max(self.total, 1))
        self.counts = Counter(self.words)
        self.spaced = spaced(self.words)
        self.tally: list[int] = []
        """Occurrences by lexicon, once one was asked for."""

    @property
    def sentences(self) -> int:
        """Sentences of the prose, at least 1; a line of a list is one."""
        return max(1, sum(len(part) > 3 for part in _SENTENCE.split(self.prose)))

    def rate(self, count: float) -> float:
        """Count per square root of words: a compromise between a total and a share, which depend on length."""
        return count / self.root
