"""Comparison of routers on the personal pool: rows on common random numbers, each at its own γ, over seeds."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fitrouter.context.encoders import get_encoder
from fitrouter.types import Floats
from fitrouter_evaluators.scoring import ResponseFeatures, global_scalar
from fitrouter_evaluators.simulation.gaps import Gaps, benefit, gaps
from fitrouter_evaluators.simulation.pool import Pool, load_pool
from fitrouter_evaluators.simulation.simulate import MonitorHistory, best_single, contender, simulate
from fitrouter_evaluators.simulation.worlds import World, draw_play

EXPERIENCED = 20
"""Labels from which a user counts as experienced."""

_COUNTED = 120
"""Users' labels are counted up to here."""


class PoolTask(msgspec.Struct, frozen=True, kw_only=True):
    """One row in one seed of one world."""

    world: World
    row: str
    gamma: float
    feedback: float
    seed: int
    floor: float = 0.05


class PoolResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a task. `share` is the mean propensity of each model in the last quarter."""

    regret: tuple[float, float, float, float]
    """By quarter, against the oracle that knows luck."""
    feasible: float
    """Regret against the feasible oracle."""
    gaps: Gaps
    by_labels: tuple[float, ...]
    """Regret by the number of earlier labels of the round's user."""
    last_reward: float
    best_last_reward: float
    """The last quarter's mean reward of the best single model in hindsight."""
    share: dict[str, float]
    mixture: tuple[float, ...]
    monitor: MonitorHistory


_pool: Pool | None = None


def open_pool(
    path: Path, *, encoder: str = "static", topics: str = "minilm", scorer: str = "static", limit: int = 0
) -> Pool:
    """Open the pool of a file with the named encoders; see `load_pool`."""
    reader = get_encoder(scorer)
    features = ResponseFeatures(reader, scalar=global_scalar(reader))
    return load_pool(path, get_encoder(encoder), features, get_encoder(topics), limit)


def _start(pool: Pool) -> None:
    global _pool
    _pool = pool


def _work(task: PoolTask) -> PoolResult:
    assert _pool is not None
    pool, world = _pool, task.world
    play = draw_play(world, pool, task.seed)
    outcome = simulate(world, pool, play, contender(task.row, task.gamma), feedback=task.feedback, floor=task.floor)
    quarter = world.rounds // 4
    best = play.rounds(task.feedback).reward[-quarter:, best_single(play, task.feedback)]
    regret = [float(outcome.regret[i * quarter : (i + 1) * quarter].sum()) for i in range(4)]
    return PoolResult(
        regret=(regret[0], regret[1], regret[2], regret[3]),
        feasible=float(outcome.gap.sum()),
        gaps=gaps(play.user, outcome.gap, play.role),
        by_labels=tuple(np.bincount(_labels(play.user, play.rated < task.feedback), outcome.regret, _COUNTED + 1)),
        last_reward=float(outcome.reward[-quarter:].mean()),
        best_last_reward=float(best.mean()),
        share=dict(zip(pool.models, outcome.probs[-quarter:].mean(axis=0).round(6).tolist(), strict=True)),
        mixture=tuple(outcome.mixture.round(4).tolist()),
        monitor=outcome.monitor,
    )


def _labels(user: Any, rated: Any) -> Any:
    """Earlier labels of each round's user, at most `_COUNTED`, int[T]."""
    given: dict[int, int] = {}
    before = np.empty(len(user), dtype=np.intp)
    for t, (who, rates) in enumerate(zip(user.tolist(), rated.tolist(), strict=True)):
        before[t] = given.get(who, 0)
        given[who] = given.get(who, 0) + rates
    return np.minimum(before, _COUNTED)


def run_tasks(pool: Pool, tasks: Sequence[PoolTask], processes: int | None = None) -> list[PoolResult]:
    """Run tasks over worker processes of one thread each; results are in order."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    workers = min(processes or os.cpu_count() or 1, len(tasks)) or 1
    if workers == 1:
        _start(pool)
        return [_work(task) for task in tasks]
    with ProcessPoolExecutor(workers, initializer=_start, initargs=(pool,)) as executor:
        return list(executor.map(_work, tasks, chunksize=1))


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
    """Compare rows over the same seeds: each alone, against the others, and by user experience."""
    rows = list(gammas)
    tasks = [
        PoolTask(world=world, row=row, gamma=gammas[row], feedback=feedback, seed=seed, floor=floor)
        for row in rows
        for seed in seeds
    ]
    results = run_tasks(pool, tasks, processes)
    by_row = {row: results[i * len(seeds) : (i + 1) * len(seeds)] for i, row in enumerate(rows)}
    total = {row: np.array([sum(result.regret) for result in by_row[row]]) for row in rows}
    worst = min(world.quality, key=lambda model: world.quality[model])
    baselines, users = _baselines(pool, world, feedback, seeds)
    return {
        "world": world.name,
        "feedback": feedback,
        "floor": floor,
        "seeds": len(seeds),
        **baselines,
        **_of_users(by_row, users),
        "rows": {
            row: {
                "gamma": gammas[row],
                "regret": float(total[row].mean()),
                **{f"change_vs_{other}": _change(total[row], total[other]) for other in rows if other != row},
                **_summarise_row(by_row[row], worst),
            }
            for row in rows
        },
    }


def _summarise_row(results: Sequence[PoolResult], worst: str) -> dict[str, Any]:
    """Summarise the results of one row over its seeds."""
    histories = [result.monitor for result in results]
    return {
        "regret_by_quarter": np.mean([result.regret for result in results], axis=0).round(1).tolist(),
        "feasible_regret": _mean(np.array([result.feasible for result in results])),
        "gaps": {name: _mean(np.array([getattr(result.gaps, name) for result in results])) for name in Gaps._fields},
        "last_quarter_reward_minus_best_single": _mean(
            np.array([result.last_reward - result.best_last_reward for result in results])
        ),
        "last_quarter_share_of_worst": float(np.mean([result.share[worst] for result in results])),
        "mixture": np.mean([result.mixture for result in results], axis=0).round(3).tolist(),
        "twin": {
            "ever_helps": float(np.mean([one.helped for one in histories])),
            "ever_helps_in_a_role": float(np.mean([one.helped_role for one in histories])),
            "ever_off": float(np.mean([one.off is not None for one in histories])),
            "off_at_end": float(np.mean([one.off_at_end for one in histories])),
            "off_from_round": [one.off for one in histories],
            "verdicts": dict(sorted(Counter(one.verdict for one in histories).items())),
        },
    }


def _baselines(pool: Pool, world: World, feedback: float, seeds: Sequence[int]) -> tuple[dict[str, Any], Floats]:
    """Regret of policies that do not learn, and number of rounds by the user's number of earlier labels, float64[n]."""
    found: dict[str, list[float]] = {"best_single": [], "random": [], "feasible_oracle": []}
    users = np.zeros(_COUNTED + 1)
    for seed in seeds:
        play = draw_play(world, pool, seed)
        rounds = play.rounds(feedback)
        best = rounds.best.sum()
        found["best_single"].append(float(best - rounds.reward[:, best_single(play, feedback)].sum()))
        found["random"].append(float(best - rounds.reward.mean(axis=1).sum()))
        found["feasible_oracle"].append(float(best - rounds.feasible.sum()))
        users += np.bincount(_labels(play.user, play.rated < feedback), minlength=_COUNTED + 1)
    return {name: {"regret": float(np.mean(values))} for name, values in found.items()}, users


def _of_users(by_row: Mapping[str, Sequence[PoolResult]], users: Floats) -> dict[str, Any]:
    """Gain of the row "ours" over "role" for experienced users, and share of the gain that true tastes would bring."""
    out: dict[str, Any] = {}
    if "ours" in by_row and "role" in by_row:
        ours, role = (np.array([result.by_labels for result in by_row[row]]) for row in ("ours", "role"))
        out["experienced_users"] = _change(ours[:, EXPERIENCED:].sum(axis=1), role[:, EXPERIENCED:].sum(axis=1))
        out["labels_until_benefit"] = benefit((role - ours).sum(axis=0).tolist(), users.tolist())
    if {"ours", "scores", "true-tastes"} <= by_row.keys():
        ours, scores, true = (
            np.array([sum(result.regret) for result in by_row[row]]) for row in ("ours", "scores", "true-tastes")
        )
        out["share_of_true_gain"] = _ratio(scores - ours, scores - true)
    return out


def _change(ours: Floats, other: Floats) -> dict[str, float]:
    """Relative change of the sums, with a 95% interval from the paired differences over seeds."""
    scale = float(other.mean())
    if not scale:
        return dict.fromkeys(("mean", "low", "high"), 0.0)
    return {key: round(value / scale, 4) for key, value in _mean(ours - other).items()}


def _ratio(part: Floats, whole: Floats) -> dict[str, float]:
    """Ratio of sums over seeds, with the linearised interval (Cochran 1977, §6.3); wide where the whole is small."""
    total = float(whole.mean())
    if not total:
        return dict.fromkeys(("mean", "low", "high"), 0.0)
    ratio = float(part.mean()) / total
    around = _mean((part - ratio * whole) / total)
    return {key: round(ratio + value, 4) for key, value in around.items()}


def _mean(values: Floats) -> dict[str, float]:
    half = 0.0
    if len(values) > 1:
        # Student's t at 97.5% for n - 1 degrees of freedom, to 1e-2 from n = 4 on (Abramowitz and Stegun 26.7.5).
        n, z = len(values) - 1, 1.959964
        t = z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        half = t * float(values.std(ddof=1)) / float(np.sqrt(len(values)))
    mean = float(values.mean())
    return {"mean": round(mean, 5), "low": round(mean - half, 5), "high": round(mean + half, 5)}
