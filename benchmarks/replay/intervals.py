"""Coverage of replay's intervals when they are looked at again and again, and their width. Prints JSON.

    python -m benchmarks.replay.intervals --jobs 2 --peer ENV/bin/python --json results/replay_intervals.json

A policy is evaluated on logs of 5,000 decisions of other policies (`_replay_worlds.py`), from doubly robust outcomes
with an outcome model that knows earlier decisions only. Everybody is asked at 40 looks, spaced evenly on a logarithmic
scale from 50 to 5,000, α = .05, two-sided. An interval covers "anytime" where it holds the running mean of the policy's
value at all 40. "Fixed n" intervals promise to hold at one look, and stand here as the warning.

With `--peer` vw-estimators reads the same logs, or the first of them, in its own environment (`pip install
vw-estimators==0.2.2` there). Ours is timed on a million events in 20 slices.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.replay._baseline_sequences import by_slice, empirical_bernstein_lower, gamma_exponential_lower
from benchmarks.replay._interval_worlds import (
    WORLDS,
    K,
    Logs,
    World,
    doubly_robust,
    mixed,
    of_arm,
    paired,
    play,
    truth,
    weights,
)

from fitrouter_evaluators.replay.estimators import ESTIMATORS
from fitrouter_evaluators.replay.estimators.rounds import Rounds
from fitrouter_evaluators.replay.inference.intervals import deltas
from fitrouter_evaluators.replay.inference.sequences import (
    BOUNDS,
    PAIRED_BOUNDS,
    Sequence,
    asymptotic,
    exact,
    exact_lower,
    spaced,
)

ROOT = Path(__file__).resolve().parents[2]
PEER = ROOT / "benchmarks/replay/_vw_estimators.py"
N, ALPHA, CHUNK = 5000, 0.05, 50
LOOKS = spaced(N)
SHIPPED, FEWER = np.array(BOUNDS), np.array(BOUNDS[:2])
"""Of the exact sequence."""
ONE = 8.0
"""Bound of those that take a single one."""
SHOWN = (500, 2000, 5000)
PROTOTYPE = (0.114, 0.206, 0.364)
"""Mean widths of vw-estimators' cs at the end in the prototype, for the first three worlds."""
THEIRS = {"cs": "vw-estimators cs, IPS", "cressieread": "fixed n: vw-estimators Cressie–Read, IPS"}

Floats = np.ndarray
Pair = tuple[Floats, Floats]

# --- intervals of one log: (low, high), float64[looks] ---


def sides(lower: Callable[..., Floats], low: Floats, high: Floats, bound: Any) -> Pair:
    """Compute both limits, from outcomes ≥ −bound of r and of 1 − r."""
    limits = [lower(x, bound, alpha=ALPHA / 2.0, looks=LOOKS) for x in (low, high)]
    return limits[0], 1.0 - limits[1]


def one_look(rounds: Rounds, name: str) -> Pair:
    """Compute the delta method's interval at each look, as if it were the only one."""
    limits = []
    for t in LOOKS:
        found = deltas((ESTIMATORS[name],), Rounds(*(c[:t] for c in rounds if c is not None)), alpha=ALPHA)[0]
        limits.append((found.low[0], found.high[0]))
    low, high = np.array(limits).T
    return low, high


def intervals(logs: Logs) -> dict[str, Pair]:
    """Compute the limits of each method by name, float64[R, looks] each."""
    rounds = _rounds(logs)
    cut = {k: [doubly_robust(logs, k, flipped=flipped) for flipped in (False, True)] for k in (*SHIPPED, ONE)}
    ips = [weights(logs) * logs.reward, weights(logs) * (1.0 - logs.reward)]
    plain = doubly_robust(logs)
    found: dict[str, list[Pair]] = {}
    for i in range(len(plain)):
        low, high = (np.stack([cut[k][side][i] for k in SHIPPED]) for side in (0, 1))
        both = exact(low, 1.0 - high, SHIPPED, 1.0 + SHIPPED, looks=LOOKS)
        display = asymptotic(plain[i], looks=LOOKS)
        one = [x[i] for x in cut[ONE]]
        now = {
            "exact (bets), DR": (both.low, both.high),
            "exact (bets), DR, without the largest bound": sides(exact_lower, low[:2], high[:2], FEWER),
            f"exact (bets), DR, one bound of {ONE:g}": sides(exact_lower, *one, ONE),
            "exact (bets), IPS": sides(exact_lower, ips[0][i], ips[1][i], 1.0),
            "gamma-exponential mixture, DR": sides(gamma_exponential_lower, *one, ONE),
            "empirical Bernstein, DR": sides(empirical_bernstein_lower, *one, ONE),
            "asymptotic, DR": (display.low, display.high),
            "fixed n: DR": one_look(rounds[i], "dr"),
            "fixed n: SNIPS": one_look(rounds[i], "snips"),
        }
        for name, pair in now.items():
            found.setdefault(name, []).append(pair)
    return {name: _stacked(pairs) for name, pairs in found.items()}


def _stacked(pairs: list[Pair]) -> Pair:
    return np.array([low for low, _ in pairs]), np.array([high for _, high in pairs])


def _rounds(logs: Logs) -> list[Rounds]:
    direct = (logs.target * logs.model).sum(axis=-1)
    q = of_arm(logs.model, logs.arm)
    rows = zip(logs.reward, weights(logs), q, direct, direct, strict=True)
    return [Rounds(*row) for row in rows]


# --- worlds ---


def chunk(job: tuple[int, int, int], *, seed: int) -> tuple[dict[str, Pair], dict[str, Floats]]:
    """Compute intervals of some repetitions of a world, and the columns of their logs for other libraries."""
    world, index, repetitions = job
    logs = play(WORLDS[world], [seed, world, index], repetitions, N)
    return intervals(logs), columns(logs)


def columns(logs: Logs) -> dict[str, Floats]:
    """Return the columns of logs that vw-estimators reads."""
    return {"logged": of_arm(logs.logged, logs.arm), "target": of_arm(logs.target, logs.arm), "reward": logs.reward}


def score(pair: Pair, running: Floats | float, floor: float = 0.0) -> dict[str, Any]:
    """Measure coverage and widths; limits outside [floor, 1] count as floor or 1."""
    held = (pair[0] <= running) & (running <= pair[1])
    width = (np.clip(pair[1], floor, 1.0) - np.clip(pair[0], floor, 1.0)).mean(axis=0)
    at = np.searchsorted(LOOKS, SHOWN)
    return {
        "repetitions": len(held),
        "anytime coverage": _rate(held.all(axis=1)),
        f"coverage at {N}": _rate(held[:, -1]),
        "mean width at": {str(LOOKS[i]): round(float(width[i]), 4) for i in at},
    }


def _rate(ok: Floats) -> dict[str, float]:
    """Return a share with its 95 % interval (Clopper and Pearson)."""
    from scipy.stats import beta

    hits, n = int(ok.sum()), len(ok)
    low = float(beta.ppf(0.025, hits, n - hits + 1)) if hits else 0.0
    high = float(beta.ppf(0.975, hits + 1, n - hits)) if hits < n else 1.0
    return {"rate": round(hits / n, 4), "low": round(low, 4), "high": round(high, 4)}


def peer(python: Path, world: World, seen: dict[str, Floats]) -> tuple[dict[str, Pair], dict[str, float]]:
    """Run vw-estimators on the same logs; returns its limits and microseconds an event."""
    largest = (0.95 + 0.05 / K) / world.floor
    with tempfile.TemporaryDirectory() as folder:
        source, goal = Path(folder) / "in.npz", Path(folder) / "out.npz"
        np.savez(source, **seen, looks=LOOKS, alpha=ALPHA, largest=largest)
        subprocess.run([str(python), str(PEER), str(source), str(goal)], check=True)
        data = np.load(goal)
        pairs = {shown: (data[name][..., 0], data[name][..., 1]) for name, shown in THEIRS.items()}
        return pairs, {shown: float(data[f"{name}_us"]) for name, shown in THEIRS.items()}


def study(world: int, args: argparse.Namespace, pool: ProcessPoolExecutor) -> dict[str, Any]:
    """Compare all methods in one world."""
    values = truth(WORLDS[world], N)
    running = (np.cumsum(values) / np.arange(1, N + 1))[LOOKS - 1]
    begins = range(0, args.repetitions, CHUNK)
    jobs = [(world, index, min(CHUNK, args.repetitions - begin)) for index, begin in enumerate(begins)]
    parts = list(pool.map(partial(chunk, seed=args.seed), jobs))
    found = {name: _joined([part[name] for part, _ in parts]) for name in parts[0][0]}
    out: dict[str, Any] = {"world": WORLDS[world].name, "value at first": values[0], "mean value": running[-1]}
    ours, end = found["exact (bets), DR"], str(N)
    if world < len(PROTOTYPE):
        out["exact over cs of the prototype, width"] = _width(score(ours, running), end) / PROTOTYPE[world]
    if args.peer:
        most = args.peer_repetitions
        seen = {name: np.concatenate([read[name] for _, read in parts])[:most] for name in parts[0][1]}
        theirs, _ = peer(args.peer, WORLDS[world], seen)
        cs = theirs[THEIRS["cs"]]
        same = ours[0][: len(cs[0])], ours[1][: len(cs[0])]
        ratio = _width(score(same, running), end) / _width(score(cs, running), end)
        out["exact over cs on the same logs, width"] = ratio
        found |= theirs
    out = {key: round(float(value), 4) if isinstance(value, float) else value for key, value in out.items()}
    return out | {"intervals": {name: score(pair, running) for name, pair in found.items()}}


def differences(repetitions: int, *, seed: int, share: float = 0.3) -> dict[str, Any]:
    """Evaluate intervals of the gain of a mixture of fixed logger and target over the logger, by kind of bounds."""
    world = WORLDS[0]
    many = mixed(play(world, [seed, 98], 100, N), share)
    value = float(((many.target - many.logged) * many.success).sum(axis=-1).mean())
    found: dict[str, list[Pair]] = {}
    for index, begin in enumerate(range(0, repetitions, CHUNK)):
        logs = mixed(play(world, [seed, 99, index], min(CHUNK, repetitions - begin), N), share)
        cut = {k: [paired(logs, k, flipped=flipped) for flipped in (False, True)] for k in {*BOUNDS, *PAIRED_BOUNDS}}
        plain = paired(logs)
        for i in range(len(plain)):
            for bounds in (BOUNDS, PAIRED_BOUNDS):
                low, high = (np.stack([cut[k][side][i] for k in bounds]) for side in (0, 1))
                both = exact(low, -high, np.array(bounds), np.array(bounds), looks=LOOKS)
                found.setdefault(f"exact (bets), bounds {bounds}", []).append((both.low, both.high))
            display = asymptotic(plain[i], looks=LOOKS)
            found.setdefault("asymptotic", []).append((display.low, display.high))
    scored = {name: score(_stacked(pairs), value, floor=-1.0) for name, pairs in found.items()}
    return {"share": share, "difference": round(value, 4), "intervals": scored}


def _joined(pairs: list[Pair]) -> Pair:
    return np.concatenate([low for low, _ in pairs]), np.concatenate([high for _, high in pairs])


def _width(scored: dict[str, Any], at: str) -> float:
    return float(scored["mean width at"][at])


# --- speed ---


def speed(python: Path | None, n: int = 1_000_000, slices: int = 20) -> dict[str, Any]:
    """Measure microseconds an event: a million events for us, 50,000 for others; the best of three rounds, by turns."""
    rng = np.random.default_rng(1)
    weight = rng.gamma(0.5, 2.0, n)
    reward = (rng.random(n) < 0.6).astype(float)
    rows = {k: 0.6 + weight * (reward - np.minimum(0.6, k / np.maximum(weight, 1e-9))) for k in (*SHIPPED, ONE)}
    ladder, code = np.stack([rows[k] for k in SHIPPED]), rng.integers(0, slices, n)
    upper = ladder.max(axis=1)

    def bets(at: Any, looks: Any) -> Sequence:
        rows = ladder.take(at, axis=1)
        return exact(rows, rows, SHIPPED, upper, looks=looks)

    tasks = {
        f"exact, both sides, {slices} slices": lambda: by_slice(bets, code, slices),
        "exact, both sides": lambda: exact(ladder, ladder, SHIPPED, upper, looks=spaced(n)),
        "exact, one bound, lower side": lambda: exact_lower(rows[ONE], ONE, looks=spaced(n)),
        "gamma-exponential mixture, lower side, after every event": lambda: gamma_exponential_lower(rows[ONE], ONE),
        "asymptotic, after every event": lambda: asymptotic(rows[ONE]),
    }
    seen = columns(play(WORLDS[0], [0], 10, N))
    rounds = []
    for _ in range(3):
        took = {}
        for name, task in tasks.items():
            begin = time.perf_counter()
            task()
            took[name] = 1e6 * (time.perf_counter() - begin) / n
        rounds.append(took | (peer(python, WORLDS[0], seen)[1] if python else {}))
    best = {name: min(took[name] for took in rounds) for name in rounds[0]}
    out: dict[str, Any] = {"microseconds an event": {name: round(value, 3) for name, value in best.items()}}
    if python:
        out["cs over exact in slices, time"] = round(best[THEIRS["cs"]] / best[next(iter(tasks))], 1)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--worlds", type=int, nargs="*", default=list(range(len(WORLDS))))
    parser.add_argument("--peer", type=Path, help="a Python that has vw-estimators")
    parser.add_argument("--peer-repetitions", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with ProcessPoolExecutor(args.jobs) as pool:
        worlds = [study(world, args, pool) for world in args.worlds]
    out = {"n": N, "looks": len(LOOKS), "alpha": ALPHA, "seed": args.seed, "speed": speed(args.peer), "worlds": worlds}
    out["paired difference"] = differences(args.repetitions, seed=args.seed)
    text = json.dumps(out, indent=1, ensure_ascii=False)
    print(text)
    if args.json:
        args.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
