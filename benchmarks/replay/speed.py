"""Duration of offline replay on a million decisions. Prints JSON.

    python -m benchmarks.replay.speed --json results/replay_speed.json
    python -m benchmarks.replay.speed --peer PYTHON      # beside Open Bandit Pipeline 0.5.7, in its own environment

One million logged decisions over eight models, one draw a unit, 700,000 sessions (so clusters of several units), twenty
slices of uneven size. Everything starts from a log in memory:

* units: which decisions count, `closed_units` (not in any target).
* rounds: flat pmfs and outcome model (8,000,000 entries each) to what estimators read, `rounds_of`, matches for
  rejection replay among it.
* estimates: values and cluster-robust standard errors of all twelve estimators, in twenty slices and for everybody.
  Target: rounds + estimates ≤ 0.5 s.
* bootstrap: the same with 2,000 resamplings of sessions a slice. Target: rounds + bootstrap ≤ 3 s.
* outcomes: doubly robust outcomes with bounds known beforehand, two a side, `pseudo_outcomes` (not in any target).
* sequences: exact sequences of them in twenty slices at forty looks each, 95 % for all slices together. Target: ≤ 1 s.

Seconds are medians over the repetitions, the least, and the processor's (less than the clock's where other work waits
for the same cores); memory is the process's peak, data and all. Target: < 2 GiB.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from benchmarks.replay._baseline_sequences import Path as Running
from benchmarks.replay._baseline_sequences import by_slice

from fitrouter.types import Floats, Mode
from fitrouter_evaluators.replay.estimators import ESTIMATORS
from fitrouter_evaluators.replay.estimators.rounds import Rounds
from fitrouter_evaluators.replay.inference.intervals import Interval, bootstraps, deltas
from fitrouter_evaluators.replay.inference.sequences import exact
from fitrouter_evaluators.replay.log.log import MODES, Decisions, Ints, Log, Names, Options, Outcomes
from fitrouter_evaluators.replay.study.outcomes import observe_metric
from fitrouter_evaluators.replay.study.prediction_powered import label_probabilities
from fitrouter_evaluators.replay.study.pseudo_outcomes import PseudoOutcomes, pseudo_outcomes, rounds_of
from fitrouter_evaluators.replay.study.units import Units, closed_units

K, SLICES, SESSIONS = 8, 20, 0.7
PEER = """
import json, sys, time
import numpy as np
import obp.ope as ope
data, replicates = np.load(sys.argv[1]), int(sys.argv[2])
n = len(data["action"])
columns = {name: data[name] for name in ("reward", "action", "pscore")}
columns |= dict(action_dist=data["pmf"].reshape(n, -1, 1), position=np.zeros(n, dtype=int))
ips = ope.InverseProbabilityWeighting()
start = time.perf_counter()
ips.estimate_policy_value(**columns)
middle = time.perf_counter()
ips.estimate_interval(**columns, n_bootstrap_samples=replicates, random_state=1)
seconds = {"value_s": middle - start, "interval_s": time.perf_counter() - middle}
print(json.dumps(seconds | {"replicates": replicates}))
"""


class Data(NamedTuple):
    """Input of a replay."""

    log: Log
    pmf: Floats
    q: Floats
    """float64[n K]: the candidate's probabilities and the outcome model."""
    reward: Floats
    slices: Ints


def data(n: int, seed: int = 0) -> Data:
    """Simulate a logger with small floors, a candidate that leans towards better arms, and an outcome model."""
    rng = np.random.default_rng(seed)
    truth = rng.random((n, K))
    logged = _pmf(rng.gumbel(size=(n, K)), 0.04)
    pmf = _pmf(3.0 * truth + rng.gumbel(size=(n, K)), 0.01)
    action = np.minimum((logged.cumsum(axis=1) < rng.random(n)[:, None]).sum(axis=1), K - 1)
    reward = (rng.random(n) < truth[np.arange(n), action]).astype(np.float64)
    q = np.clip(truth + rng.normal(scale=0.3, size=(n, K)), 0.0, 1.0).ravel()
    rows, start = np.arange(n), np.arange(0, n * K + 1, K)
    chosen, none = start[:-1] + action, np.full(n, np.nan)
    decisions = Decisions(
        id=np.full(n, None),
        seq=rows,
        ts=rows.astype(np.float64),
        draw=rows,
        mode=np.full(n, MODES.index(Mode.ONLINE)),
        start=start,
        chosen=chosen,
        propensity=logged.ravel()[chosen],
        tenant=np.zeros(n, dtype=np.int64),
        user=rng.integers(0, 5000, n),
        role=(SLICES * rng.random(n) ** 1.5).astype(np.int64),
        task=np.zeros(n, dtype=np.int64),
        session=rng.integers(0, int(SESSIONS * n), n),
        begins=np.ones(n, dtype=bool),
        asked=np.ones(n, dtype=bool),
        asked_probability=np.ones(n),
        learnt=np.full(n, -1),
    )
    outcomes = Outcomes(np.full(n, "ok", dtype=object), np.full(n, -1), none, none, reward, none, none)
    options = Options(arm=np.tile(np.arange(K), n), prob=logged.ravel())
    log = Log("made up", Names(arms=tuple(f"m{k}" for k in range(K))), decisions, options, outcomes)
    return Data(log, pmf.ravel(), q, reward, decisions.role)


def _pmf(values: Floats, floor: float) -> Floats:
    weights = np.exp(values - values.max(axis=1, keepdims=True))
    pmf: Floats = (1.0 - K * floor) * weights / weights.sum(axis=1, keepdims=True) + floor
    return pmf


# --- the parts ---


def outcomes(units: Units, made: Data) -> PseudoOutcomes:
    """Compute pseudo-outcomes of the candidate's value; everybody was asked, and answered."""
    observed = observe_metric(made.log)
    return pseudo_outcomes(
        units, made.pmf, None, made.q, observed, np.full(units.n, 0.5), label_probabilities(units, observed)
    )


def sequences(found: PseudoOutcomes, made: Data) -> list[Running]:
    """Compute one exact sequence for each slice; they hold together."""
    low, high, below, above = found

    def of(rows: Ints, looks: Ints) -> Any:
        return exact(low[:, rows], high[:, rows], below, above, alpha=0.05 / SLICES, within=(0.0, 1.0), looks=looks)

    return by_slice(of, made.slices, SLICES)


def estimates(method: Callable[..., list[Interval]], rounds: Rounds, units: Units, made: Data) -> list[list[Interval]]:
    """Compute all estimators, in all slices and for everybody."""
    several = list(ESTIMATORS.values())
    return [
        method(several, rounds, cluster=units.cluster, slices=made.slices, n_slices=SLICES, alpha=0.05 / SLICES),
        method(several, rounds, cluster=units.cluster),
    ]


def timed(repeats: int, of: Callable[[], Any]) -> tuple[dict[str, float], Any]:
    """Run a function repeatedly; return median and least seconds, CPU seconds, and the last result."""
    seconds, busy, result = [], [], None
    for _ in range(repeats):
        del result
        start, cpu = time.perf_counter(), time.process_time()
        result = of()
        seconds.append(time.perf_counter() - start)
        busy.append(time.process_time() - cpu)
    found = {"median_s": statistics.median(seconds), "least_s": min(seconds), "cpu_s": statistics.median(busy)}
    return {name: round(value, 4) for name, value in found.items()}, result


def peer(python: Path, made: Data, replicates: int = 50) -> dict[str, Any]:
    """Time Open Bandit Pipeline's IPS with its bootstrap of rows: no slices, no clusters, fewer replicates."""
    action = made.log.decisions.chosen - made.log.decisions.start[:-1]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "in.npz"
        np.savez(source, action=action, reward=made.reward, pscore=made.log.decisions.propensity, pmf=made.pmf)
        command = [str(python), "-W", "ignore", "-c", PEER, str(source), str(replicates)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found | {"interval_s_at_2000": round(found["interval_s"] * 2000 / replicates, 2)}


def run(n: int, repeats: int, python: Path | None) -> dict[str, Any]:
    """Time every part of a replay."""
    made = data(n)
    parts: dict[str, dict[str, float]] = {}
    parts["units"], units = timed(1, lambda: closed_units(made.log, idle_s=0.0, now=float(n + 1)))
    assert units.n == n
    parts["rounds"], rounds = timed(repeats, lambda: rounds_of(units, made.pmf, made.q, made.reward, seed=1))
    parts["estimates"], found = timed(repeats, lambda: estimates(deltas, rounds, units, made))
    parts["bootstrap"], resampled = timed(repeats, lambda: estimates(bootstraps, rounds, units, made))
    parts["outcomes"], bounded = timed(1, lambda: outcomes(units, made))
    parts["sequences"], paths = timed(repeats, lambda: sequences(bounded, made))
    pairs = zip(chain(*resampled), chain(*found), strict=True)
    off = np.concatenate([one.se / other.se for one, other in pairs])
    results: dict[str, Any] = {
        "decisions": n,
        "models": K,
        "sessions": int(units.cluster.max()) + 1,
        "slices": SLICES,
        "smallest_slice": int(np.bincount(made.slices).min()),
        "estimators": list(ESTIMATORS),
        "repeats": repeats,
        "cores": len(os.sched_getaffinity(0)),
        "threads": os.environ.get("OMP_NUM_THREADS", "all"),
        "load": [round(load, 2) for load in os.getloadavg()],
        "parts": parts,
        "rounds_and_estimates_s": round(parts["rounds"]["median_s"] + parts["estimates"]["median_s"], 4),
        "rounds_and_bootstrap_s": round(parts["rounds"]["median_s"] + parts["bootstrap"]["median_s"], 4),
        "sequences_s": parts["sequences"]["median_s"],
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "check": {
            "dr": float(found[1][list(ESTIMATORS).index("dr")].value[0]),
            "bootstrap_se_over_delta_se": [round(float(q), 4) for q in np.quantile(off, (0.0, 0.5, 1.0))],
            "widest_sequence_of_a_slice": max(float(p.sequence.high[-1] - p.sequence.low[-1]) for p in paths),
        },
    }
    return results if python is None else results | {"obp_ips": peer(python, made)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decisions", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peer", type=Path, help="a Python that has obp 0.5.7")
    parser.add_argument("--json", type=Path, help="where the results go too")
    given = parser.parse_args()
    text = json.dumps(run(given.decisions, given.repeats, given.peer), indent=1)
    if given.json is not None:
        given.json.write_text(text + "\n", encoding="utf-8")
    print(text)
