"""The examples run as they stand, offline, and print what was learnt."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.kits.datasets import folder

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LEARNT = {
    "support_crew": {"triage": "terse", "writer": "warm", "analyst": "orderly"},
    "research_crew": {"scout": "terse", "analyst": "orderly", "editor": "warm"},
    "langgraph_per_user": {"ann": "terse", "ben": "warm"},
    "langgraph_outcomes": {"planner": "orderly", "researcher": "terse", "writer": "warm"},
}
NEEDS = {
    "crewai": ["support_crew", "research_crew"],
    "langchain": ["langgraph_per_user", "langgraph_outcomes"],
}
"""Framework → its examples: importing it takes as long as an example."""
FEW_WORDS, AT_LENGTH, IN_POINTS = (
    "gpt-3.5-turbo-1106_concise",
    "gpt4_1106_preview_verbose",
    "claude-3-5-sonnet-20240620",
)
LEARNT_OF_RECORDED = {"triage": FEW_WORDS, "writer": AT_LENGTH, "analyst": IN_POINTS}
OFFLINE = """
import runpy, socket, sys

def here(address):
    host = address[0] if isinstance(address, tuple) else address
    if isinstance(address, tuple) and host not in {"127.0.0.1", "localhost", "::1", None}:
        print("LEFT THE MACHINE", address, file=sys.stderr)
        raise OSError(f"{address} is away from here")

connect, look_up = socket.socket.connect, socket.getaddrinfo
socket.socket.connect = lambda self, address: (here(address), connect(self, address))[1]
socket.getaddrinfo = lambda host, *more, **named: (here((host, 0)), look_up(host, *more, **named))[1]
_, folder, names, *sys.argv[1:] = sys.argv
sys.path.insert(0, folder)
for name in names.split(","):
    runpy.run_path(f"{folder}/{name}.py", run_name="__main__")
"""
"""Runs examples; an address that is not of this machine is told, whoever would have caught the error."""


class Unlearnt(AssertionError):
    """An example ended well but for what it learnt."""


def run(framework: str, names: list[str], cwd: Path, *arguments: str) -> str:
    """What examples print, run in turn in one process. They must end well: nothing leaves the machine or stays."""
    pytest.importorskip(framework, reason=f"install the extra `{framework}`")
    ran = subprocess.run(
        [sys.executable, "-c", OFFLINE, str(EXAMPLES), ",".join(names), *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert "LEFT THE MACHINE" not in ran.stderr
    assert list(cwd.iterdir()) == []
    if ran.returncode and re.search(r"_learnt\.py.*in tell\n.*\n(.*\^\n)?AssertionError", ran.stderr):
        raise Unlearnt(ran.stdout + ran.stderr)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def twice(framework: str, names: list[str], tmp_path: Path, *arguments: str) -> str:
    """As `run`: draws are random, and some runs end on a second-best model (docs/results/crews.md); two must not."""
    for time in ("first", "second"):
        (tmp_path / time).mkdir()
    try:
        return run(framework, names, tmp_path / "first", *arguments)
    except Unlearnt:
        return run(framework, names, tmp_path / "second", *arguments)


def learnt(said: str) -> dict[str, str]:
    """Role or user → the most probable model; it must be the one that is the best in truth."""
    found = re.findall(r"^(\w+): (\S+) is the best → (\S+)$", said, re.MULTILINE)
    assert all(best == probable for _, best, probable in found)
    return {who: probable for who, _, probable in found}


@pytest.mark.parametrize("framework", NEEDS)
def test_example(framework: str, tmp_path: Path) -> None:
    """Each role or user has another most probable model; where there is no recording it says so, and simulates."""
    said = twice(framework, NEEDS[framework], tmp_path, "--recorded", "nowhere.parquet")
    first, *parts = said.split("There is no file nowhere.parquet: simulated models.")
    assert not first
    assert [learnt(part) for part in parts] == [LEARNT[name] for name in NEEDS[framework]]


def test_crews_of_which_only_outcomes_are_known(tmp_path: Path) -> None:
    """Each role finds its model although people rate whole kickoffs alone, never an answer."""
    said = twice("crewai", NEEDS["crewai"], tmp_path, "--simulated", "--outcomes")
    assert "votes" not in said
    parts = said.split("Simulated models.")[1:]
    assert [learnt(part) for part in parts] == [LEARNT[name] for name in NEEDS["crewai"]]


@pytest.mark.reproduction
def test_a_crew_on_recorded_answers(tmp_path: Path) -> None:
    """Of eleven models' real responses, each role of a crew finds the best one, which is another for each role.

    `benchmarks.policies.crews` measures it for both crews.
    """
    arguments = "--recorded", str(folder("alpaca_eval") / "responses.parquet")
    said = twice("crewai", ["support_crew"], tmp_path, *arguments)
    assert said.startswith("Recorded responses of 11 models to 209 questions.")
    assert learnt(said) == LEARNT_OF_RECORDED


def test_each_example_is_run() -> None:
    """No example is left out."""
    run_here = {name for names in NEEDS.values() for name in names}
    assert {path.stem for path in EXAMPLES.glob("[!_]*.py")} == set(LEARNT) == run_here
