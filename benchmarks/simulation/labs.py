"""Labs (docs/results/labs.md) over seeds: late labels, new models, silent changes, prices, users. Prints JSON.

python -m benchmarks.simulation.labs --out labs.json  # the reported seeds, shipped settings, about ten minutes
python -m benchmarks.simulation.labs --tuning --gamma 160 --labs delay    # another γ, on seeds that are never reported
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from benchmarks.research import labs
from benchmarks.research.labs import POOLS, Result
from benchmarks.research.scene import Setup

from fitrouter.config import PolicyConfig
from fitrouter.monitors.drift import DriftParams
from fitrouter.posterior.labels import FitParams
from fitrouter.routing.decider import Rules

TUNING = 1000
"""First of the tuning seeds; reported ones start at 0."""
Cell = Callable[[int], Result]


def cells(shipped: Setup) -> dict[str, dict[str, Cell]]:
    """Return the cells, lab → setup → function that runs one seed."""
    change = msgspec.structs.replace
    calm = change(shipped, drift=DriftParams(threshold=math.inf))
    level = change(shipped, rules=change(shipped.rules, newcomer_floor=0.0))
    rare = change(shipped, feedback=0.3)

    def pool(name: str, sd: float) -> Cell:
        return lambda seed: labs.pooling(seed, shipped, name, sd)

    return {
        "delay": {
            f"{delay} rounds": lambda seed, delay=delay: labs.stationary(seed, change(shipped, delay=delay))
            for delay in (0, 50, 500)
        },
        "newcomer": {
            "shipped": lambda seed: labs.newcomer(seed, shipped),
            "no raised floor": lambda seed: labs.newcomer(seed, level),
            "shipped, 30% labels": lambda seed: labs.newcomer(seed, rare),
            "no raised floor, 30% labels": lambda seed: labs.newcomer(seed, change(rare, rules=level.rules)),
        },
        "worse": {
            "shipped": lambda seed: labs.worse(seed, shipped),
            "no alarm": lambda seed: labs.worse(seed, calm),
            "shipped, 30% labels": lambda seed: labs.worse(seed, rare),
            "no alarm, 30% labels": lambda seed: labs.worse(seed, change(rare, drift=calm.drift)),
        },
        "dearer": {"shipped": lambda seed: labs.dearer(seed, shipped)},
        "pooling, sd 0.6": {name: pool(name, 0.6) for name in POOLS},
        **{f"pooling, sd {sd}": {name: pool(name, sd) for name in ("blind", "user")} for sd in (0.0, 0.3)},
    }


def summary(values: Iterable[float | None]) -> dict[str, Any]:
    """Return mean, its standard error and the seeds' values; what never happened counts in `missing` only."""
    seeds = list(values)
    seen = [value for value in seeds if value is not None]
    out: dict[str, Any] = {"seeds": [value if value is None else round(value, 3) for value in seeds]}
    if len(seen) < len(seeds):
        out["missing"] = len(seeds) - len(seen)
    if seen:
        out["mean"] = round(float(np.mean(seen)), 3)
        out["se"] = round(float(np.std(seen, ddof=1) / math.sqrt(len(seen))), 3) if len(seen) > 1 else None
        # A seed in which it never happened is later than every other.
        out["median"] = round(float(np.median([math.inf if value is None else value for value in seeds])), 3)
    return out


def tell(results: list[Result]) -> dict[str, Any]:
    """Summarise all seeds of a cell."""
    return {
        "regret": {phase: summary(r.regret[phase] for r in results) for phase in results[0].regret},
        **{name: summary(r.measures[name] for r in results) for name in results[0].measures},
    }


def targets(told: dict[str, Any]) -> dict[str, Any]:
    """Compute the issue's target figures that the labs which ran can give; the names say what was asked."""
    out: dict[str, Any] = {}
    if "delay" in told:
        regret = {name: cell["regret"]["all"]["mean"] for name, cell in told["delay"].items()}
        out["regret at a delay of 500, in regrets without (at most 1.6)"] = regret["500 rounds"] / regret["0 rounds"]
    if "newcomer" in told:
        shipped = told["newcomer"]["shipped"]["adopted"]
        out["decisions until a new best model is adopted, median (at most 120)"] = shipped["median"]
        out["… in the slowest seed (at most 120)"] = None if "missing" in shipped else max(shipped["seeds"])
    if "worse" in told:
        shipped, calm = told["worse"]["shipped"], told["worse"]["no alarm"]
        for name in ("abandoned", "wasted"):
            out[f"a silently worse model: {name}, median, with and without the alarm (less)"] = (
                shipped[name]["median"],
                calm[name]["median"],
            )
    for lab in told:
        if lab.startswith("pooling"):
            user, blind = (np.array(told[lab][name]["regret"]["all"]["seeds"]) for name in ("user", "blind"))
            gap = (user - blind) / blind.mean()
            error = float(gap.std(ddof=1) / math.sqrt(len(gap))) if len(gap) > 1 else None
            out[f"{lab}: regret of user pooling against user-blind, and its error (at most 0)"] = gap.mean(), error
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--tuning", action="store_true", help="seeds that are never reported")
    parser.add_argument("--gamma", type=float, default=PolicyConfig().gamma)
    parser.add_argument("--rules", type=json.loads, default={}, help='others, as {"newcomer_pulls": 40}')
    parser.add_argument("--labs", nargs="*", help="beginnings of names, for example delay; all where left out")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    setup = Setup(gamma=options.gamma, params=FitParams(), rules=Rules(**options.rules))
    seeds = range(options.seeds) if not options.tuning else range(TUNING, TUNING + options.seeds)
    told: dict[str, Any] = {}
    for lab, its in cells(setup).items():
        if options.labs and not lab.startswith(tuple(options.labs)):
            continue
        started = time.process_time()
        told[lab] = {name: tell([cell(seed) for seed in seeds]) for name, cell in its.items()}
        print(f"{lab}: {time.process_time() - started:.0f} s", file=sys.stderr, flush=True)
    report = {
        "seeds": [seeds.start, seeds.stop],
        "gamma": options.gamma,
        "rules": options.rules,
        "definitions": {f.__name__: f.__doc__ for f in (labs.stationary, labs.newcomer, labs.worse, labs.dearer)},
        "targets": targets(told),
        "labs": told,
    }
    text = json.dumps(report, indent=1, ensure_ascii=False, default=float) + "\n"
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
