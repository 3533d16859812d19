"""Sweep of budget, policy and prior settings on matrices that `matrix.py` does not use.

    python -m benchmarks.policies.matrix_sweep \
        --vary budget.modest=1,2,3 router.gamma=640,2560 arms.profile_slope=0.02,0.2

Three worlds: two made ones, real prompts (RouteLLM's MMLU and GSM8K) with drawn qualities and heavy-tailed costs of
four models at usual prices, and the answers of ParetoBandit's other prompts under another judge (Claude; what is in the
validation matrix is left out). A line a setting, one setting changed at a time: mean reward above the best mixture of
two fixed models at each ceiling, in thousandths, and how windows of 500 kept their ceilings.
"""

from __future__ import annotations

import argparse
import json
import zlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fitrouter.context.encoders import get_encoder
from fitrouter.state.budgets import BudgetParams
from fitrouter_evaluators.bench._routing import Point, mixture, windows
from fitrouter_evaluators.datasets import Cell, MatrixRow, paretobandit, routellm
from fitrouter_evaluators.simulation.matrix_stream import Matrix, Setting, matrix_of, play

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
CEILINGS = (2.5e-4, 6.5e-4, 1.2e-3, 4e-3, None)
PRICES = {"large": (1.25, 10.0), "medium": (0.5, 1.5), "quick": (0.3, 2.5), "small": (0.1, 0.1)}
"""USD per million tokens."""
QUALITY = {"large": 0.935, "medium": 0.925, "quick": 0.929, "small": 0.79}
TOKENS = {"large": 1400.0, "medium": 300.0, "quick": 330.0, "small": 250.0}


def made(seed: int, prompts: int = 1800) -> Matrix:
    """Make a matrix of real prompts with drawn rewards and costs; models differ by topic, topics in difficulty."""
    rng = np.random.default_rng(seed)
    rows = [*routellm.convert_mmlu(DATA / "routellm"), *routellm.convert_gsm8k(DATA / "routellm")]
    names = sorted(PRICES)
    base = np.array([QUALITY[name] for name in names]) + rng.normal(0, 0.004, 4)
    chance = np.array([0.17 if name == "small" else 0.08 for name in names])
    found = []
    for n in rng.permutation(len(rows))[:prompts].tolist():
        row = rows[n]
        topic = np.random.default_rng([seed, zlib.crc32(str(row.source).encode())])
        level, liking = topic.normal(0, 0.03), topic.normal(0, 1, 4) * np.where(chance > 0.1, 0.08, 0.025)
        length = topic.normal(0, 0.4) + topic.normal(0, 0.25, 4)
        reward = np.clip(base + level + liking + rng.normal(0, 0.06) + rng.normal(0, 1, 4) * chance, 0.0, 1.0)
        spread = np.array([0.7, 0.8, 1.0, 0.6])
        tokens = np.array([TOKENS[name] for name in names]) * np.exp(length + rng.normal(0, 1, 4) * spread - 0.4)
        cells = {}
        for k, name in enumerate(names):
            into, out = PRICES[name]
            cost = (into * len(row.prompt) / 4.0 + out * float(tokens[k])) / 1e6
            cells[name] = Cell(reward=float(reward[k]), cost_usd=cost)
        found.append(MatrixRow(prompt=row.prompt, source=row.source, models=cells))
    return matrix_of(found, get_encoder("static"), PRICES)


def other_judge() -> Matrix:
    """Load the matrix of Claude's judgements on prompts that the validation matrix lacks."""
    folder = DATA / "paretobandit"
    used = {row.prompt for row in paretobandit.convert(folder)}
    rows = [row for row in paretobandit.convert(folder, "cross_judge_claude_val.jsonl") if row.prompt not in used]
    return matrix_of(rows, get_encoder("static"), paretobandit.prices(folder))


def measure(matrix: Matrix, setting: Setting, budget: BudgetParams, seeds: int) -> dict[str, Any]:
    """Measure the reward above the best mixture at each ceiling, in thousandths, and the most expensive windows."""
    means, prices = matrix.reward.mean(axis=0), matrix.cost.mean(axis=0)
    points = [Point(float(c), float(r)) for c, r in zip(prices, means, strict=True)]
    above, dearest, over = [], 0.0, []
    for ceiling in CEILINGS:
        kept = None if ceiling is None else msgspec.structs.replace(budget, usd_per_request=ceiling)
        orders = [np.random.default_rng(1000 + seed).permutation(len(matrix.x)) for seed in range(seeds)]
        played = [
            play(matrix, order, msgspec.structs.replace(setting, seed=seed), kept) for seed, order in enumerate(orders)
        ]
        best = max(means) if ceiling is None else mixture(points, ceiling)
        above.append(round(1000.0 * (float(np.mean([one.reward.mean() for one in played])) - float(best)), 2))
        if ceiling is not None and len(matrix.x) >= 700:
            found = np.array([windows(one.cost) for one in played]) / ceiling
            dearest = max(dearest, float(found.mean(axis=0).max()))
            over.append(float((found > 1.02).mean()))
    return {
        "above": above,
        "mean": round(float(np.mean(above)), 2),
        "dearest": round(dearest, 3),
        "over": round(float(np.mean(over)), 4) if over else None,
    }


def changed(setting: Setting, budget: BudgetParams, name: str, value: str) -> tuple[Setting, BudgetParams]:
    """Return the settings with one changed: `budget.x`, `router.x`, `fit.x` or `arms.x`."""
    room, _, field = name.partition(".")
    if room == "budget":
        return setting, msgspec.structs.replace(budget, **{field: float(value)})
    if room == "router":
        given = value if field == "algorithm" else float(value)
        return msgspec.structs.replace(setting, **{field: given}), budget
    fit = setting.fit
    if room == "arms":
        fit = msgspec.structs.replace(fit, arms=msgspec.structs.replace(fit.arms, **{field: float(value)}))
    elif room == "fit":
        fit = msgspec.structs.replace(fit, **{field: float(value)})
    else:
        raise SystemExit(f"--vary {name!r}: names begin with budget., router., fit. or arms.")
    return msgspec.structs.replace(setting, fit=fit), budget


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vary", nargs="*", default=[], metavar="NAME=VALUE,…")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    if not (DATA / "routellm").is_dir():
        raise SystemExit(f"skipped: there is no {DATA / 'routellm'}")
    worlds = {"made 0": made(0), "made 1": made(1), "other judge": other_judge()}
    base = Setting(), BudgetParams()
    variants = {"as shipped": base} | {
        f"{name}={value}": changed(*base, name, value)
        for name, _, values in (vary.partition("=") for vary in args.vary)
        for value in values.split(",")
    }
    for label, (setting, budget) in variants.items():
        found = {world: measure(matrix, setting, budget, args.seeds) for world, matrix in worlds.items()}
        print(
            json.dumps(
                {"setting": label, "mean": round(float(np.mean([f["mean"] for f in found.values()])), 2)} | found
            )
        )


if __name__ == "__main__":
    main()
