"""Laws of the response features: what each dimension notices, and that no text can break them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kits.tables import table_driven

from fitrouter.context.encoders import Hashing, Static
from fitrouter.posterior.heads import HINGES
from fitrouter.stores.content import pack_content, unpack_content
from fitrouter.types import Floats
from fitrouter_evaluators.scoring import (
    STYLE,
    TOOLS,
    VALUES,
    Answer,
    ResponseFeatures,
    ToolCall,
    _constants,
    directions,
    measure,
    standardise,
)
from fitrouter_evaluators.scoring._constants import LATENT_CONSTANTS, STYLE_CONSTANTS
from fitrouter_evaluators.scoring.features import hinges, latent_directions

MT_BENCH = Path(__file__).parents[3] / "shared/data/mt_bench_human/model_answer"
PLAIN = "The river rises in the hills and flows past two villages before it meets the sea near the old harbour."
BY_NAME = {dimension.name: dimension for dimension in STYLE}
G = 1
TEXT = slice(2, 2 + len(STYLE))
VALUE = slice(TEXT.stop, TEXT.stop + len(VALUES))
TOOL = slice(VALUE.stop, VALUE.stop + len(TOOLS))
HINGE = slice(TOOL.stop, TOOL.stop + len(HINGES))
LATENT = slice(HINGE.stop, None)

HIGHER_LOWER = [
    ("length", PLAIN * 2, PLAIN),
    ("structure", "- one\n- two\n- three", "one, two, three"),
    ("structure", "1. one\n2) two", "one two"),
    ("structure", "| a | b |\n|---|---|\n| 1 | 2 |", "a b, 1 2"),
    ("structure", "Take these:\n- tea\n- milk", "Take these:\n```\n- tea\n- milk\n```"),
    ("emphasis", "## Result\nIt is **seven**.", "Result\nIt is seven."),
    ("emphasis", "It is **seven**.", "It is 7**2 or seven."),
    ("hedging", "It may rain, and it could perhaps snow.", "It rains, and it snows."),
    ("hedging", "It may often work.", "The mayor soften works."),
    ("hedging", "It depends. In some cases it works.", "It hangs down. In cases it works."),
    ("warmth", "I hope this helps you! Feel free to ask.", "This is the result. Ask."),
    ("warmth", "You’ll like it!", "People like it."),
    ("formality", "Therefore we do not wait; furthermore we leave.", "So we don't wait, and it's okay to leave."),
    ("word_length", "Considerable infrastructure investments materialise.", "We can do it now if he is in."),
    ("code", "```python\nx = 1\n```", "x = 1"),
    ("code", "```\nx\n```", "Use `x`."),
    ("code", "Use `x` here.", "Use x here."),
    ("digits", "It took 1024 runs in 2021.", "It took many runs in one year."),
    ("examples", "Fruit such as plums, e.g. damsons.", "Fruit like plums and damsons."),
    ("examples", "Such as plums, such as pears.", "Such as plums, or pears."),
    (
        "sentence_length",
        "One two three four five six seven eight nine ten.",
        "One two. Three four. Five six. Seven eight.",
    ),
    ("vocabulary", PLAIN, "the the the the the the the the the the the the the the the the the the the the"),
    ("questions", "Which one do you mean? And when?", "I know which one and when."),
    ("questions", "你想要哪一个？", "我知道。"),
    ("refusal", "I'm sorry, but as an AI I cannot do that.", "Sure, here it is."),
    ("refusal", "I can’t help with that.", "I can help with that."),
    ("refusal", "I cannot do that.", PLAIN * 5 + " He said: I cannot do that."),
    ("assertiveness", "It is definitely and always true.", "It is true."),
    ("flattery", "Great question! You're absolutely right.", "The answer follows."),
    ("evidence", "According to a study (Smith, 2019), see https://example.org [1].", "People say so."),
    ("evidence", "It fell by 12%.", "It fell by much."),
    ("concreteness", "She met Ada Lovelace in Turin and ran 5 km.", "She met somebody somewhere and ran a bit."),
    ("personal", "I think my plan is good, and I like it.", "The plan is good, and people like it."),
]


@table_driven(("name", "higher", "lower"), HIGHER_LOWER)
def test_each_dimension_rises_when_it_should(name: str, higher: str, lower: str) -> None:
    """Of two texts the one with more of the property has the higher value."""
    assert BY_NAME[name](higher) > BY_NAME[name](lower)


def test_every_dimension_has_a_pair() -> None:
    """No dimension goes untested or undescribed, and the order is that of the constants."""
    assert {name for name, _, _ in HIGHER_LOWER} == set(BY_NAME)
    assert list(BY_NAME) == list(STYLE_CONSTANTS)
    assert all(len(dimension.description) > 10 for dimension in STYLE)


WORDS = st.lists(
    st.sampled_from(["tea", "milk", "rain", "hill", "stone", "the", "a", "of", "walks", "sings"]),
    min_size=1,
    max_size=80,
)
LEXICAL = [
    ("hedging", " perhaps"),
    ("warmth", " you"),
    ("examples", " such as"),
    ("assertiveness", " definitely"),
    ("flattery", " brilliant"),
    ("evidence", " research"),
    ("personal", " my"),
    ("digits", " 7"),
    ("questions", "?"),
]


@given(words=WORDS)
def test_a_list_of_single_words_never_lowers_structure(words: list[str]) -> None:
    """Appending one-word list items raises structure whatever prose stands before."""
    text = " ".join(words)
    values = [BY_NAME["structure"](text + "\n- tea" * n) for n in range(4)]
    assert values == sorted(values)
    assert values[0] < values[-1]


@pytest.mark.parametrize(("name", "piece"), LEXICAL)
@given(words=WORDS, count=st.integers(1, 5))
def test_one_more_mark_never_lowers_its_dimension(name: str, piece: str, words: list[str], count: int) -> None:
    """A text that says the marked word once more has more of the property."""
    text = " ".join(words) + piece * (count - 1)
    assert BY_NAME[name](text + piece) > BY_NAME[name](text)


@given(words=WORDS, more=WORDS)
def test_plain_prose_has_no_marks(words: list[str], more: list[str]) -> None:
    """Prose without marks has none, however long, and only gets longer."""
    text = " ".join(words)
    raw = dict(zip(BY_NAME, measure(text), strict=True))
    for name in ("structure", "emphasis", "hedging", "code", "digits", "questions", "refusal", "flattery", "evidence"):
        assert raw[name] == 0.0
    assert BY_NAME["length"](text + " " + " ".join(more)) > raw["length"]


@given(text=st.text() | st.text(alphabet="`*#-|>.!? \n\t(1a漢é’\ud800"))
def test_any_text_is_finite_and_bounded(text: str) -> None:
    """No text gives NaN, an infinity, or a standardised value beyond ±3."""
    raw = measure(text)
    assert np.isfinite(raw).all()
    assert (np.abs(standardise(raw)) <= 3.0).all()


@table_driven(
    "text",
    ["", " \n ", "漢字かな交じり文。" * 50, "🙂" * 500, "```" * 3, "a" * 300_000, "| " * 200_000, "\x00", "1. " * 9000],
)
def test_extreme_texts_are_finite(text: str) -> None:
    """Empty, huge, unspaced and unclosed texts have features too."""
    assert np.isfinite(measure(text)).all()


def test_only_the_ends_of_a_huge_text_are_read() -> None:
    """Beyond 20,000 characters from either end only the length counts."""
    text = "word " * 20_000
    middle = text[:50_000] + "perhaps definitely 123 ? " + text[50_000:]
    assert (measure(text)[1:] == measure(middle)[1:]).all()
    assert measure(middle)[0] > measure(text)[0]
    assert BY_NAME["hedging"]("perhaps " + text) > 0.0


def test_standardising_is_monotone_and_centred() -> None:
    """The centre of the calibration answers is 0, and one scale above it is 1."""
    centre, scale = np.array(list(STYLE_CONSTANTS.values())).T
    assert standardise(centre) == pytest.approx(np.zeros(len(STYLE)))
    assert standardise(centre + scale) == pytest.approx(np.ones(len(STYLE)))
    assert standardise(centre + 1e9) == pytest.approx(np.full(len(STYLE), 3.0))


@pytest.mark.skipif(not MT_BENCH.is_dir(), reason="the MT-bench answers are not on this machine")
def test_the_shipped_constants_come_from_the_data() -> None:
    """The command writes the shipped file again, byte for byte."""
    from benchmarks.training.constants import read_answers, render

    texts = read_answers(MT_BENCH)
    assert len(texts) == 960
    assert render(texts, [Static()]) == Path(_constants.__file__).read_text(encoding="utf-8")


def test_calibration_needs_answers(tmp_path: Path) -> None:
    """An empty folder is refused by name."""
    from benchmarks.training.constants import read_answers

    with pytest.raises(ValueError, match=r"no \*\.jsonl"):
        read_answers(tmp_path)


def test_the_written_table_is_a_module(tmp_path: Path) -> None:
    """What calibrate writes reads back as the constants of its texts and encoders."""
    from benchmarks.training.constants import latent_constants, render, style_constants

    texts = [PLAIN, PLAIN + " It may be!", "- a\n- b", "Two 2 words?"]
    (tmp_path / "a.jsonl").write_text(json.dumps({"choices": [{"turns": texts}]}), encoding="utf-8")
    scope: dict[str, object] = {}
    exec(render(texts, [Hashing(16)]), scope)
    assert scope["STYLE_CONSTANTS"] == style_constants(texts)
    assert scope["LATENT_CONSTANTS"] == {"hashing-v1-16": latent_constants(texts, Hashing(16))}


# --- answers and tool calls ---


def call(name: str, arguments: object) -> dict[str, object]:
    """A tool call in the OpenAI format."""
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": written}}


def tool(name: str, parameters: object) -> dict[str, object]:
    """A tool's definition in the OpenAI format."""
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


WEATHER = tool(
    "weather",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "unit": {"enum": ["C", "F"]},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["city"],
        "additionalProperties": False,
    },
)


@pytest.fixture(scope="module")
def features() -> ResponseFeatures:
    """Features over the encoder that needs no model."""
    return ResponseFeatures(Hashing(64))


def test_tool_calls_mask_the_text(features: ResponseFeatures) -> None:
    """An answer of tool calls has no text features, not zeros; a text answer has no tool features."""
    calls = Answer.of("Hi", {"role": "assistant", "content": None, "tool_calls": [call("weather", {"city": "Ulm"})]})
    both = Answer.of("Hi", {"role": "assistant", "content": PLAIN, "tool_calls": [call("weather", {"city": "Ulm"})]})
    h = features.encode([calls, Answer(text=PLAIN), both])
    assert (h[:, 0] == 1.0).all()
    assert np.isnan(h[0, TEXT]).all()
    assert np.isnan(h[0, LATENT]).all()
    assert np.isfinite(h[0, TOOL]).all()
    assert np.isfinite(h[1, TEXT]).all()
    assert np.isnan(h[1, TOOL]).all()
    assert np.isnan(h[0, VALUE]).all()
    assert np.isfinite(h[1:, VALUE]).all()
    assert np.isfinite(np.delete(h[2], G)).all()
    assert np.isnan(h[:, G]).all()
    assert (h[2, TEXT] == h[1, TEXT]).all()


@table_driven(
    ("arguments", "fits"),
    [
        ({"city": "Ulm", "days": 2, "unit": "C", "tags": ["a"]}, True),
        ({"city": "Ulm", "days": 2.0}, True),
        ({}, False),
        ({"city": 5}, False),
        ({"city": "Ulm", "days": True}, False),
        ({"city": "Ulm", "days": 2.5}, False),
        ({"city": "Ulm", "unit": "K"}, False),
        ({"city": "Ulm", "tags": ["a", 1]}, False),
        ({"city": "Ulm", "colour": "red"}, False),
        ("{city: Ulm}", False),
        ('["Ulm"]', False),
        ("[" * 100_000, False),
    ],
)
def test_arguments_are_checked_against_the_tool(arguments: object, fits: bool, features: ResponseFeatures) -> None:
    """Required keys, types, enums and unknown keys decide whether a call fits its tool."""
    answer = Answer.of("", {"content": None, "tool_calls": [call("weather", arguments)]}, [WEATHER])
    assert features.encode([answer])[0, TOOL].tolist() == [0.0, 0.0 if fits else -3.0, 0.0]


def test_an_unknown_tool_fits_nothing_and_unknown_tools_fit_any_object(features: ResponseFeatures) -> None:
    """A call of a tool that was not offered is unfit; where the tools are not known, any JSON object will do."""
    message = {"content": None, "tool_calls": [call("stocks", {"x": 1})]}
    assert features.encode([Answer.of("", message, [WEATHER])])[0, TOOL][1] == -3.0
    assert features.encode([Answer.of("", message)])[0, TOOL][1] == 0.0


def test_repeated_calls_show(features: ResponseFeatures) -> None:
    """The same call again counts as a repeat however its arguments are spaced and ordered."""
    same = [call("f", '{"a": 1, "b": 2}'), call("f", '{"b":2,"a":1}')]
    different = [call("f", {"a": 1}), call("f", {"a": 2})]
    h = features.encode([Answer.of("", {"tool_calls": same}), Answer.of("", {"tool_calls": different})])[:, TOOL]
    assert h[:, 2].tolist() == [1.5, 0.0]
    assert h[0, 0] == h[1, 0] > 0.0


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"content": 5, "tool_calls": "x"},
        {"content": [{"type": "text", "text": 5}, None], "tool_calls": [None, {"function": None}, {"function": {}}]},
        {"tool_calls": [{"function": {"name": None, "arguments": {"a": 1}}}]},
        {"content": "\ud800 half a character"},
    ],
)
def test_odd_messages_have_features(message: dict[str, object], features: ResponseFeatures) -> None:
    """A malformed message counts as what of it can be read."""
    h = features.encode([Answer.of("", message, [{}, {"function": {"name": "f", "parameters": 5}}])])
    assert h.shape == (1, features.dim)
    assert not np.isinf(h).any()


def test_parts_of_a_message_are_read() -> None:
    """Text parts, a refusal, and the older function_call are answers too."""
    assert Answer.of("", {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}).text == "a\nb"
    assert Answer.of("", {"content": None, "refusal": "No."}).text == "No."
    assert Answer.of("", {"function_call": {"name": "f", "arguments": "{}"}}).calls == (ToolCall("f", "{}"),)


# --- h ---


def test_names_and_schema_say_what_h_is(features: ResponseFeatures) -> None:
    """One name a column, all different; the schema changes with the encoder and the number of directions."""
    assert len(set(features.names)) == len(features.names) == features.dim
    assert features.encode([Answer(text=PLAIN)]).shape == (1, features.dim)
    schemas = {features.schema, ResponseFeatures(Hashing(32)).schema, ResponseFeatures(Hashing(64), 4).schema}
    assert len(schemas) == 3
    assert ResponseFeatures(Hashing(64), 0).dim == features.dim - 8
    assert features.encode([]).shape == (0, features.dim)
    with pytest.raises(ValueError, match="latent is -1"):
        ResponseFeatures(Hashing(64), -1)


@settings(max_examples=15)
@given(texts=st.lists(st.text(max_size=60), min_size=1, max_size=8))
def test_a_row_does_not_depend_on_its_batch(texts: list[str]) -> None:
    """Alone, together, in another order, or from the cache: the same answer has the same row, bit for bit."""
    items = [Answer(text=text) for text in texts]
    together = ResponseFeatures(Hashing(32))
    rows = together.encode(items)
    alone = np.concatenate([ResponseFeatures(Hashing(32)).encode([item]) for item in items])
    assert rows.tobytes() == alone.tobytes()
    assert together.encode(items[::-1])[::-1].tobytes() == rows.tobytes()


class Counting(Hashing):
    """Counts the texts that it encodes."""

    texts = 0

    def encode(self, texts):  # type: ignore[no-untyped-def]
        """As the base, counted."""
        self.texts += len(texts)
        return super().encode(texts)


def test_rows_are_cached_by_content() -> None:
    """An answer seen again is not encoded again; the oldest rows make room; callers cannot spoil the cache."""
    encoder = Counting(32)
    directions(Hashing(32))
    features = ResponseFeatures(encoder, cache=2)
    a, b, c = (Answer(text=text) for text in ("one", "two", "three"))
    first = features.encode([a, a, b])
    assert encoder.texts == 2
    first[:] = -9.0
    assert (features.encode([a])[0, 0]) == 1.0
    assert encoder.texts == 2
    features.encode([c])
    features.encode([a])
    assert encoder.texts == 3
    features.encode([b])
    assert encoder.texts == 4


def test_a_text_without_words_has_no_direction(features: ResponseFeatures) -> None:
    """A vector of length 0 gives missing directions and values, and the style of an empty text is still finite."""
    h = features.encode([Answer(text="")])[0]
    assert np.isnan(h[LATENT]).all()
    assert np.isnan(h[VALUE]).all()
    assert np.isfinite(h[TEXT]).all()


def test_hinges_are_the_excess_of_length() -> None:
    """max(length − t, 0) minus its mean over a normal distribution; without hinges the rest of h is the same."""
    answers = [Answer(text=PLAIN * n) for n in (1, 3, 9, 27)]
    with_them, without = ResponseFeatures(Hashing(32)), ResponseFeatures(Hashing(32), hinges=False)
    h, length = with_them.encode(answers), with_them.encode(answers)[:, with_them.names.index("length")]
    assert with_them.names[HINGE] == tuple(HINGES)
    for column, t in zip(h[:, HINGE].T, HINGES.values(), strict=True):
        assert np.ptp(column - np.maximum(length - t, 0.0)) == pytest.approx(0.0, abs=1e-12)
    typical = np.random.default_rng(0).standard_normal(1_000_000)
    np.testing.assert_allclose(hinges(typical).mean(axis=0), 0.0, atol=5e-3)
    assert np.delete(h, HINGE, axis=1).tobytes() == without.encode(answers).tobytes()
    assert np.isnan(with_them.encode([Answer(text="", calls=(ToolCall("f", "{}"),))])[0, HINGE]).all()


class Agreement:
    """A scalar: how near an answer is to its prompt, and the length beside it."""

    id = "agreement-1"

    def __init__(self) -> None:
        self.seen: list[Answer] = []

    def of(self, items: Sequence[Answer], _readings: object, vectors: Floats, style: Floats) -> Floats:
        """The dot product, and the length."""
        self.seen.extend(items)
        return np.einsum("nd,nd->n", Hashing(32).encode([item.prompt for item in items]), vectors) + style[:, 0]


def test_the_scalar_reads_prompt_answer_and_features() -> None:
    """With a scalar g is its value, of the same prompt, answer and row, cut to ±3; the rest of h is what it was."""
    encoder, scalar = Hashing(32), Agreement()
    features = ResponseFeatures(encoder, scalar=scalar)
    items = [Answer(text=PLAIN, prompt="Where does the river rise?"), Answer(text="A" * 50_000, prompt="")]
    h = features.encode(items)
    plain = ResponseFeatures(encoder).encode(items)
    assert np.delete(h, G, axis=1).tobytes() == np.delete(plain, G, axis=1).tobytes()
    near = float(encoder.encode([items[0].prompt])[0] @ encoder.encode([PLAIN])[0])
    assert h[0, G] == pytest.approx(near + h[0, 2])
    assert h[1, G] == pytest.approx(min(h[1, 2], 3.0))
    assert features.schema == f"{ResponseFeatures(encoder, hinges=False).schema}/agreement-1/length-1"


def test_the_prompt_counts_only_where_a_scalar_reads_it() -> None:
    """The same text under two prompts is one row without a scalar, and two with one."""
    items = [Answer(text=PLAIN, prompt="The river"), Answer(text=PLAIN, prompt="Cake")]
    plain = ResponseFeatures(Hashing(32)).encode(items)
    assert plain[0].tobytes() == plain[1].tobytes()
    judged = ResponseFeatures(Hashing(32), scalar=Agreement())
    h = judged.encode(items)
    assert h[0, G] != h[1, G]
    assert judged.encode(items[::-1])[::-1].tobytes() == h.tobytes()


def test_calls_are_not_judged_but_silence_is() -> None:
    """An answer of calls alone has no scalar; an empty text has one, for it is an answer too."""
    scalar = Agreement()
    features = ResponseFeatures(Hashing(32), scalar=scalar)
    calls = Answer.of("p", {"tool_calls": [call("weather", {})]})
    g = features.encode([calls, Answer(text=" "), Answer(text=PLAIN)])[:, G]
    assert np.isnan(g).tolist() == [True, False, False]
    assert [item.text for item in scalar.seen] == [" ", PLAIN]


def test_directions_are_the_leading_ones_or_a_fixed_projection() -> None:
    """An ordered encoder gives its first dimensions × √dim; any other the same projection for ever."""
    encoder = Hashing(64)
    vectors = encoder.encode([PLAIN, "Another text."])
    projection = latent_directions(encoder, np.eye(64), 8)
    assert projection[0, :3] == pytest.approx([0.16072615, 1.65767764, -0.80070590], abs=1e-8)
    assert latent_directions(Hashing(64), vectors, 8) == pytest.approx(vectors @ projection)
    encoder.ordered = True  # type: ignore[misc]
    assert latent_directions(encoder, vectors, 8) == pytest.approx(vectors[:, :8] * 8.0)


def test_a_broken_encoder_is_refused() -> None:
    """Vectors that are not finite never become features."""

    class Broken(Hashing):
        def encode(self, texts):  # type: ignore[no-untyped-def]
            return super().encode(texts) * np.nan

    with pytest.raises(ValueError, match="finite"):
        ResponseFeatures(Broken(32)).encode([Answer(text="a")])


# --- content ---

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
)


@given(prompt=st.text(), message=st.dictionaries(st.text(), JSON, max_size=4))
def test_content_round_trips(prompt: str, message: dict[str, object]) -> None:
    """Any message survives packing, lone surrogates and all, and the packed text is ASCII."""
    packed = pack_content(prompt, message)
    content = unpack_content(packed)
    assert packed.isascii()
    assert (content.prompt, content.message, content.tools) == (prompt, message, None)


def test_content_keeps_the_tools_that_were_called() -> None:
    """Of many tools only the called ones travel with an answer."""
    message = {"content": None, "tool_calls": [call("weather", {"city": "Ulm"})]}
    assert unpack_content(pack_content("", message, [tool("other", {}), WEATHER])).tools == (WEATHER,)
    assert unpack_content(pack_content("", {"content": "x"}, [WEATHER])).tools is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"prompt": 5, "message": {}}', "not json", "[" * 100_000])
def test_other_text_is_no_content(text: str) -> None:
    """Text that pack_content did not make is refused."""
    with pytest.raises(ValueError):
        unpack_content(text)


def test_constants_of_known_encoders_are_usable() -> None:
    """Every shipped direction has a positive scale."""
    for centres, scales in LATENT_CONSTANTS.values():
        assert len(centres) == len(scales) >= 8
        assert min(scales) > 0.0
