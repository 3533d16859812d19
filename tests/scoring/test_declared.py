"""Laws of declared values: what a statement in words does to the prior."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kits.tables import table_driven

from fitrouter.context.encoders import Hashing, Static
from fitrouter_evaluators.scoring import STYLE
from fitrouter_evaluators.scoring.statements import declared as module
from fitrouter_evaluators.scoring.statements._polarity import Unit, units
from fitrouter_evaluators.scoring.statements.declared import (
    DeclaredValues,
    preferences,
)
from fitrouter_evaluators.scoring.values import VALUES

READER = DeclaredValues(Static())

TOPICS = [
    "bullet lists",
    "examples",
    "statistics",
    "citations",
    "headings",
    "compliments",
    "code snippets",
    "caveats",
    "technical terms",
    "follow-up questions",
    "lengthy explanations",
    "brief summaries",
    "safety warnings",
    "personal anecdotes",
]
LIKES = [
    "I like {}.",
    "I love {}!",
    "Please use {}.",
    "Give me {}.",
    "I'd like to see {}.",
    "More {}, please.",
    "I prefer answers with {}.",
    "{} help me.",
    "{} are welcome.",
    "I'm a big fan of {}.",
    "{} matter to me.",
    "I find {} useful.",
]
DISLIKES = [
    "I dislike {}.",
    "I don't like {}.",
    "I do not want any {}.",
    "I dont want {}",
    "No {}, please.",
    "Avoid {}.",
    "I hate {}!",
    "I can't stand {}.",
    "I can’t stand {}.",
    "Skip the {}.",
    "Stop using {}.",
    "Spare me the {}.",
    "Leave out the {}.",
    "Leave the {} out.",
    "I'd rather not see {}.",
    "Answer without {}.",
    "Fewer {}, please.",
    "Too many {}.",
    "Not so many {}, please.",
    "I have no use for {}.",
    "I'm not a fan of {}.",
    "I could do without {}.",
    "{} annoy me.",
    "{} don't help me.",
    "{} are not for me.",
    "I find {} useless.",
    "Go easy on the {}.",
    "Keep {} to a minimum.",
    "Get rid of the {}.",
    "I don't need {}.",
    "Enough with the {}.",
    "{} are a waste of time.",
    "Don't bother with {}.",
]
DOUBLE = [
    "Don't skip the {}.",
    "Don't forget the {}.",
    "Never leave out the {}.",
    "Never answer without {}.",
    "I can't do without {}.",
    "{} don't annoy me.",
    "You can never give me too many {}.",
    "Don't hesitate to use {}.",
    "Not enough {}.",
    "Don't be afraid of {}.",
    "Don't skimp on {}.",
]
HELD_OUT = {
    ("length", 1): [
        "I'd love as much detail as you can manage.",
        "Short answers leave me wanting more.",
        "Don't leave anything out.",
        "Please be as comprehensive as you can.",
    ],
    ("length", -1): [
        "tl;dr only please",
        "I have no patience for lengthy answers.",
        "Can you keep your answers short?",
        "I prefer concise explanations to long ones.",
        "Don't write me an essay.",
        "Long answers are not for me.",
    ],
    ("structure", 1): [
        "Format things as a bulleted list when you can.",
        "I prefer lists to paragraphs.",
        "Lists are easier for me than prose.",
        "I'd rather see bullets than prose.",
    ],
    ("structure", -1): [
        "I can't stand bullet points.",
        "Please write paragraphs rather than lists.",
        "I'm not a fan of bulleted lists.",
        "No more bullet points, thank you.",
        "I find tables and lists hard to read.",
    ],
    ("hedging", 1): [
        "I'd like to know how certain you are.",
        "Make clear what is speculation.",
        "Don't sound surer than you are.",
        "Please mention caveats and uncertainty.",
    ],
    ("hedging", -1): [
        "Answer without hedging.",
        "Give it to me straight, no caveats.",
        "I don't want vague answers.",
        "Stop qualifying everything you say.",
        "I hate evasive answers.",
    ],
    ("digits", 1): [
        "Include the statistics.",
        "Never leave out the numbers.",
        "Figures over adjectives.",
        "Use numbers to make your point.",
    ],
    ("digits", -1): [
        "Please avoid statistics.",
        "Numbers bore me.",
        "Fewer numbers, please.",
        "I'd rather not see any figures.",
    ],
    ("examples", 1): [
        "I can't understand a concept without an example.",
        "An example helps me more than a definition.",
        "Don't forget to add examples.",
    ],
    ("examples", -1): [
        "Examples are unnecessary.",
        "I never need illustrations.",
        "Leave examples out of it.",
        "Examples don't help me.",
    ],
    ("warmth", 1): ["Talk to me in a warm way.", "Don't be so cold with me.", "I appreciate kindness."],
    ("warmth", -1): [
        "Please drop the cheery tone.",
        "No friendly chatter, please.",
        "I'd prefer a neutral tone without enthusiasm.",
    ],
    ("formality", 1): ["Please avoid slang."],
    ("formality", -1): ["A casual tone, please."],
    ("code", -1): ["I have no use for code snippets."],
    ("evidence", 1): ["I don't trust claims without references."],
    ("evidence", -1): ["Citations annoy me."],
    ("flattery", -1): ["Stop praising me.", "Compliments make me cringe."],
    ("questions", -1): ["Don't end with a question.", "I hate it when you ask me questions back."],
    ("word_length", -1): ["Technical jargon confuses me."],
    ("emphasis", -1): ["Don't use bold text."],
    ("caution", 1): ["Tell me about possible risks."],
    ("caution", -1): ["Stop giving me warnings."],
    ("autonomy_protection", 1): ["Leave the decision to me.", "Don't patronize me."],
    ("individual_collective", -1): ["The community matters most to me."],
    ("tradition_change", 1): ["I value traditions."],
    ("tradition_change", -1): ["I'm always open to new ideas."],
    ("evidence_experience", 1): ["Scientific studies convince me."],
    ("evidence_experience", -1): ["Lived experience convinces me more than research."],
}
"""Written apart from the corpus. Of the list that these are from, 90 of 98 were right at the first run; some rules of
scope were mended after it, the corpus was not."""
IRRELEVANT = [
    "I live in a small town in Norway.",
    "My cat sleeps all day.",
    "We went hiking on Saturday.",
    "I can't find my umbrella.",
    "I don't like broccoli.",
    "My car needs new tyres.",
    "I used to be a baker.",
    "The bridge is closed.",
    "How old is the universe?",
    "He plays the drums.",
    "I'd rather take the bus than the train.",
    "I hate my alarm clock.",
    "Never feed the pigeons.",
    "She works at the airport.",
    "Our garden has an apple tree.",
    "I have a sore throat.",
    "I'm wearing a green jacket.",
    "Tomorrow is my birthday.",
    "I am left-handed.",
    "Buy milk and bread.",
]
CHOICES = [
    "Always illustrate with an example.",
    "Avoid numbers and figures.",
    "Be cheerful and encouraging.",
    "Don't hedge; be direct.",
    "Give me all the detail you can.",
    "I dislike bullet points.",
    "I don't care for statistics.",
    "I don't need examples.",
    "I don't want small talk or cheerfulness.",
    "I enjoy a warm, friendly tone.",
    "I hate wishy-washy answers.",
    "I learn best from examples.",
    "I like bullet points and numbered lists.",
    "I like figures and numbers.",
    "I like long, thorough answers.",
    "I like short answers.",
    "I prefer careful, qualified statements.",
    "Keep it brief, I read on my phone.",
    "Leave out the illustrations.",
    "Quantify things whenever you can.",
    "Say clearly when something is uncertain.",
    "Skip the pleasantries.",
    "Structure your answers as lists.",
    "Write in flowing prose, no lists.",
]
"""The phrases of choices/declared.jsonl, which training must not see."""


def means(statement: str) -> dict[str, float]:
    """Dimension → mean of one statement."""
    return {name: belief.mean for name, belief in READER.read(statement).values.items()}


def said(template: str, topic: str) -> str:
    """A template about a topic."""
    return template.format(*[topic] * template.count("{}"))


# --- negation ---


@settings(max_examples=100)
@given(topic=st.sampled_from(TOPICS), like=st.sampled_from(LIKES), dislike=st.sampled_from(DISLIKES))
def test_negation_turns_every_dimension(topic: str, like: str, dislike: str) -> None:
    """For and against the same thing: the same dimensions, every sign turned, the sizes equal."""
    one, other = means(said(like, topic)), means(said(dislike, topic))
    assert one
    assert other == {name: -mean for name, mean in one.items()}


@settings(max_examples=40)
@given(topic=st.sampled_from(TOPICS), like=st.sampled_from(LIKES), double=st.sampled_from(DOUBLE))
def test_two_negations_are_none(topic: str, like: str, double: str) -> None:
    """Against being without something is for it."""
    assert means(said(double, topic)) == means(said(like, topic))


@table_driven(
    ("statement", "pieces"),
    [
        ("Don't hedge; be direct.", "hedge- direct+"),
        ("Don't hedge and give me numbers.", "hedge- numbers+"),
        ("No lists, short replies please.", "lists- short+"),
        ("No lists, tables or headings.", "lists tables- headings-"),
        ("I'd rather have prose than lists.", "prose+ lists-"),
        ("Numbers instead of adjectives.", "numbers+ adjectives-"),
        ("I prefer prose to lists.", "prose+ lists-"),
        ("Substance over style.", "substance+ style-"),
        ("Not too long.", "long-"),
        ("You hedge too much.", "hedge-"),
        ("Less fluff and more figures.", "fluff- figures+"),
        ("Be warm without being wordy.", "warm+ wordy-"),
        ("Never answer without an example.", "example+"),
        ("Lists don't bother me.", "lists+"),
        ("No lists unless I ask for them.", "lists-"),
        ("I want jargon-free explanations, please.", "jargon- explanations+"),
        ("I like it warm, but not chummy.", "warm+ chummy-"),
        ("I don't mind lists.", ""),
        ("Neither lists nor code.", "lists- code-"),
        ("Theory is useless without examples.", "theory- examples+"),
        ("I get lost without examples.", "examples+"),
        ("Bullet points don't belong here.", "bullet points- belong-"),
    ],
)
def test_scopes(statement: str, pieces: str) -> None:
    """Clauses, contrasts, excess and double negation have the scope that a reader gives them."""
    found = [f"{unit.text}{'+' if unit.sign > 0 else '-'}" for unit in units(statement)]
    assert " ".join(found) == pieces


@given(st.text(max_size=300))
def test_any_text_can_be_taken_apart(text: str) -> None:
    """Pieces of any text have content and a sign, and reading twice gives the same."""
    found = units(text)
    assert found == units(text)
    assert all(unit.text and unit.sign in {-1.0, 1.0} for unit in found)
    assert all(isinstance(unit, Unit) for unit in found)


# --- what is understood ---


def test_paraphrases_that_training_has_not_seen() -> None:
    """Statements held out from the corpus name their dimension with the right sign: nine of ten, few the wrong one."""
    found = [(sign * means(text).get(name, 0.0)) for (name, sign), texts in HELD_OUT.items() for text in texts]
    assert np.mean(np.array(found) > 0.0) >= 0.9
    assert np.mean(np.array(found) < 0.0) <= 0.04
    known = {text.lower() for group in preferences() for text in group.statements}
    assert not [text for texts in HELD_OUT.values() for text in texts if text.lower() in known]


@pytest.mark.parametrize(
    "paraphrases",
    [
        ["Keep it brief.", "keep it BRIEF", "Please, keep it brief!", "I'd like you to keep it brief.", "Be brief."],
        ["Don't use bullet lists.", "Do not use bullet lists", "Please don’t use bullet lists!", "No bullet lists."],
        ["I want examples.", "Examples, please.", "Please always include examples.", "Give me some examples."],
    ],
)
def test_politeness_and_case_change_nothing(paraphrases: list[str]) -> None:
    """The same wish in other clothes has the same values to the last digit."""
    assert len({repr(means(text)) for text in paraphrases}) == 1
    assert means(paraphrases[0])


def test_irrelevant_statements_do_nothing() -> None:
    """Statements about something else: most name nothing, and none of the others says much."""
    found = [means(text) for text in IRRELEVANT]
    assert np.mean([not values for values in found]) >= 0.85
    assert max((abs(mean) for values in found for mean in values.values()), default=0.0) <= 0.3


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("", "no words"),
        (" \n\t", "no words"),
        ("12345 ?! 🙂", "no words"),
        ("be brief " * 200, "characters"),
        ("Please, as always, do it the way you do it.", "names no property"),
    ],
)
def test_what_is_not_understood_says_so(statement: str, reason: str) -> None:
    """No effect, and the reason in words."""
    taste = READER.read(statement)
    assert not taste.understood
    assert taste.values == {}
    assert reason in taste.reason


@settings(max_examples=20)
@given(st.text(max_size=200))
def test_no_text_is_an_error(text: str) -> None:
    """Any text has a taste: values within ±1 with a positive variance, or none and a reason."""
    taste = READER.read(text)
    assert taste.understood == bool(taste.values) == (not taste.reason)
    assert all(abs(b.mean) <= 1.0 and 0.0 < b.variance < 1.0 for b in taste.values.values())


def test_lone_surrogates_are_read() -> None:
    """Half a character is no error."""
    assert means("no lists \ud800 please")["structure"] < 0.0


# --- the mapping ---


def test_the_mapping_is_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fitted again from the same corpus it gives the same values, bit for bit, with any encoder."""
    few = preferences()[::2]
    monkeypatch.setattr(module, "preferences", lambda: few)
    for encoder in (Static(), Hashing(64)):
        found = []
        for _ in range(2):
            monkeypatch.setattr(module, "_known", {})
            found.append([DeclaredValues(encoder).read(text) for text in CHOICES])
        assert found[0] == found[1]
        assert DeclaredValues(encoder).read("I dislike bullet points.").values["structure"].mean < 0.0


def test_the_corpus_is_ours() -> None:
    """Hundreds of different statements, both directions of every dimension; none is a phrase of the test set."""
    corpus = preferences()
    statements = [text for group in corpus for text in group.statements]
    names = {dimension.name for dimension in STYLE} | {value.name for value in VALUES}
    assert len(statements) == len({text.lower() for text in statements}) >= 600
    assert sum(len(group.statements) for group in corpus if not group.values) >= 100
    for name in names:
        for sign in (1, -1):
            assert sum(len(g.statements) for g in corpus if sign * g.values.get(name, 0) > 0) >= 4, (name, sign)
    assert {name for group in corpus for name in group.values} == names

    def words(text: str) -> frozenset[str]:
        return frozenset(re.findall(r"[a-z']+", text.lower()))

    for phrase in CHOICES:
        for text in statements:
            shared, either = len(words(phrase) & words(text)), len(words(phrase) | words(text))
            assert shared / either < 0.75, (phrase, text)


def test_statements_together() -> None:
    """Two that agree are surer than one; two that contradict each other leave nothing but doubt."""
    one = READER.read("No lists.").values["structure"]
    agreed = READER.read_all(["No lists.", "No lists.", "I live in Ulm."]).values["structure"]
    assert agreed.mean == pytest.approx(one.mean)
    assert agreed.variance == pytest.approx(one.variance / 2)
    torn = READER.read_all(["No lists.", "I like lists."]).values["structure"]
    assert torn.mean == pytest.approx(0.0)
    assert torn.variance > one.variance
    assert READER.read_all([]).reason == "nothing was stated"
    assert not READER.read_all(["", "I live in Ulm."]).understood
