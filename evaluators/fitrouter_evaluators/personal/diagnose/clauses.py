"""Clauses of a message, and a linear classifier of them.

A clause is seen as words, pairs and parts of words, the words of its neighbours, marks of punctuation, and the phrases
of `english.json`, `german.json` and `spanish.json` that are in it. These features are hashed to rows of `clauses.npy`,
int8[buckets + 1, outputs] with the intercepts last, whose sums are log odds: that it states something lasting, that
this is sensitive, and its kind. `python -m benchmarks.training.clauses` makes the file.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fitrouter.types import Floats
from fitrouter_evaluators.personal.diagnose.kinds import content, corpus
from fitrouter_evaluators.personal.diagnose.phrases import Found, Phrases, Sentence, sentences, spoken, unquoted
from fitrouter_evaluators.scoring.text.lexicons import phrases

STYLE_KIND, TASTE_KIND, HABIT_KIND = "style", "taste", "habit"
BUCKETS, SCALE = 1 << 14, 0.015
"""Rows of the table, and what 1 in it adds to the log odds."""
KINDS = (*corpus().kinds, STYLE_KIND)
_SUBJECTS = ("you", "self", "mine", "thing", "house", "pronoun", "other", "none")
_PASSING = frozenset(("habit", "taste", "craft", "sport", "home", "diet", "journeys", "reading", "garden"))
"""Kinds that a word such as "today" makes no attribute."""
_REACH = 4
"""Words from a denial to what it denies."""
_LONGEST = 24
"""Letters of a word of which parts are features."""


class Rules(NamedTuple):
    """Phrases of a language, ready to be found."""

    phrases: Phrases
    joins: frozenset[str]
    expand: dict[str, str]


@dataclass(frozen=True)
class Clause:
    """A clause of a message."""

    text: str
    """As it was written."""
    start: int
    words: tuple[str, ...]
    found: frozenset[str]
    """Names of the phrases in it."""
    kinds: tuple[str, ...]
    """Kinds of which phrases are in it that are not denied."""
    free: frozenset[str]
    """Kinds whose phrases rule something out."""
    denied: tuple[str, ...]
    ended: tuple[str, ...]
    """Kinds of which nothing holds any more."""
    subjects: tuple[str, str]
    """Who is spoken of at its start and end."""
    play: bool
    joke: bool
    asks: bool
    after: str
    """The mark of punctuation that follows."""
    sentence: int

    @property
    def plain(self) -> str:
        """Its words in lower case."""
        return " ".join(self.words)

    @property
    def content(self) -> tuple[str, ...]:
        """Its content words."""
        return content(self.plain)

    @property
    def other(self) -> bool:
        """Whether it ends about somebody else."""
        return self.subjects[1] == "other"


class Scan:
    """One sentence, with who is spoken of at each word, and what holds in each clause."""

    def __init__(self, sentence: Sentence, known: Rules, third: str = "other") -> None:
        self.words = sentence.words
        self.texts = [word.text for word in sentence.words]
        found = known.phrases.find(self.texts)
        self.found = [each for each in found if self.words[each.start].segment == self.words[each.end - 1].segment]
        self.clause = self._clauses(known.joins)
        self.marks: dict[str, list[Found]] = {}
        for each in self.found:
            if each.name.startswith("m:"):
                self.marks.setdefault(each.name[2:], []).append(each)
        self.third = third
        self.subject = self._subjects()
        self.asked = sentence.asks

    def _clauses(self, joins: frozenset[str]) -> list[int]:
        found, number = [], 0
        for i, word in enumerate(self.words):
            if i and (word.segment != self.words[i - 1].segment or word.text in joins):
                number += 1
            found.append(number)
        return found

    def _subjects(self) -> list[str]:
        firsts = {each.start for each in self.marks.get("drop", ())}
        at: dict[int, Found] = {}
        for each in (each for name in _SUBJECTS for each in self.marks.get(name, ())):
            if each.start not in at or each.end > at[each.start].end:
                at[each.start] = each
        subjects, subject, past = [], "", 0
        for i in range(len(self.words)):
            mark = at.get(i)
            if mark and i >= past:
                past = mark.end
                subject = self._spoken_of(mark.name[2:], subject)
            if not subject and i in firsts and (not i or self.clause[i] != self.clause[i - 1]):
                subject = "self"
            subjects.append(subject)
        return subjects

    def _spoken_of(self, name: str, subject: str) -> str:
        if name == "house":
            self.third = subject = "self"
        elif name == "other":
            self.third = subject = "other"
        elif name == "pronoun":
            subject = self.third
        elif name in ("self", "mine"):
            subject = "self"
        elif name != "none":
            subject = name
        return subject

    def has(self, name: str, clause: int | None = None, before: int | None = None) -> bool:
        """Whether a mark is in the sentence, in a clause of it, or there before a word."""
        return any(
            (clause is None or self.clause[each.start] == clause) and (before is None or each.start < before)
            for each in self.marks.get(name, ())
        )

    def last(self, clause: int) -> str:
        """Who is spoken of at the end of a clause."""
        return next(s for s, c in zip(reversed(self.subject), reversed(self.clause), strict=True) if c == clause)

    def span(self, clause: int | None) -> tuple[int, int]:
        """Where a clause, or the sentence, begins and ends in the text."""
        own = [word for word, c in zip(self.words, self.clause, strict=True) if clause in (None, c)]
        return own[0].start, own[-1].end

    def part(self, clause: int | None) -> str:
        """The plain words of a clause, or of the sentence."""
        return " ".join(text for text, c in zip(self.texts, self.clause, strict=True) if clause in (None, c))

    def content(self, clause: int | None = None) -> tuple[str, ...]:
        """Content words of a clause, or of the sentence."""
        return content(self.part(clause))

    def denied(self, found: Found) -> bool:
        """Whether a phrase is denied: by a word in it or shortly before it, or, in its clause, shortly after."""
        clause = self.clause[found.start]
        near = [
            *(
                each
                for each in self.marks.get("neg", ())
                if each.start < found.end and found.start <= each.end + _REACH
            ),
            *(each for each in self.marks.get("after", ()) if found.end <= each.start <= found.end + _REACH),
        ]
        return any(self.clause[each.start] == clause for each in near)

    def states(self, found: Found, role: str) -> bool:
        """Whether the phrase of a kind states something lasting of the writer."""
        clause = self.clause[found.start]
        if (
            self.has("play")
            or self.has("joke")
            or (role != "event" and (self.has("past", clause) or (role == "self" and self.has("quit", clause))))
        ):
            return False
        if role in ("own", "event"):
            return role == "own" or self.subject[found.start] != "other"
        asks = self.asked is not None and self.words[found.start].segment >= self.asked
        if (asks and self.has("ask", clause, found.start + 1)) or self.has("block", clause, found.start):
            return False
        kind = found.name.split(":")[1]
        if kind in _PASSING and self.has("moment", clause):
            return False
        if kind == HABIT_KIND and not any(self.has(name, clause) for name in ("self", "mine", "drop")):
            return False
        subject = self.subject[found.start]
        if role == "free":
            return subject in ("", "self")
        return "self" in (subject, self.subject[found.end - 1]) or (
            subject != "other"
            and any(
                self.clause[each.start] == clause and each.start >= found.end for each in self.marks.get("self", ())
            )
        )


@functools.cache
def rules_of(name: str) -> Rules:
    """Load the phrases of a language."""
    known = spoken(name)
    named = {f"m:{mark}": text for mark, text in known.markers.items()} | {"s:": known.style}
    named |= {f"e:{kind}": text for kind, text in known.ends.items()}
    for kind, roles in known.kinds.items():
        named |= {f"k:{kind}:{role}": text for role, text in roles.items()}
    return Rules(Phrases(named, known.sets), frozenset(phrases(known.joins)), known.expand)


def scanned(message: str, name: str) -> tuple[list[Clause], list[str]]:
    """Split a message in a language into clauses; and its quotations, which are in none."""
    text, quoted = unquoted(message)
    rules, third = rules_of(name), "other"
    found: list[Clause] = []
    for number, sentence in enumerate(sentences(text, rules.expand)):
        scan = Scan(sentence, rules, third)
        third = scan.third
        found += parts(scan, sentence, text, number)
    return found, quoted


def parts(scan: Scan, sentence: Sentence, text: str, number: int) -> Iterator[Clause]:
    """The clauses of a sentence."""
    bounds = [i for i, clause in enumerate(scan.clause) if not i or clause != scan.clause[i - 1]]
    inside: list[list[Found]] = [[] for _ in bounds]
    for each in scan.found:
        inside[scan.clause[each.start]].append(each)
    for (first, past), own in zip(pairwise([*bounds, len(scan.words)]), inside, strict=True):
        names = frozenset(each.name for each in own)
        split = [(each, each.name.split(":")) for each in own if each.name.startswith("k:")]
        of_kind = [(each, kind, role) for each, (_, kind, role) in split]
        ended = "m:end" in names
        denied = {
            kind
            for each, kind, role in of_kind
            if (ended or (role == "self" and scan.denied(each))) and scan.subject[each.start] != "other"
        }
        if any(each.name == "m:end" and scan.subject[each.start] == "self" for each in own):
            denied.add("")
        kinds = dict.fromkeys(kind for each, kind, role in of_kind if kind not in denied)
        kinds |= dict.fromkeys(("style",)) if "s:" in names and "style" in scan.marks else {}
        start, end = scan.words[first].start, scan.words[past - 1].end
        yield Clause(
            text=text[start:end],
            start=start,
            words=tuple(scan.texts[first:past]),
            found=names,
            kinds=tuple(kind for kind in kinds if kind not in ("habit", "taste")) or tuple(kinds),
            free=frozenset(kind for _, kind, role in of_kind if role == "free"),
            denied=tuple(sorted(denied)),
            ended=tuple(each.name[2:] for each in own if each.name.startswith("e:")),
            subjects=(scan.subject[first], scan.subject[past - 1]),
            play="play" in scan.marks,
            joke="joke" in scan.marks,
            asks=sentence.asks is not None and scan.words[past - 1].segment >= sentence.asks,
            after=text[end : end + 2].strip()[:1],
            sentence=number,
        )


def features(clauses: Sequence[Clause], at: int) -> Iterator[str]:
    """What is seen of a clause among those of its message."""
    clause = clauses[at]
    for word in clause.words:
        yield f"w{word}"
        part = f"^{word[:_LONGEST]}$"
        for n in (3, 4, 5):
            yield from (f"c{part[i : i + n]}" for i in range(len(part) - n + 1))
    yield from (f"b{one} {two}" for one, two in pairwise(("^", *clause.words, "$")))
    marks = sorted(name for name in clause.found if name.startswith("m:"))
    yield from (f"r{name}" for name in clause.found)
    yield from (f"role{name.split(':')[2]}" for name in clause.found if name.startswith("k:"))
    yield from (f"m{mark}{bool(clause.kinds)}" for mark in marks)
    yield from (f"p{one} {two}" for one, two in combinations(marks, 2))
    yield f"kinds{bool(clause.kinds)}{clause.subjects}"
    yield from (f"subject{i}{each}" for i, each in enumerate(clause.subjects))
    yield from (f"after{clause.after}", f"asks{clause.asks}", f"play{clause.play}", f"joke{clause.joke}")
    yield from (
        f"of{min(len(clauses), 6)}",
        f"first{not at}",
        f"last{at == len(clauses) - 1}",
        f"words{min(len(clause.words), 12)}",
    )
    yield from (f"begin{word}" for word in clauses[0].words[:3])
    for side in (at - 1, at + 1):
        if not 0 <= side < len(clauses):
            yield f"n{side - at}none"
            continue
        near = clauses[side]
        place = f"n{side - at}{near.sentence == clause.sentence}"
        yield f"{place}after{near.after}"
        yield from (f"{place}{word}" for word in near.words)
        yield from (f"{place}r{name}" for name in near.found)


def buckets(clauses: Sequence[Clause]) -> list[list[int]]:
    """The rows of the table for each clause."""
    return [sorted({_bucket(each) for each in features(clauses, i)}) for i in range(len(clauses))]


def _bucket(feature: str) -> int:
    # CRC is linear over GF(2): a multiplication mixes its bits before the bucket is taken from it.
    return (zlib.crc32(feature.encode("utf-8", "replace")) * 0x9E3779B97F4A7C15 >> 32) % BUCKETS


@functools.cache
def _table() -> NDArray[np.int8]:
    with (resources.files("fitrouter_evaluators.personal.diagnose") / "clauses.npy").open("rb") as file:
        table: NDArray[np.int8] = np.load(file, allow_pickle=False)
    return table


def outputs(clauses: Sequence[Clause]) -> Floats:
    """Log odds for each clause that it states something lasting, that this is sensitive, and of each kind."""
    table = _table()
    found = np.empty((len(clauses), table.shape[1]))
    for row, rows in zip(found, buckets(clauses), strict=True):
        row[:] = table[[*rows, BUCKETS]].sum(axis=0, dtype=np.int64)
    return SCALE * found
