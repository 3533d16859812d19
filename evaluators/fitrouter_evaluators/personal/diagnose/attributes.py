"""Lasting attributes that people state of themselves in conversations, in English, German and Spanish.

A sentence is read clause by clause. A clause states an attribute if it has a phrase of a kind (`phrases`) and speaks of
its writer, or of their household ("our son is allergic to nuts"), as things are. It states none about others ("my boss
is vegan"), in quotes or code, in play ("imagine I were"), as a question, a wish or a joke. "I'm no longer", "ya no",
"nicht mehr" and denials retract what was stated before. In English, a classifier (`kinds`) also reads plain statements
of the first person that have no such phrase.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np

from fitrouter.context.encoders import Encoder
from fitrouter.types import Floats
from fitrouter_evaluators.personal.diagnose.clauses import (
    HABIT_KIND,
    KINDS,
    STYLE_KIND,
    TASTE_KIND,
    Clause,
    Scan,
    outputs,
    parts,
    rules_of,
)
from fitrouter_evaluators.personal.diagnose.kinds import NONE, Classifier, content, corpus, same
from fitrouter_evaluators.personal.diagnose.phrases import (
    LANGUAGES,
    language,
    sentences,
    unquoted,
)
from fitrouter_evaluators.scoring.statements.declared import DeclaredValues
from fitrouter_evaluators.scoring.statements.topics import topic_units

_STATES = 0.6
"""Log odds of the classifier of clauses from which one states something; on `fresh.jsonl`, and on planted histories."""
_LASTING = 0.3
"""Output of the classifier from which a statement is of a kind; on statements of our own."""
_NEAR = 0.6
"""Cosine of words from which they may mean the same."""
_UNSURE = ("other", "block", "ask", "neg", "past", "quit", "end", "moment")
"""Marks of clauses that the classifier of kinds does not read."""
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


@dataclass
class _Draft:
    """What was read of a message so far."""

    text: str
    language: str
    attributes: list[Attribute]
    retracted: list[Retraction]
    other: list[tuple[str, ...]]
    classified: int = 0
    spans: list[tuple[int, int]] = field(default_factory=list)
    """Where the attributes are in the text."""


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
        rules, third = rules_of(name), "other"
        clauses: list[Clause] = []
        draft = _Draft(text, name, [], [], [content(each) for each in quoted])
        for number, sentence in enumerate(sentences(text, rules.expand)):
            scan = Scan(sentence, rules, third)
            clauses += parts(scan, sentence, text, number)
            if scan.has("play"):
                draft.other.append(scan.content())
            elif len(draft.attributes) < _MOST:
                self._sentence(scan, draft)
            third = scan.third
        self._classified(draft, clauses)
        return StatedAttributes(
            attributes=tuple(draft.attributes),
            retracted=tuple(draft.retracted),
            other=tuple(word for each in draft.other for word in each),
            language=name,
        )

    def _sentence(self, scan: Scan, draft: _Draft) -> None:
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

    def _add(self, draft: _Draft, scan: Scan, clause: int | None, kind: str, against: bool = False) -> None:
        """Add the attribute that a clause states; without a clause, the sentence."""
        start, end = scan.span(clause)
        draft.spans.append((start, end))
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

    def _classified(self, draft: _Draft, clauses: list[Clause]) -> None:
        """Add what the classifier reads in clauses in which rules read nothing."""
        read = {start for each in draft.spans for start in range(*each)}
        for clause, row in zip(clauses, outputs(clauses), strict=True):
            new = not clause.play and read.isdisjoint((clause.start, clause.start + len(clause.text) - 1))
            if row[0] < _STATES or not new or (clause.denied and not clause.kinds) or len(draft.attributes) >= _MOST:
                continue
            kind = clause.kinds[0] if clause.kinds else KINDS[int(row[2:].argmax())]
            known = corpus().kinds.get(kind)
            sensitive = known is not None and known.sensitive if clause.kinds else bool(row[1] > 0.0)
            draft.attributes.append(
                Attribute(
                    text=clause.text, kind=kind, sensitive=sensitive, against=False, words=clause.content or (kind,)
                )
            )

    def _english(self, scan: Scan, draft: _Draft, read: set[int]) -> list[tuple[int, str]]:
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
