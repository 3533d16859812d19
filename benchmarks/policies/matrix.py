"""Routing under a cost ceiling on ParetoBandit's validation matrix, beside ParetoBandit's own code.

    python -m benchmarks.policies.matrix --venv /tmp/paretobandit --json results/matrix.json
    python -m benchmarks.policies.matrix --earlier results/matrix.json  # ours again, beside the peer of that run

Every method streams the 1,766 prompts × 4 models once, cold, in the same twelve shuffled orders, with the same
context features (the router's static encoder) and the same price list (the authors'), and learns from the judged reward
and the real cost of what it chose alone. Ours is `simulation.matrix_stream`: the router's own decider and
learner as they ship. ParetoBandit 0.1.1 runs in an environment of its own (`--venv DIR`, else a temporary one) with its
pacer; of its exploration constants and forgetting factors the best in hindsight counts, by area on the first three
orders. The best mixture of two fixed models knows every mean in advance.

Reported: area under reward over the logarithm of nine ceilings from 2e-4 to 1.5e-2 USD; the mean cost of every window
of 500 requests after the first 200; no ceiling at all; and all prices ten times as high from the
middle on, which ours reads off the new price list, or finds in its bills alone (unannounced, as ParetoBandit does).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fitrouter.context.encoders import get_encoder
from fitrouter.state.budgets import BudgetParams
from fitrouter_evaluators.bench._routing import Point, area, mixture, windows
from fitrouter_evaluators.datasets import paretobandit
from fitrouter_evaluators.simulation.matrix_stream import Matrix, Setting, matrix_of, play

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data" / "paretobandit"
PEER = ROOT / "benchmarks/policies/_paretobandit.py"
PACKAGE = "paretobandit==0.1.1"
CEILINGS = np.geomspace(2e-4, 1.5e-2, 9)
ALPHAS = (0.01, 0.05, 0.15, 0.5)
FORGETTING = (0.997, 1.0)
TRIED = 3
"""Seeds on which the grid is tried; the best of it then plays all of them."""
SHOCK, FACTOR, BACK = 900, 10.0, 200
TOLERANCE = 1.02

Chosen = np.ndarray
"""int[S, T]: the model of each request in each seed."""


# --- methods ---


def ours(matrix: Matrix, orders: Any, ceiling: float | None, shock: Any = None, *, announced: bool = True) -> Chosen:
    """Play the router as it ships; returns the chosen models."""
    budget = None if ceiling is None else BudgetParams(usd_per_request=float(ceiling))
    return np.array(
        [
            play(matrix, order, Setting(seed=s), budget, shock, announced=announced).chosen
            for s, order in enumerate(orders)
        ]
    )


def peer(python: Path, matrix: Matrix, orders: Any, ceilings: Any, shocks: Any = None, **grid: Any) -> Chosen:
    """Run ParetoBandit; returns the chosen models, int8[ceilings, alphas, forgetting factors, S, T]."""
    prices = np.array([[card.prices.input, card.prices.output] for card in matrix.cards])
    grid = {"alphas": ALPHAS, "forgetting": FORGETTING} | grid | ({} if shocks is None else {"shocks": shocks})
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "in.npz", Path(folder) / "out.npz"
        np.savez(
            source,
            x=matrix.x[:, 1:],
            reward=matrix.reward,
            cost=matrix.cost,
            orders=orders,
            prices=prices,
            ceilings=np.asarray(ceilings, dtype=np.float64),
            **{name: np.asarray(values, dtype=np.float64) for name, values in grid.items()},
        )
        subprocess.run([str(python), str(PEER), str(source), str(target)], check=True)
        with np.load(target) as found:
            return np.asarray(found["chosen"])


def environment(folder: Path) -> Path:
    """Return a Python with ParetoBandit; it is made at the first call."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", PACKAGE], check=True, stdout=sys.stderr)
    return python


# --- measures ---


def earned(matrix: Matrix, orders: Any, chosen: Chosen, shock: Any = None) -> tuple[Any, Any]:
    """Return reward and cost of the chosen models, float64[S, T] each."""
    reward, cost = matrix.reward[orders, chosen], matrix.cost[orders, chosen]
    if shock is not None:
        cost = (
            cost
            * np.take_along_axis(np.broadcast_to(shock, (len(orders), *shock.shape)), chosen[:, :, None], 2)[..., 0]
        )
    return reward, cost


def kept(costs: Any, ceiling: float, after: int = 200) -> dict[str, float]:
    """Return the dearest 500-request window (of any seed, of the seeds' mean), and the share above the ceiling."""
    found = np.array([windows(row, after) for row in costs]) / ceiling
    return {
        "dearest": float(found.max()),
        "dearest_mean": float(found.mean(axis=0).max()),
        "share_over": float((found > TOLERANCE).mean()),
        "seeds_over": int((found.max(axis=1) > TOLERANCE).sum()),
    }


def spread(values: Any) -> dict[str, float]:
    """Return mean and standard error over the seeds."""
    values = np.asarray(values, dtype=np.float64)
    return {"mean": float(values.mean()), "se": float(values.std(ddof=1) / np.sqrt(len(values)))}


def curve(matrix: Matrix, orders: Any, chosen: Any) -> dict[str, Any]:
    """Summarise a method at every ceiling; `area` per seed stays for paired differences."""
    rows, rewards = [], []
    for ceiling, picks in zip(CEILINGS.tolist(), chosen, strict=True):
        reward, cost = earned(matrix, orders, picks)
        rewards.append(reward.mean(axis=1))
        rows.append(
            {
                "ceiling_usd": ceiling,
                "reward": spread(reward.mean(axis=1)),
                "cost_of_ceiling": float(cost.mean() / ceiling),
                **kept(cost, ceiling),
            }
        )
    areas = [area(CEILINGS, seed) for seed in np.transpose(rewards)]
    return {"rows": rows, "area": spread(areas), "areas": areas}


def free(matrix: Matrix, orders: Any, chosen: Chosen) -> dict[str, Any]:
    """Summarise a method without a ceiling: reward, and cost relative to the best single model."""
    means = matrix.reward.mean(axis=0)
    best = int(means.argmax())
    reward, cost = earned(matrix, orders, chosen)
    return {
        "reward": spread(reward.mean(axis=1)),
        "below_best_single": float(means[best] - reward.mean()),
        "cost_of_best_single": float(cost.mean() / matrix.cost[:, best].mean()),
        "mix": [float(np.mean(chosen == k)) for k in range(len(means))],
    }


def after_shock(matrix: Matrix, orders: Any, ceiling: float, chosen: Chosen, shock: Any) -> dict[str, Any]:
    """Summarise costs before and after a price shock; windows begin `BACK` requests after it."""
    reward, cost = earned(matrix, orders, chosen, shock)
    hundreds = [float(cost[:, t : t + 100].mean() / ceiling) for t in range(SHOCK - 100, cost.shape[1] - 99, 100)]
    return {
        "ceiling_usd": ceiling,
        "reward_after": spread(reward[:, SHOCK:].mean(axis=1)),
        "cost_after_back": float(cost[:, SHOCK + BACK :].mean() / ceiling),
        "by_hundreds": hundreds,
        **kept(cost, ceiling, SHOCK + BACK),
    }


# --- the run ---


PARTS = ("ours", "free", "shock")


def run(
    matrix: Matrix,
    seeds: int,
    python: Path | None,
    earlier: dict[str, Any] | None = None,
    again: tuple[str, ...] = PARTS,
) -> dict[str, Any]:
    """Run everything and return the results as JSON.

    The peer comes from `python`'s environment or out of an earlier run, and so do the parts of ours that are not to be
    played again.
    """
    orders = np.array([np.random.default_rng(1000 + seed).permutation(len(matrix.x)) for seed in range(seeds)])
    points = [
        Point(float(c), float(r)) for c, r in zip(matrix.cost.mean(axis=0), matrix.reward.mean(axis=0), strict=True)
    ]
    hull = [mixture(points, ceiling) for ceiling in CEILINGS]
    shock = np.ones((orders.shape[1], len(points)))
    shock[SHOCK:] = FACTOR
    # A ceiling that the cheapest model breaks after the shock cannot be kept by anybody.
    bearable = [c for c in CEILINGS.tolist() if c >= 2.0 * FACTOR * min(point.cost for point in points)][::2]
    parts: dict[str, Callable[[], Any]] = {
        "ours": lambda: curve(matrix, orders, [ours(matrix, orders, ceiling) for ceiling in CEILINGS]),
        "free": lambda: {"ours": free(matrix, orders, ours(matrix, orders, None))},
        "shock": lambda: {
            name: [
                after_shock(matrix, orders, c, ours(matrix, orders, c, shock, announced=announced), shock)
                for c in bearable
            ]
            for name, announced in (("ours", True), ("ours, unannounced", False))
        },
    }
    found: dict[str, Any] = {
        "prompts": len(matrix.x),
        "seeds": seeds,
        "setting": msgspec.to_builtins(Setting()),
        "budget": msgspec.to_builtins(BudgetParams(usd_per_request=1.0)),
        "models": [
            {"name": m, "reward": p.reward, "cost_usd": p.cost} for m, p in zip(matrix.models, points, strict=True)
        ],
        "oracle": float(matrix.reward.max(axis=1).mean()),
        "best_mixture": {"rewards": hull, "area": area(CEILINGS, hull)},
        **{part: measure() if earlier is None or part in again else earlier[part] for part, measure in parts.items()},
    }
    if python is not None:
        _peer(found, python, matrix, orders, shock, bearable)
    elif earlier is not None:
        found |= {name: earlier[name] for name in ("paretobandit", "paretobandit_grid")}
        for part in ("free", "shock"):
            found[part]["paretobandit"] = earlier[part]["paretobandit"]
    _verdicts(found)
    return found


def _peer(found: dict[str, Any], python: Path, matrix: Matrix, orders: Any, shock: Any, bearable: list[float]) -> None:
    """Add ParetoBandit at the best of its parameter grid, and the grid, to the results."""
    tried = peer(python, matrix, orders[:TRIED], [*CEILINGS, np.nan])
    cells = list(np.ndindex(len(ALPHAS), len(FORGETTING)))
    areas = [curve(matrix, orders[:TRIED], tried[:-1, i, j])["area"]["mean"] for i, j in cells]
    rewards = [earned(matrix, orders[:TRIED], tried[-1, i, j])[0].mean() for i, j in cells]
    (a, f), (free_a, free_f) = cells[int(np.argmax(areas))], cells[int(np.argmax(rewards))]
    alone: dict[str, Any] = {"alphas": ALPHAS[a : a + 1], "forgetting": FORGETTING[f : f + 1]}
    paced = peer(python, matrix, orders, CEILINGS, **alone)[:, 0, 0]
    shocks = np.broadcast_to(shock, (len(bearable), *shock.shape))
    shocked = peer(python, matrix, orders, bearable, shocks, **alone)[:, 0, 0]
    open_ = {"alphas": ALPHAS[free_a : free_a + 1], "forgetting": FORGETTING[free_f : free_f + 1]}
    unpaced = peer(python, matrix, orders, [np.nan], **open_)[0, 0, 0]
    found["paretobandit"] = {
        "package": PACKAGE,
        "alpha": ALPHAS[a],
        "forgetting": FORGETTING[f],
        **curve(matrix, orders, paced),
    }
    found["paretobandit_grid"] = [
        {"alpha": ALPHAS[i], "forgetting": FORGETTING[j], "area": area_}
        for (i, j), area_ in zip(cells, areas, strict=True)
    ]
    found["free"]["paretobandit"] = {
        "alpha": ALPHAS[free_a],
        "forgetting": FORGETTING[free_f],
        **free(matrix, orders, unpaced),
    }
    found["shock"]["paretobandit"] = [
        after_shock(matrix, orders, c, picks, shock) for c, picks in zip(bearable, shocked, strict=True)
    ]


def _verdicts(found: dict[str, Any]) -> None:
    """Add the targets of issue 4, done-when 3, each with what was found, to the results."""
    mine, hull = found["ours"], found["best_mixture"]
    free_ = found["free"]["ours"]
    verdicts = {
        "area above the best mixture": [mine["area"]["mean"] - hull["area"], mine["area"]["mean"] > hull["area"]],
        "most expensive window of the seeds' mean <= 1.02": [
            max(row["dearest_mean"] for row in mine["rows"]),
            all(row["dearest_mean"] <= TOLERANCE for row in mine["rows"]),
        ],
        "most expensive window of any seed <= 1.02": [
            max(row["dearest"] for row in mine["rows"]),
            all(row["dearest"] <= TOLERANCE for row in mine["rows"]),
        ],
        "no ceiling: within .004 of the best single model": [
            free_["below_best_single"],
            free_["below_best_single"] <= 0.004,
        ],
        "no ceiling: at most 60 % of its cost": [free_["cost_of_best_single"], free_["cost_of_best_single"] <= 0.6],
        "shock: inside again after 200 requests": [
            max(row["dearest_mean"] for row in found["shock"]["ours"]),
            all(row["dearest_mean"] <= TOLERANCE for row in found["shock"]["ours"]),
        ],
    }
    if "paretobandit" in found:
        difference = spread(np.subtract(mine["areas"], found["paretobandit"]["areas"]))
        verdicts["area above ParetoBandit's"] = [difference, difference["mean"] > 2.0 * difference["se"]]
    found["verdicts"] = {name: {"found": value, "met": bool(met)} for name, (value, met) in verdicts.items()}


# --- tables ---


def tables(found: dict[str, Any]) -> str:
    """Format the results as Markdown tables."""
    peer_, hull = found.get("paretobandit"), found["best_mixture"]
    lines = [
        "| ceiling, USD | best mixture | ours | cost | most expensive window | ParetoBandit | its cost |",
        "|---|---|---|---|---|---|---|",
    ]
    for i, row in enumerate(found["ours"]["rows"]):
        other = peer_["rows"][i] if peer_ else None
        theirs = f"{other['reward']['mean']:.4f} | {other['cost_of_ceiling']:.2f}" if other else "– | –"
        window = f"{row['dearest_mean']:.3f} / {row['dearest']:.2f}"
        reward = f"{row['reward']['mean']:.4f} ± {row['reward']['se']:.4f}"
        lines.append(
            f"| {row['ceiling_usd']:.2e} | {hull['rewards'][i]:.4f} | {reward} | {row['cost_of_ceiling']:.2f} "
            f"| {window} | {theirs} |"
        )
    of = [f"{hull['area']:.4f}", f"**{found['ours']['area']['mean']:.4f}** ± {found['ours']['area']['se']:.4f}", "", ""]
    lines.append(f"| area | {' | '.join(of)} | {peer_['area']['mean'] if peer_ else float('nan'):.4f} | |")
    lines += [
        "",
        "| no ceiling | reward | below the best single model | cost of the best single model's |",
        "|---|---|---|---|",
    ]
    for name, row in found["free"].items():
        reward = f"{row['reward']['mean']:.4f} ± {row['reward']['se']:.4f}"
        lines.append(f"| {name} | {reward} | {row['below_best_single']:.4f} | {row['cost_of_best_single']:.2f} |")
    lines += [
        "",
        "| ten times the costs, ceiling | method | by hundreds of requests | most expensive window after 200 |",
        "|---|---|---|---|",
    ]
    for name, rows in found["shock"].items():
        for row in rows:
            path = " ".join(f"{value:.2f}" for value in row["by_hundreds"])
            lines.append(
                f"| {row['ceiling_usd']:.2e} | {name} | {path} | {row['dearest_mean']:.3f} / {row['dearest']:.2f} |"
            )
    lines += ["", "| target | found | met |", "|---|---|---|"]
    for name, verdict in found["verdicts"].items():
        value = verdict["found"]
        shown = f"{value['mean']:+.4f} ± {value['se']:.4f}" if isinstance(value, dict) else f"{value:+.4f}"
        lines.append(f"| {name} | {shown} | {'yes' if verdict['met'] else 'no'} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--venv", type=Path, help="folder of ParetoBandit's environment; a temporary one otherwise")
    parser.add_argument("--earlier", type=Path, help="output of an earlier run, whose peer is not played again")
    parser.add_argument("--again", nargs="+", choices=PARTS, default=PARTS, help="parts of ours that are played again")
    parser.add_argument("--no-peer", action="store_true", help="ours and the best mixture alone")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tables", type=Path, help="output of a run, to be printed in Markdown; nothing is played")
    args = parser.parse_args()
    if args.tables:
        print(tables(json.loads(args.tables.read_text(encoding="utf-8"))))
        return
    if not args.data.is_dir():
        print(
            f"skipped: there is no {args.data}; it holds ParetoBandit's val_k4.jsonl and models_k4.json",
            file=sys.stderr,
        )
        return
    matrix = matrix_of(paretobandit.convert(args.data), get_encoder("static"), paretobandit.prices(args.data))
    earlier = json.loads(args.earlier.read_text(encoding="utf-8")) if args.earlier else None
    if earlier is not None and earlier["seeds"] != args.seeds:
        raise SystemExit(
            f"--earlier {str(args.earlier)!r} has {earlier['seeds']} seeds, not {args.seeds}: leave it out"
        )
    with tempfile.TemporaryDirectory() as temporary:
        python = None if args.no_peer or earlier else environment(args.venv or Path(temporary))
        found = run(matrix, args.seeds, python, earlier, tuple(args.again))
    text = json.dumps(found, indent=1)
    if args.json:
        args.json.write_text(text + "\n", encoding="utf-8")
    print(json.dumps(found["verdicts"], indent=1))


if __name__ == "__main__":
    main()
