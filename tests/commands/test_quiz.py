"""`fitrouter personal quiz` in a pipe: questions, bad input, resuming, JSON, fresh answers, and a gateway."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.kits.gateway import serving
from tests.kits.quiz import install
from typer.testing import CliRunner, Result

from fitrouter.config import load_config
from fitrouter.errors import BudgetExhausted, ConfigError, NotAuthorized
from fitrouter.router import Router
from fitrouter_evaluators.personal import ASKED
from fitrouter_integrations import cli


def run(*arguments: object, said: str = "") -> Result:
    return CliRunner().invoke(cli.app, ["personal", "quiz", *(str(argument) for argument in arguments)], input=said)


def test_a_conversation_in_a_pipe(tmp_path: Path) -> None:
    """Bad input is asked again, the end of the input interrupts, the same command goes on, --json prints the result."""
    file = install(tmp_path)
    begun = run("--user", "ann", "--config", file, said="9\nu\n1\n")
    assert begun.exit_code == 130, begun.output
    assert "'9' is not one of" in begun.output
    assert "'u' is not one of" in begun.output  # nothing to take back yet
    assert "question 2 of at most 12" in begun.output
    assert "the same command goes on" in begun.output
    end = run("--user", "ann", "--config", file, "--json", said="2\nu\nsecond\n3\n4\nq\n")
    assert end.exit_code == 0, end.output
    assert "question 1 of" not in end.output
    found = json.loads(end.stdout)
    assert found["result"]["ended"] == "stopped"
    assert found["result"]["answered"] == 2
    assert len(found["result"]["models"]) == 3
    short = run("--user", "ann", "--config", file, "--again", "--max", 1, said="5\n")
    assert short.exit_code == 0, short.output
    assert "question 1 of at most 1" in short.output
    assert "fits you best" in short.output


def test_over_a_gateway(tmp_path: Path) -> None:
    """With --url the gateway keeps the quiz; its refusals are errors."""
    settings = load_config(install(tmp_path))
    with serving(Router.from_config(settings), settings) as url:
        end = run("--user", "ann", "--url", url, "--max", 2, said="1\n2\n")
        assert end.exit_code == 0, end.output
        assert "fits you best" in end.output
        assert isinstance(run("--user", "ann", "--url", url, "--ask").exception, ConfigError)
        assert not isinstance(run("--user", " ", "--url", url).exception, NotAuthorized)


ASKING = """\
data: d
providers:
  s: {kind: simulated, options: {terse: {length: 2, latency_s: 0}, chatty: {length: 12, latency_s: 0}}}
models:
  - {name: terse, provider: s, prices: {input: 0, output: 1}}
  - {name: chatty, provider: s, prices: {input: 0, output: 10}}
encoder: hashing
scorer: {encoder: hashing, prior: none}
"""


def test_fresh_answers_are_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--ask estimates its cost, respects the limit and a refusal, keeps the answers, and pays nothing twice."""
    file, prompts = tmp_path / "fitrouter.yaml", tmp_path / "prompts.txt"
    file.write_text(ASKING)
    prompts.write_text("Why is the sky blue?\n\nHow do I tie a knot?\nWhat is tea?\nWho was Ada?\n")
    common = ("--user", "ann", "--config", file, "--prompts", prompts)
    assert isinstance(run(*common).exception, ConfigError)  # no answers yet
    dear = run(*common, "--ask", "--limit", 0.001, "--yes").exception
    assert isinstance(dear, ConfigError)
    assert "above the limit" in str(dear)
    assert "no model was asked" in str(run(*common, "--ask", said="n\n").exception)
    end = run(*common, "--ask", said="y\n1\n1\nq\n")
    assert end.exit_code == 0, (end.output, end.exception)
    assert "8 answers of 2 models; estimated cost: $0.04" in end.output
    kept = (tmp_path / "d" / ASKED).read_text().splitlines()
    assert len(kept) == 8
    again = run(*common, "--ask", "--again", said="q\n")
    assert again.exit_code == 0, again.output
    assert "estimated cost" not in again.output
    assert (tmp_path / "d" / ASKED).read_text().splitlines() == kept
    prompts.write_text("\n")
    assert "has no prompts" in str(run(*common, "--ask").exception)


def test_a_model_that_does_not_answer_is_left_out_of_fresh_answers(tmp_path: Path) -> None:
    """It is named with the reason, called once, and the quiz compares the others."""
    file, prompts = tmp_path / "fitrouter.yaml", tmp_path / "prompts.txt"
    dead = "  d: {kind: simulated, options: {dead: {failure: 1.0}}}\nmodels:\n  - {name: dead, provider: d}\n"
    file.write_text(ASKING.replace("models:\n", dead))
    prompts.write_text("Why is the sky blue?\nHow do I tie a knot?\n")
    end = run("--user", "ann", "--config", file, "--prompts", prompts, "--ask", "--yes", said="q\n")
    assert end.exit_code == 0, (end.output, end.exception)
    assert end.output.count("dead is left out, as it does not answer: ") == 1
    rows = [json.loads(line) for line in (tmp_path / "d" / ASKED).read_text().splitlines()]
    assert [row["model"] for row in rows] == ["terse", "chatty"] * 2


def test_a_spent_budget_is_no_model_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the asking, with its own error; no model is left out for it."""
    file = tmp_path / "fitrouter.yaml"
    file.write_text(ASKING)

    async def complete(*_: object) -> None:
        raise BudgetExhausted("the budget of this period is spent")

    monkeypatch.setattr(Router, "complete", complete)
    end = run("--user", "ann", "--config", file, "--ask", "--yes", said="q\n")
    assert isinstance(end.exception, BudgetExhausted)
    assert "left out" not in end.output
