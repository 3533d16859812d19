"""The personal pool (docs/results/personal_pool.md): rows × worlds × feedback over seeds. Prints JSON.

python benchmarks/personal_pool.py --pool ../shared/data/alpaca_eval/responses.parquet --seeds 20 --out FILE
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from fitrouter_evaluators.personal_pool import compare, open_pool, tune
from fitrouter_evaluators.worlds import load_world

HERE = Path(__file__).resolve().parent
ROWS = ("label-only", "label-only-tight", "scores", "role", "ours", "true-tastes", "reward-score")
CELLS = [(world, feedback) for world in ("env", "lab-s1", "lab-s0") for feedback in (0.1, 0.3, 1.0)]
CELLS.append(("impostor", 0.1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pool", type=Path, default=HERE / "../../shared/data/alpaca_eval/responses.parquet")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--floor", type=float, default=0.05)
    parser.add_argument("--cells", nargs="*", help="world:feedback, for example env:0.3; all where left out")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if not options.pool.is_file():
        print(f"skipped: there is no pool {options.pool}", file=sys.stderr)
        return 0
    pool = open_pool(options.pool)
    wanted = [(cell.split(":")[0], float(cell.split(":")[1])) for cell in options.cells] if options.cells else CELLS
    cells = []
    for name, feedback in wanted:
        started = time.monotonic()
        world = load_world(HERE / "worlds" / f"{name}.yaml")
        gammas = tune(pool, world, ROWS, feedback, floor=options.floor)
        cells.append(compare(pool, world, gammas, feedback, range(options.seeds), floor=options.floor))
        print(f"{name} {feedback}: {time.monotonic() - started:.0f} s", file=sys.stderr)
        if options.out:
            options.out.write_text(json.dumps({"cells": cells}, indent=1) + "\n", encoding="utf-8")
    if not options.out:
        print(json.dumps({"cells": cells}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
