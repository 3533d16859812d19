"""The personal pool (docs/results/personal_pool.md): rows × worlds × feedback over seeds. Prints JSON.

python benchmarks/personal_pool.py --pool ../shared/data/alpaca_eval/responses.parquet --seeds 20 --out FILE
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from fitrouter_evaluators.personal_pool import GAMMAS, TUNING_SEEDS, compare, open_pool, tune
from fitrouter_evaluators.worlds import load_world

HERE = Path(__file__).resolve().parent
ROWS = ("label-only", "label-only-tight", "scores", "role", "ours", "unweighted", "true-tastes", "reward-score")
LIKE = {"unweighted": "ours", "true-tastes": "ours", "reward-score": "label-only"}
"""Rows that borrow another row's γ: they differ from it in what is known or learnt, not in exploration."""
CELLS = [(world, feedback) for world in ("env", "lab-s1", "lab-s0") for feedback in (0.1, 0.3, 1.0)]
CELLS.append(("impostor", 0.1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pool", type=Path, default=HERE / "../../shared/data/alpaca_eval/responses.parquet")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--floor", type=float, default=0.05)
    parser.add_argument("--encoder", default="minilm", help="of prompts, for the router")
    parser.add_argument("--rows", nargs="*", default=ROWS)
    parser.add_argument("--cells", nargs="*", help="world:feedback, for example env:0.3; all where left out")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if not options.pool.is_file():
        print(f"skipped: there is no pool {options.pool}", file=sys.stderr)
        return 0
    pool = open_pool(options.pool, encoder=options.encoder)
    wanted = [(cell.split(":")[0], float(cell.split(":")[1])) for cell in options.cells] if options.cells else CELLS
    cells, tuned = [], {}
    for name, feedback in wanted:
        started = time.monotonic()
        world = load_world(HERE / "worlds" / f"{name}.yaml")
        if name not in tuned:
            sources = tuple(dict.fromkeys(LIKE.get(row, row) for row in options.rows))
            gammas = tune(pool, world, sources, 0.3, floor=options.floor)
            tuned[name] = {row: gammas[LIKE.get(row, row)] for row in options.rows}
        cells.append(compare(pool, world, tuned[name], feedback, range(options.seeds), floor=options.floor))
        print(f"{name} {feedback}: {time.monotonic() - started:.0f} s", file=sys.stderr)
        if options.out:
            options.out.write_text(_dump(options.encoder, cells), encoding="utf-8")
    if not options.out:
        print(_dump(options.encoder, cells), end="")
    return 0


def _dump(encoder: str, cells: list[dict[str, object]]) -> str:
    return (
        json.dumps({"encoder": encoder, "gammas": GAMMAS, "tuning_seeds": TUNING_SEEDS, "cells": cells}, indent=1)
        + "\n"
    )


if __name__ == "__main__":
    raise SystemExit(main())
