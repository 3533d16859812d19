"""No verdict from a log that bears none: wrong propensities, a handful of rows, one session; intervals have a width."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.kits.tables import table_driven
from typer.testing import CliRunner

from fitrouter.errors import ConfigError, InvalidLog
from fitrouter_evaluators.replay.candidates.load import load_candidate
from fitrouter_evaluators.replay.evaluation import ReplaySettings, compare_models, evaluate
from fitrouter_evaluators.replay.gate_file import load_gate
from fitrouter_evaluators.replay.importing.import_log import imported
from fitrouter_evaluators.replay.log.audit import audit
from fitrouter_evaluators.replay.log.log import Log
from fitrouter_evaluators.replay.log.sources import read_log
from fitrouter_evaluators.replay.render import verdict
from fitrouter_evaluators.replay.report import Report
from fitrouter_integrations import cli

Row = dict[str, Any]


def log_of(folder: Path, rows: list[Row], given: str | None = None) -> Log:
    file = folder / "log.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    with imported(file, given) as found:
        return read_log(found.folder)


def report_of(log: Log, candidate: str = "a", metric: str = "fit") -> Report:
    settings = ReplaySettings(metric=metric)
    return evaluate(log, load_candidate({"fixed": candidate}), load_candidate("current"), settings)


def refusals(log: Log) -> set[str]:
    """Why the comparison of every model with what ran has no verdict."""
    return {row.biased for row in compare_models(log, load_candidate("current"), ReplaySettings())[:-1]}


def drawn(n: int, true: dict[str, float], logged: dict[str, float], seed: int = 0, **more: Any) -> list[Row]:
    """Rows of models that are drawn with some probabilities and logged with others."""
    rng = np.random.default_rng(seed)
    arms = list(true)
    return [
        {"model": (arm := str(rng.choice(arms, p=list(true.values())))), "propensity": logged[arm]}
        | {"reward": int(rng.random() < (0.7 if arm == "a" else 0.4))}
        | {name: value(i) for name, value in more.items()}
        for i in range(n)
    ]


HALF, FOUR = {"a": 0.5, "b": 0.5}, dict.fromkeys("abcd", 0.25)


@table_driven(
    ("true", "logged", "said"),
    [
        ({"a": 0.8, "b": 0.2}, HALF, "the log fails its audit (choices of each arm: the largest mean weight is 1."),
        ({"a": 0.2, "b": 0.8}, HALF, "of 'b'"),
        (HALF, {"a": 0.25, "b": 0.25}, "the log fails its audit"),
        (HALF, {"a": 0.9, "b": 0.1}, "the log fails its audit"),
        (HALF, {"a": 1.0, "b": 1.0}, "could not always be drawn"),
        (FOUR, dict.fromkeys("abcd", 0.5), "the mean importance weight of candidate is 0."),
        (HALF, HALF, ""),
        ({"a": 0.8, "b": 0.2}, {"a": 0.8, "b": 0.2}, ""),
        ({"a": 0.95, "b": 0.05}, {"a": 0.95, "b": 0.05}, ""),
        (FOUR, FOUR, ""),
    ],
)
def test_wrong_propensities_bear_no_verdict(
    tmp_path: Path, true: dict[str, float], logged: dict[str, float], said: str
) -> None:
    """They are found from the drawn models' propensities alone, with the remedy; right ones raise no alarm."""
    log = log_of(tmp_path, drawn(600, true, logged))
    report = report_of(log)
    if not said:
        assert (refusals(log), report.refused) == ({""}, "")
        assert all(check.ok for check in report.checks)
        return
    assert said in report.refused
    assert "log the probability with which the model was drawn" in report.refused
    assert verdict(report) == f"No verdict: {report.refused}."
    assert any(refusals(log))


def test_right_propensities_raise_no_alarm(tmp_path: Path) -> None:
    """In none of some logs of all sizes, also of models that are hardly ever drawn."""
    for seed in range(6):
        rng = np.random.default_rng(seed)
        chances = dict(zip("abc", rng.dirichlet([2.0, 2.0, 0.3]).tolist(), strict=True))
        checks = audit(log_of(tmp_path, drawn(int(rng.integers(30, 400)), chances, chances, seed)))
        assert all(check.ok for check in checks), (chances, checks)


def test_a_gate_never_decides_on_them(tmp_path: Path) -> None:
    """It raises, as on a log that fails any audit."""
    log = log_of(tmp_path, drawn(600, {"a": 0.8, "b": 0.2}, HALF))
    rules = tmp_path / "promote.yaml"
    rules.write_text("min_units: 10\n")
    with pytest.raises((InvalidLog, ConfigError)):
        evaluate(log, load_candidate({"fixed": "a"}), load_candidate("current"), ReplaySettings(), load_gate(rules))


def halves(n: int, **more: Any) -> list[Row]:
    return [
        {"model": "ab"[i % 2], "reward": i % 2, "propensity": 0.5} | {name: value(i) for name, value in more.items()}
        for i in range(n)
    ]


def sessions(n: int) -> list[Row]:
    """Rows in n sessions, and one much later, after which they are closed."""
    rows = halves(60, session=lambda i: f"s{i % n}", time=lambda i: 1.7e9 + i)
    return [*rows, rows[0] | {"session": "later", "time": 1.8e9}]


@table_driven(
    ("rows", "given", "enough"),
    [
        (halves(1), None, False),
        (halves(2), None, False),
        (halves(29), None, False),
        (halves(30), None, True),
        (sessions(1), "session", False),
        (sessions(9), "session", False),
        (sessions(10), "session", True),
        (halves(60, reward=lambda _: 1), None, True),
        (halves(60, reward=lambda _: 0), None, True),
        (halves(60, reward=lambda _: 0.5), None, True),
        (halves(60, model=lambda _: "a", propensity=lambda _: 1.0), None, True),
        (halves(60, cost=lambda _: 0.25), None, True),
        (halves(2, p_a=lambda _: 0.5, p_b=lambda _: 0.5), None, False),
        (halves(60, reward=lambda _: 1, p_a=lambda _: 0.5, p_b=lambda _: 0.5), None, True),
    ],
)
def test_small_and_uniform_logs(tmp_path: Path, rows: list[Row], given: str | None, enough: bool) -> None:
    """Fewer than 30 rows or 10 sessions bear no verdict; no interval has a width of zero or a limit that is NaN."""
    log = log_of(tmp_path, rows, given)
    reason = refusals(log)
    assert all(bool(each) is not enough for each in reason), reason
    if not enough:
        more = ["--select", given] if given else []
        said = CliRunner().invoke(cli.app, ["replay", "--log", str(tmp_path / "log.jsonl"), *more])
        assert said.exit_code == 0, said.output
        assert not {"better", "worse"} & set(said.output.split()), said.output
    for metric in ("fit", "cost"):
        report = report_of(log, metric=metric)
        assert bool(report.refused) is not enough
        for row in (*report.estimates, *report.bands):
            assert not math.isnan(row.low + row.high) or math.isinf(row.low), row
            assert row.low < row.high, row


def test_a_reward_that_is_no_number_is_refused(tmp_path: Path) -> None:
    """With the row and the scale."""
    for bad in ("nan", "inf", "great"):
        with pytest.raises(InvalidLog, match=f"row 3: the reward is '.?{bad}.?'; the scale is 0 to 1"):
            log_of(tmp_path, [*halves(2), {"model": "a", "reward": bad, "propensity": 0.5}], "0 AS worst, 1 AS best")


ROWS = halves(40)
PATHS = '"out".model AS arm, "out".stars AS reward, 5 AS worst, 4 AS best, meta.p.p AS propensity'
NESTED = [{"out": {"model": each["model"], "stars": 5 - each["reward"]}, "meta": {"p": {"p": 0.5}}} for each in ROWS]


@table_driven(
    ("name", "text", "given", "message"),
    [
        ("a.json", json.dumps(ROWS), None, ""),
        ("a.json", json.dumps(ROWS, indent=2), None, ""),
        ("a.json", "\n \n" + json.dumps(ROWS), None, ""),
        ("a.json", "\n".join(map(json.dumps, ROWS)), None, ""),
        ("a.json.gz", json.dumps(ROWS), None, ""),
        ("a.json", json.dumps(NESTED), PATHS, ""),
        ("a.jsonl", "\n".join(map(json.dumps, NESTED)), PATHS, ""),
        ("a.json", json.dumps({"data": ROWS}), None, "is one object, whose 'data' seems to be the rows"),
        ("a.json", json.dumps({"data": ROWS}, indent=1), None, "write an object a line, or one array"),
        ("a.json", "[1, 2, 3]", None, "it is not an array of objects"),
        ("a.json", "[]", None, "it is not an array of objects"),
        ("a.json", "7", None, "line 1 is not a JSON object"),
        ("a.json", "", None, "it has no rows"),
        ("a.json", json.dumps(ROWS)[:-9], None, "it is not an array of objects"),
        ("a.json", json.dumps(NESTED), PATHS.replace("stars", "star"), "The columns of 'a.json' are 'out', 'meta'"),
    ],
)
def test_json_files(tmp_path: Path, name: str, text: str, given: str | None, message: str) -> None:
    """An array is read like lines, fields inside of objects by their path; anything else is told what is allowed."""
    file = tmp_path / name
    file.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    if message:
        with pytest.raises((InvalidLog, ConfigError)) as refused:
            log_and_labels(file, given)
        assert message in str(refused.value)
        return
    assert log_and_labels(file, given) == (40, 0.5)


def log_and_labels(file: Path, given: str | None) -> tuple[int, float]:
    with imported(file, given) as found:
        log = read_log(found.folder)
    return log.decisions.n, float(log.outcomes.asked_label.mean())


@table_driven(
    ("part", "cost", "message"),
    [
        ("cents * 0.01 AS cost_usd", 0.025, ""),
        ("-minus AS cost_usd", 0.025, ""),
        ("cents AS cost_usd", 2.5, ""),
        ("cents * 'x'::DOUBLE AS cost_usd", 0.0, "Conversion Error"),
        ("cents * 'nan'::DOUBLE AS cost_usd", 0.0, "finite number"),
        ("minus AS cost_usd", 0.0, "allowed are finite numbers of at least 0"),
    ],
)
def test_costs_in_other_units(tmp_path: Path, part: str, cost: float, message: str) -> None:
    """Arithmetic converts and negates costs; what it makes is checked like any cost."""
    rows = halves(40, cents=lambda i: 2 + i % 2, minus=lambda i: -0.02 - 0.01 * (i % 2))
    if message:
        with pytest.raises((InvalidLog, ConfigError)) as refused:
            log_of(tmp_path, rows, part)
        assert message in str(refused.value)
        return
    assert float(log_of(tmp_path, rows, part).outcomes.cost_usd.mean()) == pytest.approx(cost)
