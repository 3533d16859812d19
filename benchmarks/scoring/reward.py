"""Development targets of the reward models, each under its protocol (docs/results/reward.md). Prints JSON.

python -m benchmarks.scoring.reward --data ../shared/data --out reward.json --table reward_table.md

A target is a floor that somebody measured with a plain model, what we want, and what we found with its 95 % interval
over people. What is not in the folder is named and left out.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from benchmarks.research import _development, adversaries, behaviour
from benchmarks.research.batched import BatchedTastes

from fitrouter.posterior.gaussian import Gaussian
from fitrouter_evaluators.training.hierarchy import Observations, Shrinkage, e_step, fit_prior, m_step

ROOT = Path(__file__).resolve().parents[2]
BESIDE = {
    "unseen prompts, k=20, RMSE": ("D2 unseen prompts", "user rmse", 20, 100.0),
    "known prompts, k=20, RMSE": ("D2 known prompts", "user rmse", 20, 100.0),
    "known prompts, k=0 from declared values, RMSE": ("D2 known prompts", "user rmse", 0, 100.0),
    "offline, Pearson": ("D3 overall satisfaction", "pearson", 0, 1.0),
    "test-then-learn, pearson": ("D3 overall satisfaction", "pearson", -1, 1.0),
    "test-then-learn, spearman": ("D3 overall satisfaction", "spearman", -1, 1.0),
    "test-then-learn, kendall": ("D3 overall satisfaction", "kendall", -1, 1.0),
    "mean AUC of six dimensions, test-then-learn": ("D4 test-then-learn", "mean auc", -1, 1.0),
    "accuracy, expert held out, test-then-learn": ("D7 test-then-learn", "accuracy", -1, 1.0),
    "pairs, k=20, accuracy": ("D1 MT-bench", "accuracy", 20, 1.0),
    "pairs, k=20, NLL": ("D1 MT-bench", "nll", 20, 1.0),
    "pairs, k=20, ECE": ("D1 MT-bench", "ece", 20, 1.0),
    "copies, AUC, in order": ("RealHumanEval copies", "auc", 0, 1.0),
}
"""What a line is about → set, metric, k and factor of the rows that stand beside ours."""
BASELINES = ("global", "bias-only", "user-only")
PUBLISHED = {"offline, Pearson": 0.313}
AGREED = {"unseen prompts, k=20, RMSE": 40.8, "known prompts, k=20, RMSE": 40.8}
"""Two raters of one prompt differ by this, root mean square."""


class Row(NamedTuple):
    """One line of the table."""

    set: str
    what: str
    floor: float | None
    target: float
    ours: float
    low: float | None
    high: float | None
    people: float | None
    """Agreement of two people, where it is known."""
    met: bool
    beside: tuple[float | None, ...] = (None, None, None)
    """`BASELINES` on the same people and items."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=ROOT / "../shared/data")
    parser.add_argument("--seeds", type=int, default=12, help="splits of people and items")
    parser.add_argument("--encoder", default="static")
    parser.add_argument("--content", default="minilm", help="encoder of what is rated in D2, D4 and D7")
    parser.add_argument("--out", type=Path, help="JSON, instead of standard output")
    parser.add_argument("--table", type=Path, help="the table as Markdown")
    parser.add_argument("--from", dest="again", type=Path, help="make the tables from this JSON, and measure nothing")
    options = parser.parse_args()
    if options.again:
        known = json.loads(options.again.read_bytes())
        rows = [Row(**{**row, "beside": _beside(Row(**row), list(_all(known, "results")))}) for row in known["table"]]
        rows = [row._replace(people=AGREED.get(row.what, row.people)) for row in rows]
        known["table"] = [row._asdict() for row in rows]
        options.again.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        options.table.write_text(markdown(rows, known["harm"]), encoding="utf-8")
        return 0
    if not options.data.is_dir():
        print(f"skipped: there is no folder {options.data}", file=sys.stderr)
        return 0
    found: dict[str, Any] = {"seeds": options.seeds, "encoder": options.encoder}
    rows: list[Row] = []
    for part in (measure_ratings, measure_pairs, measure_behaviour, measure_choices, measure_adversaries):
        started = time.process_time()
        name = part.__name__.removeprefix("measure_")
        encoder = options.content if part is measure_ratings else options.encoder
        found[name], more = part(options.data, options.seeds, encoder)
        rows += more
        print(f"{name}: {time.process_time() - started:.0f} s of CPU", file=sys.stderr)
    rows += systems()
    rows = [row._replace(beside=_beside(row, list(_all(found, "results")))) for row in rows]
    rows = [row._replace(people=AGREED.get(row.what, row.people)) for row in rows]
    found["table"] = [row._asdict() for row in rows]
    found["harm"] = list(_all(found, "no_harm"))
    text = json.dumps(msgspec.to_builtins(found, enc_hook=lambda number: number.item()), indent=1) + "\n"
    if options.table:
        options.table.write_text(markdown(rows, found["harm"]), encoding="utf-8")
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0


def measure_ratings(data: Path, seeds: int, encoder: str) -> tuple[Any, list[Row]]:
    """Measure D2 PluriHarms, D3 LLM-Rubric, D4 HALIE's dialogues and D7 TTCW."""
    found = _development.run(data, seeds, encoder)
    rows = [
        Row(t.set, t.what, None if np.isnan(t.floor) else t.floor, t.target, t.ours, t.low, t.high, None, t.met)
        for t in found["targets"]
    ]
    return {**found, "targets": [t._asdict() for t in found["targets"]]}, rows


def measure_pairs(data: Path, seeds: int, encoder: str) -> tuple[Any, list[Row]]:
    """Measure D1 MT-bench."""
    if not (data / "mt_bench_human").is_dir():
        return {}, []
    found = _development.pairs_of_mt_bench(data, max(seeds, 20), encoder)
    named = found["with_identity"]
    floors = {"accuracy": (0.803, 0.805), "NLL": (0.4386, 0.435), "ECE": (None, 0.03)}
    people = named["agreement"]["decided"]
    rows = []
    for metric, (floor, target) in floors.items():
        r = next(
            r
            for r in named["results"]
            if (r["metric"].lower(), r["row"], r["k"]) == (metric.lower(), "hierarchical", 20)
        )
        met = r["mean"] >= target if metric == "accuracy" else r["mean"] <= target
        agree = people if metric == "accuracy" else None
        rows.append(Row("D1", f"pairs, k=20, {metric}", floor, target, r["mean"], r["low"], r["high"], agree, met))
    won = named["routing"]["hierarchical"]
    rows.append(Row("D1", "routing: picked model's win rate", None, 0.795, won, None, None, None, won >= 0.795))
    return found, rows


def measure_behaviour(data: Path, seeds: int, encoder: str) -> tuple[Any, list[Row]]:
    """Measure D6 RealHumanEval and D5 HALIE's metaphors."""
    found = behaviour.run(data, min(seeds, 5), encoder)
    rows = []
    for outcome in found:
        for r in outcome.results:
            if (r.metric.upper(), r.row, r.k) == ("AUC", "hierarchical", 0) and "copies" in r.set:
                met = r.mean >= 0.77
                rows.append(Row("D6", "copies, AUC, in order", 0.763, 0.77, r.mean, r.low, r.high, None, met))
    return {"outcomes": [outcome._asdict() for outcome in found]}, rows


def measure_choices(data: Path, _seeds: int, encoder: str) -> tuple[Any, list[Row]]:
    """Measure preferences in words."""
    found = _development.stated_choices(data, encoder)
    by_row = {(r.metric, r.row): r for r in found}
    if not by_row:
        return [], []
    best = max(by_row["accuracy", "longest"].mean, by_row["accuracy", "shortest"].mean)
    ours, twins = by_row["accuracy", "declared"], by_row["negated twins reverse", "declared"]
    return found, [
        Row("choices", "accuracy", best, best + 0.15, ours.mean, ours.low, ours.high, None, ours.mean >= best + 0.15),
        Row("choices", "negated twins turn", None, 0.9, twins.mean, twins.low, twins.high, None, twins.mean >= 0.9),
    ]


def measure_adversaries(data: Path, seeds: int, encoder: str) -> tuple[Any, list[Row]]:  # noqa: ARG001 - one seed
    """Measure attacks that must lose."""
    if not (data / "alpaca_eval").is_dir() or not (data / "mt_bench_human").is_dir():
        return {}, []
    found = adversaries.development(data, 1, encoder)
    heads = sorted({verdict["head"] for verdict in found["verdicts"]})
    return found, [
        Row("attacks", f"attacks that do not win against {head}", None, 1.0, lost, None, None, None, lost == 1.0)
        for head in heads
        for lost in [float(np.mean([v["lost"] for v in found["verdicts"] if v["head"] == head]))]
    ]


def systems() -> list[Row]:
    """Time 10,000 rank-1 updates, and federated EM."""
    rng = np.random.default_rng(0)
    heads = BatchedTastes.prior(Gaussian(np.zeros(32), np.eye(32)), 10_000)
    people, h, y = np.arange(10_000), rng.normal(size=(10_000, 32)), rng.random(10_000)
    times = []
    for _ in range(5):
        started = time.perf_counter()
        heads.learn(people, h, y, noise=np.full(10_000, 0.1))
        times.append(1e3 * (time.perf_counter() - started))
    users = []
    for _ in range(60):
        X = rng.normal(size=(12, 6))
        users.append(Observations(X, X @ rng.normal(size=6) + rng.normal(size=12)))
    central = federated = fit_prior(users, iterations=1)
    for _ in range(5):
        central = m_step(central, e_step(central, users), Shrinkage())
        parts = [e_step(federated, users[i::3]) for i in range(3)]
        federated = m_step(federated, parts[0].plus(parts[1]).plus(parts[2]), Shrinkage())
    apart = float(max(np.abs(central.mean - federated.mean).max(), np.abs(central.cov - federated.cov).max()))
    fast = min(times)
    return [
        Row("systems", "10,000 rank-1 updates, d=32, ms", 83.0, 100.0, fast, None, None, None, fast <= 100.0),
        Row("systems", "federated EM against central", None, 1e-8, apart, None, None, None, apart <= 1e-8),
    ]


def _all(found: Any, name: str) -> Iterable[dict[str, Any]]:
    """Yield all rows that stand under a name anywhere in nested results."""
    if isinstance(found, dict):
        for key, value in found.items():
            if key == name:
                yield from (one if isinstance(one, dict) else msgspec.to_builtins(one) for one in value)
            else:
                yield from _all(value, name)
    elif isinstance(found, list):
        for value in found:
            yield from _all(value, name)


def _beside(row: Row, results: list[dict[str, Any]]) -> tuple[float | None, ...]:
    if row.what not in BESIDE:
        return (None,) * len(BASELINES)
    name, metric, k, factor = BESIDE[row.what]
    here = [r for r in results if (r["set"], r["metric"]) == (name, metric)]
    out = []
    for baseline in BASELINES:
        ks = (k, 0, -1) if baseline == "global" else (k,)
        found = [r["mean"] for at in ks for r in here if (r["row"], r["k"]) == (baseline, at)]
        out.append(factor * found[0] if found else None)
    return tuple(out)


def markdown(rows: Iterable[Row], harm: Iterable[dict[str, Any]]) -> str:
    """Format both tables in Markdown."""
    lines = [
        "| set | what | floor | published | global | bias-only | user-only | ours (95 %) | target | two people | |"
    ]
    lines.append("|---" * 11 + "|")
    for row in rows:
        ours = _number(row.ours)
        if row.low is not None and row.high is not None and row.low != row.high:
            ours += f" ({_number(row.low)}, {_number(row.high)})"
        cells = [row.set, row.what, _number(row.floor), _number(PUBLISHED.get(row.what))]
        cells += [*map(_number, row.beside), ours, _number(row.target), _number(row.people)]
        lines.append("| " + " | ".join([*cells, "met" if row.met else "**missed**"]) + " |")
    lines += [
        "",
        "| set | k | gain | harmed | helped | worst decile | differ | CVaR10, global → ours | people × seeds |",
    ]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for one in harm:
        if one["k"] in (5, 20):
            tail = f"{_number(one['cvar10_base'])} → {_number(one['cvar10'])}"
            shares = [f"{100 * one[key]:.0f} %" for key in ("harmed", "helped")]
            cells = [one["set"], str(one["k"]), f"{100 * one['gain']:.1f} %", *shares]
            cells += [f"{100 * one['worst_decile']:+.1f} %", f"{100 * one['differ']:.0f} %", tail, str(one["users"])]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if value != 0 and abs(value) < 1e-3:
        return f"{value:.0e}"
    return f"{value:.3f}" if abs(value) < 2 else f"{value:.2f}"


if __name__ == "__main__":
    raise SystemExit(main())
