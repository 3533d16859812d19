"""Laws of other languages than English: which statements are refused, and which features of a text are missing."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
from tests.kits.tables import table_driven

from fitrouter.context.encoders import Static
from fitrouter_evaluators.scoring import STYLE, VALUES, Answer, ResponseFeatures
from fitrouter_evaluators.scoring.statements.declared import DeclaredValues, preferences, understandable
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
FORMS = {
    "German": (
        ("Listen", "Beispiele", "Zahlen", "Emojis", "Überschriften", "Quellen", "Tabellen", "Code"),
        ("Ich mag {}.", "Mehr {}, bitte.", "{} helfen mir.", "Bitte mit {}.", "{} nerven mich nicht.", "Nie ohne {}."),
        ("Keine {}, bitte.", "Ich mag {} nicht.", "Ohne {}.", "{} nerven mich.", "Verzichte auf {}.", "Nie {}!"),
    ),
    "French": (
        ("listes", "exemples", "chiffres", "titres", "sources", "tableaux", "compliments"),
        ("J'aime les {}.", "Je veux des {}.", "Toujours avec des {}.", "Les {} m'aident.", "Jamais sans {}."),
        ("Pas de {}.", "Je n'aime pas les {}.", "Évite les {}.", "Les {} m'énervent.", "Moins de {}.", "Trop de {}."),
    ),
    "Spanish": (
        ("listas", "ejemplos", "números", "fuentes", "tablas", "emojis", "títulos"),
        ("Me gustan {}.", "Quiero más {}.", "Usa {}, por favor.", "Nunca sin {}.", "No me molestan {}."),
        ("Sin {}.", "No me gustan {}.", "No uses nunca {}.", "Evita {}.", "Odio {}.", "Demasiados {}.", "Menos {}."),
    ),
    "Chinese": (
        ("列表", "例子", "数字", "标题", "来源", "表格", "代码", "术语"),
        ("我喜欢{}。", "请多用{}。", "不要没有{}。", "{}有帮助。"),
        ("不要{}。", "我不喜欢{}。", "别用{}", "请避免{}。", "{}太多了。", "少用{}"),
    ),
}
"""Language → nouns of style, sentences for and sentences against them."""
READER = DeclaredValues(Static())
FEATURES = ResponseFeatures(Static(), declared=True)


@table_driven("language", CORPUS)
def test_statements_are_read_or_refused_with_the_language(language: Language) -> None:
    """Statements of most languages have no effect, and the reason says which it is and what to do; four are read."""
    refused = [taste for taste in map(READER.read, language.statements) if not taste.values]
    assert all("say it in English, or set the values" in taste.reason for taste in refused)
    read = len(language.statements) - len(refused)
    assert read >= 0.7 * len(language.statements) if language.name in FORMS else read == 0
    named = [language_of(statement) == language.name for statement in language.statements]
    assert np.mean(named) >= 0.75, [(language_of(said), said) for said in language.statements]


def test_statements_in_english_are_read() -> None:
    """None of the statements of the corpus of preferences passes for another language."""
    assert [s for group in preferences() for s in group.statements if language_of(s) != ENGLISH] == []


@table_driven("language", list(FORMS))
def test_negation_in_other_languages(language: str) -> None:
    """For and against the same thing: the same dimensions, every sign turned, in every language that is read."""
    nouns, likes, dislikes = FORMS[language]
    for noun in nouns:
        wanted = {name: belief.mean for name, belief in READER.read(likes[0].format(noun)).values.items()}
        assert wanted
        for sign, templates in ((1, likes), (-1, dislikes)):
            for said in (template.format(noun) for template in templates):
                found = {name: sign * belief.mean for name, belief in READER.read(said).values.items()}
                assert found == wanted, (said, understandable(said))


@table_driven(
    "statement",
    [
        "Gib mir nicht nur Listen.",
        "Keine Kreuzfahrten.",
        "Mehr oder weniger formell.",
        "Je ne veux plus de code.",
        "Plus de code !",
        "Más o menos formal.",
        "要不要列表",
        "我不吃肉。",
    ],
)
def test_one_unknown_or_ambiguous_word_refuses_a_statement(statement: str) -> None:
    """What the glossary does not cover in full is not understood: half a statement may mean the opposite."""
    assert understandable(statement) == statement
    assert READER.read(statement).values == {}


def test_english_statements_are_not_translated() -> None:
    """Words that several languages share are English where all of a statement is."""
    assert [s for group in preferences() for s in group.statements if understandable(s) != s] == []


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
