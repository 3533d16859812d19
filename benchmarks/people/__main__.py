"""Real people's streams of judgements: does a personal prediction help, and whom does it harm? Prints JSON.

    python -m benchmarks.people                                   # two minutes of two idle cores
    python -m benchmarks.people --cells crowd_models/team --draws 8 --beside results/people_before.json

Every label is predicted, then learnt, by the reward model as it ships, with the default encoder, features and prior
(`posterior.model.Fit`). Sets are those of `../shared/data`; those that are missing are left out with a message.

* `crowd`: half of the people with 20 labels or more are new, one after the other, after everybody else;
* `alone`: each of them in an installation of their own;
* `team`: teams of two to five people drawn at random; one of them comes after the others;
* `leave one out`: of a small set, each person after all others.

Rows: population (taste for the text alone), user-blind (a reward model without personal terms), served score (the
person's taste for the text), full decision (everything), bias-only (the person's mean rating, shrunk), decided mean
(what decisions add up, with user-blind's variance and temperature: the loss that decisions can have). Losses are nats
of a comparison and squared errors of a rating. The served score judges a text and does not know its model: beside
user-blind, which does, stands population, which does not. Right: shares of comparisons whose preferred answer has the
higher expected rating. Worse and better: shares of people whose mean loss differs from that of
user-blind by more than a standard error; noise alone gives .16 of each. Standard errors are over people and draws.
AUC: areas under the curve of predicted ratings for a rating above the set's median. `--beside` compares with an earlier
output, person by person.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.people.sets import SHARED, People, folder_of
from benchmarks.people.streams import (
    BLIND,
    DECIDED,
    FULL,
    ROWS,
    SERVED,
    Arrangement,
    Seen,
    alone,
    crowd,
    leave_one_out,
    play,
    team,
)

CELLS: Mapping[str, tuple[Arrangement, int]] = {
    "human_feedback/crowd": (crowd, 2),
    "human_feedback_ratings/crowd": (crowd, 1),
    "crowd_models/crowd": (crowd, 2),
    "pluriharms/crowd": (crowd, 1),
    "mt_bench/crowd": (crowd, 1),
    "human_feedback/alone": (alone, 1),
    "crowd_models/alone": (alone, 1),
    "crowd_models/team": (team, 6),
    "mt_bench/team": (team, 6),
    "llm_rubric/team": (team, 6),
    "ttcw/team": (team, 6),
    "small_team/leave one out": (leave_one_out, 4),
}
"""Set and arrangement → its function, and the draws."""
BANDS = ((0, 5), (5, 20), (20, 40), (40, 1 << 30))

_sets: dict[str, People] = {}


def _play(task: tuple[str, int]) -> dict[str, list[Seen]]:
    cell, draw = task
    people = _sets[cell.partition("/")[0]]
    found: dict[str, list[Seen]] = {}
    for number, stream in enumerate(CELLS[cell][0](people, draw)):
        found |= {f"{draw}.{number} {user}": seen for user, seen in play(people, stream).items()}
    return found


def summary(people: Mapping[str, Sequence[Seen]]) -> dict[str, Any]:
    """Summarise losses by band of labels given before, differences to user-blind, and who is worse or better off."""
    labels = [each for seen in people.values() for each in seen]
    loss = np.array([each.loss for each in labels])
    before = np.array([each.before for each in labels])
    of = np.repeat(np.arange(len(people)), [len(seen) for seen in people.values()])
    out: dict[str, Any] = {"people": len(people), "labels": len(labels)}
    for low, high in (*BANDS, (0, 1 << 30)):
        at = (before >= low) & (before < high)
        if not at.any():
            continue
        band = {"labels": int(at.sum()), "loss": dict(zip(ROWS, loss[at].mean(axis=0).round(4).tolist(), strict=True))}
        for j in (SERVED, FULL, DECIDED):
            band[f"{ROWS[j]} minus user-blind"] = _difference(loss[at, j] - loss[at, BLIND], of[at])
        band["served score minus population"] = _difference(loss[at, SERVED] - loss[at, 0], of[at])
        out["all" if (low, high) == (0, 1 << 30) else f"{low}+" if high == 1 << 30 else f"{low} to {high - 1}"] = band
    for least in (0, 5, 20):
        for j in (SERVED, FULL):
            gaps = [
                np.array([each.loss[j] - each.loss[BLIND] for each in seen if each.before >= least])
                for seen in people.values()
            ]
            z = np.array([g.mean() / (g.std(ddof=1) / np.sqrt(len(g)) + 1e-12) for g in gaps if len(g) >= 5])
            if len(z):
                out[f"{ROWS[j]}, worse : better, {least}+"] = [round(float(w.mean()), 3) for w in (z > 1.0, z < -1.0)]
    y = np.array([each.y for each in labels])
    means = np.array([each.mean for each in labels])
    if (means[:, ROWS.index("bias-only")] == 0.5).all():
        right = (means > 0.5) == (y > 0.5)[:, None]
        out["right"] = dict(zip(ROWS, right.mean(axis=0).round(4).tolist(), strict=True))
        out["right, full decision minus user-blind"] = _difference(right[:, FULL] - 1.0 * right[:, BLIND], of)
    for least in (5, 20):
        at = before >= least
        if at.sum() > 1:
            good = y[at] > np.median(y)
            areas = [round(_auc(means[at, j], good), 4) for j in range(len(ROWS))]
            out[f"auc, {least}+"] = dict(zip(ROWS, areas, strict=True))
    return out


def _difference(gap: np.ndarray[Any, Any], of: np.ndarray[Any, Any]) -> list[float]:
    """Return the mean and its standard error, with labels of one person together."""
    sums = np.bincount(of, gap - gap.mean())
    return [round(float(gap.mean()), 4), round(float(np.sqrt((sums**2).sum()) / len(gap)), 4)]


def _auc(predicted: np.ndarray[Any, Any], good: np.ndarray[Any, Any]) -> float:
    ranks = np.empty(len(predicted))
    _, inverse, counts = np.unique(predicted, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2.0)[inverse]
    n = int(good.sum())
    return float((ranks[good].sum() - n * (n + 1) / 2.0) / max(n * (len(good) - n), 1))


def beside(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Compare the rows of two outputs for the same people: mean difference of the loss, and its standard error."""
    out: dict[str, Any] = {}
    for cell in mine.keys() & theirs.keys():
        users = sorted(mine[cell].keys() & theirs[cell].keys())
        a, b = (np.array([each[cell][user] for user in users]) for each in (mine, theirs))
        n, gap = a[:, 0], a[:, 1:] - b[:, 1:]
        mean = gap.sum(axis=0) / n.sum()
        error = np.sqrt(((gap - n[:, None] * mean) ** 2).sum(axis=0)) / n.sum()
        out[cell] = {row: [round(float(m), 4), round(float(e), 4)] for row, m, e in zip(ROWS, mean, error, strict=True)}
    return out


def measure(cells: Sequence[str], data: Path, draws: int | None, jobs: int) -> dict[str, Any]:
    """Summarise the cells; `sums` has each person's number of labels and sums of losses."""
    for name in sorted({cell.partition("/")[0] for cell in cells}):
        if folder_of(name, data).exists():
            _sets[name] = People(name, data)
        else:
            print(f"skipped {name}: there is no {folder_of(name, data)}", file=sys.stderr)
    tasks = [
        (cell, draw) for cell in cells if cell.partition("/")[0] in _sets for draw in range(draws or CELLS[cell][1])
    ]
    found: defaultdict[str, dict[str, list[Seen]]] = defaultdict(dict)
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as workers:
        for (cell, _), people in zip(tasks, workers.map(_play, tasks), strict=True):
            found[cell] |= people
    sums = {
        cell: {
            user: [len(seen), *np.array([each.loss for each in seen]).sum(axis=0).round(6).tolist()]
            for user, seen in people.items()
            if seen
        }
        for cell, people in found.items()
    }
    return {"cells": {cell: summary(people) for cell, people in found.items()}, "sums": sums}


def main() -> None:
    """Parse the command line, measure, and print JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=SHARED)
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS))
    parser.add_argument("--draws", type=int, help="instead of each cell's own number")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--beside", type=Path, help="an earlier output")
    args = parser.parse_args()
    found = measure(args.cells, args.data, args.draws, args.jobs)
    if args.beside:
        found["beside"] = beside(found["sums"], json.loads(args.beside.read_text(encoding="utf-8"))["sums"])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
