"""Laws of the grammar of remarks: what it reads, what it leaves alone, and its bounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kits.tables import table_driven

from fitrouter.config import ScorerConfig
from fitrouter_evaluators.scoring.plugin import ScorerService, make_scorer
from fitrouter_evaluators.scoring.statements.remarks import LONGEST, read_remark
from fitrouter_evaluators.scoring.text.style import STYLE

PATH = Path(__file__).parents[1] / "data" / "remarks.jsonl"
ROWS = [json.loads(line) for line in PATH.read_text(encoding="utf-8").splitlines()]
SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture(scope="module")
def scorer() -> ScorerService:
    return make_scorer(ScorerConfig())


def rows(group: str) -> list[dict[str, Any]]:
    return [row for row in ROWS if row["group"] == group]


def sides(moved: dict[str, float]) -> dict[str, int]:
    return {name: 1 if value > 0 else -1 for name, value in moved.items()}


def is_right(row: dict[str, Any]) -> bool:
    found = read_remark(row["text"])
    return found is not None and found.y == row.get("y") and sides(found.moved) == row["moved"]


@pytest.mark.parametrize(("group", "recall"), [("passing", 0.95), ("fresh passing", 0.6)])
def test_remarks_in_passing_are_read(group: str, recall: float) -> None:
    """Most remarks are read, and what is read is right. The fresh ones were written after the grammar."""
    read = [row for row in rows(group) if read_remark(row["text"]) is not None]
    right = [row for row in read if is_right(row)]
    assert len(right) >= recall * len(rows(group))
    assert len(right) >= 0.98 * len(read)


def test_new_tasks_say_nothing() -> None:
    """At most 2% of topical messages with the words of remarks are read as one."""
    topical = rows("topical") + rows("fresh topical")
    assert len(topical) >= 120
    assert sum(read_remark(row["text"]) is not None for row in topical) <= 0.02 * len(topical)


def test_no_prompt_of_benchmarks_is_a_remark() -> None:
    """Questions of MT-bench, which open a conversation or continue it with a task, say nothing about an answer."""
    path = SHARED / "mt_bench_human" / "question.jsonl"
    if not path.is_file():
        pytest.skip("no data")
    turns = [turn for line in path.read_text(encoding="utf-8").splitlines() for turn in json.loads(line)["turns"]]
    assert not any(map(read_remark, turns))


@pytest.mark.parametrize(("group", "right", "wrong"), [("comment", 0.8, 0.05), ("fresh comment", 0.5, 0.1)])
def test_comments_are_parsed(scorer: ScorerService, group: str, right: float, wrong: float) -> None:
    """Dimensions on the right and the wrong side. Comments on the content move nothing, and the reply says so."""
    good = bad = total = 0
    for row in rows(group):
        said = scorer.comment(row["text"])
        found = sides(said.moved)
        total += len(row["moved"])
        good += sum(found.get(name) == side for name, side in row["moved"].items())
        bad += sum(found.get(name) == -side for name, side in row["moved"].items())
        if not row["moved"]:
            assert not found
            assert said.not_understood
    assert good >= right * total
    assert bad <= wrong * total


def test_every_dimension_exists(scorer: ScorerService) -> None:
    """The dimensions of the phrases are style dimensions of answers."""
    assert {name for row in ROWS for name in row["moved"]} <= {dimension.name for dimension in STYLE}
    assert all(set(scorer.comment(row["text"]).moved) <= set(scorer.names) for row in rows("comment"))


PIECES = ("shorter ", ",", "a,", "no ", ". ", "too ", "not ", "\x1b[31m\x00", "ﷺ", "\ud800", "a bit ", "( ", "😡", "\n")
HOSTILE = tuple((piece * LONGEST)[:LONGEST] for piece in PIECES)


@table_driven("text", HOSTILE)
def test_hostile_text_is_bounded(scorer: ScorerService, text: str) -> None:
    """No text raises; a comment is read up to sixteen clauses, and a message that is too long not at all."""
    read_remark(text)
    said = scorer.comment(text[:1000].encode("utf-8", "replace").decode())
    assert len(said.not_understood) <= 16
    assert read_remark(text + "x" * LONGEST) is None


WORDS = ["shorter", "no", "not", "too", ",", ".", "?", "!", "and", "but", "thanks", "it", "is", "lists", "please"]


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=LONGEST + 10) | st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join))
def test_no_text_raises(text: str) -> None:
    """Any text is read or left alone; values are −1 or 1 and praise is 0 or 1."""
    found = read_remark(text)
    if found is not None:
        assert found.moved or found.y in (0.0, 1.0)
        assert set(found.moved.values()) <= {-1.0, 1.0}
