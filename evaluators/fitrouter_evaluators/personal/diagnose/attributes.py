"""Lasting attributes that people state of themselves in conversations, in English, German and Spanish.

A sentence is read clause by clause. A clause states an attribute if it has a phrase of a kind (`phrases`) and speaks of
its writer, or of their household ("our son is allergic to nuts"), as things are. It states none about others ("my boss
is vegan"), in quotes or code, in play ("imagine I were"), as a question, a wish or a joke. "I'm no longer", "ya no",
"nicht mehr" and denials retract what was stated before. In English, a classifier (`kinds`) also reads plain statements
of the first person that have no such phrase.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np

from fitrouter.context.encoders import Encoder
from fitrouter.types import Floats
from fitrouter_evaluators.personal.diagnose.kinds import NONE, Classifier, content, corpus, same
from fitrouter_evaluators.personal.diagnose.phrases import (
    LANGUAGES,
    Found,
    Phrases,
    Sentence,
    language,
    sentences,
    spoken,
    unquoted,
)
from fitrouter_evaluators.scoring.statements.declared import DeclaredValues
from fitrouter_evaluators.scoring.statements.topics import topic_units
from fitrouter_evaluators.scoring.text.lexicons import phrases

STYLE_KIND, TASTE_KIND, HABIT_KIND = "style", "taste", "habit"
_LASTING = 0.3
"""Output of the classifier from which a statement is of a kind; on statements of our own."""
_NEAR = 0.6
"""Cosine of words from which they may mean the same."""
_UNSURE = ("other", "block", "ask", "neg", "past", "quit", "end", "moment")
"""Marks of clauses that the classifier of kinds does not read."""
_REACH = 4
"""Words from a denial to what it denies."""
_CHARACTERS = 100_000
"""Of a message, that are read; a longer one is a document."""
_MOST, _STANDING = 100, 500
"""Most attributes, and clauses for the classifier, of a message; most standing ones of a person."""

_OWN = (
    r"(?:husband|wife|spouse|partner|boyfriend|girlfriend|kids?|children|sons?|daughters?|twins|baby|toddlers?"
    r"|family|dogs?|cats?|puppy|kitten|horse|rabbits?|parrot|job|profession|home|hometown|house|flat|plants?|apartment"
    r"|garden|balcony|knees?|budget|language|tongue|diet|religion|faith|diagnosis|backend|stack|genre|author|band|hobby"
    r"|passion|sport|career|allergy|condition)"
)
_STATED = re.compile(
    rf"\b(?:i|we) \w|\b(?:my|our) (?:\w+ ){{0,2}}?{_OWN}\b \w+|\b(?:my|our) favou?rite\b"
    r"|\bfor me\b|^(?:as|being) an? \w+|\bmakes me sick\b"
)
_MOMENT = re.compile(
    r"\b(?:today|tonight|tomorrow|yesterday|right now|at the moment|this (?:morning|afternoon|week|weekend|evening|time"
    r"|month|question|email|essay|answer|text|one|page|chapter|file|script)|for now|just now|so far|last (?:night|week"
    r"|month)|next (?:week|month|weekend)|hungry|tired|stuck|confused|(?:am|are) (?:\w+ )?(?:trying|looking|going"
    r"|planning|wondering|writing|reading|thinking|preparing|about|getting|curious|sure|sorry"
    r"|afraid that|glad|working on)"
    r"|(?:said|told|joked|joking|kidding|wrote|mistyped|meant)\b|want to|would like|need (?:a|an|to|some|help|your)"
    r"|have (?:a|another|one|some) (?:question|problem|idea|meeting"
    r"|deadline|doubt|bug|error|call|moment)|have to|got a|an error|left in)\b"
)
_AGAINST = re.compile(
    r"\b(?:not|never|avoid|hate|dislike|loathe|detest|allergic|allergy|intolerant|intolerance|refuse|fear|afraid|scared"
    r"|dread|without|steer clear|stay away|no|sick|react|gave up|quit|stopped|given up|free)\b"
)
_TASTE = re.compile(
    r"\b(?:i|we) (?:\w+ )?(?:love|adore|hate|dislike|detest|despise|loathe|prefer|avoid|enjoy"
    r"|do not (?:\w+ )?(?:like|enjoy)"
    r"|can not stand|am (?:\w+ )?(?:fond of|into|not into|averse to))\b(?! (?:the|this|that|it|your|these|those)\b)"
)
"""A taste for something of no known kind."""


class Attribute(msgspec.Struct, frozen=True, kw_only=True):
    """A lasting attribute that a person stated of themselves."""

    text: str
    """The clause that states it, as it was written."""
    kind: str
    sensitive: bool
    against: bool
    """Whether it rules its words out ("I don't eat meat")."""
    words: tuple[str, ...]
    style: dict[str, float] = {}
    """Style dimension → wanted side, of a statement about the style of answers."""


class Retraction(NamedTuple):
    """A retracted attribute: the words and kind of what no longer holds; without words, all attributes of the kind."""

    words: tuple[str, ...]
    kind: str


class StatedAttributes(msgspec.Struct, frozen=True, kw_only=True):
    """Attributes stated and retracted in one message."""

    attributes: tuple[Attribute, ...] = ()
    retracted: tuple[Retraction, ...] = ()
    other: tuple[str, ...] = ()
    """Words about other people, quoted, or in play."""
    language: str = "English"
    read: bool = True
    """Whether messages in its language are read."""


_SUBJECTS = ("you", "self", "mine", "thing", "house", "pronoun", "other", "none")
_PASSING = frozenset(("habit", "taste", "craft", "sport", "home", "diet", "journeys", "reading", "garden"))
"""Kinds that a word such as "today" makes no attribute."""


class _Rules(NamedTuple):
    phrases: Phrases
    joins: frozenset[str]
    expand: dict[str, str]


class _Scan:
    """One sentence, with who is spoken of at each word, and what holds in each clause."""

    def __init__(self, sentence: Sentence, known: _Rules, third: str = "other") -> None:
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
def _rules(name: str) -> _Rules:
    known = spoken(name)
    named = {f"m:{mark}": text for mark, text in known.markers.items()} | {"s:": known.style}
    named |= {f"e:{kind}": text for kind, text in known.ends.items()}
    for kind, roles in known.kinds.items():
        named |= {f"k:{kind}:{role}": text for role, text in roles.items()}
    return _Rules(Phrases(named, known.sets), frozenset(phrases(known.joins)), known.expand)


@dataclass
class _Draft:
    """What was read of a message so far."""

    text: str
    language: str
    attributes: list[Attribute]
    retracted: list[Retraction]
    other: list[tuple[str, ...]]
    classified: int = 0


class Reader:
    """Reads stated attributes from messages. Thread-safe.

    Args:
        encoder: of sentences and words.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        found = corpus()
        self._kinds = Classifier(
            encoder, {name: kind.statements for name, kind in found.kinds.items()} | {NONE: found.none}
        )
        self._declared = DeclaredValues(encoder)

    def read(self, message: str) -> StatedAttributes:
        """Find the attributes that a message states or retracts of its author."""
        name = language(message)
        if name not in LANGUAGES:
            return StatedAttributes(language=name, read=False)
        text, quoted = unquoted(message[:_CHARACTERS])
        rules, third = _rules(name), "other"
        draft = _Draft(text, name, [], [], [content(each) for each in quoted])
        for sentence in sentences(text, rules.expand):
            scan = _Scan(sentence, rules, third)
            if scan.has("play"):
                draft.other.append(scan.content())
            elif len(draft.attributes) < _MOST:
                self._sentence(scan, draft)
            third = scan.third
        return StatedAttributes(
            attributes=tuple(draft.attributes),
            retracted=tuple(draft.retracted),
            other=tuple(word for each in draft.other for word in each),
            language=name,
        )

    def _sentence(self, scan: _Scan, draft: _Draft) -> None:
        """Add to the draft what a sentence states and retracts."""
        draft.retracted += [Retraction((), each.name[2:]) for each in scan.found if each.name.startswith("e:")]
        for each in scan.marks.get("end", ()):
            if scan.subject[each.start] == "self":
                draft.retracted.append(Retraction(scan.content(scan.clause[each.start]), ""))
        styled = scan.has("style") and any(each.name == "s:" for each in scan.found)
        if styled:
            self._add(draft, scan, None, STYLE_KIND)
        kinds: dict[tuple[int, str], bool] = {}
        for each in scan.found:
            if not each.name.startswith("k:"):
                continue
            kind, role = each.name[2:].split(":")
            clause = scan.clause[each.start]
            if scan.has("end", clause) or (role == "self" and scan.denied(each)):
                if scan.subject[each.start] != "other":
                    draft.retracted.append(Retraction(scan.content(clause), kind))
            elif scan.states(each, role):
                kinds[clause, kind] = role == "free" or kinds.get((clause, kind), False)
        if draft.language == "English" and not styled:
            kinds |= dict.fromkeys(self._english(scan, draft, {clause for clause, _ in kinds}), False)
        for (clause, kind), against in kinds.items():
            if kind not in (HABIT_KIND, TASTE_KIND) or not any(c == clause and k != kind for c, k in kinds):
                self._add(draft, scan, clause, kind, against)
        draft.other += [scan.content(clause) for clause in set(scan.clause) if scan.last(clause) == "other"]

    def _add(self, draft: _Draft, scan: _Scan, clause: int | None, kind: str, against: bool = False) -> None:
        """Add the attribute that a clause states; without a clause, the sentence."""
        start, end = scan.span(clause)
        text, part, style = draft.text[start:end], scan.part(clause), {}
        words = scan.content(clause) or scan.content() or (kind,)
        if draft.language == "English":
            against = against or _AGAINST.search(part) is not None
            if kind == STYLE_KIND:
                taste = self._declared.read(text)
                style = {each: float(np.sign(belief.mean)) for each, belief in taste.values.items()}
            elif against and (pieces := topic_units(part)):
                unwanted = [word for piece in pieces if piece.sign < 0 for word in content(piece.text)]
                words = tuple(dict.fromkeys(unwanted)) or words
        known = corpus().kinds.get(kind)
        sensitive = known is not None and known.sensitive
        draft.attributes.append(
            Attribute(text=text, kind=kind, sensitive=sensitive, against=against, words=words, style=style)
        )

    def _english(self, scan: _Scan, draft: _Draft, read: set[int]) -> list[tuple[int, str]]:
        """Clauses of plain statements of the first person that the classifier of kinds knows, and their kinds."""
        found: list[tuple[int, str]] = []
        if scan.has("joke") or scan.asked is not None:
            return found
        for clause in sorted(set(scan.clause) - read):
            part = scan.part(clause)
            unsure = any(scan.has(mark, clause) for mark in _UNSURE)
            if unsure or not _STATED.search(part) or _MOMENT.search(part) or draft.classified >= _MOST:
                continue
            draft.classified += 1
            kind = self.kind(part)
            if kind == NONE and _TASTE.search(part):
                kind = TASTE_KIND
            if kind != NONE:
                found.append((clause, kind))
        return found

    def kind(self, text: str) -> str:
        """Classify the kind of attribute that a first-person text states; `NONE` if it states none."""
        outputs = self._kinds([text])[0]
        return NONE if outputs.max() < _LASTING else self._kinds.names[int(outputs.argmax())]


class Memory:
    """Attributes that a person has stated so far: standing ones and retracted ones."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self.standing: list[Attribute] = []
        self.retracted: list[Attribute] = []
        self.denied: set[str] = set()
        """Words that were said to hold no more, or of others."""
        self.said: set[str] = set()
        """Words of all messages."""

    def add(self, message: str, said: StatedAttributes) -> None:
        """Update the memory with the attributes stated and retracted in a message."""
        for words, kind in said.retracted:
            of_kind = [each for each in self.standing if each.kind == kind]
            gone = [each for each in of_kind if _alike(self._encoder, words, each.words)]
            gone = gone or [each for each in self.standing if same(words, each.words)]
            gone = gone or (of_kind if not words or len(of_kind) == 1 else [])
            self.retracted += gone
            self.standing = [each for each in self.standing if each not in gone]
            self.denied.update(words, *(each.words for each in gone))
        self.denied.update(said.other)
        for each in said.attributes:
            if len(self.standing) < _STANDING and not any(
                old.kind == each.kind and same(old.words, each.words) for old in self.standing
            ):
                self.standing.append(each)
            self.denied -= set(each.words)
        self.said.update(content(message[:_CHARACTERS]))


def _alike(encoder: Encoder, one: Sequence[str], other: Sequence[str]) -> bool:
    if not one or not other:
        return False
    if same(one, other):
        return True
    return float(cosines(encoder, one, other).max()) >= _NEAR


def cosines(encoder: Encoder, one: Sequence[str], other: Sequence[str]) -> Floats:
    """Cosine similarities of two lists of words, float64[len(one), len(other)]."""
    found: Floats = encoder.encode(list(one)) @ encoder.encode(list(other)).T
    return found
