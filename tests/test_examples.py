"""The examples run as they stand, offline, and print what was learnt."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
LEARNT = {
    "support_crew": {"triage": "terse", "writer": "warm", "analyst": "orderly"},
    "research_crew": {"scout": "terse", "analyst": "orderly", "editor": "warm"},
    "langgraph_per_user": {"ann": "terse", "ben": "warm"},
}
NEEDS = {"support_crew": "crewai", "research_crew": "crewai", "langgraph_per_user": "langchain"}
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
sys.path.insert(0, sys.argv[1])
runpy.run_path(f"{sys.argv[1]}/{sys.argv[2]}.py", run_name="__main__")
"""
"""Runs an example; an address that is not of this machine is told, whoever would have caught the error."""


@pytest.mark.parametrize("name", sorted(LEARNT))
def test_example(name: str, tmp_path: Path) -> None:
    """It ends well, each role or user has another most probable model, and no socket leaves the machine."""
    pytest.importorskip(NEEDS[name], reason=f"install the extra `{NEEDS[name]}`")
    ran = subprocess.run(
        [sys.executable, "-c", OFFLINE, str(EXAMPLES), name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "LEFT THE MACHINE" not in ran.stderr
    learnt = dict(re.findall(r"^(\w+) .*→ (\w+)$", ran.stdout, re.MULTILINE))
    assert learnt == LEARNT[name]
    assert list(tmp_path.iterdir()) == []


def test_each_example_is_run() -> None:
    """No example is left out."""
    assert {path.stem for path in EXAMPLES.glob("[!_]*.py")} == set(LEARNT)
