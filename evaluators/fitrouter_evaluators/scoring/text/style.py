"""Named style dimensions of an answer.

Each dimension is a pure function of the text, always finite; `STYLE` fixes their order. Counts are taken per square
root of words. `measure` gives the raw values and `standardise` puts them on one scale: centre and scale are constants
of the package (`_constants`), clipped to ±3, so that the same text has the same features in every installation.

**Data sheet of the constants.** Made by `python -m benchmarks.training.constants FOLDER OUT` from the 960
answers (80 questions, two turns, six models) of MT-bench, `model_answer/*.jsonl` (Zheng et al. 2023,
arXiv:2306.05685). The answers are under Apache-2.0, which allows derived numbers to ship; no text ships. Centre is
the mean and scale the standard deviation, as that module describes. They describe English answers of 2023: newer
models write longer and with more structure, and lie above the centre.

The lexical dimensions know English only, and not all others make sense in every script: `unknown_in` names those that
are missing for a language. A high value is neither good nor bad; users' tastes weigh it.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fitrouter.types import Floats
from fitrouter_evaluators.scoring._constants import STYLE_CONSTANTS
from fitrouter_evaluators.scoring.text import lexicons as _lexicons
from fitrouter_evaluators.scoring.text.language import CHARACTERS, ENGLISH, UNCOUNTED
from fitrouter_evaluators.scoring.text.reading import Lexicon, Reading, spaced, split_words

CLIP = 3.0
"""Standardised values are cut to ± this."""


class Dimension(NamedTuple):
    """A named property of a text; calling it gives the raw value."""

    name: str
    description: str
    of: Callable[[Reading], float]

    def __call__(self, text: str) -> float:
        """The raw value of one text."""
        return self.of(Reading(text))


_registry: list[Dimension] = []


def _dimension(of: Callable[[Reading], float]) -> Callable[[Reading], float]:
    _registry.append(Dimension(of.__name__, (of.__doc__ or "").strip(), of))
    return of


# Patterns begin with a literal or a set where possible, which sre searches fast; what it must follow is looked at then.
_LIST_ITEM = re.compile(r"\n[ \t]*(?:[-*•+]|\d{1,3}[.)])[ \t]+\S")
_HEADING = re.compile(r"\n#{1,6} ")
_TABLE_ROW = re.compile(r"^[ \t]*\|.*\|[ \t]*$", re.MULTILINE)
_INLINE_CODE = re.compile(r"`[^`\n]+`")
_DIGIT = re.compile(r"\d")
_YEAR = re.compile(r"\((?:[^()\n]{0,60}, )?(?:1[5-9]|20)\d\d\)")
_REFERENCE = re.compile(r"\[\d{1,3}\]")
_PERCENT = re.compile(r"%(?:(?<=\d%)|(?<=\d %))")
_NAME = re.compile(r" (?<=[a-z,;] )[A-Z]\w")
_UNIT = re.compile(
    r"[\d$€£](?:(?<=\d) ?(?:%|°|\$|€|£|k[gmWB]\b|m[lgms]?\b|cm\b|[GMT]B\b|Hz\b|hours?\b|minutes?\b|seconds?\b|days?\b"
    r"|weeks?\b|months?\b|years?\b|miles?\b|feet\b|cups?\b|grams?\b|percent\b|dollars?\b|degrees?\b)|(?<=[$€£]) ?\d)"
)
_hedges = Lexicon(_lexicons.HEDGES)
_warm = Lexicon(_lexicons.WARM)
_formal = Lexicon(_lexicons.FORMAL)
_casual = Lexicon(_lexicons.CASUAL)
_examples = Lexicon(_lexicons.EXAMPLES)
_refusal = tuple(spaced(entry.split()) for entry in _lexicons.REFUSAL)
_assertive = Lexicon(_lexicons.ASSERTIVE)
_flattery = Lexicon(_lexicons.FLATTERY)
_evidence = Lexicon(_lexicons.EVIDENCE)
_personal = Lexicon(_lexicons.PERSONAL)
_WINDOW, _TYPICAL_VARIETY = 50, 0.8
_OPENING = 400


@_dimension
def length(r: Reading) -> float:
    """Log of the number of characters (the opposite of brevity)."""
    return math.log1p(r.chars)


@_dimension
def structure(r: Reading) -> float:
    """List items and table rows outside code."""
    items = len(_LIST_ITEM.findall(f"\n{r.prose}"))
    return r.rate(items + (len(_TABLE_ROW.findall(r.prose)) if "|" in r.prose else 0))


@_dimension
def emphasis(r: Reading) -> float:
    """Headings and bold passages outside code."""
    return r.rate(len(_HEADING.findall(f"\n{r.prose}")) + r.prose.count("**") / 2)


@_dimension
def hedging(r: Reading) -> float:
    """Hedges such as may, might, perhaps, it depends."""
    return r.rate(_hedges.count(r))


@_dimension
def warmth(r: Reading) -> float:
    """Address of the reader: you, let's, I hope, feel free, exclamation marks."""
    return r.rate(_warm.count(r) + r.prose.count("!") + r.prose.count("！"))


@_dimension
def formality(r: Reading) -> float:
    """Therefore, furthermore, upon, less contractions and casual words."""
    return r.rate(_formal.count(r) - _casual.count(r))


@_dimension
def word_length(r: Reading) -> float:
    """Mean number of letters per word."""
    return (len(r.spaced) - 2 * r.total) / r.total if r.total else 0.0


@_dimension
def code(r: Reading) -> float:
    """1 with a fenced code block; up to 0.5 for inline code alone."""
    if "```" in r.text:
        return 1.0
    return min(len(_INLINE_CODE.findall(r.text)), 4) / 8 if "`" in r.text else 0.0


@_dimension
def digits(r: Reading) -> float:
    """Digits in text and code."""
    if r.text.isascii():
        return r.rate(sum(map(r.text.count, "0123456789")))
    return r.rate(len(_DIGIT.findall(r.text)))


@_dimension
def examples(r: Reading) -> float:
    """For example, e.g., such as."""
    return r.rate(_examples.count(r))


@_dimension
def sentence_length(r: Reading) -> float:
    """Log of the mean number of words a sentence; a line of a list is a sentence."""
    return math.log1p(r.total / r.sentences)


@_dimension
def vocabulary(r: Reading) -> float:
    """Share of different words, the mean over windows of 50 words; shorter texts are drawn to the typical 0.8."""
    windows = [r.words[i : i + _WINDOW] for i in range(0, r.total - _WINDOW + 1, _WINDOW)]
    if windows:
        return sum(len(set(w)) for w in windows) / (_WINDOW * len(windows))
    return _TYPICAL_VARIETY + (len(r.counts) - _TYPICAL_VARIETY * r.total) / _WINDOW


@_dimension
def questions(r: Reading) -> float:
    """Log of the number of questions that the answer asks."""
    return math.log1p(sum(map(r.prose.count, "?？؟")))


@_dimension
def refusal(r: Reading) -> float:
    """Log of the number of refusing or apologising phrases in the opening."""
    opening = r.spaced if r.chars <= _OPENING else spaced(split_words(r.prose[:_OPENING]))
    return math.log1p(sum(map(opening.count, _refusal)))


@_dimension
def assertiveness(r: Reading) -> float:
    """Words of certainty such as definitely, always, must, of course."""
    return r.rate(_assertive.count(r))


@_dimension
def flattery(r: Reading) -> float:
    """Praise of the user, such as great question, you're absolutely right."""
    return r.rate(_flattery.count(r))


@_dimension
def evidence(r: Reading) -> float:
    """Citations, links, years, percentages, and words such as study and according to."""
    rest, found = _YEAR.subn(")", r.prose)  # what stands in its brackets counts once
    found += sum(map(rest.count, ("http://", "https://"))) + len(_REFERENCE.findall(rest)) + len(_PERCENT.findall(rest))
    return r.rate(found + _evidence.count(r))


@_dimension
def concreteness(r: Reading) -> float:
    """Names inside sentences and numbers with a unit."""
    return r.rate(len(_NAME.findall(r.prose)) + len(_UNIT.findall(r.prose)))


@_dimension
def personal(r: Reading) -> float:
    """First person singular: I, my."""
    return r.rate(_personal.count(r))


STYLE: tuple[Dimension, ...] = tuple(_registry)
"""All dimensions, in the order of every feature vector."""

_LEXICAL = frozenset(
    _lexicons.phrases("""
    hedging, warmth, formality, examples, refusal, assertiveness, flattery, evidence, concreteness, personal
    """)
)
"""Dimensions of English words; `concreteness` reads names by their capitals, which German gives every noun."""


@functools.cache
def unknown_in(language: str) -> frozenset[str]:
    """Dimensions that have no meaning in a language (as `language_of` names it) and are NaN in its texts.

    >>> unknown_in("English"), "length" in unknown_in("German"), "hedging" in unknown_in("German")
    (frozenset(), False, True)
    """
    found = set() if language == ENGLISH else set(_LEXICAL)
    if language in CHARACTERS | UNCOUNTED:
        found |= {"word_length", "vocabulary"}  # tokens are characters, or parts of words
    if language in UNCOUNTED:
        found.add("sentence_length")
    if language in {"Greek", *UNCOUNTED}:
        found.add("questions")  # Greek asks with a semicolon, Thai with words
    return frozenset(found)


_CENTRE = np.array([STYLE_CONSTANTS[d.name][0] for d in STYLE])
_SCALE = np.array([STYLE_CONSTANTS[d.name][1] for d in STYLE])


def measure(text: str | Reading) -> Floats:
    """Measure all style dimensions of a text, raw, float64[len(STYLE)]; it is tokenised only once."""
    reading = Reading(text) if isinstance(text, str) else text
    return np.array([dimension.of(reading) for dimension in STYLE])


def standardise(raw: Floats) -> Floats:
    """Convert raw values float64[…, len(STYLE)] to standard deviations of the calibration answers, cut to ±3."""
    out: Floats = np.clip((raw - _CENTRE) / _SCALE, -CLIP, CLIP)
    return out
