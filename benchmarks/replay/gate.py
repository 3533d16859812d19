"""How often the gate is wrong, and how soon it is right (docs/results/replay_gate.md). Prints JSON.

python -m benchmarks.replay.gate --jobs 2
python -m benchmarks.replay.gate --table results/replay_gate.json

Each world is a log of 20,000 decisions with a candidate of known worth (`_gate_worlds.py`); a tenth of the decisions is
asked about at random, and everybody answers. The gate is the shortest one (`metric: fit`), asked after every 500
decisions, and one stops at its first promote or keep. What is learnt from the log is learnt in time, so a log that is
cut at a look says there what the whole log says at that look: limits at all looks are read off one pass.

With `--whole N` the logs of N worlds are cut at every tenth look and given to `replay` as it ships, with the gate, and
its limits are printed beside those of the one pass. `--bounds` tries other bounds than those that ship,
and `--silence` says what it costs if not everybody answers.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from benchmarks.replay._gate_worlds import IDLE_S, World, make

from fitrouter_evaluators.replay.evaluation import ReplaySettings, evaluate
from fitrouter_evaluators.replay.gate import GateEvidence, decide, sequence_levels
from fitrouter_evaluators.replay.gate_file import Gate
from fitrouter_evaluators.replay.inference.sequences import exact_band, exact_lower
from fitrouter_evaluators.replay.log.log import Log
from fitrouter_evaluators.replay.report import Band
from fitrouter_evaluators.replay.study.diagnostics import diagnose
from fitrouter_evaluators.replay.study.prediction_powered import tune_predictions
from fitrouter_evaluators.replay.study.pseudo_outcomes import PseudoOutcomes, pseudo_outcomes
from fitrouter_evaluators.replay.study.sensitivity import silence_margins
from fitrouter_evaluators.replay.study.study import Pmfs, Study
from fitrouter_evaluators.replay.study.units import Units, closed_units

DECISIONS, EVERY = 20_000, 500
NULLS = {0.0: 100, -0.01: 100, -0.03: 100}
"""Worlds whose candidate is no better, and 100 more of which it raises the score while satisfaction falls or stays."""
FLATTERED = {0.0: 34, -0.01: 33, -0.03: 33}
POWER, CURVE = 200, 60
"""Worlds at +.03, and at each other point of the curve."""


class Job(NamedTuple):
    """A world to play: its part of the study, number and true difference."""

    part: str
    index: int
    difference: float
    flattery: bool = False


def jobs(scale: float) -> Iterator[Job]:
    """Yield all worlds to play; a scale below 1 leaves some out."""
    for part, table in (("null", NULLS), ("flattered", FLATTERED)):
        for difference, count in table.items():
            for index in range(max(1, round(scale * count))):
                yield Job(part, index, difference, part == "flattered")
    for step in range(1, 11):
        for index in range(max(1, round(scale * (POWER if step == 3 else CURVE)))):
            yield Job("power", index, step / 100)


# --- the gate, at every look ---


def looked_at(world: World, rule: str = "") -> dict[str, Any]:
    """Return the gate's first decision and its time; with bounds of a rule of `RULES`, or those that ship."""
    log, gate = world.log, Gate()
    units = closed_units(log, idle_s=IDLE_S)
    policies = Pmfs(world.candidate, log.options.prob)
    study = Study(units, policies, gate.metric)
    known = diagnose("candidate", study.units, study.pmfs.candidate, study.powered[0], 0.0, 1.0)
    (level,) = sequence_levels(gate)
    decisions, counts = _looks(study.units)
    stream = bounded(study, RULES[rule](world.kind.ask)) if rule else study.stream("difference")
    band = exact_band(*stream, alpha=(level.low, level.high), looks=counts)
    silence = _silence(study, gate)
    verdict, at, paths = "not enough evidence", DECISIONS, (band.means, band.lows, band.highs)
    for look, n, mean, low, high in zip(decisions, counts, *paths, strict=True):
        now = _at(band, int(n), mean, low, high)
        verdict = decide(gate, [GateEvidence(gate.metric, now, silence)], [known]).verdict
        if verdict != "not enough evidence":
            at = int(look)
            break
    return {"verdict": verdict, "at": at, "low": band.low, "high": band.high, "estimate": band.value, "ess": known.ess}


def _looks(units: Units) -> tuple[np.ndarray, np.ndarray]:
    """Return (decisions, units) at each look; units end before the first session that is still open then."""
    log = units.log
    last = np.maximum.reduceat(log.decisions.ts[units.member], units.start[:-1])
    alone = log.decisions.session[units.draw[units.draw_start[:-1]]] < 0
    closes = np.where(alone, last, last + IDLE_S)
    known = np.maximum.accumulate(closes)
    decisions = np.arange(EVERY, log.decisions.n + 1, EVERY)
    counts = np.searchsorted(known, log.decisions.ts[decisions - 1], side="right")
    fresh = np.flatnonzero(np.diff(counts, prepend=0) > 0)
    return decisions[fresh], counts[fresh]


def _silence(study: Study, gate: Gate) -> tuple[float, float]:
    return silence_margins(study.units, study.observed, study.importance_weight("difference"), gamma=gate.sensitivity)


def _at(band: Band, n: int, mean: float, low: float, high: float) -> Band:
    return msgspec.structs.replace(band, n=n, value=mean, low=low, high=high, at=[], means=[], lows=[], highs=[])


def play(job: Job, rule: str = "") -> dict[str, Any]:
    """Play one world; returns its settings and what became of its candidate."""
    world = make(job.index, job.difference, flattery=job.flattery)
    found = looked_at(world, rule)
    about = world.kind._asdict()
    return {**job._asdict(), **about, "true": world.difference, "score": world.score, "chi2": world.chi2, **found}


# --- logs that are cut ---


class _Given(NamedTuple):
    """A policy whose pmf is known at every draw."""

    description: str
    known: np.ndarray
    trained_until: float | None = None

    def pmf(self, log: Log, rows: np.ndarray) -> np.ndarray:
        start = log.decisions.start
        return np.concatenate([self.known[start[row] : start[row + 1]] for row in rows])


def again(job: Job) -> list[dict[str, Any]]:
    """Compare the gate's answers at some looks, from one pass, with those of `replay` on the log as it was then."""
    world, gate = make(job.index, job.difference), Gate()
    policies = _Given("a candidate", world.candidate), _Given("current", world.log.options.prob)
    units = closed_units(world.log, idle_s=IDLE_S)
    study = Study(units, Pmfs(world.candidate, world.log.options.prob), gate.metric)
    (level,), (decisions, counts) = sequence_levels(gate), _looks(study.units)
    path = exact_band(*study.stream("difference"), alpha=(level.low, level.high), looks=counts)
    found = []
    for j in range(9, len(decisions), 10):
        then = evaluate(_cut(world.log, int(decisions[j])), *policies, ReplaySettings(idle_s=IDLE_S), gate)
        (exact,) = (band for band in then.bands if (band.policy, band.kind, band.slice) == ("difference", "exact", ""))
        assert then.gate is not None
        found.append(
            {
                "sessions": world.kind.sessions,
                "decisions": int(decisions[j]),
                "units": [int(counts[j]), exact.n],
                "low": [path.lows[j], exact.low],
                "high": [path.highs[j], exact.high],
                "replay": then.gate.verdict,
            }
        )
    return found


def _cut(log: Log, n: int) -> Log:
    """Return the log as it was after n decisions."""
    m = int(log.decisions.start[n])

    def first(values: Any, count: int) -> Any:
        return values[:count] if isinstance(values, np.ndarray) else values

    decisions = log.decisions._replace(**{k: first(v, n) for k, v in log.decisions._asdict().items() if k != "start"})
    return log._replace(
        decisions=decisions._replace(start=log.decisions.start[: n + 1]),
        options=log.options._replace(**{k: first(v, m) for k, v in log.options._asdict().items()}),
        outcomes=log.outcomes._replace(**{k: first(v, n) for k, v in log.outcomes._asdict().items()}),
    )


# --- other bounds ---

RULES: dict[str, Callable[[float], tuple[float, ...]]] = {
    "2, 16, 128": lambda e: (2.0, 16.0, 128.0),  # noqa: ARG005 - one rule hangs on nothing
    "1, 4, 16": lambda e: (1.0, 4.0, 16.0),  # noqa: ARG005
    "1/e, 4/e": lambda e: (1.0 / e, 4.0 / e),
    "2/e, 16/√e": lambda e: (2.0 / e, 16.0 / e**0.5),
    "1 + .6/e, 4 + 2/e": lambda e: (1.0 + 0.6 / e, 4.0 + 2.0 / e),
    "1 + 1/e, 2 + 2.4/e": lambda e: (1.0 + 1.0 / e, 2.0 + 2.4 / e),
    "1 + 1/e, 2 + 2.4/e, 4 + 8/e": lambda e: (1.0 + 1.0 / e, 2.0 + 2.4 / e, 4.0 + 8.0 / e),
}
GAMMAS = (1.2, 1.5, 2.0)
SETTINGS = ((0.02, 0.05), (0.1, 0.03), (0.3, 0.02), (1.0, 0.01))
"""Probabilities of being asked, and true differences that are about as hard to show."""


def bounded(study: Study, bounds: tuple[float, ...]) -> PseudoOutcomes:
    """Compute pseudo-outcomes of the difference with other bounds."""
    units, observed, learnt = study.units, study.observed, study.progressive
    f = tune_predictions(
        units, observed, learnt.f, learnt.chance, weight=study.importance_weight("difference"), adaptive=True
    )
    return pseudo_outcomes(units, *study.pmfs, learnt.q, observed, f, learnt.chance, bounds=bounds)


def tried(job: tuple[float, float, int]) -> dict[str, tuple[float, bool]]:
    """Return for each rule the lower limit at the end, and whether it was ever above 0."""
    ask, difference, index = job
    world = make(index, difference, ask=ask)
    study = Study(closed_units(world.log, idle_s=IDLE_S), Pmfs(world.candidate, world.log.options.prob), "fit")
    every = tuple(sorted({k for rule in RULES.values() for k in rule(ask)}))
    stream = bounded(study, every)
    found = {}
    for name, rule in RULES.items():
        rows = [every.index(k) for k in rule(ask)]
        low = exact_lower(stream.low[rows], stream.bound_low[rows], alpha=0.025, looks=_looks(study.units)[1])
        found[name] = float(low[-1]), bool((low > 0.0).any())
    return found


def sweep(worlds: int, pool: Any) -> list[dict[str, Any]]:
    """Try each rule of bounds in each setting."""
    found = []
    for ask, difference in SETTINGS:
        rows = pool.map(tried, [(ask, difference, index) for index in range(worlds)], chunksize=4)
        for name in RULES:
            lows, shown = zip(*(row[name] for row in rows), strict=True)
            result = {"asked": ask, "true": difference, "bounds": name, "worlds": worlds}
            found.append({**result, "shown": sum(shown), "lower limit at the end": round(float(np.mean(lows)), 4)})
    return found


# --- silence ---


def silenced(index: int) -> list[float]:
    """Return how much the lower limit falls for each Γ, where a random 60 % of those who are asked answer."""
    world, rng = make(index, 0.03), np.random.default_rng(index)
    said = world.log.outcomes.asked_label
    answered = np.where(rng.random(len(said)) < 0.6, said, np.nan)
    log = world.log._replace(outcomes=world.log.outcomes._replace(asked_label=answered))
    study = Study(closed_units(log, idle_s=IDLE_S), Pmfs(world.candidate, log.options.prob), "fit")
    u = study.importance_weight("difference")
    return [silence_margins(study.units, study.observed, u, gamma=gamma)[0] for gamma in GAMMAS]


def silence(worlds: int, pool: Any) -> list[dict[str, Any]]:
    """Compute quantiles over worlds of the falls of `silenced`."""
    falls = np.array(pool.map(silenced, range(worlds)))
    quantiles = np.quantile(falls, (0.1, 0.5, 0.9), axis=0).round(4).T.tolist()
    return [{"gamma": gamma, "falls by (10, 50, 90 %)": q} for gamma, q in zip(GAMMAS, quantiles, strict=True)]


# --- what came of it ---


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Summarise false promotions, the power curve, and power by kind of world at +.03."""
    null = [row for row in rows if row["part"] != "power"]
    wrong = [row for row in null if row["verdict"] == "promote"]
    main = [row for row in rows if row["part"] == "power" and row["difference"] == 0.03]
    kinds = ("family", "adaptive", "sessions", "thumbs")
    return {
        "no better": {
            "worlds": len(null),
            "promoted": len(wrong),
            "upper limit": _upper(len(wrong), len(null)),
            "which": wrong,
            "by worth": [
                _counts(part, difference, [r for r in null if (r["part"], r["difference"]) == (part, difference)])
                for part, difference in dict.fromkeys((r["part"], r["difference"]) for r in null)
            ],
        },
        "power": [
            _counts("power", step, [r for r in rows if r["part"] == "power" and r["difference"] == step])
            for step in sorted({r["difference"] for r in rows if r["part"] == "power"})
        ],
        "at +.03 by kind": [
            {"kind": f"{kind} {value}", **_counts("power", 0.03, [r for r in main if r[kind] == value])}
            for kind in kinds
            for value in sorted({r[kind] for r in main})
        ]
        + [
            {"kind": f"chi2 quarter {q + 1}", **_counts("power", 0.03, some.tolist())}
            for q, some in enumerate(np.array_split(np.array(sorted(main, key=lambda r: r["chi2"]), dtype=object), 4))
        ],
    }


def _counts(part: str, difference: float, rows: list[dict[str, Any]]) -> dict[str, Any]:
    promoted = [row for row in rows if row["verdict"] == "promote"]
    at = [row["at"] for row in promoted]
    return {
        "part": part,
        "true": difference,
        "worlds": len(rows),
        "promoted": len(promoted),
        "kept": sum(row["verdict"] == "keep" for row in rows),
        "undecided": sum(row["verdict"] == "not enough evidence" for row in rows),
        "median decisions until promoted": float(np.median(at)) if at else None,
        "chi2 (10, 50, 90 %)": [round(float(q), 2) for q in np.quantile([r["chi2"] for r in rows], (0.1, 0.5, 0.9))],
        "score of the candidate": round(float(np.mean([r["score"] for r in rows])), 4),
        "limits miss the truth at the end": sum(not r["low"] <= r["true"] <= r["high"] for r in rows),
    }


def _upper(count: int, n: int) -> float:
    """Return the 95 % upper limit of a probability (Clopper and Pearson)."""
    from scipy.stats import beta

    return 1.0 if count == n else float(beta.ppf(0.95, count + 1, n - count))


def table(found: dict[str, Any]) -> str:
    """Format the tables of docs/results/replay_gate.md."""
    lines = [
        "| true difference | worlds | promoted | kept | undecided | χ² (10, 50, 90 %) |",
        "|---|---|---|---|---|---|",
    ]
    for row in found["no better"]["by worth"]:
        name = f"{row['true']:+.2f}" + (
            f", score {row['score of the candidate']:+.3f}" if row["part"] != "null" else ""
        )
        spread = ", ".join(str(q) for q in row["chi2 (10, 50, 90 %)"])
        counts = f"{row['worlds']} | {row['promoted']} | {row['kept']} | {row['undecided']}"
        lines.append(f"| {name} | {counts} | {spread} |")
    lines += ["", "| true difference | worlds | promoted | kept | undecided | median decisions until promoted | χ² |"]
    lines.append("|---|---|---|---|---|---|---|")
    for row in found["power"]:
        spread = ", ".join(str(q) for q in row["chi2 (10, 50, 90 %)"])
        share, kept, open_ = (row[k] / row["worlds"] for k in ("promoted", "kept", "undecided"))
        until = row["median decisions until promoted"]
        lines.append(
            f"| {row['true']:+.2f} | {row['worlds']} | {share:.1%} | {kept:.1%} | {open_:.1%} | "
            f"{'–' if until is None else format(until, ',.0f')} | {spread} |"
        )
    lines += ["", "| worlds at +.03 | promoted | median decisions | χ², median |", "|---|---|---|---|"]
    for row in found["at +.03 by kind"]:
        until, share = row["median decisions until promoted"], row["promoted"] / row["worlds"]
        until = "–" if until is None else format(until, ",.0f")
        lines.append(f"| {row['kind']} ({row['worlds']}) | {share:.0%} | {until} | {row['chi2 (10, 50, 90 %)'][1]} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the worlds")
    parser.add_argument("--whole", type=int, default=0, help="worlds to compare with logs that are cut")
    parser.add_argument("--bounds", type=int, default=0, help="worlds to try other bounds on")
    parser.add_argument("--silence", type=int, default=0, help="worlds in which not everybody answers")
    parser.add_argument("--rule", default="", choices=["", *RULES], help="bounds; those that ship where empty")
    parser.add_argument("--table", type=Path, help="print the tables of a result")
    asked = parser.parse_args()
    if asked.table:
        print(table(json.loads(asked.table.read_text(encoding="utf-8"))))
        return
    if asked.whole:
        compared = [row for index in range(asked.whole) for row in again(Job("power", index, 0.03))]
        print(json.dumps(compared, indent=1))
        return
    begun = time.perf_counter()
    with multiprocessing.Pool(asked.jobs) as pool:
        if asked.bounds or asked.silence:
            rows = sweep(asked.bounds, pool) if asked.bounds else silence(asked.silence, pool)
            print(json.dumps(rows, indent=1, ensure_ascii=False))
            return
        rows = pool.map(functools.partial(play, rule=asked.rule), list(jobs(asked.scale)), chunksize=8)
    print(json.dumps({**summary(rows), "seconds": round(time.perf_counter() - begun)}, indent=1))


if __name__ == "__main__":
    main()
