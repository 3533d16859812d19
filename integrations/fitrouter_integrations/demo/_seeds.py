"""Further seeds of the demo's world, in process: the router's own code without network and disk."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

import msgspec
import numpy as np

from fitrouter.types import Floats
from fitrouter_evaluators.simulation.simulate import contender, simulate
from fitrouter_integrations.demo._play import People
from fitrouter_integrations.demo._stage import Stage
from fitrouter_integrations.demo._world import DemoWorld

QUARTERS = 4


class Gammas(msgspec.Struct, frozen=True, kw_only=True):
    """SquareCB's exploitation scale per strategy; chosen on seeds that are not reported."""

    ours: float
    blind: float
    floor: float


class Strategy(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a routing strategy; rewards are expected P(satisfied)."""

    reward: float
    quarters: tuple[float, ...]
    cost_usd: float
    """Of all rounds."""
    shares: dict[str, float]
    """Model → mean probability in the last quarter."""
    all_shares: dict[str, float]
    """Model → mean probability in all rounds."""


class SeedResult(msgspec.Struct, frozen=True, kw_only=True):
    """Results of all routing strategies on one seed."""

    seed: int
    best_single: str
    rows: dict[str, Strategy]
    mixture: tuple[float, ...]
    """Final weights of the heads for a new user (`posterior.mixture.EXPERTS`)."""

    @property
    def closed(self) -> float:
        """Share of the gap between the two oracles that the router closes, in the last quarter."""
        blind, knowing = (self.rows[row].quarters[-1] for row in ("blind oracle", "knowing oracle"))
        return (self.rows["ours"].quarters[-1] - blind) / (knowing - blind) if knowing > blind else float("nan")


def strategy(people: People, probs: Floats) -> Strategy:
    """Evaluate routing with the probabilities float64[T, K] on the first T rounds."""
    T = len(probs)
    rewards = np.einsum("tk,tk->t", probs, people.rounds()[:T])
    costs = np.einsum("tk,kt->t", probs, people.stage.cost[:, people.play.prompt[:T]])
    models, last = people.stage.pool.models, max(1, T // QUARTERS)
    return Strategy(
        reward=float(rewards.mean()),
        quarters=tuple(float(part.mean()) for part in np.array_split(rewards, QUARTERS)),
        cost_usd=float(costs.sum()),
        shares=dict(zip(models, probs[-last:].mean(axis=0).tolist(), strict=True)),
        all_shares=dict(zip(models, probs.mean(axis=0).tolist(), strict=True)),
    )


def strategies(people: People, T: int) -> tuple[str, dict[str, Strategy]]:
    """Return the best single model of the first T rounds in hindsight, and the strategies that do not learn."""
    models = people.stage.pool.models
    K, always = len(models), np.eye(len(models))
    best = int(people.rounds()[:T].mean(axis=0).argmax())
    default = models.index(people.world.default_model)
    return models[best], {
        "random": strategy(people, np.full((T, K), 1.0 / K)),
        "default model": strategy(people, np.repeat(always[default][None], T, axis=0)),
        "best single": strategy(people, np.repeat(always[best][None], T, axis=0)),
        "blind oracle": strategy(people, always[people.best_for_all()[:T]]),
        "knowing oracle": strategy(people, always[people.best_for_user()[:T]]),
    }


def learned(people: People, row: str, gamma: float, floor: float, rounds: int) -> tuple[Floats, Floats]:
    """Run a learning strategy (label-only, scores or ours); returns probs float64[rounds, K] and the heads' weights."""
    world = msgspec.structs.replace(people.world, rounds=rounds)
    pool, ask = people.stage.pool, world.raters.asked
    who = contender(row, gamma)
    outcome = simulate(world, pool, people.play, who, floor=floor, opinion=people.opinion, ask=ask)
    return outcome.probs, outcome.mixture


def play_seed(world: DemoWorld, stage: Stage, seed: int, gammas: Gammas) -> SeedResult:
    """Run all strategies on one seed."""
    people = People(world, stage, seed)
    best, rows = strategies(people, world.rounds)
    probs, mixture = learned(people, "ours", gammas.ours, gammas.floor, world.rounds)
    rows["ours"] = strategy(people, probs)
    for row, name in (("label-only", "user-blind bandit"), ("scores", "user-blind + scores")):
        probs, _ = learned(people, row, gammas.blind, gammas.floor, world.rounds)
        rows[name] = strategy(people, probs)
    return SeedResult(seed=seed, best_single=best, rows=rows, mixture=tuple(mixture.tolist()))


# --- in parallel ---------------------------------------------------------------------------------------------------

_given: tuple[DemoWorld, Stage, Gammas] | None = None


def _start(world: DemoWorld, stage: Stage, gammas: Gammas) -> None:
    global _given
    _given = world, stage, gammas


def _play(seed: int) -> SeedResult:
    assert _given is not None
    world, stage, gammas = _given
    return play_seed(world, stage, seed, gammas)


def play_seeds(
    world: DemoWorld, stage: Stage, gammas: Gammas, seeds: Sequence[int], deadline: float | None = None
) -> Iterator[SeedResult]:
    """Run seeds in one process per core; yields results as they complete, and drops those not done at the deadline."""
    if deadline is not None and time.monotonic() > deadline:
        return
    if len(seeds) < 2:
        yield from (play_seed(world, stage, seed, gammas) for seed in seeds)
        return
    # One BLAS thread per process: the matrices are small, and the processes use all cores.
    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ProcessPoolExecutor(
        min(cores, len(seeds)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start,
        initargs=(world, stage, gammas),
    ) as processes:
        tasks = [processes.submit(_play, seed) for seed in seeds]
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            for task in as_completed(tasks, timeout=left):
                yield task.result()
        except TimeoutError:
            processes.shutdown(wait=False, cancel_futures=True)
