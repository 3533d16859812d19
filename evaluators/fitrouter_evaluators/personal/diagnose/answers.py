"""Classification of an answer's use of a personal attribute: unused, echoed, adapted to, or contradicted.

An **echo** repeats the attribute to its owner ("since you're vegetarian"). Clauses that do so are taken out before the
rest is read, so that an echo alone never counts as adapted. What is left is **adapted** if it has nothing that the
attribute rules out, or, for attributes that rule nothing out, words that go with it; signs of pieces are those of the
parser of statements, so that "skip the nuts" has no nuts.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from fitrouter.context.encoders import Encoder
from fitrouter_evaluators.personal.diagnose.attributes import Attribute, Memory, cosines
from fitrouter_evaluators.personal.diagnose.clauses import STYLE_KIND
from fitrouter_evaluators.personal.diagnose.kinds import content, corpus, same
from fitrouter_evaluators.scoring.statements._polarity import units
from fitrouter_evaluators.scoring.text.style import STYLE, measure, standardise

_GOES_WITH, _CLAIMED, _IS = 0.37, 0.45, 0.72
"""Cosines of words from which one goes with the other, a claim is about an attribute, and two mean the same; chosen on
answers of our own."""
_MORE = 2
"""Most other words of a clause that names an attribute and says no more."""
_CLAUSE = re.compile(r"[^.!?\n,;:—]+[.!?,;:—]*")
_ADDRESS = re.compile(
    r"\b(?:you|your|yours|yourself|you'\w+)\b|\b(?:as|being) an? \w+|\b(?:du|dein\w*|dir|dich|ihnen|ihre?[nmrs]?)\b"
    r"|\bals \w+|\b(?:tú|tus?|te|usted|eres|tienes|vives|llevas)\b|\bcomo \w+",
    re.IGNORECASE,
)
_FREE = re.compile(r"\b[\w]+[- ]free\b|\bnon[- ]\w+|\b(?:vegan|plant[- ]based|vegetarian|meatless|dairy-free|mock) \w+")
_VERB = (
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
_WHY = r"\b(?:since|because|given that|knowing that|knowing|considering that|considering|seeing (?:as|that)|now that)"
_NOT_NOW = (
    r"(?!(?:asked|asks?|wants?|wanted|needs?|needed|can|could|may|might|will|would|should|must|mentioned|said|did|get|see"
    r"|know|seem|wrote|requested)\b|are (?:asking|looking|trying|about|going)\b)"
)
_CLAIMS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"{_WHY} you(?:'re|'ve| {_NOT_NOW}[a-z]+)\b[^,.;:!?—\n]*",
        rf"\bas you(?:'re|'ve| are| {_VERB})\b[^,.;:!?—\n]*",
        r"\b(?:given|considering|knowing|because of|thanks to) (?:your [^,.;:!?—\n]*)",
        r"(?:^|(?<=[.!?\n] ))(?:as|being) an? (?P<who>[^,.;:!?—\n]{3,40})(?=,)",
        r"\b(?:i remember|you (?:once )?mentioned|you told me|you said|i know|i recall)(?: that)? (?:you"
        r"|your)[^,.;:!?—\n]*",
        r"\bfor an? (?P<like>[^,.;:!?—\n]{3,40}) like you\b",
    )
)
_BECAUSE = re.compile(r"\W*(?:since|because|as|given|knowing|considering|seeing|now that)\b", re.IGNORECASE)
_IDIOM = re.compile(
    r"^(?:\w+ )?(?:result|rule|first|next|reminder|alternative|bonus|start\w*|general|guideline|last|side|final"
    r"|note|quick"
    r"|follow|matter|whole|consequence|group|team|way|gift|treat|snack|percentage|base|main|side|second|dessert"
    r"|backup)\b"
)


class Use(NamedTuple):
    """An answer's use of a personal attribute."""

    echo: bool
    adapted: bool
    named: bool
    """Whether its words are anywhere in the answer, and not in the prompt."""


class AnswerReader:
    """Reads from answers how they use personal attributes. Thread-safe.

    Args:
        encoder: of words.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    def use(self, attribute: Attribute, prompt: str, answer: str) -> Use:
        """Classify an answer's use of a personal attribute."""
        if attribute.kind == STYLE_KIND:
            return Use(False, self._styled(attribute, answer), False)
        clauses = _CLAUSE.findall(answer)
        echoes = [self._echoes(attribute, clause) for clause in clauses]
        rest = [clause for clause, echo in zip(clauses, echoes, strict=True) if not echo]
        named = bool(same(content(answer), attribute.words) - same(content(prompt), attribute.words))
        return Use(any(echoes), self._adapted(attribute, prompt, rest), named)

    def _echoes(self, attribute: Attribute, clause: str) -> bool:
        words = content(clause)
        own = same(words, attribute.words)
        addressed = _ADDRESS.search(clause) is not None
        if any(pattern.search(clause) for pattern in _CLAIMS) or (addressed and _BECAUSE.match(clause)):
            return bool(own) or bool(words and cosines(self._encoder, words, attribute.words).max() >= _CLAIMED)
        return bool(own) and addressed and len(words) <= len(own) + _MORE

    def _styled(self, attribute: Attribute, answer: str) -> bool:
        z = standardise(np.array([measure(answer)]))[0]
        at = {each.name: i for i, each in enumerate(STYLE)}
        sides = [side * float(z[at[name]]) for name, side in attribute.style.items() if name in at]
        return bool(sides) and sum(sides) / len(sides) >= 0.0

    def _adapted(self, attribute: Attribute, prompt: str, rest: list[str]) -> bool:
        forbids = corpus().forbids
        listed = same(forbids, attribute.words)
        ruled_out = {bad for word in listed for bad in forbids[word]}
        ruled_out |= set(attribute.words) if attribute.against else set()
        texts = [_FREE.sub(" ", clause.lower()) for clause in rest]
        if ruled_out:
            said = tuple(word for text in texts for unit in units(text) if unit.sign > 0 for word in content(unit.text))
            if same(said, ruled_out):
                return False
            near = not listed and said and cosines(self._encoder, said, attribute.words).max() >= _IS
            return bool(said) and not near
        asked = content(prompt)
        words = [word for word in content(" ".join(texts)) if not same((word,), asked)]
        others = [word for word in words if not same((word,), attribute.words)]
        evidence = (*attribute.words, *corpus().kinds[attribute.kind].evidence)
        if not others:
            return False
        fits = {
            word
            for word, near in zip(others, cosines(self._encoder, others, evidence).max(axis=1), strict=True)
            if near >= _GOES_WITH or same((word,), evidence)
        }
        own = bool(same(words, attribute.words))
        return len(fits) >= (1 if own else 2)

    def invented(self, memory: Memory, prompt: str, answer: str) -> bool:
        """Whether an answer claims attributes of its reader that they never stated, or have retracted."""
        standing = {word for each in memory.standing for word in (*each.words, *content(each.text))}
        known = memory.said - memory.denied
        asked = set(content(prompt))
        for pattern in _CLAIMS:
            for match in pattern.finditer(answer):
                groups = match.groupdict()
                text = groups.get("who") or groups.get("like") or match.group()
                if _IDIOM.match(text.lower()):
                    continue
                words = content(text)
                if not words or same(words, standing | asked):
                    continue
                if same(words, memory.denied) or not (same(words, known) or self._near(words, standing)):
                    return True
        return False

    def _near(self, words: tuple[str, ...], standing: set[str]) -> bool:
        return bool(standing) and float(cosines(self._encoder, words, sorted(standing)).max()) >= _CLAIMED
