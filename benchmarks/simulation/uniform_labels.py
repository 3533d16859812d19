"""Regret of the greedy choice after n labels of uniformly drawn answers (docs/results/personal_pool.md). Prints JSON.

    python -m benchmarks.simulation.uniform_labels --worlds lab-s0 lab-s1 --seeds 8    # a quarter of an hour on a core

Answers and labels are the same for all rows and no policy chooses, so that what a reward model learns is compared
without the luck of its exploration. Rows are those of `benchmarks.simulation.personal_pool`; `slopes` are "scores"
with other prior variances of the correction's slopes, `offsets` are "ours" with one head alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from fitrouter.posterior.arms import CorrectionPrior
from fitrouter.posterior.labels import Answered, FitParams, Label
from fitrouter.posterior.mixture import EXPERTS
from fitrouter.posterior.model import Fit
from fitrouter.types import FeedbackKind, Floats, Identity
from fitrouter_evaluators.simulation.personal_pool import open_pool
from fitrouter_evaluators.simulation.pool import Pool
from fitrouter_evaluators.simulation.simulate import contender
from fitrouter_evaluators.simulation.worlds import Play, World, draw_play, load_world

ROOT = Path(__file__).resolve().parents[2]
MARKS = (100, 200, 400, 800, 1600)
TESTED = 400
"""Requests of the last rounds whose choice is judged at each mark."""
FEEDBACK = 0.3


def rows() -> Iterator[tuple[str, FitParams, bool]]:
    """Yield name, priors, and whether the answers' texts are read."""
    for name in ("label-only", "scores", "role", "ours"):
        who = contender(name, 1.0)
        yield name, who.params, who.sees_text
    base = FitParams()
    for slopes in ((0.003,), (0.03,), (0.1,), (0.003, 0.03, 0.1)):
        arms = msgspec.structs.replace(
            base.arms, corrections=tuple(CorrectionPrior(level=0.01, slopes=slope) for slope in slopes)
        )
        yield f"scores, slopes {slopes}", msgspec.structs.replace(base, arms=arms, personal=False), True
    for width in ("narrow", "form", "medium", "wide"):
        same = dict.fromkeys(EXPERTS[2:], getattr(base.tastes, width))
        yield (
            f"ours, {width} alone",
            msgspec.structs.replace(base, tastes=msgspec.structs.replace(base.tastes, **same)),
            True,
        )


def regrets(world: World, pool: Pool, play: Play, seed: int, params: FitParams, *, text: bool) -> list[float]:
    """Return the mean regret of the greedy choice at each mark."""
    rounds, K, T = play.rounds(FEEDBACK), len(pool.models), world.rounds
    h = play.h if text else np.ones((*play.h.shape[:2], 1))
    fit = Fit(pool.x.shape[1], h.shape[2], params, names=pool.names if text else ())
    rng = np.random.default_rng(seed)
    drawn, judged = rng.integers(K, size=T), T - 1 - rng.permutation(T // 5)[:TESTED]
    found: list[float] = []
    for t in range(T - T // 5):
        k, x = int(drawn[t]), pool.x[int(play.prompt[t])]
        answered = Answered(pool.models[k], x, h[k, int(play.prompt[t])])
        fit.arms.observe_response(fit.arms.row(answered.arm), x, h[k, int(play.prompt[t])])
        if play.rated[t] < FEEDBACK:
            y = float(play.label[t] < rounds.reward[t, k])
            fit.learn(Label(_who(play, t), answered, y, FeedbackKind.THUMB, ts=1e9 + t))
            if fit.labels == MARKS[len(found)]:
                found.append(float(np.mean([_regret(fit, pool, play, rounds.reward, int(q)) for q in judged])))
                if len(found) == len(MARKS):
                    break
    return found


def _who(play: Play, t: int) -> Identity:
    user = int(play.user[t])
    return Identity(user=f"u{user}", role=f"r{play.role[user]}")


def _regret(fit: Fit, pool: Pool, play: Play, reward: Floats, t: int) -> float:
    estimate = fit.estimate(_who(play, t), pool.x[int(play.prompt[t])], tuple(pool.models), 1e9)
    return float(reward[t].max() - reward[t, int(estimate.mean.argmax())])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pool", type=Path, default=ROOT / "../shared/data/alpaca_eval/responses.parquet")
    parser.add_argument("--worlds", nargs="*", default=["lab-s0", "lab-s1"])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--rows", nargs="*", help="all where left out; label-only is the reference")
    options = parser.parse_args()
    if not options.pool.is_file():
        print(f"skipped: there is no pool {options.pool}", file=sys.stderr)
        return 0
    pool, out = open_pool(options.pool, encoder="minilm"), {}
    for name in options.worlds:
        world = load_world(ROOT / "benchmarks/simulation/worlds" / f"{name}.yaml")
        plays = [draw_play(world, pool, seed) for seed in range(options.seeds)]
        table = {
            row: np.array([regrets(world, pool, play, seed, params, text=text) for seed, play in enumerate(plays)])
            for row, params, text in rows()
            if not options.rows or row in {"label-only", *options.rows}
        }
        first = table["label-only"]
        out[name] = {
            row: {
                "regret": found.mean(axis=0).round(4).tolist(),
                "minus_label_only": (found - first).mean(axis=0).round(4).tolist(),
                "standard_error": ((found - first).std(axis=0, ddof=1) / len(found) ** 0.5).round(4).tolist(),
            }
            for row, found in table.items()
        }
    print(json.dumps({"labels": MARKS, "seeds": options.seeds, "worlds": out}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
