"""Laws of the style dimensions on text that is not plain prose: markup, code, other scripts, and dilution."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kits.tables import table_driven

from fitrouter_evaluators.scoring import STYLE

BY_NAME = {dimension.name: dimension for dimension in STYLE}
PLAIN = "The river rises in the hills and flows past two villages before it meets the sea near the old harbour. "

MARKED = {
    "structure": "- tea\n- milk\n",
    "emphasis": "It is **seven**. ",
    "hedging": "It may perhaps rain. ",
    "warmth": "I hope you enjoy it! ",
    "formality": "Therefore we leave; furthermore, we shall return. ",
    "digits": "It took 1024 runs. ",
    "examples": "Fruit such as plums. ",
    "assertiveness": "It is definitely so. ",
    "flattery": "Great question! ",
    "evidence": "According to a study, it rains. ",
    "concreteness": "She met Ada Lovelace and ran 5 km. ",
    "personal": "I like my plan. ",
}
COUNTED = {"questions": "Which one? ", "refusal": "I cannot help with that. ", "code": "`x` "}

OPPOSITES = [
    ("length", PLAIN, PLAIN[:20]),
    ("formality", "We are leaving.", "We're leaving, okay?"),
    ("word_length", "Considerable infrastructure.", "Considerable infrastructure is a big job to do."),
    ("sentence_length", "We ate and we sang and we slept.", "We ate. We sang. We slept."),
    ("vocabulary", PLAIN * 3, PLAIN + "no " * 100),
]

CJK = [
    ("length", "你好。" * 9, "你好。"),
    ("structure", "清单：\n- 茶\n- 牛奶", "清单：茶，牛奶"),
    ("emphasis", "答案是**七**。", "答案是七。"),
    ("warmth", "太好了！", "太好了。"),
    ("code", "用`x`。", "用x。"),
    ("digits", "2024年有366天。", "那一年很长。"),
    ("sentence_length", "今天天气很好我们去河边散步吧。", "今天很好。我们去河边。散步吧。"),
    ("vocabulary", "春夏秋冬山水风月花鸟鱼虫", "春春春春春春春春春春春春"),
    ("questions", "これは何ですか？", "これは本です。"),
    ("evidence", "下降了12%。", "下降了很多。"),
]


@pytest.mark.parametrize("name", MARKED)
@given(more=st.integers(1, 20))
def test_plain_prose_dilutes_a_property(name: str, more: int) -> None:
    """The same marks in a longer plain text are less of the property, and never less than none of it."""
    dimension = BY_NAME[name]
    text = MARKED[name] + PLAIN
    assert dimension(text) > dimension(text + PLAIN * more) > dimension(PLAIN * (more + 1))


@pytest.mark.parametrize("name", COUNTED)
def test_what_is_counted_is_not_diluted(name: str) -> None:
    """One question, one refusal, and one piece of code are what they are, however long the rest."""
    text = COUNTED[name] + PLAIN
    assert BY_NAME[name](text) == BY_NAME[name](text + PLAIN * 9) > BY_NAME[name](PLAIN)


@pytest.mark.parametrize(("name", "higher", "lower"), OPPOSITES)
def test_the_opposite_lowers_it(name: str, higher: str, lower: str) -> None:
    """A dimension falls when the text gets what stands against it."""
    assert BY_NAME[name](higher) > BY_NAME[name](lower)


def test_every_dimension_is_seen_to_fall() -> None:
    """No dimension is left out of the three laws above."""
    assert {*MARKED, *COUNTED, *(name for name, _, _ in OPPOSITES)} == set(BY_NAME)


@table_driven("name", ["hedging", "examples", "assertiveness", "flattery", "personal", "warmth", "formality"])
@table_driven("markup", ["**{}**", "*{}*", "# {}", "> {}", "- {}", "| {} |", "<b>{}</b>", '"{}"', "({})"])
def test_markup_hides_no_words(name: str, markup: str) -> None:
    """Words count in bold, in headings, quotes, lists, tables and brackets; HTML tags are words and dilute a little."""
    plain, marked = BY_NAME[name](MARKED[name]), BY_NAME[name](markup.format(MARKED[name].strip()))
    assert 0.0 < marked <= plain
    assert "<" in markup or marked == plain


@table_driven("name", [*MARKED, "questions", "word_length", "vocabulary", "sentence_length", "refusal"])
def test_fenced_code_is_not_prose(name: str) -> None:
    """What stands in a fence changes nothing but length, code and digits."""
    code = "\n```python\n# " + "".join(part for key, part in MARKED.items() if key != "digits") + "Which one?\n```\n"
    code = code.replace("5 km", "far")
    assert BY_NAME[name](PLAIN + code) == pytest.approx(BY_NAME[name](PLAIN))
    assert BY_NAME["code"](PLAIN + code) == 1.0


@table_driven(("name", "higher", "lower"), CJK)
def test_measured_dimensions_read_other_scripts(name: str, higher: str, lower: str) -> None:
    """Chinese and Japanese have length, structure, questions, variety and so on like any text."""
    assert BY_NAME[name](higher) > BY_NAME[name](lower)


@pytest.mark.parametrize("text", ["", " \n\t", "```\n```", "🙂🙂", "—", "\u200b"])
def test_nothing_said_has_no_marks(text: str) -> None:
    """An empty text, blanks, an empty fence or symbols have none of any marked property."""
    assert all(BY_NAME[name](text) == 0.0 for name in (*MARKED, "questions", "refusal", "word_length"))


@table_driven("name", [*MARKED, "word_length", "questions"])
def test_a_huge_text_is_read_at_its_ends(name: str) -> None:
    """Marks at the very end of a megabyte count."""
    plain = PLAIN * 10_000
    mark = {**MARKED, **COUNTED, "word_length": "Incomprehensibilities. "}[name]
    assert BY_NAME[name](plain + "\n" + mark * 3) > BY_NAME[name](plain)
