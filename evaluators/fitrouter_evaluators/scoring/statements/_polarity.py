"""Content of a stated preference, and whether it is for or against it.

`units` reads one English statement into signed pieces of content: `Unit("bullet lists", -1)`. Words of attitude
("hate", "skip", "no", "instead of", "get on my nerves") set the sign and are taken out, so that a statement and its
negation have the same content and opposite signs. The rules are scopes, not counts of negative words:

- a flip ("not", "avoid", "without") turns what follows it in its clause; with nothing after it, what precedes
  it ("examples are not for me"); two of them cancel ("don't skip the numbers");
- a complaint after its object ("lists annoy me") turns the clause;
- excess ("too", "overly", "endless") is against its object whatever precedes it ("not too long");
- contrast ("rather than", "instead of", "over", "than") turns what follows it against the clause's own sign;
- a clause ends at punctuation, at a conjunction, and before a new command ("don't hedge and give me numbers").

The scopes follow the negation rules of Chapman et al. 2001 (NegEx), with the vocabulary of preferences.
"""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple

from fitrouter_evaluators.scoring.statements import _polarity_words as words


class Unit(NamedTuple):
    """A piece of content and its sign, +1 (for) or −1 (against)."""

    text: str
    sign: float


_TOKEN = re.compile(r"[A-Z]+\b|[^\W_]+(?:[-'][^\W_]+)*|[.!?;:,/()]|\S")
_CUTS = frozenset(".!?;:()—–…")
_LONGEST, _TOKENS = 1000, 256
"""Most characters, after normalisation, and tokens that are read: finding clauses is quadratic in their number."""
_FLIP, _AGAINST, _EXCESS, _CONTRAST, _FOR, _CUT, _SKIP = "FLIP", "AGAINST", "EXCESS", "CONTRAST", "FOR", "CUT", "SKIP"


def units(statement: str) -> tuple[Unit, ...]:
    """Signed pieces of content of a statement, in order.

    >>> units("Don't hedge; be direct.")
    (Unit(text='hedge', sign=-1.0), Unit(text='direct', sign=1.0))
    >>> units("I'd rather have short replies than never get to see an example.")
    (Unit(text='short', sign=1.0), Unit(text='example', sign=1.0))
    """
    found: list[Unit] = []
    for clause in _clauses(_marked(statement)):
        found.extend(_read(clause))
    return tuple(found)


def has_attitude(statement: str) -> bool:
    """Whether a statement expresses a like or dislike."""
    return not {_FLIP, _AGAINST, _EXCESS, _CONTRAST, _FOR}.isdisjoint(_marked(statement))


def _marked(statement: str) -> list[str]:
    """Lower-case tokens, with expressions of attitude replaced by upper-case marks."""
    text = unicodedata.normalize("NFKC", statement[:_LONGEST])[:_LONGEST].replace("’", "'").lower()
    for pattern, mark in words.REWRITES:
        text = pattern.sub(mark, text)
    tokens: list[str] = _TOKEN.findall(text)
    return [words.MARKS.get(token, token) for token in tokens[:_TOKENS]]


def _clauses(tokens: list[str]) -> list[list[str]]:
    """Split tokens into clauses, within which an expression of attitude applies."""
    out: list[list[str]] = [[]]
    skipping = False
    for i, token in enumerate(tokens):
        if token in _CUTS or token == _CUT or (token in {",", "and", "then"} and _starts_clause(tokens, i)):
            out.append([])
            skipping = False
        elif token == _SKIP:
            skipping = True
        elif not skipping:
            out[-1].append(token)
    return [clause for clause in out if clause]


def _starts_clause(tokens: list[str], i: int) -> bool:
    """Whether a new clause begins after the comma or conjunction at i."""
    rest = tokens[i + 1 :]
    while rest and rest[0] in words.LEADS:
        rest = rest[1:]
    if not rest:
        return False
    if rest[0] in words.SUBJECTS or rest[0] in words.COMMANDS:
        return True
    if tokens[i] == ",":
        # "no lists, short replies" starts anew; "no lists, tables or headings" and "I hate lists, tables" go on.
        ended = any(token in _CUTS or token == _CUT for token in rest)
        scope = rest[: next(k for k, token in enumerate(rest) if token in _CUTS or token == _CUT)] if ended else rest
        return rest[0] in {_FLIP, _FOR, _EXCESS} or (_opens_with_no(tokens, i) and "or" not in scope)
    behind = next((token for token in tokens[i + 1 :] if token == _FOR or token not in words.LEADS), "")
    return behind in {_FLIP, _FOR, _EXCESS} and any(map(_content, rest))


def _opens_with_no(tokens: list[str], i: int) -> bool:
    """Whether the clause before i is only a negation and its object ("no lists")."""
    start = next((k + 1 for k in range(i - 1, -1, -1) if tokens[k] in _CUTS or tokens[k] in {",", _CUT}), 0)
    return i > start and tokens[start] == _FLIP and not any(t in words.SUBJECTS for t in tokens[start:i])


def _content(token: str) -> bool:
    return token[0].isalnum() and not token.isupper() and token not in words.FUNCTION


def _read(clause: list[str]) -> list[Unit]:
    """The units of one clause."""
    sign, base, excess, last, trailing = 1.0, 1.0, False, False, False
    runs: list[tuple[float, bool, list[str]]] = []
    pending = 1.0  # flips since the last content: they reverse an AGAINST, or, with nothing after them, the clause
    for i, token in enumerate(clause):
        if token == _FLIP and runs and i > 1 and clause[i - 1] in words.AUXILIARIES and _content(clause[i - 2]):
            runs = [(-s, e, w) for s, e, w in runs]  # "lists do not belong here" denies its subject
            sign, last = -sign, False
        elif token == _FLIP:
            sign, pending, last = -sign, -pending, False
        elif token == _EXCESS:
            excess, trailing, last = True, True, False
        elif token == _CONTRAST:
            sign, excess, last, pending = -base, False, False, 1.0
        elif token == _AGAINST:
            if runs:
                turn = -pending
                runs = [(s * turn, e, w) for s, e, w in runs]
            sign, pending, last = (sign * pending if runs else -sign), 1.0, False
        elif _content(token):
            if last:
                runs[-1][2].append(token)
            else:
                runs.append((sign, excess, [token]))
            base = base if len(runs) > 1 else sign
            last, pending, trailing = True, 1.0, False
        elif token in words.JOINS:
            last = False
    if trailing:  # "you hedge too much"
        runs = [(s, True, w) for s, _, w in runs]
    if pending < 0.0:  # a flip with nothing after it
        runs = [(-s, e, w) for s, e, w in runs]
    return [Unit(" ".join(w), -1.0 if e else s) for s, e, w in runs]
