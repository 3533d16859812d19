"""Open formats: rows round-trip, invalid rows are reported, and nothing is dropped silently."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.kits.tables import table_driven

from fitrouter.errors import ConfigError
from fitrouter_evaluators.datasets import (
    KINDS,
    Cell,
    Choice,
    MatrixRow,
    Pair,
    Rating,
    Records,
    Row,
    Text,
    read_choices,
    read_matrix,
    read_pairs,
    read_ratings,
    write_jsonl,
    write_parquet,
)

Reader = Callable[[Path], Records[Any]]
READERS: dict[type[Row], Reader] = {
    Pair: read_pairs,
    Rating: read_ratings,
    Choice: read_choices,
    MatrixRow: read_matrix,
}

# --- any row ---

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
WORDS = TEXTS.filter(lambda text: bool(text.strip()))
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
# Columns of a Parquet file cannot differ in case only, and null is absent there.
NAMES = st.sampled_from(["note", "Größe", 'a "b"', "x.y", "filename", "12", "extra", "名前", "select"])
EXTRAS = st.dictionaries(NAMES, VALUES.filter(lambda value: value is not None), max_size=3)
DECLARED = st.dictionaries(TEXTS, NUMBERS, max_size=3)
MAYBE = st.none() | TEXTS


@st.composite
def scales(draw: st.DrawFn) -> dict[str, Any]:
    """A rating and its scale."""
    low, rating, high = sorted(draw(st.tuples(NUMBERS, NUMBERS, NUMBERS).filter(wide)))
    return {"rating": rating, "scale": (low, high)}


def wide(numbers: tuple[float, ...]) -> bool:
    """Whether a scale can span the numbers."""
    return 0.0 < max(numbers) - min(numbers) < math.inf


ANSWERS = st.builds(Text, text=TEXTS, model=MAYBE, extra=EXTRAS)
PAIRS = st.builds(
    Pair,
    user=WORDS,
    prompt=WORDS,
    a=ANSWERS,
    b=ANSWERS,
    label=st.sampled_from([0.0, 0.5, 1.0]),
    role=MAYBE,
    dimension=WORDS,
    declared=DECLARED,
    ts=st.none() | NUMBERS,
    extra=EXTRAS,
)
RATINGS = st.builds(
    lambda scale, **fields: Rating(**fields, **scale),
    scale=scales(),
    user=WORDS,
    prompt=WORDS,
    response=MAYBE,
    model=MAYBE,
    item=MAYBE,
    dimension=WORDS,
    kind=st.sampled_from(KINDS),
    declared=DECLARED,
    ts=st.none() | NUMBERS,
    extra=EXTRAS,
)
CHOICES = st.lists(TEXTS, min_size=2, max_size=4).flatmap(
    lambda options: st.builds(
        Choice,
        user=WORDS,
        declared=st.lists(WORDS, min_size=1, max_size=3).map(tuple),
        prompt=WORDS,
        options=st.just(tuple(options)),
        best=st.integers(0, len(options) - 1),
        extra=EXTRAS,
    )
)
POSITIVE = st.none() | st.floats(0, 1e9)
CELLS = st.builds(Cell, reward=NUMBERS, cost_usd=POSITIVE, latency_s=POSITIVE, response=MAYBE, extra=EXTRAS)
MATRICES = st.builds(
    MatrixRow,
    prompt=WORDS,
    models=st.dictionaries(TEXTS, CELLS, min_size=1, max_size=3),
    source=MAYBE,
    user=MAYBE,
    role=MAYBE,
    extra=EXTRAS,
)
ROWS = st.one_of(*(st.lists(rows, min_size=1, max_size=4) for rows in (PAIRS, RATINGS, CHOICES, MATRICES)))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS, suffix=st.sampled_from([".jsonl", ".parquet"]))
def test_rows_read_back(rows: list[Row], suffix: str, tmp_path: Path) -> None:
    """Any rows come back from JSONL and from Parquet equal, in order, and without a problem."""
    path = tmp_path / f"rows{suffix}"
    (write_jsonl if suffix == ".jsonl" else write_parquet)(path, rows)
    records = READERS[type(rows[0])](path)
    assert records.problems == []
    assert records.rows == rows


@given(raw=VALUES, kind=st.sampled_from(list(READERS)))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_json_is_a_row_or_a_problem(raw: Any, kind: type[Row], tmp_path: Path) -> None:
    """Every line that is not empty becomes exactly one row or one problem."""
    path = tmp_path / "rows.jsonl"
    path.write_bytes(msgspec.json.encode(raw) + b"\n")
    records = READERS[kind](path)
    assert len(records.rows) + len(records.problems) == 1


# --- what is refused, and how ---

PAIR = {"user": "u", "prompt": "p", "a": {"text": "x"}, "b": {"text": "y"}, "label": 1}
RATING = {"user": "u", "prompt": "p", "rating": 3, "scale": [1, 5]}
CHOICE = {"user": "u", "declared": ["short"], "prompt": "p", "options": ["x", "y"], "best": 1}
MATRIX = {"prompt": "p", "models": {"m": {"reward": 0.5}}}
WRONG = [
    (Pair, PAIR | {"label": 0.7}, "label is 0.7; give 1"),
    (Pair, PAIR | {"label": "1"}, r"Expected `float`, got `str` - at `\$.label`; a row has the fields user,"),
    (Pair, PAIR | {"label": None}, "missing required field `label`"),
    (Pair, PAIR | {"user": " "}, "user is ' '"),
    (Pair, PAIR | {"prompt": ""}, "prompt is ''"),
    (Pair, PAIR | {"a": "x"}, r"at `\$.a`"),
    (Pair, PAIR | {"a": {"model": "m"}}, r"missing required field `text` - at `\$.a`"),
    (Pair, PAIR | {"ts": "today"}, "Expected `float"),
    (Rating, RATING | {"rating": 6}, "rating is 6.0; the scale allows 1.0 to 5.0"),
    (Rating, RATING | {"scale": [5, 1]}, r"scale is \[5.0, 1.0\]"),
    (Rating, RATING | {"scale": [1, 1]}, r"scale is \[1.0, 1.0\]"),
    (Rating, RATING | {"scale": [1]}, r"`array` .*at `\$.scale`"),
    (Rating, RATING | {"prompt": ""}, "there is no item"),
    (Rating, RATING | {"kind": "wink"}, "Invalid enum value 'wink'"),
    (Choice, CHOICE | {"best": 2}, "best is 2; it counts from 0 to 1"),
    (Choice, CHOICE | {"best": -1}, "best is -1"),
    (Choice, CHOICE | {"options": ["x"], "best": 0}, "there are 1 options"),
    (Choice, CHOICE | {"declared": []}, r"declared is \(\)"),
    (MatrixRow, MATRIX | {"models": {}}, "models is empty"),
    (MatrixRow, MATRIX | {"models": {"m": {}}}, "missing required field `reward`"),
    (MatrixRow, MATRIX | {"models": {"m": {"reward": 1, "cost_usd": -1}}}, "cost_usd is -1.0"),
    (MatrixRow, ["p"], "holds a list; a row is one JSON object"),
]


@table_driven(("kind", "raw", "reason"), WRONG)
def test_an_invalid_row_is_reported(kind: type[Row], raw: Any, reason: str, tmp_path: Path) -> None:
    """A row that breaks its format becomes a problem with its line and a reason; its neighbours stay."""
    right = {Pair: PAIR, Rating: RATING, Choice: CHOICE, MatrixRow: MATRIX}[kind]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([json.dumps(right), "", json.dumps(raw), json.dumps(right)]))
    records = READERS[kind](path)
    assert len(records.rows) == 2
    assert [problem.line for problem in records.problems] == [3]
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(records.problems[0].reason)


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b'{"user": NaN}',
        b"\xff",
        b'{"user": "\\ud800"}',
        b"[" * 100_000,
        b'{"note":' * 5_000 + b"1" + b"}" * 5_000,
    ],
)
def test_an_invalid_line_is_reported(line: bytes, tmp_path: Path) -> None:
    """Broken JSON, broken UTF-8 and bottomless nesting are problems of their line, and reading goes on."""
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(PAIR).encode() + b"\r\n" + line + b"\n" + json.dumps(PAIR).encode())
    records = read_pairs(path)
    assert len(records.rows) == 2
    assert [problem.line for problem in records.problems] == [2]


def bad_numbers() -> list[Callable[[float], Row]]:
    """Makers of rows that put a number in each place where one can be."""
    text = Text(text="x")
    return [
        lambda x: Pair(user="u", prompt="p", a=text, b=text, label=x),
        lambda x: Pair(user="u", prompt="p", a=text, b=text, label=1.0, ts=x),
        lambda x: Pair(user="u", prompt="p", a=text, b=text, label=1.0, declared={"ts": x}),
        lambda x: Pair(user="u", prompt="p", a=text, b=text, label=1.0, extra={"deep": [{"er": x}]}),
        lambda x: Text(text="x", extra={"logprob": x}),
        lambda x: Rating(user="u", prompt="p", rating=x, scale=(0.0, 1.0)),
        lambda x: Rating(user="u", prompt="p", rating=0.0, scale=(0.0, x)),
        lambda x: Rating(user="u", prompt="p", rating=0.0, scale=(x - 1.0, 1.0)),
        lambda x: Cell(reward=x),
        lambda x: Cell(reward=0.0, cost_usd=x),
        lambda x: Cell(reward=0.0, latency_s=x),
    ]


@table_driven("number", [math.nan, math.inf, -math.inf])
@table_driven("make", bad_numbers())
def test_non_finite_numbers_are_refused(make: Callable[[float], Row], number: float) -> None:
    """NaN and the infinities are refused wherever a number can stand."""
    assert make(0.5)
    with pytest.raises(ValueError):
        make(number)


def test_extra_cannot_override_a_field() -> None:
    """`extra` with the name of a field would overwrite it when written, and is refused."""
    with pytest.raises(ValueError, match=r"\['user'\], which are fields"):
        MatrixRow(prompt="p", models={"m": Cell(reward=1.0)}, extra={"user": "u"})


def test_unknown_fields_are_kept(tmp_path: Path) -> None:
    """Unknown fields of a row and of its parts are read into `extra` and written where they were."""
    raw = PAIR | {"a": {"text": "x", "tokens": 5}, "country": "DE", "extra": {"k": None}, "label": 0.5}
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(raw))
    (row,) = read_pairs(path).rows
    assert (row.extra, row.a.extra) == ({"country": "DE", "extra": {"k": None}}, {"tokens": 5})
    write_jsonl(path, [row])
    assert json.loads(path.read_text()) == raw


def test_ratings_are_normalised() -> None:
    """`y` is 0 at the scale's lower end and 1 at its upper."""
    ys = [Rating(user="u", prompt="p", rating=r, scale=(1.0, 5.0)).y for r in (1.0, 2.0, 5.0)]
    assert ys == [0.0, 0.25, 1.0]


# --- files ---


@pytest.mark.parametrize("name", ["missing.jsonl", "missing.parquet", "rows.csv", "broken.parquet"])
def test_an_unreadable_file_is_named(name: str, tmp_path: Path) -> None:
    """The error of a missing or damaged file, or one of another type, names the file."""
    (tmp_path / "rows.csv").write_text("user,prompt\n")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(ConfigError, match=name):
        read_pairs(tmp_path / name)


def test_parquet_of_other_tools_is_read(tmp_path: Path) -> None:
    """Structures, decimals, dates and nulls of tables from other writers are read as their JSON equivalents."""
    import duckdb

    path = tmp_path / "rows.parquet"
    with duckdb.connect() as connection:
        connection.sql(
            """
            select 'u' as user, 'p' as prompt, {'text': 'x', 'model': null} as a, {'text': 'y', 'model': 'm'} as b,
                   0.5 as label, {'caution': 0.25, 'warmth': null} as declared, date '2024-05-01' as day, null as role
            union all select 'v', 'p', {'text': 'x', 'model': null}, null, 1.0, null, null, null
            """
        ).write_parquet(str(path))
    records = read_pairs(path)
    b = Text(text="y", model="m")
    pair = Pair(user="u", prompt="p", a=Text(text="x"), b=b, label=0.5, declared={"caution": 0.25})
    assert records.rows == [msgspec.structs.replace(pair, extra={"day": "2024-05-01"})]
    assert [problem.line for problem in records.problems] == [2]
    assert "`b`" in records.problems[0].reason


def test_parquet_columns_have_types(tmp_path: Path) -> None:
    """An unknown field on whose type all rows agree has a column of that type; one of several types is JSON."""
    import duckdb

    rows = [
        MatrixRow(prompt="p", models={"m": Cell(reward=1.0)}, extra={"n": 1, "mixed": 1, "big": 2**80}),
        MatrixRow(prompt="p", models={"k": Cell(reward=1.0)}, extra={"n": 2, "mixed": "one", "big": 1}),
    ]
    path = tmp_path / "rows.parquet"
    write_parquet(path, rows)
    with duckdb.connect() as connection:
        table = connection.from_parquet(str(path))
        types = dict(zip(table.columns, map(str, table.types), strict=True))
    assert {name: types[name] for name in ("n", "mixed", "big")} == {"n": "BIGINT", "mixed": "JSON", "big": "JSON"}
    assert read_matrix(path).rows == rows


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([], "give rows of one format"),
        ([Text(text="x"), Cell(reward=1.0)], "give rows of one format"),
        ([Text(text="x", extra={"Size": 1, "size": 2})], "differ in case"),
        ([Text(text="x", extra={"": 1})], "no column can be"),
        ([Text(text="\ud800")], "half a character"),
    ],
)
def test_rows_that_parquet_cannot_hold_are_refused(rows: list[Row], reason: str, tmp_path: Path) -> None:
    """No rows, rows of two formats, names that collide and broken text are refused before anything is written."""
    path = tmp_path / "rows.parquet"
    with pytest.raises(ValueError, match=reason):
        write_parquet(path, rows)
    assert not path.exists()
