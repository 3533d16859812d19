"""Rows of the development table: stated choices."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.research._development import stated_choices

OPTIONS = ("short", "a much longer option", "of middling length")


def written(path: Path) -> None:
    """A file of choices in which one user wants long answers and the other short ones."""
    rows = [
        {"user": user, "declared": [statement], "prompt": "?", "options": OPTIONS, "best": best}
        for user, statements, best in (
            ("long-more", ("I like long answers.", "Go into detail."), 1),
            ("long-less", ("Keep it short.", "No long answers."), 0),
        )
        for statement in statements
        for _ in range(3)
    ]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


def test_stated_choices_without_the_set_are_empty(tmp_path: Path) -> None:
    """A folder without the set gives no rows."""
    assert stated_choices(tmp_path, "hashing") == []


def test_stated_choices_have_a_row_for_each_way_to_choose(tmp_path: Path) -> None:
    """A row for each way to choose, with an interval around its mean, and one for the twins."""
    (tmp_path / "choices").mkdir()
    written(tmp_path / "choices" / "declared.jsonl")
    rows = stated_choices(tmp_path, "hashing")
    assert {row.row for row in rows if row.metric == "accuracy"} == {
        "declared",
        "longest",
        "shortest",
        "first",
        "random",
    }
    assert {row.metric for row in rows} == {"accuracy", "negated twins reverse"}
    assert all(row.low <= row.mean <= row.high for row in rows)
