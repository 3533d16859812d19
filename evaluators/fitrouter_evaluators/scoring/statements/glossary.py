"""English wording of short statements about style in German, French, Spanish and Chinese.

`data/glossary.json` has, for each language, words of style and of attitude beside the English ones that `_polarity` and
the corpus know, and words that say nothing (""). A statement is translated word for word, so that the scopes of
negation, which are the same in these languages for short statements, are read by the same grammar. It is closed: a
statement with one word that the glossary lacks, or with an ambiguous one ("?"), is not translated, as a missed negation
would move a taste to the wrong side. "~" stands for an ending of two letters at most.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from importlib import resources

import msgspec

from fitrouter_evaluators.scoring.text.lexicons import phrases
from fitrouter_evaluators.scoring.text.reading import SPACELESS

_AMBIGUOUS = "?"
_UNBOUND = re.compile(rf"^[^\w]|{SPACELESS.pattern}")
"""An entry that needs no boundaries of words around it."""
_LONGEST = 300
"""Most characters of a statement that is translated."""


@functools.cache
def _glossaries() -> tuple[tuple[re.Pattern[str], tuple[str, ...]], ...]:
    """For each language a pattern with a group for each entry, the longest first, and their English wordings."""
    payload = (resources.files("fitrouter_evaluators.scoring") / "data" / "glossary.json").read_bytes()
    out = []
    for entries in msgspec.json.decode(payload, type=dict[str, dict[str, str]]).values():
        each = [(word.replace("~", r"\w{0,2}"), english) for english, said in entries.items() for word in phrases(said)]
        each.sort(key=lambda entry: (entry[1] != _AMBIGUOUS, -len(entry[0])))
        parts = [f"({word})" if _UNBOUND.search(word) else rf"(\b{word}(?:(?<=')|\b))" for word, _ in each]
        out.append((re.compile("|".join(parts)), tuple(english for _, english in each)))
    return tuple(out)


def in_english(statement: str) -> str:
    """Translate a statement if the glossary of one language has every word of it; else return it unchanged.

    >>> in_english("Bitte keine langen Listen.")
    'no long lists .'
    >>> in_english("Bitte keine Kreuzfahrten.")
    'Bitte keine Kreuzfahrten.'
    """
    if len(statement) > _LONGEST:
        return statement
    text = unicodedata.normalize("NFKC", statement).replace("’", "'").lower()
    for pattern, wordings in _glossaries():
        if any(map(str.isalpha, pattern.sub("", text))):
            continue
        said, end = [], 0
        for found in pattern.finditer(text):
            said += [text[end : found.start()], wordings[(found.lastindex or 1) - 1]]
            end = found.end()
        if said and _AMBIGUOUS not in said[1::2]:
            return " ".join(" ".join([*said, text[end:]]).split())
    return statement
