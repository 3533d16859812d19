"""The protocol of the personal pool: rows side by side on common random numbers, each at its own γ, over many seeds."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fitrouter.encoders import get_encoder
from fitrouter.types import Floats
from fitrouter_evaluators.pool import Pool, load_pool
from fitrouter_evaluators.reward import ResponseFeatures, global_scalar
from fitrouter_evaluators.simulate import best_single, contender, simulate
from fitrouter_evaluators.worlds import World, draw_play

__all__ = ["GAMMAS", "TUNING_SEEDS", "Task", "compare", "open_pool", "run_tasks", "tune"]

GAMMAS = (160.0, 640.0, 2560.0)
"""What each row's γ is chosen from."""
TUNING_SEEDS = tuple(range(1000, 1004))
"""Seeds that γ is chosen on; never reported."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One row in one seed of one world."""

    world: World
    row: str
    gamma: float
    feedback: float
    seed: int
    floor: float = 0.05


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a task gave. `share` is the mean propensity of each model in the last quarter."""

    regret: tuple[float, float, float, float]
    """By quarter."""
    last_reward: float
    best_last_reward: float
    """The last quarter's mean reward of the best single model in hindsight."""
    best_regret: float
    share: dict[str, float]
    reliance: tuple[float, ...]


_pool: Pool | None = None


def open_pool(
    path: Path, *, encoder: str = "static", topics: str = "minilm", scorer: str = "static", limit: int = 0
) -> Pool:
    """The pool of a file with the named encoders; see `load_pool`."""
    reader = get_encoder(scorer)
    features = ResponseFeatures(reader, scalar=global_scalar(reader))
    return load_pool(path, get_encoder(encoder), features, get_encoder(topics), limit)


def _start(pool: Pool) -> None:
    global _pool
    _pool = pool


def _work(task: Task) -> Result:
    assert _pool is not None
    pool, world = _pool, task.world
    play = draw_play(world, pool, task.seed)
    outcome = simulate(world, pool, play, contender(task.row, task.gamma), feedback=task.feedback, floor=task.floor)
    quarter = world.rounds // 4
    best = best_single(play)
    rewards = play.reward[play.user, :, play.prompt]
    regret = [float(outcome.regret[i * quarter : (i + 1) * quarter].sum()) for i in range(4)]
    return Result(
        regret=(regret[0], regret[1], regret[2], regret[3]),
        last_reward=float(outcome.reward[-quarter:].mean()),
        best_last_reward=float(rewards[-quarter:, best].mean()),
        best_regret=float((rewards.max(axis=1) - rewards[:, best]).sum()),
        share=dict(zip(pool.models, outcome.probs[-quarter:].mean(axis=0).round(6).tolist(), strict=True)),
        reliance=tuple(outcome.reliance.round(4).tolist()),
    )


def run_tasks(pool: Pool, tasks: Sequence[Task], processes: int | None = None) -> list[Result]:
    """All tasks, in order, over worker processes of one thread each."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    workers = min(processes or os.cpu_count() or 1, len(tasks)) or 1
    if workers == 1:
        _start(pool)
        return [_work(task) for task in tasks]
    with ProcessPoolExecutor(workers, initializer=_start, initargs=(pool,)) as executor:
        return list(executor.map(_work, tasks, chunksize=1))


def tune(
    pool: Pool, world: World, rows: Sequence[str], feedback: float, *, processes: int | None = None, floor: float = 0.05
) -> dict[str, float]:
    """Each row's γ of `GAMMAS` with the least total regret over the tuning seeds."""
    grid = [(row, gamma, seed) for row in rows for gamma in GAMMAS for seed in TUNING_SEEDS]
    tasks = [
        Task(world=world, row=row, gamma=gamma, feedback=feedback, seed=seed, floor=floor) for row, gamma, seed in grid
    ]
    total: dict[tuple[str, float], float] = {}
    for (row, gamma, _), result in zip(grid, run_tasks(pool, tasks, processes), strict=True):
        total[row, gamma] = total.get((row, gamma), 0.0) + sum(result.regret)
    return {row: min(GAMMAS, key=lambda gamma: total[row, gamma]) for row in rows}


def compare(
    pool: Pool,
    world: World,
    gammas: Mapping[str, float],
    feedback: float,
    seeds: Sequence[int],
    *,
    processes: int | None = None,
    floor: float = 0.05,
) -> dict[str, Any]:
    """Rows over the same seeds: regret, the change against the first row with its paired 95 % interval, and shares."""
    rows = list(gammas)
    tasks = [
        Task(world=world, row=row, gamma=gammas[row], feedback=feedback, seed=seed, floor=floor)
        for row in rows
        for seed in seeds
    ]
    results = run_tasks(pool, tasks, processes)
    by_row = {row: results[i * len(seeds) : (i + 1) * len(seeds)] for i, row in enumerate(rows)}
    total = {row: np.array([sum(result.regret) for result in by_row[row]]) for row in rows}
    worst = min(world.quality, key=lambda model: world.quality[model])
    return {
        "world": world.name,
        "feedback": feedback,
        "floor": floor,
        "seeds": len(seeds),
        "best_single": {"regret": float(np.mean([result.best_regret for result in by_row[rows[0]]]))},
        "rows": {
            row: {
                "gamma": gammas[row],
                "regret": float(total[row].mean()),
                "regret_by_quarter": np.mean([result.regret for result in by_row[row]], axis=0).round(1).tolist(),
                **{f"change_vs_{other}": _change(total[row], total[other]) for other in rows if other != row},
                "last_quarter_reward_minus_best_single": _mean(
                    np.array([result.last_reward - result.best_last_reward for result in by_row[row]])
                ),
                "last_quarter_share_of_worst": float(np.mean([result.share[worst] for result in by_row[row]])),
                "reliance": np.mean([result.reliance for result in by_row[row]], axis=0).round(3).tolist(),
            }
            for row in rows
        },
    }


def _change(ours: Floats, other: Floats) -> dict[str, float]:
    """Relative change of the sums, with a 95 % interval from the paired differences over seeds."""
    scale = float(other.mean())
    return {key: round(value / scale, 4) for key, value in _mean(ours - other).items()}


def _mean(values: Floats) -> dict[str, float]:
    half = 0.0
    if len(values) > 1:
        # Student's t at 97.5 % for n - 1 degrees of freedom, to 1e-2 from n = 4 on (Abramowitz and Stegun 26.7.5).
        n, z = len(values) - 1, 1.959964
        t = z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        half = t * float(values.std(ddof=1)) / float(np.sqrt(len(values)))
    mean = float(values.mean())
    return {"mean": round(mean, 5), "low": round(mean - half, 5), "high": round(mean + half, 5)}
