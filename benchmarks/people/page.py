"""One table of what people and recorded outcomes say, beside a stored baseline. Prints Markdown; `--json` keeps it.

    python -m benchmarks.people.page                           # twenty minutes of two cores
    python -m benchmarks.people.page --full --json now.json    # all seeds, and libraries that are installed
    python -m benchmarks.people.page --parts strangers crews --beside other.json

People (`benchmarks.people`), strangers with the usual tastes and those that no rule was chosen on
(`benchmarks.strangers`), recorded outcomes beside other bandits (`benchmarks.policies.outcomes`), the area under reward
over nine ceilings of cost (`benchmarks.policies.matrix`), and crews (`benchmarks.policies.crews`): with the
configuration's defaults, through the product's decider and learner. The baseline is commit 11a3449, measured by this
code with `at_11a3449.patch` on that commit's packages; differences are of the same people, seeds and orders, ± one
standard error.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks import strangers
from benchmarks.people import __main__ as people
from benchmarks.policies import crews, matrix, outcomes
from benchmarks.policies._simple import SIMPLE

from fitrouter.state.budgets import BudgetParams
from fitrouter_evaluators.bench._routing import Point, area, mixture
from fitrouter_evaluators.simulation.matrix_stream import Matrix, Setting, play

BASELINE = Path(__file__).parent / "baseline_11a3449.json"
GAPS = (("full decision", "user-blind"), ("served score", "population"))
AREA = "four models, area over nine ceilings"
CREWS = ("default", "the examples'")

Units = dict[str, list[float]]
"""Person, seed or order → its numbers."""
Part = Callable[[bool, int], dict[str, Any]]

_matrices: dict[str, Matrix] = {}


def _people(_full: bool, jobs: int) -> dict[str, Any]:
    found = people.measure(list(people.CELLS), people.SHARED, None, jobs)
    return {cell: {"units": units, "summary": found["cells"][cell]} for cell, units in found["sums"].items()}


def _strangers(full: bool, jobs: int) -> dict[str, Any]:
    if not strangers.DATA.exists():
        return _skipped(strangers.DATA)
    tastes = (*strangers.TASTES, *strangers.MORE)
    found = strangers.measure({}, 8 if full else 4, jobs, tastes=tastes)
    return {
        f"{cell}, {kind} tastes": {"units": {who: list(map(float, one)) for who, one in each.items() if usual(who)}}
        for cell, each in found.items()
        for kind, usual in (("usual", lambda who: not _more(who)), ("other", _more))
    }


def _more(who: str) -> bool:
    return who.partition(" ")[2] in strangers.MORE


def _pass(task: tuple[str, str | float | None, int]) -> list[float]:
    """One pass of a cell: lead of the last half and of the first hundred, share of the ceiling, mean reward."""
    cell, player, seed = task
    found = _matrices[cell]
    ceiling = player if isinstance(player, float) else outcomes.CELLS[cell].ceiling
    order = np.random.default_rng(1000 + seed).permutation(len(found.reward))
    if isinstance(player, str):
        reward, cost = outcomes.peer_rewards(player, found, order, seed), 0.0
    else:
        budget = None if ceiling is None else BudgetParams(usd_per_request=ceiling)
        played = play(found, order, Setting(seed=seed), budget)
        reward, cost = played.reward, 0.0 if ceiling is None else float(played.cost.mean() / ceiling)
    best = found.reward[order, int(np.nanmean(found.reward, axis=0).argmax())]
    lead = reward - best
    late, first = lead[len(lead) // 2 :].mean(), lead[: outcomes.FIRST].mean()
    return [round(float(each), 5) for each in (late, first, cost, reward.mean())]


def _outcomes(full: bool, jobs: int) -> dict[str, Any]:
    if not outcomes.DATA.is_dir():
        return _skipped(outcomes.DATA)
    _matrices.update({name: cell.matrix() for name, cell in outcomes.CELLS.items()})
    seeds = range(8 if full else 4)
    free = [name for name, cell in outcomes.CELLS.items() if cell.ceiling is None]
    names = outcomes.installed() if full else list(SIMPLE)
    tasks = [(cell, None, seed) for cell in outcomes.CELLS for seed in seeds]
    tasks += [("four models", ceiling, seed) for ceiling in matrix.CEILINGS.tolist() for seed in seeds]
    tasks += [(cell, name, seed) for cell in free for name in names for seed in seeds]
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as workers:
        played = dict(zip(tasks, workers.map(_pass, tasks), strict=True))
    found: dict[str, Any] = {}
    for cell in outcomes.CELLS:
        best = float(np.nanmean(_matrices[cell].reward, axis=0).max())
        found[cell] = {"units": {str(s): played[cell, None, s] for s in seeds}, "best_single": best}
        if cell in free:
            found[cell]["peers"] = {name: {str(s): played[cell, name, s] for s in seeds} for name in names}
    four = _matrices["four models"]
    points = [Point(float(c), float(r)) for c, r in zip(four.cost.mean(axis=0), four.reward.mean(axis=0), strict=True)]
    hull = [mixture(points, ceiling) for ceiling in matrix.CEILINGS]
    curves = {str(s): [played["four models", ceiling, s][3] for ceiling in matrix.CEILINGS.tolist()] for s in seeds}
    areas = {s: [area(matrix.CEILINGS, curve)] for s, curve in curves.items()}
    return found | {AREA: {"units": areas, "best_single": area(matrix.CEILINGS, hull)}}


def _crews(full: bool, jobs: int) -> dict[str, Any]:
    if not crews.RECORDED.is_file():
        return _skipped(crews.RECORDED)
    return {
        name: {"units": {str(seed): [float(right), worth] for seed, (right, worth) in enumerate(found)}}
        for name, found in crews.at_round(300, CREWS, 20 if full else 8, jobs).items()
    }


def _skipped(file: Path) -> dict[str, Any]:
    print(f"skipped: there is no {file.name} in {file.parent.name} beside the project", file=sys.stderr)
    return {}


PARTS: Mapping[str, Part] = {
    "people": _people,
    "strangers": _strangers,
    "outcomes": _outcomes,
    "crews": _crews,
}


# --- the table ---


def paired(mine: Mapping[str, Sequence[float]], theirs: Mapping[str, Sequence[float]], j: int) -> str:
    """Return the mean difference of number j of the same units, ± its standard error; empty without any."""
    both = sorted(mine.keys() & theirs.keys())
    if len(both) < 2:
        return ""
    gap = np.array([mine[unit][j] - theirs[unit][j] for unit in both])
    return f"{gap.mean():+.3f} ± {gap.std(ddof=1) / np.sqrt(len(gap)):.3f}"


def _beside(rows: Sequence[str], before: Sequence[str]) -> str:
    """Join the cells of two rows, the one of before first; what is not measured is a dash."""
    both = zip(before, rows, strict=True)
    return " | ".join(new if new == "–" else f"{old} → **{new}**" if old else f"**{new}**" for old, new in both)


def _people_table(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    lines = [
        "| people | n | user-blind → full decision | now − baseline | full − blind | worse : better from 5, 20 labels "
        "| served − population | AUC from 5, 20: full (bias-only) |",
        "|---|--:|---|---|---|---|---|---|",
    ]
    for cell, found in now.items():
        both = [each["summary"] for each in (before.get(cell), found) if each]
        text = found["summary"]
        all_, j = text["all"], 1 + people.ROWS.index("full decision")
        change = people.beside({cell: found["units"]}, {cell: before[cell]["units"]}) if cell in before else None
        moved = "" if change is None else "{:+.4f} ± {:.4f}".format(*change[cell][people.ROWS[j - 1]])
        who = "; ".join(
            ", ".join(
                "{:.0f} : {:.0f}".format(*(100 * share for share in each[key]))
                for key in ("full decision, worse : better, 5+", "full decision, worse : better, 20+")
                if key in each
            )
            for each in both
        )
        auc = ""
        if (all_["loss"]["bias-only"] != all_["loss"]["population"]) and "right" not in text:
            auc = ", ".join(
                f"{text[key]['full decision']:.3f} ({text[key]['bias-only']:.3f})"
                for key in ("auc, 5+", "auc, 20+")
                if key in text
            )
        blind = f"{all_['loss']['user-blind']:.4f} → **{all_['loss']['full decision']:.4f}**"
        gaps = ["{:+.4f} ± {:.4f}".format(*all_[f"{row} minus {to}"]) for row, to in GAPS]
        lines.append(f"| {cell} | {text['people']} | {blind} | {moved} | {gaps[0]} | {who} | {gaps[1]} | {auc} |")
    return lines


def _strangers_table(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    lines = [
        "| strangers | people | share of the possible | worst decile | longest run | right at 60 | followed within 15 "
        "| share, now − baseline |",
        "|---|--:|---|---|---|---|---|---|",
    ]

    def row(units: Units | None, change: bool) -> list[str]:
        if not units:
            return [""] * 5
        mean, _, _, kept, run, followed = np.array(list(units.values())).T
        if change:
            return ["–"] * 4 + [f"{(followed <= 15).mean():.2f}"]
        return [
            f"{mean.mean():.3f}",
            f"{np.quantile(mean, 0.1):.2f}",
            f"{np.quantile(run, 0.95):.1f}",
            f"{kept.mean():.2f}",
            "–",
        ]

    for cell, found in now.items():
        earlier = before.get(cell, {}).get("units")
        rows = [row(units, "change" in cell) for units in (found["units"], earlier)]
        moved = paired(found["units"], earlier or {}, 0)
        lines.append(f"| {cell} | {len(found['units'])} | {_beside(*rows)} | {moved} |")
    return lines


def _outcomes_table(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    lines = [
        "| outcomes | best single | last half minus it | worst order | first hundred | spent | now − baseline "
        "| best other bandit: ours minus it |",
        "|---|--:|---|---|---|---|---|---|",
    ]

    def row(units: Units | None) -> list[str]:
        if not units:
            return [""] * 4
        late, first, spent, _ = np.array(list(units.values())).T
        money = f"{spent.mean():.2f}" if spent.any() else "–"
        return [f"{late.mean():+.3f}", f"{late.min():+.3f}", f"{first.mean():+.3f}", money]

    for cell, found in now.items():
        units, earlier = found["units"], before.get(cell, {}).get("units", {})
        if cell == AREA:
            above = [f"{np.mean([u[0] for u in each.values()]):.4f}" if each else "" for each in (units, earlier)]
            moved = paired(units, earlier, 0)
            lines.append(
                f"| {cell} | {found['best_single']:.4f} | {_beside(*([a] for a in above))} | | | | {moved} | |"
            )
            continue
        peers = {name: np.mean([each[0] for each in of.values()]) for name, of in found.get("peers", {}).items()}
        best = max(peers, key=lambda name: peers[name], default="")
        lead = f"{best}: {paired(units, found['peers'][best], 0)}" if best else ""
        rows = _beside(row(units), row(earlier))
        lines.append(f"| {cell} | {found['best_single']:.3f} | {rows} | {paired(units, earlier, 0)} | {lead} |")
    return lines


def _crews_table(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    lines = [
        "| crews at 300 rounds | seeds | all roles right | satisfaction | satisfaction, now − baseline |",
        "|---|--:|---|---|---|",
    ]

    def row(units: Units | None) -> list[str]:
        return [f"{each:.2f}" for each in np.mean(list(units.values()), axis=0)] if units else ["", ""]

    for name, found in now.items():
        earlier = before.get(name, {}).get("units", {})
        moved = paired(found["units"], earlier, 1)
        lines.append(f"| {name} | {len(found['units'])} | {_beside(row(found['units']), row(earlier))} | {moved} |")
    return lines


TABLES = {"people": _people_table, "strangers": _strangers_table, "outcomes": _outcomes_table, "crews": _crews_table}


def main() -> None:
    """Parse the command line, measure, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--full", action="store_true", help="all seeds, and libraries that are installed")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--beside", type=Path, default=BASELINE, help="an earlier --json")
    parser.add_argument("--json", type=Path, help="keep the numbers of every person, seed and order")
    args = parser.parse_args()
    before = json.loads(args.beside.read_text(encoding="utf-8")) if args.beside.exists() else {}
    found: dict[str, Any] = {}
    for part in args.parts:
        started = time.monotonic()
        found[part] = PARTS[part](args.full, args.jobs)
        print(f"{part}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
        print("\n".join((*TABLES[part](found[part], before.get(part, {})), "")), flush=True)
        if args.json:
            args.json.write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
