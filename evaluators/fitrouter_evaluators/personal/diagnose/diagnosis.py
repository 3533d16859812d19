"""Diagnosis of failed personalisation by stage: attributes, their relevance to a prompt, their use in answers.

Failures, each a rate with a Wilson interval (Wilson 1927):

* `missed`: a relevant attribute that the answer neither names nor follows;
* `under_adapted`: a relevant attribute that the answer names to its owner, and does not follow;
* `over_retrieved`: an attribute that the answer names to its owner although it is irrelevant to the prompt;
* `invented`: an answer that claims something of its reader which they never said, or which holds no more;
* `inappropriate`: a sensitive attribute named where it is irrelevant, or in a text for others.

Attributes of earlier messages count, not those of the prompt itself. Messages are read in English, German and Spanish,
by rules or by a configured judge (`asking`). Of answers in German and Spanish only naming is judged (`over_retrieved`,
`inappropriate`), since what follows an attribute takes words that only English has here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from fitrouter.context.encoders import Encoder
from fitrouter.stores.figures import interval, many
from fitrouter_evaluators.personal.diagnose.answers import AnswerReader
from fitrouter_evaluators.personal.diagnose.asking import Asked, AttributeJudge
from fitrouter_evaluators.personal.diagnose.attributes import (
    Attribute,
    Memory,
    Reader,
    StatedAttributes,
    cosines,
)
from fitrouter_evaluators.personal.diagnose.clauses import HABIT_KIND, STYLE_KIND, TASTE_KIND
from fitrouter_evaluators.personal.diagnose.conversations import FAILURES, Conversation
from fitrouter_evaluators.personal.diagnose.kinds import Classifier, content, corpus, same
from fitrouter_evaluators.personal.diagnose.phrases import LANGUAGES, domains, language

_RELEVANT, _OF_FIRST, _TOPICAL, _NEAR = 0.22, 0.6, 0.62, 0.25
"""Output of a domain from which a prompt is of it, also as a share of the highest; cosines of words of one topic, and
of a taste and a prompt (as in `scoring.statements.topics`)."""
_OUTWARD = re.compile(
    r"\b(?:write|draft|compose|help|polish|prepare|phrase|word)\b.*\b(?:emails?|letters?|messages?|posts?|speech|toast|bio"
    r"|profile|cv|resume|review|invitation|announcement|statement|note)\b"
    r"|\b(?:schreib|schreibe|verfasse|formuliere|entwirf)\b.*\b\w*(?:mail|brief|nachricht|post|rede|anschreiben|absage"
    r"|einladung|lebenslauf|dankschreiben)\b|\b(?:escribe|escríbeme|redacta|redactar|ponme|hazme)\b.*\b(?:correo|carta"
    r"|mensaje|discurso|invitación|perfil|currículum|reseña|anuncio)\b"
    r"|\bto (?:my|our|the) (?:boss|landlord|colleagues?|manager|neighbou?rs?|team|clients?|customers?|teacher)\b",
    re.IGNORECASE,
)


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A failure of one answer."""

    name: str
    """Of `FAILURES`."""
    user: str
    conversation: int
    """Its number in the history, from 1."""
    prompt: str
    attribute: str = ""
    """As it was stated; empty for `invented`."""


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """A failure rate with its 95% Wilson interval."""

    failures: int
    cases: int
    rate: float | None
    """None without a case."""
    low: float | None
    high: float | None


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """Agreement of the diagnosis with human marks of the last answers."""

    answers: int
    agree: Rate
    """Share that agrees, in `failures` of `cases`."""
    kappa: float | None
    """Cohen's κ; None where chance agreement is certain."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The diagnosis of a history."""

    people: int
    conversations: int
    messages: int
    """Of people."""
    languages: dict[str, int]
    """Language → messages in it."""
    unread: int
    """Messages in languages that cannot be read."""
    judged: int
    """Messages that a judge read; rules read the others."""
    notes: tuple[str, ...]
    """What could not be read, in sentences."""
    answers: int
    attributes: int
    """That stand at the end."""
    sensitive: int
    retracted: int
    relevant: int
    """Pairs of an answer and a relevant attribute."""
    rates: dict[str, Rate]
    agreement: dict[str, Agreement]
    """By failure, if there are marks."""
    failures: tuple[Failure, ...]


class Diagnostician:
    """Diagnoses recorded histories. Thread-safe.

    Args:
        encoder: of words, prompts and statements; constants were chosen with `static`.
        judge: reads messages where it can.
    """

    def __init__(self, encoder: Encoder, judge: AttributeJudge | None = None) -> None:
        self.encoder, self._judge = encoder, judge
        self.reader, self.answers = Reader(encoder), AnswerReader(encoder)
        self._domains = Classifier(encoder, corpus().domains)

    def relevant(self, attributes: Sequence[Attribute], prompt: str) -> list[bool]:
        """Whether each attribute is relevant to a prompt."""
        if not attributes:
            return []
        spoken = language(prompt)
        about_ = domains(prompt, spoken) if spoken in LANGUAGES else set()
        if spoken == "English":
            outputs = self._domains([prompt])[0]
            first = max(_RELEVANT, _OF_FIRST * float(outputs.max()))
            about_ |= {name for name, value in zip(self._domains.names, outputs, strict=True) if value >= first}
        asked = content(prompt)
        about, *tastes = self.encoder.encode([prompt, *(" ".join(each.words) for each in attributes)])
        return [
            each.kind == STYLE_KIND
            or not about_.isdisjoint(corpus().kinds[each.kind].domains)
            or bool(same(each.words, asked))
            or (each.kind in (TASTE_KIND, HABIT_KIND) and float(taste @ about) >= _NEAR)
            or bool(
                spoken == "English"
                and asked
                and each.words
                and float(cosines(self.encoder, each.words, asked).max()) >= _TOPICAL
            )
            for each, taste in zip(attributes, tastes, strict=True)
        ]

    def diagnose(self, history: Sequence[Conversation]) -> Diagnosis:
        """Diagnose conversations, those of each user in order."""
        counts: dict[str, list[int]] = {name: [0, 0] for name in FAILURES}
        failures: list[Failure] = []
        memories: dict[str, Memory] = {}
        marked: list[tuple[set[str], set[str]]] = []
        answers = relevant = 0
        said, asked = self._said(history)
        written: Counter[str] = Counter()
        for number, conversation in enumerate(history, 1):
            memory = memories.setdefault(conversation.user, Memory(self.encoder))
            found: set[str] = set()
            for prompt, answer in conversation.turns():
                if answer:
                    answers += 1
                    written[language(answer, said[prompt].language)] += 1
                    relevances = self.relevant(memory.standing, prompt)
                    relevant += sum(relevances)
                    cases = self.judged(memory, prompt, answer, relevances)
                    for name, _, failed in cases:
                        counts[name][0] += failed
                        counts[name][1] += 1
                    wrong = [(name, attribute) for name, attribute, failed in cases if failed]
                    found = {name for name, _ in wrong}
                    failures += [
                        Failure(
                            name=name,
                            user=conversation.user,
                            conversation=number,
                            prompt=prompt[:200],
                            attribute=attribute,
                        )
                        for name, attribute in wrong
                    ]
                memory.add(prompt, said[prompt])
            if conversation.marks is not None:
                marked.append((found, set(conversation.marks)))
        standing = [each for memory in memories.values() for each in memory.standing]
        messages = [said[prompt] for conversation in history for prompt, _ in conversation.turns()]
        return Diagnosis(
            people=len(memories),
            conversations=len(history),
            messages=len(messages),
            languages=dict(Counter(each.language for each in messages).most_common()),
            unread=sum(not each.read for each in messages),
            judged=sum(prompt in asked.read for conversation in history for prompt, _ in conversation.turns()),
            notes=self._notes(messages, asked, written),
            answers=answers,
            attributes=len(standing),
            sensitive=sum(each.sensitive for each in standing),
            retracted=sum(len(memory.retracted) for memory in memories.values()),
            relevant=relevant,
            rates={name: rate(*counts[name]) for name in FAILURES},
            agreement={name: _agreement(name, marked) for name in FAILURES} if marked else {},
            failures=tuple(failures),
        )

    def _said(self, history: Sequence[Conversation]) -> tuple[dict[str, StatedAttributes], Asked]:
        """Read each message once: by the judge, where it answers, else by rules."""
        prompts = list(dict.fromkeys(prompt for each in history for prompt, _ in each.turns()))
        asked = Asked({}, "") if self._judge is None else self._judge.read(prompts)
        return {each: asked.read.get(each) or self.reader.read(each) for each in prompts}, asked

    def _notes(self, messages: list[StatedAttributes], asked: Asked, written: Counter[str]) -> tuple[str, ...]:
        """Sentences about what could not be read."""
        notes = []
        unread = Counter(each.language for each in messages if not each.read)
        if unread:
            named = ", ".join(f"{name} ({n})" for name, n in unread.most_common())
            notes.append(
                f"{many(unread.total(), 'message')} of {len(messages)} cannot be read, for their language: {named}; "
                "English, German and Spanish are read, others only by a judge"
            )
        if self._judge is not None and asked.failed:
            notes.append(
                f"the judge {self._judge.name!r} read {many(len(asked.read), 'message')}, and rules the others: "
                f"{asked.failed}"
            )
        other = sum(n for name, n in written.items() if name != "English")
        if other:
            notes.append(
                f"{many(other, 'answer')} of {written.total()} not in English: only whether they name an attribute is "
                "judged in German and Spanish, and nothing in other languages"
            )
        return tuple(notes)

    def judged(
        self, memory: Memory, prompt: str, answer: str, relevances: Sequence[bool] | None = None
    ) -> list[tuple[str, str, bool]]:
        """List the failures that an answer could have: (failure, attribute, whether it happened)."""
        spoken = language(answer, language(prompt))
        if spoken not in LANGUAGES:
            return []
        english = spoken == "English"
        cases = [("invented", "", self.answers.invented(memory, prompt, answer))] if english else []
        outward = _OUTWARD.search(prompt) is not None
        relevances = self.relevant(memory.standing, prompt) if relevances is None else relevances
        for attribute, relevant in zip(memory.standing, relevances, strict=True):
            if relevant and not english and not outward:
                continue
            use = self.answers.use(attribute, prompt, answer)
            if english and relevant and not (outward and attribute.sensitive):
                cases.append(("missed", attribute.text, not use.adapted and not use.echo))
                cases.append(("under_adapted", attribute.text, not use.adapted and use.echo))
            elif not relevant and not (outward and attribute.sensitive):
                cases.append(("over_retrieved", attribute.text, use.echo))
            if attribute.sensitive and (outward or not relevant):
                cases.append(("inappropriate", attribute.text, use.named if outward else use.echo))
        return cases


def rate(failures: int, cases: int) -> Rate:
    """Failure rate with its Wilson interval.

    >>> found = rate(0, 10)
    >>> found.rate, found.low, round(found.high, 3)
    (0.0, 0.0, 0.278)
    """
    if not cases:
        return Rate(failures=0, cases=0, rate=None, low=None, high=None)
    low, high = interval(failures / cases, 0.0, cases)
    return Rate(failures=failures, cases=cases, rate=failures / cases, low=low, high=high)


def _agreement(name: str, marked: Sequence[tuple[set[str], set[str]]]) -> Agreement:
    ours, theirs = (np.array([name in pair[side] for pair in marked]) for side in (0, 1))
    same_: Any = ours == theirs
    chance = float(ours.mean() * theirs.mean() + (1.0 - ours.mean()) * (1.0 - theirs.mean()))
    observed = float(same_.mean())
    kappa = (observed - chance) / (1.0 - chance) if chance < 1.0 else None
    return Agreement(answers=len(marked), agree=rate(int(same_.sum()), len(marked)), kappa=kappa)
