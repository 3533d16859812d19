"""Laws of other languages than English: which statements are refused, and which features of a text are missing."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
from tests.kits.tables import table_driven

from fitrouter.context.encoders import Static
from fitrouter_evaluators.scoring import STYLE, VALUES, Answer, ResponseFeatures
from fitrouter_evaluators.scoring.statements.declared import DeclaredValues, preferences
from fitrouter_evaluators.scoring.text.language import ENGLISH, language_of
from fitrouter_evaluators.scoring.text.style import unknown_in

DOCS = Path(__file__).parents[2] / "docs"


class Language(msgspec.Struct, frozen=True):
    """Sentences of one language that we wrote."""

    name: str
    statements: tuple[str, ...]
    """Preferences, as a person states them."""
    answers: tuple[str, str]
    """A short and plain one; a long one of several sentences, with a list, digits and a question."""


CORPUS = msgspec.json.decode((Path(__file__).parent / "languages.json").read_bytes(), type=list[Language])
READER = DeclaredValues(Static())
FEATURES = ResponseFeatures(Static(), declared=True)


@table_driven("language", CORPUS)
def test_statements_are_refused_with_the_language(language: Language) -> None:
    """A statement in another language has no effect, and the reason says which language it is and what to do."""
    for statement in language.statements:
        taste = READER.read(statement)
        assert taste.values == {}, statement
        assert "only English is read: say it in English" in taste.reason, statement
    named = [language_of(statement) == language.name for statement in language.statements]
    assert np.mean(named) >= 0.75, [(language_of(said), said) for said in language.statements]


def test_statements_in_english_are_read() -> None:
    """None of the statements of the corpus of preferences passes for another language."""
    assert [s for group in preferences() for s in group.statements if language_of(s) != ENGLISH] == []


@table_driven("language", CORPUS)
def test_features_hold_or_are_missing(language: Language) -> None:
    """What needs English words is missing; the rest orders the plain answer and the long one rightly."""
    assert [language_of(text) for text in language.answers] == [language.name] * 2
    plain, rich = FEATURES.encode(
        [Answer(prompt="?", text=text, declared=("I hate lists.",)) for text in language.answers]
    )
    missing = {name for name, value in zip(FEATURES.names, rich.tolist(), strict=True) if np.isnan(value)}
    lexical = {"hedging", "warmth", "formality", "refusal", "assertiveness", "flattery", "evidence", "personal"}
    assert lexical | {value.name for value in VALUES} | {"declared_fit"} <= missing
    assert missing & {each.name for each in STYLE} == unknown_in(language.name)
    at = {name: FEATURES.names.index(name) for name in ("length", "structure", "digits", "questions")}
    for name, i in at.items():
        assert name in missing or rich[i] > plain[i], name


def test_english_texts_have_all_features() -> None:
    """Short answers, names, code, formulas and lists of names are not taken for another language."""
    texts = [
        "Yes.",
        "42",
        "x - y = -2z",
        "1. Leo Tolstoy\n2. Leonardo da Vinci\n3. Charles de Gaulle",
        "```python\nprint('il y a')\n```",
        "He said 'c'est la vie' and left, as people do.",
        "No lists.",
        "Non-committal.",
    ]
    h = FEATURES.encode([Answer(prompt="?", text=text) for text in texts])
    assert np.isfinite(h[:, 2 : 2 + len(STYLE)]).all()


def test_the_table_of_the_documentation() -> None:
    """Each feature's row says for which groups of languages it is known."""
    rows = {}
    for line in (DOCS / "feedback.md").read_text("utf-8").splitlines():
        cells = [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        if len(cells) == 7 and cells[0] in {dimension.name for dimension in STYLE}:
            rows[cells[0]] = [cell != "–" for cell in cells[1:]]
    groups = ("English", "German", "Greek", "Chinese", "a language in Arabic letters", "Thai")
    assert rows == {d.name: [d.name not in unknown_in(group) for group in groups] for d in STYLE}
