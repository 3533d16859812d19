"""Sweep that chose the shipped defaults (docs/results/sweep.md): one setting at a time, on seeds that no table uses.

Every setup runs the product's own code in two kinds of worlds: the personal pool (real answers, simulated people)
and synthetic bandits. What is printed is the regret against what ships, paired by seed, as JSON.

python -m benchmarks.policies.sweep --seeds 4 --out sweep.json          # about fifteen minutes on two idle cores
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from benchmarks.policies._ours import Ours
from benchmarks.policies._peers import world as synthetic

from fitrouter.config import PolicyConfig
from fitrouter.posterior.arms import CorrectionPrior
from fitrouter.posterior.labels import FitParams
from fitrouter_evaluators.simulation.personal_pool import open_pool
from fitrouter_evaluators.simulation.pool import Pool
from fitrouter_evaluators.simulation.simulate import contender, simulate
from fitrouter_evaluators.simulation.worlds import draw_play, load_world

ROOT = Path(__file__).resolve().parents[2]
FIRST = 2000
"""Seeds from here on; tables use seeds from 0 and from 100, and tune on seeds from 1000."""
SHIPPED = PolicyConfig()


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """A setup's differences from the shipped defaults."""

    gamma: float = SHIPPED.gamma
    floor: float = SHIPPED.floor
    arms: Mapping[str, float] = {}
    """Fields of `ArmParams`."""
    fit: Mapping[str, tuple[float, float]] = {}
    """Fields of `FitParams`."""
    encoder: str = "static"

    def params(self) -> FitParams:
        """Return the prior scales."""
        shipped = FitParams()
        arms = msgspec.structs.replace(shipped.arms, **self.arms)
        return msgspec.structs.replace(shipped, arms=arms, **self.fit)


def setups() -> dict[str, Setup]:
    """Return the compared setups by name; `shipped` is the baseline."""
    return {
        "shipped": Setup(),
        **{f"gamma {gamma:g}": Setup(gamma=gamma) for gamma in (160.0, 640.0, 10240.0, 40960.0)},
        **{f"floor {floor:g}": Setup(floor=floor) for floor in (0.02, 0.1)},
        **{
            f"slopes of c {v:g}": Setup(arms={"corrections": (CorrectionPrior(level=0.01, slopes=v),)})
            for v in (0.003, 0.03, 0.1)
        },
        **{
            f"level of c {v:g}": Setup(arms={"corrections": (CorrectionPrior(level=v, slopes=0.03),)})
            for v in (0.01, 0.1)
        },
        **{f"slopes of the profile {v:g}": Setup(arms={"profile_slope": v}) for v in (0.02, 0.2)},
        **{f"encoder {name}": Setup(encoder=name) for name in ("hashing", "minilm")},
    }


POOLS = ("lab-s1", "lab-s0", "env")
SYNTHETIC = ((64, 8), (384, 32))
_pools: dict[str, Pool] = {}


def regret(task: tuple[str, Setup, int, Path]) -> float:
    """Return the regret of one setup in one world and seed."""
    source, setup, seed, data = task
    kind, _, name = source.partition(" ")
    if kind == "pool":
        if setup.encoder not in _pools:
            _pools[setup.encoder] = open_pool(data, encoder=setup.encoder)
        pool, world = _pools[setup.encoder], load_world(ROOT / "benchmarks/simulation/worlds" / f"{name}.yaml")
        who = contender("ours", setup.gamma, setup.params())
        play = draw_play(world, pool, seed)
        return float(simulate(world, pool, play, who, feedback=0.3, floor=setup.floor).regret.sum())
    d, K = map(int, name.split("x"))
    world_ = synthetic(d, K, 4000, seed)
    ours = Ours(d, K, seed, {"gamma": setup.gamma, "floor": setup.floor}, setup.params())
    total = 0.0
    for x, p, r in zip(world_.x, world_.p, world_.r, strict=True):
        arm = ours.decide(x)
        ours.update(x, arm, float(r[arm]))
        total += float(p.max() - p[arm])
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pool", type=Path, default=ROOT / "../shared/data/alpaca_eval/responses.parquet")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--only", nargs="*", help="names of setups; shipped always runs")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    sources = [f"synthetic {d}x{K}" for d, K in SYNTHETIC]
    if options.pool.is_file():
        sources += [f"pool {name}" for name in POOLS]
    else:
        print(f"without the pool: there is no {options.pool}", file=sys.stderr)
    chosen = {name: setup for name, setup in setups().items() if name == "shipped" or name in (options.only or [name])}
    tasks = [
        (name, source, seed)
        for name, setup in chosen.items()
        for source in sources
        # Only the pool has texts for an encoder to read.
        if setup.encoder == "static" or source.startswith("pool")
        for seed in range(FIRST, FIRST + options.seeds)
    ]
    with ProcessPoolExecutor(os.cpu_count() or 1, get_context("forkserver")) as workers:
        work = [(source, chosen[name], seed, options.pool) for name, source, seed in tasks]
        results = dict(zip(tasks, workers.map(regret, work), strict=True))
    table = {name: _row(name, sources, options.seeds, results) for name in chosen}
    text = json.dumps({"first_seed": FIRST, "seeds": options.seeds, "setups": table}, indent=1) + "\n"
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0


def _row(name: str, sources: list[str], seeds: int, results: dict[tuple[str, str, int], float]) -> dict[str, Any]:
    """Return a setup's mean regret by source, and the change against `shipped` with its paired standard error."""
    row: dict[str, Any] = {}
    changes = []
    for source in sources:
        if (name, source, FIRST) not in results:
            continue
        ours = np.array([results[name, source, FIRST + i] for i in range(seeds)])
        base = np.array([results["shipped", source, FIRST + i] for i in range(seeds)])
        change = (ours - base) / base.mean()
        error = float(change.std(ddof=1) / math.sqrt(seeds)) if seeds > 1 else None
        row[source] = {"regret": round(float(ours.mean()), 1), "change": round(float(change.mean()), 4), "se": error}
        changes.append(float(change.mean()))
    row["mean change"] = round(float(np.mean(changes)), 4)
    return row


if __name__ == "__main__":
    raise SystemExit(main())
