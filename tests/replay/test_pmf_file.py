"""Anybody's own policy, as probabilities in a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.kits.replay import Town
from tests.kits.tables import table_driven

from fitrouter.errors import ConfigError
from fitrouter_evaluators.replay.candidates.load import load_candidate
from fitrouter_evaluators.replay.log.log import Log

SUFFIXES = (".csv", ".jsonl", ".parquet")


@cache
def log() -> Log:
    """Thirty draws over three arms, every third a sticky turn."""
    made = Town()
    for _ in range(15):
        made.request(made.request())
    return made.log()


def lines(rows: Sequence[int]) -> list[dict[str, Any]]:
    """A policy of these rows, arms in another order than the log's."""
    start, names, found = log().decisions.start, log().names.arms, []
    for row in rows:
        arms = [names[code] for code in log().options.arm[start[row] : start[row + 1]]]
        weights = np.random.default_rng(row).dirichlet(np.ones(len(arms)))
        found += [
            {"decision_id": str(log().decisions.id[row]), "arm": arm, "probability": float(weight)}
            for arm, weight in sorted(zip(arms, weights, strict=True), reverse=True)
        ]
    return found


def write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """A file of these lines, by its suffix."""
    if path.suffix == ".csv":
        path.write_text(
            "\n".join(["decision_id,arm,probability", *(",".join(str(v) for v in row.values()) for row in rows)]) + "\n"
        )
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        import duckdb

        columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        columns["decision_id"], columns["arm"] = (columns[name].astype(object) for name in ("decision_id", "arm"))
        with duckdb.connect() as connection:
            connection.register("lines", columns)
            connection.execute(f"COPY lines TO '{path}' (FORMAT parquet)")
    return path


DRAWS = np.arange(0, 30, 2)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_gives_its_probabilities(tmp_path: Path, suffix: str) -> None:
    """Whatever the format and the order of lines, each entry gets its own; other decisions' lines are passed over."""
    rows = [*lines(range(30)), {"decision_id": "another", "arm": "unheard of", "probability": 0.5}]
    np.random.default_rng(0).shuffle(rows)
    found = load_candidate({"pmf": str(write(tmp_path / f"p{suffix}", rows))}).pmf(log(), DRAWS[::-1])
    wanted = {(row["decision_id"], row["arm"]): row["probability"] for row in rows}
    start, names, at = log().decisions.start, log().names.arms, 0
    for row in DRAWS[::-1]:
        for code in log().options.arm[start[row] : start[row + 1]]:
            assert found[at] == pytest.approx(wanted[log().decisions.id[row], names[code]], rel=1e-12)
            at += 1
    assert at == len(found)


def test_omitted_arms_have_probability_0(tmp_path: Path) -> None:
    """Omitted arms have probability 0; sticky turns need no lines."""
    rows = [{"decision_id": log().decisions.id[row], "arm": "b", "probability": 1.0} for row in DRAWS]
    found = load_candidate({"pmf": str(write(tmp_path / "p.csv", rows))}).pmf(log(), np.arange(30))
    wanted = np.array(log().names.arms)[log().options.arm] == "b"
    drawn = np.repeat(np.isin(np.arange(30), DRAWS), 3)
    np.testing.assert_array_equal(found, np.where(drawn, wanted, 0.0))


@table_driven("suffix", [".csv", ".jsonl"])
@table_driven(
    ("line", "change", "message"),
    [
        (4, {"probability": "much"}, "row 5 has no probability between 0 and 1"),
        (4, {"probability": -0.1}, "row 5 has no probability between 0 and 1"),
        (7, {"arm": "z"}, "row 8 names an arm that is not in a test: there are a, b, c"),
        (1, {"arm": "a"}, "row . repeats an arm of its decision"),
        (0, {"probability": 0.0}, r"row 1 begins the probabilities of row \d+ \(decision .*\), which sum to 0\."),
    ],
)
def test_invalid_lines_are_named(tmp_path: Path, suffix: str, line: int, change: dict[str, Any], message: str) -> None:
    """The error names the row and the problem."""
    rows = lines(DRAWS.tolist())
    rows[line] = rows[line] | change
    with pytest.raises(ConfigError, match=message):
        load_candidate({"pmf": str(write(tmp_path / f"p{suffix}", rows))}).pmf(log(), DRAWS)


def test_every_draw_needs_probabilities(tmp_path: Path) -> None:
    """A draw without lines is named, with the number of others."""
    path = write(tmp_path / "p.csv", lines(DRAWS[3:].tolist()))
    with pytest.raises(
        ConfigError, match=rf"no probabilities for row \d+ \(decision '{log().decisions.id[0]}'\) .* 2 other draws"
    ):
        load_candidate({"pmf": str(path)}).pmf(log(), DRAWS)


def test_mass_on_ineligible_arms_is_refused(tmp_path: Path) -> None:
    """Probability on an ineligible arm is refused."""
    made = Town()
    made.live(2)
    made.join("d")
    made.live(1)
    late = made.log()
    rows = [{"decision_id": late.decisions.id[i], "arm": "d", "probability": 1.0} for i in range(3)]
    with pytest.raises(ConfigError, match=r"row 1 gives 'd' a probability in row .*, where it was not eligible"):
        load_candidate({"pmf": str(write(tmp_path / "p.csv", rows))}).pmf(late, np.arange(3))


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    """A missing file, another type, and missing columns are refused by name."""
    (tmp_path / "p.csv").write_text("decision_id,arm\nx,y\n")
    (tmp_path / "q.parquet").write_bytes(b"PAR1 no")
    for name, message in (
        ("none.csv", "cannot be read"),
        ("p.txt", r"ends in '\.txt'; it must end in one of \.csv, \.jsonl, \.parquet"),
        ("p.csv", "must have the columns decision_id, arm, probability"),
        ("q.parquet", "cannot be read"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_candidate({"pmf": str(tmp_path / name)}).pmf(log(), DRAWS)
