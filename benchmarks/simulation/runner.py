"""Demo seeds and cells of the personal pool, seed by seed, to compare two versions of the simulation. Writes JSON.

    python -m benchmarks.simulation.runner --out FILE      # five minutes of one core

Everything runs in one process from fixed seeds, so that two checkouts can be compared (docs/results/runner.md).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import msgspec

from fitrouter_evaluators.simulation.personal_pool import PoolTask, open_pool, run_tasks
from fitrouter_evaluators.simulation.worlds import load_world
from fitrouter_integrations.demo._seeds import Gammas, play_seed
from fitrouter_integrations.demo._stage import set_stage
from fitrouter_integrations.demo._world import open_world

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 6000
GAMMAS = Gammas(ours=320.0, blind=640.0, floor=0.02)
"""Those of `fitrouter demo`."""
CELLS = {
    "lab-s1": {"label-only": 2560.0, "scores": 2560.0, "ours": 10240.0},
    "model-offset": {"label-only": 2560.0, "ours": 10240.0},
}
"""World → row → γ, at 30 % feedback."""


def demo(seeds: int) -> dict[str, list[tuple[float, float]]]:
    """Run demo seeds: row → (reward of all rounds, of the last quarter) by seed."""
    world = msgspec.structs.replace(open_world(None)[0], rounds=ROUNDS)
    stage, found = set_stage(world), dict[str, list[tuple[float, float]]]()
    for seed in range(seeds):
        for name, row in play_seed(world, stage, seed, GAMMAS).rows.items():
            found.setdefault(name, []).append((row.reward, row.quarters[-1]))
    return found


def cells(path: Path, seeds: int) -> dict[str, dict[str, list[float]]]:
    """Run cells of the personal pool: world → row → total regret by seed."""
    pool = open_pool(path, encoder="minilm")
    found: dict[str, dict[str, list[float]]] = {}
    for name, rows in CELLS.items():
        world = load_world(ROOT / "benchmarks/simulation/worlds" / f"{name}.yaml")
        for row, gamma in rows.items():
            tasks = [PoolTask(world=world, row=row, gamma=gamma, feedback=0.3, seed=seed) for seed in range(seeds)]
            found.setdefault(name, {})[row] = [sum(result.regret) for result in run_tasks(pool, tasks, 1)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pool", type=Path, default=ROOT / "../shared/data/alpaca_eval/responses.parquet")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    found: dict[str, Any] = {"demo": demo(options.seeds)}
    if options.pool.is_file():
        found["pool"] = cells(options.pool, options.seeds)
    options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
