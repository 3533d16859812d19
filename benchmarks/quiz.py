"""What ten chosen questions tell about a person, beside ten random comparisons. Prints JSON.

    python -m benchmarks.quiz                      # an hour of an idle core
    python -m benchmarks.quiz --people 4 --worlds form --models 5

People of the worlds of `benchmarks.personal.served` judge recorded answers (`../shared/data/alpaca_eval`) of 3, 5 or 11
models. An installation is fresh, or has 400 thumbs of a crowd of 40 people (in `form` most of the crowd like short
answers, and the new people's tastes are uniform). Each person joins two copies of it: in one they play the quiz
(`Quizzes`, as `POST /v1/quiz` and `fitrouter personal quiz` do) to its own end, in the other they compare ten random
pairs of recorded answers. One comparison in ten is random.

Reported per cell over people: share for whom the first of the stranger's leaderboard (`GET /v1/leaderboard`) is the
best model; its regret; share of it removed by the quiz' result, by the leaderboard after the quiz, and by the
leaderboard after the random comparisons; the quiz' stated probability against truth of "M is the best", of M being
within .02, of 80 % intervals, and of signs of tastes in `linear`; questions until the end. `overall` pools all cells in
which the population's ranking is right for half of the people or fewer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from benchmarks.personal.served import (
    ATTRIBUTES,
    FIVE,
    PERSON_FROM,
    WORLDS,
    Answers,
    Home,
    Taste,
    draw_taste,
    installed,
    read_answers,
)
from benchmarks.strangers import DATA, THREE

QUESTIONS, NEAR, SURE = 10, 0.02, 0.9


class Played(NamedTuple):
    """Results of one person."""

    before: float
    """Regret of the stranger's first model."""
    quiz: float
    """Regret of the quiz' result."""
    board: float
    random: float
    """Regret of the leaderboard's first model after the quiz, and after ten random comparisons."""
    sure: float
    near: float
    """Stated probability that no model is better, and that none is by more than .02."""
    covered: float
    """Share of the quiz' 80 % intervals that cover."""
    likes: list[tuple[float, bool]]
    """Stated probability of signs of tastes, and whether they are right."""
    questions: int


async def play(home: Home, taste: Taste, seed: int) -> Played:
    """Let one person play the quiz, and compare random pairs in another copy of the installation."""
    worth, rng = taste.worth, np.random.default_rng([seed, 11])
    true = dict(zip(home.names, worth.tolist(), strict=True))

    def regret(model: str) -> float:
        return float(worth.max() - true[model])

    async with home.person("chosen", seed) as person:
        before = regret((await person.board()).first)
        played = await person.play(taste, rng, QUESTIONS, SURE)
        board = regret((await person.board()).first)
    async with home.person("random", seed) as person:
        for number in range(QUESTIONS):
            p, first = int(rng.integers(len(home.answers.prompts))), int(rng.integers(len(home.names)))
            second = (first + int(rng.integers(1, len(home.names)))) % len(home.names)
            y = taste.prefers(p, first, second, rng)
            await person.compare(p, first, second, y, PERSON_FROM + 30.0 * number)
        random = regret((await person.board()).first)
    found = played.end.result
    assert found is not None
    return Played(
        before=before,
        quiz=regret(found.best),
        board=board,
        random=random,
        sure=found.sure,
        near=found.near,
        covered=float(np.mean([m.low <= true[m.model] - worth.mean() <= m.high for m in found.models])),
        likes=[
            (each.sure, bool(taste.weights[ATTRIBUTES.index(each.feature)] > 0.0) == each.likes)
            for each in found.likes
            if each.feature in ATTRIBUTES and taste.weights.any()
        ],
        questions=len(played.pairs),
    )


class Cell(NamedTuple):
    """A setting to run."""

    world: str
    models: int
    crowd: bool

    @property
    def name(self) -> str:
        """Key of the cell in the results."""
        return f"{self.world}, {self.models} models, {'crowd' if self.crowd else 'fresh'}"


async def run(answers: Answers, cell: Cell, args: argparse.Namespace) -> list[Played]:
    """Run the people of a cell, each as the first new person of an installation."""
    names = {3: THREE, 5: FIVE, 11: answers.models}[cell.models]
    models, several = [answers.models.index(name) for name in names], asyncio.Semaphore(args.at_once)

    async def one(home: Home, taste: Taste, seed: int) -> Played:
        async with several:
            return await play(home, taste, seed)

    found = []
    for seed in range(args.first, args.first + args.seeds):
        rng = np.random.default_rng([seed, 3])
        with installed(answers, models) as home:
            if cell.crowd:
                await home.populate(cell.world, rng)
            people = [draw_taste(answers, models, cell.world, False, rng) for _ in range(args.people)]
            found += await asyncio.gather(*(one(home, each, 1000 * seed + n) for n, each in enumerate(people)))
    return found


def calibration(stated: Sequence[float], true: Sequence[bool]) -> dict[str, Any]:
    """Return the mean stated probability and the share that is true, overall and where .7 to .9 was stated."""
    p, y = np.array(stated), np.array(true, dtype=float)
    band = (p >= 0.7) & (p < 0.9)
    found: dict[str, Any] = {"n": len(p), "stated": round(float(p.mean()), 3), "true": round(float(y.mean()), 3)}
    if band.sum() >= 20:
        found[".7 to .9"] = {
            "n": int(band.sum()),
            "stated": round(float(p[band].mean()), 3),
            "true": round(float(y[band].mean()), 3),
        }
    return found


def summary(people: Sequence[Played]) -> dict[str, Any]:
    """Summarise a cell."""
    before = np.array([each.before for each in people])

    def removed(regret: Sequence[float]) -> list[float] | None:
        """Return the share of the regret before that is removed, and its standard error over people."""
        if before.mean() < NEAR / 10:  # there is nothing to remove
            return None
        share = 1.0 - float(np.mean(regret)) / float(before.mean())
        left = (np.array(regret) - (1.0 - share) * before) / float(before.mean())
        return [round(share, 3), round(float(left.std(ddof=1) / np.sqrt(len(left))), 3)]

    signs = [sign for each in people for sign in each.likes]
    return {
        "people": len(people),
        "right before": round(float((before <= 1e-9).mean()), 3),
        "regret before": round(float(before.mean()), 4),
        "removed by the quiz": removed([each.quiz for each in people]),
        "removed by the leaderboard after the quiz": removed([each.board for each in people]),
        "removed by the leaderboard after ten random pairs": removed([each.random for each in people]),
        "questions": round(float(np.mean([each.questions for each in people])), 2),
        "best": calibration([each.sure for each in people], [each.quiz <= 1e-9 for each in people]),
        "within .02": calibration([each.near for each in people], [each.quiz <= NEAR for each in people]),
        "80 % intervals cover": round(float(np.mean([each.covered for each in people])), 3),
        "signs of tastes": calibration(*zip(*signs, strict=True)) if signs else {},
    }


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Summarise every cell, and together those in which the population's ranking is often wrong."""
    answers, out = read_answers(args.data), {}
    pooled: list[Played] = []
    for cell in [Cell(world, k, crowd) for world in args.worlds for k in args.models for crowd in (False, True)]:
        found = asyncio.run(run(answers, cell, args))
        out[cell.name] = summary(found)
        if out[cell.name]["right before"] <= 0.5:
            pooled += found
        print(cell.name, json.dumps(out[cell.name]), file=sys.stderr, flush=True)
    return {"cells": out, "overall": summary(pooled) if pooled else {}}


def main() -> None:
    """Parse the command line, measure, and print JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--seeds", type=int, default=2, help="installations per cell")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--people", type=int, default=6, help="per installation")
    parser.add_argument("--at-once", type=int, default=4, help="people who use their copies at once")
    parser.add_argument("--worlds", nargs="+", choices=WORLDS, default=list(WORLDS))
    parser.add_argument("--models", nargs="+", type=int, choices=(3, 5, 11), default=[3, 5, 11])
    args = parser.parse_args()
    if not args.data.exists():
        print(f"skipped: there is no {args.data.name} in {args.data.parent.name} beside the project", file=sys.stderr)
        return
    print(json.dumps(measure(args), indent=1))


if __name__ == "__main__":
    main()
