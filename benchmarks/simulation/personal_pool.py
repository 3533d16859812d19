"""Regret on the personal pool (docs/results/personal_pool.md): rows × worlds × feedback over seeds. Writes JSON.

python -m benchmarks.simulation.personal_pool --out FILE  # resumes cells of the same sources and settings
python -m benchmarks.simulation.personal_pool --table FILE  # Markdown; --doc docs/results/personal_pool.md

Each row's γ is chosen on seeds of their own, in the world lab-s1 at 30 % feedback, and used in all worlds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.simulation._personal_pool_tables import fill, tables

from fitrouter_evaluators.simulation.personal_pool import PoolTask, compare, open_pool, run_tasks
from fitrouter_evaluators.simulation.pool import Pool
from fitrouter_evaluators.simulation.worlds import World, load_world

ROOT = Path(__file__).resolve().parents[2]
GAMMAS = (160.0, 640.0, 2560.0, 10240.0, 40960.0)
"""Candidates for each row's γ."""
TUNING_SEEDS = tuple(range(1000, 1004))
"""Seeds for choosing γ; never reported."""
ROWS = ("label-only", "scores", "role", "ours", "true-tastes")
LIKE = {"true-tastes": "ours", "reward-score": "label-only"}
"""Rows that use another row's γ: they do not differ from it in exploration."""
TUNED_IN = ("lab-s1", 0.3)
KNOWN = ("lab-s1", "model-offset", "env", "impostor")
"""Worlds with the row of true tastes: those with a target for it."""
WORLDS = ("lab-s05", "lab-s15", "role-only", "user-only", "hidden-features", "model-offset", "harm")
CELLS = [("lab-s1", 0.1), ("lab-s1", 0.3), ("lab-s1", 1.0), ("lab-s0", 0.3), ("lab-s0", 1.0)]
CELLS += [(world, 0.3) for world in WORLDS]
SOURCES = (
    "router/fitrouter/posterior",
    "router/fitrouter/policies",
    "router/fitrouter/routing/decider.py",
    "router/fitrouter/state/learner.py",
    "router/fitrouter/monitors",
    "evaluators/fitrouter_evaluators/simulation",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pool", type=Path, default=ROOT / "../shared/data/alpaca_eval/responses.parquet")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--floor", type=float, default=0.05)
    parser.add_argument("--encoder", default="minilm", help="of prompts, for the router")
    parser.add_argument("--rows", nargs="*", default=ROWS)
    parser.add_argument("--cells", nargs="*", help="world:feedback, for example lab-s1:0.3; all where left out")
    parser.add_argument("--gamma", type=float, help="of every row, instead of the best of the tuning seeds")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, help="print the tables of this file, and run nothing")
    parser.add_argument("--doc", type=Path, help="with --table: put them into this document")
    options = parser.parse_args()
    if options.table:
        return _print(json.loads(options.table.read_text(encoding="utf-8")), options.doc)
    if not options.pool.is_file():
        print(f"skipped: there is no pool {options.pool}", file=sys.stderr)
        return 0
    _run(options, open_pool(options.pool, encoder=options.encoder))
    return 0


def _run(options: argparse.Namespace, pool: Pool) -> None:
    settings = {
        "encoder": options.encoder,
        "seeds": options.seeds,
        "floor": options.floor,
        "rows": list(options.rows),
        "gammas": GAMMAS,
        "tuned_in": f"{TUNED_IN[0]}:{TUNED_IN[1]}" if options.gamma is None else "given",
        "tuning_seeds": TUNING_SEEDS,
        "sources": _sources(),
    }
    found = _resumed(options.out, json.loads(json.dumps(settings)))
    if "tuned" not in found:
        found["tuned"] = _gammas(pool, options)
    wanted = [(cell.split(":")[0], float(cell.split(":")[1])) for cell in options.cells] if options.cells else CELLS
    for name, feedback in wanted:
        if any((cell["world"], cell["feedback"]) == (name, feedback) for cell in found["cells"]):
            continue
        started = time.monotonic()
        world = load_world(ROOT / "benchmarks/simulation/worlds" / f"{name}.yaml")
        rows = {row: gamma for row, gamma in found["tuned"].items() if row != "true-tastes" or name in KNOWN}
        seeds, floor = range(options.seeds), options.floor
        found["cells"].append(compare(pool, world, rows, feedback, seeds, floor=floor, processes=options.processes))
        print(f"{name} {feedback}: {time.monotonic() - started:.0f} s", file=sys.stderr)
        _save(options.out, found)
    if not options.out:
        print(json.dumps(found, indent=1))


def _gammas(pool: Pool, options: argparse.Namespace) -> dict[str, float]:
    """Return each row's γ, given or tuned."""
    if options.gamma is not None:
        return dict.fromkeys(options.rows, options.gamma)
    sources = tuple(dict.fromkeys(LIKE.get(row, row) for row in options.rows))
    world = load_world(ROOT / "benchmarks/simulation/worlds" / f"{TUNED_IN[0]}.yaml")
    tuned = tune(pool, world, sources, TUNED_IN[1], floor=options.floor, processes=options.processes)
    return {row: tuned[LIKE.get(row, row)] for row in options.rows}


def tune(
    pool: Pool, world: World, rows: Sequence[str], feedback: float, *, processes: int | None = None, floor: float = 0.05
) -> dict[str, float]:
    """Choose each row's γ of `GAMMAS` by total regret over the tuning seeds."""
    grid = [(row, gamma, seed) for row in rows for gamma in GAMMAS for seed in TUNING_SEEDS]
    tasks = [
        PoolTask(world=world, row=row, gamma=gamma, feedback=feedback, seed=seed, floor=floor)
        for row, gamma, seed in grid
    ]
    total: dict[tuple[str, float], float] = {}
    for (row, gamma, _), result in zip(grid, run_tasks(pool, tasks, processes), strict=True):
        total[row, gamma] = total.get((row, gamma), 0.0) + sum(result.regret)
    return {row: min(GAMMAS, key=lambda gamma: total[row, gamma]) for row in rows}


def _sources() -> str:
    """Hash the code that determines the results of a run, as sixteen hex digits."""
    digest = hashlib.sha256()
    for place in SOURCES:
        for file in sorted((ROOT / place).glob("*.py")) or [ROOT / place]:
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _resumed(out: Path | None, settings: dict[str, Any]) -> dict[str, Any]:
    """Load what an earlier run with the same settings left, or begin anew."""
    if out is not None and out.is_file():
        found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        if all(found.get(name) == value for name, value in settings.items()):
            return found
        print(f"{out} is of other sources or settings; starting anew", file=sys.stderr)
    return {**settings, "cells": []}


def _save(out: Path | None, found: dict[str, Any]) -> None:
    if out is not None:
        out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _print(found: dict[str, Any], doc: Path | None) -> int:
    made = tables(found)
    if doc is not None:
        doc.write_text(fill(doc.read_text(encoding="utf-8"), made), encoding="utf-8")
    else:
        print("\n".join(f"<!-- {name} -->\n\n{text}\n" for name, text in made.items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
