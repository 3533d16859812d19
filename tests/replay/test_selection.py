"""Tables of other programs as they come: columns are guessed or asked for, bad lines are named, models are compared."""

from __future__ import annotations

import csv
import gzip
import json
import math
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from typer.testing import CliRunner, Result

from fitrouter.errors import ConfigError
from fitrouter_evaluators.replay.candidates.load import load_candidate
from fitrouter_evaluators.replay.evaluation import ReplaySettings, compare_models, evaluate
from fitrouter_evaluators.replay.importing.import_log import imported
from fitrouter_evaluators.replay.importing.selection import complete, quoted
from fitrouter_evaluators.replay.importing.tables import is_table, open_table
from fitrouter_evaluators.replay.log.log import Log
from fitrouter_evaluators.replay.log.sources import read_log
from fitrouter_evaluators.replay.render.render_text import text
from fitrouter_integrations import cli

CHANCE = {"small": 0.7, "big": 0.3}
WORTH = {"small": 0.4, "big": 0.6}
HEADER = "timestamp,User ID,model_name,propensity,rating,cost"


def rows(n: int, seed: int = 0) -> list[tuple[str, str, str, float, int, float]]:
    """Ratings from 1 to 5 of two models that were drawn with known probabilities."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(n):
        arm = "small" if rng.random() < CHANCE["small"] else "big"
        stars = 1 + int(rng.binomial(4, WORTH[arm]))
        made.append((f"2026-10-01T{i // 3600 % 24:02d}:{i // 60 % 60:02d}:{i % 60:02d}Z", f"u{i % 30}", arm))
        made[-1] += (CHANCE[arm], stars, 0.001)
    return made


def write(path: Path, made: list[tuple[object, ...]], header: str = HEADER, delimiter: str = ",") -> Path:
    lines = [header.replace(",", delimiter), *(delimiter.join(map(str, row)) for row in made)]
    content = "\n".join([*lines, ""])
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(content.encode()))
    else:
        path.write_text(content, encoding="utf-8")
    return path


def log_of(path: Path, given: str | None = None) -> Log:
    with imported(path, given) as found:
        return read_log(found.folder)


def guessed(path: Path, given: str | None = None) -> str:
    """The expressions of a selection that is completed."""
    with duckdb.connect() as connection:
        return complete(open_table(path, connection), given).expressions


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, ["replay", *(str(argument) for argument in arguments)])


def compared(log: Log) -> dict[str, tuple[float, float, float]]:
    found = compare_models(log, load_candidate("current"), ReplaySettings())
    return {row.policy: (row.value, row.low, row.high) for row in found}


def test_the_columns_of_every_format_are_guessed(tmp_path: Path) -> None:
    """CSV with any delimiter, gzipped, JSON and Parquet give the same answer; `--select` takes the guess."""
    made = rows(400)
    names = HEADER.split(",")
    plain = write(tmp_path / "log.csv", made)
    files = [
        plain,
        write(tmp_path / "german.csv", made, delimiter=";"),
        write(tmp_path / "log.tsv", made, delimiter="\t"),
        write(tmp_path / "log.csv.gz", made),
        tmp_path / "log.jsonl",
        tmp_path / "log.parquet",
    ]
    files[4].write_text("\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in made))
    with duckdb.connect() as connection:
        connection.execute(f"COPY (FROM read_csv('{plain}')) TO '{files[5]}' (FORMAT parquet)")
    answers = []
    for file in files:
        assert is_table(file)
        said = guessed(file)
        assert said == (
            'model_name AS arm, rating AS reward, propensity AS propensity, "timestamp" AS time, '
            '"User ID" AS "user", cost AS cost_usd, 1 AS worst, 5 AS best'
        )
        answers.append(compared(log_of(file)))
        assert compared(log_of(file, said)) == answers[-1]
    assert answers == [answers[0]] * len(files)


def test_pmf_columns_times_and_words_are_guessed(tmp_path: Path) -> None:
    """A column per model is a pmf; a number of a time has its unit; thumbs are words; a rating may be missing."""
    lines = [(1790812800000 + 1000 * i, "ab"[i % 2], "up" if i % 3 else "", 0.25, 0.75) for i in range(40)]
    path = write(tmp_path / "log.csv", lines, "ts,action,thumb,p_a,p_b")
    assert guessed(path).endswith("MAP {'a': p_a, 'b': p_b} AS pmf, 0 AS worst, 1 AS best")
    log = log_of(path)
    assert log.decisions.ts[0] == 1790812800.0
    assert int(np.isnan(log.outcomes.asked_label).sum()) == 14
    assert set(log.options.prob) == {0.25, 0.75}


def test_what_is_given_is_not_guessed_anew(tmp_path: Path) -> None:
    """A column that an expression uses is not taken for another part; one whose name only holds it is."""
    path = write(tmp_path / "log.csv", [("a", 0.5, 3), ("b", 0.5, 5)], "model,p,y")
    assert guessed(path, "y AS reward") == "y AS reward, model AS arm, p AS propensity, 1 AS worst, 5 AS best"
    assert guessed(path, "lower(model) AS arm, 0 AS worst, 9 AS best") == (
        "lower(model) AS arm, 0 AS worst, 9 AS best, y AS reward, p AS propensity"
    )
    assert guessed(path, "y AS reward -- stars").endswith(
        "-- stars\n, model AS arm, p AS propensity, 1 AS worst, 5 AS best"
    )
    with pytest.raises(ConfigError, match="no column of probabilities"):
        guessed(path, "p AS cost_usd")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("wer,was,wie,p", "the model that was chosen and the rating or reward? Columns are 'wer', 'was', 'wie', 'p'"),
        ("wer,model,wie,p", "Type: --select 'model AS arm, p AS propensity, COLUMN AS reward'"),
        ("wer,model,rating,odds", "type: --select 'model AS arm, rating AS reward, COLUMN AS propensity'"),
        ("wer,model,rating,odds", "--select \"model AS arm, rating AS reward, 'uniform' AS mode\""),
        ("model,Model,rating,p", "several columns 'model', 'Model'; rename all but one"),
        ("wer,model,rating,rating", "several columns 'rating', 'rating'"),
    ],
)
def test_what_cannot_be_guessed_is_asked_for(tmp_path: Path, header: str, message: str) -> None:
    """The message has the text to type; typed with the columns, it works."""
    path = write(tmp_path / "log.csv", [("x", "a", 3, 0.5), ("y", "b", 5, 0.5)], header)
    with pytest.raises(ConfigError) as refused:
        guessed(path)
    assert message in str(refused.value)
    if header == "wer,was,wie,p":
        assert log_of(path, "was AS arm, wie AS reward, p AS propensity").decisions.n == 2
        uniform = "was AS arm, wie AS reward, 0 AS worst, 10 AS best, 'uniform' AS mode"
        assert log_of(path, uniform).options.prob.tolist() == [0.5] * 4


@pytest.mark.parametrize("given", ["a AS arm", "'x' AS mode", '"o\'clock" AS time', "'$5' AS id, \"x\" AS arm"])
def test_the_text_to_type_is_one_argument(given: str) -> None:
    """A shell gives back what was quoted for it."""
    assert shlex.split(quoted(given)) == [given]


def test_an_unusual_scale_is_asked_for(tmp_path: Path) -> None:
    """The best and the worst value of a reward beyond the usual scales are the user's to say."""
    path = write(tmp_path / "log.csv", [("a", 250, 0.5), ("b", -3, 0.5)], "model,reward,p")
    with pytest.raises(ConfigError, match="Type: --select '-3 AS worst, 250 AS best' if these are they"):
        guessed(path)
    assert log_of(path, "-10 AS worst, 300 AS best").decisions.n == 2


@pytest.mark.parametrize("p", ["nan", "inf", "-0.5", "0", "1.5", "", "half"])
def test_hostile_propensities_are_named_by_line(tmp_path: Path, p: str) -> None:
    """Every propensity outside (0, 1] is an error with its line; it can be skipped."""
    path = write(tmp_path / "log.csv", [("a", 1, 0.5), ("b", 0, p), ("b", 1, 0.5)], "model,reward,p")
    result = run("--log", path)
    assert result.exit_code == 3
    assert "line 3: the propensity is" in result.stderr
    assert "Traceback" not in result.output
    assert run("--log", path, "--skip-bad").exit_code == 0


@pytest.mark.parametrize("limit", [1 << 17, sys.maxsize], ids=["as Python", "as a library raised it"])
def test_hostile_files_are_refused_with_what_is_wrong(tmp_path: Path, limit: int, request: Any) -> None:
    """Encodings, headers and rows that no program should write: one message each, whatever the csv module's limit."""
    request.addfinalizer(partial(csv.field_size_limit, csv.field_size_limit(limit)))
    header = b"model,reward,p\n"
    cases = {
        "utf16.csv": ("model,reward,p\na,1,0.5\n".encode("utf-16"), "UTF-16; save it as UTF-8"),
        "latin.csv": (header + "é,1,0.5\n".encode("latin-1") + b"a,1,0.5\n", "line 2: it is not UTF-8"),
        "empty.csv": (b"", "is empty"),
        "header.csv": (header, "no rows"),
        "endless.csv": (b"x" * (5 << 20), "cannot be read"),
        "row.csv": (header + b"a,1,0.5\n" + b"b" * (3 << 20) + b",1,0.5\n", "line 3: it is longer than 2 MB"),
        "ragged.csv": (header + b"a,1,0.5\nb,1\n", "line 3: it has fewer columns"),
        "no.jsonl": (b'{"model": "a", "reward": 1, "p": 0.5}\n{"model": \n', "line 2 is not JSON"),
        "list.jsonl": (b"[1]\n[2]\n", "not an array of objects; write [{…}, {…}], or an object a line"),
        "no.parquet": (b"PAR1", "is not a Parquet file"),
        "infinite.csv": (header + b"a,1,0.5\nb,inf,0.5\n", "line 3: the reward is 'inf'"),
    }
    for name, (content, words) in cases.items():
        path = tmp_path / name
        path.write_bytes(content)
        result = run("--log", path)
        assert (result.exit_code, "Traceback" in result.output) == (3, False), name
        assert words in result.stderr, (name, result.stderr)


def test_propensities_alone_say_whether_a_model_is_better(tmp_path: Path) -> None:
    """The logged value is the mean of the outcomes; the intervals of the differences cover the truth."""
    truth = {arm: WORTH[arm] - sum(CHANCE[k] * WORTH[k] for k in CHANCE) for arm in CHANCE}
    missed = 0
    for seed in range(20):
        made = rows(300, seed)
        log = log_of(write(tmp_path / f"{seed}.csv", made))
        assert np.isnan(log.options.prob).all()
        found = compared(log)
        assert found["against"][0] == pytest.approx(np.mean([(row[4] - 1) / 4 for row in made]), abs=1e-12)
        for arm, worth in truth.items():
            missed += not found[arm][1] <= worth <= found[arm][2]
    assert missed <= 4  # 40 intervals at 97.5%: more than 4 misses have a chance of 0.3%
    report = evaluate(log, load_candidate({"fixed": "big"}), load_candidate("current"), ReplaySettings())
    (row,) = [e for e in report.estimates if (e.policy, e.estimator, e.interval) == ("difference", "dr", "delta")]
    assert row.labels == "observed"
    assert row.low < truth["big"] < row.high
    assert all(math.isfinite(e.value) for e in report.estimates)


def test_words_are_right_for_imports(tmp_path: Path) -> None:
    """Nobody was asked, and nothing is ticked that was not checked."""
    log = log_of(write(tmp_path / "log.csv", rows(200)))
    report = evaluate(log, load_candidate({"fixed": "big"}), load_candidate("current"), ReplaySettings())
    shown = text(report)
    assert "asked" not in shown.split("AUDIT")[0]
    assert "requested label" not in shown
    assert "all with their outcome" in shown
    assert {check.name: check.checked for check in report.checks}["draws repeated from their seeds"] is False
    ticks = [line for line in shown.splitlines() if line.startswith("✓")]
    assert len(ticks) == sum(check.checked for check in report.checks)
    assert not [line for line in ticks if "not possible" in line]


def test_replay_of_a_table_from_the_command_line(tmp_path: Path) -> None:
    """What everybody types answers first; a model by its name in a few lines; all tables with `--full`."""
    path = write(tmp_path / "log.csv", rows(600))
    first = run("--log", path)
    assert first.exit_code == 0, first.stderr
    assert "log.csv was read with --select 'model_name AS arm, rating AS reward" in first.stderr
    assert [line.split()[-1] for line in first.stdout.splitlines() if "always" in line] == ["worse", "better"]
    brief, full = (run("--log", path, "--candidate", "big", *more) for more in ((), ("--full",)))
    assert brief.exit_code == full.exit_code == 0
    assert len(brief.stdout.splitlines()) <= 16
    assert "value, candidate" in brief.stdout
    assert "AUDIT OF THE LOG" in full.stdout
    assert "AUDIT OF THE LOG" not in brief.stdout
    unknown = run("--log", path, "--candidate", "huge")
    assert unknown.exit_code == 3
    assert "there are big, small" in unknown.stderr
    assert "leave it out" in run("--log", tmp_path, "--select", "x AS arm").stderr


def test_a_place_to_record_is_checked_first(tmp_path: Path) -> None:
    """Without a warehouse `--record` is refused before anything is read."""
    missing = run("--log", tmp_path / "nothing.csv", "--candidate", "big", "--record")
    assert missing.exit_code == 3
    assert "--record: there is no warehouse" in missing.stderr
