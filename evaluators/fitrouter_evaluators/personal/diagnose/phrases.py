"""Plain language: which phrases of English, German and Spanish a text has, clause by clause.

`english.json`, `german.json` and `spanish.json` have, for each language, words by which it is known, short forms of
chats, phrases about who is spoken of and whether it is so (`markers`), and phrases for each kind of attribute. A phrase
is a list of words, read in lower case and without accents: `a|b` is one of several words, `stem*`, `*end` and
`*inside*` are parts of words, `@name` is one of `sets`, `_` is any word, `_?` one or none, `__` up to two. Phrases are
looked up by their first word, so that reading is linear in the text.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Mapping
from importlib import resources
from typing import NamedTuple

import msgspec

from fitrouter_evaluators.scoring.text.language import language_of
from fitrouter_evaluators.scoring.text.lexicons import phrases

LANGUAGES = ("English", "German", "Spanish")
_LEAST = 3
"""Shortest stem."""
_SENTENCE_WORDS = 160
"""Words after which a sentence without an end is cut."""
_GAPS = {"_": (1, 1), "_?": (0, 1), "__": (0, 2)}
_QUOTED = re.compile(
    r"```.*?(?:```|\Z)|^>.*$|\"[^\"\n]{3,}\"|[“„][^“”„\n]{3,}[”“]|«[^«»\n]{3,}»"
    r"|(?<![^\W_])['‘](?:[^'’\n]|(?<=\w)['’](?=\w)){12,600}['’](?![^\W_])",
    re.DOTALL | re.MULTILINE,
)
"""Each alternative stops at its own opening mark, so that the time is linear."""
_TOKEN = re.compile(r"[^\W_]+(?:['’][^\W_]+)*|[.!?…]+(?=\s|$|[)\]”\"'’])|\n+|[,;:()–—¿¡]| - ")
_ENDS = frozenset(".!?…\n")


class Word(NamedTuple):
    """A word of a sentence, and its place in the text."""

    text: str
    start: int
    end: int
    segment: int
    """Number of the part between marks of punctuation."""


class Sentence(NamedTuple):
    """A sentence: its words, and the segment from which it asks, None if it does not."""

    words: tuple[Word, ...]
    asks: int | None


class Found(NamedTuple):
    """A phrase that was found, with the first word and the one after the last."""

    name: str
    start: int
    end: int


class Spoken(msgspec.Struct, frozen=True):
    """Phrases of one language."""

    function: str
    joins: str
    """Words that begin a clause."""
    expand: dict[str, str]
    """Short form → words."""
    sets: dict[str, str]
    markers: dict[str, str]
    style: str
    """Words about the style of answers."""
    ends: dict[str, str]
    """Kind → phrases after which what was said of this kind holds no more."""
    domains: dict[str, str]
    """Domain of prompts → words about it."""
    kinds: dict[str, dict[str, str]]
    """Kind → role → phrases; the roles are in `attributes`."""


_Index = dict[str, list[tuple[str, tuple[str, ...]]]]


class Phrases:
    """Finds phrases in lists of words.

    Args:
        named: name → its phrases.
        sets: name → words, for `@name`.
    """

    def __init__(self, named: Mapping[str, str], sets: Mapping[str, str]) -> None:
        self._whole: _Index = {}
        self._stems: _Index = {}
        self._ends: _Index = {}
        self._inside: _Index = {}
        for name, text in named.items():
            for phrase in phrases(text):
                first, *rest = (_alternatives(part, sets) for part in plain(phrase).split())
                for word in first.split("|"):
                    entry = (name, tuple(rest))
                    if word.startswith("*") and word.endswith("*"):
                        self._inside.setdefault(word[1:-1], []).append(entry)
                    elif word.endswith("*"):
                        self._stems.setdefault(word[:-1], []).append(entry)
                    elif word.startswith("*"):
                        self._ends.setdefault(word[1:], []).append(entry)
                    else:
                        self._whole.setdefault(word, []).append(entry)
        self._begin = functools.lru_cache(maxsize=1 << 14)(self._beginning)

    def _beginning(self, word: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
        found = [*self._whole.get(word, ())]
        for n in range(_LEAST, min(len(word), 24) + 1):
            found += self._stems.get(word[:n], ())
            found += self._ends.get(word[-n:], ())
        for part, entries in self._inside.items():
            found += entries if part in word else ()
        return tuple(found)

    def find(self, words: list[str]) -> list[Found]:
        """Find the phrases in the words, in order."""
        return [
            Found(name, i, end)
            for i, word in enumerate(words)
            for name, rest in self._begin(word)
            if (end := _follows(words, i + 1, rest))
        ]


def _alternatives(part: str, sets: Mapping[str, str]) -> str:
    named = [plain(sets[each[1:]]) if each.startswith("@") else each for each in part.split("|")]
    return "|".join(named)


@functools.lru_cache(maxsize=1 << 15)
def _is(word: str, part: str) -> bool:
    options = _options(part)
    return word in options or any(
        (each.endswith("*") and word.startswith(each[:-1])) or (each.startswith("*") and word.endswith(each[1:]))
        for each in options
        if "*" in each
    )


@functools.cache
def _options(part: str) -> frozenset[str]:
    return frozenset(part.split("|"))


def _follows(words: list[str], at: int, rest: tuple[str, ...]) -> int:
    """Where the phrase ends whose further parts are `rest`; 0 if it is not there."""
    if not rest:
        return at
    if rest[0] in _GAPS:
        least, most = _GAPS[rest[0]]
        ends = (_follows(words, at + n, rest[1:]) for n in range(least, most + 1) if at + n <= len(words))
        return next((end for end in ends if end), 0)
    return _follows(words, at + 1, rest[1:]) if at < len(words) and _is(words[at], rest[0]) else 0


def plain(text: str) -> str:
    """Lower-case a text and strip its accents.

    >>> plain("Müßig, ¿está?")
    'mussig, ¿esta?'
    """
    text = text.replace("’", "'").lower()
    if text.isascii():
        return text
    return "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c)).replace("ß", "ss")


@functools.cache
def spoken(language: str) -> Spoken:
    """Load the phrases of a language."""
    file = resources.files("fitrouter_evaluators.personal.diagnose") / f"{language.lower()}.json"
    return msgspec.json.decode(file.read_bytes(), type=Spoken)


@functools.cache
def _function(language: str) -> frozenset[str]:
    return frozenset(phrases(plain(spoken(language).function)))


def foreign() -> frozenset[str]:
    """Words without content of German and Spanish, without accents, that are no English words of content."""
    return (_function("German") | _function("Spanish")) - frozenset(
        phrases("war, die, den, sin, son, pan, net, rest, time, all")
    )


def language(text: str, default: str = "English") -> str:
    """The language of a message; of the three that are read where their words outweigh others', `default` without any.

    >>> language("moin sag mal schnell wie lang muss n ei"), language("je ne mange pas de viande")
    ('German', 'French')
    """
    words = plain(text[:20_000]).replace("'", " ").split()
    words = [word.strip('.,;:!?()¿¡"“”„«»…') for word in words]
    counts = {name: sum(word in _function(name) for word in words) for name in LANGUAGES}
    best = max(LANGUAGES, key=lambda name: counts[name])
    guess = language_of(text[:20_000])
    if guess == "English" and not counts[best]:
        return default
    if guess in LANGUAGES:
        return best if counts[best] > counts[guess] else guess
    return best if 3 * counts[best] > len(words) and guess not in _NEAR.get(best, ()) else guess


_NEAR = {
    "Spanish": ("Portuguese", "Italian", "French", "Romanian"),
    "German": ("Dutch",),
    "English": (),
}
"""Languages that share many function words."""


@functools.cache
def _domains(name: str) -> Phrases:
    known = spoken(name)
    return Phrases(known.domains, known.sets)


def domains(prompt: str, name: str) -> set[str]:
    """Domains of which a prompt in one of the languages has words."""
    found: set[str] = set()
    for sentence in sentences(prompt, spoken(name).expand):
        found |= {each.name for each in _domains(name).find([word.text for word in sentence.words])}
    return found


def unquoted(text: str) -> tuple[str, list[str]]:
    """Blank quotations and code in a text, at the same length; and what was in them."""
    quoted: list[str] = []

    def blank(match: re.Match[str]) -> str:
        quoted.append(match.group())
        return " " * len(match.group())

    return _QUOTED.sub(blank, text), quoted


def sentences(text: str, expand: Mapping[str, str]) -> list[Sentence]:
    """Split a text into sentences of plain words."""
    found: list[Sentence] = []
    words: list[Word] = []
    segment = 0
    asked: int | None = None

    def close(asks: bool) -> None:
        nonlocal words, asked
        if words:
            found.append(Sentence(tuple(words), (asked or 0) if asks else None))
        words, asked = [], None

    for match in _TOKEN.finditer(text):
        mark = match.group()
        if mark[0] in _ENDS:
            close("?" in mark)
            segment += 1
        elif not mark[0].isalnum():
            segment += 1
            asked = segment if mark == "¿" else asked
        else:
            written = plain(mark)
            whole = expand.get(written) or _apart(written)
            words += [Word(each, match.start(), match.end(), segment) for each in whole.split()]
            if len(words) >= _SENTENCE_WORDS:
                close(False)
    close(asked is not None)
    return found


_SHORT = {"n't": " not", "'re": " are", "'ve": " have", "'m": " am", "'ll": " will", "'d": " would", "'s": ""}


def _apart(word: str) -> str:
    if "'" not in word:
        return word
    for end, by in _SHORT.items():
        if word.endswith(end):
            return word.removesuffix(end) + by
    return word.replace("'", "")
