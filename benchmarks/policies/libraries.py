"""Regret and decision time beside other bandit libraries, in one process on one core.

    python -m benchmarks.policies.libraries  # both parts; minutes for speed, most of an hour for regret
    python -m benchmarks.policies.libraries --part speed
    python -m benchmarks.policies.libraries --part regret --seeds 100-109 --cells 64x8 --peers none

Makes an environment of its own (`--venv DIR`, else a temporary one) with the libraries in it; `UV_FIND_LINKS`, pip's
settings and the like are left to the installer. Prints JSON: medians in microseconds, regrets, and ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = ("vowpalwabbit", "mabwiser", "contextualbandits", "river", "paretobandit")
NEEDED = ("cryptography", "msgspec", "numpy", "pydantic", "PyYAML", "tokenizers")
"""Of our own dependencies, those that a decision imports."""
CELLS = ((64, 8), (64, 32), (384, 8), (384, 32))
ROUNDS = 4000


# --- regret ---


def play(make: Callable[[], Any], world: Any, budget_s: float) -> tuple[int, float]:
    """Play one contender until its CPU time is up; returns the rounds played and the expected regret."""
    contender = make()
    regret, started = 0.0, time.process_time()
    for t in range(len(world.x)):
        arm = contender.decide(world.x[t])
        contender.update(world.x[t], arm, float(world.r[t, arm]))
        regret += float(world.p[t].max() - world.p[t, arm])
        if time.process_time() - started > budget_s:
            return t + 1, regret
    return len(world.x), regret


def regret(args: argparse.Namespace) -> dict[str, Any]:
    """Run every contender in every cell: mean and standard error of regret over seeds, and who ran out of time."""
    from benchmarks.policies._ours import Ours
    from benchmarks.policies._peers import PEERS, world

    contenders: dict[str, Callable[[int, int, int], Any]] = {"fitrouter": lambda d, K, s: Ours(d, K, s, args.policy)}
    contenders |= {} if args.peers == "none" else PEERS
    earlier = json.loads(args.earlier.read_text()) if args.earlier else {}
    if earlier and (earlier["seeds"], earlier["rounds"]) != (args.seeds, args.rounds):
        raise SystemExit(f"--earlier {args.earlier} has other seeds or rounds: leave it out")
    found: dict[str, Any] = {}
    for d, K in args.cells:
        cell: dict[str, Any] = {"random": _summary([_idle(world(d, K, args.rounds, s)) for s in args.seeds])}
        for name, make in contenders.items():
            known = earlier.get("regret", {}).get(f"{d}x{K}", {}).get(name)
            if known and name != "fitrouter":
                cell[name] = known
                continue
            regrets: list[float] = []
            for seed in args.seeds:
                n, lost = play(lambda: make(d, K, seed), world(d, K, args.rounds, seed), args.budget)  # noqa: B023
                if n < args.rounds:
                    cell[name] = {"out_of_time_at_round": n, "regret_so_far": round(lost, 1)}
                    break
                regrets.append(lost)
            else:
                cell[name] = _summary(regrets)
            print(f"{d}x{K} {name}: {cell[name]}", file=sys.stderr, flush=True)
        found[f"{d}x{K}"] = cell
    return found | {"verdict": _verdict(found)}


def _idle(world: Any) -> float:
    return float((world.p.max(axis=1) - world.p.mean(axis=1)).sum())


def _summary(values: list[float]) -> dict[str, Any]:
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return {"regret": round(statistics.mean(values), 1), "se": round(error, 1), "each": [round(v, 1) for v in values]}


def _verdict(cells: dict[str, Any]) -> dict[str, Any]:
    """Compute sums over the cells, and each cell's ratio to its best library."""
    names = {name for cell in cells.values() for name in cell}
    whole = {name for name in names if all("regret" in cell.get(name, {}) for cell in cells.values())}
    sums = {name: round(sum(cell[name]["regret"] for cell in cells.values()), 1) for name in sorted(whole)}
    ratios = {}
    for key, cell in cells.items():
        peers = {n: c["regret"] for n, c in cell.items() if n not in {"fitrouter", "random"} and "regret" in c}
        if peers:
            best = min(peers, key=peers.__getitem__)
            ratios[key] = {"best_library": best, "ratio": round(cell["fitrouter"]["regret"] / peers[best], 3)}
    return {"sums": sums, "to_best_library": ratios}


# --- the environment ---


def environment(folder: Path) -> Path:
    """Return a Python with the libraries and what a decision needs; it is made at the first call."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    ours = [line for line in project if line.split(">=")[0].strip() in NEEDED]
    subprocess.run([str(python), "-m", "pip", "install", "-q", *LIBRARIES, *ours], check=True, stdout=sys.stderr)
    return python


def inside(args: argparse.Namespace) -> None:
    """Run the measurements, in an environment that has everything."""
    import logging
    import platform
    import warnings
    from importlib.metadata import version

    logging.disable(logging.CRITICAL)
    warnings.filterwarnings("ignore")
    from benchmarks.policies._speed import speed

    parts = {"speed": speed, "regret": regret}
    wanted = parts if args.part == "all" else {args.part: parts[args.part]}
    found: dict[str, Any] = {
        "versions": {name: version(name) for name in (*LIBRARIES, "numpy")} | {"python": platform.python_version()},
        "policy": args.policy or "as shipped",
        "seeds": args.seeds,
        "rounds": args.rounds,
    }
    print(json.dumps(found | {name: part(args) for name, part in wanted.items()}, indent=1))


def _seeds(text: str) -> list[int]:
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def _cells(text: str) -> list[tuple[int, int]]:
    return [(int(d), int(K)) for d, _, K in (cell.partition("x") for cell in text.split(","))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=["speed", "regret", "all"], default="all")
    parser.add_argument("--venv", type=Path, help="folder of the environment; a temporary one otherwise")
    parser.add_argument("--seeds", type=_seeds, default=_seeds("100-109"), help="of the reported worlds: 100-109")
    parser.add_argument("--cells", type=_cells, default=list(CELLS), help="d x K: 64x8,384x32")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--budget", type=float, default=60.0, help="seconds of processor time that a contender may take for a world"
    )
    parser.add_argument("--policy", type=json.loads, help='for tuning, over the shipped settings: {"gamma": 640}')
    parser.add_argument("--earlier", type=Path, help="output of an earlier run, whose libraries are not played again")
    parser.add_argument("--peers", choices=["all", "none"], default="all")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        inside(args)
        return
    with tempfile.TemporaryDirectory() as temporary:
        python = environment(args.venv or Path(temporary))
        one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        path = os.pathsep.join([str(ROOT), str(ROOT / "router"), str(ROOT / "evaluators")])
        core = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
        pin = (lambda: os.sched_setaffinity(0, {core})) if core is not None else None
        subprocess.run(
            [str(python), "-m", "benchmarks.policies.libraries", *sys.argv[1:], "--inside"],
            check=True,
            env=os.environ | one | {"PYTHONPATH": path},
            preexec_fn=pin,
        )


if __name__ == "__main__":
    main()
