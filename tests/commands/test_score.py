"""`fitrouter personal score` and `leaderboard`: in this process, over a gateway, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

from tests.kits.gateway import serving
from tests.kits.quiz import install, text
from typer.testing import CliRunner, Result

from fitrouter.config import load_config
from fitrouter.errors import ConfigError, InvalidRequest
from fitrouter.router import Router
from fitrouter_integrations import cli
from fitrouter_integrations.commands._text import WIDTH, printable, table


def run(verb: str, *arguments: object, said: str = "") -> Result:
    return CliRunner().invoke(cli.app, [verb, *(str(argument) for argument in arguments)], input=said)


def test_scores_here_and_over_a_gateway_are_the_same(tmp_path: Path) -> None:
    """JSONL in batches, a text file, and standard input; --url gives the same numbers."""
    file, rows = install(tmp_path), tmp_path / "rows.jsonl"
    assert isinstance(run("personal", "score", rows, "--config", file).exception, ConfigError)  # no such file
    lines = [{"prompt": f"What about {i}?", "response": text("brief", i), "model": "x"} for i in range(70)]
    lines.append({"prompt": "Which?", "answers": [text("brief", 1), text("rambling", 1)]})
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines) + "\n")
    with serving(Router.from_config(load_config(file)), load_config(file)) as url:
        over = run("personal", "score", rows, "--user", "ann", "--url", url, "--json")
        board = run("personal", "leaderboard", "--user", "ann", "--url", url, "--json")
    assert over.exit_code == 0, over.output
    here = run("personal", "score", rows, "--user", "ann", "--config", file, "--json")
    assert here.exit_code == 0, here.output
    assert here.stdout == over.stdout
    found = [json.loads(line) for line in here.stdout.splitlines()]
    assert len(found) == 72
    assert found[-1]["answer"] == 1
    assert (
        json.loads(board.stdout)["models"]
        == json.loads(run("personal", "leaderboard", "--user", "ann", "--config", file, "--json").stdout)["models"]
    )
    plain = tmp_path / "answer.txt"
    plain.write_text("Yes.")
    for said in (
        run("personal", "score", plain, "--config", file),
        run("personal", "score", "-", "--config", file, said="Yes."),
    ):
        assert said.stdout.startswith("Predicted rating "), said.output
    for line, message in (("{}", "line 1: got 0 answers"), ('{"response": 3}', "line 1"), ("[", "line 1")):
        rows.write_text(line + "\n")
        wrong = run("personal", "score", rows, "--config", file).exception
        assert isinstance(wrong, InvalidRequest)
        assert message in str(wrong)


def test_the_table_fits_a_terminal(tmp_path: Path) -> None:
    """At most 80 columns whatever the models are called; control characters do not reach the terminal."""
    file = install(tmp_path)
    row = {"rating": 1.7, "low": -3.0, "high": 9.0, "best": 1.0, "population": 0.5, "population_rank": 12, "rank": 12}
    lines = table([{**row, "model": "m" * 100}, {**row, "model": "\x1b[2Jred\n"}])
    assert all(len(line) <= WIDTH for line in lines)
    assert "\x1b" not in "".join(lines)
    assert printable("a\x00b") == "a\ufffdb"
    assert isinstance(run("personal", "leaderboard", "--config", file).exception, ConfigError)
