"""Coverage of replay with runs of agents as units, where later steps depend on earlier ones. Writes JSON.

    python -m benchmarks.replay.agent_runs --logs 2000 --runs 300 --jobs 2 --json docs/results/run_coverage.json

A run has three draws, by a planner, a coder and a tester, each over three models. A step succeeds with a probability of
its model and of whether the step before succeeded, which is also the context that the next draw sees; the run succeeds
if its last step does, or, less often, if only the one before did. The logging policy prefers one model by role and
context; the candidate is sharper, and wrong in one role. Its value is exact, by enumeration. The product's own path
gives value, difference and their intervals at one look.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fitrouter.types import Floats, Mode
from fitrouter_evaluators.replay.log.log import MODES, Decisions, Log, Names, Options, Outcomes
from fitrouter_evaluators.replay.study._estimate_rows import robust_rows
from fitrouter_evaluators.replay.study.study import Pmfs, Study
from fitrouter_evaluators.replay.study.units import runs_of

STEPS, MODELS = 3, 3
SUCCEEDS = np.array(
    [
        [[0.5, 0.5], [0.7, 0.7], [0.6, 0.6]],
        [[0.25, 0.6], [0.35, 0.8], [0.5, 0.55]],
        [[0.2, 0.7], [0.3, 0.65], [0.25, 0.85]],
    ]
)
"""Step, model, whether the step before succeeded → probability."""
ENDS = np.array([[0.05, 0.9], [0.2, 0.95]])
"""Whether the second, and the last, step succeeded → probability that the run does."""


def softmax(scores: Floats, scale: float) -> Floats:
    """Probabilities of the models of each step and context."""
    weight = np.exp(scale * scores)
    found: Floats = weight / weight.sum(axis=1, keepdims=True)
    return found


LOGGED = softmax(SUCCEEDS, 3.0)
WRONG = SUCCEEDS.copy()
WRONG[1] = WRONG[1][::-1]
CANDIDATE = softmax(WRONG, 8.0)


def value(policy: Floats) -> float:
    """Exact share of runs that succeed under a policy."""
    total = 0.0
    for models in itertools.product(range(MODELS), repeat=STEPS):
        for good in itertools.product((0, 1), repeat=STEPS):
            chance, before = 1.0, 1
            for step, (k, s) in enumerate(zip(models, good, strict=True)):
                p = SUCCEEDS[step, k, before]
                chance *= policy[step, k, before] * (p if s else 1.0 - p)
                before = s
            total += chance * ENDS[good[1], good[2]]
    return total


def simulate(rng: np.random.Generator, runs: int) -> tuple[Log, Floats, Floats]:
    """Simulate a log; also return the pmfs of the candidate and of the logging policy on its options."""
    n = runs * STEPS
    chosen, x = np.empty((runs, STEPS), dtype=np.int64), np.ones((runs, STEPS, 2))
    pmf, other = np.empty((2, runs, STEPS, MODELS))
    before, good = np.ones(runs, dtype=np.int64), np.empty((runs, STEPS), dtype=np.int64)
    for step in range(STEPS):
        x[:, step, 1] = before
        other[:, step], pmf[:, step] = LOGGED[step][:, before].T, CANDIDATE[step][:, before].T
        chosen[:, step] = (other[:, step].cumsum(axis=1) < rng.random(runs)[:, None]).sum(axis=1).clip(max=MODELS - 1)
        good[:, step] = before = (rng.random(runs) < SUCCEEDS[step, chosen[:, step], before]).astype(np.int64)
    ended = (rng.random(runs) < ENDS[good[:, 1], good[:, 2]]).astype(np.float64)
    none, nan, flat = np.full(n, -1), np.full(n, np.nan), chosen.ravel()
    decisions = Decisions(
        id=np.array([f"d{i}" for i in range(n)], dtype=object),
        seq=np.arange(n),
        ts=np.repeat(np.arange(runs) * 60.0, STEPS) + np.tile(np.arange(STEPS), runs),
        draw=np.arange(n),
        mode=np.full(n, MODES.index(Mode.ONLINE)),
        start=np.arange(n + 1) * MODELS,
        chosen=np.arange(n) * MODELS + flat,
        propensity=other.reshape(n, MODELS)[np.arange(n), flat],
        tenant=np.zeros(n, dtype=np.int64),
        user=none,
        role=np.tile(np.arange(STEPS), runs),
        task=none,
        session=np.arange(n),
        begins=np.ones(n, dtype=bool),
        asked=np.zeros(n, dtype=bool),
        asked_probability=np.zeros(n),
        learnt=none,
        x=x.reshape(n, 2).astype(np.float32),
        algorithm=np.full(n, "fixed", dtype=object),
        run=np.repeat(np.arange(runs), STEPS),
    )
    outcomes = Outcomes(
        status=np.full(n, "ok", dtype=object),
        served=flat,
        cost_usd=nan,
        latency_s=nan,
        asked_label=nan,
        free_label=nan,
        score=nan,
        ended=np.repeat(ended, STEPS),
    )
    names = Names(arms=("a", "b", "c"), roles=("planner", "coder", "tester"))
    options = Options(arm=np.tile(np.arange(MODELS), n), prob=other.ravel())
    return Log("a simulation", names, decisions, options, outcomes), pmf.ravel(), other.ravel()


def one(runs: int, seed: int) -> dict[str, Any]:
    """Check in one log whether the intervals hold the truth."""
    log, pmf, other = simulate(np.random.default_rng([seed, 7]), runs)
    study = Study(runs_of(log, idle_s=-1.0), Pmfs(pmf, other), "outcome")
    difference, level = robust_rows(study, 0.05)
    gain = value(CANDIDATE) - value(LOGGED)
    weight = study.weight[0]
    return {
        "difference": bool(difference.low <= gain <= difference.high),
        "logged": bool(level.low <= value(LOGGED) <= level.high),
        "width": difference.high - difference.low,
        "error": difference.value - gain,
        "ess": float(weight.sum() ** 2 / (weight**2).sum()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with multiprocessing.get_context("fork").Pool(args.jobs) as pool:
        rows = pool.map(partial(one, args.runs), range(args.logs), chunksize=10)
    found: dict[str, Any] = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
    found |= {"logs": args.logs, "runs": args.runs, "logged value": value(LOGGED), "candidate": value(CANDIDATE)}
    found["error se"] = float(np.std([row["error"] for row in rows]) / np.sqrt(args.logs))
    print(json.dumps(found, indent=1))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
