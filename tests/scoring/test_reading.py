"""Laws of the measures' fast ways: each counts what its plain definition counts, on any text."""

from __future__ import annotations

import math
import re

from hypothesis import given
from hypothesis import strategies as st

from fitrouter_evaluators.scoring import STYLE
from fitrouter_evaluators.scoring.text import lexicons, reading
from fitrouter_evaluators.scoring.text.language import OTHER, language_of
from fitrouter_evaluators.scoring.text.reading import Lexicon, Reading, split_words
from fitrouter_evaluators.scoring.text.sound import MEASURES, asked, grader_talk, measure_soundness
from fitrouter_evaluators.scoring.text.sound_words import FUNCTION_WORDS, GRADER

BY_NAME = {dimension.name: dimension for dimension in STYLE}
PIECES = [
    "", " ", "\n", "\n\n", "\t", "\x0b", "\x1c", "\xa0", "\u2028", ".", "!", "?", "…", "。", "؟", ":", "=", ",", ";",
    "'", "’", "-", "–", "--", "_", "(", ")", "[", "]", "<", ">", "/", "|", "#", "`", "```", "**", "%", "$", "€", "~",
    "{", "\x00", "a", "A", "Ab", "of The", "i'm", "I’m sorry", "don''t", "well-known", "e.g.", "great question", "you",
    "perfect", "such as", "\n- ", "\n1. x", "\n## ", "5", "10", "100", "5 %", "50 km", "3 days", "$ 7", "٣", "(2019)",
    "(see [1], 1999)", "https://", "http://", "10/10", "100 out of 10", "SCORE:", "ſcore =", "ranK:", "ratıng (:",
    "[[A]]", "[[TİE]]", "[/INST]", "</Judge>", "<|score|>:", "translating", "Chinese", "c++11", "C++", "Java", "2 + 2",
    "How many", "write", "code2", "summer", "ignore the above", "rubric", "漢字", "かな", "é", "É’a", "l'on", "ñ", "ß",
    "Σας", "ΟΔΟΣ", "İst", "и", "สวัสดี", "🙂", "\ud800", "nicht", "de la", "x" * 40,
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES), max_size=40).map("".join) | st.text(max_size=60)

WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W\d_\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+"
    r"(?:'[^\W\d_\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+)*"
)
SENTENCE = re.compile(r"[.!?…](?=\s|\Z)|[。！？؟।۔]|\n")
LIST_ITEM = re.compile(r"^[ \t]*(?:[-*•+]|\d{1,3}[.)])[ \t]+\S", re.MULTILINE)
TABLE_ROW = re.compile(r"^[ \t]*\|.*\|[ \t]*$", re.MULTILINE)
HEADING = re.compile(r"^#{1,6} ", re.MULTILINE)
CITATION = re.compile(r"https?://|\[\d{1,3}\]|\((?:[^()\n]{0,60}, )?(?:1[5-9]|20)\d\d\)|\d ?%")
NAME = re.compile(r"(?<=[a-z,;]) [A-Z]\w")
UNIT = re.compile(
    r"\d ?(?:%|°|\$|€|£|k[gmWB]\b|m[lgms]?\b|cm\b|[GMT]B\b|Hz\b|hours?\b|minutes?\b|seconds?\b|days?\b|weeks?\b"
    r"|months?\b|years?\b|miles?\b|feet\b|cups?\b|grams?\b|percent\b|dollars?\b|degrees?\b)|[$€£] ?\d"
)
MARK = re.compile(
    r"\b(?:10|100)\s*(?:/|out of)\s*(?:10|100)\b|\b(?:score|rating|grade|verdict|winner|preferred|rank)\b\W{0,4}[:=]"
    r"|\[\[(?:[abc]|tie)\]\]|</?(?:system|instruction|evaluation|judge|output)s?>|\[/?(?:system|inst)\]|<\|\w+\|>",
    re.IGNORECASE,
)
SYMBOL = re.compile(r"[^\w\s.,;:!?'\"()*#|’“”–-]")
LANGUAGES = "chinese|mandarin|japanese|korean|russian|arabic|hebrew|greek|hindi|thai|ukrainian|language"
CODE = r"python|c\+\+|java|javascript|html|css|sql|bash|code|function|program|script|algorithm|regex|compile"
ASKS = {
    "translates": rf"\b(?:translat\w+|{LANGUAGES})\b",
    "code": rf"```|\b(?:{CODE})\b",
    "maths": r"\d\s*[-+*/^=<>]\s*\d|\b(?:how (?:many|much)|calculate|solve|equation|sum|probability|value)\b",
    "prose": r"\b(?:write|compose|draft|essay|story|blog|email|poem|describe|explain|discuss|outline)\b",
}


def occurrences(entries: tuple[str, ...], r: Reading) -> int:
    """Count words and phrases one by one."""
    single = {entry for entry in entries if " " not in entry}
    spaced = [f" {'  '.join(entry.split())} " for entry in entries if " " in entry]
    return sum(map(r.words.count, single)) + sum(map(r.spaced.count, spaced))


@given(TEXTS)
def test_words_are_those_of_the_whole_text(text: str) -> None:
    """Splitting at blanks first, with a cache, gives the words that the pattern finds in the whole text."""
    assert split_words(text) == split_words(text) == WORD.findall(text.replace("’", "'").lower())


def test_the_cache_of_words_is_bounded(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """It holds so many short stretches, and a text has the same words when it is emptied meanwhile."""
    monkeypatch.setattr(reading, "_KNOWN", 4)
    words = [f"word{chr(97 + i)}" for i in range(20)]
    assert split_words(" ".join(words)) == words
    assert split_words("y" * 5000) == ["y" * 5000]
    assert len(reading._words) <= 4
    assert max(map(len, reading._words)) < 100


@given(TEXTS)
def test_lexicons_are_counted_together_as_alone(text: str) -> None:
    """One pass over the words counts every lexicon, also one that is made after the first count."""
    r = Reading(text)
    evidence, refusal, grader = (Lexicon(words) for words in (lexicons.EVIDENCE, lexicons.REFUSAL, GRADER))
    assert grader.count(r) == occurrences(GRADER, r)
    assert [evidence.count(r), refusal.count(r)] == [occurrences(x, r) for x in (lexicons.EVIDENCE, lexicons.REFUSAL)]
    late = Lexicon(("you", "such as"))
    assert late.count(r) == occurrences(("you", "such as"), r)


@given(TEXTS)
def test_style_counts_what_its_definitions_say(text: str) -> None:
    """Patterns that are searched fast find what the plain patterns find."""
    r = Reading(text)
    tables = len(TABLE_ROW.findall(r.prose))
    assert r.sentences == max(1, sum(len(part) > 3 for part in SENTENCE.split(r.prose)))
    assert BY_NAME["structure"].of(r) == r.rate(len(LIST_ITEM.findall(r.prose)) + tables)
    assert BY_NAME["emphasis"].of(r) == r.rate(len(HEADING.findall(r.prose)) + r.prose.count("**") / 2)
    assert BY_NAME["digits"].of(r) == r.rate(len(re.findall(r"\d", r.text)))
    cited = len(CITATION.findall(r.prose)) + occurrences(lexicons.EVIDENCE, r)
    assert BY_NAME["evidence"].of(r) == r.rate(cited)
    assert BY_NAME["concreteness"].of(r) == r.rate(len(NAME.findall(r.prose)) + len(UNIT.findall(r.prose)))


@given(TEXTS, TEXTS)
def test_soundness_counts_what_its_definitions_say(text: str, prompt: str) -> None:
    """Talk to a grader, symbols, other scripts, and what a prompt asks for are those of the plain patterns."""
    r, ask = Reading(text), asked(prompt)
    assert grader_talk(r) == math.log1p(occurrences(GRADER, r) + len(MARK.findall(r.text)))
    found = dict(zip(MEASURES, measure_soundness(asked(""), text), strict=True))
    letters = [letter for letter in text if letter.isalpha()]
    assert found["foreign"] == sum(ord(letter) > 0x24F for letter in letters) / max(len(letters), 1)
    assert found["symbols"] == len(SYMBOL.findall(r.prose)) / max(len(r.prose), 1)
    assert found["grader_talk"] == grader_talk(r)
    for name, pattern in ASKS.items():
        assert bool(getattr(ask, name)) == (re.search(pattern, prompt, re.IGNORECASE) is not None), name
    words = Reading(prompt)
    assert ask.function_share == occurrences(FUNCTION_WORDS, words) / max(words.total, 1)


@given(TEXTS)
def test_a_reading_has_the_language_of_its_prose(text: str) -> None:
    """A reading's words serve where they are those of the language's own pattern."""
    assert language_of(Reading(text)) == language_of(Reading(text).prose)


def test_a_mark_of_another_language_among_names_is_no_error() -> None:
    """A list of names of which one has a letter of another language has one, though no word tells which."""
    assert language_of(" ".join(["Ibáñez", *(f"Name{chr(97 + i)}" for i in range(26)), *["Zed"] * 10])) == OTHER
