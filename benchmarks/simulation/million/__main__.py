"""A million users, 10,000 requests a second, 100 replicas, in virtual time (docs/results/million.md). Prints JSON.

    python -m benchmarks.simulation.million cells --out FILE    # regret; resumes cell by cell; --seeds 6 --minutes 30
    python -m benchmarks.simulation.million costs --out FILE    # CPU and bytes of each part of a request; ten minutes
    python -m benchmarks.simulation.million curves FILE COSTS   # exponents with intervals, costs, what breaks first

A cell is a fleet (`replicas.Fleet`) on the traffic of a seed (`crowd.draw_traffic`: the world lab-s05 on recorded
answers of four models, a million users with Zipf activity). What a replica does not know when it decides is counted in
labels: λ · staleness · share of the answers with a label. So cells vary that number in short windows where every answer
has a label; the cells `full` have 100 replicas, longer windows and labels of three answers in ten. Half-way through
every window the best model loses three logits: the first half is learning from nothing, the second of a change.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from benchmarks.simulation.million.costs import measure
from benchmarks.simulation.million.crowd import draw_traffic
from benchmarks.simulation.million.curves import FOLD_RATES, LABELS, RATE, REPLICAS, SHARE, STALENESS_S, report
from benchmarks.simulation.million.replicas import Cut, Fleet, simulate

from fitrouter_evaluators.simulation.personal_pool import open_pool
from fitrouter_evaluators.simulation.pool import Pool
from fitrouter_evaluators.simulation.worlds import load_world

ROOT = Path(__file__).resolve().parents[3]
USERS = 1_000_000
LOSS = 3.0
"""Logits that the best model loses half-way."""
SHORT, LONG = 1200, 5000
"""Requests of a window."""
EVENTS = 4
"""Of a request with a label: decision, execution, score, vote."""
BINS = 20
MODELS = ("NullModel", "gpt-3.5-turbo-1106_concise", "gpt4_0613_concise", "gpt-4o-2024-05-13")
"""Few, and one far better: between close ones, chance of the first labels decides for hundreds of requests."""


class Cell(NamedTuple):
    """A setup to simulate."""

    requests: int
    fleet: Fleet


def cells() -> dict[str, Cell]:
    """Return the setups of the short windows, by name."""
    found = {"base": Cell(SHORT, Fleet(rate=RATE, share=1.0))}
    for n in LABELS:
        found[f"staleness {n}"] = Cell(SHORT, Fleet(rate=RATE, share=1.0, staleness_s=n / RATE))
        found[f"label delay {n}"] = Cell(SHORT, Fleet(rate=RATE, share=1.0, label_s=n / RATE))
    for share in FOLD_RATES:
        found[f"fold rate {share}"] = Cell(SHORT, Fleet(rate=RATE, share=1.0, fold_rate=share * EVENTS * RATE))
    for replicas in REPLICAS:
        cut = Cut((0,), SHORT // 4, 3 * SHORT // 4)
        found[f"one of {replicas} cut off"] = Cell(SHORT, Fleet(rate=RATE, share=1.0, replicas=replicas, cut=cut))
    return found


def full() -> dict[str, Cell]:
    """Return the setups at 10,000 requests a second and 100 replicas, by name."""
    return {
        f"full, staleness {s:g} s": Cell(LONG, Fleet(rate=RATE, replicas=100, share=SHARE, staleness_s=s))
        for s in STALENESS_S
    }


def run(pool: Pool, name: str, cell: Cell, seed: int) -> dict[str, Any]:
    """Run one cell with one seed."""
    began = time.process_time()
    world = load_world(ROOT / "benchmarks/simulation/worlds/lab-s05.yaml")
    traffic = draw_traffic(world, pool, seed, users=USERS, requests=cell.requests, loss=LOSS)
    outcome = simulate(pool, traffic, cell.fleet, seed)
    return {
        "cell": name,
        "seed": seed,
        "requests": cell.requests,
        "virtual_s": round(float(traffic.gap.sum() / cell.fleet.rate), 3),
        "users": len(np.unique(traffic.user)),
        "seen_once": int((np.unique(traffic.user, return_counts=True)[1] == 1).sum()),
        "regret": [round(float(part.sum()), 3) for part in np.split(outcome.regret, BINS)],
        "missing_events": round(float(outcome.missing.mean()), 1),
        "events": outcome.events,
        "folded": outcome.folded,
        "cpu_s": round(time.process_time() - began, 1),
    }


def of_models(pool: Pool, names: Sequence[str]) -> Pool:
    """Restrict the pool to the answers of some of its models."""
    at = [k for k, name in enumerate(pool.models) if name in names]
    return msgspec.structs.replace(
        pool,
        models=tuple(pool.models[k] for k in at),
        h=pool.h[at],
        attributes=pool.attributes[at],
        completion_tokens=pool.completion_tokens[at],
        unseen=None,
    )


def fill(pool: Pool, seeds: int, minutes: float, out: Path | None) -> list[dict[str, Any]]:
    """Run the cells that are not in the file yet, seed by seed, until the minutes of CPU are over."""
    found: list[dict[str, Any]] = json.loads(out.read_text(encoding="utf-8")) if out and out.is_file() else []
    there = {(each["cell"], each["seed"]) for each in found}
    wanted = [(name, cell, seed) for seed in range(seeds) for name, cell in cells().items()]
    at = min(2, seeds) * len(cells())
    wanted[at:at] = [(name, cell, 0) for name, cell in full().items()]
    until = time.process_time() + 60.0 * minutes
    for name, cell, seed in wanted:
        if (name, seed) in there:
            continue
        if time.process_time() > until:
            break
        found.append(run(pool, name, cell, seed))
        print(name, seed, found[-1]["cpu_s"], file=sys.stderr, flush=True)
        if out is not None:
            out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def main() -> None:
    """Parse the command line, run the cells, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["cells", "costs", "curves"])
    parser.add_argument("files", nargs="*", type=Path, help="for curves: the outputs of cells and of costs")
    parser.add_argument("--pool", type=Path, default=ROOT / "../shared/data/alpaca_eval/responses.parquet")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--minutes", type=float, default=math.inf, help="of CPU, after which no cell is begun")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.what == "curves":
        if len(options.files) != 2:
            parser.error("curves needs the outputs of cells and of costs")
        found: Any = report(*(json.loads(path.read_text(encoding="utf-8")) for path in options.files))
    elif options.what == "costs":
        found = measure()
        if options.out:
            options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    elif not options.pool.is_file():
        print(f"skipped: there is no pool {options.pool}", file=sys.stderr)
        return
    else:
        pool = of_models(open_pool(options.pool, topics="static"), MODELS)
        found = fill(pool, options.seeds, options.minutes, options.out)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
