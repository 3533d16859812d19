"""Lasting attributes that people state of themselves in conversations.

A sentence of a user states an attribute if it says in the first person what they are, have or do in general, and the
classifier of kinds (`kinds`) finds a kind for it. Sentences about this moment ("tonight", "I'm looking for"), about
others ("my boss is vegan"), in quotes or code, or in play ("imagine I were") state none. "I'm no longer", "I gave up"
and "I'm not" retract what was stated before.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from fitrouter.context.encoders import Encoder
from fitrouter.types import Floats
from fitrouter_evaluators.personal.diagnose.kinds import NONE, Classifier, content, corpus, same
from fitrouter_evaluators.scoring.statements.declared import DeclaredValues
from fitrouter_evaluators.scoring.statements.topics import topic_units

STYLE_KIND, TASTE_KIND = "style", "taste"
_LASTING = 0.3
"""Output of the classifier from which a statement is of a kind; on statements of our own."""
_NEAR = 0.6
"""Cosine of words from which they may mean the same."""


class Attribute(msgspec.Struct, frozen=True, kw_only=True):
    """A lasting attribute that a person stated of themselves."""

    text: str
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


_CODE = re.compile(r"```.*?(?:```|\Z)|^>.*$|[\"“][^\"”\n]{12,}[\"”]", re.DOTALL | re.MULTILINE)
_SENTENCE = re.compile(r"[^.!?\n;]+[.!?]*")
_FORMS = tuple(
    (re.compile(pattern), text)
    for pattern, text in (
        (r"[’‘]", "'"),
        (r"\bcan't\b|\bcannot\b", "can not"),
        (r"\bwon't\b", "will not"),
        (r"n't\b", " not"),
        (r"\bi'm\b|\bim\b", "i am"),
        (r"'re\b", " are"),
        (r"'ve\b", " have"),
        (r"'d\b", " would"),
        (r"'ll\b", " will"),
    )
)
_PARTS = re.compile(r",? (?:and|but|so|plus|while) (?=(?:i|we|my|our)\b)|, (?=(?:i|we|my|our)\b)| - | — |\(|\)|: ")
_ADVERB = (
    r"(?:(?:also|always|usually|mostly|mainly|only|really|still|now|actually|just|strictly|personally|generally|all"
    r"|both"
    r"|absolutely|simply|truly|happily|currently|no longer|\w+ly) )*"
)
VERB = (
    r"(?:am|are|have|had|own|live|lived|work|worked|eat|drink|love|like|enjoy|hate|dislike|loathe|detest"
    r"|despise|adore|admire|prefer|avoid|play|run|teach|speak|code|program|develop|write|use|drive|ride"
    r"|cycle|bike|swim|climb|hike|jog|ski|surf|sail|dance|camp|fish|hunt|travel|fly|commute|follow|keep"
    r"|tend|grow|garden|collect|read|devour|listen|watch|suffer|struggle|battle|take|inject|sing|paint|draw"
    r"|knit|crochet|sew|build|repair|design|brew|bake|cook|breed|raise|foster|host|vote|support|belong|pray"
    r"|meditate|worship|observe|fast|convert(?:ed)?|go|attend|identify|practi[sc]e|do not|can not|never"
    r"|gave up|quit|stopped|moved|switched|turned|became|grew|used to|come from|was|were|react|get|earn"
    r"|make|manage|save|spend|buy|owe|adopt(?:ed)?|lost|went|steer clear|stay|reside|rent|study|studied"
    r"|learn|major|train|coach|lift|row|stick to|refuse|need|share|look after|care for|dread|fear|wear"
    r"|smoke|vape|abstain|rely|specialise|specialize|volunteer|sleep|stand|follow|serve|started|began)"
)
_OWN = (
    r"(?:husband|wife|spouse|partner|boyfriend|girlfriend|kids?|children|sons?|daughters?|twins|baby|toddlers?"
    r"|family|dogs?"
    r"|cats?|puppy|kitten|horse|rabbits?|parrot|job|profession|home|hometown|house|flat|plants?|apartment|garden|balcony|knees?"
    r"|budget|language|tongue|diet|religion|faith|diagnosis|backend|stack|genre|author|band|hobby|passion|sport|profession|career|allergy|budget|condition)"
)
_STATED = re.compile(
    rf"\b(?:i|we) {_ADVERB}(?:would )?{VERB}\b|\b(?:my|our) (?:\w+ ){{0,2}}?{_OWN}\b \w+|\b(?:my|our) favou?rite\b"
    r"|\bfor me\b|^(?:as|being) an? \w+|\bmakes me sick\b"
)
_CONDITION = re.compile(
    r"^(?:as an? [^,]+|(?:since|because|as|given that|now that|being|i am|i have|i live|i work|we have|my) [^,]+)(?=,)"
)
_PLAY = re.compile(
    r"\b(?:imagine|pretend|suppose|supposing|if (?:i|we)|what if|let us say|let's say|act as|role-?play|character"
    r"|narrator"
    r"|protagonist|hypothetically|as if|wish|fictional|persona|story in which|would have been|might (?:be|become)"
    r"|dreamt)\b"
)
_OTHERS = re.compile(
    r"\b(?:an?|some) (?:\w+ ){0,2}?(?:friends?|colleagues?|neighbou?rs?|relatives?|cousins?)\b"
    r"|\b(?:my|our|the|his|her|their) (?:\w+ ){0,2}?(?:friends?|boss|colleagues?|co-?workers?|neighbou?rs?|sisters?"
    r"|brothers?|mother|father|mum|mom|dad|parents|aunt|uncle|cousins?|flatmate|roommate|classmates?|teacher|client"
    r"|customers?|manager|in-laws?|nephews?|nieces?|guests?|students?|grandm\w+|grandf\w+|landlord)\b"
    r"|\b(?:he|she|they) (?:is|are|has|have|lives?|works?)\b|\b(?:who|somebody|someone|people) (?:is|are|have|has)\b"
)
_MOMENT = re.compile(
    r"\b(?:today|tonight|tomorrow|yesterday|right now|at the moment|this (?:morning|afternoon|week|weekend|evening|time"
    r"|month|question|email|essay|answer|text|one|page|chapter|file|script)|for now|just now|so far|last (?:night|week"
    r"|month)|next (?:week|month|weekend)|hungry|tired|stuck|confused|(?:am|are) (?:\w+ )?(?:trying|looking|going"
    r"|planning"
    r"|wondering|writing|reading|thinking|preparing|about|getting|curious|sure|sorry|afraid that|glad|working on)"
    r"|(?:said|told|joked|joking|kidding|wrote|mistyped|meant)\b|want to|would like|need (?:a|an|to|some|help|your)"
    r"|have (?:a|another|one|some) (?:question|problem|idea|meeting"
    r"|deadline|doubt|bug|error|call|moment)|have to|got a|an error|left in)\b"
)
_RETRACTS = re.compile(
    r"\b(?:no longer|any ?more|used to|quit|stopped|gave up|have given up|moved (?:away )?from|switched from"
    r"|former(?:ly)?"
    r"|ex-\w+|sold|broke up|not a\b|not an\b|(?:am|are) not\b|do not have\b|do not own\b|never was|never had|never been"
    r"|was never|are over|is over|outgrew|outgrown|free of|cured)"
)
_DENIAL = re.compile(r"\b(?:no longer|any ?more|not|never|used to|stopped|quit|gave up)\b")
_ONCE = re.compile(r"\b(?:moved|switched|converted)\b.*?\b(?:to|into)\b(?P<now>.*)")
_HOME = "i live in"
_GIVEN_UP = re.compile(r"\b(?:quit|stopped|gave up|have given up) (?:eating |drinking )?(?P<what>.*)")
_HABIT = re.compile(r"\b(?:alcohol|smoking|sugar|coffee|meat|caffeine|dairy|gluten|drinking|wine)\b")
_AGAINST = re.compile(
    r"\b(?:not|never|avoid|hate|dislike|loathe|detest|allergic|allergy|intolerant|intolerance|refuse|fear|afraid|scared"
    r"|dread|without|steer clear|stay away|no|sick|react|gave up|quit|stopped|given up|free)\b"
)
_TASTE = re.compile(
    rf"\b(?:i|we) {_ADVERB}(?:love|adore|hate|dislike|detest|despise|loathe|prefer|avoid|enjoy"
    rf"|do not {_ADVERB}(?:like|enjoy)"
    r"|can not stand|am (?:\w+ )?(?:fond of|into|not into|averse to))\b(?! (?:the|this|that|it|your|these|those)\b)"
)
"""A taste for something of no known kind."""
_ABOUT_ANSWERS = re.compile(
    r"\b(?:answers?|repl(?:y|ies)|responses?|explanations?|bullets?|bullet points|lists|tone|jargon|emojis?"
    r"|examples?)\b"
)


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
        quoted = [match.group() for match in _CODE.finditer(message)]
        attributes: list[Attribute] = []
        retracted: list[Retraction] = []
        other = [content(text) for text in quoted]
        for sentence in _SENTENCE.findall(_CODE.sub(" ", message)):
            text = normalised(sentence)
            if _PLAY.search(text):
                other.append(content(text))
                continue
            if text.endswith("?"):
                condition = _CONDITION.match(text)
                text = condition.group() if condition else ""
            for part in _PARTS.split(text.rstrip(".!? ")):
                if not part or not _STATED.search(part) or _MOMENT.search(part):
                    if part and _OTHERS.search(part):
                        other.append(content(part))
                    continue
                if _OTHERS.search(part):
                    other.append(content(part))
                elif _RETRACTS.search(part) or _ONCE.search(part):
                    now = self._after(part, retracted)
                    attributes += self._stated(now, now, part) if now else []
                else:
                    attributes += self._stated(part, text)
        return StatedAttributes(
            attributes=tuple(attributes),
            retracted=tuple(retracted),
            other=tuple(word for words in other for word in words),
        )

    def _after(self, part: str, retracted: list[Retraction]) -> str:
        """Record the retraction in `part`; return the statement that still holds after it, empty if none."""
        if once := _ONCE.search(part):
            now = once["now"]
            moved = "moved" in part
            retracted.append(Retraction((), "home") if moved else self._retraction(part[: once.start("now")]))
            return f"{_HOME}{now}" if moved else f"i use {now}"
        given = _GIVEN_UP.search(part)
        if given and _HABIT.search(given["what"]):
            return part
        retracted.append(self._retraction(part))
        return ""

    def _retraction(self, part: str) -> Retraction:
        text = _DENIAL.sub(" ", part)
        return Retraction(content(text), self.kind(text))

    def kind(self, text: str) -> str:
        """Classify the kind of attribute that a first-person text states; `NONE` if it states none."""
        outputs = self._kinds([text])[0]
        return NONE if outputs.max() < _LASTING else self._kinds.names[int(outputs.argmax())]

    def _stated(self, part: str, whole: str, text: str = "") -> list[Attribute]:
        """Read the attribute stated in `part` of the sentence `whole`; `text` is the original wording if it differs."""
        words = content(part) or content(whole)
        if _ABOUT_ANSWERS.search(part):
            taste = self._declared.read(part)
            if taste.understood:
                sides = {name: float(np.sign(belief.mean)) for name, belief in taste.values.items()}
                return [_attribute(text or part, STYLE_KIND, words, style=sides)]
        if not words:
            return []
        kind = "home" if part.startswith(_HOME) else self.kind(part)
        if kind == NONE and part != whole:
            kind = self.kind(whole)
        if kind == NONE and _TASTE.search(part):
            kind = TASTE_KIND
        if kind == NONE:
            return []
        against = _AGAINST.search(part) is not None
        pieces = topic_units(part)
        if against and pieces:
            wanted = [word for piece in pieces if piece.sign < 0 for word in content(piece.text)]
            words = tuple(dict.fromkeys(wanted)) or words
        return [_attribute(text or part, kind, words, against=against)]


def _attribute(
    text: str, kind: str, words: tuple[str, ...], *, against: bool = False, style: dict[str, float] | None = None
) -> Attribute:
    known = corpus().kinds.get(kind)
    sensitive = known is not None and known.sensitive
    return Attribute(text=text, kind=kind, sensitive=sensitive, against=against, words=words, style=style or {})


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
            gone = [each for each in self.standing if _alike(self._encoder, words, each.words)]
            gone = gone or (of_kind if not words or len(of_kind) == 1 else [])
            self.retracted += gone
            self.standing = [each for each in self.standing if each not in gone]
            self.denied.update(words, *(each.words for each in gone))
        self.denied.update(said.other)
        for each in said.attributes:
            again = [old for old in self.standing if old.kind == each.kind and same(old.words, each.words)]
            self.standing = [old for old in self.standing if old not in again] + [each]
            self.denied -= set(each.words)
        self.said.update(content(message))


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


def normalised(sentence: str) -> str:
    """Lower-case a sentence and normalise its spaces and contractions."""
    text = " ".join(sentence.lower().split())
    for pattern, by in _FORMS:
        text = pattern.sub(by, text)
    return text
