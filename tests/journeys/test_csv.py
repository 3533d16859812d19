"""Journey: a data scientist with a CSV of another program, replayed to a verdict (docs/replay.md, replay.md)."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path

from .conftest import Create, Journey

CHANCES = {"small": 0.35, "large": 0.9}
"""Model → probability of five stars; otherwise one."""


def write(path: Path, *, every: bool, n: int = 4000) -> None:
    """Two models, drawn with equal probabilities, with stars; `every` adds the probability of each model."""
    draw = random.Random(0)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("llm", "stars", "p", *(f"p_{name}" for name in CHANCES if every)))
        for _ in range(n):
            model = draw.choice(list(CHANCES))
            writer.writerow((model, 5 if draw.random() < CHANCES[model] else 1, 0.5, *(0.5 for _ in CHANCES if every)))


def test_a_csv_is_replayed_to_a_verdict(environment: Create, tmp_path: Path) -> None:
    """The page's first two commands; then a gate promotes the better model and keeps what ran over the worse one."""
    write(tmp_path / "log.csv", every=False)
    with Journey(environment("replay"), tmp_path) as journey:
        guessed, mapped = (
            journey.run(line.split("#")[0])
            for line in journey.block("replay.md", "bash", under="Importing other logs").splitlines()[:2]
        )
        assert "log.csv was read with --select" in guessed.stderr
        assert "llm AS arm" in guessed.stderr
        for ran in (guessed, mapped):
            assert {"small", "large"} <= set(ran.stdout.replace(":", " ").split()), ran.stdout
        (tmp_path / "promote.yaml").write_text("metric: fit\nmin_gain: 0.0\n")
        gated = "fitrouter replay --log log.csv --candidate {} --gate promote.yaml --json r.json"
        refused = journey.run(gated.format("large"), code=3)
        assert "a column for each model" in refused.stderr
        write(tmp_path / "log.csv", every=True)
        for model, code, word in (("large", 0, "promote"), ("small", 1, "keep")):
            ran = journey.run(gated.format(model), code)
            assert word in (ran.stdout + ran.stderr).lower(), ran
            assert json.loads((tmp_path / "r.json").read_text())
        lines = (tmp_path / "log.csv").read_text().splitlines()
        (tmp_path / "log.csv").write_text("\n".join([*lines[:3], "large,many,0.5,0.5,0.5", *lines[3:]]))
        refused = journey.run("fitrouter replay --log log.csv", code=3)
        assert "line 4" in refused.stderr
        assert "Traceback" not in refused.stderr
        assert {"starlette", "litellm", "torch"}.isdisjoint(journey.environment.distributions)
