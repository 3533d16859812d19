"""Tastes that a person states in earlier texts, of those that matter to a prompt.

The ten most relevant texts are retrieved by the cosine of the configured encoder, or by BM25 (Robertson and Zaragoza
2009) where that is `hashing`, which knows no meaning. Of these, sentences count that begin with their writer ("I",
"we"), have a word of attitude, and are no questions. About answers ("I prefer short answers") they are read as declared
statements of style; about anything else, answers are compared with them, as with declared topics.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fitrouter.context.encoders import Encoder
from fitrouter.types import Floats
from fitrouter_evaluators.scoring.features import readable
from fitrouter_evaluators.scoring.statements.declared import unreadable
from fitrouter_evaluators.scoring.statements.topics import asks_for_form, topic_units

RELEVANT = 10
"""Texts that are read for a prompt."""
_STATED, _LONGEST = 64, 300
"""Most sentences that count, and their characters."""
_K1, _B = 1.5, 0.75
"""Saturation of counts and weight of length in BM25."""
_WORD = re.compile(r"\w+")
_SENTENCE = re.compile(r"[^.!?\n]+[.!?]?")
_OWN = re.compile(r"\W*(?:(?:and|but|so|also|well|personally|since|as|because)\b,? ?)*(?:i|we)\b", re.IGNORECASE)
_OF_ANSWERS = re.compile(r"\b(?:answers?|repl(?:y|ies)|responses?|explanations?)\b", re.IGNORECASE)


class Stated(NamedTuple):
    """Sentences of a person's texts that count, the most relevant text first."""

    style: tuple[str, ...] = ()
    """About answers."""
    topics: tuple[str, ...] = ()
    """About anything else."""


def stated(encoder: Encoder, prompt: str, texts: Sequence[str]) -> Stated:
    """Read the tastes that are stated in the texts that matter to a prompt.

    Of prompt and texts the first and last 1,024 characters are read, as of answers.
    """
    found: dict[str, bool] = {}
    for text in relevant(encoder, readable(prompt), [readable(text) for text in texts]):
        for sentence in map(str.strip, _SENTENCE.findall(text)):
            if len(sentence) <= _LONGEST and not sentence.endswith("?") and _OWN.match(sentence) and _counts(sentence):
                found[sentence] = _OF_ANSWERS.search(sentence) is not None
    kept = list(found.items())[:_STATED]
    return Stated(tuple(each for each, style in kept if style), tuple(each for each, style in kept if not style))


def _counts(sentence: str) -> bool:
    return bool(topic_units(sentence)) and not asks_for_form(sentence) and not unreadable(sentence)


def relevant(encoder: Encoder, prompt: str, texts: Sequence[str], most: int = RELEVANT) -> list[str]:
    """Retrieve the texts that are most relevant to a prompt, the most relevant first; of equals the earlier one."""
    known = [text for text in dict.fromkeys(texts) if text.strip()]
    if not known:
        return []
    if encoder.id.startswith("hashing"):
        scores = bm25(prompt, known)
    else:
        about, *vectors = encoder.encode([prompt, *known])
        scores = np.array(vectors) @ about
    return [known[place] for place in np.argsort(-scores, kind="stable")[:most].tolist()]


def bm25(prompt: str, texts: Sequence[str]) -> Floats:
    """Score texts by BM25 with Lucene's idf, float64[n]; 0 for one without a word of the prompt."""
    counts = [Counter(_WORD.findall(text.lower())) for text in texts]
    lengths = np.array([float(each.total()) for each in counts])
    norm = _K1 * (1.0 - _B + _B * lengths / max(lengths.mean(), 1.0))
    found = np.zeros(len(texts))
    for word in dict.fromkeys(_WORD.findall(prompt.lower())):
        times = np.array([float(each[word]) for each in counts])
        having = np.count_nonzero(times)
        found += math.log(1.0 + (len(texts) - having + 0.5) / (having + 0.5)) * times / (times + norm)
    return found
