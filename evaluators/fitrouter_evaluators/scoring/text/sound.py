"""Measures of soundness: whether a text is coherent writing that answers its prompt, in any style.

They separate content from length (distinct words instead of words) and detect what only looks like an answer: repeated
passages, repetition of the prompt, symbols without words, words without grammar, and appeals to a grader. Only `EDGE`
characters of each end are read, which bounds the time.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from typing import NamedTuple

from fitrouter_evaluators.scoring.text.reading import Reading, clip_text
from fitrouter_evaluators.scoring.text.sound_words import FUNCTION_WORDS, GRADER, PRAISE

EDGE = 3072
"""Characters read at each end of an answer."""

_PROMPT_EDGE = 1024
_FUNCTION_WORDS = frozenset(FUNCTION_WORDS)
_GRADER_WORDS = frozenset(entry for entry in GRADER if " " not in entry)
_GRADER_PHRASES = tuple((entry.split(), f" {'  '.join(entry.split())} ") for entry in GRADER if " " in entry)
_PRAISE = frozenset(PRAISE)
_READER = frozenset(("you", "your", "yours", "you're", "you've", "question", "questions"))
_ENDS = 400
_WORDS = 40
_SENTENCES = re.compile(r"[.!?\n]+")
_MARK = re.compile(  # `[[1]]` is a citation, `[[A]]` a verdict
    r"\b(?:10|100)\s*(?:/|out of)\s*(?:10|100)\b|\b(?:score|rating|grade|verdict|winner|preferred|rank)\b\W{0,4}[:=]"
    r"|\[\[(?:[abc]|tie)\]\]|</?(?:system|instruction|evaluation|judge|output)s?>|\[/?(?:system|inst)\]|<\|\w+\|>",
    re.IGNORECASE,
)
_NAMES_A_LANGUAGE = re.compile(
    r"\b(?:translat\w+|chinese|mandarin|japanese|korean|russian|arabic|hebrew|greek|hindi|thai|ukrainian|language)\b",
    re.IGNORECASE,
)
_ASKS_CODE = re.compile(
    r"```|\b(?:python|c\+\+|java|javascript|html|css|sql|bash|code|function|program|script|algorithm|regex|compile)\b",
    re.IGNORECASE,
)
_ASKS_MATHS = re.compile(
    r"\d\s*[-+*/^=<>]\s*\d|\b(?:how (?:many|much)|calculate|solve|equation|sum|probability|value)\b", re.IGNORECASE
)
_ASKS_WORDS = re.compile(
    r"\b(?:write|compose|draft|essay|story|blog|email|poem|describe|explain|discuss|outline)\b", re.IGNORECASE
)
_SYMBOL = re.compile(r"[^\w\s.,;:!?'\"()*#|’“”–-]")


class PromptFeatures(NamedTuple):
    """Features of a prompt."""

    words: frozenset[str]
    triples: frozenset[tuple[str, str, str]]
    openings: tuple[str, ...]
    """Beginnings of its paragraphs, to detect repetition of the prompt."""
    function_share: float
    foreign: float
    translates: bool
    grader: float
    code: float
    maths: float
    prose: float


@functools.lru_cache(maxsize=1024)
def asked(prompt: str) -> PromptFeatures:
    """Read a prompt; the last thousand are cached."""
    text = clip_text(prompt, _PROMPT_EDGE)
    reading = Reading(text)
    words = reading.words
    return PromptFeatures(
        words=frozenset(words),
        triples=frozenset(zip(words, words[1:], words[2:], strict=False)),
        openings=tuple(part[:48] for part in text.split("\n\n")[:4] if len(part) >= 16),
        function_share=_function_share(reading),
        foreign=_foreign(text),
        translates=_NAMES_A_LANGUAGE.search(text) is not None,
        grader=grader_talk(reading),
        code=float(_ASKS_CODE.search(text) is not None),
        maths=float(_ASKS_MATHS.search(text) is not None),
        prose=float(_ASKS_WORDS.search(text) is not None),
    )


MEASURES = (
    "distinct",
    "distinct_few",
    "distinct_some",
    "bigrams",
    "repeats",
    "line_repeats",
    "letters",
    "echo",
    "stub",
    "short",
    "paragraphs",
    "longest_paragraph",
    "no_grammar",
    "foreign",
    "grader_talk",
    "symbols",
    "top_word",
    "prompt_words",
    "praise",
    "quoted",
    "start_shares",
    "end_shares",
)
"""Names of the measures, in order."""


def measure_soundness(prompt: PromptFeatures, text: str, reading: Reading | None = None) -> list[float]:
    """One value per measure, NaN if undefined; `reading` is that of the text, if known."""
    if reading is None or len(text) > 2 * EDGE:
        text = clip_text(text, EDGE)
        reading = Reading(text)
    n, counts = reading.total, reading.counts
    # Words in code blocks count here.
    words = reading.words if "```" not in text else Reading(text.replace("```", "\n")).words
    distinct = counts.keys() if words is reading.words else set(words)
    triples = set(zip(words, words[1:], words[2:], strict=False))
    pairs = set(itertools.pairwise(words))
    lines = [line for line in map(str.strip, text.split("\n")) if len(line) > 3]
    paragraphs = [len(part) for part in text.split("\n\n") if part and not part.isspace()]
    many, size, characters = math.log1p(len(distinct)), len(text.strip()), max(len(text), 1)
    share = _function_share(reading)
    return [
        min(many, 5.5),
        min(many, 3.5),
        min(many, 4.7),
        min(math.log1p(len(pairs)), 6.0),
        1.0 - len(triples) / (len(words) - 2) if len(words) > 2 else 0.0,
        1.0 - len(set(lines)) / len(lines) if lines else 0.0,
        (sum(map(len, words)) + text.count(" ") + text.count("\n")) / characters,
        len(triples & prompt.triples) / len(triples) if triples else 0.0,
        float(size < 40),
        float(size < 100),
        float(min(len(paragraphs), 4)),
        min(math.log1p(max(paragraphs, default=0)), 7.0),
        max(0.0, min(prompt.function_share, 0.35) - share) if n >= 8 else 0.0,
        0.0 if prompt.translates else max(0.0, _foreign(text[:2048]) - prompt.foreign),
        max(0.0, grader_talk(reading) - prompt.grader),
        len(_SYMBOL.findall(reading.prose)) / max(len(reading.prose), 1),
        min(max((counts[word] for word in counts.keys() - _FUNCTION_WORDS), default=0) / max(n, 12), 0.4),
        len(distinct & prompt.words) / max(len(distinct), 8),
        _praise(text, reading),
        math.log1p(sum(text.count(opening) for opening in prompt.openings)),
        _shared(words[:_WORDS], words[_WORDS:], prompt),
        _shared(words[-_WORDS:], words[:-_WORDS], prompt),
    ]


def grader_talk(reading: Reading) -> float:
    """Log of the number of phrases that address a grader: instructions to ignore, marks, verdicts."""
    counts, spaced = reading.counts, reading.spaced
    found = sum(counts[word] for word in _GRADER_WORDS & counts.keys())
    found += sum(spaced.count(phrase) for words, phrase in _GRADER_PHRASES if all(word in counts for word in words))
    return math.log1p(found + len(_MARK.findall(reading.text)))


def _shared(part: list[str], rest: list[str], prompt: PromptFeatures) -> float:
    """Share of a part's content words, without the prompt's, that recur in the rest; NaN without a rest."""
    if len(rest) < _WORDS // 2:
        return math.nan
    own = set(part) - _FUNCTION_WORDS - prompt.words
    return len(own & set(rest)) / max(len(own), 5)


def _praise(text: str, reading: Reading) -> float:
    """Log of the number of sentences at both ends that praise the reader."""
    if not (_PRAISE & reading.counts.keys() and _READER & reading.counts.keys()):
        return 0.0
    found = 0
    for sentence in _SENTENCES.split(clip_text(text, _ENDS).lower()):
        words = set(re.findall(r"[a-z']+", sentence))
        found += bool(words & _PRAISE and words & _READER)
    return math.log1p(found)


def _function_share(reading: Reading) -> float:
    """Share of words such as 'the': near .45 in English prose, near 0 in lists of words and other languages."""
    return sum(reading.counts[word] for word in _FUNCTION_WORDS & reading.counts.keys()) / max(reading.total, 1)


def _foreign(text: str) -> float:
    """Share of letters of other scripts than Latin."""
    if text.isascii():
        return 0.0
    letters = [c for c in text if c.isalpha()]
    return sum(ord(c) > 0x24F for c in letters) / max(len(letters), 1)
