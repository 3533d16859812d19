"""Replay's answers against the truth: the product's own path on logs with everything that makes replay hard.

    python -m benchmarks.replay.coverage --repetitions 1000 --jobs 2 --json results/replay_coverage.json

Every repetition simulates a log (`_replay_logs`: an adaptive logger on ParetoBandit's matrix) and asks the product for
the candidate's value: units, outcome model, predictions of labels, pseudo-outcomes, sequences. Reported for each world:

* exact and asymptotic sequences: how often they hold the truth (the running mean of the candidate's value at each time)
  at all of 40 looks, with Clopper and Pearson's 95 % interval, and their mean width at the last;
* the doubly robust estimate at one look, at the end: coverage, bias, and what it would be at 40 looks;
* volunteers three times as eager when angry, and 55 % or 70 % of those who are asked answering: coverage of the asked
  labels alone, of prediction-powered estimates, of all labels alike, and of the sensitivity bounds;
* a hidden deterministic switch: how often the audit of the log finds it, and how often it rings on a clean log.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.replay._logs import HORIZON_S, IDLE_S, WORLDS, Prompts, Simulated, World, prompts_of, simulate

from fitrouter.context.encoders import get_encoder
from fitrouter.types import Floats
from fitrouter_evaluators.datasets import paretobandit
from fitrouter_evaluators.replay.estimators import DR
from fitrouter_evaluators.replay.inference.intervals import deltas
from fitrouter_evaluators.replay.inference.sequences import asymptotic, exact, spaced
from fitrouter_evaluators.replay.log.audit import audit
from fitrouter_evaluators.replay.study.sensitivity import silence_margins
from fitrouter_evaluators.replay.study.study import Pmfs, Study
from fitrouter_evaluators.replay.study.units import closed_units
from fitrouter_evaluators.simulation.matrix_stream import matrix_of

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data" / "paretobandit"
LOOKS, FIRST, ALPHA = 40, 50, 0.05
VOLUNTEERS = {
    "everybody answers": World(ask=0.1, volunteers=True),
    "70 % of the content, 55 % of the others": World(ask=0.1, volunteers=True, response=(0.70, 0.55)),
    "55 % of the content, 70 % of the others": World(ask=0.1, volunteers=True, response=(0.55, 0.70)),
}


def study_of(made: Simulated, world: World) -> tuple[Study, Floats]:
    """Return the product's study of the candidate, and the true value of each of its units."""
    horizon = HORIZON_S if world.late else 0.0
    units = closed_units(made.log, horizon_s=horizon, idle_s=IDLE_S)
    study = Study(units, Pmfs(made.pmf, made.log.options.prob), "fit")
    return study, made.truth[(study.units.ts / 60.0).astype(np.int64)]


def one(prompts: Prompts, world: World, n: int, seed: int) -> dict[str, Any]:
    """Check in one repetition which intervals cover the truth."""
    made = simulate(np.random.default_rng([seed, 0]), prompts, world, n)
    study, values = study_of(made, world)
    looks = spaced(study.units.n, LOOKS, FIRST)
    truth = np.cumsum(values)[looks - 1] / looks
    stream = study.stream("candidate")
    sure = exact(*stream, alpha=ALPHA, within=(0.0, 1.0), looks=looks)
    robust = DR().moments(study.powered[0])[0]
    shown = asymptotic(robust, alpha=ALPHA, looks=looks)
    t = looks.astype(np.float64)
    mean = np.cumsum(robust)[looks - 1] / t
    se = np.sqrt(np.maximum(np.cumsum(robust**2)[looks - 1] / t - mean**2, 0.0) / (t - 1.0))
    last = deltas((DR(),), study.powered[0], cluster=study.units.cluster)[0]
    return {
        "exact": bool(((sure.low <= truth) & (truth <= sure.high)).all()),
        "asymptotic": bool(((shown.low <= truth) & (truth <= shown.high)).all()),
        "one look": bool(last.low[0] <= truth[-1] <= last.high[0]),
        "one look, at 40": bool((np.abs(mean - truth) <= 1.96 * se).all()),
        "width": float(sure.high[-1] - sure.low[-1]),
        "width asymptotic": float(min(shown.high[-1], 1.0) - max(shown.low[-1], 0.0)),
        "width one look": float(last.high[0] - last.low[0]),
        "error": float(last.value[0] - truth[-1]),
        "units": study.units.n,
    }


def labels(prompts: Prompts, world: World, n: int, seed: int) -> dict[str, Any]:
    """Check in one repetition for which choice of labels the interval covers the truth."""
    made = simulate(np.random.default_rng([seed, 1]), prompts, world, n)
    study, values = study_of(made, world)
    truth, cluster = float(values.mean()), study.units.cluster
    rows = {"powered": (study.powered[0], np.ones(study.units.n, dtype=bool))}
    rows |= {name: (both[0], keep) for name, (both, keep) in (("asked", study.asked), ("naive", study.naive))}
    found: dict[str, Any] = {}
    for name, (rounds, keep) in rows.items():
        at = deltas((DR(),), rounds, cluster=cluster[keep])[0]
        found[name] = bool(at.low[0] <= truth <= at.high[0])
        found[f"{name} error"] = float(at.value[0] - truth)
        found[f"{name} width"] = float(at.high[0] - at.low[0])
        if name == "powered":
            less, more = silence_margins(study.units, study.observed, study.importance_weight("candidate"), gamma=2.0)
            found["bounds"] = bool(at.low[0] - less <= truth <= at.high[0] + more)
            found["bounds width"] = found["powered width"] + less + more
    return found


def switched(prompts: Prompts, world: World, n: int, seed: int) -> dict[str, Any]:
    """Check in one repetition whether the audit raises an alarm."""
    made = simulate(np.random.default_rng([seed, 2]), prompts, world, n)
    return {"rings": not all(check.ok for check in audit(made.log))}


def share(values: list[bool]) -> dict[str, float]:
    """Return the share of true values, with Clopper and Pearson's interval."""
    from scipy.stats import beta

    k, n = sum(values), len(values)
    low = float(beta.ppf(0.025, k, n - k + 1)) if k else 0.0
    high = float(beta.ppf(0.975, k + 1, n - k)) if k < n else 1.0
    return {"share": k / n, "low": low, "high": high}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Summarise repetitions: shares of booleans, means and standard errors of numbers."""
    found: dict[str, Any] = {}
    for name, first in rows[0].items():
        values = [row[name] for row in rows]
        if isinstance(first, bool):
            found[name] = share(values)
        else:
            numbers = np.array(values, dtype=np.float64)
            found[name] = {"mean": float(numbers.mean()), "se": float(numbers.std(ddof=1) / np.sqrt(len(numbers)))}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--repetitions", type=int, default=1000)
    parser.add_argument("--units", type=int, default=5000)
    parser.add_argument("--labels", type=int, default=20_000, help="units of the logs with volunteers")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--world", action="append", help="only this one; may be repeated")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    matrix = matrix_of(paretobandit.convert(args.data), get_encoder("static"))
    prompts = prompts_of(matrix.x[:, 1:], matrix.reward, matrix.models)
    repetitions, n = range(args.repetitions), args.units
    hidden = {"hidden switch": World(hidden_switch=True), "no hidden switch": World()}
    tables: dict[str, Any] = {"units": n, "labels": args.labels, "looks": LOOKS}
    with multiprocessing.get_context("fork").Pool(args.jobs) as pool:
        for title, worlds, of in (
            ("worlds", WORLDS, one),
            ("volunteers", VOLUNTEERS, labels),
            ("audit", hidden, switched),
        ):
            tables[title] = {}
            for name, world in worlds.items():
                if args.world and name not in args.world:
                    continue
                began = time.perf_counter()
                size = args.labels if of is labels else n
                rows = pool.map(partial(of, prompts, world, size), repetitions, chunksize=4)
                tables[title][name] = summary(rows) | {
                    "repetitions": args.repetitions,
                    "seconds": time.perf_counter() - began,
                }
                print(name, json.dumps(tables[title][name]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(tables, indent=1) + "\n")


if __name__ == "__main__":
    main()
