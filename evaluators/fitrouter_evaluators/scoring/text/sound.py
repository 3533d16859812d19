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

from fitrouter_evaluators.scoring.text.lexicons import phrases
from fitrouter_evaluators.scoring.text.reading import Lexicon, Reading, clip_text, split_words
from fitrouter_evaluators.scoring.text.sound_words import FUNCTION_WORDS, GRADER, PRAISE

EDGE = 3072
"""Characters read at each end of an answer."""

_PROMPT_EDGE = 1024
_FUNCTION_WORDS = frozenset(FUNCTION_WORDS)
_PRAISE = frozenset(PRAISE)
_READER = frozenset(("you", "your", "yours", "you're", "you've", "question", "questions"))
_function, _grader, _praise, _reader = (Lexicon(tuple(words)) for words in (FUNCTION_WORDS, GRADER, _PRAISE, _READER))
_ENDS = 400
_WORDS = 40
_SENTENCES = re.compile(r"[.!?\n]+")
_LETTERS = re.compile(r"[a-z']+")
_TOKEN = re.compile(r"<\|\w+\|>")
_MARKS = tuple(  # what addresses a grader in folded text, no two of which overlap, by how it begins
    (start, re.compile(pattern))
    for start, pattern in (
        ("10", r"10(?<!\w10)0?\s*(?:/|out of)\s*100?\b"),
        ("[", r"\[(?:\[(?:[abc]|tie)\]|/?(?:system|inst))\]"),  # `[[1]]` is a citation, `[[A]]` a verdict
        ("<", r"</?(?:system|instruction|evaluation|judge|output)s?>"),
        *(
            (word, rf"{word}(?<!\w{word})\b\W{{0,4}}[:=]")
            for word in phrases("score, rating, grade, verdict, winner, preferred, rank")
        ),
    )
)
_SUM = re.compile(r"\d\s*[-+*/^=<>]\s*\d")
_SYMBOL = re.compile(r"[^\w\s.,;:!?'\"()*#|’“”–-]")
_NO_SYMBOLS = bytes(i for i in range(128) if not _SYMBOL.match(chr(i)))
_BEYOND_LATIN = re.compile("[\u0250-\U0010ffff]")


class _Whole:
    """Looks for whole words in a folded text; `*` at the end of one stands for further letters."""

    def __init__(self, words: str) -> None:
        entries = phrases(words)
        self._starts = tuple(entry.rstrip("*") for entry in entries)
        self._pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, entries))})\b".replace(r"\*", r"\w+"))

    def found(self, folded: str) -> bool:
        """Whether the text has one of the words."""
        return any(start in folded for start in self._starts) and self._pattern.search(folded) is not None


_LANGUAGES = _Whole("""
    translat*, chinese, mandarin, japanese, korean, russian, arabic, hebrew, greek, hindi, thai, ukrainian, language
""")
_CODE = _Whole("""
    python, c++, java, javascript, html, css, sql, bash, code, function, program, script, algorithm, regex, compile
""")
_MATHS = _Whole("how many, how much, calculate, solve, equation, sum, probability, value")
_PROSE = _Whole("write, compose, draft, essay, story, blog, email, poem, describe, explain, discuss, outline")


def _folded(text: str) -> str:
    """Lower-case a text, with the letters that a pattern that ignores case takes for `i` and `s`."""
    return (text if text.isascii() else text.replace("İ", "i").replace("ı", "i").replace("ſ", "s")).lower()


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
    reading, folded = Reading(text), _folded(text)
    words = reading.words
    return PromptFeatures(
        words=frozenset(words),
        triples=frozenset(zip(words, words[1:], words[2:], strict=False)),
        openings=tuple(part[:48] for part in text.split("\n\n")[:4] if len(part) >= 16),
        function_share=_function.count(reading) / max(reading.total, 1),
        foreign=_foreign(text),
        translates=_LANGUAGES.found(folded),
        grader=grader_talk(reading),
        code=float("```" in text or _CODE.found(folded)),
        maths=float(_SUM.search(text) is not None or _MATHS.found(folded)),
        prose=float(_PROSE.found(folded)),
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
    words = reading.words if "```" not in text else split_words(text.replace("```", "\n"))
    distinct = counts.keys() if words is reading.words else set(words)
    triples = set(zip(words, words[1:], words[2:], strict=False))
    pairs = set(itertools.pairwise(words))
    lines = [line for line in map(str.strip, text.split("\n")) if len(line) > 3]
    paragraphs = [len(part) for part in text.split("\n\n") if part and not part.isspace()]
    many, size, characters = math.log1p(len(distinct)), len(text.strip()), max(len(text), 1)
    share = _function.count(reading) / max(n, 1)
    ascii_only = reading.prose.isascii()
    symbols = reading.prose.encode().translate(None, _NO_SYMBOLS) if ascii_only else _SYMBOL.findall(reading.prose)
    return [
        min(many, 5.5),
        min(many, 3.5),
        min(many, 4.7),
        min(math.log1p(len(pairs)), 6.0),
        1.0 - len(triples) / (len(words) - 2) if len(words) > 2 else 0.0,
        1.0 - len(set(lines)) / len(lines) if lines else 0.0,
        (len("".join(words)) + text.count(" ") + text.count("\n")) / characters,
        len(triples & prompt.triples) / len(triples) if triples else 0.0,
        float(size < 40),
        float(size < 100),
        float(min(len(paragraphs), 4)),
        min(math.log1p(max(paragraphs, default=0)), 7.0),
        max(0.0, min(prompt.function_share, 0.35) - share) if n >= 8 else 0.0,
        0.0 if prompt.translates else max(0.0, _foreign(text[:2048]) - prompt.foreign),
        max(0.0, grader_talk(reading) - prompt.grader),
        len(symbols) / max(len(reading.prose), 1),
        min(max((k for word, k in counts.items() if word not in _FUNCTION_WORDS), default=0) / max(n, 12), 0.4),
        len(distinct & prompt.words) / max(len(distinct), 8),
        _praises(text, reading),
        math.log1p(sum(text.count(opening) for opening in prompt.openings)),
        _shared(words[:_WORDS], words[_WORDS:], prompt),
        _shared(words[-_WORDS:], words[:-_WORDS], prompt),
    ]


def grader_talk(reading: Reading) -> float:
    """Log of the number of phrases that address a grader: instructions to ignore, marks, verdicts."""
    text, found = _folded(reading.text), _grader.count(reading)
    if "<|" in text:  # a name in such brackets is no verdict
        text, tokens = _TOKEN.subn("<x>", text)
        found += tokens
    return math.log1p(found + sum(len(pattern.findall(text)) for start, pattern in _MARKS if start in text))


def _shared(part: list[str], rest: list[str], prompt: PromptFeatures) -> float:
    """Share of a part's content words, without the prompt's, that recur in the rest; NaN without a rest."""
    if len(rest) < _WORDS // 2:
        return math.nan
    own = set(part) - _FUNCTION_WORDS - prompt.words
    return len(own & set(rest)) / max(len(own), 5)


def _praises(text: str, reading: Reading) -> float:
    """Log of the number of sentences at both ends that praise the reader."""
    if not (_praise.count(reading) and _reader.count(reading)):
        return 0.0
    sentences = map(set, map(_LETTERS.findall, _SENTENCES.split(clip_text(text, _ENDS).lower())))
    return math.log1p(sum(not words.isdisjoint(_PRAISE) and not words.isdisjoint(_READER) for words in sentences))


def _foreign(text: str) -> float:
    """Share of letters of other scripts than Latin."""
    if text.isascii():
        return 0.0
    beyond = sum(map(str.isalpha, _BEYOND_LATIN.findall(text)))
    return beyond / sum(map(str.isalpha, text)) if beyond else 0.0
