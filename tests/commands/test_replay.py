"""`fitrouter replay` as a build server meets it: the exit code is the answer, and a mistake never looks like one."""

from __future__ import annotations

import errno
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.kits.replay_reports import realistic
from tests.kits.tables import table_driven
from typer.testing import CliRunner, Result

from fitrouter.errors import ConfigError, InvalidLog, StoreError
from fitrouter_evaluators.replay import evaluation
from fitrouter_evaluators.replay.candidates import load as candidates
from fitrouter_evaluators.replay.evaluation import ReplaySettings
from fitrouter_evaluators.replay.gate_file import Gate
from fitrouter_evaluators.replay.log import sources
from fitrouter_evaluators.replay.render.render_html import html
from fitrouter_evaluators.replay.render.render_text import text
from fitrouter_evaluators.replay.report import GateDecision, Report
from fitrouter_integrations import cli


class Lab:
    """The parts behind the command, replaced: they note what they are given, and answer what a test wants."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.verdict: str | None = None
        self.calls: list[tuple[Any, ...]] = []
        self.fails: dict[str, BaseException] = {}
        monkeypatch.setattr(evaluation, "evaluate", self._part("evaluate", self.report))
        monkeypatch.setattr(sources, "read_log", self._part("read_log", lambda path, limits: f"log of {path}"))
        monkeypatch.setattr(
            sources, "export", self._part("export", lambda _log, out: [Path(out) / "decisions.parquet"])
        )
        monkeypatch.setattr(
            candidates, "load_candidate", self._part("load_candidate", lambda source, config: f"policy {source}")
        )

    def _part(self, name: str, answer: Callable[..., Any]) -> Callable[..., Any]:
        def part(*given: Any, **more: Any) -> Any:
            self.calls.append((name, *given))
            if name in self.fails:
                raise self.fails[name]
            return answer(*given, **more)

        return part

    def report(self, *_: Any) -> Report:
        gate = None if self.verdict is None else GateDecision(verdict=self.verdict, reasons=["for a reason"])
        return msgspec.structs.replace(realistic(), gate=gate)

    @property
    def settings(self) -> ReplaySettings:
        found: ReplaySettings = next(call[4] for call in self.calls if call[0] == "evaluate")
        return found

    @property
    def gate(self) -> Gate | None:
        found: Gate | None = next(call[5] for call in self.calls if call[0] == "evaluate")
        return found


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Lab:
    monkeypatch.chdir(tmp_path)
    Path("promote.yaml").write_text("alpha: 0.1\nsensitivity: 1.25\nmetric: utility\n")
    return Lab(monkeypatch)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, ["replay", *(str(argument) for argument in arguments)])


def asked(*arguments: object) -> Result:
    return run("--log", "x.duckdb", "--candidate", "c.yaml", *arguments)


@pytest.mark.parametrize(("verdict", "code"), [("promote", 0), ("keep", 1), ("not enough evidence", 2), (None, 0)])
def test_the_exit_code_is_the_answer(lab: Lab, verdict: str | None, code: int) -> None:
    """0 promote, or a report without a gate; 1 keep; 2 not enough evidence."""
    lab.verdict = verdict
    assert asked().exit_code == code
    assert asked("--json").exit_code == code


def test_a_log_that_is_nested_too_deeply_is_an_error_in_words(tmp_path: Path) -> None:
    """Not a traceback, however deep."""
    (tmp_path / "deep.jsonl").write_text('{"a":' * 50_000 + "1" + "}" * 50_000)
    found = run("import", tmp_path / "deep.jsonl", "--out", tmp_path / "log")
    assert found.exit_code == 3
    assert "nested too deeply" in found.stderr
    assert "Traceback" not in found.stderr


def test_an_answer_that_nobody_knows_is_none(lab: Lab) -> None:
    """A verdict that is none of the three is a fault, not a promotion."""
    lab.verdict = "perhaps"
    assert asked().exit_code == 3


BAD = {
    "": "Missing",
    "--log x --json": "--candidate is missing",
    "--candidate c": "--log is missing",
    "--log x --candidate": "requires an argument",
    "--log x --candidate c --bogus": "No such option",
    "--log x --candidate c frobnicate": "No such command",
    "--log x --candidate c --alpha much": "--alpha",
    "--log x --candidate c --alpha 0.6": "--alpha 0.6",
    "--log x --candidate c --alpha nan": "--alpha nan",
    "--log x --candidate c --metric joy": "choose from fit, cost, latency, utility, outcome, score",
    "--log x --candidate c --by role,height": "unknown slices height",
    "--log x --candidate c --groups nobody.csv": "cannot be read",
    "--log x --candidate c --since yesterday": "'yesterday' is not a time",
    "--log x --candidate c --since 2026-10-02 --until 2026-10-01": "is not before --until 2026-10-01",
    "--log x --candidate c --horizon 7y": "'7y' is not a duration",
    "--log x --candidate c --idle 0s": "--idle must be above 0",
    "--log x --candidate c --gamma-sensitivity 0.5": "--gamma-sensitivity 0.5",
    "--log x --candidate c --json --text": "both print to standard output",
    "--log x --candidate c --html no/such/folder.html": "cannot be written",
    "--log x --candidate c --json .": "cannot be written",
    "--log x --candidate c --gate nothing.yaml": "nothing.yaml",
    "--log x --candidate c --gate promote.yaml --metric score": "is for inspection and cannot be gated on",
    "--log x --candidate c --gate promote.yaml --metric cost": "the gate uses utility",
    "--log x --candidate c --config nothing.yaml": "nothing.yaml",
    "export --log x": "--out",
    "import x.csv": "--out",
    "import nothing.csv --out y": "nothing.csv",
    "import promote.yaml --out y": "has an unknown type",
}


@table_driven("arguments", BAD)
def test_mistakes_are_three(lab: Lab, arguments: str) -> None:
    """A mistake is exit code 3 and one message on standard error that says what; nothing is replayed."""
    result = run(*arguments.split())
    assert result.exit_code == 3
    if arguments:
        assert BAD[arguments] in result.stderr.replace("\n", " ")
        assert result.stdout == ""
    assert not any(call[0] == "replay" for call in lab.calls)


@table_driven("part", ["read_log", "load_candidate", "evaluate"])
@table_driven(
    "error",
    [
        InvalidLog("row 17: probabilities sum to 0.9"),
        ConfigError("row 17 of c.yaml"),
        StoreError("row 17 is being written"),
        ModuleNotFoundError("row 17", name="row 17"),
        ValueError("row 17"),
        MemoryError("row 17"),
    ],
)
def test_whatever_fails_is_three(lab: Lab, part: str, error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    """An invalid log, a wrong candidate, a locked file and a fault of our own are all 3, and say what it was."""
    lab.fails = {part: error}
    caplog.clear()
    result = asked()
    assert result.exit_code == 3
    assert "row 17" in result.stderr + caplog.text
    assert result.stdout == ""


def test_who_stops_it_gets_no_answer(lab: Lab) -> None:
    """A pipe that was closed (which ends click's programs with 1) and Ctrl-C are neither keep nor promote."""
    lab.fails["read_log"] = BrokenPipeError(errno.EPIPE, "Broken pipe")
    assert asked().exit_code == 3
    lab.fails["read_log"] = KeyboardInterrupt()
    assert asked().exit_code == 130


def test_help_is_no_answer_and_no_mistake(lab: Lab) -> None:
    """Help is printed with exit code 0, and says what the codes mean."""
    result = run("--help")
    assert result.exit_code == 0
    assert "not enough evidence" in " ".join(result.stdout.replace("│", " ").split())
    assert lab.calls == []


def test_what_is_asked_for_is_what_is_replayed(lab: Lab) -> None:
    """Options arrive as they were meant: times in UTC, durations in seconds, groups by user, policies in order."""
    Path("users.csv").write_text("user,group,note\nann,warm,x\nbob,terse,y\nann,warm,again\n")
    result = asked(
        *("--against", "b.yaml", "--metric", "latency", "--by", "role,user_group,role", "--groups", "users.csv"),
        *("--since", "2026-10-01", "--until", "2026-10-08T12:00+02:00", "--horizon", "7d", "--idle", "1.5h"),
        *("--alpha", "0.01", "--gamma-sensitivity", "3"),
    )
    assert result.exit_code == 0, result.stderr
    assert lab.settings == ReplaySettings(
        metric="latency",
        by=("role", "user_group"),
        since=1790812800.0,
        until=1791453600.0,
        horizon_s=604800.0,
        idle_s=5400.0,
        alpha=0.01,
        sensitivity=3.0,
        groups={"ann": "warm", "bob": "terse"},
    )
    names = next(call for call in lab.calls if call[0] == "evaluate")[1:4]
    assert names == ("log of x.duckdb", "policy c.yaml", "policy b.yaml")
    assert lab.gate is None


@pytest.mark.parametrize(
    ("said", "seconds"),
    [("0", 0.0), ("1790812800.5", 1790812800.5), ("20261001", 1790812800.0), ("2026-10-01T00:00Z", 1790812800.0)],
)
def test_times(lab: Lab, said: str, seconds: float) -> None:
    """A number is seconds since the epoch, but eight digits that are a date are the date."""
    assert asked("--since", said).exit_code == 0
    assert lab.settings.since == seconds


def test_defaults_and_the_gate(lab: Lab) -> None:
    """What is not said is as the gate has it; without a gate it is fit at 5%, against what was in force."""
    assert asked().exit_code == 0
    assert lab.settings == ReplaySettings()
    assert ("load_candidate", "current") in lab.calls
    lab.calls.clear()
    assert asked("--gate", "promote.yaml").exit_code == 0
    assert lab.settings == ReplaySettings(metric="utility", alpha=0.1, sensitivity=1.25)
    assert lab.gate is not None
    lab.calls.clear()
    assert asked("--gate", "promote.yaml", "--alpha", "0.02", "--metric", "utility").exit_code == 0
    assert lab.settings.alpha == 0.02


@pytest.mark.parametrize(
    "rows", ["name,group\nann,x\n", "user,group\nann,\n", "user,group\nann,x\nann,y\n", "", "user,group\nann\n"]
)
def test_groups_that_are_not_clear(lab: Lab, rows: str) -> None:
    """A user without a group, or with two, is refused with the file and the line."""
    Path("users.csv").write_text(rows)
    result = asked("--groups", "users.csv")
    assert result.exit_code == 3
    assert "users.csv" in result.stderr


def test_forms(lab: Lab) -> None:
    """Tables, JSON and a page: to standard output, or into files; and the verdict is said in any case."""
    lab.verdict = "keep"
    report = lab.report()
    tables = asked("--full")
    assert tables.stdout == text(report)
    assert asked().stdout == text(report, full=False)
    assert tables.stderr == ""
    printed = asked("--json")
    assert json.loads(printed.stdout)["gate"]["verdict"] == "keep"
    assert printed.stderr.startswith("Keep: ")
    assert asked("--json", "-").stdout == printed.stdout
    files = asked("--json", "r.json", "--html", "r.html")
    assert files.stdout == ""
    assert files.stderr.startswith("Keep: ")
    assert Path("r.json").read_text() == printed.stdout
    assert Path("r.html").read_text() == html(report)
    both = asked("--html", "again.html", "--text", "--full")
    assert both.stdout == tables.stdout
    assert Path("again.html").read_bytes() == Path("r.html").read_bytes()
    assert {each.exit_code for each in (tables, printed, files, both)} == {1}


def test_json_has_no_nan(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers that do not exist are null, so that any reader can read it; the rest is what the report holds."""
    first = msgspec.structs.replace(realistic().estimates[0], se=float("nan"), high=float("inf"))
    report = msgspec.structs.replace(realistic(), estimates=[first])
    monkeypatch.setattr(lab, "report", lambda *_: report)
    monkeypatch.setattr(evaluation, "evaluate", lab.report)
    found = json.loads(asked("--json").stdout, parse_constant=lambda word: pytest.fail(word))
    assert found["estimates"][0]["se"] is None
    assert found["estimates"][0]["high"] is None
    assert found["estimates"][0]["value"] == first.value
    assert found["window"]["excluded"] == report.window.excluded


def test_a_file_that_cannot_be_written(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report that could not be kept is no answer."""

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fchmod", full)
    result = asked("--html", "r.html")
    assert result.exit_code == 3
    assert "No space left on device" in result.stderr


def test_export(lab: Lab) -> None:
    """`fitrouter replay export` writes a log's tables, and says which files."""
    result = run("export", "--log", "x.duckdb", "--out", "folder")
    assert result.exit_code == 0
    assert lab.calls == [("export", Path("x.duckdb"), Path("folder"))]
    assert "decisions.parquet" in result.stdout
    lab.fails["export"] = ConfigError("'folder' holds decisions.parquet already")
    assert run("export", "--log", "x.duckdb", "--out", "folder").exit_code == 3


def test_import(lab: Lab) -> None:
    """`fitrouter replay import` makes a log of a plain file, and says how large; a bad row is refused, or counted."""
    rows = [f"2026-10-01T00:00:{i:02d}Z,{'ab'[i % 2]},0.5,{i % 2}" for i in range(10)]
    Path("log.csv").write_text("\n".join(["when,model,p,liked", *rows, "2026-10-02,a,7,1", ""]))
    refused = run("import", "log.csv", "--out", "log")
    assert refused.exit_code == 3
    assert "line 12" in refused.stderr
    made = run("import", "log.csv", "--out", "log", "--skip-bad")
    assert made.exit_code == 0, made.stderr
    assert "10 decisions among 2 arms" in made.stdout
    assert "1 invalid rows were skipped" in made.stderr
    assert Path("log/decisions.parquet").is_file()


def test_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing replaced: a file becomes a log, the log a report and an answer; a wrong propensity in it becomes a 3."""
    monkeypatch.chdir(tmp_path)
    select = "string_split(p, '|') AS pmf, ['big', 'small'] AS eligible"
    rng = random.Random(0)
    drawn = [rng.random() < 0.5 for _ in range(800)]
    rows = [f"{'big' if big else 'small'},0.5|0.5,{int(rng.random() < (0.9 if big else 0.1))}" for big in drawn]
    Path("log.csv").write_text("\n".join(["model,p,liked", *rows, ""]))
    assert run("import", "log.csv", "--select", select, "--out", "log").exit_code == 0
    Path("big.yaml").write_text("fixed: big\n")
    shown = run("--log", "log", "--candidate", "big.yaml", "--html", "r.html", "--json", "r.json", "--text")
    assert shown.exit_code == 0, shown.stderr
    found = msgspec.json.decode(Path("r.json").read_bytes())
    value = next(e for e in found["estimates"] if (e["policy"], e["labels"]) == ("difference", "observed"))
    assert value["low"] < 0.4 < value["high"]
    assert "fit is higher under the candidate, which is better" in " ".join(shown.stdout.split())
    assert "</html>" in Path("r.html").read_text()
    Path("log.csv").write_text("\n".join(["model,p,liked", *[row.replace("0.5|0.5", "0.9|0.1") for row in rows], ""]))
    assert run("import", "log.csv", "--select", select, "--out", "wrong").exit_code == 0
    Path("promote.yaml").write_text("metric: fit\n")
    refused = run("--log", "wrong", "--candidate", "big.yaml", "--gate", "promote.yaml")
    assert refused.exit_code == 3
    assert "probabilities" in refused.stderr
