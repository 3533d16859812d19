"""ARCHITECTURE's "Extending", followed: a policy and a provider in a file of another package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.kits.pages import ROOT, blocks

CONFIG = """
providers: {again: {kind: echo, options: {times: 2}}, plain: {kind: simulated}}
models:
  - {name: twice, provider: again, prices: {input: 0, output: 0}}
  - {name: once, provider: plain, prices: {input: 1, output: 1}}
policy:
  {algorithm: greedy, second: 0.4, floor: 0.1, newcomer_floor: 0, candidates: {bold: {algorithm: greedy, second: 0.1}}}
"""
SCRIPT = """
import asyncio, json, sys
from pathlib import Path

import msgspec
from typer.testing import CliRunner

sys.path.insert(0, str(Path(sys.argv[1]) / "docs"))
import build

from fitrouter import FeedbackKind, Identity, Request, Router, load_config
from fitrouter_integrations import cli


def run(words, code=0):
    found = CliRunner().invoke(cli.app, words.split())
    assert found.exit_code == code, (words, found.output, found.exception)
    return found.stdout


async def traffic():
    async with Router.from_config(load_config("fitrouter.yaml")) as router:
        for i in range(60):
            said = ({"role": "user", "content": f"Say {i % 7}"},)
            answer = await router.complete(Request(messages=said, identity=Identity(user=f"u{i % 20}")))
            decisions.append(answer.decision)
            if answer.served_by == "twice":
                assert answer.completion.message["content"] == f"Say {i % 7} Say {i % 7}"
            await router.feedback(answer.decision.id, FeedbackKind.THUMB, float(answer.served_by == "twice"))
        await router.settled()


decisions = []
asyncio.run(traffic())
pmfs = {tuple(sorted(round(p, 6) for p in decision.probs)) for decision in decisions}
assert (0.41, 0.59) in pmfs, pmfs  # .9 (.4, .6) + .1 / 2
shown = json.loads(run("policy show --json"))
assert (shown["algorithm"], shown["candidates"]) == ("greedy", {"bold": {"algorithm": "greedy", "second": 0.1}})
assert json.loads(run("policy set --second 0.25 --json"))["settings"] == {"second": 0.25}
assert "at most 1" in str(CliRunner().invoke(cli.app, ["policy", "set", "--second", "2"]).exception)
decisions.clear()
asyncio.run(traffic())
pmfs = {tuple(sorted(round(p, 6) for p in decision.probs)) for decision in decisions}
assert (0.275, 0.725) in pmfs, pmfs
Path("candidate.yaml").write_text("{algorithm: greedy, second: 0.05}")
replayed = run("replay --log fitrouter-data --candidate candidate.yaml")
assert "greedy (second 0.05)" in replayed, replayed
row = next(line for line in build.settings().splitlines() if line.startswith("| `policy.second`"))
assert row == "| `policy.second` | number, ≥ 0, ≤ 1 | `0.2` | greedy: share of the second best arm. |", row
print("extended")
"""


def installed(folder: Path, code: str, entry_points: str) -> dict[str, str]:
    """Put a file into a package of its own, as pip would; returns the environment that finds it."""
    (folder / "greedy.py").write_text(code)
    about = folder / "greedy-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: greedy\nVersion: 1.0\n")
    lines = [line.replace('[project.entry-points."', "[").replace('"]', "]") for line in entry_points.splitlines()]
    (about / "entry_points.txt").write_text("\n".join(line.replace('"', "") for line in lines))
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])}


def run(script: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a script in a folder and an interpreter of its own."""
    command = [sys.executable, "-c", script, str(ROOT)]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def test_a_policy_and_a_provider_of_another_package(tmp_path: Path) -> None:
    """They are configured, shown, changed at run time, replayed and documented without a change of fitrouter."""
    page = ROOT / "ARCHITECTURE.md"
    (code,), (points,) = blocks(page, "python"), blocks(page, "toml")
    environment = installed(tmp_path, code.text, points.text)
    (tmp_path / "fitrouter.yaml").write_text(CONFIG)
    ran = run(SCRIPT, tmp_path, environment)
    assert ran.stdout.strip() == "extended", ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("raise ValueError('broken here')", "broken here"),
        ("class Greedy:\n    name = 'squarecb'", "another policy has its name 'squarecb'"),
        ("class Greedy:\n    pass", "has no attribute 'name'"),
        ("class Other:\n    pass", "Greedy"),
    ],
)
def test_a_policy_that_cannot_be_used(code: str, told: str, tmp_path: Path) -> None:
    """The others work, and who names it reads why."""
    environment = installed(tmp_path, code, '[project.entry-points."fitrouter.policies"]\ngreedy = "greedy:Greedy"')
    script = "from fitrouter.policies import build_policy as b; b('squarecb'); b('greedy')"
    command = [sys.executable, "-c", script]
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert "there is no algorithm 'greedy'" in ran.stderr
    assert told in ran.stderr
