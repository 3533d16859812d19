"""`fitrouter bench` on a user's own files, public datasets, invalid lines and wrong names."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.kits.datasets import folder
from typer.testing import CliRunner, Result

from fitrouter.errors import ConfigError
from fitrouter_evaluators.datasets import (
    Cell,
    Choice,
    MatrixRow,
    Pair,
    Rating,
    Text,
    read_matrix,
    read_pairs,
    write_jsonl,
    write_parquet,
)
from fitrouter_integrations import cli
from fitrouter_integrations.commands.experiments.bench import app

LONG = "Vaccines train the body. " * 30
LISTED = "- Vaccines train the body\n- They are safe\n- They last"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def _pairs() -> list[Pair]:
    rng = np.random.default_rng(0)
    rows = []
    for u in range(12):
        for i in range(25):
            likes_lists = float(rng.random() < (0.9 if u % 2 else 0.1))
            rows.append(Pair(f"u{u}", f"Question {i}?", Text(f"{LISTED} {i}"), Text(f"{LONG} {i}"), likes_lists))
    return rows


def test_pairs_from_a_file(tmp_path: Path) -> None:
    """The results are printed as a table and written as JSON; users' own labels improve their predictions."""
    data, out = tmp_path / "mine.jsonl", tmp_path / "out.json"
    write_jsonl(data, _pairs())
    result = run("pairs", "--data", data, "--json", out, "--seeds", 2)
    assert result.exit_code == 0, result.output
    assert "hierarchical" in result.output
    assert "k = 20" in result.output
    found = json.loads(out.read_bytes())
    by_row = {(row["row"], row["k"]): row["mean"] for row in found["results"] if row["metric"] == "accuracy"}
    assert by_row["hierarchical", 20] > by_row["global", 0] + 0.2


def test_ratings_from_a_file(tmp_path: Path) -> None:
    """The same for ratings; an invalid line is counted and skipped."""
    rng = np.random.default_rng(0)
    rows = []
    for u in range(12):
        for i in range(40):
            rating = 3.0 + (1 if u % 2 else -1) * (1 if i % 2 else -1) + 0.3 * rng.normal()
            text = f"{LISTED if i % 2 else LONG} {i}"
            rows.append(Rating(f"u{u}", f"Question {i}?", float(np.clip(rating, 1, 5)), (1.0, 5.0), text))
    data, out = tmp_path / "mine.jsonl", tmp_path / "out.json"
    write_jsonl(data, rows)
    with data.open("a") as file:
        file.write('{"user": "u1"}\n')
    result = run("ratings", "--data", data, "--json", out, "--seeds", 2, "--k", 10)
    assert result.exit_code == 0, result.output
    found = json.loads(out.read_bytes())
    assert len(found["problems"]) == 1
    results = found["dimensions"]["overall"]["results"]
    by_row = {(row["row"], row["k"]): row["mean"] for row in results if row["metric"] == "user rmse"}
    assert by_row["hierarchical", 10] < 0.8 * by_row["global", 0]


def test_choices_from_a_file(tmp_path: Path) -> None:
    """A stated preference picks the option that fits it."""
    data, out = tmp_path / "mine.jsonl", tmp_path / "out.json"
    write_jsonl(
        data,
        [
            Choice(f"{who}-{i}", (words,), f"Question {i}?", (f"{LISTED} {i}", f"{LONG} {i}"), best)
            for i in range(10)
            for who, words, best in (("more", "I love bullet points.", 0), ("less", "I hate bullet points.", 1))
        ],
    )
    result = run("choices", "--data", data, "--json", out)
    assert result.exit_code == 0, result.output
    assert json.loads(out.read_bytes())["accuracy"]["declared"]["mean"] == 1.0


def test_convert_writes_a_public_dataset(tmp_path: Path) -> None:
    """`convert` writes what the loader reads back."""
    out = tmp_path / "mt.jsonl"
    result = run("convert", "mt_bench", folder("mt_bench_human"), out)
    assert result.exit_code == 0, result.output
    assert len(read_pairs(out).rows) == 3355


def _matrix(n: int, users: bool = False) -> list[MatrixRow]:
    """Three models: a dear good one, a cheap one that is good at every other prompt, and a bad one."""
    rows = []
    for i in range(n):
        easy = i % 2
        cells = {
            "good": Cell(reward=0.9, cost_usd=0.01),
            "cheap": Cell(reward=0.9 if easy else 0.3, cost_usd=0.001),
            "bad": Cell(reward=0.1, cost_usd=0.0005),
        }
        topic = "add the small numbers" if easy else "prove the deep theorem"
        rows.append(MatrixRow(prompt=f"{topic} {i}", models=cells, user=f"u{i % 5}" if users else None))
    return rows


def test_a_matrix_from_a_file(tmp_path: Path) -> None:
    """Policies, a curve under cost ceilings and the standard metrics are printed and written as JSON."""
    data, out = tmp_path / "mine.jsonl", tmp_path / "out.json"
    write_jsonl(data, _matrix(120))
    with data.open("a") as file:
        file.write('{"prompt": "p"}\n')
    result = run("matrix", "--data", data, "--json", out, "--seeds", 2, "--default", "cheap", "--encoder", "hashing")
    assert result.exit_code == 0, result.output
    for words in ("best single: good", "default: cheap", "fixed: bad", "user-blind", "ours", "oracle", "aiq"):
        assert words in result.output
    found = json.loads(out.read_bytes())
    assert len(found["problems"]) == 1
    rewards = {row["policy"]: row["reward"] for row in found["table"]}
    assert rewards["random"] < rewards["ours"] <= rewards["oracle"] + 1e-12
    assert len(found["curve"]) > 2
    two = run("matrix", "--data", data, "--seeds", 1, "--ceiling", "0.002", "--ceiling", "0.005", "--json", out)
    assert two.exit_code == 0, two.output
    assert [row["ceiling_usd"] for row in json.loads(out.read_bytes())["curve"]] == [0.002, 0.005]


def test_a_matrix_with_users_reports_their_spread(tmp_path: Path) -> None:
    """The variance between users and the worst decile are reported; `--no-curve` skips the curve."""
    data, out = tmp_path / "users.parquet", tmp_path / "out.json"
    write_parquet(data, _matrix(60, users=True))
    result = run("matrix", "--data", data, "--seeds", 1, "--no-curve", "--json", out, "--encoder", "hashing")
    assert result.exit_code == 0, result.output
    assert "decile" in result.output
    assert "under a ceiling" not in result.output
    assert json.loads(out.read_bytes())["curve"] == []


def test_convert_writes_public_matrices(tmp_path: Path) -> None:
    """The matrix converters write rows that the benchmark reads."""
    out = tmp_path / "pb.jsonl"
    result = run("convert", "paretobandit", folder("paretobandit"), out)
    assert result.exit_code == 0, result.output
    assert "wrote 1766 matrix rows" in result.output
    assert len(read_matrix(out).rows) == 1766


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("pairs", "--data", "nowhere.jsonl"), "nowhere.jsonl"),
        (("convert", "mt_banch", "x", "y.jsonl"), "there are mt_bench"),
        (("pairs", "--data", "two.jsonl"), "two.jsonl"),
        (("matrix", "--data", "two.jsonl"), "two.jsonl"),
        (("matrix", "--data", "matrix.jsonl", "--default", "best"), "'best'"),
    ],
)
def test_errors_are_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], words: str
) -> None:
    """A missing file, an unknown dataset, a file that is too small or has another format: one message each."""
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "matrix.jsonl", _matrix(4))
    write_jsonl(tmp_path / "two.jsonl", _pairs()[:2])
    result = run(*arguments)
    assert isinstance(result.exception, ConfigError)
    assert words in str(result.exception)


def test_a_missing_extra_is_one_message(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing dependency is reported with its extra, without a traceback."""

    def missing() -> None:
        raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")

    monkeypatch.setattr(cli, "app", missing)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert "'sklearn'" in capsys.readouterr().err
