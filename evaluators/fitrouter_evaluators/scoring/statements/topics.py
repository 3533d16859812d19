"""Fit of an answer to preferences about topics, such as "I avoid horror movies".

A statement is read into signed pieces of content (`_polarity`); words of refusal ("allergic to", "boycott") count as
negations here, and reasons ("because …") are left out. With m(piece, answer) the mean, over the words of a piece, of
the highest cosine with a word of the answer (Khattab and Zaharia 2020), a statement's fit is

    Σ_pieces sign · (m − centre) / (scale · √pieces),

times its relevance, a ramp on the cosine of the statement with prompt and answer together; `declared_fit` is the sum
over the statements. An encoder that is slow compares sentences of the answer with whole pieces instead of words.
Diets and habits ("I'm vegan", "I travel by train") count as attitudes. Other statements without any word of attitude
("I live in Ulm"), and statements in other languages, are not read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from fitrouter.context.encoders import Encoder
from fitrouter.types import Floats
from fitrouter_evaluators.scoring.statements._polarity import Unit, has_attitude, units
from fitrouter_evaluators.scoring.statements._polarity_words import FUNCTION
from fitrouter_evaluators.scoring.statements._subject import WORD

_REFUSAL = re.compile(
    r"\b(?:refus(?:e|es|ed|ing)|declin(?:e|es|ed|ing)|boycott(?:s|ed|ing)?|aversions?|averse|phobias?|fears?|afraid"
    r"|scared|allerg(?:y|ies|ic)|intoleran(?:t|ce)|object(?:s|ed|ing)?|stay(?:ing)? away|steer(?:ing)? clear|against"
    r"|uncomfortable|uninterested|disinterested|reluctant|unable|unwilling)\b"
    r"(?: (?:to|of|from|with|in|about|towards?))*"
)
_REASON = re.compile(r"\b(?:because|since|due to|as it|as they|as i|so that)\b.*", re.DOTALL)
_HABIT = re.compile(
    r"\b(?:i|we)(?: (?:only|mostly|always|usually|strictly))? (?:eat|drink|cook|follow|keep|observe|commute|travel"
    r"|cycle|drive|wear|shop|watch|read|play|exercise|train|am on|'m on)\b"
)
"""What a person does is liked, where nothing else is said of it."""
_DIETS = tuple(
    (re.compile(rf"\b(?:{diet})\b"), wish)
    for diet, wish in (
        (r"vegetarians?", "like vegetarian. avoid meat or fish"),
        (r"vegans?|plant-based", "like vegan. avoid meat or fish or dairy or eggs"),
        (r"pesc[ea]tarians?", "like fish. avoid meat"),
        (r"halal", "like halal. avoid pork or alcohol"),
        (r"kosher", "like kosher. avoid pork or shellfish"),
        (r"co?eliacs?", "avoid gluten or wheat"),
        (r"teetotal(?:l?ers?)?", "avoid alcohol"),
        (r"diabetics?", "avoid sugar"),
    )
)
"""A diet → what it means, where a statement says no more of it."""
_FORM = re.compile(
    r"\b(?:answers?|answered|repl(?:y|ies)|respon(?:d|ses?)|write|output)\b.*\b(?:in|as) (?:\w+ )?"
    r"(?:html|xml|json|yaml|csv|latex|english|french|german|spanish|italian|portuguese|dutch|polish|russian|chinese|japanese|korean|arabic|hebrew)\b",
    re.IGNORECASE,
)
"""Forms and languages of answers, which no feature reads: a topic is compared with what answers are about."""
_SENTENCE = re.compile(r"[^.!?\n]+")

_WORDS, _SENTENCES = 400, 32
"""Most words or sentences of an answer that are compared."""
_RELEVANT = (0.1, 0.25)
"""Cosines between which relevance rises from 0 to 1: on 40 choices of our own a quarter of the statements that matter
lie below the second, and a quarter of the others above the first."""
_MATCH = {False: (0.43, 0.28), True: (0.42, 0.17)}
"""Slow encoder → centre and scale of m, from the same choices."""
_MOST = 3.0


def topic_units(statement: str) -> tuple[Unit, ...]:
    """Wanted and unwanted topics of a statement; empty if it has no attitude.

    >>> topic_units("I'm allergic to peanuts, because my body says so.")
    (Unit(text='peanuts', sign=-1.0),)
    >>> topic_units("I'm a teetotaller.")
    (Unit(text='alcohol', sign=-1.0),)
    >>> topic_units("I live in Ulm.")
    ()
    """
    text = _REFUSAL.sub("avoid", statement.replace("’", "'").lower())
    if not has_attitude(text):
        text = next((wish for diet, wish in _DIETS if diet.search(text)), _HABIT.sub("like", text))
    if not has_attitude(text):
        return ()
    core = _REASON.sub("", text)
    return (units(core) if has_attitude(core) else ()) or units(text)


def asks_for_form(statement: str) -> bool:
    """Whether a statement asks for a form or language of answers that nothing measures.

    >>> asks_for_form("I prefer answers in HTML"), asks_for_form("I cook in French")
    (True, False)
    """
    return _FORM.search(statement) is not None


class _Words:
    """Vectors of words, cached."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self.one = lru_cache(maxsize=1 << 14)(lambda word: encoder.encode([word])[0])

    def __call__(self, words: Sequence[str]) -> Floats:
        """Vectors of words, float64[n, dim]."""
        return np.array([self.one(word) for word in words]).reshape(len(words), self._encoder.dim)


_readers: dict[str, _Words] = {}


def _reader(encoder: Encoder) -> _Words:
    return _readers.setdefault(encoder.id, _Words(encoder))


def declared_fit(encoder: Encoder, prompt: str, answer: str, statements: Sequence[str]) -> float:
    """Fit of an answer to statements about topics, about unit scale; NaN if none is relevant."""
    slow = bool(getattr(encoder, "slow", False))
    read = [pieces for statement in statements if (pieces := topic_units(statement))]
    parts = _sentences(answer) if slow else _content(answer)
    if not read or not parts:
        return float("nan")
    wanted = [" ".join(piece.text for piece in pieces) for pieces in read]
    exchange, *about = encoder.encode([f"{prompt} {answer}", *wanted])
    low, high = _RELEVANT
    relevance = np.clip((np.array([float(vector @ exchange) for vector in about]) - low) / (high - low), 0.0, 1.0)
    if not relevance.any():
        return float("nan")
    encode = encoder.encode if slow else _reader(encoder)
    vectors = encode(parts)
    centre, scale = _MATCH[slow]
    total = 0.0
    for weight, pieces in zip(relevance, read, strict=True):
        for piece in pieces if weight else ():
            said = encode([piece.text] if slow else _content(piece.text) or [piece.text])
            match = float((said @ vectors.T).max(axis=1).mean())
            total += weight * piece.sign * (match - centre) / (scale * np.sqrt(len(pieces)))
    return float(np.clip(total, -_MOST, _MOST))


def _content(text: str) -> list[str]:
    """Different words with content of their own, in order."""
    found = dict.fromkeys(word for word in WORD.findall(text.lower()) if word not in FUNCTION)
    return list(found)[:_WORDS]


def _sentences(text: str) -> list[str]:
    return [part for found in _SENTENCE.findall(text) if (part := found.strip())][:_SENTENCES]
