"""What one pass over recorded outcomes earns, a label a request, beside the best single model. Prints JSON.

    python -m benchmarks.policies.outcomes                                     # ten minutes of an idle core
    python -m benchmarks.policies.outcomes --orders 4 --policy squarecb --floor .05 --cells routerbench

Response matrices (`../shared/data`) whose rewards are known for every model, streamed once in shuffled orders through
the product's decider and learner (`simulation.matrix_stream`) with the configuration's defaults. Of each cell, over
orders: the mean reward of the last half and of the first hundred requests, each minus what the model that is best over
all prompts earns on the same requests; the worst order; the share of the ceiling that was spent. Without a ceiling also
the last half of simple bandits on the same streams (`_simple`), and of libraries that are installed here (`_peers`).
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from benchmarks.policies._peers import PEERS
from benchmarks.policies._simple import SIMPLE

from fitrouter.context.encoders import get_encoder
from fitrouter.state.budgets import BudgetParams
from fitrouter.types import Floats
from fitrouter_evaluators.datasets import MatrixRow, paretobandit
from fitrouter_evaluators.simulation.matrix_stream import Matrix, Setting, matrix_of, play

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"


def routerbench() -> Matrix:
    """1,658 prompts × 11 models, right or wrong."""
    with gzip.open(DATA / "routing/routerbench_dev.jsonl.gz") as lines:
        return matrix_of([msgspec.json.decode(line, type=MatrixRow) for line in lines], get_encoder("static"))


def judged(name: str, prices: bool = False) -> Callable[[], Matrix]:
    """A file of ParetoBandit: three or four models, scored by a judge in [0, 1]."""
    folder = DATA / "paretobandit"
    return lambda: matrix_of(
        paretobandit.convert(folder, name), get_encoder("static"), paretobandit.prices(folder) if prices else None
    )


class Cell(NamedTuple):
    """A matrix, and USD that a request may cost on average."""

    matrix: Callable[[], Matrix]
    ceiling: float | None = None


FOUR = judged("val_k4.jsonl", prices=True)
CELLS: Mapping[str, Cell] = {
    "routerbench": Cell(routerbench),
    "routerbench, a third of the cost": Cell(routerbench, 0.00166),
    "four models": Cell(FOUR),
    "four models, 3e-4 USD": Cell(FOUR, 3e-4),
    "four models, 6.6e-4 USD": Cell(FOUR, 6.6e-4),
    "four models, 1.9e-3 USD": Cell(FOUR, 1.9e-3),
    "three models, judge claude": Cell(judged("cross_judge_claude_val.jsonl")),
    "three models, judge gpt-mini": Cell(judged("cross_judge_gpt_mini_val.jsonl")),
    "three models, judge r1": Cell(judged("cross_judge_r1_val.jsonl")),
}
FIRST = 100


def measure(cell: Cell, setting: Setting, orders: int) -> dict[str, Any]:
    """Summarise a cell over orders."""
    matrix = cell.matrix()
    best, half = int(np.nanmean(matrix.reward, axis=0).argmax()), len(matrix.reward) // 2
    budget = None if cell.ceiling is None else BudgetParams(usd_per_request=cell.ceiling)
    rows = []
    for seed in range(orders):
        order = np.random.default_rng(1000 + seed).permutation(len(matrix.reward))
        played = play(matrix, order, msgspec.structs.replace(setting, seed=seed), budget)
        lead = played.reward - matrix.reward[order, best]
        rows.append((lead[half:].mean(), lead[:FIRST].mean(), played.cost.mean()))
    late, first, cost = np.array(rows).T
    found: dict[str, Any] = {
        "late": late,
        "best_single": float(np.nanmean(matrix.reward[:, best])),
        "last_half": float(late.mean()),
        "se": float(late.std(ddof=1) / np.sqrt(orders)),
        "worst_order": float(late.min()),
        "first_hundred": float(first.mean()),
    }
    return found if cell.ceiling is None else found | {"spent": float(cost.mean() / cell.ceiling)}


def peer_rewards(name: str, matrix: Matrix, order: Floats, seed: int) -> Floats:
    """Rewards of another bandit's pass, in the order played.

    Raises:
        ImportError: its library is not installed.
    """
    n, K = matrix.reward.shape
    peer = (SIMPLE | PEERS)[name](matrix.x.shape[1], K, seed)
    rewards = np.empty(n)
    for place, t in enumerate(order.tolist()):
        arm = peer.decide(matrix.x[t])
        rewards[place] = reward = float(matrix.reward[t, arm])
        peer.update(matrix.x[t], arm, reward)
    return rewards


def installed() -> list[str]:
    """Names of the simple bandits, and of those whose libraries are installed."""
    found = list(SIMPLE)
    for name, make in PEERS.items():
        try:
            make(2, 2, 0)
        except ImportError as error:
            print(f"skipped {name}: {error}", file=sys.stderr)
        else:
            found.append(name)
    return found


def measure_peers(matrix: Matrix, ours: Floats) -> dict[str, dict[str, float]]:
    """Last half of the peers' passes minus the best single model, and ours minus theirs, paired by order."""
    best, n = int(np.nanmean(matrix.reward, axis=0).argmax()), len(matrix.reward)
    found = {}
    for name in installed():
        late = []
        for seed in range(len(ours)):
            order = np.random.default_rng(1000 + seed).permutation(n)
            late.append((peer_rewards(name, matrix, order, seed) - matrix.reward[order, best])[n // 2 :].mean())
        ahead = ours - late
        error = float(ahead.std(ddof=1) / np.sqrt(len(ours)))
        found[name] = {"last_half": float(np.mean(late)), "ours_minus": float(ahead.mean()), "se": error}
    return found


def main() -> None:
    """Parse the command line, measure, and print JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--orders", type=int, default=8)
    parser.add_argument("--policy", default=Setting().algorithm)
    parser.add_argument("--floor", type=float, default=Setting().floor)
    parser.add_argument("--cells", nargs="*", default=list(CELLS), choices=list(CELLS))
    parser.add_argument("--peers", action="store_true", help="also other bandits; some minutes more")
    args = parser.parse_args()
    if not DATA.is_dir():
        print(f"skipped: there is no {DATA.name} beside the project", file=sys.stderr)
        return
    setting = Setting(algorithm=args.policy, floor=args.floor)
    found: dict[str, Any] = {}
    for name in args.cells:
        found[name] = measure(CELLS[name], setting, args.orders)
        late = found[name].pop("late")
        if args.peers and CELLS[name].ceiling is None:
            found[name]["peers"] = measure_peers(CELLS[name].matrix(), late)
        print(name, found[name], file=sys.stderr, flush=True)
    print(json.dumps({"policy": args.policy, "floor": args.floor, "orders": args.orders, "cells": found}))


if __name__ == "__main__":
    main()
